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


def kind_info(kind: str, *properties: tuple[int, bytes]) -> bytes:
    """IFLA_LINKINFO of a kind, with its data."""
    data = b"".join(attribute(type_, value) for type_, value in properties)
    return attribute(18, attribute(1, kind.encode() + b"\0") + attribute(2, data))


def details(ifindex: int, name: str, *attributes: bytes, seq: int = 0, portid: int = 0) -> bytes:
    """RTM_NEWLINK of a link that is up, of these attributes besides its name."""
    body = struct.pack("=BxHiII", 0, 1, ifindex, UP, 0)
    body += attribute(3, name.encode("utf-8", "surrogateescape") + b"\0") + b"".join(attributes)
    return message(RTM_NEWLINK, body, seq=seq, portid=portid)


def of_our_kinds() -> list[bytes]:
    """A link of each kind that we make, with all that a kernel tells and we read."""
    token = attribute(53, b"netreeve.0123456789.red\0")
    common = [
        attribute(4, struct.pack("=I", 1450)),
        attribute(10, struct.pack("=I", 7)),
        attribute(27, struct.pack("=I", 4000000001)),
        attribute(52, token + attribute(53, b"second\0")),
        attribute(5, struct.pack("=I", 12)),
        attribute(37, struct.pack("=i", 3)),
    ]
    vxlan = [(1, struct.pack("=I", 5)), (15, b"\x12\xb5"), (5, b"\x40"), (7, b"\1"), (25, b"\0")]
    infos = [
        kind_info("vrf", (1, struct.pack("=I", 70000))),
        kind_info("bridge", (1, bytes(4)), (7, b"\1")),
        kind_info("vxlan", *vxlan, (4, bytes((192, 0, 2, 1)))),
        kind_info("vxlan", *vxlan, (17, b"\xfd" + bytes(14) + b"\1")),
        kind_info("tun", (3, b"\2"), (6, b"\1")),
        kind_info("tun", (3, b"\1"), (6, b"\0")),
    ]
    return [
        details(number, f"link{number}", *common, info, seq=9, portid=77)
        for number, info in enumerate(infos, 20)
    ]


def done(seq: int = 0, errno: int = 0, *, flags: int = 2) -> bytes:
    """NLMSG_DONE; `errno` positive."""
    return message(3, struct.pack("=i", -errno), seq=seq, flags=flags)
