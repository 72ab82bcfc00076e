"""Reads a netlink socket when it is readable; in a flood, only every other millisecond.

A wake-up costs several times what reading and parsing an event does, and all that follows from it
(a batch, a commit, a delivery) is shared by the events that were read together. So an event after
a quiet moment is read at once, and events that follow closely wait for one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Watch"]

# At 160,000 events a second, the most that one core of a kernel emits, 2 ms are a twentieth of the
# default receive buffer.
PAUSE_S = 0.002
# Wake-ups that are no further apart than this are a flood.
CLOSE_S = 0.004


class Watch:
    """Calls `read` on the loop whenever `fd` is readable, between `start` and `stop`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, read: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._read = read
        self._is_on = False
        self._read_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._is_on = True
        self._resume()

    def stop(self) -> None:
        """`fd` may be closed afterwards."""
        self._is_on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        else:
            self._loop.remove_reader(self._fd)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._fd, self._readable)

    def _readable(self) -> None:
        now = self._loop.time()
        is_flood = now - self._read_at < CLOSE_S
        self._read_at = now
        self._read()
        if is_flood and self._is_on:
            self._loop.remove_reader(self._fd)
            self._timer = self._loop.call_later(PAUSE_S, self._resume)
