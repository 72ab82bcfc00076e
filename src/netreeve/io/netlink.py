"""The netlink sockets: one that only hears events, one for requests, one for dumps.

Requests never go through the subscribed socket: answers are dropped there in an overrun, although
the change is done. A dump has its own socket, since a second one on a socket is answered EBUSY.

Requests and dumps block: rtnetlink does its work inside send and recv, under a lock that the
teardown of a namespace can hold for a hundred milliseconds. They run on a thread each, so that the
loop, which only reads events, never waits for that lock.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from netreeve._ext import details, wire
from netreeve._ext.encode import Batch
from netreeve._ext.stage import Stage
from netreeve.errors import KernelError, NotPermitted
from netreeve.io.namespaces import NetNs, inside
from netreeve.io.tun import make_tap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from netreeve._ext.details import LinkDetails
    from netreeve._ext.wire import AddrMessage, Answer, RouteMessage

T = TypeVar("T")

__all__ = [
    "LINKS_PER_BATCH",
    "RTNLGRP_IPV4_IFADDR",
    "RTNLGRP_IPV4_ROUTE",
    "RTNLGRP_IPV6_IFADDR",
    "RTNLGRP_IPV6_ROUTE",
    "RTNLGRP_LINK",
    "EventSocket",
    "Kernel",
]

# <linux/netlink.h>, <linux/rtnetlink.h>, <asm/socket.h>: constants that `socket` doesn't have
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12
SO_RCVBUFFORCE = 33
RTNLGRP_LINK = 1
RTNLGRP_IPV4_IFADDR = 5
RTNLGRP_IPV4_ROUTE = 7
RTNLGRP_IPV6_IFADDR = 9
RTNLGRP_IPV6_ROUTE = 11

NLMSG_ERROR = 2
NLMSG_DONE = 3
RTM_NEWLINK = 16

# One buffer for all, never a smaller one later: a dump's chunk is as large as the largest read ever
# was, and the largest message seen is 67,228 bytes.
BUFFER_BYTES = 128 * 1024
# Enough for the answers of the largest batch that settings allow.
REQUEST_RCVBUF_BYTES = 4 * 1024 * 1024
# rtnetlink answers inside send(): a wait this long means that the answer was lost.
ANSWER_TIMEOUT_S = 10
# Questions about single links sent together: their answers may be 67 KB each.
LINKS_PER_BATCH = 32
# Links come and go while others are dumped; who must have a whole view tries this often.
INTERRUPTED_TRIES = 5


def _open(rcvbuf_bytes: int, netns: NetNs | None) -> tuple[socket.socket, int]:
    """A netlink socket bound to port 0 (another process may hold any other), and its buffer."""
    sock = inside(
        netns,
        lambda: socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        ),
    )
    try:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, rcvbuf_bytes)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf_bytes)
        sock.bind((0, 0))
        # The kernel then refuses what others send to our port; what they multicast is the reader's.
        sock.connect((0, 0))
        return sock, sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    except BaseException:
        sock.close()
        raise


class EventSocket:
    """A subscribed socket, readable through a descriptor that both loops can watch.

    `watch_fd` is a private epoll descriptor that holds the socket: an overrun raises EPOLLERR, upon
    which uvloop closes a handle for good, without a word. `rcvbuf_bytes` is the buffer obtained, as
    the kernel counts it (twice what was asked for), which is capped without CAP_NET_ADMIN.
    """

    def __init__(
        self, groups: Sequence[int], *, rcvbuf_bytes: int, netns: NetNs | None = None
    ) -> None:
        self._socket, self.rcvbuf_bytes = _open(rcvbuf_bytes, netns)
        try:
            for group in groups:
                self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
            self._socket.setblocking(False)
            self._epoll = select.epoll()
            self._epoll.register(self._socket, select.EPOLLIN)
        except BaseException:
            self._socket.close()
            raise

    @property
    def fd(self) -> int:
        """The socket itself, for EventReader.drain."""
        return self._socket.fileno()

    @property
    def watch_fd(self) -> int:
        """The descriptor for the loop's add_reader; level triggered."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Closes both descriptors; take `watch_fd` out of the loop before."""
        self._epoll.close()
        self._socket.close()


class _Exchange:
    """A socket that asks and reads answers, from one thread at a time; opened anew if it breaks."""

    def __init__(self, netns: NetNs | None, *, strict: bool) -> None:
        self._netns = netns
        self._strict = strict
        self._seq = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._socket: socket.socket | None = None
        # nlmsg_pid of the events that our requests cause; another one when the socket is reopened.
        self.port = 0
        self.open()

    def open(self) -> socket.socket:
        """The socket, made if there is none."""
        if self._socket is None:
            sock, _ = _open(REQUEST_RCVBUF_BYTES, self._netns)
            sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
            sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
            if self._strict:
                # Without it the kernel ignores the filters of a dump without a word.
                sock.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_TIMEOUT_S, 0)
            )
            self._socket = sock
            self.port = sock.getsockname()[0]
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def batch(self, max_bytes: int = 65536) -> Batch:
        """An empty batch whose numbers this socket hasn't used lately."""
        return Batch(self._seq + 1, max_bytes)

    def run(self, batch: Batch, take: Callable[[memoryview], bool]) -> None:
        """Sends a batch and gives each datagram of the kernel's to `take`, until that says True.

        Raises KernelError if the socket fails or no answer comes; it is then closed, since what
        is still on its way can't be told from the answers to come.
        """
        sock = self.open()
        self._seq = batch.last_seq & 0x7FFFFFFF
        try:
            sock.send(batch.finish())
            while True:
                size, _, flags, sender = sock.recvmsg_into([self._buffer])
                if sender[0] != 0:
                    continue
                if flags & socket.MSG_TRUNC:
                    raise OSError(errno.EMSGSIZE, "a netlink answer was truncated")
                if take(self._view[:size]):
                    return
        except KernelError:
            self.close()
            raise
        except OSError as error:
            self.close()
            if error.errno == errno.EAGAIN:
                raise KernelError(errno.ETIMEDOUT, "the kernel gave no answer") from error
            raise KernelError(error.errno or errno.EIO, str(error)) from error


class Kernel:
    """What the agent asks of the kernel, awaitable; each call may raise KernelError.

    Opening raises NotPermitted where not even the sockets can be had.
    """

    def __init__(self, netns: NetNs | None = None) -> None:
        try:
            self._requests = _Exchange(netns, strict=False)
            self._dumps = _Exchange(netns, strict=True)
        except PermissionError as error:
            raise NotPermitted(f"opening a netlink socket: {error}") from error
        self._netns = netns
        self._under_way: dict[object, float] = {}
        self._request_thread = ThreadPoolExecutor(1, "netreeve-requests")
        self._dump_thread = ThreadPoolExecutor(1, "netreeve-dumps")

    @property
    def port(self) -> int:
        """The port that marks events which our own requests caused."""
        return self._requests.port

    def close(self) -> None:
        """Ends the threads, after what they are at, and closes the sockets."""
        self._request_thread.shutdown()
        self._dump_thread.shutdown()
        self._requests.close()
        self._dumps.close()

    @property
    def longest_call_s(self) -> float:
        """How long the oldest call that is under way has been so, 0 where none is."""
        return time.monotonic() - next(iter(self._under_way.values()), time.monotonic())

    async def dump_links(self) -> Stage:
        """All links; look at `Stage.whole` before acting on it."""
        return await self._on(self._dump_thread, self._dump_links)

    async def ask_links(self, ifindexes: Sequence[int], stage: Stage | None) -> Stage:
        """Each link by a query of its own, added to `stage` (None: a new one).

        Links that the kernel doesn't know are in `stage.gone`; any other refusal is a KernelError.
        """
        asked = stage if stage is not None else Stage()
        await self._on(self._request_thread, lambda: self._ask_links(ifindexes, asked))
        return asked

    async def dump_routes(
        self,
        family: int,
        *,
        table: int = 0,
        protocol: int = 0,
        keep: Callable[[RouteMessage], bool],
    ) -> list[RouteMessage]:
        """The routes of `family` for which `keep` is true; `table`, `protocol`: 0 = any.

        The filters are the kernel's, as far as it knows them: `keep` has the last word.
        """
        return await self._on(
            self._dump_thread, lambda: self._dump_routes(family, table, protocol, keep)
        )

    async def dump_details(self, kind: str | None = None) -> list[LinkDetails]:
        """All links with what the link table doesn't hold; `kind` is a hint to the kernel.

        One that was interrupted is repeated, and a KernelError (EINTR) in the end: it is for those
        who act on what is not in it.
        """
        return await self._on(self._dump_thread, lambda: self._dump_details(kind))

    async def dump_addresses(self, ifindex: int = 0) -> list[AddrMessage]:
        """The addresses of both families of one link, or of all links (0); as whole as
        `dump_details`. A link that isn't there has none."""
        return await self._on(self._dump_thread, lambda: self._dump_addresses(ifindex))

    async def exchange(
        self, count: int, fill: Callable[[Batch], object]
    ) -> tuple[dict[int, Answer], dict[int, LinkDetails]]:
        """As `send`, for requests that bring links back: the refusals, and the links that came,
        both by sequence number."""
        batch = self._requests.batch(max_bytes=512 * count)
        fill(batch)
        return await self._on(self._request_thread, lambda: self._exchange(batch))

    async def make_tap(self, name: str) -> None:
        """Makes a persistent tap, which is not there yet; OSError where that can't be."""
        await self._on(self._request_thread, lambda: inside(self._netns, lambda: make_tap(name)))

    async def send(self, count: int, fill: Callable[[Batch], object]) -> dict[int, Answer]:
        """Sends the at most `count` requests that `fill` puts into a batch, in one sendmsg.

        Returns the answers that aren't "done", by sequence number: errors are always answered, so
        only the last request asks for an answer (a third cheaper than one each), and a number that
        isn't there succeeded.
        """
        refused, _ = await self.exchange(count, fill)
        return refused

    async def _on(self, thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        token = object()
        self._under_way[token] = time.monotonic()
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, call)
        finally:
            del self._under_way[token]

    # -- on the threads

    def _dump_links(self) -> Stage:
        stage = Stage()
        batch = self._dumps.batch()
        seq = batch.link_dump()

        def take(datagram: memoryview) -> bool:
            stage.feed(datagram, seq)
            return stage.done or stage.errno != 0

        self._dumps.run(batch, take)
        return stage

    def _ask_links(self, ifindexes: Sequence[int], stage: Stage) -> None:
        for start in range(0, len(ifindexes), LINKS_PER_BATCH):
            batch = self._requests.batch()
            asked = {batch.link_get(i): i for i in ifindexes[start : start + LINKS_PER_BATCH]}
            self._requests.run(batch, functools.partial(_take_link, stage, asked, batch.last_seq))

    def _dump_routes(
        self, family: int, table: int, protocol: int, keep: Callable[[RouteMessage], bool]
    ) -> list[RouteMessage]:
        found: list[RouteMessage] = []
        batch = self._dumps.batch()
        seq = batch.route_dump(family, table, protocol)
        failure: list[Answer] = []

        def take(datagram: memoryview) -> bool:
            done = False
            for message in wire.decode(datagram).messages:
                if isinstance(message, wire.RouteMessage):
                    if keep(message):
                        found.append(message)
                elif isinstance(message, wire.Answer) and message.seq == seq:
                    done = True
                    if message.errno:
                        failure.append(message)
            return done

        self._dumps.run(batch, take)
        if failure and failure[0].errno != errno.ENOENT:  # ENOENT: no such table, so no route
            raise KernelError(failure[0].errno, failure[0].text, "dumping routes")
        return found

    def _dump_details(self, kind: str | None) -> list[LinkDetails]:
        found: list[LinkDetails] = []

        def keep(item: details.LinkDetails | AddrMessage) -> None:
            if isinstance(item, details.LinkDetails):
                found.append(item)

        for _ in range(INTERRUPTED_TRIES):
            found.clear()
            if self._dump(lambda batch: batch.link_dump(kind), keep, "dumping links"):
                return found
        raise KernelError(errno.EINTR, "the dump of links was interrupted", "dumping links")

    def _dump_addresses(self, ifindex: int) -> list[AddrMessage]:
        found: list[AddrMessage] = []

        def keep(item: details.LinkDetails | AddrMessage) -> None:
            # The filter is a hint.
            if isinstance(item, wire.AddrMessage) and ifindex in (0, item.ifindex):
                found.append(item)

        for _ in range(INTERRUPTED_TRIES):
            found.clear()
            if all(
                self._dump(lambda b, f=family: b.addr_dump(f, ifindex), keep, "dumping addresses")  # type: ignore[misc]
                for family in (socket.AF_INET, socket.AF_INET6)
            ):
                return found
        raise KernelError(errno.EINTR, "the dump was interrupted", "dumping addresses")

    def _dump(
        self,
        fill: Callable[[Batch], int],
        keep: Callable[[LinkDetails | AddrMessage], None],
        doing: str,
    ) -> bool:
        """One dump; whether it wasn't interrupted. KernelError if it isn't whole."""
        batch = self._dumps.batch()
        seq = fill(batch)
        interrupted = False
        failure: list[Answer] = []

        def take(datagram: memoryview) -> bool:
            nonlocal interrupted
            done = False
            read = details.decode_links(datagram)
            interrupted = interrupted or read.interrupted
            if read.faults:
                raise KernelError(errno.EBADMSG, "the kernel's answer is malformed", doing)
            for item in read.items:
                if not isinstance(item, wire.Answer):
                    keep(item)
                elif item.seq == seq:
                    done = True
                    if item.errno:
                        failure.append(item)
            return done

        self._dumps.run(batch, take)
        if failure and failure[0].errno != errno.ENODEV:
            raise KernelError(failure[0].errno, failure[0].text, doing)
        return not interrupted

    def _exchange(self, batch: Batch) -> tuple[dict[int, Answer], dict[int, LinkDetails]]:
        refused: dict[int, Answer] = {}
        links: dict[int, LinkDetails] = {}

        def take(datagram: memoryview) -> bool:
            last = False
            for item in details.decode_links(datagram).items:
                if isinstance(item, wire.Answer):
                    if item.errno:
                        refused[item.seq] = item
                    last = last or item.seq == batch.last_seq
                elif isinstance(item, details.LinkDetails):
                    links[item.seq] = item
            return last

        self._requests.run(batch, take)
        return refused, links


def _take_link(stage: Stage, asked: dict[int, int], last_seq: int, datagram: memoryview) -> bool:
    """Takes one answer about one link; True once the last question is answered."""
    kind, _, seq = struct.unpack_from("=HHI", datagram, 4)
    if seq not in asked:
        return False
    if kind == RTM_NEWLINK:
        stage.feed(datagram, seq)
        return False  # the last one is followed by its NLMSG_ERROR 0
    answer = next(iter(wire.decode(datagram).messages), None)
    if not isinstance(answer, wire.Answer):
        return False
    if answer.errno == errno.ENODEV:
        stage.mark_gone(asked[seq])
    elif answer.errno:
        raise KernelError(answer.errno, answer.text, f"asking for link {asked[seq]}")
    return bool(seq == last_seq)
