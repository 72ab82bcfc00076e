"""One file per endpoint that is up, as CNI plugins wait for: `files:DIRECTORY`.

Names and content are those of Felix's `endpoint-status` directory. A file says what is, not what
happened, so this sink goes by the last transition of each endpoint and by the plan in force: a file
is there while that transition is an `up` of the planned incarnation on the planned link. Where an
endpoint fell and rose between two looks, its file goes and comes. After a start, and every now and
then, all of the directory is compared with what should be there, and mended.

A file is written and synced in a directory beside, `.NAME.netreeve`, and renamed into place:
readers see the old one, the new one or none, also after a power cut. Files whose names are not of
this form are others' and stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from netreeve.errors import SinkError
from netreeve.model.ids import EndpointId
from netreeve.model.quote import quoted
from netreeve.model.text import json_bytes
from netreeve.plan.model import Endpoint
from netreeve.sinks.sink import Mark, Node, Sink
from netreeve.status.transition import Transition

__all__ = ["FilesSink", "InForce", "Planned", "content", "file_name", "is_file_name", "parse"]

LOOK_S = 10.0
"""Between looks at all of the directory."""

NOTICE_S = 1.0
"""Between looks at whether the directory is still there."""

_SAFE = "$&+:=@"
_MAX_NAME_BYTES = 255
_KEPT_BYTES = 190
_CUT_NAME = re.compile(r"[^#]{190}#[0-9a-f]{64}")


class Planned(NamedTuple):
    """The endpoints of a plan, and the number of the last transition that came of taking it."""

    endpoints: Mapping[EndpointId, Endpoint]
    seq: int


InForce = Callable[[], Planned | None]
"""The plan in force: the same object until there is another, None until status is folded."""


def parse(url: str, in_force: InForce) -> Sink:
    """The sink that `url` names, unopened; ValueError says what is wrong with it.

    A `?` or `%` in the path is written %3F or %25.
    """
    path, mark, _ = url.removeprefix("files:").partition("?")
    if mark:
        raise ValueError(f"{quoted(url)} has no parameters")
    path = unquote(path)
    if not path.startswith("/"):
        raise ValueError(f"{quoted(url)}: an absolute path must follow `files:`")
    path = path.rstrip("/")
    if "\0" in path or os.path.basename(path) in ("", ".", ".."):
        raise ValueError(f"{quoted(url)}: that is no path of a directory of its own")
    return FilesSink(url, path, in_force)


def file_name(id_: EndpointId) -> str:
    """The name of an endpoint's file; different ids have different names.

    The three parts, escaped as Go's url.PathEscape does, with a space between. A longer name than
    a file can have (255 bytes) is cut, and a hash of the whole follows a `#`, which no other name
    holds.
    """
    name = " ".join(quote(part, safe=_SAFE) for part in id_)
    if len(name) <= _MAX_NAME_BYTES:
        return name
    return f"{name[:_KEPT_BYTES]}#{hashlib.sha256(name.encode()).hexdigest()}"


def is_file_name(name: str) -> bool:
    """Whether `file_name` can have made `name`."""
    if not name.isascii():
        return False
    if _CUT_NAME.fullmatch(name):
        return True
    parts = name.split(" ")
    return len(parts) == 3 and all(
        part and quote(unquote(part), safe=_SAFE) == part for part in parts
    )


def content(endpoint: Endpoint) -> bytes:
    """What an endpoint's file holds; empty members are left out.

    So is `mac`, which in Felix is the endpoint's own from its store: plans have none, and that of
    the link on the host would be another.
    """
    members = {
        "ifaceName": endpoint.interface,
        "ipv4Nets": [str(p) for p in endpoint.addresses if len(p.address) == 4],
        "ipv6Nets": [str(p) for p in endpoint.addresses if len(p.address) == 16],
    }
    return json_bytes({name: value for name, value in members.items() if value})


class FilesSink(Sink):
    """See the head of this file. Everything that may block runs in a thread."""

    def __init__(self, url: str, path: str, in_force: InForce) -> None:
        self.url = url
        self._in_force = in_force
        self._directory = _Directory(path)
        self._last: dict[EndpointId, Transition] = {}
        self._fell: set[str] = set()
        """Files of endpoints that were not up at some time since the file was last written."""
        self._planned: Planned | None = None
        self._due_seq = 0
        """What `_last` must hold before all of the plan in force is looked at."""
        self._brought: Planned | None = None
        """The plan that all of the directory was compared with since it was opened."""
        self._look_at = self._notice_at = 0.0

    def attach(self, node: Node) -> None:
        self._last = dict(node.present)

    async def open(self) -> Mark | None:
        await asyncio.to_thread(self._directory.open)
        self._brought = None
        return None

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        self._take_plan()
        touched: dict[EndpointId, None] = {}
        for each in transitions:
            if each.status == "gap":
                # The present status of every endpoint follows, and numbers were given anew.
                self._due_seq = 0
                continue
            id_ = EndpointId.parse(each.endpoint)
            touched[id_] = None
            if each.status != "up":
                self._fell.add(file_name(id_))
            last = self._last.get(id_)
            if last is None or last.seq < each.seq:
                self._last[id_] = each
        if self._brought is not None:
            await self._bring(touched)

    async def tend(self, seq: int) -> str | None:
        planned = self._take_plan()
        if planned is None or seq < self._due_seq:
            return None
        now = time.monotonic()
        if planned is not self._brought or now >= self._look_at:
            for id_ in [id_ for id_ in self._last if id_ not in planned.endpoints]:
                del self._last[id_]
            await self._bring(planned.endpoints, whole=True)
            self._brought = planned
            self._look_at, self._notice_at = now + LOOK_S, now + NOTICE_S
        elif now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            await asyncio.to_thread(self._directory.check)
        return None

    async def close(self) -> None:
        await asyncio.to_thread(self._directory.close)

    def _take_plan(self) -> Planned | None:
        planned = self._in_force()
        if planned is not None and planned is not self._planned:
            self._planned, self._due_seq = planned, planned.seq
        return planned

    async def _bring(self, ids: Collection[EndpointId], *, whole: bool = False) -> None:
        # Names and contents of thousands take a while too: in the thread with them. Nothing of this
        # object changes before it answers.
        await asyncio.to_thread(self._bring_now, ids, whole)

    def _bring_now(self, ids: Collection[EndpointId], whole: bool) -> None:
        wanted = {file_name(id_): self._wanted(id_) for id_ in ids}
        self._directory.bring(wanted, self._fell, whole=whole)
        self._fell.difference_update(wanted)

    def _wanted(self, id_: EndpointId) -> bytes | None:
        assert self._planned is not None
        endpoint, last = self._planned.endpoints.get(id_), self._last.get(id_)
        if endpoint is None or last is None or last.status != "up":
            return None
        if (last.uid, last.link) != (endpoint.uid, endpoint.interface):
            return None
        return content(endpoint)


class _Signature(NamedTuple):
    """What changes when somebody writes to a file, or puts another in its place."""

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class _Directory:
    """The directory on the disk. Every method blocks, and raises OSError or SinkError."""

    def __init__(self, path: str) -> None:
        self._path = path
        parent, name = os.path.split(path)
        self._beside_path = os.path.join(parent, f".{name}.netreeve")
        self._fd = self._beside_fd = -1
        self._known: dict[str, tuple[_Signature, bytes]] = {}
        # A cancelled task leaves its thread behind, at work.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make what is missing, and remove what a killed agent has left half written."""
        with self._lock:
            self._close()
            os.makedirs(self._path, exist_ok=True)
            os.makedirs(self._beside_path, mode=0o700, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._fd = os.open(self._path, flags)
            self._beside_fd = os.open(self._beside_path, flags | os.O_NOFOLLOW)
            if os.fstat(self._fd).st_dev != os.fstat(self._beside_fd).st_dev:
                raise SinkError(
                    f"{self._path} is a mount point: files can't be renamed into it from beside; "
                    "name a directory below it"
                )
            for name in os.listdir(self._beside_fd):
                os.unlink(name, dir_fd=self._beside_fd)

    def close(self) -> None:
        with self._lock:
            self._close()

    def check(self) -> None:
        """SinkError where the directory isn't there any more: it must be opened again."""
        with self._lock:
            self._check()

    def bring(
        self, wanted: Mapping[str, bytes | None], fell: Collection[str], *, whole: bool
    ) -> None:
        """Make files hold this; None is for no file. Those of `fell` go before they come again.

        With `whole`, files of our names that aren't wanted go. What can be done is done, whatever
        fails; then SinkError says the first thing that failed.
        """
        with self._lock:
            self._check()
            gone = [name for name, data in wanted.items() if data is None or name in fell]
            if whole:
                gone += self._stale(wanted)
            failures: list[str] = []
            changed = False
            # What goes makes room for what comes.
            for name in gone:
                changed |= self._try(self._remove, name, b"", failures)
            for name, data in wanted.items():
                if data is not None:
                    changed |= self._try(self._put, name, data, failures)
            if changed:
                os.fsync(self._fd)
            if failures:
                more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
                raise SinkError(failures[0] + more)

    def _stale(self, wanted: Collection[str]) -> list[str]:
        with os.scandir(self._fd) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name not in wanted
                and is_file_name(entry.name)
                and not entry.is_dir(follow_symlinks=False)
            ]

    def _try(
        self, act: Callable[[str, bytes], bool], name: str, data: bytes, failures: list[str]
    ) -> bool:
        try:
            return act(name, data)
        except OSError as error:
            failures.append(f"{os.path.join(self._path, name)}: {error.strerror}")
            return False

    def _remove(self, name: str, _: bytes) -> bool:
        self._known.pop(name, None)
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def _put(self, name: str, data: bytes) -> bool:
        """Whether the file had to be written."""
        if self._holds(name, data):
            return False
        try:
            self._write_beside(name, data)
            os.rename(name, name, src_dir_fd=self._beside_fd, dst_dir_fd=self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._beside_fd)
            raise
        signature = self._signature(name)
        if signature is not None:
            self._known[name] = signature, data
        return True

    def _write_beside(self, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=self._beside_fd)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _holds(self, name: str, data: bytes) -> bool:
        signature = self._signature(name)
        if signature is None:
            return False
        if self._known.get(name) == (signature, data):
            return True
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            same = os.read(fd, len(data) + 1) == data
        finally:
            os.close(fd)
        if same:
            self._known[name] = signature, data
        return same

    def _signature(self, name: str) -> _Signature | None:
        """None where there is no regular file of that name."""
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return _Signature(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _check(self) -> None:
        for path, fd in ((self._path, self._fd), (self._beside_path, self._beside_fd)):
            try:
                there = os.stat(path)
            except FileNotFoundError:
                there = None
            if fd < 0 or there is None or not os.path.samestat(there, os.fstat(fd)):
                raise SinkError(f"{path} was taken away")

    def _close(self) -> None:
        for fd in (self._fd, self._beside_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._beside_fd = -1
        self._known.clear()
