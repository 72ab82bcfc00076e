"""How often one link had to be put right, and when that has become a war with somebody else."""

from __future__ import annotations

from collections import deque

from netreeve.model.backoff import Backoff

__all__ = ["WAR_REPAIRS", "WAR_WINDOW_S", "War"]

WAR_REPAIRS = 5
WAR_WINDOW_S = 10.0


class War:
    """Repairs of one link. More than WAR_REPAIRS in WAR_WINDOW_S, and the next ones come slower."""

    __slots__ = ("_delay_s", "_times", "rounds")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=WAR_REPAIRS + 1)
        self._delay_s = 0.0
        self.rounds = 0  # 0 = peace

    def repair_delay_s(self, now: float, backoff: Backoff, random: float) -> float:
        """A repair is due: how long to wait before it, 0 in peace.

        Peace returns when a repair is due later than the window, and twice the last delay, after
        the one before.
        """
        if self.is_over(now):
            self.rounds = 0
            self._times.clear()
        self._times.append(now)
        if self.rounds or (len(self._times) > WAR_REPAIRS and now - self._times[0] <= WAR_WINDOW_S):
            self.rounds += 1
            self._delay_s = backoff.delay_s(self.rounds, random)
            return self._delay_s
        return 0.0

    def is_over(self, now: float) -> bool:
        """Whether the last repair of a war has held long enough to call it peace."""
        return self.rounds > 0 and now - self._times[-1] > max(WAR_WINDOW_S, 2 * self._delay_s)

    @property
    def reason(self) -> str | None:
        """What to say about it; None in peace."""
        if not self.rounds:
            return None
        return (
            f"somebody changes it as often as it is put right (repair {self.rounds} since that "
            "began): repairs are slowed down"
        )
