"""The agent and links that are rebuilt, renamed, swapped, moved, enslaved and flapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agent import (
    AgentProcess,
    RouteWatch,
    assert_alternates,
    assert_routes,
    bystanders,
    endpoint,
    foreign_routes,
    our_routes,
    statuses,
    veth,
)
from tests.support.netns import Namespace

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

PODS = 10


@pytest.fixture
def elsewhere() -> Iterator[Namespace]:
    """Another namespace, for links to go to."""
    with Namespace() as made:
        yield made


# How a link can be rebuilt under its name. `p` is a peer name that was never used before.
Rebuild = Callable[[str, str, str], str]
REBUILDS: dict[str, Rebuild] = {
    "deleted, created": lambda name, p, away: f"link del {name}\n" + veth(name, p),
    "renamed away, created, old one deleted": lambda name, p, away: (
        f"link set {name} name x{p}\n" + veth(name, p) + f"link del x{p}\n"
    ),
    "created as another, old one deleted, renamed": lambda name, p, away: (
        veth(f"x{p}", p) + f"link del {name}\nlink set x{p} name {name}\n"
    ),
    "created as another, old one renamed away, then renamed": lambda name, p, away: (
        veth(f"x{p}", p) + f"link set {name} name y{p}\nlink set x{p} name {name}\nlink del y{p}\n"
    ),
    "moved to another namespace, created": lambda name, p, away: (
        f"link set {name} netns {away} name z{p}\n" + veth(name, p)
    ),
}


def plan(count: int = PODS) -> list[dict[str, object]]:
    return [
        endpoint(f"pod{i}", f"cali{i}", f"10.65.0.{i}", f"fd00:65::{i:x}") for i in range(count)
    ]


def all_routes(count: int = PODS) -> dict[str, str]:
    routes = {f"10.65.0.{i}": f"cali{i}" for i in range(count)}
    return routes | {"fd00:65::" + (f"{i:x}" if i else ""): f"cali{i}" for i in range(count)}


class Rebuilder:
    """Rebuilds every pod's link once per round, each time in another way."""

    def __init__(self, ns: Namespace, elsewhere: Namespace) -> None:
        self.ns = ns
        self.away = elsewhere.name
        self.rounds = 0
        ns.ip_batch("".join(veth(f"cali{i}", f"p{i}x0") for i in range(PODS)))

    def round(self) -> str:
        self.rounds += 1
        ways = list(REBUILDS.values())
        return "".join(
            ways[(i + self.rounds) % len(ways)](f"cali{i}", f"p{i}x{self.rounds}", self.away)
            for i in range(PODS)
        )

    def expect(self, agent: AgentProcess, *, exact: bool) -> None:
        agent.barrier()
        assert_routes(self.ns, all_routes())
        agent.wait_present(**{f"pod{i}": "up" for i in range(PODS)})
        assert_alternates(agent.all_records(), whole=True)
        for i in range(PODS):
            records = agent.records(f"pod{i}")
            assert records[-1].ifindex == self.ns.ifindex(f"cali{i}")
            ups = statuses(records).count("up")
            # Every rebuild is to be seen, however fast they come: nothing is merged.
            if exact:
                assert ups == self.rounds + 1, f"{ups} of {self.rounds + 1} in {records}"
            else:
                assert ups >= 2
        assert agent.status()["links"]["ambiguous"] == 0


def test_500_rebuilds_under_the_name_while_the_agent_runs(
    namespace: Namespace, elsewhere: Namespace, tmp_path: Path
) -> None:
    bystanders(namespace)
    before = foreign_routes(namespace)
    rebuilder = Rebuilder(namespace, elsewhere)
    with AgentProcess(namespace, tmp_path, plan=plan()) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, all_routes())
        for _ in range(500 // PODS):
            namespace.ip_batch(rebuilder.round())
        rebuilder.expect(agent, exact=True)
        assert agent.status()["overruns"] == 0
        agent.stop()
    assert without_pods(foreign_routes(namespace)) == without_pods(before)


def test_500_rebuilds_under_the_name_while_the_agent_is_stopped(
    namespace: Namespace, elsewhere: Namespace, tmp_path: Path
) -> None:
    rebuilder = Rebuilder(namespace, elsewhere)
    with AgentProcess(namespace, tmp_path, plan=plan()) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, all_routes())
        for _ in range(10):
            agent.pause()
            for _ in range(50 // PODS):
                namespace.ip_batch(rebuilder.round())
            agent.resume()
            rebuilder.expect(agent, exact=True)
        assert agent.status()["overruns"] == 0
        agent.stop()


def test_rebuilds_whose_events_are_lost(
    namespace: Namespace, elsewhere: Namespace, tmp_path: Path
) -> None:
    """The dump shows the new link under the name while the old one is still told."""
    rebuilder = Rebuilder(namespace, elsewhere)
    small = {"NETREEVE_RCVBUF_BYTES": "65536"}
    with AgentProcess(namespace, tmp_path, plan=plan(), env=small) as agent:
        agent.start().wait_in_sync()
        for round_ in range(1, 6):
            agent.pause()
            for _ in range(3):
                namespace.ip_batch(rebuilder.round())
            agent.resume()
            # Until it has read its socket to empty, also the sentinel's flap would be lost.
            agent.wait_status("overruns", lambda s, n=round_: s["overruns"] >= n)  # type: ignore[misc]
            agent.wait_in_sync()
            rebuilder.expect(agent, exact=False)
        agent.stop()


def without_pods(routes: str) -> str:
    """Without the kernel's own routes of links that are rebuilt ."""
    return "".join(line for line in routes.splitlines(True) if " cali" not in line)


def test_rename_into_and_out_of_the_name(namespace: Namespace, tmp_path: Path) -> None:
    bystanders(namespace)
    namespace.ip_batch(veth("foo0", "p0"))
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")]
    ) as agent:
        agent.start().wait_in_sync()
        before = foreign_routes(namespace)
        for round_ in range(1, 4):
            namespace.ip("link set foo0 name cali1")
            agent.wait_present(web="up")
            assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
            namespace.ip("link set cali1 name foo0")
            agent.wait_present(web="down")
            assert_routes(namespace, {})
            assert statuses(agent.records()) == ["down"] + ["up", "down"] * round_
        assert agent.records()[-1].reason == "link-absent"
        assert foreign_routes(namespace).replace("cali1", "foo0") == before
        agent.stop()


@pytest.mark.parametrize("swaps", [50, 49])
def test_two_links_swap_names_while_the_agent_is_stopped(
    namespace: Namespace, tmp_path: Path, swaps: int
) -> None:
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))
    first, second = namespace.ifindex("cali1"), namespace.ifindex("cali2")
    swap = "link set cali1 name tmp\nlink set cali2 name cali1\nlink set tmp name cali2\n"
    with AgentProcess(
        namespace,
        tmp_path,
        plan=[endpoint("a", "cali1", "10.65.0.1"), endpoint("b", "cali2", "10.65.0.2")],
    ) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, {"10.65.0.1": "cali1", "10.65.0.2": "cali2"})
        agent.pause()
        namespace.ip_batch(swap * swaps)
        agent.resume()
        agent.barrier()
        agent.wait_present(a="up", b="up")
        assert_routes(namespace, {"10.65.0.1": "cali1", "10.65.0.2": "cali2"})
        assert_alternates(agent.all_records(), whole=True)
        for workload in ("a", "b"):
            assert statuses(agent.records(workload)) == ["up"] + ["down", "up"] * swaps
        if swaps % 2:
            first, second = second, first
        assert agent.records("a")[-1].ifindex == first == namespace.ifindex("cali1")
        assert agent.records("b")[-1].ifindex == second == namespace.ifindex("cali2")
        agent.stop()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_to_another_namespace_and_back_with_its_old_ifindex(
    namespace: Namespace, elsewhere: Namespace, tmp_path: Path, stopped: bool
) -> None:
    namespace.ip_batch(
        "link add name cali1 index 500 type veth peer name p1\nlink set p1 up\nlink set cali1 up\n"
    )
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")]
    ) as agent:
        agent.start().wait_in_sync()
        for _ in range(5):
            if stopped:
                agent.pause()
            namespace.ip(f"link set cali1 netns {elsewhere.name} name eth0")
            if not stopped:
                agent.barrier()
                assert agent.present() == {"web": "down"}
                assert_routes(namespace, {})
            elsewhere.ip(f"link set eth0 netns {namespace.name} name cali1")
            assert namespace.ifindex("cali1") == 500
            namespace.ip("link set cali1 up")
            if stopped:
                agent.resume()
            agent.barrier()
            agent.wait_present(web="up")
            assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
        assert statuses(agent.records()) == ["up"] + ["down", "up"] * 5
        agent.stop()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_another_link_of_the_same_name_and_ifindex(
    namespace: Namespace, tmp_path: Path, stopped: bool
) -> None:
    again = (
        "link add name cali1 index 77 type veth peer name p1\nlink set p1 up\nlink set cali1 up\n"
    )
    namespace.ip_batch(again)
    with AgentProcess(namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1")]) as agent:
        agent.start().wait_in_sync()
        for _ in range(10):
            if stopped:
                agent.pause()
            namespace.ip_batch("link del cali1\n" + again)
            if stopped:
                agent.resume()
            agent.barrier()
            agent.wait_present(web="up")
            assert_routes(namespace, {"10.65.0.1": "cali1"})
        assert statuses(agent.records()) == ["up"] + ["down", "up"] * 10
        agent.stop()


def test_a_bridge_port_added_and_released_changes_nothing(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.ip_batch(veth("cali1", "p1") + "link add name br0 up type bridge\n")
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")]
    ) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
        with RouteWatch(namespace) as watch:
            for _ in range(5):
                namespace.ip("link set cali1 master br0")
                namespace.ip("link set cali1 nomaster")
                agent.barrier()
            # Released by the end of the bridge.
            namespace.ip("link set cali1 master br0")
            namespace.ip("link del br0")
            agent.barrier()
            assert watch.ours() == []
        assert statuses(agent.records()) == ["up"]
        assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
        agent.stop()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_three_admin_flaps_in_one_batch(
    namespace: Namespace, tmp_path: Path, stopped: bool
) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")]
    ) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="up")
        for round_ in range(1, 21):
            if stopped:
                agent.pause()
            namespace.ip_batch("link set cali1 down\nlink set cali1 up\n" * 3)
            if stopped:
                agent.resume()
            agent.barrier()
            agent.wait_present(web="up")
            told = statuses(agent.records())
            assert told == ["up"] + ["down", "up"] * 3 * round_, f"round {round_}"
        assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()


def test_foreign_links_churn_and_nothing_is_said_or_sent(
    namespace: Namespace, tmp_path: Path
) -> None:
    """Names in the scheme that no plan entry has, alternative names, and links of other names."""
    namespace.ip_batch(veth("cali1", "p1") + veth("veth9", "p9"))
    with AgentProcess(
        namespace,
        tmp_path,
        plan=[endpoint("web", "cali1", "10.65.0.1"), endpoint("absent", "cali7", "10.65.0.7")],
    ) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="up", absent="down")
        # "cali7" is now another link's alternative name: that makes it nobody's endpoint.
        namespace.ip("link property add dev veth9 altname cali7")
        with RouteWatch(namespace) as watch:
            for i in range(10):
                namespace.ip_batch(
                    veth(f"cali-x{i}", "q0")
                    + veth("tap0", "q1")
                    + "link set tap0 mtu 1400\nlink set tap0 down\nlink set tap0 name TAP0\n"
                    + f"link del cali-x{i}\nlink del TAP0\n"
                    + f"addr add 10.9.0.{i}/32 dev cali1 valid_lft 100 preferred_lft 50\n"
                )
            agent.barrier()
            assert watch.ours() == []
        assert {w: statuses(agent.records(w)) for w in ("web", "absent")} == {
            "web": ["up"],
            "absent": ["down"],
        }
        assert our_routes(namespace) == {"10.65.0.1": "cali1"}
        agent.stop()
