"""`plan` shows exactly what the agent does: on random routes of all sorts, and random plans."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from netreeve.model.backoff import Backoff
from netreeve.model.route import Op
from netreeve.plan.model import Endpoint
from netreeve.routes.preview import preview
from netreeve.routes.reconciler import RouteReconciler
from tests.support.fake_kernel import OURS, FakeKernel, Route
from tests.support.route_world import METRIC, TABLES, endpoint, key

ADDRESSES = ("10.65.0.1", "10.65.0.2", "10.65.0.3", "fd00:65::1", "fd00:65::2")
LINKS = ("cali0", "cali1", "cali2")


def kernel_of(dice: random.Random) -> FakeKernel:
    """Links up and down; at most keys nothing, ours, others', or several routes."""
    kernel = FakeKernel()
    ups = [kernel.link_add(name, up=dice.random() < 0.8) for name in LINKS]
    for table in TABLES:
        for address in ADDRESSES:
            oifs = dice.sample(ups, dice.choice((0, 0, 1, 1, 2)))
            routes = [
                Route(OURS if dice.random() < 0.6 else 12, oif)
                for oif in oifs
                if kernel.links[oif].up
            ]
            if routes:
                kernel.fib[key(address, table)] = routes
    return kernel


def reconciler(kernel: FakeKernel, plan: list[tuple[Endpoint, int]]) -> RouteReconciler:
    made = RouteReconciler(
        protocol=OURS, metric=METRIC, tables=TABLES, backoff=Backoff(100, 100), random=lambda: 0.5
    )
    for wanted, table in plan:
        ifindex = kernel.by_name(wanted.interface)
        told = None if ifindex is None else (ifindex, kernel.links[ifindex].up)
        made.endpoint_set(wanted, table, told)
    made.plan_complete()
    return made


def previewed(kernel: FakeKernel, plan: list[tuple[Endpoint, int]]) -> tuple[list[Op], set[str]]:
    routes = reconciler(kernel, plan)
    found = [message for family in (2, 10) for message in kernel.dump(family=family)]
    ops = preview(routes, found, 0.0)  # type: ignore[arg-type]
    return ops, {conflict.reason for conflict in routes.conflicts()}


def reconciled(kernel: FakeKernel, plan: list[tuple[Endpoint, int]]) -> set[str]:
    """What an agent that starts now leaves in the kernel; its conflicts."""
    routes = reconciler(kernel, plan)
    routes.resync_begin()
    routes.resync_end(kernel.dump(protocol=OURS))  # type: ignore[arg-type]
    for turn in range(50):
        now = float(turn)
        for op in routes.collect(now, 100):
            routes.answer(op, *kernel.apply(op, ()), now)
        for family, table in routes.ask(now):
            found = kernel.dump(family=family, table=table)
            routes.holders(family, table, found, now)  # type: ignore[arg-type]
    return {conflict.reason for conflict in routes.conflicts()}


def fib(kernel: FakeKernel) -> dict[object, list[tuple[int, int]]]:
    return {
        at: sorted((route.protocol, route.oif) for route in routes)
        for at, routes in kernel.fib.items()
        if routes
    }


@given(st.integers(0, 1 << 32))
@settings(max_examples=300)
def test_a_preview_is_what_the_agent_does(seed: int) -> None:
    dice = random.Random(seed)
    table = dice.choice(TABLES)
    interfaces = dice.sample((*LINKS, "cali9"), 3)
    addresses = dice.sample(ADDRESSES, len(ADDRESSES))
    plan = [
        endpoint(
            f"e{at}", name, *addresses[at : 2 * at + 1], admin_up=dice.random() < 0.9, table=table
        )
        for at, name in enumerate(interfaces)
    ]
    one, other = kernel_of(random.Random(seed)), kernel_of(random.Random(seed))
    ops, conflicts = previewed(one, plan)
    for op in ops:
        assert one.apply(op, ()) == (0, ""), op
    assert reconciled(other, plan) == conflicts
    assert fib(one) == fib(other)
    assert previewed(one, plan) == ([], conflicts)
