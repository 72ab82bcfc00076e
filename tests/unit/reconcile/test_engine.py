"""The engine for own links: what issue 3 says must hold, one scenario a test."""

from __future__ import annotations

import errno

import pytest

from netreeve.model import link_op
from netreeve.model.link_spec import Conflict, LinkCounts, Status
from netreeve.model.prefix import LinkAddress
from netreeve.plan.model import Tap
from tests.support.fake_links import AF_INET, FakeLinks
from tests.support.link_world import World, changes, made, token, vpc

A = LinkAddress.parse


# -- from nothing, and changes --


@pytest.mark.parametrize("echo", [True, False])
def test_a_plan_is_made_controllers_first(echo: bool) -> None:
    world = World(FakeLinks(echo=echo))
    world.plan(
        vpc("red", 7, 1001, "10.1.0.1/24", mac="02:00:00:00:10:01", mtu=1450),
        Tap("eth0", 1400, "red-bri"),
    )
    world.settled()
    links = world.kernel.ours()
    assert links["red-bri"].controller == links["red-vrf"].ifindex
    assert links["red-vtp"].controller == links["red-bri"].ifindex
    assert links["eth0-tap"].controller == links["red-bri"].ifindex
    assert links["eth0-tap"].mtu == 1400
    assert links["red-vtp"].mac == bytes.fromhex("020000001001")
    assert all(link.admin_up and link.altnames == (token(link.name),) for link in links.values())
    assert list(world.kernel.addresses[links["red-bri"].ifindex]) == [A("10.1.0.1/24")]
    assert world.engine.counts() == LinkCounts(4, 4, 0, 0, 0, 0)
    assert not world.engine.changes()
    assert not world.engine.ready


def test_a_vpc_without_a_table_has_no_vrf() -> None:
    world = made(vpc("red", 7))
    assert set(world.kernel.ours()) == {"red-bri", "red-vtp"}
    assert world.kernel["red-bri"].controller == 0


@pytest.mark.parametrize(
    ("more", "step"),
    [
        ({"ttl": 3}, {"data": (("ttl", 3),), "real_kind": "vxlan"}),
        ({"local": (AF_INET, b"\1\1\1\1")}, {"data": (("local", (2, b"\1\1\1\1")),)}),
        ({"mtu": 1400}, {"mtu": 1400}),
        ({"mac": "02:00:00:00:00:77"}, {"mac": bytes.fromhex("020000000077")}),
    ],
)
def test_what_the_kernel_changes_live_is_one_set(more: dict, step: dict) -> None:  # type: ignore[type-arg]
    world = made(vpc("red", 7))
    before = world.kernel["red-vtp"].ifindex
    world.plan(vpc("red", 7, **more))
    world.settled()
    assert world.kernel["red-vtp"].ifindex == before
    (sent,) = [each for each in changes(world) if each.name == "red-vtp"]
    assert isinstance(sent, link_op.Set)
    assert {name: getattr(sent, name) for name in step} == step


@pytest.mark.parametrize("more", [{"vni": 8}, {"port": 4790}, {"local": (10, b"\xfd" + bytes(15))}])
def test_what_it_does_not_is_a_new_link(more: dict) -> None:  # type: ignore[type-arg]
    world = made(vpc("red", 7))
    world.plan(vpc("red", **{"vni": 7, **more}))
    assert [(each.action, each.name) for each in world.engine.changes()] == [
        ("recreate", "red-vtp")
    ]
    world.settled()
    assert [type(each).__name__ for each in changes(world)] == ["Delete", "Create", "TokenAdd"]


def test_members_are_attached_again_after_their_controller_was_made_anew() -> None:
    world = made(vpc("red", 7, 1001))
    world.plan(vpc("red", 7, 1002))
    world.settled()
    links = world.kernel.ours()
    assert links["red-vrf"].table == 1002
    assert links["red-bri"].controller == links["red-vrf"].ifindex


@pytest.mark.parametrize("seed", range(3))
def test_vnis_and_tables_are_swapped(seed: int) -> None:
    world = made(vpc("red", 1, 1001), vpc("blue", 2, 1002), seed=seed)
    world.plan(vpc("red", 2, 1002), vpc("blue", 1, 1001))
    world.settled()
    links = world.kernel.ours()
    assert (links["red-vtp"].vni, links["blue-vtp"].vni) == (2, 1)
    assert (links["red-vrf"].table, links["blue-vrf"].table) == (1002, 1001)
    assert not any(world.engine.status(spec.name).reason for spec in world.wanted)  # type: ignore[union-attr]


def test_a_vni_is_freed_before_another_takes_it() -> None:
    world = made(vpc("red", 1))
    world.plan(vpc("blue", 1))
    status = world.engine.status("blue-vtp")
    assert world.engine.changes()
    world.settled()
    assert status is not None
    assert world.kernel["blue-vtp"].vni == 1
    assert all(each.name != "blue-vtp" for each in changes(world)[:1])


def test_new_addresses_come_before_old_ones_go_and_an_admins_stays() -> None:
    world = made(vpc("red", 7, None, "10.1.0.1/24", "10.2.0.1/24"))
    held = world.kernel.addresses[world.kernel["red-bri"].ifindex]
    held[A("10.3.0.1/24")] = 0
    held[A("10.4.0.1/24")] = 0
    world.engine.address_touched(world.kernel["red-bri"].ifindex)
    world.plan(vpc("red", 7, None, "10.1.0.1/24", "10.2.0.2/24", "10.4.0.1/24"))
    world.settled()
    assert held == {
        A("10.1.0.1/24"): 98,
        A("10.2.0.2/24"): 98,
        A("10.3.0.1/24"): 0,
        A("10.4.0.1/24"): 0,
    }
    first, second, *_ = changes(world)
    assert isinstance(first, link_op.AddrAdd)
    assert isinstance(second, link_op.AddrDelete)


def test_an_address_whose_end_would_take_an_admins_along_stays() -> None:
    world = made(vpc("red", 7, None, "10.1.0.1/24"))
    held = world.kernel.addresses[world.kernel["red-bri"].ifindex]
    held[A("10.1.0.77/24")] = 0  # a secondary one of that network
    world.engine.address_touched(world.kernel["red-bri"].ifindex)
    world.plan(vpc("red", 7, None, "10.9.0.1/24"))
    world.settled()
    assert set(held) == {A("10.1.0.1/24"), A("10.1.0.77/24"), A("10.9.0.1/24")}
    del held[A("10.1.0.77/24")]
    world.engine.address_touched(world.kernel["red-bri"].ifindex)
    world.settled()
    assert set(held) == {A("10.9.0.1/24")}


def test_a_kernel_without_vlan_filtering() -> None:
    world = World(FakeLinks(has_filtering=False))
    world.plan(vpc("red", 7, vlan_filtering=False), vpc("blue", 8, vlan_filtering=True))
    world.run()
    assert world.states(["red-bri", "blue-bri"]) == {"red-bri": "in_sync", "blue-bri": "error"}
    status = world.engine.status("blue-vtp")
    assert status == Status("pending", "waits for its controller blue-bri, which is not there")


# -- links of others --


def test_flannel_on_another_port_stays_and_ours_comes() -> None:
    world = World()
    world.kernel.add("flannel.1", "vxlan", vni=1, port=8472)
    world.kernel.add("cni0", "bridge")
    world.kernel.add("vpc9-vtp", "vxlan", vni=9, port=4789)
    before = world.kernel.foreign()
    world.plan(vpc("red", 1))
    world.settled()
    assert world.kernel.foreign() == before
    assert set(world.kernel.ours()) == {"red-bri", "red-vtp"}
    assert [each.name for each in world.engine.foreign(world.kernel.links.values())] == [  # type: ignore[arg-type]
        "cni0",
        "flannel.1",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_flannel_on_our_port_is_a_conflict_without_a_storm(known: bool) -> None:
    world = World()
    if known:
        world.kernel.add("flannel.1", "vxlan", vni=1, port=4789)
    world.plan(vpc("red", 1), vpc("blue", 2))
    if not known:
        world.engine.observe_all(list(world.kernel.links.values()))  # type: ignore[arg-type]
        world.kernel.add("flannel.1", "vxlan", vni=1, port=4789)
    before = world.kernel.foreign()
    world.run()
    assert world.states() == {
        "red-bri": "in_sync",
        "red-vtp": "conflict",
        "blue-bri": "in_sync",
        "blue-vtp": "in_sync",
    }
    (conflict,) = world.engine.conflicts()
    assert (conflict.object, conflict.holder) == ("vpc red", "flannel.1")
    world.kernel.log.clear()
    world.run(batches=50, timers=True)
    assert not [each for each in changes(world) if each.name == "red-vtp"]
    assert world.kernel.foreign() == before
    world.kernel.delete("flannel.1")
    world.settled()
    assert world.states()["red-vtp"] == "in_sync"


def test_a_socket_of_others_on_our_port_is_named() -> None:
    world = World()
    world.plan(vpc("red", 1))
    world.kernel.add("cilium_vxlan", "vxlan", vni=0, port=4789)
    world.kernel.broken[link_op.Create] = (errno.EADDRINUSE, "")
    world.plan(vpc("red", 1))
    world.kernel.add("red-bri", "bridge")
    world.run()
    assert world.engine.status("red-vtp") == Status(
        "conflict", "port 4789: held by cilium_vxlan (vxlan), which isn't ours", "cilium_vxlan"
    )


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("red-vrf", "bridge", "named as a vrf of ours is, but it is a bridge, not a vrf"),
        ("eth0-tap", "tun", "named as a tap of ours is, but it is not known to be a tap"),
    ],
)
def test_a_name_held_by_another_kind(name: str, kind: str, reason: str) -> None:
    world = World()
    world.kernel.add(name, kind, tap=False)
    before = world.kernel.foreign()
    world.plan(vpc("red", 1, 1001), Tap("eth0"))
    world.run()
    assert [each for each in world.engine.conflicts() if each.name == name] == [
        Conflict("vpc red" if name == "red-vrf" else "tap eth0", name, name, reason)
    ]
    assert world.kernel.foreign() == before
    world.kernel.delete(name)
    world.settled()
    assert set(world.states().values()) == {"in_sync"}


def test_a_name_held_as_an_alternative_name() -> None:
    world = World()
    world.kernel.add("eth7", "veth")
    world.kernel.altname("eth7", "red-bri")
    world.plan(vpc("red", 1))
    world.run()
    (conflict,) = world.engine.conflicts()
    assert conflict.holder == "eth7"
    assert conflict.reason == "red-bri is an alternative name of eth7 (veth)"
    assert not changes(world)


def test_a_foreign_vrf_keeps_its_table() -> None:
    world = World()
    world.kernel.add("mgmt", "vrf", table=1001)
    world.plan(vpc("red", 1, 1001))
    world.run()
    assert world.engine.conflicts()[0].holder == "mgmt"
    world.kernel.change("mgmt", table=5)
    world.settled()
    assert set(world.states().values()) == {"in_sync"}


def test_a_stolen_member_is_not_stolen_back() -> None:
    world = made(vpc("red", 1))
    docker = world.kernel.add("docker0", "bridge")
    world.kernel.change("red-vtp", controller=docker.ifindex)
    world.run()
    assert world.engine.status("red-vtp") == Status(
        "conflict", "it is in docker0 (bridge), which isn't ours, not in red-bri", "docker0"
    )
    assert not changes(world)
    world.kernel.change("red-vtp", controller=0)
    world.settled()
    assert world.kernel["red-vtp"].controller == world.kernel["red-bri"].ifindex


def test_a_controller_of_others_that_comes_later() -> None:
    world = World()
    world.plan(Tap("eth0", None, "br0"))
    world.run()
    assert world.states() == {"eth0-tap": "pending"}
    world.kernel.add("br0", "bridge")
    world.settled()
    assert world.kernel["eth0-tap"].controller == world.kernel["br0"].ifindex
    world.plan(Tap("eth0"), vpc("red", 1))
    world.settled()
    assert world.kernel["eth0-tap"].controller == 0


def test_a_link_moved_in_on_our_ifindex_survives() -> None:
    world = made(vpc("red", 1), vpc("blue", 2))
    ours = world.kernel["red-vtp"]
    world.kernel.delete("red-vtp")
    world.kernel.add("moved", "veth", ours.ifindex)
    world.kernel.events.clear()  # and nothing was told
    before = world.kernel.foreign()
    world.plan(vpc("blue", 2))
    world.settled()
    assert world.kernel.foreign() == before
    assert "moved" in world.kernel.foreign()[ours.ifindex][0].name


@pytest.mark.parametrize("told", [True, False])
def test_a_token_that_came_on_a_stranger_comes_off_again(told: bool) -> None:
    world = World()
    hand_made = world.kernel.add("red-bri", "bridge")
    world.plan(vpc("red", 1))
    while not any(isinstance(step, link_op.Look | link_op.Survey) for step in world.kernel.log):
        world.step()
    # After the look, and told only after the token: another link takes the ifindex.
    (step,) = [each for each in world.engine.collect(world.now, 9) if each.name == "red-bri"]
    assert isinstance(step, link_op.TokenAdd)
    world.kernel.delete("red-bri")
    world.kernel.add("moved", "veth", hand_made.ifindex)
    if not told:
        world.kernel.events.clear()
    world.engine.answer(step, *world.kernel.do(step), world.now)
    world.run(batches=20, timers=True)
    assert any(isinstance(step, link_op.TokenRemove) for step in world.kernel.log)
    assert world.kernel["moved"].altnames == ()
    world.settled()


def test_a_token_left_on_a_stranger_by_a_dead_agent_comes_off() -> None:
    world = World()
    world.kernel.add("moved", "veth", altnames=(token("red-bri"), "mine"))
    world.plan()
    world.settled()
    assert world.kernel["moved"].altnames == ("mine",)


def test_a_link_of_ours_that_was_renamed_is_left_and_made_anew() -> None:
    world = made(vpc("red", 1))
    world.kernel.change("red-bri", name="mine")
    world.settled()
    assert world.kernel["mine"].kind == "bridge"
    assert world.kernel["mine"].altnames == ()
    assert world.kernel["red-bri"].altnames == (token("red-bri"),)


# -- failures and wars --


def test_a_refusal_is_retried_slower_and_slower() -> None:
    world = World()
    world.kernel.broken[link_op.Create] = (errno.EOPNOTSUPP, "Unknown device type")
    world.plan(vpc("red", 1, 1001))
    begin = world.now
    world.run(batches=60, timers=True)
    tries = len(changes(world, link_op.Create))
    assert 5 < tries < 15 + (world.now - begin) / 14
    assert world.engine.status("red-vrf") == Status(
        "error", "Create: Unknown device type (errno 95)"
    )
    assert world.engine.counts() == LinkCounts(3, 0, 2, 1, 0, 0)
    world.kernel.broken.clear()
    world.run(batches=60, timers=True)
    world.settled()


def test_drift_is_put_right_at_once_but_a_war_is_slowed() -> None:
    world = made(vpc("red", 1, mtu=1450))
    for _ in range(5):
        world.kernel.change("red-bri", mtu=1500)
        world.run()
        assert world.kernel["red-bri"].mtu == 1450
        world.now += 0.1
    world.kernel.log.clear()
    for _ in range(100):
        world.kernel.change("red-bri", mtu=1500)
        world.run()
        world.now += 0.1
    assert 3 <= len(changes(world, link_op.Set)) <= 12
    status = world.engine.status("red-bri")
    assert status is not None
    assert "as often as it is put right" in str(status.reason)
    world.now += 120
    world.settled()
    world.kernel.change("red-bri", mtu=1500)
    world.settled()
    assert world.engine.status("red-bri") == Status("in_sync")


def test_a_change_that_the_kernel_takes_and_forgets_is_no_hot_loop() -> None:
    world = made(vpc("red", 1))
    world.kernel.broken[link_op.Set] = (0, "")
    world.plan(vpc("red", 1, mtu=9000))
    world.run(batches=100)
    assert len(changes(world, link_op.Set)) <= 12


def test_lost_answers() -> None:
    world = World()
    world.plan(vpc("red", 1, None, "10.1.0.1/24"), Tap("eth0"))
    for _ in range(12):
        for step in world.engine.collect(world.now, 2):
            number, words, result = world.kernel.do(step)
            if step.reads:
                world.engine.answer(step, number, words, result, world.now)
            else:
                world.engine.answer(step, None, "", None, world.now)
        world.now += 1
    world.run(batches=60, timers=True)
    world.settled()
    assert set(world.states().values()) == {"in_sync"}


# -- reading only, and reports --


def test_plan_reads_everything_and_changes_nothing_until_it_acts() -> None:
    world = World(acting=False)
    world.kernel.add("red-bri", "bridge", admin_up=True, mtu=1400)
    old = world.kernel.add("old-bri", "bridge")
    world.kernel.add("cali1", "veth", controller=old.ifindex)
    world.kernel.add("gone-bri", "bridge")
    world.kernel.add("flannel.2", "vxlan", vni=2, port=4789)
    world.plan(vpc("red", 1, mtu=1450), vpc("blue", 2))
    world.run()
    assert not changes(world)
    assert [(each.action, each.name) for each in world.engine.changes()] == [
        ("create", "blue-bri"),
        ("delete", "gone-bri"),
        ("change", "red-bri"),
        ("create", "red-vtp"),
    ]
    assert world.engine.changes()[2].fields == {"mtu": {"observed": 1400, "wanted": 1450}}
    assert [each.name for each in world.engine.held_back()] == ["old-bri"]
    assert [each.holder for each in world.engine.conflicts()] == ["flannel.2"]
    world.engine.act()
    world.run()
    assert set(world.kernel.ours()) == {"red-bri", "red-vtp", "blue-bri", "old-bri"}


def test_explain_tells_all() -> None:
    world = made(vpc("red", 1))
    told = world.engine.explain("red-vtp")
    assert told is not None
    assert told["ownership"] == {
        "verdict": "owned",
        "reason": "named as a vtep of ours is, and it is one; it has our token",
    }
    assert told["plan"] == {
        "object": "vpc red",
        "kind": "vtep",
        "vni": 1,
        "port": 4789,
        "local": "192.0.2.1",
        "ttl": 64,
        "controller": "red-bri",
    }
    operations = told["operations"]
    assert isinstance(operations, list)
    assert [each["step"] for each in operations][:2] == ["Create", "Look"]
    assert operations[0]["errno"] == 0
    assert world.engine.explain("cali1") is None


def test_an_answer_to_nothing_is_an_error() -> None:
    world = made(vpc("red", 1))
    with pytest.raises(ValueError, match="not in flight"):
        world.engine.answer(link_op.Look("red-bri"), 0, "", None, world.now)


def test_an_unchanged_pass_asks_for_nothing_but_the_two_views() -> None:
    world = made(vpc("red", 1, 1001, "10.1.0.1/24"))
    world.engine.resync()
    assert [type(step) for step in world.run()] == [link_op.Survey, link_op.AddrLook]
    assert world.engine.deadline() is None
