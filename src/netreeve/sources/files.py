"""Plan documents in files: all of a directory, or one.

The directory is watched before it is listed, so nothing falls between the two. Events only say
when to look; a look lists, compares what `stat` says with what was read before, and reads what
changed. A file that is open for writing is left as it was last read until it is closed (for a
bounded time), so a half-written file is not taken for a plan that lost its second half. Events are
read again after the files were: what a writer touched meanwhile is put back and read later.

A slow look without any event catches what inotify can't see: the target of a symbolic link, a
parent directory that was replaced, a network file system.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netreeve.errors import Problem
from netreeve.plan.document import MAX_DOCUMENT_BYTES, SUFFIXES, Document
from netreeve.sources.source import Publish, Snapshot
from netreeve.sources.watch import Watch

__all__ = ["DirSource", "FileSource", "plan_names", "read_document"]

log = logging.getLogger(__name__)

POLL_S = 5.0
"""Between looks without an event."""

UNWATCHED_POLL_S = 0.5
"""The same while there is no directory to watch, or no inotify left."""

DEBOUNCE_S = 0.05
DEBOUNCE_MAX_S = 0.5
"""A look waits until events have been quiet for the one, but never longer than the other."""

QUIET_S = 0.1
QUIET_TRIES = 5
"""The first look waits until no file is younger than the one, that many times at most."""

WRITING_S = 1.0
WRITING_MAX_S = 10.0
"""A file counts as being written until it is closed, or was quiet for the one, or for the other."""

_Signature = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file was when it was last read: its data, or the words for why there are none."""

    signature: _Signature | None
    data: bytes
    wrong: str | None = None


class _Files:
    """The part that both sources share: when to look, and what to keep."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._directory = directory
        self._watch: Watch | None = None
        self._hint = asyncio.Event()
        self._known: dict[str, _Read] = {}
        self._stale: set[str] = set()
        self._writing: dict[str, tuple[float, float]] = {}
        """When a file that is left alone was first and last written to."""
        self._touched: set[str] = set()
        """Files that were written to since the last look began."""
        self._put_back_since: dict[str, float] = {}
        self._endless: set[str] = set()
        """Files that were left alone for too long: they are read as they are at each look."""
        self._said_unwatched = False
        self._fresh = True
        """Nothing was published since the directory has been watched."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def reread(self) -> None:
        """Read every file again soon; call it on the loop's thread."""
        self._stale.update(self._known)
        self._hint.set()

    async def run(self, publish: Publish) -> None:
        """Publish the present snapshot, then each that differs; runs until cancelled."""
        published: Snapshot | None = None
        try:
            while True:
                await self._watch_again()
                snapshot = await self._look()
                if self._fresh and any(map(self._wants, self._writing.keys() - self._known)):
                    # The first view of a directory is whole, or a plan would begin with a gap.
                    await self._wait()
                    continue
                self._fresh = False
                if snapshot != published:
                    published = snapshot
                    publish(snapshot)
                await self._wait()
        finally:
            self._unwatch()

    def _names(self) -> list[str]:
        """The files to read, sorted; OSError if that can't be known. Runs in a thread."""
        raise NotImplementedError

    def _wants(self, name: str) -> bool:
        """Whether a file of this name is one to read."""
        raise NotImplementedError

    # When to look.

    async def _watch_again(self) -> None:
        if self._watch is not None and self._watch.watches(self._directory):
            return
        self._unwatch()
        try:
            self._watch = Watch(self._directory)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        except OSError as error:
            if not self._said_unwatched:
                self._said_unwatched = True
                log.warning(
                    "no inotify for %s: %s; looking every %s s instead",
                    self.url,
                    error.strerror,
                    UNWATCHED_POLL_S,
                )
            return
        self._said_unwatched = False
        asyncio.get_running_loop().add_reader(self._watch.fileno(), self._drain)
        self._fresh = True
        await self._until_quiet()

    async def _until_quiet(self) -> None:
        """Who began to write before the watch is seen by the age of the file only."""
        for _ in range(QUIET_TRIES):
            age_s = await asyncio.to_thread(self._youngest_s)
            if age_s >= QUIET_S:
                return
            await asyncio.sleep(QUIET_S - max(age_s, 0))

    def _youngest_s(self) -> float:
        youngest_s = QUIET_S
        with suppress(OSError):
            for name in self._names():
                age_s = time.time() - (self._directory / name).stat().st_mtime
                youngest_s = min(youngest_s, age_s)
        return youngest_s

    def _unwatch(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None
        self._ended("")

    def _drain(self) -> None:
        watch = self._watch
        if watch is not None and watch.drain(self._began, self._ended):
            self._hint.set()
            if watch.lost:
                # Nothing more will come, and some loops would find the descriptor readable forever.
                asyncio.get_running_loop().remove_reader(watch.fileno())

    def _began(self, name: str) -> None:
        if name in self._endless:
            self._stale.add(name)
            return
        self._touched.add(name)
        now = asyncio.get_running_loop().time()
        first, _ = self._writing.get(name, (now, now))
        self._writing[name] = (first, now)

    def _ended(self, name: str) -> None:
        if name:
            self._writing.pop(name, None)
            self._endless.discard(name)
            self._stale.add(name)
        else:
            self._writing.clear()
            self._endless.clear()
            self._stale.update(self._known)

    async def _wait(self) -> None:
        """Return when it is time for the next look."""
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + (UNWATCHED_POLL_S if self._watch is None else POLL_S)
        while not self._hint.is_set():
            due = min([poll_at, *map(_written_at, self._writing.values())])
            if loop.time() >= due:
                break
            await self._hinted(due - loop.time())
        latest = loop.time() + DEBOUNCE_MAX_S
        while self._hint.is_set() and loop.time() < latest:
            self._hint.clear()
            await self._hinted(min(DEBOUNCE_S, latest - loop.time()))
        self._hint.clear()

    async def _hinted(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(max(timeout_s, 0.001)):
                await self._hint.wait()
        except TimeoutError:
            pass

    def _give_up_waiting(self) -> None:
        """Files that were not closed in time will be read as they are."""
        now = asyncio.get_running_loop().time()
        for name, times in list(self._writing.items()):
            if now >= _written_at(times):
                del self._writing[name]
                self._stale.add(name)
                if now >= times[0] + WRITING_MAX_S:
                    self._endless.add(name)

    # What to read.

    async def _look(self) -> Snapshot:
        self._drain()
        self._hint.clear()
        self._touched.clear()
        self._give_up_waiting()
        stale, self._stale = self._stale, set()
        before = self._known
        try:
            seen = await asyncio.to_thread(self._scan, before, stale, frozenset(self._writing))
        except OSError as error:
            self._known = {}
            words = _dir_words(error)
            return Snapshot((), (Problem(str(self._directory), 0, 0, words),))
        self._drain()
        self._put_back(seen, before)
        self._known = seen
        return self._snapshot()

    def _put_back(self, seen: dict[str, _Read], before: dict[str, _Read]) -> None:
        """Undo the reading of files that were written to meanwhile: they may be torn."""
        now = asyncio.get_running_loop().time()
        for name, read in list(seen.items()):
            if read is before.get(name):
                continue
            since = self._put_back_since.setdefault(name, now)
            if name not in self._touched or now >= since + WRITING_MAX_S:
                del self._put_back_since[name]
                continue
            self._stale.add(name)
            if name in before:
                seen[name] = before[name]
            else:
                del seen[name]

    def _scan(
        self, before: dict[str, _Read], stale: set[str], writing: frozenset[str]
    ) -> dict[str, _Read]:
        seen: dict[str, _Read] = {}
        for name in self._names():
            known = before.get(name)
            if name in writing:
                if known is not None:
                    seen[name] = known
                continue
            read = _read(self._directory / name, None if name in stale else known)
            if read is not None:
                seen[name] = read
        return seen

    def _snapshot(self) -> Snapshot:
        documents = []
        problems = []
        for name, read in self._known.items():
            path = str(self._directory / name)
            if read.wrong is None:
                documents.append(Document(path, read.data))
            else:
                problems.append(Problem(path, 0, 0, read.wrong))
        return Snapshot(tuple(documents), tuple(problems))


class DirSource(_Files):
    """`dir:PATH`: every *.yaml, *.yml and *.json of a directory, not of those below it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"dir:{path}", path)

    def _names(self) -> list[str]:
        return plan_names(self._directory)

    def _wants(self, name: str) -> bool:
        return _is_plan_name(name)


class FileSource(_Files):
    """`file:PATH`: one file; that it isn't there is a problem, not an empty plan."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"file:{path}", path.parent)
        self._name = path.name

    def _names(self) -> list[str]:
        return [self._name]

    def _wants(self, name: str) -> bool:
        return name == self._name

    def _snapshot(self) -> Snapshot:
        if self._name not in self._known:
            path = str(self._directory / self._name)
            being_written = self._name in self._writing
            words = "the file is still being written" if being_written else "the file is not there"
            return Snapshot((), (Problem(path, 0, 0, words),))
        return super()._snapshot()


def plan_names(directory: Path) -> list[str]:
    """The plan documents of a directory, sorted, hidden files left out; OSError as listdir."""
    return sorted(filter(_is_plan_name, os.listdir(directory)))


def _is_plan_name(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith(".")


def read_document(path: Path) -> Document | Problem:
    """Read one file as the sources do."""
    read = _read(path, None)
    if read is None:
        return Problem(str(path), 0, 0, "the file is not there")
    if read.wrong is not None:
        return Problem(str(path), 0, 0, read.wrong)
    return Document(str(path), read.data)


def _read(path: Path, known: _Read | None) -> _Read | None:
    """The file as it is now, `known` if it is unchanged, None if there is none."""
    signature = None
    try:
        status = path.stat()
        signature = _signature(status)
        if known is not None and known.signature == signature:
            return known
        # Asked before opening: opening a device or a pipe may do something.
        if not stat.S_ISREG(status.st_mode):
            return _Read(signature, b"", "this is no regular file")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            signature = _signature(os.fstat(fd))
            # One byte more than is allowed, so that the plan says that it is too large.
            return _Read(signature, file.read(MAX_DOCUMENT_BYTES + 1))
    except FileNotFoundError:
        if path.is_symlink():
            return _Read(None, b"", "a symbolic link to a file that is not there")
        return None
    except OSError as error:
        return _Read(signature, b"", f"the file can't be read: {error.strerror}")


def _signature(status: os.stat_result) -> _Signature:
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _written_at(times: tuple[float, float]) -> float:
    """When a file that was last written to at `times[1]` is read although nobody closed it."""
    first, last = times
    return min(first + WRITING_MAX_S, last + WRITING_S)


def _dir_words(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the directory is not there"
    return f"the directory can't be read: {error.strerror}"
