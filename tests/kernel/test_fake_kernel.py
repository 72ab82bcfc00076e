"""The fake kernel of the route tests against the real one: the same requests, the same outcome."""

from __future__ import annotations

import os
import random
import socket

import pytest

from netreeve._ext import wire
from netreeve._ext.encode import Batch
from netreeve.model.route import Add, Delete, Op, Replace, RouteKey
from tests.support import netns
from tests.support.fake_kernel import OURS, FakeKernel
from tests.support.route_world import key

pytestmark = pytest.mark.kernel

KEYS = [key("10.65.0.1"), key("10.65.0.2"), key("fd00:65::1"), key("fd00:65::2")]
HOW = {"excl": "add", "append": "append", "prepend": "prepend", "replace": "replace"}
NAMES = ("one", "two")


class Both:
    """Does everything twice, and compares the answers and what is there."""

    def __init__(self, ns: netns.Namespace) -> None:
        self.ns = ns
        self.fake = FakeKernel(next_ifindex=1000)
        ns.ip_batch(
            [
                "link add one type veth peer name far1",
                "link add two type veth peer name far2",
                *(f"link set {name} up" for name in ("far1", "far2", "one", "two")),
            ]
        )
        self.real_of: dict[int, int] = {}
        for name in NAMES:
            self.real_of[self.fake.link_add(name, up=True)] = ns.ifindex(name)
        self.socket = ns.socket(socket.AF_NETLINK, socket.SOCK_RAW)
        self.socket.bind((0, 0))
        self.socket.settimeout(10)
        self.seq = 1

    def request(self, op: Op) -> None:
        real = self.real_of[op.oif]
        batch = Batch(self.seq)
        make = {
            Add: batch.route_add, Replace: batch.route_replace, Delete: batch.route_delete
        }  # fmt: skip
        make[type(op)](*op.key, op.protocol, real)
        self.seq = batch.next_seq
        self.socket.send(batch.finish())
        (answer,) = wire.decode(self.socket.recv(1 << 17)).messages
        assert isinstance(answer, wire.Answer)
        expected, _ = self.fake.apply(op)
        assert os.strerror(answer.errno) == os.strerror(expected), (op, self.fake.fib.get(op.key))

    def other(self, at: RouteKey, protocol: int, oif: int, how: str) -> None:
        name = self.fake.links[oif].name
        try:
            self.ns.ip(
                f"{'-4' if at.family == socket.AF_INET else '-6'} route {HOW[how]} {at} dev {name} "
                f"metric {at.metric} proto {protocol} scope link"
            )
            done = True
        except netns.IpError:
            done = False
        made = self.fake.other_add(at, protocol, oif, how=how)
        # To replace a route by the same succeeds, and makes nothing.
        assert made == done or (how == "replace" and not made), (str(at), how)

    def admin(self, oif: int, *, up: bool) -> None:
        self.ns.ip(f"link set {self.fake.links[oif].name} {'up' if up else 'down'}")
        self.fake.link_admin(oif, up=up)

    def compare(self) -> None:
        held = {
            str(at): [(str(r.protocol), self.fake.links[r.oif].name) for r in there]
            for at, there in self.fake.fib.items()
        }
        real: dict[str, list[tuple[str, str]]] = {}
        for route in self.ns.routes(proto=None):
            if route["dst"].startswith(("10.65.0.", "fd00:65::")):
                at = f"{route['dst']}/{32 if route['family'] == 4 else 128}"
                real.setdefault(at, []).append((route["protocol"], route["dev"]))
        assert real == held


def test_a_random_history_is_the_same_in_both(namespace: netns.Namespace) -> None:
    both = Both(namespace)
    dice = random.Random(65)
    links = list(both.real_of)
    with both.socket:
        for _ in range(200):
            at, oif = dice.choice(KEYS), dice.choice(links)
            match dice.randrange(10):
                case 0:
                    both.admin(oif, up=not both.fake.links[oif].admin_up)
                case 1 | 2:
                    protocol = dice.choice([12, 4])
                    v6 = at.family == socket.AF_INET6  # has no prepend
                    how = dice.choice(["excl", "append"] if v6 else list(HOW))
                    both.other(at, protocol, oif, how)
                case 3 | 4 | 5:
                    both.request(Add(at, oif, OURS))
                case 6 | 7 | 8:
                    both.request(Delete(at, oif, OURS))
                case _:
                    there = both.fake.fib.get(at, [])
                    if all(not route.foreign for route in there):
                        both.request(Replace(at, oif, OURS))
            both.compare()
