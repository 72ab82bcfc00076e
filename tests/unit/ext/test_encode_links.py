"""Requests about links and their addresses, judged by pyroute2's decoder, and what is refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.marshal import MarshalRtnl  # type: ignore[import-untyped]

from netreeve._ext.encode import Batch

REQUEST, ACK, ECHO, DUMP, EXCL, CREATE = 0x1, 0x4, 0x8, 0x300, 0x200, 0x400
NEWLINK, DELLINK, GETLINK, SETLINK, NEWADDR, DELADDR, GETADDR = 16, 17, 18, 19, 20, 21, 22
NEWLINKPROP, DELLINKPROP = 108, 109
IFLA_IFNAME, IFLA_GROUP, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 3, 27, 52, 53
V4, V6 = socket.AF_INET, socket.AF_INET6
TOKEN = "netreeve.0123456789.red-vtp"
MAC = bytes.fromhex("02aabbccddee")
LOCAL, LOCAL6 = (V4, socket.inet_aton("192.0.2.1")), (V6, socket.inet_pton(V6, "fd00::1"))
VTEP: dict[str, Any] = {"kind": "vxlan", "name": "red-vtp", "vni": 5, "port": 4789}

Add = Callable[[Batch], int]


def raw(add: Add) -> bytes:
    batch = Batch(41)
    assert add(batch) == 41
    return batch.finish()


def header(data: bytes) -> tuple[int, int]:
    """Type and flags; the rest of the header is as it must be."""
    size, type_, flags, seq, portid = struct.unpack_from("=IHHII", data)
    assert (size, seq, portid) == (len(data), 41, 0)
    return type_, flags


def link_header(data: bytes) -> tuple[int, int, int]:
    family, hardware, ifindex, flags, change = struct.unpack_from("=BxHiII", data, 16)
    assert (family, hardware) == (0, 0)
    return ifindex, flags, change


def attributes(data: bytes, offset: int = 32) -> dict[int, bytes]:
    """Top level, by number; no attribute comes twice, and the last one ends with the message."""
    found = {}
    while offset < len(data):
        size, type_ = struct.unpack_from("=HH", data, offset)
        assert type_ & 0x3FFF not in found
        assert 4 <= size <= len(data) - offset
        found[type_ & 0x3FFF] = data[offset + 4 : offset + size]
        assert not any(data[offset + size : offset + (size + 3) // 4 * 4])
        offset += (size + 3) // 4 * 4
    assert offset == len(data)
    return found


def judged(data: bytes) -> dict[str, Any]:
    """All attributes as pyroute2 reads them, IFLA_LINKINFO in one level."""
    (message,) = MarshalRtnl().parse(data)
    told = dict(message["attrs"])
    info = told.pop("IFLA_LINKINFO", None)
    if info is not None:
        told["kind"] = info.get_attr("IFLA_INFO_KIND")
        told |= dict(info.get_attr("IFLA_INFO_DATA")["attrs"])
    return told


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"kind": "bridge", "name": "red-bri"}, {"IFLA_IFNAME": "red-bri", "kind": "bridge"}),
        (
            {"kind": "bridge", "name": "b", "vlan_filtering": False, "mtu": 9000, "mac": MAC},
            {
                "IFLA_IFNAME": "b",
                "kind": "bridge",
                "IFLA_BR_VLAN_FILTERING": 0,
                "IFLA_MTU": 9000,
                "IFLA_ADDRESS": "02:aa:bb:cc:dd:ee",
            },
        ),
        (
            {"kind": "vrf", "name": "red-vrf", "table": 2**32 - 1},
            {"IFLA_IFNAME": "red-vrf", "kind": "vrf", "IFLA_VRF_TABLE": 2**32 - 1},
        ),
        (
            VTEP | {"local": LOCAL, "ttl": 255, "learning": False, "controller": 2**31 - 1},
            {
                "IFLA_IFNAME": "red-vtp",
                "kind": "vxlan",
                "IFLA_MASTER": 2**31 - 1,
                "IFLA_VXLAN_ID": 5,
                "IFLA_VXLAN_PORT": 4789,
                "IFLA_VXLAN_LOCAL": "192.0.2.1",
                "IFLA_VXLAN_TTL": 255,
                "IFLA_VXLAN_LEARNING": 0,
            },
        ),
        (
            VTEP | {"local": LOCAL6, "vni": 2**24 - 1, "port": 65535, "learning": True},
            {
                "IFLA_IFNAME": "red-vtp",
                "kind": "vxlan",
                "IFLA_VXLAN_ID": 2**24 - 1,
                "IFLA_VXLAN_PORT": 65535,
                "IFLA_VXLAN_LOCAL6": "fd00::1",
                "IFLA_VXLAN_LEARNING": 1,
            },
        ),
    ],
)
def test_a_create_holds_what_was_asked_and_is_exclusive(
    asked: dict[str, Any], told: dict[str, Any]
) -> None:
    data = raw(lambda batch: batch.link_create(**asked))
    assert header(data) == (NEWLINK, REQUEST | ACK | CREATE | EXCL)
    assert link_header(data) == (0, 0, 0)
    assert judged(data) == told


def test_a_create_may_be_up_at_once_and_answered_with_the_link() -> None:
    data = raw(lambda batch: batch.link_create("bridge", "b", up=True, echo=True))
    assert header(data) == (NEWLINK, REQUEST | ACK | CREATE | EXCL | ECHO)
    assert link_header(data) == (0, 1, 1)


def test_a_link_is_asked_for_by_name_or_altname() -> None:
    data = raw(lambda batch: batch.link_get_by_name("caf\udce9"))
    assert header(data) == (GETLINK, REQUEST | ACK)
    assert link_header(data) == (0, 0, 0)
    assert attributes(data) == {IFLA_IFNAME: b"caf\xe9", 29: struct.pack("=I", 8)}
    data = raw(lambda batch: batch.link_get_by_altname("any/name at all"))
    assert link_header(data) == (0, 0, 0)
    assert attributes(data) == {IFLA_ALT_IFNAME: b"any/name at all", 29: struct.pack("=I", 8)}


def test_a_link_dump_may_be_filtered_by_kind() -> None:
    data = raw(lambda batch: batch.link_dump("vxlan"))
    assert header(data) == (GETLINK, REQUEST | DUMP)
    assert attributes(data)[18] == struct.pack("=HH", 9, 1) + b"vxlan\0\0\0"
    assert attributes(data)[29] == struct.pack("=I", 8)


@pytest.mark.parametrize("ifindex", [0, 7])
def test_an_address_dump_is_all_zero_but_for_its_filters(ifindex: int) -> None:
    data = raw(lambda batch: batch.addr_dump(V6, ifindex))
    assert header(data) == (GETADDR, REQUEST | DUMP)
    assert data[16:] == struct.pack("=BBBBI", V6, 0, 0, 0, ifindex)


def test_a_token_is_given_by_ifindex_and_taken_by_itself() -> None:
    listed = struct.pack("=HH", 4 + len(TOKEN), IFLA_ALT_IFNAME) + TOKEN.encode() + b"\0"
    data = raw(lambda batch: batch.token_add(7, TOKEN))
    assert header(data) == (NEWLINKPROP, REQUEST | ACK)
    assert link_header(data) == (7, 0, 0)
    assert attributes(data) == {IFLA_PROP_LIST: listed}
    data = raw(lambda batch: batch.token_remove(TOKEN))
    assert header(data) == (DELLINKPROP, REQUEST | ACK)
    assert link_header(data) == (0, 0, 0)
    assert attributes(data) == {IFLA_ALT_IFNAME: TOKEN.encode(), IFLA_PROP_LIST: listed}


@pytest.mark.parametrize(
    ("asked", "flags", "told"),
    [
        ({"up": True}, (1, 1), {}),
        ({"up": False}, (0, 1), {}),
        ({"mtu": 1450}, (0, 0), {"IFLA_MTU": 1450}),
        ({"mac": MAC}, (0, 0), {"IFLA_ADDRESS": "02:aa:bb:cc:dd:ee"}),
        ({"controller": 0}, (0, 0), {"IFLA_MASTER": 0}),
        ({"group": 2**32 - 1}, (0, 0), {"IFLA_GROUP": 2**32 - 1}),
        (
            {"up": True, "mtu": 68, "controller": 7, "group": 0},
            (1, 1),
            {"IFLA_MTU": 68, "IFLA_MASTER": 7, "IFLA_GROUP": 0},
        ),
    ],
)
def test_settings_go_through_the_token(
    asked: dict[str, Any], flags: tuple[int, int], told: dict[str, Any]
) -> None:
    data = raw(lambda batch: batch.link_set(TOKEN, **asked))
    assert header(data) == (SETLINK, REQUEST | ACK)
    assert link_header(data) == (0, *flags)
    assert judged(data) == told | {"IFLA_ALT_IFNAME": TOKEN}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"kind": "bridge", "vlan_filtering": True}, {"IFLA_BR_VLAN_FILTERING": 1}),
        (
            {"kind": "vxlan", "local": LOCAL, "ttl": 0, "learning": True},
            {"IFLA_VXLAN_LOCAL": "192.0.2.1", "IFLA_VXLAN_TTL": 0, "IFLA_VXLAN_LEARNING": 1},
        ),
        ({"kind": "vxlan", "local": LOCAL6}, {"IFLA_VXLAN_LOCAL6": "fd00::1"}),
    ],
)
def test_properties_of_a_kind_go_through_the_token_and_create_nothing(
    asked: dict[str, Any], told: dict[str, Any]
) -> None:
    data = raw(lambda batch: batch.link_change(TOKEN, **asked))
    assert header(data) == (NEWLINK, REQUEST | ACK)
    assert link_header(data) == (0, 0, 0)
    assert judged(data) == told | {"IFLA_ALT_IFNAME": TOKEN, "kind": asked["kind"]}


def test_deletes_go_through_the_token_or_a_group() -> None:
    data = raw(lambda batch: batch.link_delete(TOKEN))
    assert header(data) == (DELLINK, REQUEST | ACK)
    assert link_header(data) == (0, 0, 0)
    assert attributes(data) == {IFLA_ALT_IFNAME: TOKEN.encode()}
    data = raw(lambda batch: batch.link_delete_group(4000000001))
    assert header(data) == (DELLINK, REQUEST | ACK)
    assert link_header(data) == (0, 0, 0)
    assert attributes(data) == {IFLA_GROUP: struct.pack("=I", 4000000001)}


@pytest.mark.parametrize(("address", "flags"), [("10.1.0.1", 0), ("fd00:1::1", 2)])
def test_an_address_is_added_with_its_protocol_and_deleted_in_full(
    address: str, flags: int
) -> None:
    family = V6 if ":" in address else V4
    packed = socket.inet_pton(family, address)
    data = raw(lambda batch: batch.addr_add(7, family, packed, 24, 98))
    assert header(data) == (NEWADDR, REQUEST | ACK | CREATE | EXCL)
    assert struct.unpack_from("=BBBBI", data, 16) == (family, 24, flags, 0, 7)
    assert attributes(data, 24) == {1: packed, 2: packed, 11: b"\x62"}
    data = raw(lambda batch: batch.addr_delete(7, "red-bri", family, packed, 24))
    assert header(data) == (DELADDR, REQUEST | ACK)
    assert struct.unpack_from("=BBBBI", data, 16) == (family, 24, flags, 0, 7)
    label = {3: b"red-bri"} if family == V4 else {}
    assert attributes(data, 24) == {1: packed, 2: packed} | label


def create(**changed: Any) -> Add:
    return lambda batch: batch.link_create(**VTEP | changed)


def bridge(**changed: Any) -> Add:
    return lambda batch: batch.link_create(**{"kind": "bridge", "name": "b"} | changed)


def set_(**settings: Any) -> Add:
    return lambda batch: batch.link_set(TOKEN, **settings)


def change(kind: str, **properties: Any) -> Add:
    return lambda batch: batch.link_change(TOKEN, kind, **properties)


def address(**changed: Any) -> Add:
    asked: dict[str, Any] = {
        "ifindex": 7,
        "family": V4,
        "address": bytes(4),
        "prefix_len": 24,
        "proto": 98,
    }
    return lambda batch: batch.addr_add(**asked | changed)


REFUSED: dict[str, tuple[Add, str]] = {
    "kind we don't make": (bridge(kind="tun"), "kind is 'tun', allowed are bridge, vrf, vxlan"),
    "no table": (bridge(kind="vrf"), "table is missing"),
    "no vni": (create(vni=None), "vni is missing"),
    "no port": (create(port=None), "port is missing"),
    "property of another kind": (bridge(vni=5), "vni is no property of a bridge"),
    "vni 0": (create(vni=0), "vni is 0, allowed are 1 to 16777215"),
    "vni too high": (create(vni=2**24), "vni is 16777216"),
    "port 0": (create(port=0), "port is 0, allowed are 1 to 65535"),
    "port too high": (create(port=70000), "port is 70000"),
    "ttl too high": (create(ttl=256), "ttl is 256"),
    "table 0": (bridge(kind="vrf", table=0), "table is 0"),
    "local of another family": (create(local=(V6, LOCAL[1])), "this family has 16 bytes"),
    "local of no family": (create(local=(0, LOCAL[1])), "family is 0"),
    "mtu 0": (bridge(mtu=0), "mtu is 0"),
    "mac too short": (bridge(mac=MAC[:5]), "mac is .*, it has 6 bytes"),
    "controller negative": (bridge(controller=-1), "controller is -1"),
    "nothing to set": (set_(), "nothing to set"),
    "group too high": (set_(group=2**32), "group is 4294967296"),
    "nothing to change": (change("vxlan"), "nothing to change"),
    "vrf can't be changed": (change("vrf"), "kind is 'vrf', allowed are bridge, vxlan"),
    "property that another kind has": (change("bridge", ttl=4), "ttl is no property of a bridge"),
    "everybody's group": (lambda batch: batch.link_delete_group(0), "group is 0"),
    "token by ifindex 0": (lambda batch: batch.token_add(0, TOKEN), "ifindex is 0"),
    "token by negative ifindex": (lambda batch: batch.token_add(-7, TOKEN), "ifindex is -7"),
    "address of /0": (address(prefix_len=0), "prefix_len is 0, allowed are 1 to 32"),
    "address of /33": (address(prefix_len=33), "prefix_len is 33"),
    "address of no link": (address(ifindex=0), "ifindex is 0"),
    "address of no protocol": (address(proto=0), "proto is 0, allowed are 1 to 255"),
    "address of another family": (address(family=V6), "address is .*, an address of this family"),
    "dump of all families": (lambda batch: batch.addr_dump(0), "family is 0"),
    "dump of a kind without a name": (lambda batch: batch.link_dump(""), "kind is ''"),
}


@pytest.mark.parametrize(("add", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_dangerous_request_is_refused_and_the_batch_is_as_before(add: Add, words: str) -> None:
    batch = Batch(1)
    batch.link_get(1)
    before = batch.finish()
    with pytest.raises(ValueError, match=words):
        add(batch)
    assert batch.finish() == before
    assert (len(batch), batch.next_seq) == (1, 2)


BY_NAME: dict[str, Callable[[Batch, Any], int]] = {
    "link_create": lambda batch, name: batch.link_create("bridge", name),
    "link_get_by_name": lambda batch, name: batch.link_get_by_name(name),
    "addr_delete": lambda batch, name: batch.addr_delete(7, name, V4, bytes(4), 24),
}
BY_TOKEN: dict[str, Callable[..., int]] = {
    "token_add": lambda batch, token: batch.token_add(7, token),
    "token_remove": lambda batch, token: batch.token_remove(token),
    "link_set": lambda batch, token: batch.link_set(token, up=True),
    "link_change": lambda batch, token: batch.link_change(token, "vxlan", ttl=1),
    "link_delete": lambda batch, token: batch.link_delete(token),
}


@pytest.mark.parametrize("add", BY_NAME.values(), ids=BY_NAME.keys())
@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "sixteen_bytes_xx", "ümlaut_ümlaut_", "a/b", "a:b", "a b", "a\tb", "a\nb",
        "a\x0bb", "veth%d", "a%b", "a\0b", "\0", "\udca0", None,
    ],
)  # fmt: skip
def test_what_is_no_name_of_a_link_is_refused(
    add: Callable[[Batch, Any], int], name: str | None
) -> None:
    batch = Batch(1)
    with pytest.raises(ValueError, match=r"name is|surrogates not allowed"):
        add(batch, name)
    assert len(batch) == 0


@pytest.mark.parametrize("add", BY_TOKEN.values(), ids=BY_TOKEN.keys())
@pytest.mark.parametrize(
    "token",
    [
        "", "netreeve.", "netreeve.123456", "red-vtp", "flannel.1-is-a-long-altname",
        "Netreeve.0123456789", "netreeve.0123456789.a b", "netreeve.0123456789.a/b",
        "netreeve.0123456789\0", "netreeve.0123456789.ü", "netreeve." + 119 * "x", None,
    ],
)  # fmt: skip
def test_what_is_no_token_of_ours_selects_nothing(
    add: Callable[[Batch, Any], int], token: str | None
) -> None:
    batch = Batch(1)
    with pytest.raises(ValueError, match="token is"):
        add(batch, token)
    assert len(batch) == 0


@pytest.mark.parametrize("token", ["netreeve.1234567", "netreeve." + 118 * "x"])
def test_a_token_is_longer_than_any_name(token: str) -> None:
    assert len(token) in (16, 127)
    for add in BY_TOKEN.values():
        data = raw(partial(add, token=token))
        assert token.encode() in data


def test_changes_and_dumps_know_of_each_other() -> None:
    batch = Batch(1)
    batch.link_delete(TOKEN)
    with pytest.raises(ValueError, match="a dump stands alone"):
        batch.link_dump()
    with pytest.raises(ValueError, match="a dump stands alone"):
        batch.addr_dump(V4)
    batch = Batch(1)
    batch.addr_dump(V4)
    with pytest.raises(ValueError, match="a dump stands alone"):
        batch.link_delete(TOKEN)


NAME = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=15)


@given(
    name=NAME,
    mtu=st.none() | st.integers(1, 2**31 - 1),
    mac=st.none() | st.binary(min_size=6, max_size=6),
    vni=st.integers(1, 2**24 - 1),
    ttl=st.none() | st.integers(0, 255),
    local=st.sampled_from([None, LOCAL, LOCAL6]),
)
def test_lengths_of_any_mix_add_up(
    name: str,
    mtu: int | None,
    mac: bytes | None,
    vni: int,
    ttl: int | None,
    local: tuple[int, bytes] | None,
) -> None:
    batch = Batch(1)
    for port in (1, 2):
        batch.link_create("vxlan", name, mtu=mtu, mac=mac, vni=vni, port=port, ttl=ttl, local=local)
    batch.link_delete(TOKEN)
    marshal: Any = MarshalRtnl()
    told = list(marshal.parse(batch.finish()))
    assert [message["event"] for message in told] == [
        "RTM_NEWLINK", "RTM_NEWLINK", "RTM_DELLINK"
    ]  # fmt: skip
    assert [message.get_attr("IFLA_IFNAME") for message in told] == [name, name, None]
    data = told[1].get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA")
    assert (data.get_attr("IFLA_VXLAN_ID"), data.get_attr("IFLA_VXLAN_PORT")) == (vni, 2)
    assert (told[0].get_attr("IFLA_MTU"), data.get_attr("IFLA_VXLAN_TTL")) == (mtu, ttl)
