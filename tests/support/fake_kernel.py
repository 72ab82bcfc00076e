"""An obvious model of the kernel's FIB and of what it says about it; slow, and strict.

What it models, as kernel-facts of 6.1 to 6.18 have it:

- a key (family, destination, table, tos, metric) holds a list of routes; the first one counts;
- CREATE|EXCL fails where anything is there; REPLACE overwrites whatever comes first, anybody's;
- routes through a link that goes down or away vanish: IPv4 ones in silence, IPv6 ones with
  RTM_DELROUTE; a loss of carrier changes nothing;
- events wait in a queue until they are read, and can be lost.

It fails (AssertionError) when a request changes or removes a foreign route that the sender could
have known of.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from netreeve.model.route import Add, Delete, Op, Replace, RouteKey

OURS = 98
OUR_PORT = 4711


@dataclass(frozen=True)
class RouteMessage:
    """Has the attributes of `netreeve._ext.wire.RouteMessage`, which can't be made by hand."""

    deleted: bool
    family: int
    dst: bytes
    prefix_len: int
    table: int
    tos: int
    metric: int
    protocol: int
    oif: int
    portid: int = 0
    type: int = 1
    scope: int = 253
    flags: int = 0
    nexthops: int = 0
    has_gateway: bool = False


def message(
    key: RouteKey, protocol: int, oif: int, *, deleted: bool = False, **more: int
) -> RouteMessage:
    return RouteMessage(deleted, *key, protocol=protocol, oif=oif, **more)  # type: ignore[arg-type]


@dataclass(eq=False)
class Route:
    protocol: int
    oif: int

    @property
    def foreign(self) -> bool:
        return self.protocol != OURS


@dataclass
class Link:
    name: str
    admin_up: bool = False
    carrier: bool = True

    @property
    def up(self) -> bool:
        return self.admin_up and self.carrier


@dataclass(frozen=True)
class Flushed:
    ifindex: int
    family: int | None = None
    gone: bool = False


@dataclass(frozen=True)
class Told:
    """What the name machine tells of a link: None for `up` means removed."""

    name: str
    ifindex: int
    up: bool | None


@dataclass(frozen=True)
class RouteEvent:
    message: RouteMessage
    route: Route | None  # the route that was made, so that the reader is known to know of it


Event = Flushed | Told | RouteEvent


@dataclass
class FakeKernel:
    links: dict[int, Link] = field(default_factory=dict)
    fib: dict[RouteKey, list[Route]] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    next_ifindex: int = 10
    window_losses: int = 0  # foreign routes that came between a decision and its execution

    # -- links --

    def link_add(self, name: str, *, up: bool) -> int:
        assert self.by_name(name) is None
        ifindex = self.next_ifindex
        self.next_ifindex += 1
        self.links[ifindex] = Link(name)
        self.events.append(Told(name, ifindex, False))
        if up:
            self.link_admin(ifindex, up=True)
        return ifindex

    def link_del(self, ifindex: int) -> None:
        link = self.links[ifindex]
        self._drop_routes(ifindex)
        del self.links[ifindex]
        self.events.append(Flushed(ifindex, gone=True))
        self.events.append(Told(link.name, ifindex, None))

    def link_rename(self, ifindex: int, name: str) -> None:
        link = self.links[ifindex]
        self.events.append(Told(link.name, ifindex, None))
        link.name = name
        self.events.append(Told(name, ifindex, link.up))

    def link_admin(self, ifindex: int, *, up: bool) -> None:
        link = self.links[ifindex]
        if link.admin_up == up:
            return
        before = link.up
        link.admin_up = up
        if not up:
            self._drop_routes(ifindex)
            self.events.append(Flushed(ifindex))
        self._tell(ifindex, before)

    def link_carrier(self, ifindex: int, *, on: bool) -> None:
        link = self.links[ifindex]
        before = link.up
        link.carrier = on
        self._tell(ifindex, before)

    def last_address_lost(self, ifindex: int, *, flush: bool) -> None:
        """An IPv4 address goes; with the last one (`flush`) all IPv4 routes of the link go too."""
        if flush:
            self._drop_routes(ifindex, family=socket.AF_INET)
        self.events.append(Flushed(ifindex, socket.AF_INET))

    def by_name(self, name: str) -> int | None:
        return next((i for i, link in self.links.items() if link.name == name), None)

    def _tell(self, ifindex: int, before: bool) -> None:
        link = self.links[ifindex]
        if link.up != before:
            self.events.append(Told(link.name, ifindex, link.up))

    def _drop_routes(self, ifindex: int, family: int | None = None) -> None:
        for key, routes in list(self.fib.items()):
            if family is not None and key.family != family:
                continue
            for route in [route for route in routes if route.oif == ifindex]:
                self._remove(key, route)
                if key.family == socket.AF_INET6:
                    self._event(key, route, deleted=True)

    # -- others' routes: `protocol` may be ours, too --

    def other_add(self, key: RouteKey, protocol: int, oif: int, *, how: str) -> bool:
        """`how`: excl, append, prepend, replace."""
        if not self.links[oif].admin_up:
            return False
        routes = self.fib.setdefault(key, [])
        # IPv6 takes a second route of one key only on another device, whoever made the first.
        v6 = key.family == socket.AF_INET6 and how != "replace"
        if (how == "excl" and routes) or any(
            route.oif == oif and (v6 or route.protocol == protocol) for route in routes
        ):
            return False
        route = Route(protocol, oif)
        if how == "replace" and routes:
            routes[0] = route
        elif how == "prepend":
            routes.insert(0, route)
        else:
            routes.append(route)
        self._event(key, route)
        return True

    def other_del(self, key: RouteKey, route: Route) -> None:
        self._remove(key, route)
        self._event(key, route, deleted=True)

    def _event(self, key: RouteKey, route: Route, *, deleted: bool = False) -> None:
        told = message(key, route.protocol, route.oif, deleted=deleted)
        self.events.append(RouteEvent(told, None if deleted else route))

    def _remove(self, key: RouteKey, route: Route) -> None:
        self.fib[key].remove(route)
        if not self.fib[key]:
            del self.fib[key]

    # -- our requests --

    def apply(self, op: Op, known: Iterable[Route] = ()) -> tuple[int, str]:
        """Do it; (errno, words). `known`: the foreign routes the sender knew of when it decided."""
        assert op.protocol == OURS
        assert op.key.metric >= 1
        routes = self.fib.get(op.key, [])
        if isinstance(op, Delete):
            for route in routes:
                if route.protocol == op.protocol and route.oif == op.oif:
                    assert not route.foreign
                    self._remove(op.key, route)
                    return 0, ""
            return errno.ESRCH, ""
        link = self.links.get(op.oif)
        if link is None:
            return errno.ENODEV, "Invalid device"
        if not link.admin_up:
            v4 = op.key.family == socket.AF_INET
            return errno.ENETDOWN, ("Device for nexthop" if v4 else "Nexthop device") + " is not up"
        if isinstance(op, Add):
            if routes:
                return errno.EEXIST, ""
            self.fib[op.key] = [Route(op.protocol, op.oif)]
            return 0, ""
        assert isinstance(op, Replace)
        if not routes:
            return errno.ENOENT, ""
        if any(not r.foreign and r.oif == op.oif for r in routes[1:]):
            return errno.EEXIST, ""  # fib_table_insert: the very route is there, but not first
        if routes[0].foreign:
            assert routes[0] not in tuple(known), f"{op} overwrites a foreign route known before"
            self.window_losses += 1
        routes[0] = Route(op.protocol, op.oif)
        return 0, ""

    # -- dumps --

    def dump(
        self, *, protocol: int | None = None, family: int | None = None, table: int | None = None
    ) -> list[RouteMessage]:
        return [
            message(key, route.protocol, route.oif)
            for key, route in self.routes()
            if protocol in (None, route.protocol)
            and family in (None, key.family)
            and table in (None, key.table)
        ]

    def routes(self) -> Iterator[tuple[RouteKey, Route]]:
        for key, routes in self.fib.items():
            for route in routes:
                yield key, route
