"""Links and routes as the other programs of a node make them: a CNI, a container runtime, a person.

The agent never makes, changes or deletes a link of a pod, and its encoder has no such request. They
are few and small, so they are built here: the demo then needs neither iproute2 nor pyroute2, which
an image of the agent has no use for. Links are chosen by name, which the agent never does; here
nobody else can have taken a name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from netreeve._ext import wire
from netreeve._ext.encode import Batch
from netreeve._ext.wire import LinkMessage, RouteMessage
from netreeve.errors import KernelError, NotPermitted
from netreeve.io.namespaces import inside
from netreeve.io.netlink import RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE, EventSocket
from netreeve.model.prefix import Prefix

__all__ = ["PERMISSION", "Request", "RouteEvent", "RouteWatch", "Rtnetlink", "prefix_of"]

PERMISSION = (
    "the demo makes a network namespace, and links in it, which needs CAP_SYS_ADMIN and"
    " CAP_NET_ADMIN: run it as root, or start the container with"
    " --cap-add SYS_ADMIN --cap-add NET_ADMIN"
)

# <linux/netlink.h>, <linux/rtnetlink.h>, <linux/if_link.h>, <linux/if.h>, <linux/veth.h>
NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
IFLA_IFNAME, IFLA_LINKINFO, IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 3, 18, 1, 2, 1
IFF_UP, IFF_RUNNING = 0x1, 0x40
NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, seq, port
IFINFOMSG = struct.Struct("=BxHiII")  # family, type, index, flags, change
SOL_NETLINK, NETLINK_EXT_ACK = 270, 11

BUFFER_BYTES = 128 * 1024
WATCH_RCVBUF_BYTES = 4 << 20
ANSWER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request about links, to be sent by `Rtnetlink.change`."""

    type: int
    flags: int
    body: bytes

    @classmethod
    def veth(cls, name: str, peer: str) -> Request:
        """Make a veth pair; both ends are down."""
        other = _attribute(VETH_INFO_PEER, _link() + _name(peer))
        kind = _attribute(IFLA_INFO_KIND, b"veth") + _attribute(IFLA_INFO_DATA, other)
        body = _link() + _name(name) + _attribute(IFLA_LINKINFO, kind)
        return cls(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body)

    @classmethod
    def admin(cls, name: str, *, up: bool) -> Request:
        """Set the link administratively up or down."""
        return cls(RTM_SETLINK, 0, _link(IFF_UP if up else 0, IFF_UP) + _name(name))

    @classmethod
    def delete(cls, name: str) -> Request:
        """Delete the link; a veth pair goes as a whole."""
        return cls(RTM_DELLINK, 0, _link() + _name(name))


def _link(flags: int = 0, change: int = 0) -> bytes:
    return IFINFOMSG.pack(socket.AF_UNSPEC, 0, 0, flags, change)


def _name(name: str) -> bytes:
    return _attribute(IFLA_IFNAME, os.fsencode(name) + b"\0")


def _attribute(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


class Rtnetlink:
    """A request socket in the namespace `netns` (a descriptor). Blocking.

    Every method raises KernelError where the kernel refuses, NotPermitted where it does so for want
    of a capability.
    """

    def __init__(self, netns: int) -> None:
        self._socket = inside(
            netns,
            lambda: socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
            ),
        )
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def change(self, *requests: Request) -> None:
        """Sends all of them at once, so that nobody can act between two of them."""
        buffer = b""
        for request in requests:
            self._seq += 1
            # Errors are always answered: the ack of the last one says that all were tried.
            ack = NLM_F_ACK if request is requests[-1] else 0
            flags = NLM_F_REQUEST | request.flags | ack
            size = NLMSGHDR.size + len(request.body)
            buffer += NLMSGHDR.pack(size, request.type, flags, self._seq, 0) + request.body
        self._exchange(buffer, "changing links")

    def link(self, name: str) -> LinkMessage:
        """The link of that name as it is now."""
        self._seq += 1
        body = _link() + _name(name)
        flags = NLM_F_REQUEST | NLM_F_ACK
        header = NLMSGHDR.pack(NLMSGHDR.size + len(body), RTM_GETLINK, flags, self._seq, 0)
        found = self._exchange(header + body, f"asking for {name}")
        return next(message for message in found if isinstance(message, LinkMessage))

    def is_up(self, name: str) -> bool:
        """Whether packets can pass: administratively up, with a carrier."""
        return self.link(name).flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING

    def change_routes(self, fill: Callable[[Batch], object]) -> None:
        """Sends the requests that `fill` puts into a batch, at once."""
        batch = Batch(self._seq + 1)
        fill(batch)
        self._seq = batch.last_seq
        self._exchange(batch.finish(), "changing routes")

    def routes(self, protocol: int) -> list[RouteMessage]:
        """The routes of a protocol in all tables, of both families."""
        found: list[RouteMessage] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            batch = Batch(self._seq + 1)
            self._seq = batch.route_dump(family)
            found += [
                message
                for message in self._exchange(batch.finish(), "dumping routes")
                if isinstance(message, RouteMessage) and message.protocol == protocol
            ]
        return found

    def _exchange(self, requests: bytes, doing: str) -> list[object]:
        """What the kernel gave, up to its answer to the request numbered `self._seq`."""
        found: list[object] = []
        refused: wire.Answer | None = None
        self._socket.send(requests)
        while True:
            for message in wire.decode(self._socket.recv(BUFFER_BYTES)).messages:
                if not isinstance(message, wire.Answer):
                    found.append(message)
                    continue
                if message.errno:
                    refused = refused or message
                if message.seq != self._seq:
                    continue
                if refused is None:
                    return found
                if refused.errno == errno.EPERM:
                    raise NotPermitted(PERMISSION)
                raise KernelError(refused.errno, refused.text, doing)


@dataclass(frozen=True, slots=True)
class RouteEvent:
    """A route that was made (or put in another's place) or deleted, whoever did it."""

    at_s: float  # monotonic
    prefix: Prefix
    deleted: bool


class RouteWatch:
    """What happens to the routes of one protocol in the namespace `netns`, as the kernel tells.

    IPv4 routes vanish with their link without an event; that they are put back is told.
    """

    def __init__(self, netns: int, protocol: int) -> None:
        groups = (RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE)
        self._socket = EventSocket(groups, rcvbuf_bytes=WATCH_RCVBUF_BYTES, netns=netns)
        self._protocol = protocol
        self._poll = select.poll()
        self._poll.register(self._socket.fd, select.POLLIN)

    def close(self) -> None:
        self._socket.close()

    def take(self) -> list[RouteEvent]:
        """What happened since the last time."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram = os.read(self._socket.fd, BUFFER_BYTES)
                at_s = time.monotonic()
                found += [
                    RouteEvent(at_s, prefix_of(message), message.deleted)
                    for message in wire.decode(datagram).messages
                    if isinstance(message, RouteMessage) and message.protocol == self._protocol
                ]
        return found

    def wait(self, timeout_s: float) -> None:
        """Returns when something has happened, or after that time."""
        self._poll.poll(timeout_s * 1000)


def prefix_of(message: RouteMessage) -> Prefix:
    """The destination of a route."""
    return Prefix(message.family, message.dst, message.prefix_len)
