"""The engine for own links: when it deletes, and when it does not."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace

from netreeve.model import link_op
from netreeve.model.link_spec import HeldBack
from netreeve.reconcile.bulk import BULK_LINKS, BULK_MOST
from tests.support.link_world import World, changes, made, token, vpc


def test_guests_keep_a_link_from_being_deleted() -> None:
    world = made(vpc("red", 1), vpc("blue", 2))
    bridge = world.kernel["red-bri"].ifindex
    world.kernel.add("cali1", "veth", controller=bridge)
    before = world.kernel.foreign()
    world.plan(vpc("blue", 2))
    world.run()
    assert world.engine.held_back() == [
        HeldBack("red-bri", "cali1 (veth), which isn't ours, is a member of it")
    ]
    assert world.states(["red-bri"]) == {"red-bri": "blocked"}
    assert world.kernel.foreign() == before
    world.kernel.change("cali1", controller=0)
    world.settled()
    assert set(world.kernel.ours()) == {"blue-bri", "blue-vtp"}


def test_links_made_before_are_adopted_then_collected() -> None:
    world = World()
    world.kernel.add("red-bri", "bridge", admin_up=True)
    world.kernel.add("old-bri", "bridge")
    world.plan(vpc("red", 1))
    world.settled()
    assert set(world.kernel.ours()) == {"red-bri", "red-vtp"}
    adopted = [type(each).__name__ for each in changes(world) if each.name == "old-bri"]
    assert adopted == ["TokenAdd", "Delete"]
    assert world.kernel["red-bri"].altnames == (token("red-bri"),)


def test_in_token_mode_they_are_left_and_shown() -> None:
    world = World(mode="token")
    world.kernel.add("red-bri", "bridge")
    world.kernel.add("old-bri", "bridge", altnames=(token("old-bri", "another00install"),))
    before = dict(world.kernel.links)
    world.plan(vpc("red", 1), vpc("blue", 2))
    world.settled()
    assert world.states(["red-bri", "old-bri", "blue-bri"]) == {
        "red-bri": "unproven",
        "old-bri": "unproven",
        "blue-bri": "in_sync",
    }
    assert [each.name for each in world.engine.held_back()] == ["old-bri", "red-bri"]
    assert all(replace(world.kernel.links[index]) == link for index, link in before.items())
    world.plan()
    world.settled()
    assert "blue-bri" not in world.kernel.ours()


def test_very_many_go_in_several() -> None:
    world = made(*(vpc(f"v{n}", n) for n in range(1, 101)))
    world.plan()
    world.engine.release_brake()
    world.settled()
    assert not world.kernel.ours()
    requests = [step for step in world.kernel.log if isinstance(step, link_op.GroupDelete)]
    assert len(requests) >= 200 // BULK_MOST
    sizes = Counter(step.group for step in world.kernel.log if isinstance(step, link_op.GroupSet))
    assert max(sizes.values()) == BULK_MOST
    assert min(sizes.values()) >= BULK_LINKS


def test_many_go_in_one_request() -> None:
    world = made(*(vpc(f"v{n}", n) for n in range(1, 11)))
    world.plan(*(vpc(f"v{n}", n) for n in range(1, 6)))
    world.settled()
    assert len(world.kernel.ours()) == 10
    assert not changes(world, link_op.Delete)
    assert len(changes(world, link_op.GroupDelete)) == 1


def test_a_stranger_in_the_group_saves_itself() -> None:
    world = made(*(vpc(f"v{n}", n) for n in range(1, 11)))
    world.kernel.add("cali1", "veth")
    world.plan(*(vpc(f"v{n}", n) for n in range(1, 6)))
    while not (groups := changes(world, link_op.GroupSet)):
        world.step()
    (group,) = {each.group for each in groups if isinstance(each, link_op.GroupSet)}
    world.kernel.change("cali1", group=group)
    world.settled()
    assert not changes(world, link_op.GroupDelete)
    assert len(changes(world, link_op.Delete)) == 10
    assert "cali1" in [link.name for link, _ in world.kernel.foreign().values()]


def test_a_bulk_delete_that_the_kernel_refuses_is_done_one_by_one() -> None:
    world = made(*(vpc(f"v{n}", n) for n in range(1, 11)))
    world.kernel.broken[link_op.GroupDelete] = (errno.EOPNOTSUPP, "")
    world.plan(*(vpc(f"v{n}", n) for n in range(1, 6)))
    world.settled()
    assert len(world.kernel.ours()) == 10


def test_the_brake_holds_until_it_is_released() -> None:
    entries = [vpc(f"v{n}", n) for n in range(1, 11)]
    world = made(*entries)
    world.plan(*entries[:3])
    world.settled()
    assert len(world.kernel.ours()) == 20
    held = world.engine.held_back()
    assert len(held) == 14
    assert held[0].reason.startswith("the delete brake: 14 of 20 links")
    assert not world.engine.changes()
    world.plan(*entries[:8])
    world.settled()
    assert len(world.kernel.ours()) == 16
    world.plan(*entries[:1])
    world.engine.release_brake()
    world.settled()
    assert len(world.kernel.ours()) == 2
    world.plan()
    world.settled()
    assert not world.kernel.ours()  # ten and fewer go without


def test_a_held_plan_deletes_nothing_and_says_so() -> None:
    world = made(vpc("red", 1))
    world.plan(hold="the plan is empty (NETREEVE_ALLOW_EMPTY_PLAN)")
    world.settled()
    assert not changes(world)
    assert {each.reason for each in world.engine.held_back()} == {
        "the plan is empty (NETREEVE_ALLOW_EMPTY_PLAN)"
    }
    world.plan()
    world.settled()
    assert not world.kernel.ours()


def test_nothing_is_deleted_before_the_plan_or_from_a_view_with_holes() -> None:
    world = World()
    world.kernel.add("old-bri", "bridge")
    world.hold = "there is no plan yet"
    world.restart()
    world.settled()
    world.plan()
    world.kernel.broken[link_op.Survey] = (errno.EINTR, "interrupted")
    world.engine.overrun()
    assert not world.engine.view_complete
    world.run(batches=50, timers=True)
    assert not changes(world)
    world.kernel.broken.clear()
    world.run(batches=50, timers=True)
    assert world.engine.view_complete
    assert not world.kernel.ours()
