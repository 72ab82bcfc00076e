"""IP prefixes and addresses of links, packed as the kernel has them."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple

from netreeve.model.quote import quoted

__all__ = ["MAX_LENGTH", "LinkAddress", "Prefix", "parse_address"]

MAX_LENGTH = {int(AF_INET): 32, int(AF_INET6): 128}
"""Longest prefix length by family."""

_V4 = int(AF_INET)
_V6 = int(AF_INET6)
_FAMILY_WORD = {_V4: "IPv4", _V6: "IPv6"}


class Prefix(NamedTuple):
    """A destination: `family` AF_INET or AF_INET6, `address` 4 or 16 bytes, host bits zero."""

    family: int
    address: bytes
    length: int

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """Parse `10.65.0.2`, `10.65.0.0/24`, `fd00::2`; without a length it is /32 or /128.

        ValueError with a sentence: not an address, bad length, bits set beyond the length.
        """
        if "/" not in text:
            # Plans hold thousands of these: no call more than needed.
            return tuple.__new__(cls, (*parse_address(text), 128 if ":" in text else 32))
        head, _, tail = text.partition("/")
        family, address = parse_address(head)
        length = _parse_length(text, tail, family)
        network = _network(address, length)
        if network != address:
            raise ValueError(
                f"{quoted(text)} has bits set beyond its length; "
                f"the prefix is {inet_ntop(family, network)}/{length}"
            )
        return cls(family, address, length)

    def __str__(self) -> str:
        return f"{inet_ntop(self.family, self.address)}/{self.length}"


class LinkAddress(NamedTuple):
    """An address of a link with the length of its network: `10.1.0.1/24`; host bits are kept."""

    family: int
    address: bytes
    length: int

    @classmethod
    def parse(cls, text: str) -> LinkAddress:
        """Parse as `Prefix.parse` does, but keep the host bits; ValueError with a sentence."""
        head, slash, tail = text.partition("/")
        family, address = parse_address(head)
        length = _parse_length(text, tail, family) if slash else MAX_LENGTH[family]
        return cls(family, address, length)

    @property
    def network(self) -> Prefix:
        """The network that it is in."""
        bits = 8 * len(self.address)
        host = (1 << (bits - self.length)) - 1
        masked = int.from_bytes(self.address) & ~host
        return Prefix(self.family, masked.to_bytes(bits // 8), self.length)

    def __str__(self) -> str:
        return f"{inet_ntop(self.family, self.address)}/{self.length}"


def parse_address(text: str) -> tuple[int, bytes]:
    """Parse one address without a length: (family, packed); ValueError with a sentence.

    Only the canonical families of text are taken: dotted quads without leading zeros and RFC 4291.
    """
    family = _V6 if ":" in text else _V4
    try:
        return family, inet_pton(family, text)
    except (OSError, ValueError):
        raise ValueError(f"{quoted(text)} is not an IPv4 or IPv6 address") from None


def _parse_length(text: str, tail: str, family: int) -> int:
    if not (tail.isascii() and tail.isdigit() and len(tail) <= 3 and str(int(tail)) == tail):
        raise ValueError(f"{quoted(text)} has no number after the `/`")
    length = int(tail)
    if length > MAX_LENGTH[family]:
        raise ValueError(
            f"{quoted(text)} is {_FAMILY_WORD[family]}: "
            f"its length is 0 to {MAX_LENGTH[family]}, not {length}"
        )
    return length


def _network(address: bytes, length: int) -> bytes:
    host_bits = len(address) * 8 - length
    return (int.from_bytes(address) >> host_bits << host_bits).to_bytes(len(address))
