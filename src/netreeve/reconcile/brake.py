"""Whether anything may be deleted at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netreeve.reconcile.subject import Subject

__all__ = ["BRAKE_LINKS", "Brake"]

BRAKE_LINKS = 10
"""So many links go without being asked about, whatever share of ours they are."""


class Brake:
    """Counts links of ours that are there, and those of them that nobody wants.

    `share` is NETREEVE_DELETE_BRAKE. `hold` is why the plan allows no deletes, None where it does.
    """

    __slots__ = ("_owned", "_released", "_share", "doomed", "hold")

    def __init__(self, share: float) -> None:
        self._share = share
        self._owned: dict[Subject, None] = {}
        self.doomed: dict[Subject, None] = {}
        self._released = False
        self.hold: str | None = "there is no plan yet"

    def plan(self, hold: str | None) -> None:
        """Another plan came: a brake that was released acts again."""
        self.hold = hold
        self._released = False

    def release(self) -> None:
        self._released = True

    def count(self, subject: Subject, *, unproven: bool) -> bool:
        """After each change of what was seen of it, or is wanted; whether the brake changed."""
        before = self.tripped
        if subject.there:
            self._owned[subject] = None
        else:
            self._owned.pop(subject, None)
        if subject.there and subject.spec is None and not unproven:
            self.doomed[subject] = None
        else:
            self.doomed.pop(subject, None)
        return self.tripped != before

    @property
    def tripped(self) -> bool:
        """Too many would go at once, and nobody said that they may."""
        doomed = len(self.doomed)
        over = doomed > BRAKE_LINKS and doomed > self._share * len(self._owned)
        return over and not self._released

    @property
    def reason(self) -> str | None:
        """Why nothing is deleted, as a sentence; None where deletes may go on."""
        if self.hold is not None:
            return self.hold
        if not self.tripped:
            return None
        return (
            f"the delete brake: {len(self.doomed)} of {len(self._owned)} links of ours would be "
            "deleted at once; "
            "`netreeve apply --yes` or a mended plan releases it (NETREEVE_DELETE_BRAKE)"
        )
