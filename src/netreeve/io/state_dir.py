"""The state directory: one agent at a time, the instance id, and the mark of an open gap.

The mark exists because a full disk must not be able to hide what it cost. The lock file's one
block is written when the directory is taken; from then on it can be overwritten in place, which
needs no space. An agent that dies while it cannot record leaves the mark to its successor.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netreeve.errors import JournalError

__all__ = ["GapMark", "StateDir", "new_instance", "read_instance", "where_we_are"]

_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class GapMark:
    """Recording stopped: `next_seq` is the number that the first lost transition had."""

    next_seq: int
    since: str
    reason: str


class StateDir:
    """Holds `path/lock`. Methods block; one thread at a time.

    OSError comes through from all that touches the directory: it may be full or read-only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path / "lock"
        self._fd = -1
        self._inode = (0, 0)

    def hold(self) -> GapMark | None:
        """Take the directory, making it if need be, and return the gap that is still open.

        Does nothing more where it is held already and still the same directory. Raises JournalError
        where another process holds it.
        """
        if self._fd >= 0 and self._is_same():
            return None
        self.release()
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mark = _parse_mark(os.pread(fd, _BLOCK_BYTES, 0))
            _write_block(fd, mark)
        except BlockingIOError:
            holder = _parse(os.pread(fd, _BLOCK_BYTES, 0)).get("pid", "unknown")
            os.close(fd)
            raise JournalError(
                f"{self.path}: another netreeve agent (pid {holder}) uses this state directory; "
                "stop it, or give this one its own with NETREEVE_STATE_DIR"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        status = os.fstat(fd)
        self._fd, self._inode = fd, (status.st_dev, status.st_ino)
        return mark

    def mark(self, mark: GapMark | None) -> None:
        """Note that a gap is open, or with None that it is not. Best effort: never raises."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                _write_block(self._fd, mark)

    def instance(self) -> str:
        """The id of this installation: twelve hexadecimal digits, made once.

        Where the directory can be neither read nor written, an id for this run only.
        """
        path = self.path / "instance"
        with contextlib.suppress(OSError):
            found = read_instance(self.path)
            if found is not None:
                return found
        text = new_instance()
        with contextlib.suppress(OSError):
            beside = path.with_suffix(".new")
            with open(beside, "w", encoding="ascii") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        return text

    def release(self) -> None:
        """Give the directory up; the lock file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_same(self) -> bool:
        try:
            status = os.stat(self._lock_path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


def read_instance(path: Path) -> str | None:
    """The id that an installation with this state directory has; None where it has none yet.

    OSError where that can't be known.
    """
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        text = (path / "instance").read_text("ascii").strip()
        if len(text) == 12 and set(text) <= set("0123456789abcdef"):
            return text
    return None


def new_instance() -> str:
    """Twelve random hexadecimal digits."""
    return secrets.token_hex(6)


def where_we_are() -> str:
    """Names this boot and this network namespace: an ifindex means nothing in another."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{os.stat('/proc/thread-self/ns/net').st_ino}"


def _write_block(fd: int, mark: GapMark | None) -> None:
    gap = None
    if mark is not None:
        gap = {"next_seq": mark.next_seq, "since": mark.since[:40], "reason": mark.reason}
        while len(json.dumps(gap)) > _BLOCK_BYTES - 64:
            gap["reason"] = str(gap["reason"])[: len(str(gap["reason"])) // 2]
    block = json.dumps({"pid": os.getpid(), "gap": gap}).encode().ljust(_BLOCK_BYTES - 1) + b"\n"
    if os.pwrite(fd, block, 0) != len(block):
        raise OSError("the lock file could not be written as a whole")
    os.fdatasync(fd)


def _parse(block: bytes) -> dict[str, Any]:
    try:
        record = json.loads(block)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _parse_mark(block: bytes) -> GapMark | None:
    gap = _parse(block).get("gap")
    try:
        return None if gap is None else GapMark(gap["next_seq"], gap["since"], gap["reason"])
    except (KeyError, TypeError):
        return None
