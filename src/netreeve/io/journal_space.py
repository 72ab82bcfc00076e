"""How much the journal may hold, and what goes when.

Transitions that every sink has passed are history. It is kept for its retention, and given up
earlier when it would cost recording: from 70 % of the bound on. So 80 %, where readiness turns
bad, is reached only by what a sink has yet to pass.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from netreeve.io.journal_file import JournalFile

__all__ = ["BoundReachedError", "Space", "Stats"]

log = logging.getLogger(__name__)

_NEARLY_FULL = 0.8
_HISTORY_SHARE = 0.7
_DROP_ROWS = 2_000


class BoundReachedError(OSError):
    """The journal is full, whatever the disk says."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the bound of {max_bytes} bytes is reached")


@dataclass(frozen=True, slots=True)
class Stats:
    """For `netreeve status` and readiness.

    `pending` is what the slowest sink has yet to pass, `oldest_age_s` how long the first of those
    has waited. `nearly_full` is set from 80 % of the bound on.
    """

    pending: int
    bytes: int
    oldest_age_s: float
    recording: bool
    nearly_full: bool


class Space:
    """Belongs to the writer's thread; others may call `stats`.

    `passed_seq` is always the number up to which every sink has everything. Errors of the file
    come through.
    """

    def __init__(self, max_bytes: int, retention_s: float) -> None:
        self._used_bytes = 0
        self._oldest_unix_s: int | None = None
        self._nearly_full = False
        self._max_bytes = max_bytes
        self._retention_s = retention_s

    @property
    def crowds_history(self) -> bool:
        """Whether so much was used, when last measured, that `drop` is due."""
        return self._used_bytes >= self._max_bytes * _HISTORY_SHARE

    def measure(self, file: JournalFile, passed_seq: int) -> None:
        """Look at the file anew."""
        self._used_bytes = file.used_bytes()
        self._oldest_unix_s = file.unix_s_after(passed_seq)
        nearly_full = self._used_bytes >= self._max_bytes * _NEARLY_FULL
        if nearly_full and not self._nearly_full:
            log.warning(
                "the journal is nearly full",
                extra={"fields": {"bytes": self._used_bytes, "max_bytes": self._max_bytes}},
            )
        self._nearly_full = nearly_full

    def require(self, file: JournalFile, passed_seq: int, *, comfortable: bool = False) -> None:
        """Raise BoundReachedError unless there is room, or giving up history makes some.

        `comfortable` asks for so much that recording can go on for a while.
        """
        bound = self._max_bytes * (_HISTORY_SHARE if comfortable else 1)
        while file.used_bytes() >= bound:
            if not file.drop(passed_seq, float("inf"), _DROP_ROWS):
                raise BoundReachedError(self._max_bytes)

    def drop(self, file: JournalFile, passed_seq: int, unix_s: float) -> bool:
        """Drop some of the history that is old at `unix_s`, or too much; whether more may go."""
        self.measure(file, passed_seq)
        before = float("inf") if self.crowds_history else unix_s - self._retention_s
        return file.drop(passed_seq, before, _DROP_ROWS) == _DROP_ROWS

    def stats(self, pending: int, recording: bool, unix_s: float) -> Stats:
        """What was last measured, and what the caller knows."""
        oldest = self._oldest_unix_s
        age_s = max(0.0, unix_s - oldest) if pending and oldest is not None else 0.0
        return Stats(pending, self._used_bytes, age_s, recording, self._nearly_full)
