"""Endpoint routes against an enemy: random histories of plan, links, foreign routes and losses.

At rest the kernel holds exactly what is wanted; on the way no foreign route is ever touched (the
fake kernel sees to that), and the number of ops is bounded by what happened.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netreeve.model.prefix import Prefix
from netreeve.model.route import RouteKey
from netreeve.plan.model import Endpoint
from tests.support.fake_kernel import OURS
from tests.support.route_world import METRIC, TABLES, World, endpoint

INTERFACES = ("cali0", "cali1", "cali2", "cali3")
ENDPOINTS = ("a", "b", "c", "d")
ADDRESSES = ("10.65.0.1", "10.65.0.2", "10.65.0.3", "fd00:65::1", "fd00:65::2")
PROTOCOLS = (12, 4, 2, 186)
HOW = ("excl", "append", "prepend", "replace")


class History:
    """Each method is one thing that happens; its number picks the particulars."""

    def __init__(self, seed: int) -> None:
        self.world = World(random=random.Random(seed).random)
        self.touched = 0  # keys that what happened may have concerned
        self.renames = 0

    # -- the plan --

    def plan_changed(self, n: int) -> None:
        """A whole new plan: some endpoints with some of the addresses, handed over in any order."""
        dice = random.Random(n)
        addresses = {table: dice.sample(ADDRESSES, len(ADDRESSES)) for table in TABLES}
        interfaces = dice.sample(INTERFACES, len(INTERFACES))
        plan: dict[str, tuple[Endpoint, int]] = {}
        for name, interface in zip(ENDPOINTS, interfaces, strict=True):
            if dice.random() < 0.75:
                table = dice.choice(TABLES)
                mine = [addresses[table].pop() for _ in range(min(2, len(addresses[table])))]
                admin_up = dice.random() < 0.85
                plan[name] = endpoint(name, interface, *mine, admin_up=admin_up, table=table)
        for name in dice.sample(ENDPOINTS, len(ENDPOINTS)):
            if name in plan:
                self.world.set(plan[name])
            else:
                self.world.gone(name)
        self.touched += 4 * len(ADDRESSES)

    def endpoint_again(self, n: int) -> None:
        plan = list(self.world.plan.values())
        if plan:
            self.world.set(plan[n % len(plan)])

    # -- links --

    def _link(self, n: int) -> int | None:
        links = sorted(self.world.kernel.links)
        self.touched += len(ADDRESSES) * 2
        return links[n % len(links)] if links else None

    def link_added(self, n: int) -> None:
        name = INTERFACES[n % len(INTERFACES)]
        if self.world.kernel.by_name(name) is None:
            self.world.kernel.link_add(name, up=n % 3 != 0)
            self.touched += len(ADDRESSES) * 2

    def link_deleted(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            self.world.kernel.link_del(ifindex)

    def link_rebuilt(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            name = self.world.kernel.links[ifindex].name
            self.world.kernel.link_del(ifindex)
            self.world.kernel.link_add(name, up=n % 4 != 0)

    def links_swapped(self, n: int) -> None:
        one, other = self._link(n), self._link(n + 1)
        if one is not None and other is not None and one != other:
            kernel = self.world.kernel
            names = kernel.links[one].name, kernel.links[other].name
            kernel.link_rename(one, "swap")
            kernel.link_rename(other, names[0])
            kernel.link_rename(one, names[1])

    def link_renamed_away(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            self.renames += 1
            self.world.kernel.link_rename(ifindex, f"away{self.renames}")

    def link_flapped(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            for _ in range(1 + n % 3):
                self.world.kernel.link_admin(ifindex, up=False)
                self.world.kernel.link_admin(ifindex, up=True)

    def link_admin(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            up = self.world.kernel.links[ifindex].admin_up
            self.world.kernel.link_admin(ifindex, up=not up)

    def link_carrier(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            on = self.world.kernel.links[ifindex].carrier
            self.world.kernel.link_carrier(ifindex, on=not on)

    def address_lost(self, n: int) -> None:
        if (ifindex := self._link(n)) is not None:
            self.world.kernel.last_address_lost(ifindex, flush=n % 2 == 0)

    # -- others --

    def _key(self, n: int) -> RouteKey:
        self.touched += 1
        address = Prefix.parse(ADDRESSES[n % len(ADDRESSES)])
        return RouteKey(*address, TABLES[n // 8 % len(TABLES)], 0, METRIC + (n // 64 % 8 == 0))

    def foreign_added(self, n: int) -> None:
        if (oif := self._link(n // 16)) is not None:
            how, protocol = HOW[n // 4 % 4], PROTOCOLS[n % 4]
            self.world.kernel.other_add(self._key(n // 32), protocol, oif, how=how)

    def foreign_deleted(self, n: int) -> None:
        foreign = [(at, r) for at, r in self.world.kernel.routes() if r.foreign]
        if foreign:
            self.world.kernel.other_del(*foreign[n % len(foreign)])
            self.touched += 1

    def ours_made_by_others(self, n: int) -> None:
        if (oif := self._link(n // 16)) is not None:
            self.world.kernel.other_add(self._key(n // 4), OURS, oif, how=HOW[n % 4])

    def ours_deleted_by_others(self, n: int) -> None:
        ours = [(at, r) for at, r in self.world.kernel.routes() if not r.foreign]
        if ours:
            self.world.kernel.other_del(*ours[n % len(ours)])
            self.touched += 1

    def ours_flushed_by_others(self, n: int) -> None:
        for at, r in list(self.world.kernel.routes()):
            if not r.foreign:
                self.world.kernel.other_del(at, r)
                self.touched += 1

    # -- the agent, step by step; and what goes wrong with it --

    def drain(self, n: int) -> None:
        self.world.drain()

    def collect(self, n: int) -> None:
        if self.world.batch is None:
            self.world.collect(1 + n % 7)

    def execute(self, n: int) -> None:
        self.world.execute()

    def answer(self, n: int) -> None:
        self.world.answer()

    def answer_lost(self, n: int) -> None:
        if self.world.batch is not None:
            self.touched += len(self.world.batch.ops)
        self.world.answer(lost=True)

    def ask(self, n: int) -> None:
        self.world.ask()

    def dump(self, n: int) -> None:
        self.world.dump()

    def holders(self, n: int) -> None:
        self.world.holders(failed=n % 5 == 0)

    def resync_begin(self, n: int) -> None:
        self.world.resync_begin()

    def resync_dump(self, n: int) -> None:
        self.world.resync_dump()

    def resync_end(self, n: int) -> None:
        self.world.resync_end()

    def overrun(self, n: int) -> None:
        self.world.lose_events()
        self.touched += 4 * len(ADDRESSES)

    def time(self, n: int) -> None:
        self.world.now += n / 1000

    def cycle(self, n: int) -> None:
        self.world.cycle()

    # -- the end --

    def rest(self) -> None:
        world = self.world
        lost = world.lost or not world.routes._whole or not world.routes._plan_complete
        world.drain()
        if world.batch is not None and world.batch.results is None:
            world.execute()
        world.answer()
        if lost:  # as the agent does after an overrun, and at its start
            world.resync_begin()
            world.start()
        world.wait(120)
        world.check()
        assert len(world.log) <= 50 + 10 * self.touched
        self._quiet()

    def _quiet(self) -> None:
        """Later nothing is done but to look at the conflicts, rarely; a full comparison finds
        nothing, and every reference to what is gone has gone."""
        world = self.world
        ops, conflicts = len(world.log), len(world.routes.conflicts())
        world.wait(300)
        assert len(world.log) - ops <= conflicts * 21
        ops = len(world.log)
        world.resync_begin()
        world.run()
        assert len(world.log) == ops
        world.check()
        for what, _ in list(world.plan.values()):
            world.gone(what.id.workload)
        world.wait(120)
        world.check()
        routes = world.routes
        left = routes._slots, routes._claims, routes._devices._slots, routes._interfaces._claims
        assert not any(left)
        assert not routes._flushes
        assert len(routes._queue) == 0
        assert not any(routes.counts())


STEPS = sorted(
    name
    for name, value in vars(History).items()
    if callable(value) and not name.startswith("_") and name != "rest"
)
# What the enemy does is of use only with some work of the agent between.
WEIGHTS = {
    "drain": 5, "collect": 5, "execute": 4, "answer": 4, "ask": 3, "dump": 3, "holders": 3,
    "cycle": 5, "link_added": 6, "plan_changed": 2, "resync_begin": 2,
}  # fmt: skip
WEIGHTED = [name for name in STEPS for _ in range(WEIGHTS.get(name, 1))]

steps = st.lists(
    st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 4095)), min_size=1, max_size=60
)


@given(steps, st.integers(0, 1 << 16), st.booleans())
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_the_kernel_ends_up_with_what_is_wanted(
    history: list[tuple[str, int]], seed: int, started: bool
) -> None:
    run(history, seed, started=started)


def test_long_histories() -> None:
    dice = random.Random(20240501)
    for seed in range(150):
        history = [(dice.choice(WEIGHTED), dice.randrange(4096)) for _ in range(400)]
        run(history, seed, started=seed % 2 == 0)


def run(history: list[tuple[str, int]], seed: int, *, started: bool) -> None:
    at = History(seed)
    for n, _ in enumerate(INTERFACES):
        at.link_added(4 * n + n)
    at.plan_changed(seed)
    if started:
        at.world.start()
        at.world.run()
    for name, number in history:
        getattr(at, name)(number)
    at.rest()
