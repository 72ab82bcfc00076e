"""Dumps of our routes, and what the reconciler says of itself."""

from __future__ import annotations

import errno

import pytest

from netreeve.model.ids import EndpointId
from netreeve.model.route import CONFIRMED, Add, Delete
from tests.support.fake_kernel import OURS, message
from tests.support.route_world import World, endpoint, key, kinds, ready, up

X = "10.65.0.1"
FAMILIES = ["10.65.0.1", "fd00:65::1"]
A = EndpointId("test", "a", "eth0")
B = EndpointId("test", "b", "eth0")


# -- comparisons ------------------------------------------------------------------------------


def test_leftovers_go_only_when_the_plan_is_complete() -> None:
    world = World()
    ifindex = world.kernel.link_add("cali0", up=True)
    world.kernel.other_add(key("10.65.0.9"), OURS, ifindex, how="excl")
    world.kernel.other_add(key(X), OURS, ifindex, how="excl")
    world.kernel.other_add(key(X, metric=77), OURS, ifindex, how="excl")
    world.kernel.events.clear()
    world.told["cali0"] = (ifindex, True)
    world.resync_begin()
    world.resync_dump()
    world.resync_end()
    world.run()
    assert world.log == []
    world.set(endpoint("a", "cali0", X))
    world.run()
    assert world.routes.state(A) == CONFIRMED
    world.routes.plan_complete()
    world.run()
    world.check()
    assert world.log == [
        Delete(key("10.65.0.9"), ifindex, OURS),
        Delete(key(X, metric=77), ifindex, OURS),
    ]


def test_a_tables_routes_are_ours_only_while_it_is_in_the_plan(world: World) -> None:
    ifindex = world.kernel.link_add("cali0", up=True)
    world.routes.tables_set([254])
    world.kernel.other_add(key(X, 1001), OURS, ifindex, how="excl")
    world.start()
    world.run()
    assert world.log == []
    world.routes.tables_set([254, 1001])
    world.start()
    world.run()
    assert kinds(world.log) == ["delete"]


def test_what_a_resync_misses_is_made_again(world: World) -> None:
    ifindex = up(world)
    world.kernel.fib.clear()  # and nobody said so
    world.start()
    world.run()
    assert world.log == [Add(key(X), ifindex, OURS)]
    world.check()


def test_what_was_touched_since_the_dump_began_is_not_judged_by_it(world: World) -> None:
    op = ready(world)
    world.resync_begin()
    world.resync_dump()
    world.routes.answer(op, *world.kernel.apply(op), world.now)
    world.resync_end()
    world.run()
    assert world.log == []
    world.check()


def test_what_was_touched_since_the_question_is_not_judged_by_the_dump(world: World) -> None:
    op = ready(world)
    world.kernel.other_add(key(X), 12, op.oif, how="excl")
    world.routes.answer(op, errno.EEXIST, "", world.now)
    world.ask()
    world.dump()
    world.kernel.other_del(key(X), world.kernel.fib[key(X)][0])
    world.drain()
    world.holders()
    assert world.routes.conflicts() == []
    world.run()
    world.check()


@pytest.mark.parametrize("resync", [False, True])
def test_a_dump_does_not_bring_back_what_was_flushed_in_silence(world: World, resync: bool) -> None:
    ifindex = up(world)
    if resync:
        world.lose_events()
        world.drain()
        world.resync_begin()
        world.resync_dump()
    else:
        late = message(key(X), OURS, ifindex, deleted=True)
        world.routes.route_event(late)  # type: ignore[arg-type]
        world.collect()
        world.execute()
        world.answer()
        world.ask()
        world.dump()
    world.kernel.link_admin(ifindex, up=False)
    world.kernel.link_admin(ifindex, up=True)
    world.drain()
    world.holders()
    world.resync_end()
    world.run()
    world.check()


def test_a_key_held_by_nobody_and_yet_refused_is_no_storm(world: World) -> None:
    """As when a dump skips routes, which those of IPv4 may do."""
    op = ready(world)
    ops = 0
    end = world.now + 60
    while world.now < end:
        world.routes.answer(op, errno.EEXIST, "", world.now)
        ops += 1
        for subject in world.routes.ask(world.now):
            world.routes.holders(*subject, [], world.now)
        while not world.routes.collect(world.now, 9):
            world.now = world.routes.deadline() or 0.0
    assert ops < 15


def test_an_overrun_costs_no_op_and_one_dump(world: World) -> None:
    for n in range(20):
        up(world, f"cali{n}", f"10.65.0.{n}", f"e{n}")
    world.lose_events()
    world.drain()
    world.run()
    assert world.log == []
    assert world.routes.counts().programmed == 0
    world.questions = 0
    world.start()
    world.run()
    world.check()
    assert world.log == []
    assert world.questions == 1


def test_nothing_is_deleted_between_an_overrun_and_the_resync(world: World) -> None:
    up(world)
    world.gone("a")
    world.lose_events()
    world.run()
    assert world.log == []
    world.start()
    world.run()
    world.check()
    assert kinds(world.log) == ["delete"]


def test_an_overrun_voids_the_resync_that_was_under_way(world: World) -> None:
    up(world)
    world.resync_begin()
    world.routes.overrun()
    world.routes.resync_end([])
    world.run()
    assert world.log == []


# -- what it says of itself -------------------------------------------------------------------


def test_the_watched_destinations_are_a_live_view(world: World) -> None:
    watched = world.routes.watched()
    assert key(X)[:3] not in watched
    world.set(endpoint("a", "cali0", X))
    world.set(endpoint("b", "cali1", X, table=1001))
    assert key(X)[:3] in watched
    world.gone("a")
    assert key(X)[:3] in watched
    world.gone("b")
    assert key(X)[:3] not in watched


def test_unknown_endpoints(world: World) -> None:
    world.routes.endpoint_gone(A)
    with pytest.raises(KeyError):
        world.routes.state(A)
    world.set(endpoint("a", "cali0", X))
    world.gone("a")
    assert world.routes.take_changed() == []
