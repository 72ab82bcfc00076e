"""The agent's routes: lost in silence, flushed, moved, in conflict, left over; and foreign ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
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
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

BOTH = {"10.65.0.1": "cali1", "fd00:65::1": "cali1"}
WEB = endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")


def test_down_and_up_within_ten_milliseconds(namespace: Namespace, tmp_path: Path) -> None:
    bystanders(namespace)
    namespace.ip_batch(veth("cali1", "p1") + "addr add 169.254.1.1/32 dev cali1\n")
    before = foreign_routes(namespace, "cali1")
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, BOTH)
        for flaps in (1, 1, 1, 5, 5, 20):
            namespace.ip_batch("link set cali1 down\nlink set cali1 up\n" * flaps)
            agent.barrier()
            agent.wait_present(web="up")
            assert_routes(namespace, BOTH)
        # The peer's end: routes stay, the status follows the carrier.
        namespace.ip_batch("link set p1 down\nlink set p1 up\n" * 5)
        agent.barrier()
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        namespace.ip("link set p1 down")
        agent.wait_present(web="down")
        assert agent.records()[-1].reason == "link-down"
        assert our_routes(namespace) == BOTH
        namespace.ip("link set p1 up")
        agent.wait_present(web="up")
        assert_alternates(agent.all_records(), whole=True)
        assert foreign_routes(namespace, "cali1") == before
        agent.stop()


def test_routes_flushed_by_others_come_back(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch("".join(veth(f"cali{i}", f"p{i}") for i in range(20)))
    plan = [endpoint(f"w{i}", f"cali{i}", f"10.65.0.{i}", f"fd00:65::1:{i}") for i in range(20)]
    wanted = {address: e["interface"] for e in plan for address in e["addresses"]}
    with AgentProcess(namespace, tmp_path, plan=plan) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, wanted)
        before = foreign_routes(namespace)
        for _ in range(5):
            namespace.ip("-4 route flush proto 98")
            namespace.ip("-6 route flush proto 98")
            assert_routes(namespace, wanted)
        namespace.ip("route del 10.65.0.3")
        namespace.ip("-6 route del fd00:65::1:4")
        assert_routes(namespace, wanted)
        assert foreign_routes(namespace) == before
        # To the workloads nothing has happened.
        assert statuses(agent.records()) == ["up"] * 20
        agent.stop()


def test_ipv4_routes_flushed_in_silence_with_the_last_address(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, BOTH)
        for _ in range(5):
            namespace.ip("addr add 169.254.1.1/32 dev cali1")
            with RouteWatch(namespace) as watch:
                namespace.ip("addr del 169.254.1.1/32 dev cali1")
                blocking_until(lambda: our_routes(namespace) == BOTH, "routes are back")
                # The kernel said nothing of the loss, so it was the agent that knew.
                assert {what for what, _, _ in watch.ours()} <= {"new"}
        assert statuses(agent.records()) == ["up"]
        agent.stop()


def test_a_route_moved_by_others_is_moved_back(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1") + veth("other0", "p2"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, BOTH)
        namespace.ip("route replace 10.65.0.1 dev other0 proto 98 metric 1024")
        namespace.ip("-6 route replace fd00:65::1 dev other0 proto 98 metric 1024")
        assert_routes(namespace, BOTH)
        agent.stop()


# -- an address moves -----------------------------------------------------------------------------

STEPS = ("take", "give", "old link down", "new link up")


def orders() -> list[tuple[str, ...]]:
    """Every order of the plan's change, in one step or two, and of both links' changes."""
    split = [
        order
        for order in itertools.permutations(STEPS)
        if order.index("take") < order.index("give")  # one address for two is refused
    ]
    whole = list(itertools.permutations(("move", *STEPS[2:])))
    return split + whole


@pytest.mark.parametrize("how", ["one by one", "all while the agent is stopped"])
def test_an_address_moves_between_endpoints_in_every_order(
    namespace: Namespace, tmp_path: Path, how: str
) -> None:
    bystanders(namespace)
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))
    before = foreign_routes(namespace, "cali1", "cali2", "p1", "p2")
    moving = ("10.65.0.9", "fd00:65::9")
    own = {"old": "10.65.0.1", "new": "10.65.0.2"}

    def documents(holder: str | None) -> dict[str, str]:
        return {
            f"{name}.json": json.dumps(
                {
                    "endpoints": [
                        endpoint(name, link, own[name], *(moving if holder == name else ()))
                    ]
                }
            )
            for name, link in (("old", "cali1"), ("new", "cali2"))
        }

    with AgentProcess(namespace, tmp_path, plan=None) as agent:
        holder: list[str | None] = ["old"]

        def put(to: str | None, *, wait: bool) -> None:
            holder[0] = to
            since = agent.status()["plan"]["in_force_since"] if wait else None
            for name, text in documents(to).items():
                agent.write_document(name, text)
            if wait:
                agent.wait_status("plan", lambda s: s["plan"]["in_force_since"] != since)

        put("old", wait=False)
        namespace.ip("link set cali2 down")
        agent.start().wait_in_sync()
        for order in orders():
            # One by one means: the agent has acted on each step before the next.
            one_by_one = how == "one by one"
            if not one_by_one:
                agent.pause()
            steps: dict[str, Callable[[], None]] = {
                "take": lambda w=one_by_one: put(None, wait=w),  # type: ignore[misc]
                "give": lambda w=one_by_one: put("new", wait=w),  # type: ignore[misc]
                "move": lambda w=one_by_one: put("new", wait=w),  # type: ignore[misc]
                "old link down": lambda: namespace.ip_batch("link set cali1 down\n"),
                "new link up": lambda: namespace.ip_batch("link set cali2 up\n"),
            }
            for step in order:
                steps[step]()
                if one_by_one:
                    agent.barrier()
            if not one_by_one:
                agent.resume()
            expected = {own["new"]: "cali2", **dict.fromkeys(moving, "cali2")}
            try:
                assert_routes(namespace, expected)
                agent.wait_present(old="down", new="up")
            except AssertionError as error:
                error.add_note(f"in the order {order}")
                raise
            assert foreign_routes(namespace, "cali1", "cali2", "p1", "p2") == before
            # And back, from the link that stays up to one that comes up.
            put("old", wait=True)
            namespace.ip_batch("link set cali1 up\nlink set cali2 down\n")
            agent.barrier()
            assert_routes(namespace, {own["old"]: "cali1", **dict.fromkeys(moving, "cali1")})
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()


def test_an_address_moves_between_links_that_stay_up(namespace: Namespace, tmp_path: Path) -> None:
    """Without a moment in which it has no route: a replace."""
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))

    def plan(first: bool) -> list[dict[str, object]]:
        moving = ("10.65.0.9", "fd00:65::9")
        return [
            endpoint("a", "cali1", "10.65.0.1", *(moving if first else ())),
            endpoint("b", "cali2", "10.65.0.2", *(() if first else moving)),
        ]

    with AgentProcess(namespace, tmp_path, plan=plan(True)) as agent:
        agent.start().wait_in_sync()
        for i in range(6):
            link = "cali1" if i % 2 == 0 else "cali2"
            assert_routes(
                namespace,
                {
                    "10.65.0.1": "cali1",
                    "10.65.0.2": "cali2",
                    "10.65.0.9": link,
                    "fd00:65::9": link,
                },
            )
            with RouteWatch(namespace) as watch:
                agent.write_plan(plan(i % 2 == 1))
                agent.barrier()
                assert {m[0] for m in watch.ours() if m[2] == "10.65.0.9"} == {"new"}
        agent.stop()


def test_the_plan_moves_an_endpoint_to_another_link(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))
    with AgentProcess(namespace, tmp_path, plan=[endpoint("a", "cali1", "10.65.0.1")]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, {"10.65.0.1": "cali1"})
        agent.write_plan([endpoint("a", "cali2", "10.65.0.1")])
        assert_routes(namespace, {"10.65.0.1": "cali2"})
        agent.wait_present(a="up")
        assert statuses(agent.records()) == ["up", "down", "up"]
        # Two endpoints change places.
        agent.write_plan([endpoint("a", "cali2", "10.65.0.1"), endpoint("b", "cali1", "10.65.0.2")])
        agent.wait_present(a="up", b="up")
        agent.write_plan([endpoint("a", "cali1", "10.65.0.1"), endpoint("b", "cali2", "10.65.0.2")])
        assert_routes(namespace, {"10.65.0.1": "cali1", "10.65.0.2": "cali2"})
        agent.wait_present(a="up", b="up")
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()


# -- conflicts ------------------------------------------------------------------------------------


def test_a_foreign_route_in_the_slot_is_never_replaced(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.ip_batch(
        veth("cali1", "p1")
        + veth("foreign0", "p2")
        + "route add 10.65.0.1 dev foreign0 proto static metric 1024\n"
        "route add 10.65.0.5 dev cali1 proto static metric 1024\n"
    )
    before = foreign_routes(namespace)
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="error")
        agent.barrier()
        record = agent.records()[-1]
        assert record.reason is not None
        assert "10.65.0.1" in record.reason
        assert "static" in record.reason or "4" in record.reason
        assert foreign_routes(namespace) == before
        assert our_routes(namespace) == {"fd00:65::1": "cali1"}
        status = agent.status()
        assert status["routes"]["conflicts"] == 1
        assert status["endpoints"]["error"] == 1
        assert [c["endpoint"] for c in status["conflicts"]] == ["k8s/web/eth0"]
        # Its link flaps and is rebuilt: still not ours.
        namespace.ip_batch("link set cali1 down\nlink set cali1 up\n")
        agent.barrier()
        agent.wait_present(web="error")
        with RouteWatch(namespace) as watch:
            agent.barrier()
            assert watch.ours() == []
        namespace.ip("route del 10.65.0.1 dev foreign0 proto static metric 1024")
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        assert agent.status()["routes"]["conflicts"] == 0
        assert statuses(agent.records()) == ["error", "down", "error", "up"]
        agent.stop()


def test_a_foreign_ipv6_route_in_the_slot(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(
        veth("cali1", "p1")
        + veth("foreign0", "p2")
        + "route add fd00:65::1 dev foreign0 proto static metric 1024\n"
    )
    before = foreign_routes(namespace)
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="error")
        assert foreign_routes(namespace) == before
        assert our_routes(namespace) == {"10.65.0.1": "cali1"}
        # It vanishes with its link.
        namespace.ip("link del foreign0")
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        agent.stop()


@pytest.mark.parametrize("end", ["link set foreign0 down", "link del foreign0"])
def test_the_foreign_route_vanishes_in_silence_with_its_link(
    namespace: Namespace, tmp_path: Path, end: str
) -> None:
    namespace.ip_batch(
        veth("cali1", "p1")
        + veth("foreign0", "p2")
        + "route add 10.65.0.1 dev foreign0 proto static metric 1024\n"
    )
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="error")
        namespace.ip(end)
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        agent.stop()


@pytest.mark.parametrize("verb", ["replace", "append", "prepend"])
def test_a_foreign_route_comes_into_a_slot_that_is_ours(
    namespace: Namespace, tmp_path: Path, verb: str
) -> None:
    namespace.ip_batch(veth("cali1", "p1") + veth("foreign0", "p2"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, BOTH)
        theirs = "10.65.0.1 dev foreign0 proto static metric 1024"
        namespace.ip(f"route {verb} {theirs}")
        before = foreign_routes(namespace)
        agent.wait_present(web="error")
        agent.barrier()
        assert foreign_routes(namespace) == before
        assert theirs.split()[0] in before
        namespace.ip(f"route del {theirs}")
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        assert statuses(agent.records()) == ["up", "error", "up"]
        agent.stop()


def test_a_foreign_route_of_another_metric_only_shadows(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.ip_batch(
        veth("cali1", "p1")
        + veth("foreign0", "p2")
        + "route add 10.65.0.1 dev foreign0 proto static metric 5\n"
        "route add 10.65.0.1 dev foreign0 proto static metric 1024 tos 0x10\n"
        "route add 10.65.0.1 dev foreign0 proto static metric 1024 table 77\n"
    )
    before = foreign_routes(namespace)
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        agent.write_plan([endpoint("web", "cali1", "10.65.0.8")])
        assert_routes(namespace, {"10.65.0.8": "cali1"})
        assert foreign_routes(namespace) == before
        agent.stop()


def test_ipv6_disabled_on_the_link(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))

    def disable(value: int) -> None:
        knob = Path("/proc/sys/net/ipv6/conf/cali1/disable_ipv6")
        namespace.call(lambda: knob.write_text(f"{value}\n"))

    disable(1)
    with AgentProcess(
        namespace, tmp_path, plan=[WEB], env={"NETREEVE_RETRY_MAX_MS": "500"}
    ) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="error")
        record = agent.records()[-1]
        assert record.reason is not None
        assert "fd00:65::1" in record.reason
        assert "IPv6" in record.reason, record.reason
        assert our_routes(namespace) == {"10.65.0.1": "cali1"}
        disable(0)
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        assert statuses(agent.records()) == ["error", "up"]
        # And on a link that is up already: its IPv6 routes go.
        disable(1)
        agent.wait_present(web="error")
        disable(0)
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH)
        agent.stop()


# -- plan and foreign routes ----------------------------------------------------------------------


def test_removed_from_the_plan_while_its_link_stays(namespace: Namespace, tmp_path: Path) -> None:
    bystanders(namespace)
    namespace.ip_batch(
        veth("cali1", "p1") + veth("cali2", "p2") + "addr add 10.99.0.1/24 dev cali1\n"
        "route add 10.98.0.0/24 dev cali1 proto static\n"
        "route add 10.65.0.1/32 dev cali1 proto bird metric 7\n"
        "route add fd00:98::/64 dev cali1 proto static\n"
    )
    before = foreign_routes(namespace)
    stays = endpoint("db", "cali2", "10.65.0.2")
    with AgentProcess(namespace, tmp_path, plan=[WEB, stays]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, BOTH | {"10.65.0.2": "cali2"})
        agent.write_plan([stays])
        assert_routes(namespace, {"10.65.0.2": "cali2"})
        agent.wait_present(web="removed", db="up")
        agent.write_plan([stays, WEB])
        agent.wait_present(web="up")
        assert_routes(namespace, BOTH | {"10.65.0.2": "cali2"})
        agent.write_plan([stays, WEB | {"admin": "down"}])
        agent.wait_present(web="down")
        assert agent.records()[-1].reason == "admin-down"
        assert_routes(namespace, {"10.65.0.2": "cali2"})
        # A flap of a link whose endpoint is down says nothing.
        namespace.ip_batch("link set p1 down\nlink set p1 up\n")
        agent.barrier()
        agent.write_plan([stays, WEB])
        agent.wait_present(web="up")
        assert statuses(agent.records("web")) == ["up", "removed", "up", "down", "up"]
        assert_routes(namespace, BOTH | {"10.65.0.2": "cali2"})
        assert foreign_routes(namespace) == before
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()
    assert foreign_routes(namespace) == before


def test_a_new_incarnation_and_a_vpc_table(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB | {"uid": "one"}]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="up")
        agent.write_plan([WEB | {"uid": "two"}])
        blocking_until(lambda: len(agent.records()) >= 3, "down and up")
        assert [(r.status, r.uid) for r in agent.records()] == [
            ("up", "one"),
            ("down", "two"),
            ("up", "two"),
        ]
        assert_routes(namespace, BOTH)
        agent.stop()


def test_leftovers_go_only_when_plan_and_links_are_in_sync(
    namespace: Namespace, tmp_path: Path
) -> None:
    bystanders(namespace)
    namespace.ip_batch(
        veth("cali1", "p1")
        + veth("cali9", "p9")
        # Of endpoints that are no longer there, one of them on a link that another has now.
        + "route add 10.65.0.50 dev cali9 proto 98 metric 1024\n"
        "route add 10.65.0.51 dev cali1 proto 98 metric 1024\n"
        "route add fd00:65::50 dev cali9 proto 98 metric 1024\n"
        # Of one whose address has moved to another link meanwhile.
        "route add 10.65.0.1 dev cali9 proto 98 metric 1024\n"
        # Not ours: another table, or not of the shape that ours have.
        "route add 10.65.0.52 dev cali9 proto 98 metric 1024 table 500\n"
        "addr add 172.31.0.1/24 dev cali9\n"
        "route add 10.65.0.53 via 172.31.0.2 proto 98 metric 1024\n"
    )
    before = foreign_routes(namespace)
    leftovers = our_routes(namespace)
    assert len(leftovers) == 6
    with AgentProcess(namespace, tmp_path, plan=None, sentinel=False) as agent:
        agent.plan_dir.rmdir()
        with RouteWatch(namespace) as watch:
            agent.start()
            blocking_until(agent.control_path.exists, "control socket")
            agent.wait_status("links in sync", lambda s: s["resyncs"] >= 1 and s["problems"])
            assert not agent.status()["ready"]
            # The directory is there, and empty: that is no plan either.
            agent.plan_dir.mkdir()
            agent.wait_status("an empty plan refused", lambda s: "empty" in str(s["problems"]))
            assert watch.ours() == []
            assert our_routes(namespace) == leftovers
        agent.write_plan([WEB], wait=False)
        agent.wait_in_sync()
        assert_routes(namespace, BOTH | {"10.65.0.52": "cali9", "10.65.0.53": "cali9"})
        assert foreign_routes(namespace) == before
        agent.stop()
