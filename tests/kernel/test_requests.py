"""What the kernel makes of our requests: semantics that route ownership stands on.

Each was found out on 6.18; a kernel where one of these fails needs another way to act.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from netreeve._ext import wire
from netreeve._ext.encode import Batch
from tests.support import netns

pytestmark = pytest.mark.kernel

SOL_NETLINK, CAP_ACK, EXT_ACK, STRICT_CHK = 270, 10, 11, 12
DONE = (0, "")


@dataclass
class Kernel:
    """A request socket in a namespace that has two links, `one` and `two`, both up."""

    ns: netns.Namespace
    socket: socket.socket
    one: int
    two: int
    seq: int = 1
    sent: list[int] = field(default_factory=list)

    def ask(self, *requests: Callable[[Batch], int]) -> list[object]:
        """One batch; all messages that came until its last request was answered."""
        batch = Batch(self.seq)
        self.sent = [add(batch) for add in requests]
        self.seq = batch.next_seq
        self.socket.send(batch.finish())
        found: list[object] = []
        while not (
            found and isinstance(found[-1], wire.Answer) and found[-1].seq == batch.last_seq
        ):
            decoded = wire.decode(self.socket.recv(1 << 17))
            assert (decoded.faults, decoded.ignored) == (0, 0)
            found += decoded.messages
        return found

    def answer(self, request: Callable[[Batch], int]) -> tuple[int, str]:
        (found,) = self.ask(request)
        assert isinstance(found, wire.Answer)
        return found.errno, found.text


@dataclass(frozen=True)
class Slot:
    """One FIB key of one family."""

    family: int
    address: str

    @property
    def version(self) -> int:
        return 4 if self.family == socket.AF_INET else 6

    def _fields(
        self, oif: int, table: int, metric: int, protocol: int
    ) -> tuple[int, bytes, int, int, int, int, int, int]:
        dst = socket.inet_pton(self.family, self.address)
        return self.family, dst, 8 * len(dst), table, 0, metric, protocol, oif

    def add(
        self, oif: int, *, table: int = 254, metric: int = 1024, protocol: int = 98
    ) -> Callable[[Batch], int]:
        return lambda batch: batch.route_add(*self._fields(oif, table, metric, protocol))

    def replace(
        self, oif: int, *, table: int = 254, metric: int = 1024, protocol: int = 98
    ) -> Callable[[Batch], int]:
        return lambda batch: batch.route_replace(*self._fields(oif, table, metric, protocol))

    def delete(
        self, oif: int, *, table: int = 254, metric: int = 1024, protocol: int = 98
    ) -> Callable[[Batch], int]:
        return lambda batch: batch.route_delete(*self._fields(oif, table, metric, protocol))

    def held(self, kernel: Kernel) -> list[tuple[str, str]]:
        """(link, protocol) of every route of this address, in the kernel's order."""
        return [
            (route["dev"], route["protocol"])
            for route in kernel.ns.routes(proto=None)
            if route["dst"] == self.address and route["family"] == self.version
        ]


@pytest.fixture
def kernel(namespace: netns.Namespace) -> Iterator[Kernel]:
    namespace.ip_batch(
        [
            "link add one type veth peer name far1",
            "link add two type veth peer name far2",
            *(f"link set {name} up" for name in ("far1", "far2", "one", "two")),
        ]
    )
    with namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW) as opened:
        opened.bind((0, 0))
        for option in (CAP_ACK, EXT_ACK, STRICT_CHK):
            opened.setsockopt(SOL_NETLINK, option, 1)
        opened.settimeout(10)
        yield Kernel(namespace, opened, namespace.ifindex("one"), namespace.ifindex("two"))


@pytest.fixture(params=[(socket.AF_INET, "10.65.0.2"), (socket.AF_INET6, "fd00:65::2")])
def slot(request: pytest.FixtureRequest) -> Slot:
    return Slot(*request.param)


def test_a_route_is_added_once_and_deleted_once(kernel: Kernel, slot: Slot) -> None:
    assert kernel.answer(slot.add(kernel.one)) == DONE
    assert slot.held(kernel) == [("one", "98")]
    assert kernel.answer(slot.add(kernel.one))[0] == errno.EEXIST
    assert kernel.answer(slot.add(kernel.two))[0] == errno.EEXIST
    assert kernel.answer(slot.delete(kernel.one)) == DONE
    assert kernel.answer(slot.delete(kernel.one))[0] == errno.ESRCH
    assert slot.held(kernel) == []


def test_replace_moves_a_route_in_one_request(kernel: Kernel, slot: Slot) -> None:
    assert kernel.answer(slot.replace(kernel.one))[0] == errno.ENOENT
    assert kernel.answer(slot.replace(kernel.one, table=70000))[0] == errno.ENOENT
    kernel.ask(slot.add(kernel.one))
    assert kernel.answer(slot.replace(kernel.two, metric=5))[0] == errno.ENOENT
    assert kernel.answer(slot.replace(kernel.two)) == DONE
    assert slot.held(kernel) == [("two", "98")]
    assert kernel.answer(slot.replace(kernel.two)) == DONE
    assert slot.held(kernel) == [("two", "98")]


def test_a_late_delete_does_not_hit_the_moved_route(kernel: Kernel, slot: Slot) -> None:
    kernel.ask(slot.add(kernel.one), slot.replace(kernel.two))
    assert kernel.answer(slot.delete(kernel.one))[0] == errno.ESRCH
    assert slot.held(kernel) == [("two", "98")]


def test_a_delete_hits_nothing_that_differs_in_anything(kernel: Kernel, slot: Slot) -> None:
    kernel.ask(slot.add(kernel.one))
    for other in (
        slot.delete(kernel.one, protocol=99),
        slot.delete(kernel.one, metric=1025),
        slot.delete(kernel.two),
        slot.delete(kernel.one, table=255),
    ):
        assert kernel.answer(other)[0] == errno.ESRCH
    missing = kernel.answer(slot.delete(kernel.one, table=4999))
    assert missing == (errno.ESRCH, "FIB table does not exist")
    assert slot.held(kernel) == [("one", "98")]


def test_a_foreign_route_in_the_slot_refuses_add_and_survives_delete(
    kernel: Kernel, slot: Slot
) -> None:
    kernel.ns.ip(f"-{slot.version} route add {slot.address} dev two proto 99 metric 1024")
    assert kernel.answer(slot.add(kernel.one))[0] == errno.EEXIST
    assert kernel.answer(slot.delete(kernel.two))[0] == errno.ESRCH
    assert slot.held(kernel) == [("two", "99")]
    # And this is why a replace is only for a slot that is known to be ours.
    assert kernel.answer(slot.replace(kernel.one)) == DONE
    assert slot.held(kernel) == [("one", "98")]


def test_replace_hits_the_first_of_equal_keys_whosever_it_is(kernel: Kernel, slot: Slot) -> None:
    kernel.ask(slot.add(kernel.one))
    kernel.ns.ip(f"-{slot.version} route append {slot.address} dev two proto 99 metric 1024")
    assert slot.held(kernel) == [("one", "98"), ("two", "99")]
    assert kernel.answer(slot.replace(kernel.two)) == DONE
    assert slot.held(kernel) == [("two", "98"), ("two", "99")]


def test_an_ipv4_route_put_before_ours_is_the_one_that_replace_hits(kernel: Kernel) -> None:
    slot = Slot(socket.AF_INET, "10.65.0.2")
    kernel.ask(slot.add(kernel.one))
    kernel.ns.ip(f"route prepend {slot.address} dev two proto 99 metric 1024")
    assert slot.held(kernel) == [("two", "99"), ("one", "98")]
    # Ours exists already where the replace would put it: the kernel sees that, and says so.
    assert kernel.answer(slot.replace(kernel.one))[0] == errno.EEXIST
    assert slot.held(kernel) == [("two", "99"), ("one", "98")]


def test_an_ipv4_route_through_a_gateway_is_no_route_of_ours_to_delete(kernel: Kernel) -> None:
    slot = Slot(socket.AF_INET, "10.65.0.2")
    kernel.ns.ip("addr add 192.0.2.2/24 dev one")
    kernel.ns.ip(f"route add {slot.address} via 192.0.2.1 dev one proto 98 metric 1024")
    assert kernel.answer(slot.delete(kernel.one))[0] == errno.ESRCH
    assert slot.held(kernel) == [("one", "98")]


def test_a_missing_link_and_one_that_is_down_are_told_apart(kernel: Kernel, slot: Slot) -> None:
    assert kernel.answer(slot.add(99999))[0] == errno.ENODEV
    kernel.ask(slot.add(kernel.one))
    kernel.ns.ip("link set two down")
    code, words = kernel.answer(slot.replace(kernel.two))
    assert code == errno.ENETDOWN
    assert words in ("Device for nexthop is not up", "Nexthop device is not up")
    assert slot.held(kernel) == [("one", "98")]
    # Without a carrier, but up: that is no hindrance.
    kernel.ns.ip_batch(["link set two up", "link set far2 down"])
    assert kernel.answer(slot.replace(kernel.two)) == DONE


def test_failures_of_a_batch_are_told_by_number_and_stop_nothing(kernel: Kernel) -> None:
    slots = [Slot(socket.AF_INET, f"10.65.0.{n}") for n in range(4)]
    found = kernel.ask(
        slots[0].add(kernel.one),
        slots[1].add(kernel.one),
        slots[1].add(kernel.two),
        slots[2].delete(kernel.one),
        slots[3].add(99999),
        slots[0].delete(kernel.one),
    )
    told = [(message.seq, message.errno) for message in found if isinstance(message, wire.Answer)]
    assert told == [
        (kernel.sent[2], errno.EEXIST),
        (kernel.sent[3], errno.ESRCH),
        (kernel.sent[4], errno.ENODEV),
        (kernel.sent[5], 0),
    ]
    assert slots[0].held(kernel) == []
    assert slots[1].held(kernel) == [("one", "98")]


def test_a_default_route_can_be_added_and_deleted(kernel: Kernel, slot: Slot) -> None:
    nothing = bytes(4 if slot.version == 4 else 16)
    fields = (slot.family, nothing, 0, 254, 0, 1024, 98, kernel.one)
    assert kernel.answer(lambda batch: batch.route_add(*fields)) == DONE
    assert kernel.answer(lambda batch: batch.route_delete(*fields)) == DONE


def test_route_dumps_are_filtered_by_table_and_protocol(kernel: Kernel, slot: Slot) -> None:
    kernel.ask(
        slot.add(kernel.one),
        slot.add(kernel.one, table=70000),
        slot.add(kernel.one, table=70000, metric=7, protocol=99),
    )

    def dump(table: int, protocol: int) -> list[tuple[int, int]]:
        *routes, done = kernel.ask(lambda batch: batch.route_dump(slot.family, table, protocol))
        assert isinstance(done, wire.Answer)
        assert done.errno == 0
        ours = socket.inet_pton(slot.family, slot.address)
        return [
            (route.table, route.protocol)
            for route in routes
            if isinstance(route, wire.RouteMessage) and route.dst == ours
        ]

    assert dump(70000, 98) == [(70000, 98)]
    assert sorted(dump(0, 98)) == [(254, 98), (70000, 98)]
    assert sorted(dump(70000, 0)) == [(70000, 98), (70000, 99)]
    assert dump(70000, 97) == []
    # A table that isn't there is an error, told in NLMSG_DONE, and no empty dump.
    code, words = kernel.answer(lambda batch: batch.route_dump(slot.family, 70001, 98))
    assert code == errno.ENOENT
    assert words.endswith("FIB table does not exist")


def test_links_are_asked_for_one_by_one_or_all(kernel: Kernel) -> None:
    link, done = kernel.ask(lambda batch: batch.link_get(kernel.one))
    assert isinstance(link, wire.LinkMessage)
    assert (link.ifindex, link.name, link.kind) == (kernel.one, "one", "veth")
    assert isinstance(done, wire.Answer)
    assert kernel.answer(lambda batch: batch.link_get(99999))[0] == errno.ENODEV
    *links, done = kernel.ask(lambda batch: batch.link_dump())
    assert {link.name for link in links if isinstance(link, wire.LinkMessage)} == {
        "lo", "one", "two", "far1", "far2"
    }  # fmt: skip
