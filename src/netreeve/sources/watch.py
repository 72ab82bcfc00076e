"""inotify on one directory, as hints: what to look at again, and which files are being written.

An event is a hint only. Whoever uses this also looks by itself now and then, so that neither a
lost event nor a file system without inotify leaves it with an old view for long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from inotify_simple import INotify, flags

__all__ = ["Watch"]

_MASK = (
    flags.CREATE
    | flags.MODIFY
    | flags.ATTRIB
    | flags.CLOSE_WRITE
    | flags.MOVED_TO
    | flags.MOVED_FROM
    | flags.DELETE
    | flags.DELETE_SELF
    | flags.MOVE_SELF
    | flags.ONLYDIR
)
_BEGINS = flags.MODIFY
_ENDS = flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.IGNORED | flags.UNMOUNT


class Watch:
    """Watches `directory` from the moment it is made; OSError if that can't be done.

    `fileno()` becomes readable when there is something to `drain()`.
    """

    def __init__(self, directory: Path) -> None:
        # By descriptor, so that what is watched and what is remembered are one directory.
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            self._inotify = INotify(nonblocking=True)
            try:
                self._inotify.add_watch(f"/proc/self/fd/{fd}", _MASK)
            except BaseException:
                self._inotify.close()
                raise
        finally:
            os.close(fd)
        self._identity = (status.st_dev, status.st_ino)
        self.lost = False
        """The directory was removed or moved away: the watch sees nothing of the path any more."""

    def fileno(self) -> int:
        """The inotify descriptor."""
        return int(self._inotify.fileno())

    def drain(self, began: Callable[[str], None], ended: Callable[[str], None]) -> bool:
        """Read all events; whether there were any.

        `began(name)` is called for a file that is being written, `ended(name)` when it was closed,
        moved or removed; `ended("")` when events were dropped, so that nothing is known.
        """
        events = list(self._inotify.read(timeout=0))
        for event in events:
            if event.mask & flags.Q_OVERFLOW:
                ended("")
            elif event.mask & _GONE:
                self.lost = True
            elif event.mask & _ENDS:
                ended(event.name)
            elif event.mask & _BEGINS:
                began(event.name)
        return bool(events)

    def watches(self, directory: Path) -> bool:
        """Whether the directory of this path is still the one that is watched."""
        if self.lost:
            return False
        with suppress(OSError):
            status = directory.stat()
            return (status.st_dev, status.st_ino) == self._identity
        return False

    def close(self) -> None:
        """Release the descriptor; take it off the loop before."""
        self._inotify.close()
