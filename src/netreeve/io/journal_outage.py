"""What is known of the transitions that can't be recorded for now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netreeve.io.state_dir import GapMark
from netreeve.status.transition import Gap, Transition

__all__ = ["Outage"]


@dataclass(slots=True)
class Outage:
    """Recording has stopped. Guarded by the journal's lock.

    `lost` None: how many is not known. `since` is of the first one lost, `first_seq` the number
    that it had. `is_marked` once the state directory knows.
    """

    lost: int | None
    since: str
    reason: str
    first_seq: int
    is_marked: bool = False

    def add(self, transitions: Sequence[Transition]) -> None:
        """These are lost."""
        if transitions and self.lost == 0:
            self.since = transitions[0].observed
        if self.lost is not None:
            self.lost += len(transitions)

    def joined(self, later: Outage) -> Outage:
        """Both as one: this one was to be closed when the later one began."""
        lost = None if self.lost is None or later.lost is None else self.lost + later.lost
        since, reason = (later.since, later.reason) if self.lost == 0 else (self.since, self.reason)
        return Outage(lost, since, reason, min(self.first_seq, later.first_seq))

    def gap(self) -> Gap:
        """For the record that closes it."""
        return Gap(self.lost, self.since, self.reason)

    def mark(self) -> GapMark:
        """For a successor, if this agent doesn't live to close it."""
        return GapMark(self.first_seq, self.since, self.reason)
