"""LinkSync against a kernel that is a dictionary, with an enemy between any two steps."""

from __future__ import annotations

import collections
import random

import pytest

from netreeve._ext.index import LinkTable
from netreeve._ext.stage import Stage
from netreeve.model.backoff import Backoff
from netreeve.monitor import sync
from tests.support import messages

Link = tuple[str, bool]


class FakeLinks:
    """Links, the queue of an event socket as the kernel keeps it, and dumps in chunks."""

    def __init__(self, seed: int, capacity: int) -> None:
        self.rng = random.Random(seed)
        self.capacity = capacity
        self.links: dict[int, Link] = {}
        self.queue: collections.deque[bytes] = collections.deque()
        self.congested = False
        self.error = False
        self.next_ifindex = 1

    def emit(self, datagram: bytes) -> None:
        """As netlink does: a full queue drops, says so once, and drops on until it was empty."""
        if self.congested or len(self.queue) >= self.capacity:
            self.error = self.error or not self.congested
            self.congested = True
            return
        self.queue.append(datagram)

    def put(self, ifindex: int, link: Link) -> None:
        self.links[ifindex] = link
        self.emit(messages.link(ifindex, link[0], up=link[1]))

    def delete(self, ifindex: int) -> None:
        name, _ = self.links.pop(ifindex)
        self.emit(messages.link(ifindex, name, deleted=True))

    def mutate(self) -> None:
        rng = self.rng
        taken = {name for name, _ in self.links.values()}
        free = [name for name in ("a", "b", "c", "d", "e") if name not in taken]
        ifindex = rng.choice(list(self.links)) if self.links else None
        match rng.randrange(5):
            case 0 | 1 if free:
                again = rng.random() < 0.3
                fresh = rng.randrange(1, 8) if again else self.next_ifindex
                if fresh not in self.links:
                    self.put(fresh, (rng.choice(free), rng.random() < 0.5))
                    self.next_ifindex = max(self.next_ifindex, fresh) + 1
            case 2 if ifindex is not None:
                self.delete(ifindex)
            case 3 if ifindex is not None and free:
                self.put(ifindex, (rng.choice(free), self.links[ifindex][1]))
            case _ if ifindex is not None:
                name, up = self.links[ifindex]
                self.put(ifindex, (name, not up))

    def read(self, table: LinkTable, most: int) -> tuple[bool, bool]:
        lost = self.error
        self.error = False
        for _ in range(most):
            if not self.queue:
                self.congested = False
                return True, lost
            table.observe(self.queue.popleft())
        return False, lost

    def dump(self, enemy: bool) -> Stage:
        rng, stage, cursor = self.rng, Stage(), 0
        short = enemy and rng.random() < 0.1
        while True:
            chunk = sorted(i for i in self.links if i > cursor)[: rng.randrange(1, 3)]
            if not chunk or (short and rng.random() < 0.3):
                break
            for i in chunk:
                name, up = self.links[i]
                flags = 0x10 if enemy and rng.random() < 0.05 else 0
                stage.feed(messages.link(i, name, up=up, message_flags=flags), 0)
            cursor = chunk[-1]
            for _ in range(rng.randrange(3) if enemy else 0):
                self.mutate()
        if not (enemy and rng.random() < 0.05):
            stage.feed(messages.done(errno=4 if enemy and rng.random() < 0.05 else 0), 0)
        return stage

    def answer(self, ifindexes: tuple[int, ...], stage: Stage, enemy: bool) -> None:
        for i in ifindexes:
            if i in self.links:
                name, up = self.links[i]
                stage.feed(messages.link(i, name, up=up), 0)
            else:
                stage.mark_gone(i)
            if enemy and self.rng.random() < 0.3:
                self.mutate()


def make(
    table: LinkTable, interval_s: float = 0.0, rng: random.Random | None = None
) -> sync.LinkSync:
    return sync.LinkSync(
        table,
        interval_s=interval_s,
        backoff=Backoff(10, 1000),
        rng=(rng or random.Random(1)).random,
    )


class Run:
    """Carries out what the machine says; `enemy` lets the links change between any two steps."""

    def __init__(self, seed: int, capacity: int = 10) -> None:
        self.kernel = FakeLinks(seed, capacity)
        self.table = LinkTable()
        self.sync = make(self.table, rng=self.kernel.rng)
        self.now = 0.0
        self.published = 0

    def read(self, most: int) -> None:
        empty, lost = self.kernel.read(self.table, most)
        self.sync.drained(empty, lost, self.now)

    def step(self, enemy: bool) -> bool:
        """One step; whether there is nothing more to do."""
        kernel = self.kernel
        if enemy:
            for _ in range(kernel.rng.randrange(4)):
                kernel.mutate()
            if kernel.rng.random() < 0.3:
                self.read(kernel.rng.randrange(6))
        match self.sync.next(self.now):
            case sync.Drain():
                self.read(3 if enemy else 100)
            case sync.Dump():
                stage = kernel.dump(enemy)
                if enemy and kernel.rng.random() < 0.2:
                    self.read(kernel.rng.randrange(6))
                self.sync.dumped(stage, self.now)
            case sync.Ask(ifindexes, stage):
                if enemy and kernel.rng.random() < 0.05:
                    self.sync.failed(self.now)
                else:
                    stage = stage if stage is not None else Stage()
                    kernel.answer(ifindexes, stage, enemy)
                    self.sync.answered(stage, self.now)
            case sync.Publish():
                self.published += 1
                self.sync.published(self.now)
            case sync.Wait(until):
                if until is None and not kernel.queue and not kernel.error:
                    return True
                self.read(100)
                self.now = max(self.now, until or 0.0)
        self.now += 0.001
        return False

    def settle(self) -> None:
        for _ in range(500):
            if self.step(enemy=False):
                return
        raise AssertionError("the machine does not come to rest")

    def seen(self) -> dict[int, Link]:
        return {link.ifindex: (link.name, link.up) for link in self.table}


@pytest.mark.parametrize("seed", range(300))
def test_the_table_equals_the_kernel_whatever_happens_between(seed: int) -> None:
    run = Run(seed, capacity=random.Random(seed).choice((3, 10, 1000)))
    for _ in range(random.Random(seed).randrange(10, 150)):
        run.step(enemy=True)
        if run.sync.next(run.now) == sync.Publish() and not run.kernel.queue:
            # What is published is the kernel's state as of the last drain.
            assert run.seen() == run.kernel.links or run.kernel.error or run.kernel.congested
    run.settle()
    assert run.sync.in_sync
    assert run.sync.state is sync.State.LIVE
    assert run.seen() == run.kernel.links
    assert run.table.ambiguous == {}
    told = {name: told[0] for name in "abcde" if (told := run.table.told(name)) is not None}
    assert told == {name: i for i, (name, _) in run.kernel.links.items()}


def test_before_the_first_publish_nothing_is_in_sync() -> None:
    machine = make(LinkTable())
    assert machine.state is sync.State.DOWN
    assert machine.next(0.0) == sync.Drain()
    assert machine.state is sync.State.DUMPING
    assert not machine.in_sync


def resync(machine: sync.LinkSync, now: float, stage: Stage | None = None) -> None:
    """A whole resync with nothing in its way."""
    if stage is None:
        stage = Stage()
        stage.feed(messages.done(), 0)
    for _ in range(10):
        match machine.next(now):
            case sync.Drain():
                machine.drained(True, False, now)
            case sync.Dump():
                machine.dumped(stage, now)
            case sync.Publish():
                machine.published(now)
                return
            case command:
                raise AssertionError(command)


def test_the_queue_is_read_to_empty_before_the_dump() -> None:
    machine = make(LinkTable())
    machine.next(0.0)
    machine.drained(False, True, 0.0)
    assert machine.next(0.0) == sync.Drain()
    machine.drained(True, False, 0.0)
    assert machine.next(0.0) == sync.Dump()


@pytest.mark.parametrize("steps", range(1, 6))
def test_an_overrun_at_any_later_step_starts_again(steps: int) -> None:
    machine = make(LinkTable())
    stage = Stage()
    stage.feed(messages.done(), 0)
    seen = []
    for _ in range(steps):
        command = machine.next(0.0)
        seen.append(type(command).__name__)
        match command:
            case sync.Drain():
                machine.drained(True, False, 0.0)
            case sync.Dump():
                machine.dumped(stage, 0.0)
            case sync.Publish():
                machine.published(0.0)
    machine.drained(True, True, 0.0)
    assert not machine.in_sync
    later = machine.next(0.0)
    if isinstance(later, sync.Wait):
        assert later.until is not None
        assert 0.0 < later.until < 1.0
    resync(machine, 1.0)
    assert machine.in_sync


def test_interrupted_dumps_are_repeated_then_accepted_and_soon_done_again() -> None:
    machine = make(LinkTable())
    interrupted = Stage()
    interrupted.feed(messages.done(flags=0x12), 0)
    assert interrupted.interrupted
    dumps = 0
    while not isinstance(command := machine.next(0.0), sync.Publish):
        if isinstance(command, sync.Dump):
            dumps += 1
            machine.dumped(interrupted, 0.0)
        else:
            machine.drained(True, False, 0.0)
    machine.published(0.0)
    assert dumps == sync.INTERRUPTED_TRIES
    assert machine.next(0.0) == sync.Wait(sync.INTERRUPTED_AGAIN_S)


def test_periodic_and_requested_resyncs() -> None:
    machine = make(LinkTable(), interval_s=90.0)
    resync(machine, 0.0)
    assert machine.next(1.0) == sync.Wait(90.0)
    machine.request(2.0)
    assert machine.next(2.0) == sync.Drain()
    resync(machine, 2.0)
    assert machine.next(3.0) == sync.Wait(92.0)
    assert machine.next(92.0) == sync.Drain()
    assert machine.resyncs == 2


def test_failed_dumps_back_off() -> None:
    machine = make(LinkTable())
    waits = []
    now = 0.0
    for _ in range(6):
        machine.next(now)
        machine.drained(True, False, now)
        assert machine.next(now) == sync.Dump()
        machine.failed(now)
        command = machine.next(now)
        assert isinstance(command, sync.Wait)
        assert command.until is not None
        waits.append(command.until - now)
        now = command.until
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]
    assert machine.restarts == 6


def test_overruns_without_end_leave_time_for_other_things() -> None:
    """A resync that took 1 s is followed by at least 1 s without one."""
    machine = make(LinkTable())
    machine.next(0.0)
    machine.drained(True, False, 0.0)
    resync(machine, 1.0)
    machine.drained(True, True, 1.1)
    assert machine.next(1.1) == sync.Wait(2.0)
    assert machine.next(2.0) == sync.Drain()


def test_an_ambiguous_name_is_asked_about_and_counted() -> None:
    table = LinkTable()
    machine = make(table)
    resync(machine, 0.0)
    table.observe(messages.link(10, "a", up=True) + messages.link(20, "a", up=True))
    machine.drained(True, False, 5.0)
    assert machine.next(5.0) == sync.Ask((10, 20), None)
    stage = Stage()
    stage.mark_gone(10)
    stage.feed(messages.link(20, "a", up=True), 0)
    machine.answered(stage, 5.0)
    assert machine.next(5.5) == sync.Drain()
    machine.drained(True, False, 5.5)
    assert machine.next(5.5) == sync.Wait(None)
    assert table.told("a") == (20, True)
    assert machine.ambiguous_total == 1
    assert machine.ambiguous_seconds == pytest.approx(0.5)


def test_answers_that_leave_a_name_ambiguous_are_asked_for_again_with_a_delay() -> None:
    table = LinkTable()
    machine = make(table)
    resync(machine, 0.0)
    both = messages.link(10, "a", up=True) + messages.link(20, "a", up=True)
    table.observe(both)
    machine.drained(True, False, 1.0)
    assert isinstance(machine.next(1.0), sync.Ask)
    stage = Stage()
    stage.feed(both, 0)
    machine.answered(stage, 1.0)
    machine.next(1.0)
    machine.drained(True, False, 1.0)
    command = machine.next(1.0)
    assert isinstance(command, sync.Wait)
    assert command.until is not None
    assert isinstance(machine.next(command.until), sync.Ask)
