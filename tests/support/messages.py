"""Builds netlink datagrams as a kernel would send them, for tests that need one of their own."""

from __future__ import annotations

import struct

RTM_NEWLINK, RTM_DELLINK = 16, 17
IFF_UP, IFF_RUNNING, IFF_LOWER_UP = 0x1, 0x40, 0x10000
UP = IFF_UP | IFF_RUNNING | IFF_LOWER_UP


def attribute(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return struct.pack("=HH", size, kind) + payload + bytes(-size % 4)


def message(kind: int, payload: bytes, *, flags: int = 0, seq: int = 0, portid: int = 0) -> bytes:
    size = 16 + len(payload)
    return struct.pack("=IHHII", size, kind, flags, seq, portid) + payload + bytes(-size % 4)


def link(
    ifindex: int,
    name: bytes | str,
    *,
    up: bool | None = None,
    flags: int | None = None,
    kind: str = "veth",
    counts: tuple[int, int] | None = None,
    deleted: bool = False,
    family: int = 0,
    seq: int = 0,
    message_flags: int = 0,
) -> bytes:
    """RTM_NEWLINK (RTM_DELLINK if `deleted`); `counts` are the carrier up and down counters."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    if flags is None:
        flags = UP if up else 0
    body = struct.pack("=BxHiII", family, 1, ifindex, flags, 0)
    body += attribute(3, raw + b"\0")
    body += attribute(4, struct.pack("=I", 1500))
    body += attribute(18, attribute(1, kind.encode() + b"\0"))
    if counts is not None:
        body += attribute(47, struct.pack("=I", counts[0]))
        body += attribute(48, struct.pack("=I", counts[1]))
    return message(RTM_DELLINK if deleted else RTM_NEWLINK, body, seq=seq, flags=message_flags)


def done(seq: int = 0, errno: int = 0, *, flags: int = 2) -> bytes:
    """NLMSG_DONE; `errno` positive."""
    return message(3, struct.pack("=i", -errno), seq=seq, flags=flags)
