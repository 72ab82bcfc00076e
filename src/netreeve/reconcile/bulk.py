"""Deleting many links in one request, through a group that exists for nothing else.

Deleting links one by one costs the kernel milliseconds each. So: put them through their tokens
into a fresh random group, read back that the group holds exactly them, delete the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from netreeve.model.link_op import Delete, GroupDelete, GroupLook, GroupSet, Step

if TYPE_CHECKING:
    from netreeve._ext.details import LinkDetails
    from netreeve.reconcile.subject import Subject

__all__ = ["BULK_LINKS", "BULK_MOST", "Bulk", "gather"]

BULK_LINKS = 8
"""Fewer are deleted one by one."""

BULK_MOST = 32
"""No more in one request: a bridge takes the kernel some 17 ms even so, and nobody else on the
node can make or change a link meanwhile."""

_LOWEST_GROUP = 1 << 16  # people number their groups from 1
_GROUPS = (1 << 31) - _LOWEST_GROUP


class Bulk:
    """One such group and its links, from the first `GroupSet` to the answer of `GroupDelete`."""

    __slots__ = ("group", "members", "setting", "step")

    def __init__(self, group: int, members: Iterable[Subject]) -> None:
        self.group = group
        self.members = list(members)
        self.setting = len(self.members)
        self.step: Step = GroupLook("", group)  # what comes once all are in it

    def entered(self, subject: Subject, *, done: bool) -> bool:
        """One `GroupSet` was answered; whether it was the last one."""
        self.setting -= 1
        if not done:
            self.members.remove(subject)
        return self.setting == 0

    def is_exactly(self, links: Iterable[LinkDetails]) -> bool:
        """Whether, of all `links`, those in the group are its own, each with name and token."""
        found = {link.ifindex: link for link in links if link.group == self.group}
        if len(found) != len(self.members) or not found:
            return False
        for member in self.members:
            link = found.get(member.seen.ifindex) if member.seen is not None else None
            if link is None or link.name != member.name or member.token not in link.altnames:
                return False
        return True

    def delete(self) -> None:
        """It was looked at, and may go."""
        self.step = GroupDelete("", self.group)


def gather(
    steps: list[Step], subject_of: Callable[[str], Subject], random: Callable[[], float]
) -> None:
    """Turn the deletes among `steps` into the beginnings of bulk deletes, where they are many."""
    places = [
        place
        for place, step in enumerate(steps)
        if isinstance(step, Delete) and not subject_of(step.name).no_bulk
    ]
    for start in range(0, len(places), BULK_MOST):
        chosen = places[start : start + BULK_MOST]
        if len(chosen) < BULK_LINKS:
            return
        group = _LOWEST_GROUP + int(random() * _GROUPS)
        bulk = Bulk(group, (subject_of(steps[place].name) for place in chosen))
        for place, subject in zip(chosen, tuple(bulk.members), strict=True):
            subject.bulk = bulk
            subject.flight = steps[place] = GroupSet(subject.name, subject.token, group)
