"""Opening sockets in another network namespace.

A socket belongs to the namespace in which it was made, whatever its thread does later, so setns,
socket, setns back in one thread is all it takes (15 microseconds; no fork, no helper process).
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, TypeVar

from netreeve.errors import NotPermitted

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NetNs", "inside"]

NetNs = str | os.PathLike[str] | int
"""A namespace: a path such as /run/netns/blue, or an open descriptor of one."""

CLONE_NEWNET = 0x40000000  # <linux/sched.h>

T = TypeVar("T")


def inside(netns: NetNs | None, make: Callable[[], T]) -> T:
    """Calls `make()` with this thread in `netns` (None: where it is) and returns what it returned.

    Raises NotPermitted where CAP_SYS_ADMIN is missing, OSError if there is no such namespace.
    `make` must not start threads: they would stay behind.
    """
    if netns is None:
        return make()
    # /proc/thread-self is this thread's own; /proc/self would be the main thread's.
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = netns if isinstance(netns, int) else os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(target, str(netns))
        finally:
            if target is not netns:
                os.close(target)
        try:
            return make()
        finally:
            _setns(home, "the namespace that this thread came from")
    finally:
        os.close(home)


def _setns(descriptor: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) == 0:
        return
    errno = ctypes.get_errno()
    if errno == 1:
        raise NotPermitted(
            f"entering network namespace {name} needs CAP_SYS_ADMIN, which this process hasn't"
        )
    raise OSError(errno, os.strerror(errno), name)
