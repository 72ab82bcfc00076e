"""The values of single fields: text or number in, a value that can't be wrong out.

Each function raises ValueError with a sentence that stands by itself: what is there, what may be.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from socket import AF_INET6

from netreeve.model.prefix import LinkAddress, Prefix, parse_address
from netreeve.model.quote import quoted

__all__ = [
    "MIN_IPV6_MTU",
    "admin_up",
    "endpoint_prefix",
    "link_address",
    "mac",
    "mtu",
    "port",
    "table",
    "ttl",
    "uid",
    "vni",
    "vtep_local",
]

MIN_IPV6_MTU = 1280
"""IPV6_MIN_MTU: below it the kernel takes IPv6 off a link (include/linux/ipv6.h)."""

_MAX_UID_CHARS = 256
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_RESERVED_TABLES = {253: "default", 254: "main", 255: "local"}
_PERHAPS_SPECIAL = frozenset((0, 127, *range(224, 240), 255))
"""First bytes of all addresses, of either family, that `_refuse_special` may refuse."""

_V4_MAPPED = b"\0" * 10 + b"\xff\xff"


def uid(text: str) -> str:
    """An incarnation: printable, not empty, at most 256 characters."""
    if not text or not text.isprintable() or len(text) > _MAX_UID_CHARS:
        raise ValueError(f"`uid` is 1 to {_MAX_UID_CHARS} printable characters, not {quoted(text)}")
    return text


def admin_up(text: str) -> bool:
    """`up` or `down`."""
    if text not in ("up", "down"):
        raise ValueError(f"`admin` is up or down, not {quoted(text)}")
    return text == "up"


def endpoint_prefix(text: str) -> Prefix:
    """A destination that can lead to one endpoint: unicast, and not the node's own."""
    prefix = Prefix.parse(text)
    if prefix[1][0] in _PERHAPS_SPECIAL:
        _refuse_special(prefix, text)
    return prefix


def _refuse_special(prefix: Prefix, text: str) -> None:
    """ValueError if no link of an endpoint can have it; a whole default route can."""
    if prefix.length == 0:
        return
    if prefix.family == AF_INET6 and prefix.address.startswith(_V4_MAPPED):
        v4 = ip_address(prefix.address[12:])
        raise ValueError(f"{quoted(text)} is an IPv4 address in an IPv6 field: write {v4}")
    address = ip_address(prefix.address)
    for is_special, word in (
        (address.is_multicast, "multicast"),
        (address.is_loopback, "loopback"),
        (address.is_unspecified, "unspecified"),
        (prefix.address == b"\xff\xff\xff\xff", "broadcast"),
    ):
        if is_special:
            raise ValueError(f"{quoted(text)} is a {word} address; an endpoint's is unicast")


def link_address(text: str) -> LinkAddress:
    """An address that a bridge can bear."""
    address = LinkAddress.parse(text)
    _refuse_special(Prefix(address.family, address.address, 128), text)
    if address.length == 0:
        raise ValueError(f"{quoted(text)} has the length 0: an address of a link has a network")
    return address


def vtep_local(text: str) -> tuple[int, bytes]:
    """The address that VXLAN packets come from: unicast, no length."""
    if "/" in text:
        raise ValueError(f"`local` is one address without a length, not {quoted(text)}")
    family, packed = parse_address(text)
    address = ip_address(packed)
    if address.is_multicast or address.is_unspecified:
        raise ValueError(f"`local` is a unicast address of this node, not {quoted(text)}")
    if family == AF_INET6 and packed.startswith(_V4_MAPPED):
        v4 = ip_address(packed[12:])
        raise ValueError(f"{quoted(text)} is an IPv4 address in an IPv6 field: write {v4}")
    return family, packed


def mac(text: str) -> str:
    """A link's own address, lower case; the kernel takes no group address and no zero one."""
    lower = text.lower()
    if not _MAC.fullmatch(lower):
        raise ValueError(f"`mac` is six hexadecimal bytes (02:00:00:00:10:01), not {quoted(text)}")
    if int(lower[:2], 16) & 1:
        raise ValueError(f"`mac` {lower} has the multicast bit set: its first byte must be even")
    if lower == "00:00:00:00:00:00":
        raise ValueError("`mac` is all zero: a link can't have it")
    return lower


def table(number: int) -> int:
    """A route table of a VPC's own: 1 to 4294967295, not one of the kernel's."""
    if number in _RESERVED_TABLES:
        raise ValueError(
            f"`table` {number} is the kernel's table `{_RESERVED_TABLES[number]}`; "
            "a VPC has one of its own"
        )
    return _within("table", number, 1, 2**32 - 1)


def vni(number: int) -> int:
    """A VXLAN id: 1 to 16777215."""
    return _within("vni", number, 1, 2**24 - 1)


def port(number: int) -> int:
    """A UDP port: 1 to 65535."""
    return _within("port", number, 1, 65535)


def ttl(number: int) -> int:
    """Of the outer packets: 1 to 255; what the kernel means by 0 depends on its version."""
    return _within("ttl", number, 1, 255)


def mtu(number: int) -> int:
    """Bytes: 68 (the smallest that IPv4 works with) to 65535."""
    return _within("mtu", number, 68, 65535)


def _within(what: str, number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"`{what}` is {low} to {high}, not {quoted(str(number))[1:-1]}")
    return number
