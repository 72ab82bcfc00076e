"""Links of ours equal the plan, and those of others are never touched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent import AgentProcess
from tests.support.foreign import LinkWatch, Untouched, flannel, snapshot
from tests.support.netns import Namespace
from tests.support.own_links import agent_of, document, plan, tap, tokens, vpc, wait_equal, wrong
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

QUIET_S = 1.0
QUIET_OPS = 8
"""Requests that plan entries in conflict may cost, however long one looks on."""


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    with Namespace() as made:
        yield made


def conflict(agent: AgentProcess, name: str, *words: str) -> None:
    """The link of that name is in conflict, and the reason says all of these words."""
    agent.wait_status(
        f"{name} in conflict, {words}",
        lambda s: any(
            each.get("name") == name and all(word in each["reason"] for word in words)
            for each in s["conflicts"]
        ),
    )


def quiet(agent: AgentProcess, for_s: float = QUIET_S) -> None:
    """No retry storm."""
    before = agent.status()["requests"]["ops"]
    time.sleep(for_s)
    sent = agent.status()["requests"]["ops"] - before
    assert sent <= QUIET_OPS, f"{sent} requests in {for_s} s"


# -- VNIs and ports of others ---------------------------------------------------------------------


def test_flannel_with_our_vni(namespace: Namespace, tmp_path: Path) -> None:
    flannel(namespace)
    with Untouched(namespace), agent_of(namespace, tmp_path) as agent:
        namespace.ip("link add vpc9-vtp type vxlan id 9 dstport 4789")
        wanted = plan(agent, vpc("vpc1", 1, mac="02:00:00:00:00:01", mtu=1400), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        agent.wait_status("settled", lambda s: s["objects"]["in_sync"] == 2)
        assert agent.status()["conflicts"] == []
        agent.stop()


@pytest.mark.parametrize("made", ["before", "while it runs"])
def test_flannel_on_our_port(namespace: Namespace, tmp_path: Path, made: str) -> None:
    with agent_of(namespace, tmp_path) as agent:
        if made == "before":
            flannel(namespace, port=4789)
            wanted = plan(agent, vpc("vpc1", 1), vpc("vpc2", 2), tap("t", controller="vpc1-bri"),
                          wait=False)  # fmt: skip
            agent.start().wait_in_sync()
        else:
            agent.start()
            blocking_until(agent.control_path.exists, "control socket")
            flannel(namespace, port=4789)
            wanted = plan(agent, vpc("vpc1", 1), vpc("vpc2", 2), tap("t", controller="vpc1-bri"))
        with Untouched(namespace, names=["flannel.1", "cni0", "vethpod1", "peer1"]):
            wait_equal(namespace, wanted, without=["vpc1-vtp"])
            conflict(agent, "vpc1-vtp", "flannel.1")
            quiet(agent, 3.0)
            assert agent.status()["objects"]["conflict"] == 1
        namespace.ip("link del flannel.1")
        wait_equal(namespace, wanted, 1.0)
        agent.wait_status("no conflict", lambda s: s["conflicts"] == [])
        agent.stop()


def test_a_link_of_others_that_has_the_whole_port(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(
        "link add vxlan_sys_4789 type vxlan external dstport 4789\nlink set vxlan_sys_4789 up\n"
    )
    with Untouched(namespace) as others, agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("a", 1), vpc("b", 2, port=4790), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted, without=["a-vtp"], timeout_s=3)
        conflict(agent, "a-vtp", "vxlan_sys_4789")
        quiet(agent)
        others.check()
        namespace.ip("link del vxlan_sys_4789")
        others.forget("vxlan_sys_4789")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


# -- the plan changes -----------------------------------------------------------------------------


def test_vnis_swapped(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), vpc("blue", 2), vpc("x", 3, port=4790), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        bridges = {name: namespace.ifindex(name) for name in ("red-bri", "blue-bri", "x-bri")}
        for entries in (
            [vpc("red", 2), vpc("blue", 1), vpc("x", 3, port=4790)],
            [vpc("red", 3, port=4790), vpc("blue", 2), vpc("x", 1)],
            [vpc("red", 1), vpc("blue", 3, port=4790), vpc("x", 2)],
            [vpc("red", 1, port=4790), vpc("blue", 1), vpc("x", 1, port=4791)],
            # Another family is another socket, and takes another link.
            [vpc("red", 2, local="2001:db8::1"), vpc("blue", 1), vpc("x", 3)],
            [vpc("red", 3), vpc("blue", 1, local="2001:db8::1"), vpc("y", 2)],
        ):
            wanted = plan(agent, *entries)
            wait_equal(namespace, wanted, 3.0)
        del bridges["x-bri"]
        assert {name: namespace.ifindex(name) for name in bridges} == bridges
        assert agent.status()["objects"]["error"] == 0
        agent.stop()


def test_everything_of_a_vpc_changed(namespace: Namespace, tmp_path: Path) -> None:
    """What the kernel changes live is changed live: no ifindex is another afterwards."""
    with agent_of(namespace, tmp_path) as agent:
        first = vpc("red", 1, mtu=1400, mac="02:00:00:00:00:01", addresses=["10.1.0.1/24"])
        wanted = plan(agent, first, tap("t", mtu=1400, controller="red-bri"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        before = {name: namespace.ifindex(name) for name in ("red-bri", "red-vtp", "t-tap")}
        namespace.ip("addr add 192.0.2.99/32 dev red-bri")  # an admin's
        wanted = plan(
            agent,
            vpc("red", 1, mtu=1300, mac="02:00:00:00:00:02", ttl=9, local="192.0.2.2",
                addresses=["10.2.0.1/24", "fd00:1::1/64", "10.1.0.2/24"]),
            tap("t", mtu=1500),
        )  # fmt: skip
        wait_equal(namespace, wanted, 3.0)
        blocking_until(
            lambda: "10.1.0.1/24" not in namespace.ip("addr show dev red-bri"), "old address gone"
        )
        assert "192.0.2.99/32" in namespace.ip("addr show dev red-bri")
        assert {name: namespace.ifindex(name) for name in before} == before
        agent.stop()


@pytest.mark.parametrize("what", ["macvlan", "port"])
def test_a_bridge_with_things_of_others(namespace: Namespace, tmp_path: Path, what: str) -> None:
    with agent_of(namespace, tmp_path) as agent:
        plan(agent, vpc("red", 1), vpc("blue", 2), wait=False)
        agent.start().wait_in_sync()
        blocking_until(lambda: agent.status()["objects"]["in_sync"] == 4, "in sync")
        namespace.ip(
            "link add fx link red-bri type macvlan" if what == "macvlan"
            else "link add fx master red-bri type veth peer name fy"
        )  # fmt: skip
        with Untouched(namespace, names=["fx"], riding=["fx"]):
            wanted = plan(agent, vpc("blue", 2))
            wait_equal(namespace, wanted, keep=["red-bri"])
            agent.wait_status(
                "red-bri held back for fx",
                lambda s: any(
                    h["name"] == "red-bri" and "fx" in h["reason"] for h in s["held_back"]
                ),
            )
            quiet(agent)
        namespace.ip("link del fx")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


# -- controllers and members ----------------------------------------------------------------------


def test_controllers_that_come_later(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip("link add red-bri type ifb")  # so that ours can't be there
    with agent_of(namespace, tmp_path) as agent:
        entries = [tap("a", controller="br-lan"), tap("b", controller="red-bri"), vpc("red", 1)]
        wanted = plan(agent, *entries, tap("c"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted, without=["a-tap", "b-tap", "red-bri", "red-vtp"])
        namespace.ip("link add br-lan type bridge")
        wait_equal(namespace, wanted, 2.0, without=["b-tap", "red-bri", "red-vtp"])
        namespace.ip("link del red-bri")
        wait_equal(namespace, wanted, 2.0)
        # And they go, and come back: another's, and ours.
        namespace.ip_batch("link del br-lan\nlink del red-bri\n")
        wait_equal(namespace, wanted, 2.0, without=["a-tap"])
        assert namespace.ifindex("a-tap")
        quiet(agent)
        namespace.ip("link add br-lan type bridge")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


def test_a_stolen_member(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip("link add br0 type bridge")
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(
            agent, vpc("red", 1), vpc("blue", 2), tap("t", controller="red-bri"), tap("free"),
            wait=False,
        )  # fmt: skip
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        for name in ("t-tap", "red-vtp"):
            namespace.ip(f"link set {name} nomaster")
            wait_equal(namespace, wanted, 1.0)
            namespace.ip(f"link set {name} master blue-bri")
            wait_equal(namespace, wanted, 1.0)
            namespace.ip(f"link set {name} master br0")
            conflict(agent, name, "br0")
            quiet(agent)
            assert f"{name} is in br0, wanted red-bri" in wrong(namespace, wanted)
            namespace.ip(f"link set {name} nomaster")
            wait_equal(namespace, wanted, 1.0)
        # A tap that the plan gives no controller is free to be anybody's.
        namespace.ip("link set free-tap master br0")
        quiet(agent)
        assert wrong(namespace, wanted) == ["free-tap is in br0, wanted None"]
        agent.stop()


# -- names ----------------------------------------------------------------------------------------


def test_our_names_on_other_kinds(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(
        "link add store-vrf type bridge\n"  # no plan wants it
        "link add red-bri type veth peer name peer\n"
        "link add blue-vtp up type bridge\n"
        "tuntap add name t-tap mode tun\n"
    )
    with Untouched(namespace) as others, agent_of(namespace, tmp_path) as agent:
        entries = [vpc("red", 1), vpc("blue", 2), tap("t")]
        wanted = plan(agent, *entries, wait=False)
        agent.start().wait_in_sync()
        # What stands in a bridge that isn't there waits for it.
        taken = ["red-bri", "red-vtp", "blue-vtp", "t-tap"]
        wait_equal(namespace, wanted, without=taken)
        conflict(agent, "red-bri", "veth")
        conflict(agent, "blue-vtp", "bridge")
        conflict(agent, "t-tap", "tap")
        quiet(agent)
        others.check()
        others.forget("red-bri", "peer", "blue-vtp", "t-tap")
        namespace.ip_batch("link del red-bri\nlink set blue-vtp name old\nlink del t-tap\n")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


def test_a_name_of_ours_as_an_alternative_one(namespace: Namespace, tmp_path: Path) -> None:
    """The kernel lets nobody else have it: the name is taken, and the link isn't ours."""
    namespace.ip_batch(
        "link add other type ifb\nlink property add dev other altname red-vtp\n"
        "link add more type bridge\nlink property add dev more altname t-tap\n"
        "link add gone-vtp type ifb\nlink property add dev gone-vtp altname gone-bri\n"
    )
    with Untouched(namespace) as others, agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), tap("t"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted, without=["red-vtp", "t-tap"])
        conflict(agent, "red-vtp", "other")
        conflict(agent, "t-tap", "more")
        quiet(agent)
        others.check()
        others.forget("other", "more")
        namespace.ip_batch("link del other\nlink del more\n")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


def test_a_name_taken_while_ours_is_gone(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), tap("t"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        agent.pause()
        namespace.ip_batch(
            "link del red-vtp\nlink add red-vtp type bridge\nlink del t-tap\n"
            "link add t-tap type ifb\n"
        )
        with Untouched(namespace, names=["red-vtp", "t-tap"]):
            agent.resume()
            conflict(agent, "red-vtp", "bridge")
            conflict(agent, "t-tap", "ifb")
            quiet(agent)
        namespace.ip_batch("link del red-vtp\nlink del t-tap\n")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


def test_renamed_away(namespace: Namespace, tmp_path: Path) -> None:
    """A link is ours by its name: one that somebody renamed is theirs, and loses our token."""
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), vpc("blue", 2), tap("t"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        indexes = {name: namespace.ifindex(name) for name in ("red-bri", "red-vtp", "t-tap")}
        namespace.ip_batch(
            "link set red-bri name theirs\nlink set red-vtp name theirs2\n"
            "link set t-tap name theirs3\n"
        )
        wait_equal(namespace, wanted, 2.0, without=["red-vtp"])
        conflict(agent, "red-vtp", "theirs2")
        theirs = {link["ifname"]: link for link in namespace.links()}
        for name, old in (("theirs", "red-bri"), ("theirs2", "red-vtp"), ("theirs3", "t-tap")):
            assert theirs[name]["ifindex"] == indexes[old]
        agent.signal_reread()
        blocking_until(
            lambda: (
                not any(tokens(link_of(namespace, n)) for n in ("theirs", "theirs2", "theirs3"))
            ),
            "tokens off",
        )
        namespace.ip("link del theirs2")
        wait_equal(namespace, wanted, 2.0)
        agent.stop()


def link_of(ns: Namespace, name: str) -> dict[str, object]:
    return next(link for link in ns.links() if link["ifname"] == name)


@pytest.mark.parametrize("planned", [False, True], ids=["unplanned", "planned"])
@pytest.mark.parametrize("kind", ["bridge", "vtep", "tap"])
def test_moved_onto_the_index_of_one_of_ours(
    namespace: Namespace, elsewhere: Namespace, tmp_path: Path, planned: bool, kind: str
) -> None:
    """Deleted behind the agent's back, and another link moved in with its ifindex: it survives."""
    name = {"bridge": "red-bri", "vtep": "red-vtp", "tap": "red-tap"}[kind]
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), tap("red"), vpc("blue", 2), vpc("x", 3), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        index = namespace.ifindex(name)
        elsewhere.ip_batch(f"link add eth7 index {index} type veth peer name peer7 index 9000\n")
        agent.pause()
        if not planned:
            wanted = plan(agent, vpc("blue", 2), vpc("x", 3), wait=False)
        namespace.ip(f"link del {name}")
        elsewhere.ip(f"link set eth7 netns {namespace.name}")
        assert namespace.ifindex("eth7") == index
        with Untouched(namespace, names=["eth7"]):
            agent.resume()
            wait_equal(namespace, wanted, 3.0)
            agent.signal_reread()
            assert namespace.ifindex("eth7") == index
        agent.stop()


def test_renamed_away_while_the_plan_drops_it(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), tap("t"), vpc("blue", 2), vpc("x", 3), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        indexes = {name: namespace.ifindex(name) for name in ("red-bri", "red-vtp", "t-tap")}
        agent.pause()
        wanted = plan(agent, vpc("blue", 2), vpc("x", 3), wait=False)
        namespace.ip_batch(f"link set {name} name my-{name[:3]}{name[-3:]}" for name in indexes)
        agent.resume()
        wait_equal(namespace, wanted)
        agent.signal_reread()
        for name, index in indexes.items():
            assert namespace.ifindex(f"my-{name[:3]}{name[-3:]}") == index
        agent.stop()


def test_overrun_while_everything_changes(namespace: Namespace, tmp_path: Path) -> None:
    """Events are lost: what was known of links of ours is worth nothing until all are seen anew."""
    namespace.ip("link add noise up type ifb")
    with agent_of(namespace, tmp_path, NETREEVE_RCVBUF_BYTES="65536") as agent:
        entries = [vpc(f"v{number}", number) for number in range(1, 21)]
        wanted = plan(agent, *entries, wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        for round_ in range(3):
            overruns = agent.status()["overruns"]
            agent.pause()
            dropped = entries[round_ * 4 : round_ * 4 + 2]
            kept = [entry for entry in entries[round_ * 4 :] if entry not in dropped]
            # The dropped ones are renamed: theirs from now on. Others are deleted, or down.
            lines = [
                f"link set {entry['name']}-bri name t{round_}{entry['name']}" for entry in dropped
            ]
            lines += [f"link del {entry['name']}-vtp" for entry in dropped]
            lines += [f"link set {entry['name']}-vtp down" for entry in kept[3:6]]
            lines += [f"link del {entry['name']}-bri" for entry in kept[:3]]
            lines += ["link set noise mtu 1400", "link set noise mtu 1500"] * 500
            namespace.ip_batch(lines)
            theirs = [f"t{round_}{entry['name']}" for entry in dropped]
            plan(agent, *kept, wait=False)
            indexes = {name: namespace.ifindex(name) for name in theirs}
            agent.resume()
            wait_equal(namespace, document(*kept))
            assert agent.status()["overruns"] > overruns
            assert {name: namespace.ifindex(name) for name in theirs} == indexes
        agent.stop()


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "unplanned"])
def test_our_token_on_a_link_of_others(namespace: Namespace, tmp_path: Path, planned: bool) -> None:
    """It is deleted neither by its token nor for it, and rid of it."""
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), vpc("blue", 2), vpc("x", 3), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        (token,) = tokens(link_of(namespace, "red-vtp"))
        agent.pause()
        if not planned:
            wanted = plan(agent, vpc("blue", 2), vpc("x", 3), wait=False)
        namespace.ip_batch(
            "link del red-vtp\nlink add theirs type ifb\n"
            f"link property add dev theirs altname {token}\n"
        )
        index = namespace.ifindex("theirs")
        agent.resume()
        wait_equal(namespace, wanted)
        agent.signal_reread()
        blocking_until(lambda: not tokens(link_of(namespace, "theirs")), "token off")
        assert namespace.ifindex("theirs") == index
        agent.stop()


LEFT = (
    "link add old-bri type bridge\n"
    "link add old-vtp master old-bri type vxlan id 5 dstport 4789\n"
    "tuntap add name old-tap mode tap\n"
    "link add red-bri type bridge\n"
    "link add red-vtp type vxlan id 1 dstport 4789 local 192.0.2.1 ttl 64\n"
)


def test_adopted_then_collected(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(LEFT)
    before = {name: namespace.ifindex(name) for name in ("red-bri", "red-vtp")}
    with LinkWatch(namespace) as watch, agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, vpc("red", 1), vpc("x", 9), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        assert {name: namespace.ifindex(name) for name in before} == before
        assert not any(not event.present and event.name in before for event in watch.take())
        agent.stop()


def test_unproven_in_token_mode(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(LEFT)
    left = ["old-bri", "old-vtp", "old-tap", "red-bri", "red-vtp"]
    with agent_of(namespace, tmp_path, NETREEVE_OWNERSHIP="token") as agent:
        wanted = plan(agent, vpc("red", 1), vpc("blue", 2), tap("t"), wait=False)
        with Untouched(namespace, names=left):
            agent.start().wait_in_sync()
            wait_equal(namespace, wanted, without=left)
            agent.wait_status(
                "shown as unproven", lambda s: {h["name"] for h in s["held_back"]} == set(left)
            )
            assert all("token" in h["reason"] for h in agent.status()["held_back"])
            quiet(agent)
        # Those with a token are collected, here too: by this installation, started again.
        agent.stop()
        wanted = plan(agent, vpc("red", 1), tap("t"), wait=False)
        with Untouched(namespace, names=left):
            agent.start().wait_in_sync()
            wait_equal(namespace, wanted, without=left)
        agent.stop()
    assert snapshot(namespace).keys() == {*left, "t-tap"}


def test_the_token_of_another_installation(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(
        "link add old-bri type bridge\n"
        "link property add dev old-bri altname netreeve.0123456789abcdef.old-bri\n"
    )
    with agent_of(namespace, tmp_path, NETREEVE_OWNERSHIP="token") as agent:
        wanted = plan(agent, vpc("red", 1), wait=False)
        with Untouched(namespace, names=["old-bri"]):
            agent.start().wait_in_sync()
            wait_equal(namespace, wanted, without=["old-bri"])
            agent.wait_status(
                "unproven", lambda s: [h["name"] for h in s["held_back"]] == ["old-bri"]
            )
        agent.stop()
