"""Routes of endpoints as values: where one sits, what to do about it, how an endpoint stands."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

__all__ = [
    "CONFIRMED",
    "PENDING",
    "PROTOCOLS",
    "Add",
    "Conflict",
    "Delete",
    "Op",
    "Replace",
    "RouteCounts",
    "RouteKey",
    "RouteState",
    "protocol_text",
]


class RouteKey(NamedTuple):
    """The FIB key: the kernel tells routes apart by nothing else, whoever made them.

    In the order of the arguments of `encode.Batch.route_add`, so that a key can be starred in.
    A NamedTuple, because every event and every answer hashes one.
    """

    family: int  # AF_INET or AF_INET6
    dst: bytes  # 4 or 16 bytes, host bits zero
    prefix_len: int
    table: int
    tos: int
    metric: int

    def __str__(self) -> str:
        """The destination as people write it: `10.65.0.2/32`."""
        return f"{socket.inet_ntop(self.family, self.dst)}/{self.prefix_len}"


@dataclass(frozen=True, slots=True)
class _Op:
    key: RouteKey
    oif: int  # ifindex, at least 1
    protocol: int  # RTPROT_*, at least 1


@dataclass(frozen=True, slots=True)
class Add(_Op):
    """CREATE|EXCL: fails with EEXIST where anybody's route holds the key."""

    rank: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Replace(_Op):
    """REPLACE without CREATE: moves our own route, the only one of its key, to `oif`."""

    rank: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Delete(_Op):
    """Takes our route off `oif`; can't hit one of another protocol or on another device."""

    rank: ClassVar[int] = 0


# `rank` is the order within a batch: freed slots first, then moves, then additions.
Op: TypeAlias = Add | Replace | Delete


@dataclass(frozen=True, slots=True)
class RouteState:
    """How the routes of one endpoint stand.

    `confirmed`: the kernel has all of them, on the endpoint's link, which is up. `refused`: at
    least one can't be had; `reason` names its destination and why, in the kernel's words where it
    gave some. `pending`: neither, yet; also while the link isn't up or the endpoint is
    administratively down.
    """

    kind: Literal["pending", "confirmed", "refused"]
    reason: str | None = None  # only, and always, where refused


PENDING = RouteState("pending")
CONFIRMED = RouteState("confirmed")


@dataclass(frozen=True, slots=True)
class Conflict:
    """A foreign route holds the key that an endpoint needs."""

    key: RouteKey
    endpoint: str  # the endpoint's id as text
    protocol: int  # of the holder
    oif: int  # of the holder, 0 where it has no single device

    @property
    def reason(self) -> str:
        device = f"ifindex {self.oif}" if self.oif else "no single device"
        return f"{self.key}: held by a route of protocol {protocol_text(self.protocol)}, {device}"


class RouteCounts(NamedTuple):
    """Keys by how they stand. One that waits for its link to come up is in none of them."""

    programmed: int
    pending: int
    refused: int  # by the kernel, for another reason than a conflict
    conflicts: int


# The names are those of <linux/rtnetlink.h>, and of iproute2's rt_protos for what the former has
# only in newer kernels. Not read from the node, so that one reason reads alike on all of them.
PROTOCOLS = {
    1: "redirect",
    2: "kernel",
    3: "boot",
    4: "static",
    8: "gated",
    9: "ra",
    10: "mrt",
    11: "zebra",
    12: "bird",
    13: "dnrouted",
    14: "xorp",
    15: "ntk",
    16: "dhcp",
    17: "mrouted",
    18: "keepalived",
    42: "babel",
    84: "ovn",
    99: "openr",
    186: "bgp",
    187: "isis",
    188: "ospf",
    189: "rip",
    192: "eigrp",
}


def protocol_text(protocol: int) -> str:
    """`bird (12)`, or just the number where it has no usual name."""
    name = PROTOCOLS.get(protocol)
    return f"{name} ({protocol})" if name else str(protocol)
