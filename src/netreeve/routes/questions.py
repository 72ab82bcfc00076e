"""Who holds these keys? Put per family and table: one dump answers for all keys in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from netreeve.reconcile.queue import Queue

if TYPE_CHECKING:
    from netreeve.model.backoff import Backoff
    from netreeve.routes.slot import Slot

__all__ = ["Questions", "Subject"]

Subject: TypeAlias = tuple[int, int]  # family, table


class Questions:
    """Slots that wait for a dump, and those whose dump is under way."""

    __slots__ = ("_asked", "_backoff", "_failures", "_queue", "_waiting")

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._queue: Queue[Subject] = Queue()
        self._waiting: dict[Subject, dict[Slot, None]] = {}
        self._asked: dict[Subject, tuple[int, dict[Slot, None]]] = {}
        self._failures: dict[Subject, int] = {}

    @property
    def under_way(self) -> bool:
        """Whether a dump is."""
        return bool(self._asked)

    def put(self, slot: Slot) -> None:
        """Ask about `slot` with the next dump of its table."""
        slot.asking = True
        subject = (slot.key.family, slot.key.table)
        waiting = self._waiting.get(subject)
        if waiting is None:
            self._waiting[subject] = {slot: None}
            if subject not in self._asked:
                self._queue.add(subject)
        else:
            waiting[slot] = None

    def take(self, now: float, clock: int) -> set[Subject]:
        """The dumps to make now; each is under way until `answered` or `lost`.

        What happened at a key before `clock` is older than the dump, the rest may be newer.
        """
        subjects: set[Subject] = set()
        while (subject := self._queue.take(now)) is not None:
            self._asked[subject] = (clock, self._waiting.pop(subject))
            subjects.add(subject)
        return subjects

    def answered(self, subject: Subject) -> tuple[int, list[Slot]]:
        """The clock of the dump that ended well, and the slots it was made for.

        ValueError where none was under way.
        """
        clock, slots = self._end(subject)
        self._failures.pop(subject, None)
        again = self._waiting.get(subject, {})
        if again:
            self._queue.add(subject)
        return clock, [slot for slot in slots if slot not in again]

    def lost(self, subject: Subject, now: float, random: float) -> None:
        """The dump failed: its slots are asked about again, after a while.

        ValueError where none was under way.
        """
        _, slots = self._end(subject)
        self._waiting.setdefault(subject, {}).update(slots)
        failures = self._failures[subject] = self._failures.get(subject, 0) + 1
        self._queue.later(subject, now + self._backoff.delay_s(failures, random))

    def deadline(self) -> float | None:
        return self._queue.deadline()

    def _end(self, subject: Subject) -> tuple[int, dict[Slot, None]]:
        try:
            return self._asked.pop(subject)
        except KeyError:
            family, table = subject
            raise ValueError(f"no dump of family {family}, table {table} was due") from None
