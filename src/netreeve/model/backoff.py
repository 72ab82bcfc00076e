"""Jittered exponential backoff as a value: no state, no clock, no random number of its own."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

# 2.0**1024 is no float. Long before that every delay is max_ms.
_MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between `min_ms` and `max_ms` (0 < min_ms <= max_ms, else ValueError).

    The nominal delay doubles with each failure, from `min_ms` to `max_ms`. What is waited is half
    of it plus a random part of the other half, so that those who failed together don't come back
    together, and none comes back at once.
    """

    min_ms: float
    max_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.min_ms <= self.max_ms:
            raise ValueError(f"needs 0 < min_ms <= max_ms, not {self.min_ms} and {self.max_ms}")

    def delay_s(self, failures: int, random: float) -> float:
        """Seconds to wait after `failures` failures in a row (1 or more).

        `random` is in [0, 1): 0 gives half of the nominal delay, the supremum all of it.
        """
        doublings = min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        nominal_ms = min(self.min_ms * 2.0**doublings, self.max_ms)
        return nominal_ms * (0.5 + 0.5 * random) / 1000.0

    def longest_s(self, random: float) -> float:
        """Seconds to wait where trying soon again is of no use; `random` as in `delay_s`."""
        return self.max_ms * (0.5 + 0.5 * random) / 1000.0
