"""What the kernel's answer to an op means."""

from __future__ import annotations

import enum
import os
from errno import (
    EAGAIN,
    EBUSY,
    EEXIST,
    EINTR,
    EINVAL,
    ENETDOWN,
    ENOBUFS,
    ENODEV,
    ENOENT,
    ENOMEM,
    ESRCH,
)
from typing import TYPE_CHECKING

from netreeve.model.route import Add, Delete, Replace

if TYPE_CHECKING:
    from netreeve.model.route import Op

__all__ = ["Verdict", "judge", "reason"]


class Verdict(enum.Enum):
    DONE = "done"
    LOST = "lost"  # done or not: the answer didn't reach us
    HELD = "held"  # somebody's route is there, or another of ours
    ABSENT = "absent"  # Replace, Delete: there is no such route (any more)
    LATER = "later"  # the link is on its way down, or the kernel is short of something: no verdict
    REFUSED = "refused"


_LATER = (ENETDOWN, ENODEV, ENOBUFS, ENOMEM, EBUSY, EAGAIN, EINTR)

_VERDICTS: dict[tuple[type[Op], int], Verdict] = {
    **{(kind, errno): Verdict.LATER for kind in (Add, Replace, Delete) for errno in _LATER},
    **{(kind, 0): Verdict.DONE for kind in (Add, Replace, Delete)},
    (Add, EEXIST): Verdict.HELD,
    (Replace, EEXIST): Verdict.HELD,  # IPv4: the very route is there already, behind another
    (Replace, ENOENT): Verdict.ABSENT,
    (Replace, ESRCH): Verdict.ABSENT,
    (Delete, ESRCH): Verdict.ABSENT,
    (Delete, ENOENT): Verdict.ABSENT,
    (Delete, ENODEV): Verdict.ABSENT,
}


def judge(op: Op, errno: int | None, words: str) -> Verdict:
    """The meaning of `errno` (0 = done, None = the answer was lost) and the kernel's `words`.

    An errno that isn't known to mean anything else is a refusal.
    """
    if errno is None:
        return Verdict.LOST
    # "Device for nexthop is not up", "Nexthop device is not up": ENETDOWN in the kernels at hand,
    # EINVAL in some others.
    if errno == EINVAL and words.endswith("is not up"):
        return Verdict.LATER
    return _VERDICTS.get((type(op), errno), Verdict.REFUSED)


def reason(errno: int, words: str) -> str:
    """The kernel's words, or the errno's where it said nothing."""
    return words or os.strerror(errno)
