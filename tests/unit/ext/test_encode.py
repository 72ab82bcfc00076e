"""Requests, judged by pyroute2's decoder, and the shapes that are refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from pyroute2.netlink.rtnl.marshal import MarshalRtnl  # type: ignore[import-untyped]

from netreeve._ext.encode import Batch

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
NEWROUTE, DELROUTE = 24, 25
V4, V6 = socket.AF_INET, socket.AF_INET6
ROUTE: dict[str, Any] = {
    "family": V4,
    "dst": socket.inet_aton("10.65.0.2"),
    "prefix_len": 32,
    "table": 254,
    "tos": 0,
    "metric": 1024,
    "protocol": 98,
    "oif": 7,
}
ROUTE6 = ROUTE | {"family": V6, "dst": socket.inet_pton(V6, "fd00:65::2"), "prefix_len": 128}


def decoded(batch: Batch) -> list[Any]:
    return list(MarshalRtnl().parse(batch.finish()))


def attributes(message: Any) -> dict[str, Any]:
    return dict(message["attrs"])


@pytest.mark.parametrize(
    ("change", "event", "flags"),
    [
        ("route_add", "RTM_NEWROUTE", REQUEST | ACK | CREATE | EXCL),
        ("route_replace", "RTM_NEWROUTE", REQUEST | ACK | REPLACE),
        ("route_delete", "RTM_DELROUTE", REQUEST | ACK),
    ],
)
@pytest.mark.parametrize(
    ("route", "dst", "scope"), [(ROUTE, "10.65.0.2", 253), (ROUTE6, "fd00:65::2", 0)]
)
def test_a_route_request_holds_what_was_asked(
    change: str, event: str, flags: int, route: dict[str, Any], dst: str, scope: int
) -> None:
    batch = Batch(41)
    assert getattr(batch, change)(**route | {"tos": 4, "table": 70000, "metric": 2**32 - 1}) == 41
    (message,) = decoded(batch)
    assert message["event"] == event
    header = message["header"]
    assert (header["sequence_number"], header["flags"], header["pid"]) == (41, flags, 0)
    assert {
        key: message[key]
        for key in ("family", "dst_len", "src_len", "tos", "table", "proto", "scope", "type")
    } == {
        "family": route["family"],
        "dst_len": route["prefix_len"],
        "src_len": 0,
        "tos": 4,
        "table": 0,
        "proto": 98,
        "scope": scope,
        "type": 1,
    }
    assert message["flags"] == 0
    assert attributes(message) == {
        "RTA_DST": dst,
        "RTA_TABLE": 70000,
        "RTA_PRIORITY": 2**32 - 1,
        "RTA_OIF": 7,
    }


def test_a_link_is_asked_for_by_ifindex_alone() -> None:
    batch = Batch(1)
    batch.link_get(2**31 - 1)
    (message,) = decoded(batch)
    assert message["event"] == "RTM_GETLINK"
    assert message["header"]["flags"] == REQUEST | ACK
    assert (message["family"], message["index"]) == (0, 2**31 - 1)
    assert attributes(message) == {"IFLA_EXT_MASK": 8}


def test_a_link_dump_always_has_an_extension_mask() -> None:
    batch = Batch(1)
    batch.link_dump()
    (message,) = decoded(batch)
    assert message["event"] == "RTM_GETLINK"
    assert message["header"]["flags"] == REQUEST | DUMP
    assert (message["family"], message["index"]) == (0, 0)
    assert attributes(message) == {"IFLA_EXT_MASK": 8}


@pytest.mark.parametrize(
    ("filters", "protocol", "found"),
    [
        ({}, 0, {}),
        ({"protocol": 98}, 98, {}),
        ({"table": 70000, "protocol": 98}, 98, {"RTA_TABLE": 70000}),
    ],
)
def test_a_route_dump_is_all_zero_but_for_its_filters(
    filters: dict[str, int], protocol: int, found: dict[str, int]
) -> None:
    batch = Batch(1)
    batch.route_dump(V6, **filters)
    (message,) = decoded(batch)
    assert message["event"] == "RTM_GETROUTE"
    assert message["header"]["flags"] == REQUEST | DUMP
    raw = batch.finish()[16:28]
    assert raw == struct.pack("=BBBBBBBBI", V6, 0, 0, 0, 0, protocol, 0, 0, 0)
    assert attributes(message) == found


def test_only_the_last_request_asks_for_an_acknowledgement() -> None:
    batch = Batch(5)
    for oif in (1, 2, 3):
        batch.route_add(**ROUTE | {"oif": oif})
    batch.route_delete(**ROUTE6)
    data = batch.finish()
    assert [message["header"]["flags"] & ACK for message in decoded(batch)] == [0, 0, 0, ACK]
    assert [message["header"]["sequence_number"] for message in decoded(batch)] == [5, 6, 7, 8]
    assert (len(batch), batch.first_seq, batch.last_seq, batch.next_seq) == (4, 5, 8, 9)
    assert batch.finish() == data
    # Not a trace of it stays: the batch can go on.
    batch.route_add(**ROUTE)
    assert [message["header"]["flags"] & ACK for message in decoded(batch)] == [0, 0, 0, 0, ACK]


def test_sequence_numbers_wrap_and_skip_0() -> None:
    batch = Batch(2**32 - 2)
    assert [batch.link_get(1) for _ in range(3)] == [2**32 - 2, 2**32 - 1, 1]
    assert (batch.first_seq, batch.last_seq, batch.next_seq) == (2**32 - 2, 1, 2)
    batch = Batch(2**32 - 1)
    batch.link_get(1)
    assert (batch.last_seq, batch.next_seq) == (2**32 - 1, 1)


@pytest.mark.parametrize("change", ["route_add", "route_replace", "route_delete"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"metric": 0}, "metric is 0, allowed are 1 to 4294967295"),
        ({"metric": 2**32}, "metric is 4294967296"),
        ({"metric": -1}, "metric is -1"),
        ({"metric": 2**70}, "metric is 1180591620717411303424"),
        ({"protocol": 0}, "protocol is 0, allowed are 1 to 255"),
        ({"protocol": 256}, "protocol is 256"),
        ({"oif": 0}, "oif is 0, allowed are 1 to 2147483647"),
        ({"oif": -7}, "oif is -7"),
        ({"oif": 2**31}, "oif is 2147483648"),
        ({"table": 0}, "table is 0"),
        ({"table": 2**32}, "table is 4294967296"),
        ({"tos": 256}, "tos is 256"),
        ({"prefix_len": 33}, "prefix_len is 33, allowed are 0 to 32"),
        ({"prefix_len": -1}, "prefix_len is -1"),
        ({"prefix_len": 30}, "bits behind its /30"),
        ({"prefix_len": 8}, "bits behind its /8"),
        ({"prefix_len": 0}, "bits behind its /0"),
        ({"dst": b"\x0a\x41\x00"}, "an address of this family has 4 bytes"),
        ({"dst": bytes(16)}, "an address of this family has 4 bytes"),
        ({"dst": None}, "an address of this family has 4 bytes"),
        ({"family": V6}, "an address of this family has 16 bytes"),
        ({"family": 0}, "family is 0, allowed are AF_INET and AF_INET6"),
        ({"family": socket.AF_BRIDGE}, "family is 7"),
        ({"family": V4 + 256}, "family is 258"),
    ],
)
def test_a_dangerous_route_is_refused_and_the_batch_is_as_before(
    change: str, wrong: dict[str, Any], words: str
) -> None:
    batch = Batch(1)
    batch.link_get(1)
    before = batch.finish()
    with pytest.raises(ValueError, match=words):
        getattr(batch, change)(**ROUTE | wrong)
    assert batch.finish() == before
    assert (len(batch), batch.next_seq) == (1, 2)


@pytest.mark.parametrize("ifindex", [0, -1, 2**31, 2**64])
def test_a_link_without_an_ifindex_is_refused(ifindex: int) -> None:
    batch = Batch(1)
    with pytest.raises(ValueError, match="ifindex"):
        batch.link_get(ifindex)
    assert len(batch) == 0


def test_numbers_must_be_numbers() -> None:
    with pytest.raises(TypeError):
        Batch(1).link_get("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Batch(1).route_add(**ROUTE | {"dst": "10.65.0.2"})


def test_a_dump_stands_alone() -> None:
    batch = Batch(1)
    batch.link_dump()
    adds: list[Callable[[], int]] = [
        batch.link_dump,
        lambda: batch.link_get(1),
        lambda: batch.route_dump(V4),
    ]
    for add in adds:
        with pytest.raises(ValueError, match="a dump stands alone"):
            add()
    assert len(batch) == 1
    batch = Batch(1)
    batch.link_get(1)
    with pytest.raises(ValueError, match="a dump stands alone"):
        batch.link_dump()
    with pytest.raises(ValueError, match="a dump stands alone"):
        batch.route_dump(V4)
    batch.link_get(1)
    assert len(batch) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"family": 0},
        {"family": V4, "table": -1},
        {"family": V4, "table": 2**32},
        {"family": V4, "protocol": 256},
    ],
)
def test_a_route_dump_is_refused_likewise(wrong: dict[str, int]) -> None:
    batch = Batch(1)
    with pytest.raises(ValueError, match="allowed are"):
        batch.route_dump(**wrong)
    assert len(batch) == 0
    batch.link_get(1)


def test_a_batch_has_a_bound() -> None:
    batch = Batch(1, max_bytes=100)
    batch.link_get(1)
    batch.link_get(2)
    assert len(batch.finish()) == 80
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        batch.link_get(3)
    assert (len(batch), batch.next_seq) == (2, 3)
    assert len(batch.finish()) == 80


def test_an_empty_batch_has_nothing_to_send() -> None:
    batch = Batch(9)
    assert (len(batch), batch.first_seq, batch.next_seq) == (0, 9, 9)
    with pytest.raises(ValueError, match="empty"):
        batch.finish()
    with pytest.raises(ValueError, match="empty"):
        _ = batch.last_seq


@pytest.mark.parametrize("seq", [0, -1, 2**32])
def test_a_first_sequence_number_is_one_that_a_request_may_have(seq: int) -> None:
    with pytest.raises(ValueError, match="first_seq"):
        Batch(seq)
