from __future__ import annotations

import errno
import itertools
from collections.abc import Callable

import pytest

from netreeve.model.ids import EndpointId
from netreeve.model.route import CONFIRMED, PENDING, Add, Delete, Replace, RouteState
from tests.support.fake_kernel import OURS, message
from tests.support.route_world import World, endpoint, key, kinds, ready, up

X = "10.65.0.1"
FAMILIES = ["10.65.0.1", "fd00:65::1"]
A = EndpointId("test", "a", "eth0")
B = EndpointId("test", "b", "eth0")


# -- the usual life ---------------------------------------------------------------------------


def test_a_route_is_made_when_the_link_is_up_and_not_before(world: World) -> None:
    world.set(endpoint("a", "cali0", X, "fd00:65::1"))
    ifindex = world.kernel.link_add("cali0", up=False)
    world.run()
    assert world.log == []
    assert world.routes.state(A) == PENDING
    world.kernel.link_admin(ifindex, up=True)
    world.run()
    assert world.log == [Add(key(X), ifindex, OURS), Add(key("fd00:65::1"), ifindex, OURS)]
    assert world.routes.state(A) == CONFIRMED
    assert world.routes.counts().programmed == 2


def test_an_endpoint_without_addresses_is_confirmed_as_soon_as_it_is_up(world: World) -> None:
    world.set(endpoint("a", "cali0"))
    assert world.routes.state(A) == PENDING
    world.routes.take_changed()
    world.kernel.link_add("cali0", up=True)
    world.run()
    assert world.routes.take_changed() == [A]
    assert world.routes.state(A) == CONFIRMED


def test_carrier_loss_keeps_the_route_and_asks_for_no_op(world: World) -> None:
    ifindex = up(world)
    world.routes.take_changed()
    world.kernel.link_carrier(ifindex, on=False)
    world.run()
    assert world.routes.state(A) == PENDING
    world.kernel.link_carrier(ifindex, on=True)
    world.run()
    assert world.log == []
    assert world.routes.take_changed() == [A]  # each up waits for its routes
    assert world.routes.state(A) == CONFIRMED


@pytest.mark.parametrize("address", FAMILIES)
def test_a_flap_between_two_looks_loses_nothing(world: World, address: str) -> None:
    ifindex = up(world, address=address)
    for _ in range(3):
        world.kernel.link_admin(ifindex, up=False)
        world.kernel.link_admin(ifindex, up=True)
    world.run()
    world.check()
    assert kinds(world.log) == ["add"]


@pytest.mark.parametrize("address", FAMILIES)
def test_a_rebuilt_link_gets_the_route(world: World, address: str) -> None:
    for _ in range(5):
        ifindex = world.kernel.by_name("cali0") or up(world, address=address)
        world.kernel.link_del(ifindex)
        world.kernel.link_add("cali0", up=True)
        world.run()
        world.check()
    assert kinds(world.log) == ["add"] * 5


def test_a_late_word_of_an_old_ipv6_route_ends_right(world: World) -> None:
    ifindex = up(world, address="fd00:65::1")
    late = message(key("fd00:65::1"), OURS, ifindex, deleted=True)
    world.routes.route_event(late)  # type: ignore[arg-type]
    world.run()
    world.check()
    world.routes.route_event(  # of another device: not about the route that is there
        message(key("fd00:65::1"), OURS, ifindex + 50, deleted=True)  # type: ignore[arg-type]
    )
    world.log.clear()
    world.run()
    assert world.log == []


@pytest.mark.parametrize("address", FAMILIES)
def test_administratively_down_takes_the_route_away(world: World, address: str) -> None:
    ifindex = up(world, address=address)
    world.kernel.link_carrier(ifindex, on=False)  # also from a link that is down
    world.set(endpoint("a", "cali0", address, admin_up=False))
    world.run()
    world.check()
    assert world.log == [Delete(key(address), ifindex, OURS)]


def test_a_link_renamed_away_loses_the_route(world: World) -> None:
    ifindex = up(world)
    world.kernel.link_rename(ifindex, "elsewhere")
    world.run()
    world.check()
    assert world.log == [Delete(key(X), ifindex, OURS)]


def test_a_gone_link_costs_no_request(world: World) -> None:
    ifindex = up(world)
    world.kernel.link_del(ifindex)
    world.gone("a")
    world.run()
    assert world.log == []
    world.check()


def test_another_table_frees_the_old_key_first(world: World) -> None:
    ifindex = up(world)
    world.set(endpoint("a", "cali0", X, table=1001))
    world.run()
    world.check()
    assert world.log == [Delete(key(X), ifindex, OURS), Add(key(X, 1001), ifindex, OURS)]


# -- an address moves -------------------------------------------------------------------------


def link_comes(world: World, name: str) -> None:
    world.kernel.link_add(name, up=True)
    world.drain()


MOVE: dict[str, Callable[[World], None]] = {
    "a loses it": lambda world: world.set(endpoint("a", "cali0")),
    "b gets it": lambda world: world.set(endpoint("b", "cali1", X)),
    "b's link comes": lambda world: link_comes(world, "cali1"),
}


@pytest.mark.parametrize("order", list(itertools.permutations(MOVE)), ids=", ".join)
def test_a_move_is_one_replace_in_any_order(world: World, order: tuple[str, ...]) -> None:
    old = up(world)
    for step in order:
        MOVE[step](world)
    world.run()
    world.check()
    new = world.kernel.by_name("cali1")
    assert new is not None
    assert new != old
    assert world.log == [Replace(key(X), new, OURS)]


@pytest.mark.parametrize("order", list(itertools.permutations(MOVE)), ids=", ".join)
def test_a_move_ends_right_when_each_step_is_acted_on(world: World, order: tuple[str, ...]) -> None:
    up(world)
    for step in order:
        MOVE[step](world)
        world.run()
    world.check()


def test_a_move_to_a_link_that_is_not_up_takes_the_route_off_the_old_one(world: World) -> None:
    old = up(world)
    new = world.kernel.link_add("cali1", up=False)
    world.set(endpoint("a", "cali0"))
    world.set(endpoint("b", "cali1", X))
    world.run()
    world.check()
    world.kernel.link_admin(new, up=True)
    world.run()
    world.check()
    assert world.log == [Delete(key(X), old, OURS), Add(key(X), new, OURS)]


def test_what_is_not_proved_to_be_alone_is_not_replaced(world: World) -> None:
    old = up(world)
    world.kernel.other_add(key(X), 12, old, how="prepend")
    world.lose_events()
    world.kernel.link_add("cali1", up=True)
    world.set(endpoint("a", "cali0"))
    world.set(endpoint("b", "cali1", X))
    world.run()
    world.start()
    world.run()
    world.check()  # the foreign route is still there, and the first: a conflict
    assert world.kernel.window_losses == 0
    assert "replace" not in kinds(world.log)


def test_the_loser_of_an_address_waits_until_it_is_told(world: World) -> None:
    up(world)
    world.kernel.link_add("cali1", up=True)
    world.set(endpoint("b", "cali1", X))
    world.run()
    assert world.routes.state(B) == CONFIRMED
    assert world.routes.state(A) == PENDING
    world.gone("b")
    world.run()
    world.check()


# -- others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("address", FAMILIES)
def test_a_foreign_route_is_a_conflict_that_says_who(world: World, address: str) -> None:
    ifindex = world.kernel.link_add("cali0", up=True)
    world.kernel.other_add(key(address), 12, ifindex, how="excl")
    foreign = world.kernel.fib[key(address)][0]
    world.set(endpoint("a", "cali0", address))
    world.run()
    world.check()
    assert world.routes.state(A) == RouteState(
        "refused", f"{key(address)}: held by a route of protocol bird (12), ifindex {ifindex}"
    )
    world.log.clear()
    world.wait(300)
    assert 5 <= len(world.log) <= 20  # slow, and for ever
    assert set(kinds(world.log)) == {"add"}
    assert world.kernel.fib[key(address)] == [foreign]
    world.log.clear()
    world.kernel.other_del(key(address), foreign)
    world.run()  # at once
    world.check()
    assert world.routes.state(A) == CONFIRMED


def test_a_silent_end_of_the_holder_is_noticed_with_its_link(world: World) -> None:
    other = world.kernel.link_add("eth9", up=True)
    world.kernel.other_add(key(X), 4, other, how="excl")
    world.kernel.link_add("cali0", up=True)
    world.set(endpoint("a", "cali0", X))
    world.run()
    assert world.routes.counts().conflicts == 1
    world.kernel.link_del(other)
    world.run()
    world.check()
    assert world.routes.state(A) == CONFIRMED


def test_our_protocol_in_another_shape_is_not_ours(world: World) -> None:
    ifindex = up(world)
    world.routes.route_event(
        message(key("10.65.0.9"), OURS, ifindex, has_gateway=True)  # type: ignore[arg-type]
    )
    world.routes.route_event(message(key("10.65.0.8"), OURS, 0, nexthops=2))  # type: ignore[arg-type]
    world.routes.route_event(message(key("10.65.0.7"), OURS, ifindex, type=6))  # type: ignore[arg-type]
    world.routes.route_event(message(key("10.65.0.6", metric=0), OURS, ifindex))  # type: ignore[arg-type]
    world.routes.route_event(message(key("10.65.0.5", table=7), OURS, ifindex))  # type: ignore[arg-type]
    world.run()
    assert world.log == []


def test_a_flush_by_others_is_put_right_at_once(world: World) -> None:
    ifindex = up(world)
    world.kernel.other_del(key(X), world.kernel.fib[key(X)][0])
    world.run()
    assert world.log == [Add(key(X), ifindex, OURS)]
    world.check()


def test_ours_on_the_wrong_device_beside_a_foreign_one_is_deleted(world: World) -> None:
    ifindex = up(world)
    other = world.kernel.link_add("eth9", up=True)
    world.kernel.other_add(key(X), 12, other, how="append")
    world.run()
    assert world.routes.counts().conflicts == 1
    world.kernel.link_del(ifindex)
    world.kernel.link_add("cali0", up=True)
    world.run()
    world.check()
    assert "replace" not in kinds(world.log)


# -- the kernel's answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (errno.EPERM, "", "Operation not permitted"),
        (errno.EINVAL, "Invalid prefix for given prefix length", None),
        (errno.EACCES, "IPv6 is disabled on nexthop device", None),
        (errno.EAFNOSUPPORT, "", "Address family not supported by protocol"),
        (errno.ENETUNREACH, "Nexthop has invalid gateway", None),
        (errno.EOVERFLOW, "", "Value too large for defined data type"),
    ],
)
def test_a_refusal_is_told_in_the_kernels_words_and_tried_again(
    world: World, code: int, words: str, reason: str | None
) -> None:
    op = ready(world)
    world.routes.answer(op, code, words, world.now)
    assert world.routes.state(A) == RouteState("refused", f"{X}/32: {reason or words}")
    assert world.routes.counts().refused == 1
    assert world.routes.collect(world.now, 9) == []
    waits = []
    for _ in range(12):
        due = world.routes.deadline()
        assert due is not None
        waits.append(due - world.now)
        world.now = due
        assert world.routes.collect(world.now, 9) == [op]
        world.routes.answer(op, code, words, world.now)
    assert waits[:3] == pytest.approx([0.075, 0.15, 0.3])
    assert waits[-1] == pytest.approx(22.5)
    world.wait(60)
    world.check()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENETDOWN, "Device for nexthop is not up"),
        (errno.EINVAL, "Device for nexthop is not up"),
        (errno.ENODEV, ""),
        (errno.ENOBUFS, ""),
        (errno.ENOMEM, ""),
        (errno.EBUSY, ""),
        (errno.EAGAIN, ""),
        (errno.EINTR, ""),
        (None, ""),
    ],
)
def test_not_yet_is_no_refusal(world: World, code: int | None, words: str) -> None:
    op = ready(world)
    world.routes.answer(op, code, words, world.now)
    assert world.routes.state(A) == PENDING
    assert world.routes.collect(world.now, 9) == []
    world.wait(1)
    world.check()


def test_a_refusal_of_what_is_wanted_no_more_says_nothing(world: World) -> None:
    op = ready(world)
    world.kernel.link_admin(op.oif, up=False)
    world.drain()
    world.routes.answer(op, errno.EPERM, "", world.now)
    world.kernel.link_admin(op.oif, up=True)
    world.run()
    world.check()


def test_the_next_up_does_not_wait_for_the_backoff(world: World) -> None:
    op = ready(world)
    for _ in range(9):
        world.routes.answer(op, errno.ENETDOWN, "", world.now)
        world.now = world.routes.deadline() or 0.0
        assert world.routes.collect(world.now, 9) == [op]
    world.routes.answer(op, errno.ENETDOWN, "", world.now)
    world.kernel.link_admin(op.oif, up=False)
    world.kernel.link_admin(op.oif, up=True)
    world.run()
    world.check()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESRCH])
def test_nothing_to_replace_becomes_an_add(world: World, code: int) -> None:
    up(world)
    world.kernel.fib.clear()
    world.kernel.link_add("cali1", up=True)
    world.drain()
    world.set(endpoint("b", "cali1", X))
    world.gone("a")
    (op,) = world.routes.collect(world.now, 9)
    assert isinstance(op, Replace)
    world.routes.answer(op, code, "", world.now)
    world.run()
    world.check()


@pytest.mark.parametrize("code", [errno.ESRCH, errno.ENOENT, errno.ENODEV])
def test_nothing_to_delete_is_as_good_as_deleted(world: World, code: int) -> None:
    up(world)
    world.gone("a")
    world.kernel.fib.clear()
    (op,) = world.routes.collect(world.now, 9)
    world.routes.answer(op, code, "", world.now)
    assert world.routes.deadline() is None
    assert world.routes.collect(world.now, 9) == []


def test_a_refused_delete_is_tried_again(world: World) -> None:
    up(world)
    world.gone("a")
    (op,) = world.routes.collect(world.now, 9)
    world.routes.answer(op, errno.EPERM, "", world.now)
    assert world.routes.collect(world.now, 9) == []
    world.wait(1)
    world.check()


def test_an_answer_must_belong_to_an_op_in_flight(world: World) -> None:
    op = ready(world)
    with pytest.raises(ValueError, match="not in flight"):
        world.routes.answer(Delete(op.key, op.oif, op.protocol), 0, "", world.now)
    world.routes.answer(op, 0, "", world.now)
    with pytest.raises(ValueError, match="not in flight"):
        world.routes.answer(op, 0, "", world.now)
    with pytest.raises(ValueError, match="table 254"):
        world.routes.holders(2, 254, [], world.now)


def test_a_flush_while_the_add_is_in_flight_is_not_forgotten(world: World) -> None:
    op = ready(world)
    assert world.kernel.apply(op) == (0, "")
    world.kernel.link_admin(op.oif, up=False)
    world.kernel.link_admin(op.oif, up=True)
    world.drain()
    world.routes.answer(op, 0, "", world.now)
    assert world.routes.state(A) == PENDING
    world.run()
    world.check()


def test_a_failed_dump_is_asked_for_again(world: World) -> None:
    op = ready(world)
    world.kernel.other_add(key(X), 12, op.oif, how="excl")
    world.routes.answer(op, errno.EEXIST, "", world.now)
    assert world.routes.ask(world.now) == {(2, 254)}
    assert world.routes.ask(world.now) == set()
    world.routes.holders(2, 254, None, world.now)
    assert world.routes.ask(world.now) == set()
    world.wait(1)
    world.check()


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_is_bounded_and_frees_before_it_adds(world: World) -> None:
    world.kernel.link_add("cali0", up=True)
    world.set(endpoint("a", "cali0", *(f"10.65.1.{n}" for n in range(10))))
    world.run()
    world.set(endpoint("a", "cali0", *(f"10.65.2.{n}" for n in range(10))))
    assert kinds(world.collect(15)) == ["delete"] * 10 + ["add"] * 5
    assert world.routes.collect(world.now, 15) != []
    assert world.routes.collect(world.now, 15) == []
