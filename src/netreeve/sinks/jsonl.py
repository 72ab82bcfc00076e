"""JSON lines, one transition a line: `jsonl:PATH` or, for standard output, `jsonl:-`.

The file itself says how far it is: its last whole line. A line that a crash or a full disk tore
is cut off before anything else is written, so each transition is there once. The file is rotated
when it would outgrow its bound (`PATH.1` is the youngest of the old ones), and a file that was
moved away by others is begun anew.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from netreeve.errors import SinkError
from netreeve.model.quote import quoted
from netreeve.sinks.sink import Mark, Sink
from netreeve.status import transition
from netreeve.status.transition import Transition

__all__ = ["DEFAULT_KEEP", "DEFAULT_MAX_BYTES", "JsonlFile", "JsonlOutput", "parse"]

T = TypeVar("T")

DEFAULT_MAX_BYTES = 100 << 20
DEFAULT_KEEP = 5
_MIN_BYTES = 4096
_MAX_KEEP = 1000
_TAIL_BYTES = 64 << 10
_STDOUT = 1
_POLL_MS = 200


def parse(url: str) -> Sink:
    """The sink that `url` names, unopened; ValueError says what is wrong with it.

    `?max_bytes=N` (at least 4096) and `?keep=N` (old files, 1 to 1000), joined by `&`, set the
    rotation. A `?` or `%` in the path is written %3F or %25.
    """
    path, _, query = url.removeprefix("jsonl:").partition("?")
    if path == "-":
        if query:
            raise ValueError(f"{quoted(url)}: standard output has no parameters")
        return JsonlOutput(url, _STDOUT)
    if not path.startswith("/"):
        raise ValueError(f"{quoted(url)}: an absolute path, or `-`, must follow `jsonl:`")
    if path.endswith("/") or "\0" in unquote(path):
        raise ValueError(f"{quoted(url)}: that is no path of a file")
    bounds = {"max_bytes": DEFAULT_MAX_BYTES, "keep": DEFAULT_KEEP}
    ranges = {"max_bytes": (_MIN_BYTES, 1 << 50), "keep": (1, _MAX_KEEP)}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in bounds:
            raise ValueError(f"{quoted(url)}: no parameter {quoted(name)}: max_bytes, keep")
        low, high = ranges[name]
        if not (value.isascii() and value.isdigit() and low <= int(value[:20]) <= high):
            raise ValueError(f"{quoted(url)}: {name} is a whole number from {low} to {high}")
        bounds[name] = int(value)
    return JsonlFile(url, unquote(path), **bounds)


class JsonlFile(Sink):
    """See the head of this file. Everything that may block runs in a thread."""

    def __init__(self, url: str, path: str, max_bytes: int, keep: int) -> None:
        self.url = url
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1
        self._size_bytes = 0
        # A cancelled task leaves its thread behind, at work.
        self._lock = threading.Lock()

    async def open(self) -> Mark | None:
        return await _in_thread(self._open)

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        await _in_thread(self._deliver, transitions)

    async def close(self) -> None:
        await _in_thread(self._close)

    def _open(self) -> Mark | None:
        with self._lock:
            self._open_file()
            mark = _last_mark(self._fd, self._size_bytes)
            if self._size_bytes == 0:
                # Rotated, and nothing written since.
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(f"{self._path}.1", os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        mark = _last_mark(fd, os.fstat(fd).st_size)
                    finally:
                        os.close(fd)
            return mark

    def _deliver(self, transitions: Sequence[Transition]) -> None:
        with self._lock:
            if not self._bears_its_name():
                self._close_file()
                self._open_file()
            chunk = bytearray()
            for each in transitions:
                line = transition.encode(each) + b"\n"
                size_bytes = self._size_bytes + len(chunk)
                if size_bytes and size_bytes + len(line) > self._max_bytes:
                    self._write(chunk)
                    self._rotate()
                    chunk.clear()
                chunk += line
            self._write(chunk)

    def _close(self) -> None:
        with self._lock:
            self._close_file()

    def _open_file(self) -> None:
        directory = os.path.dirname(self._path)
        os.makedirs(directory, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, 0o644)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise SinkError(f"{self._path} is not a regular file")
            self._size_bytes = _end_of_lines(self._fd, status.st_size)
            if self._size_bytes != status.st_size:
                os.ftruncate(self._fd, self._size_bytes)
            # What an earlier try had written, and the name of a new file.
            os.fsync(self._fd)
            _fsync_directory(directory)
        except BaseException:
            self._close_file()
            raise

    def _write(self, chunk: bytes | bytearray) -> None:
        if not chunk:
            return
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError:
            rest.release()
            # Readers shall not see half a line until there is room again.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, _end_of_lines(self._fd, os.fstat(self._fd).st_size))
            raise
        self._size_bytes += len(chunk)

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        self._close_file()
        self._open_file()

    def _bears_its_name(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class JsonlOutput(Sink):
    """Lines to a descriptor that can't say what it took, such as standard output."""

    def __init__(self, url: str, fd: int) -> None:
        self.url = url
        self._fd = fd
        self._is_open = False

    async def open(self) -> Mark | None:
        self._is_open = True
        return None

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        await _in_thread(self._write, [transition.encode(each) for each in transitions])

    async def close(self) -> None:
        self._is_open = False

    def _write(self, records: Iterable[bytes]) -> None:
        """Blocks while the reader is slow, but not beyond `close`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        rest = memoryview(b"".join(record + b"\n" for record in records))
        while rest:
            if poll.poll(_POLL_MS):
                # A pipe that is ready takes PIPE_BUF bytes without blocking.
                rest = rest[os.write(self._fd, rest[: select.PIPE_BUF]) :]
            elif not self._is_open:
                raise SinkError("closed while its reader was slow")


async def _in_thread(function: Callable[..., T], *arguments: object) -> T:
    import asyncio  # 35 ms that commands which only read the setting need not pay

    return await asyncio.to_thread(function, *arguments)


def _end_of_lines(fd: int, size_bytes: int) -> int:
    """The offset behind the last line feed, 0 where there is none."""
    end = size_bytes
    while end > 0:
        begin = max(0, end - _TAIL_BYTES)
        found = os.pread(fd, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _last_mark(fd: int, size_bytes: int) -> Mark | None:
    """What the last whole line says; None where it is no transition, or there is none."""
    end = _end_of_lines(fd, size_bytes)
    if end == 0:
        return None
    begin = _end_of_lines(fd, end - 1)
    try:
        last = transition.decode(os.pread(fd, end - begin, begin))
    except ValueError:
        return None
    return Mark(last.seq, last.observed)


def _fsync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
