"""A link engine, fake links, and the agent's wiring between them, one batch at a time."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from netreeve.links.registry import KINDS, specs
from netreeve.model.backoff import Backoff
from netreeve.model.link_op import Step
from netreeve.model.link_spec import LinkSpec
from netreeve.model.prefix import LinkAddress
from netreeve.plan.model import Plan, Tap, Vpc, Vtep
from netreeve.reconcile.decision import OwnershipMode
from netreeve.reconcile.engine import LinkEngine
from tests.support.fake_links import AF_INET, PROTOCOL, FakeLinks

INSTANCE = "0123456789ab"
LOCAL = (AF_INET, b"\xc0\0\2\1")


def vpc(
    name: str,
    vni: int = 1,
    table: int | None = None,
    *addresses: str,
    port: int = 4789,
    local: tuple[int, bytes] = LOCAL,
    ttl: int = 64,
    mac: str | None = None,
    mtu: int | None = None,
    vlan_filtering: bool | None = None,
) -> Vpc:
    made = tuple(LinkAddress.parse(address) for address in addresses)
    return Vpc(name, table, vni, Vtep(local, port, ttl), mac, mtu, made, vlan_filtering)


def plan(*entries: Vpc | Tap) -> Plan:
    return Plan(
        {entry.name: entry for entry in entries if isinstance(entry, Vpc)},
        {entry.name: entry for entry in entries if isinstance(entry, Tap)},
    )


def token(name: str, instance: str = INSTANCE) -> str:
    return f"netreeve.{instance}.{name}"


@dataclass
class World:
    kernel: FakeLinks = field(default_factory=FakeLinks)
    mode: OwnershipMode = "name"
    acting: bool = True
    now: float = 1000.0
    seed: int = 1
    wanted: list[LinkSpec] = field(default_factory=list)
    hold: str | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed).random
        self.restart()

    def restart(self) -> None:
        """The agent was killed, and starts anew."""
        self.kernel.events.clear()
        self.engine = LinkEngine(
            scheme=self.kernel.scheme,
            kinds=KINDS,
            instance=INSTANCE,
            protocol=PROTOCOL,
            backoff=Backoff(100, 30_000),
            random=self.random,
            mode=self.mode,
            acting=self.acting,
        )
        self.engine.plan_set(self.wanted, hold=self.hold)
        self.engine.resync()

    def plan(self, *entries: Vpc | Tap, hold: str | None = None) -> None:
        self.wanted = specs(plan(*entries), self.kernel.scheme)
        self.hold = hold
        self.engine.plan_set(self.wanted, hold=hold)

    def tell(self) -> None:
        for event in self.kernel.tell():
            if event.gone:
                self.engine.gone(event.name, event.ifindex)
            else:
                self.engine.touched(event.name, event.ifindex)

    def step(self, limit: int = 128) -> list[Step]:
        """One batch: hints first, then steps and their answers."""
        self.tell()
        steps = self.engine.collect(self.now, limit)
        for each in steps:
            errno, words, result = self.kernel.do(each)
            self.engine.answer(each, errno, words, result, self.now)
        return steps

    def run(self, *, batches: int = 200, timers: bool = False) -> list[Step]:
        """Until nothing is to be done now; with `timers`, until no retry is due any more, though
        what stands in the way is looked at again for ever."""
        done: list[Step] = []
        for _ in range(batches):
            steps = self.step()
            done += steps
            if steps or self.kernel.events:
                continue
            deadline = self.engine.deadline()
            if not timers or deadline is None:
                return done
            self.now = max(self.now, deadline) + 0.001
        if timers:
            return done
        raise AssertionError(f"no rest: {done[-20:]}")

    def settled(self) -> None:
        """At rest, and a second pass has nothing to change."""
        self.run()
        self.engine.resync()
        again = self.run()
        changed = [step for step in again if not step.reads]
        assert not changed, changed
        assert not self.kernel.strays

    def states(self, names: Iterable[str] = ()) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name in names or [spec.name for spec in self.wanted]:
            status = self.engine.status(name)
            found[name] = None if status is None else status.state
        return found


def made(*entries: Vpc | Tap, mode: OwnershipMode = "name", seed: int = 1) -> World:
    """A world at rest with this plan; the log is empty."""
    world = World(mode=mode, seed=seed)
    world.plan(*entries)
    world.settled()
    world.kernel.log.clear()
    return world


def changes(world: World, *kinds: type[Step]) -> list[Step]:
    """The requests that changed something, or those of `kinds`."""
    return [
        step for step in world.kernel.log if isinstance(step, kinds or object) and not step.reads
    ]
