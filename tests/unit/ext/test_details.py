"""The details of links against two judges (a slow one, and pyroute2), and against bad bytes."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.marshal import MarshalRtnl  # type: ignore[import-untyped]

from netreeve._ext import details, wire
from tests.support import captures, messages, slow_decoder

IFLA_IFNAME, IFLA_LINK, IFLA_GROUP, IFLA_LINK_NETNSID = 3, 5, 27, 37
IFLA_LINKINFO, IFLA_PROP_LIST, IFLA_ALT_IFNAME = 18, 52, 53
VXLAN_VNI, VXLAN_LOCAL, VXLAN_TTL, VXLAN_LEARNING, VXLAN_PORT, VXLAN_LOCAL6 = 1, 4, 5, 7, 15, 17
V4, V6 = socket.AF_INET, socket.AF_INET6


def assert_same(data: bytes) -> None:
    """The fast decoder and the slow one agree, member by member."""
    fast, slow = details.decode_links(data), slow_decoder.decode_links(data)
    assert (fast.faults, fast.ignored, fast.interrupted) == (
        slow.faults,
        slow.ignored,
        slow.interrupted,
    )
    assert [
        {"message": type(found).__name__}
        | {key: getattr(found, key) for key in wanted if key != "message"}
        for found, wanted in zip(fast.items, slow.messages, strict=True)
    ] == slow.messages


def only(data: bytes) -> Any:
    decoded = details.decode_links(data)
    assert (decoded.faults, decoded.ignored) == (0, 0)
    (item,) = decoded.items
    return item


def vxlan(*properties: tuple[int, bytes]) -> bytes:
    return messages.details(9, "red-vtp", messages.kind_info("vxlan", *properties))


def altnames(*names: bytes) -> bytes:
    listed = b"".join(messages.attribute(IFLA_ALT_IFNAME, name) for name in names)
    return messages.details(9, "x", messages.attribute(IFLA_PROP_LIST, listed))


def number(value: int) -> bytes:
    return struct.pack("=I", value)


@pytest.mark.parametrize("capture", captures.NAMES)
def test_every_datagram_decodes_as_the_slow_decoder_does_it(capture: str) -> None:
    for record in captures.load(capture):
        assert_same(record.data)
        assert details.decode_links(record.data).faults == int(record.truncated)


def test_each_kind_of_ours_is_told_in_full() -> None:
    made = messages.of_our_kinds()
    for data in made:
        assert_same(data)
    found = [only(data) for data in made]
    for link in found:
        assert (link.admin_up, link.mtu, link.controller, link.group) == (True, 1450, 7, 4000000001)
        assert link.altnames == ("netreeve.0123456789.red", "second")
        assert (link.lower, link.remote_lower, link.seq, link.portid) == (12, True, 9, 77)
    assert [
        {
            name: value
            for name in (
                "table", "vlan_filtering", "vni", "port", "local", "ttl", "learning", "external",
                "tap", "persist",
            )
            if (value := getattr(link, name)) is not None
        }
        for link in found
    ] == [
        {"table": 70000},
        {"vlan_filtering": True},
        {"vni": 5, "port": 4789, "local": (V4, socket.inet_aton("192.0.2.1")), "ttl": 64}
        | {"learning": True, "external": False},
        {"vni": 5, "port": 4789, "local": (V6, socket.inet_pton(V6, "fd00::1")), "ttl": 64}
        | {"learning": True, "external": False},
        {"tap": True, "persist": True},
        {"tap": False, "persist": False},
    ]  # fmt: skip


def test_every_link_decodes_as_pyroute2_does_it() -> None:
    marshal = MarshalRtnl()
    kinds = set()
    for data in (*captures.messages(), *messages.of_our_kinds()):
        if data[4] != 16 or data[5] != 0 or data[16] != 0:
            continue
        (theirs,) = marshal.parse(data)
        ours = only(data)
        listed = theirs.get_attr("IFLA_PROP_LIST")
        names = [value for _, value in listed["attrs"]] if listed else []
        assert (
            theirs.get_attr("IFLA_GROUP") or 0,
            theirs.get_attr("IFLA_LINK") or 0,
            theirs.get_attr("IFLA_LINK_NETNSID") is not None,
            theirs["flags"] & 1 == 1,
            tuple(
                name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
                for name in names
            ),
        ) == (ours.group, ours.lower, ours.remote_lower, ours.admin_up, ours.altnames)
        info = theirs.get_attr("IFLA_LINKINFO")
        told: Any = info.get_attr("IFLA_INFO_DATA") if info is not None else None
        kinds.add(ours.kind)
        if ours.kind == "vrf":
            assert told.get_attr("IFLA_VRF_TABLE") == ours.table
        elif ours.kind == "bridge":
            filtering = told.get_attr("IFLA_BR_VLAN_FILTERING")
            assert filtering == ours.vlan_filtering
        elif ours.kind == "vxlan":
            local, local6 = told.get_attr("IFLA_VXLAN_LOCAL"), told.get_attr("IFLA_VXLAN_LOCAL6")
            packed = (V4, socket.inet_aton(local)) if local else None
            assert ((V6, socket.inet_pton(V6, local6)) if local6 else packed) == ours.local
            assert (
                told.get_attr("IFLA_VXLAN_ID"),
                told.get_attr("IFLA_VXLAN_PORT"),
                told.get_attr("IFLA_VXLAN_TTL"),
                told.get_attr("IFLA_VXLAN_LEARNING"),
                told.get_attr("IFLA_VXLAN_COLLECT_METADATA"),
            ) == (ours.vni, ours.port, ours.ttl, ours.learning, ours.external)
        elif ours.kind == "tun":
            mode = told.get_attr("IFLA_TUN_TYPE")
            assert (mode == 2, bool(told.get_attr("IFLA_TUN_PERSIST"))) == (ours.tap, ours.persist)
    assert kinds >= {"vrf", "bridge", "vxlan", "tun", "veth", ""}


def test_nothing_is_read_behind_the_end() -> None:
    command = [sys.executable, "-m", "tests.support.guard", "details"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["faults"] > 100_000
    assert counts["messages"] > 10_000


@given(data=st.data())
def test_damaged_messages_decode_as_the_slow_decoder_does_it(data: st.DataObject) -> None:
    shapes = [*messages.of_our_kinds()]
    shapes += [shape for shape in captures.shapes() if len(shape) < 2048]
    picked = data.draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=3))
    raw = bytearray(b"".join(shape + bytes(-len(shape) % 4) for shape in picked))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    assert_same(bytes(raw[:end]))


@given(data=st.binary(max_size=200))
def test_any_bytes_decode_as_the_slow_decoder_does_it(data: bytes) -> None:
    assert_same(data)


@pytest.mark.parametrize("raw", [b"", b"a/b c", b"42", b"x" * 127, "ü".encode(), b"\xff"])
@pytest.mark.parametrize("end", [b"", b"\0"])
def test_an_altname_is_any_bytes_and_a_nul_may_be_missing(raw: bytes, end: bytes) -> None:
    found = only(altnames(b"first\0", raw + end))
    assert [name.encode("utf-8", "surrogateescape") for name in found.altnames] == [b"first", raw]


MALFORMED = {
    "altname of 128 bytes": altnames(b"x" * 128),
    "altname with something behind its NUL": altnames(b"x\0y"),
    "group of 2 bytes": messages.details(9, "x", messages.attribute(IFLA_GROUP, bytes(2))),
    "lower negative": messages.details(9, "x", messages.attribute(IFLA_LINK, number(2**31))),
    "netnsid of 1 byte": messages.details(9, "x", messages.attribute(IFLA_LINK_NETNSID, b"\0")),
    "vni of 3 bytes": vxlan((VXLAN_VNI, bytes(3))),
    "port of 4 bytes": vxlan((VXLAN_PORT, bytes(4))),
    "local of 16 bytes": vxlan((VXLAN_LOCAL, bytes(16))),
    "local6 of 4 bytes": vxlan((VXLAN_LOCAL6, bytes(4))),
    "ttl of 4 bytes": vxlan((VXLAN_TTL, bytes(4))),
    "vrf table of 1 byte": messages.details(9, "x", messages.kind_info("vrf", (1, b"\1"))),
    "no name": messages.details(9, ""),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_link_is_one_fault_and_the_next_is_read(data: bytes) -> None:
    assert_same(data)
    decoded = details.decode_links(data + bytes(-len(data) % 4) + altnames(b"y"))
    assert (decoded.faults, decoded.ignored, len(decoded.items)) == (1, 0, 1)


def test_what_a_foreign_kind_says_of_itself_is_left_alone() -> None:
    found = only(messages.details(9, "x", messages.kind_info("vrf2", (1, b"not a table"))))
    assert (found.kind, found.table) == ("vrf2", None)


def test_the_last_of_equal_attributes_counts() -> None:
    data = messages.details(
        9,
        "x",
        messages.kind_info("vxlan", (VXLAN_VNI, number(5)), (VXLAN_LEARNING, b"\1")),
        messages.kind_info("vxlan", (VXLAN_VNI, number(6))),
        messages.attribute(IFLA_PROP_LIST, messages.attribute(IFLA_ALT_IFNAME, b"old")),
        messages.attribute(IFLA_PROP_LIST, messages.attribute(IFLA_ALT_IFNAME, b"new")),
    )
    found = only(data)
    assert (found.vni, found.learning, found.altnames) == (6, None, ("new",))
    assert_same(data)


def test_one_reader_serves_links_addresses_and_answers() -> None:
    header = struct.pack("=BBBBI", V4, 24, 0x80, 0, 9)
    local = messages.attribute(2, socket.inet_aton("10.1.0.1"))
    address = messages.message(20, header + local + messages.attribute(11, b"\x62"))
    deleted = messages.link(9, "x", up=True, deleted=True)
    route = messages.message(24, bytes(12))
    parts = [address, altnames(b"y"), deleted, route, messages.done(seq=4)]
    decoded = details.decode_links(b"".join(part + bytes(-len(part) % 4) for part in parts))
    assert [type(item).__name__ for item in decoded.items] == [
        "AddrMessage", "LinkDetails", "Answer"
    ]  # fmt: skip
    assert (decoded.faults, decoded.ignored, decoded.interrupted) == (0, 2, False)
    found = decoded.items[0]
    assert isinstance(found, wire.AddrMessage)
    assert (found.proto, found.address) == (98, socket.inet_aton("10.1.0.1"))


def test_details_are_values_of_the_link_and_not_of_the_message() -> None:
    one, other = (only(messages.details(9, "x", seq=seq, portid=seq)) for seq in (1, 2))
    assert (one.seq, other.seq) == (1, 2)
    assert one == other
    assert hash(one) == hash(other)
    assert one != only(messages.details(9, "x", messages.attribute(IFLA_GROUP, number(1))))
    assert repr(one).startswith("LinkDetails(ifindex=9, name='x', kind='', flags=")
    with pytest.raises(AttributeError):
        one.mtu = 1
    with pytest.raises(TypeError):
        details.LinkDetails()
