"""The decoder against two judges (a slow one, and pyroute2), and against bad bytes."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.marshal import MarshalRtnl  # type: ignore[import-untyped]

from netreeve._ext import wire
from tests.support import captures, messages, slow_decoder

RTM_NEWADDR, RTM_NEWROUTE = 20, 24
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_DUMP_INTR, NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x10, 0x100, 0x200
IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_WIRELESS, IFLA_LINKINFO = 3, 4, 10, 11, 18
RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_MULTIPATH, RTA_TABLE, RTA_VIA = 1, 4, 5, 9, 15, 18
OPERSTATES = ("UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP")
LINK = messages.link(10, "cali1", up=True)


def assert_same(data: bytes) -> None:
    """The fast decoder and the slow one agree, member by member."""
    fast, slow = wire.decode(data), slow_decoder.decode(data)
    assert (fast.faults, fast.ignored, fast.interrupted) == (
        slow.faults,
        slow.ignored,
        slow.interrupted,
    )
    assert [
        {"message": type(found).__name__}
        | {key: getattr(found, key) for key in wanted if key != "message"}
        for found, wanted in zip(fast.messages, slow.messages, strict=True)
    ] == slow.messages


def only(data: bytes) -> Any:
    decoded = wire.decode(data)
    assert (decoded.faults, decoded.ignored) == (0, 0)
    (message,) = decoded.messages
    return message


def link(ifindex: int, *attributes: bytes, family: int = 0, kind: int = 16) -> bytes:
    header = struct.pack("=BxHiII", family, 1, ifindex, 1, 0)
    return messages.message(kind, header + b"".join(attributes))


def route(*attributes: bytes, family: int = socket.AF_INET, dst_len: int = 32) -> bytes:
    header = struct.pack("=BBBBBBBBI", family, dst_len, 0, 0, 254, 98, 253, 1, 0)
    return messages.message(RTM_NEWROUTE, header + b"".join(attributes))


def error(errno: int, request: bytes, *tlvs: bytes, flags: int) -> bytes:
    body = struct.pack("=i", -errno) + request + bytes(-len(request) % 4) + b"".join(tlvs)
    return messages.message(NLMSG_ERROR, body, flags=flags, seq=7)


NAME = messages.attribute(IFLA_IFNAME, b"x\0")
DST = messages.attribute(RTA_DST, socket.inet_aton("10.65.0.2"))


@pytest.mark.parametrize("capture", captures.NAMES)
def test_every_datagram_decodes_as_the_slow_decoder_does_it(capture: str) -> None:
    for record in captures.load(capture):
        assert_same(record.data)
        assert wire.decode(record.data).faults == int(record.truncated)


def test_every_link_decodes_as_pyroute2_does_it() -> None:
    marshal = MarshalRtnl()
    judged = 0
    for data in captures.messages():
        if data[4] in (16, 17) and data[5] == 0 and data[16] == 0:
            (theirs,) = marshal.parse(data)
            ours = only(data)
            name = theirs.get_attr("IFLA_IFNAME")  # bytes where it isn't UTF-8
            assert {
                "deleted": theirs["event"] == "RTM_DELLINK",
                "ifindex": theirs["index"],
                "flags": theirs["flags"],
                "name": name if isinstance(name, str) else name.decode("utf-8", "surrogateescape"),
                "kind": theirs.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") or "",
                "mtu": theirs.get_attr("IFLA_MTU") or 0,
                "controller": theirs.get_attr("IFLA_MASTER") or 0,
                "operstate": OPERSTATES.index(theirs.get_attr("IFLA_OPERSTATE") or "UNKNOWN"),
                "mac": bytes.fromhex((theirs.get_attr("IFLA_ADDRESS") or "").replace(":", "")),
                "up_count": theirs.get_attr("IFLA_CARRIER_UP_COUNT") or 0,
                "down_count": theirs.get_attr("IFLA_CARRIER_DOWN_COUNT") or 0,
            } == {
                "deleted": ours.deleted,
                "ifindex": ours.ifindex,
                "flags": ours.flags,
                "name": ours.name,
                "kind": ours.kind,
                "mtu": ours.mtu,
                "controller": ours.controller,
                "operstate": ours.operstate,
                "mac": ours.mac,
                "up_count": ours.up_count,
                "down_count": ours.down_count,
            }
            assert ours.has_counts == (theirs.get_attr("IFLA_CARRIER_UP_COUNT") is not None)
            judged += 1
    assert judged > 1000


def test_every_route_decodes_as_pyroute2_does_it() -> None:
    marshal = MarshalRtnl()
    judged = 0
    for data in captures.messages():
        if data[4] in (24, 25) and data[5] == 0:
            (theirs,) = marshal.parse(data)
            ours = only(data)
            any_address = "0.0.0.0" if ours.family == socket.AF_INET else "::"
            assert (
                theirs["family"],
                theirs.get_attr("RTA_DST") or any_address,
                theirs["dst_len"],
                theirs.get_attr("RTA_TABLE"),
                theirs.get_attr("RTA_PRIORITY") or 0,
                theirs["proto"],
                theirs.get_attr("RTA_OIF") or 0,
                len(theirs.get_attr("RTA_MULTIPATH") or ()),
            ) == (
                ours.family,
                socket.inet_ntop(ours.family, ours.dst),
                ours.prefix_len,
                ours.table,
                ours.metric,
                ours.protocol,
                ours.oif,
                ours.nexthops,
            )
            judged += 1
    assert judged > 100


def test_nothing_is_read_behind_the_end() -> None:
    """Every prefix of every message, and wrong lengths, in front of an unreadable page."""
    command = [sys.executable, "-m", "tests.support.guard"]
    done = subprocess.run([*command, "wire"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["faults"] > 1_000_000
    assert counts["messages"] > 100_000
    # And the guard guards:
    over = subprocess.run([*command, "overread"], capture_output=True, check=False)
    assert over.returncode == -signal.SIGSEGV


@given(data=st.data())
def test_damaged_messages_decode_as_the_slow_decoder_does_it(data: st.DataObject) -> None:
    shapes = [shape for shape in captures.shapes() if len(shape) < 2048]
    picked = data.draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=3))
    raw = bytearray(b"".join(shape + bytes(-len(shape) % 4) for shape in picked))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    assert_same(bytes(raw[:end]))


@given(data=st.binary(max_size=200))
def test_any_bytes_decode_as_the_slow_decoder_does_it(data: bytes) -> None:
    assert_same(data)


def test_nothing_in_nothing_out() -> None:
    decoded = wire.decode(b"")
    assert (decoded.messages, decoded.faults, decoded.ignored) == ([], 0, 0)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"cali1\0", "cali1"),
        (b"cali1", "cali1"),
        (b"fifteen_bytes_x\0", "fifteen_bytes_x"),
        (b"fifteen_bytes_x", "fifteen_bytes_x"),
        (b"\xff\xc3", "\udcff\udcc3"),
        ("ü".encode(), "ü"),
    ],
)
def test_names_are_any_bytes_and_a_nul_may_be_missing(raw: bytes, told: str) -> None:
    found = only(link(1, messages.attribute(IFLA_IFNAME, raw)))
    assert found.name == told
    assert found.name.encode("utf-8", "surrogateescape") == raw.rstrip(b"\0")


MALFORMED = {
    "ifindex 0": link(0, NAME),
    "ifindex negative": link(-1, NAME),
    "no name": link(1),
    "name empty": link(1, messages.attribute(IFLA_IFNAME, b"\0")),
    "name of 16 bytes": link(1, messages.attribute(IFLA_IFNAME, b"sixteen_bytes_xx")),
    "bytes after the NUL": link(1, messages.attribute(IFLA_IFNAME, b"a\0b\0")),
    "mtu of 2 bytes": link(1, NAME, messages.attribute(IFLA_MTU, b"\1\0")),
    "mtu of 8 bytes": link(1, NAME, messages.attribute(IFLA_MTU, bytes(8))),
    "controller negative": link(1, NAME, messages.attribute(IFLA_MASTER, b"\xff" * 4)),
    "header cut": messages.message(16, bytes(12)),
    "attribute header cut": link(1, NAME, b"\x08\0"),
    "attribute of length 0": link(1, NAME, bytes(4)),
    "attribute past the end": link(1, NAME, struct.pack("=HH", 9, 99) + bytes(4)),
    "linkinfo past its end": link(
        1, NAME, messages.attribute(IFLA_LINKINFO, struct.pack("=HH", 9, 1) + bytes(4))
    ),
    "dst_len 33": route(DST, dst_len=33),
    "dst absent": route(),
    "dst of 16 bytes": route(messages.attribute(RTA_DST, bytes(16))),
    "host bits": route(DST, dst_len=24),
    "oif negative": route(DST, messages.attribute(RTA_OIF, b"\xff" * 4)),
    "gateway of 16 bytes": route(DST, messages.attribute(RTA_GATEWAY, bytes(16))),
    "via of 1 byte": route(DST, messages.attribute(RTA_VIA, b"\2")),
    "nexthop of length 0": route(DST, messages.attribute(RTA_MULTIPATH, bytes(16))),
    "nexthop past the end": route(
        DST, messages.attribute(RTA_MULTIPATH, struct.pack("=HBBi", 9, 0, 0, 1))
    ),
    "nexthop cut": route(DST, messages.attribute(RTA_MULTIPATH, b"\x08\0\0\0")),
    "addr ifindex 0": messages.message(RTM_NEWADDR, struct.pack("=BBBBI", 2, 24, 0, 0, 0)),
    "addr prefix 33": messages.message(RTM_NEWADDR, struct.pack("=BBBBI", 2, 33, 0, 0, 1)),
    "error without a request": messages.message(NLMSG_ERROR, bytes(4)),
    "error positive": error(-5, bytes(16), flags=NLM_F_CAPPED),
    "error beyond MAX_ERRNO": error(4096, bytes(16), flags=NLM_F_CAPPED),
    "error whose request is longer": error(
        22, struct.pack("=IHHII", 99, 16, 5, 7, 0), flags=NLM_F_ACK_TLVS
    ),
    "done without errno": messages.message(NLMSG_DONE, b""),
}


@pytest.mark.parametrize("bad", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_is_one_fault_and_its_neighbours_are_handled(bad: bytes) -> None:
    decoded = wire.decode(LINK + bad + LINK)
    assert decoded.faults == 1
    assert decoded.ignored == 0
    assert decoded.messages == [only(LINK), only(LINK)]
    assert_same(LINK + bad + LINK)


@pytest.mark.parametrize("length", [0, 15, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_message_length_that_cannot_be_costs_the_rest_of_the_datagram(length: int) -> None:
    decoded = wire.decode(LINK + struct.pack("=I", length) + LINK[4:] + LINK)
    assert decoded.messages == [only(LINK)]
    assert decoded.faults == 1


def test_the_last_message_may_be_unaligned() -> None:
    short = messages.attribute(IFLA_IFNAME, b"ab\0")[:-1]
    data = link(1, short)
    assert only(data[: struct.unpack_from("=I", data)[0]]).name == "ab"


IGNORED = {
    "bridge port": messages.link(10, "cali1", up=True, family=socket.AF_BRIDGE),
    "left its bridge": messages.link(10, "cali1", family=socket.AF_BRIDGE, deleted=True),
    "wireless": link(10, NAME, messages.attribute(IFLA_WIRELESS, b"\1\2")),
    "wireless without a name": link(10, messages.attribute(IFLA_WIRELESS, b"\1\2")),
    "MPLS route": route(family=28),
    "neighbour": messages.message(28, bytes(12)),
    "noop": messages.message(1, b""),
}


@pytest.mark.parametrize("other", IGNORED.values(), ids=IGNORED.keys())
def test_what_is_not_for_us_is_no_fault(other: bytes) -> None:
    decoded = wire.decode(LINK + other + LINK)
    assert (len(decoded.messages), decoded.faults, decoded.ignored) == (2, 0, 1)


def test_of_equal_attributes_the_last_wins_and_absent_means_not_set() -> None:
    kinds = [messages.attribute(IFLA_LINKINFO, messages.attribute(1, k)) for k in (b"vxlan", b"a")]
    names = [messages.attribute(IFLA_IFNAME, n) for n in (b"longer", b"b")]
    found = only(link(1, *names, *kinds))
    assert (found.name, found.kind) == ("b", "a")
    found = only(link(1, *names, *kinds, messages.attribute(IFLA_LINKINFO, b"")))
    assert (found.kind, found.mtu, found.controller, found.mac) == ("", 0, 0, b"")
    assert not found.has_counts


def test_the_nested_flag_is_no_part_of_a_type() -> None:
    kind = messages.attribute(IFLA_LINKINFO | 0x8000, messages.attribute(1, b"veth\0"))
    assert only(link(1, NAME, kind)).kind == "veth"


def test_a_move_is_told_from_a_deletion() -> None:
    deleted = [
        message
        for record in captures.load("03_netns.A")
        for message in wire.decode(record.data).messages
        if isinstance(message, wire.LinkMessage) and message.deleted
    ]
    assert {message.moved for message in deleted} == {True, False}


def test_an_interrupted_dump_is_told() -> None:
    assert not wire.decode(messages.done()).interrupted
    assert wire.decode(messages.done(flags=NLM_F_DUMP_INTR)).interrupted
    # Also on a message that is not for us.
    assert wire.decode(messages.message(28, b"", flags=NLM_F_DUMP_INTR)).interrupted


def test_nexthops_are_counted() -> None:
    hop = struct.pack("=HBBi", 16, 0, 0, 3) + messages.attribute(RTA_GATEWAY, bytes(4))
    found = only(route(DST, messages.attribute(RTA_MULTIPATH, 3 * hop)))
    assert (found.nexthops, found.oif, found.has_gateway) == (3, 0, False)


def test_the_table_attribute_beats_the_byte_in_the_header() -> None:
    assert only(route(DST)).table == 254
    table = messages.attribute(RTA_TABLE, struct.pack("=I", 70000))
    assert only(route(DST, table)).table == 70000


REQUEST = struct.pack("=IHHII", 21, 24, 5, 7, 0) + b"\1\2\3\4\5"
TEXT = messages.attribute(1, b"Nexthop device is not up\0")
OFFSET = messages.attribute(2, struct.pack("=I", 28))


@pytest.mark.parametrize(
    ("data", "errno", "text"),
    [
        (error(0, REQUEST[:16], flags=NLM_F_CAPPED), 0, ""),
        (error(17, REQUEST[:16], flags=NLM_F_CAPPED), 17, ""),
        (error(17, REQUEST, flags=0), 17, ""),
        (
            error(100, REQUEST[:16], TEXT, flags=NLM_F_CAPPED | NLM_F_ACK_TLVS),
            100,
            "Nexthop device is not up",
        ),
        (error(100, REQUEST, OFFSET, TEXT, flags=NLM_F_ACK_TLVS), 100, "Nexthop device is not up"),
        # Without the flag there are none, whatever the bytes look like.
        (error(100, REQUEST, TEXT, flags=0), 100, ""),
        (messages.message(NLMSG_DONE, bytes(4), seq=7, flags=2), 0, ""),
        (
            messages.message(
                NLMSG_DONE, struct.pack("=i", -2) + TEXT, seq=7, flags=2 | NLM_F_ACK_TLVS
            ),
            2,
            "Nexthop device is not up",
        ),
        (
            error(
                22,
                REQUEST,
                messages.attribute(1, b"\xff"),
                flags=NLM_F_ACK_TLVS,
            ),
            22,
            "\ufffd",
        ),
    ],
)
def test_answers_in_all_their_forms(data: bytes, errno: int, text: str) -> None:
    found = only(data)
    assert (found.seq, found.errno, found.text) == (7, errno, text)


def test_messages_are_values() -> None:
    one, same, other = only(LINK), only(LINK), only(messages.link(11, "cali1", up=True))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "cali1"
    assert repr(one).startswith("LinkMessage(deleted=False, ifindex=10, name='cali1', kind='veth'")
    with pytest.raises(AttributeError):
        one.ifindex = 12
    assert only(messages.done(seq=3)) == only(messages.done(seq=3))
    assert repr(only(messages.done(seq=3))) == "Answer(seq=3, errno=0, text='')"
    assert only(route(DST)) != only(route(DST, messages.attribute(RTA_OIF, b"\1\0\0\0")))
    with pytest.raises(TypeError, match="made by decoding"):
        wire.Answer()
