"""Random histories: the compiled name machine against the slow one, and the invariants."""

from __future__ import annotations

import random

import pytest

from netreeve._ext.index import (
    LinkAdded,
    LinkChanged,
    LinkRemoved,
    LinkTable,
    NameAmbiguous,
)
from netreeve._ext.stage import Stage
from tests.support import messages
from tests.support.slow_index import Seen, SlowIndex, Told

NAMES = ("a", "b", "cali0123456789a")
IFINDEXES = (1, 7, 20, 2147483647)
STEPS = 120_000


def encode(seen: Seen) -> bytes:
    flags = (
        seen.admin_up * messages.IFF_UP
        | seen.running * messages.IFF_RUNNING
        | seen.carrier * messages.IFF_LOWER_UP
    )
    return messages.link(
        seen.ifindex,
        seen.name,
        flags=flags,
        kind=seen.kind,
        counts=(seen.up_count, seen.down_count),
    )


def as_tuple(event: object) -> Told | None:
    match event:
        case LinkAdded(name, ifindex, up):
            return ("added", name, ifindex, up)
        case LinkChanged(name, ifindex, up, inferred, flaps):
            return ("changed", name, ifindex, up, inferred, flaps)
        case LinkRemoved(name, ifindex):
            return ("removed", name, ifindex)
    assert isinstance(event, NameAmbiguous)
    return None


class Walk:
    """One random history, fed to both machines; the checks after each step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fast = LinkTable()
        self.slow = SlowIndex()
        self.last: dict[int, Seen] = {}
        self.present: dict[str, tuple[int, bool]] = {}

    def seen(self, ifindex: int) -> Seen:
        rng = self.rng
        old = self.last.get(ifindex)
        if old is not None and rng.random() < 0.1:
            return old
        admin_up = rng.random() < 0.75
        running = admin_up and rng.random() < 0.75
        carrier = running if rng.random() < 0.8 else not running
        up_count, down_count = (old.up_count, old.down_count) if old else (0, 0)
        if rng.random() < 0.03:
            up_count = max(0, up_count - rng.randrange(3))
        if rng.random() < 0.03:
            down_count = max(0, down_count - rng.randrange(3))
        return Seen(
            ifindex,
            old.name if old and rng.random() < 0.7 else rng.choice(NAMES),
            admin_up,
            running,
            carrier,
            "bridge" if rng.random() < 0.03 else "veth",
            up_count + rng.choice((0, 0, 0, 1, 2)),
            down_count + rng.choice((0, 0, 0, 1, 3)),
        )

    def step(self) -> None:
        rng = self.rng
        ifindex = rng.choice(IFINDEXES)
        roll = rng.random()
        if roll < 0.62:
            seen = self.last[ifindex] = self.seen(ifindex)
            self.fast.observe(encode(seen))
            self.slow.event_new(seen)
        elif roll < 0.86:
            self.fast.observe(messages.link(ifindex, rng.choice(NAMES), deleted=True))
            self.slow.event_del(ifindex)
        elif roll < 0.9:
            self.fast.observe(messages.link(ifindex, "a", deleted=True, family=7))
        elif self.slow.touched is None:
            self.fast.resync_begin()
            self.slow.resync_begin()
        elif roll < 0.92:
            self.fast.resync_abandon()
            self.slow.touched = None
        else:
            self.accept()
        self.check()

    def accept(self) -> None:
        entries = [self.seen(i) for i in sorted(IFINDEXES) if self.rng.random() < 0.6]
        stage = Stage()
        for seen in entries:
            stage.feed(encode(seen), 0)
        stage.feed(messages.done(), 0)
        absent = self.fast.absent(stage)
        assert self.slow.touched is not None
        assert absent == sorted(
            set(self.slow.links) - {seen.ifindex for seen in entries} - self.slow.touched
        )
        gone = set()
        for ifindex in absent:
            if self.rng.random() < 0.8:
                stage.mark_gone(ifindex)
                gone.add(ifindex)
            else:
                seen = self.seen(ifindex)
                entries.append(seen)
                stage.feed(encode(seen), 0)
        self.fast.accept(stage)
        self.slow.accept(entries, gone)
        self.last.update(self.slow.links)

    def check(self) -> None:
        told = [as_tuple(event) for event in self.fast.take_told()]
        told = [event for event in told if event is not None]
        assert told == self.slow.out
        self.slow.out.clear()
        for event in told:
            assert event is not None
            self.alternates(event)
        for name in NAMES:
            holders = self.slow.holders(name)
            assert self.fast.holders(name) == tuple(holders)
            assert self.fast.told(name) == self.slow.told.get(name) == self.present.get(name)
            if len(holders) == 1:
                (holder,) = holders
                assert self.fast.told(name) == (holder, self.slow.links[holder].up)
            elif name in self.present:
                assert self.present[name][0] in holders
        assert self.fast.ambiguous == {
            name: tuple(self.slow.holders(name))
            for name in NAMES
            if len(self.slow.holders(name)) > 1
        }
        assert len(self.fast) == len(self.slow.links)

    def alternates(self, event: Told) -> None:
        """Per name Added (Changed)* Removed, one ifindex at a time; equal states once."""
        what, name, ifindex = event[:3]
        if what == "added":
            assert name not in self.present
            assert len(event) == 4
            self.present[name] = (ifindex, event[3])
        elif what == "changed":
            assert len(event) == 6
            assert self.present[name] == (ifindex, not event[3])
            self.present[name] = (ifindex, event[3])
        else:
            assert self.present.pop(name)[0] == ifindex


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_equal_the_slow_machine(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS // 4):
        walk.step()
