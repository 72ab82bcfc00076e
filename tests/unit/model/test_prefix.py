"""Prefixes and addresses, judged by the standard library's ipaddress."""

from __future__ import annotations

import ipaddress
from socket import AF_INET, AF_INET6

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.model.prefix import LinkAddress, Prefix, parse_address


def test_an_address_alone_is_a_host() -> None:
    assert Prefix.parse("10.65.0.2") == (AF_INET, b"\x0a\x41\x00\x02", 32)
    assert Prefix.parse("fd00:65::2") == (AF_INET6, b"\xfd\0\0\x65" + bytes(11) + b"\x02", 128)
    assert str(Prefix.parse("10.65.0.2")) == "10.65.0.2/32"
    assert str(Prefix.parse("FD00:0::2")) == "fd00::2/128"


networks = st.one_of(
    st.ip_addresses(v=4).flatmap(
        lambda a: st.integers(0, 32).map(lambda n: ipaddress.ip_network((a, n), strict=False))
    ),
    st.ip_addresses(v=6).flatmap(
        lambda a: st.integers(0, 128).map(lambda n: ipaddress.ip_network((a, n), strict=False))
    ),
)


@given(networks)
def test_agrees_with_ipaddress(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    prefix = Prefix.parse(str(network))
    assert prefix.address == network.network_address.packed
    assert prefix.length == network.prefixlen
    assert ipaddress.ip_network(str(prefix)) == network


@given(st.text(max_size=24) | st.text("0123456789abf.:/%", max_size=24))
def test_any_text_is_a_prefix_or_a_value_error(text: str) -> None:
    try:
        prefix = Prefix.parse(text)
    except ValueError:
        return
    assert Prefix.parse(str(prefix)) == prefix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.1/24", "bits set beyond its length; the prefix is 10.0.0.0/24"),
        ("fd00::1/64", "the prefix is fd00::/64"),
        ("10.0.0.0/33", "is IPv4: its length is 0 to 32, not 33"),
        ("fd00::/129", "is IPv6: its length is 0 to 128, not 129"),
        ("10.0.0.0/", "no number after the `/`"),
        ("10.0.0.0/08", "no number after the `/`"),
        ("10.0.0.0/\u0663", "no number after the `/`"),
        ("10.0.0.0/-1", "no number after the `/`"),
        ("10.0.0", "not an IPv4 or IPv6 address"),
        ("010.0.0.1", "not an IPv4 or IPv6 address"),
        ("fe80::1%eth0", "not an IPv4 or IPv6 address"),
        ("10.0.0.1\0", "not an IPv4 or IPv6 address"),
        ("10.0.0.1\ud800", "not an IPv4 or IPv6 address"),
        ("", "not an IPv4 or IPv6 address"),
    ],
)
def test_what_is_no_prefix_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Prefix.parse(text)
    assert words in str(caught.value)


def test_a_link_address_keeps_its_host_bits() -> None:
    assert str(LinkAddress.parse("10.1.0.1/24")) == "10.1.0.1/24"
    assert LinkAddress.parse("fd00::1").length == 128


def test_one_address() -> None:
    assert parse_address("::1") == (AF_INET6, bytes(15) + b"\x01")
