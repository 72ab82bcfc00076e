"""The judge of netreeve._ext.wire and details: slow, obvious, and with nothing of it inside.

Numbers are written out on purpose: they come from the kernel's headers by hand, so that a mistake
in kernel.pxd shows. What must come out of a message is a dict with the members of wire's objects
and "message", the class's name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ADDRESS_SIZE = {2: 4, 10: 16}


class Malformed(Exception):
    """A fault: counted, and the message is lost."""


class Ignored(Exception):
    """Well formed as far as one can tell, but not for us."""


@dataclass
class Decoded:
    messages: list[dict[str, Any]] = field(default_factory=list)
    faults: int = 0
    ignored: int = 0
    interrupted: bool = False


def decode(data: bytes) -> Decoded:
    """As wire.decode."""

    def one(type_: int, flags: int, seq: int, portid: int, payload: bytes) -> dict[str, Any]:
        if type_ in (16, 17):
            return _link(payload, type_ == 17)
        if type_ in (20, 21):
            return _addr(payload, type_ == 21) | {"portid": portid}
        if type_ in (24, 25):
            return _route(payload, type_ == 25, portid)
        if type_ in (2, 3):
            return _answer(payload, type_, flags, seq)
        raise Ignored

    return _decode(data, one)


def decode_links(data: bytes) -> Decoded:
    """As details.decode_links; what is `items` there is `messages` here."""

    def one(type_: int, flags: int, seq: int, portid: int, payload: bytes) -> dict[str, Any]:
        if type_ == 16:
            return _details(payload) | {"seq": seq, "portid": portid}
        if type_ in (20, 21):
            return _addr(payload, type_ == 21) | {"portid": portid}
        if type_ in (2, 3):
            return _answer(payload, type_, flags, seq)
        raise Ignored

    return _decode(data, one)


def _decode(data: bytes, one: Callable[[int, int, int, int, bytes], dict[str, Any]]) -> Decoded:
    decoded = Decoded()
    while data:
        if len(data) < 16:
            decoded.faults += 1
            break
        length, type_, flags, seq, portid = struct.unpack("<IHHII", data[:16])
        if length < 16 or length > len(data):
            decoded.faults += 1
            break
        payload = data[16:length]
        data = data[(length + 3) // 4 * 4 :]
        if flags & 0x10:
            decoded.interrupted = True
        try:
            decoded.messages.append(one(type_, flags, seq, portid, payload))
        except Malformed:
            decoded.faults += 1
        except Ignored:
            decoded.ignored += 1
    return decoded


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while data:
        if len(data) < 4:
            raise Malformed
        length, type_ = struct.unpack("<HH", data[:4])
        if length < 4 or length > len(data):
            raise Malformed
        yield type_ & 0x3FFF, data[4:length]
        data = data[(length + 3) // 4 * 4 :]


def _header(layout: str, payload: bytes) -> tuple[Any, ...]:
    if len(payload) < struct.calcsize(layout):
        raise Malformed
    return struct.unpack(layout, payload[: struct.calcsize(layout)])


def _number(layout: str, value: bytes) -> int:
    if len(value) != struct.calcsize(layout):
        raise Malformed
    number: int = struct.unpack(layout, value)[0]
    return number


def _ifindex(value: bytes) -> int:
    number = _number("<I", value)
    if number >= 2**31:
        raise Malformed
    return number


def _text(value: bytes) -> bytes:
    return value.split(b"\0", 1)[0]


def _link(payload: bytes, deleted: bool) -> dict[str, Any]:
    family, ifindex, flags, _ = _header("<BxxxiII", payload)
    if family != 0:
        raise Ignored
    if ifindex <= 0:
        raise Malformed
    link: dict[str, Any] = {
        "message": "LinkMessage",
        "deleted": deleted,
        "ifindex": ifindex,
        "name": "",
        "kind": "",
        "flags": flags,
        "mtu": 0,
        "controller": 0,
        "operstate": 0,
        "mac": b"",
        "up_count": 0,
        "down_count": 0,
        "moved": False,
    }
    counts = set()
    for type_, value in _attributes(payload[16:]):
        if type_ == 1:
            if len(value) > 32:
                raise Malformed
            link["mac"] = value
        elif type_ == 3:
            name = _text(value)
            if len(name) > 15 or value not in (name, name + b"\0"):
                raise Malformed
            link["name"] = name.decode("utf-8", "surrogateescape")
        elif type_ == 4:
            link["mtu"] = _number("<I", value)
        elif type_ == 10:
            link["controller"] = _ifindex(value)
        elif type_ == 11:
            raise Ignored
        elif type_ == 16:
            link["operstate"] = _number("<B", value)
        elif type_ == 18:
            link["kind"] = ""
            for inner, inner_value in _attributes(value):
                if inner == 1:
                    kind = _text(inner_value)[:15]
                    link["kind"] = kind.decode("utf-8", "surrogateescape")
        elif type_ in (45, 49):
            _number("<I", value)
            link["moved"] = True
        elif type_ == 47:
            link["up_count"] = _number("<I", value)
            counts.add(47)
        elif type_ == 48:
            link["down_count"] = _number("<I", value)
            counts.add(48)
    if not deleted and not link["name"]:
        raise Malformed
    link["has_counts"] = counts == {47, 48}
    return link


# Of each kind: attribute -> member, layout of its number (None: an address), what becomes of it.
_PROPERTIES: dict[str, dict[int, tuple[str, str | None, Callable[[Any], Any]]]] = {
    "vrf": {1: ("table", "<I", int)},
    "bridge": {7: ("vlan_filtering", "<B", bool)},
    "vxlan": {
        1: ("vni", "<I", int),
        4: ("local", None, lambda address: (2, address)),
        5: ("ttl", "<B", int),
        7: ("learning", "<B", bool),
        15: ("port", ">H", int),
        17: ("local", None, lambda address: (10, address)),
        25: ("external", "<B", bool),
    },
    "tun": {3: ("tap", "<B", lambda mode: mode == 2), 6: ("persist", "<B", bool)},
}


def _details(payload: bytes) -> dict[str, Any]:
    link = _link(payload, False)
    kept = ("ifindex", "name", "kind", "flags", "mtu", "mac", "controller")
    details: dict[str, Any] = {"message": "LinkDetails"} | {key: link[key] for key in kept}
    details |= {
        "admin_up": link["flags"] & 1 == 1,
        "group": 0,
        "altnames": (),
        "lower": 0,
        "remote_lower": False,
    }
    known = _PROPERTIES.get(link["kind"])
    unknown = {name: None for table in _PROPERTIES.values() for name, _, _ in table.values()}
    details |= unknown
    for type_, value in _attributes(payload[16:]):
        if type_ == 5:
            details["lower"] = _ifindex(value)
        elif type_ == 18 and known is not None:
            details |= unknown
            for inner, inner_value in _attributes(value):
                if inner == 2:
                    details |= unknown | _properties(inner_value, known)
        elif type_ == 27:
            details["group"] = _number("<I", value)
        elif type_ == 37:
            _number("<I", value)
            details["remote_lower"] = True
        elif type_ == 52:
            details["altnames"] = tuple(
                _altname(inner_value) for inner, inner_value in _attributes(value) if inner == 53
            )
    return details


def _properties(
    data: bytes, known: dict[int, tuple[str, str | None, Callable[[Any], Any]]]
) -> dict[str, Any]:
    found = {}
    for type_, value in _attributes(data):
        if type_ in known:
            name, layout, make = known[type_]
            if layout is None:
                if len(value) != ADDRESS_SIZE[make(value)[0]]:
                    raise Malformed
                found[name] = make(value)
            else:
                found[name] = make(_number(layout, value))
    return found


def _altname(value: bytes) -> str:
    name = _text(value)
    if len(name) > 127 or value not in (name, name + b"\0"):
        raise Malformed
    return name.decode("utf-8", "surrogateescape")


def _addr(payload: bytes, deleted: bool) -> dict[str, Any]:
    family, prefix_len, flags, scope, ifindex = _header("<BBBBI", payload)
    if family not in ADDRESS_SIZE:
        raise Ignored
    size = ADDRESS_SIZE[family]
    if not 0 < ifindex < 2**31 or prefix_len > 8 * size:
        raise Malformed
    address, local, proto = bytes(size), None, 0
    for type_, value in _attributes(payload[8:]):
        if type_ in (1, 2) and len(value) != size:
            raise Malformed
        if type_ == 1:
            address = value
        elif type_ == 2:
            local = value
        elif type_ == 8:
            flags = _number("<I", value)
        elif type_ == 11:
            proto = _number("<B", value)
    return {
        "message": "AddrMessage",
        "deleted": deleted,
        "family": family,
        "ifindex": ifindex,
        "address": address if local is None else local,
        "prefix_len": prefix_len,
        "scope": scope,
        "flags": flags,
        "proto": proto,
    }


def _route(payload: bytes, deleted: bool, portid: int) -> dict[str, Any]:
    header = _header("<BBBBBBBBI", payload)
    family, prefix_len, _, tos, table, protocol, scope, type_, flags = header
    if family not in ADDRESS_SIZE:
        raise Ignored
    size = ADDRESS_SIZE[family]
    if prefix_len > 8 * size:
        raise Malformed
    route: dict[str, Any] = {
        "message": "RouteMessage",
        "deleted": deleted,
        "family": family,
        "dst": bytes(size),
        "prefix_len": prefix_len,
        "table": table,
        "metric": 0,
        "tos": tos,
        "protocol": protocol,
        "scope": scope,
        "type": type_,
        "flags": flags,
        "oif": 0,
        "nexthops": 0,
        "has_gateway": False,
        "portid": portid,
    }
    has_dst = False
    for attribute, value in _attributes(payload[12:]):
        if attribute in (1, 5) and len(value) != size:
            raise Malformed
        if attribute == 1:
            route["dst"] = value
            has_dst = True
        elif attribute == 4:
            route["oif"] = _ifindex(value)
        elif attribute == 5:
            route["has_gateway"] = True
        elif attribute == 6:
            route["metric"] = _number("<I", value)
        elif attribute == 9:
            route["nexthops"] = _count_nexthops(value)
        elif attribute == 15:
            route["table"] = _number("<I", value)
        elif attribute == 18:
            if len(value) < 2:
                raise Malformed
            route["has_gateway"] = True
    if prefix_len and not has_dst:
        raise Malformed
    host_bits = 8 * size - prefix_len
    if int.from_bytes(route["dst"], "big") % 2**host_bits:
        raise Malformed
    return route


def _count_nexthops(data: bytes) -> int:
    count = 0
    while data:
        if len(data) < 8:
            raise Malformed
        (length,) = struct.unpack("<H", data[:2])
        if length < 8 or length > len(data):
            raise Malformed
        count += 1
        data = data[(length + 3) // 4 * 4 :]
    return count


def _answer(payload: bytes, type_: int, flags: int, seq: int) -> dict[str, Any]:
    (error,) = _header("<i", payload)
    if not -4095 <= error <= 0:
        raise Malformed
    rest = payload[4:]
    if type_ == 2:
        (request_length,) = _header("<I12x", rest)
        if flags & 0x100:
            rest = rest[16:]
        elif request_length < 16 or request_length > len(rest):
            raise Malformed
        else:
            rest = rest[(request_length + 3) // 4 * 4 :]
    text = b""
    if flags & 0x200:
        for attribute, value in _attributes(rest):
            if attribute == 1:
                text = _text(value)
            elif attribute == 2:
                _number("<I", value)
    return {
        "message": "Answer",
        "seq": seq,
        "errno": -error,
        "text": text.decode("utf-8", "replace"),
    }
