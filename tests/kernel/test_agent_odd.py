"""The agent among odd things: many routes at once, strange names, huge indexes, nexthop objects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import transitions
from tests.support.agent import (
    AgentProcess,
    RouteWatch,
    assert_alternates,
    assert_routes,
    endpoint,
    environment,
    foreign_routes,
    our_routes,
    statuses,
    veth,
)
from tests.support.netns import IpError, Namespace
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(90)]


def test_some_of_a_large_batch_are_refused(namespace: Namespace, tmp_path: Path) -> None:
    """300 links come up at once; the routes of every seventh are in conflict, in each family."""
    count = 300
    namespace.ip_batch(veth("foreign0", "f1"))
    namespace.ip_batch(
        f"link add name cali{i} group 7 type veth peer name p{i}\nlink set p{i} up\n"
        for i in range(count)
    )
    plan = [
        endpoint(f"w{i}", f"cali{i}", f"10.66.{i // 250}.{i % 250}", f"fd00:66::1:{i}")
        for i in range(count)
    ]
    held = set(range(3, count, 7))
    namespace.ip_batch(
        f"route add {plan[i]['addresses'][i % 2]} dev foreign0 proto static metric 1024"
        for i in sorted(held)
    )
    before = foreign_routes(namespace)
    wanted = {
        address: f"cali{i}"
        for i in range(count)
        for family, address in enumerate(plan[i]["addresses"])
        if i not in held or family != i % 2
    }
    with AgentProcess(namespace, tmp_path, plan=plan) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(w0="down", w299="down")
        for round_ in range(1, 4):
            namespace.ip("link set group 7 up")
            agent.barrier()
            agent.wait_present(**{f"w{i}": "error" if i in held else "up" for i in range(count)})
            assert_routes(namespace, wanted)
            assert agent.status()["routes"]["conflicts"] == len(held)
            assert foreign_routes(namespace) == before
            namespace.ip("link set group 7 down")
            agent.barrier()
            agent.wait_present(**{f"w{i}": "down" for i in range(count)})
            assert_routes(namespace, {})
            for i in range(count):
                higher = "error" if i in held else "up"
                assert statuses(agent.records(f"w{i}")) == ["down"] + [higher, "down"] * round_
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()
        assert agent.delivered() == agent.all_records()


def test_a_pod_whose_namespace_ends(namespace: Namespace, tmp_path: Path) -> None:
    """The other end of its link goes with the namespace, a while after that has gone."""
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")]
    ) as agent:
        agent.start().wait_in_sync()
        for round_ in range(1, 6):
            with Namespace() as pod:
                make = f"link add name cali1 type veth peer name eth0 netns {pod.name}"

                def made(command: str = make) -> bool:
                    try:
                        namespace.ip(command)
                    except IpError:
                        return False  # the old one is still being torn down
                    return True

                blocking_until(made, "a link under the old name", interval_s=0.001)
                pod.ip("link set eth0 up")
                namespace.ip("link set cali1 up")
                agent.barrier()
                agent.wait_present(web="up")
                assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
                assert statuses(agent.records())[-2 * round_ :] == ["down", "up"] * round_
        agent.wait_present(web="down")
        assert statuses(agent.records()) == ["down"] + ["up", "down"] * 5
        assert_routes(namespace, {})
        agent.stop()


def test_names_that_are_no_text_and_huge_indexes(namespace: Namespace, tmp_path: Path) -> None:
    odd = ["cali\udcff\udcfe1", "cali\x1b[31m", 'cali"b', "cali;rm", "caliü"]
    plan = [endpoint(f"w{i}", name, f"10.65.0.{i}") for i, name in enumerate(odd)]
    with AgentProcess(namespace, tmp_path, plan=plan) as agent:
        agent.start().wait_in_sync()
        for round_ in range(1, 3):
            for i, name in enumerate(odd):
                ip = ["ip", "-n", namespace.name, "link", "add", "name", name]
                index = ["index", str(2147483000 - i)]
                kind = ["type", "veth", "peer", "name", f"p{i}"]
                subprocess.run([*map(os_bytes, [*ip, *index, *kind])], check=True)
                namespace.ip(f"link set p{i} up")
                namespace.ip(f"link set {name} up")
            agent.barrier()
            agent.wait_present(**{f"w{i}": "up" for i in range(len(odd))})
            assert len(our_routes_of_odd(namespace)) == len(odd)
            for i, name in enumerate(odd):
                last = agent.records(f"w{i}")[-1]
                assert (last.link, last.ifindex) == (name, 2147483000 - i)
                namespace.ip(f"link del p{i}")
            agent.barrier()
            agent.wait_present(**{f"w{i}": "down" for i in range(len(odd))})
            for i in range(len(odd)):
                assert statuses(agent.records(f"w{i}")) == ["down"] + ["up", "down"] * round_
        agent.stop()
        assert agent.delivered() == agent.all_records()
        # People see nothing that could steer their terminal.
        for command in ("status", "log"):
            shown = subprocess.run(
                [sys.executable, "-m", "netreeve", command],
                env=environment(agent),
                capture_output=True,
                check=False,
            )
            assert b"\x1b" not in shown.stdout + shown.stderr
        assert "\x1b" not in agent.log_text()


def os_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def our_routes_of_odd(ns: Namespace) -> list[str]:
    """`ip -j` makes no JSON of such names, so this is its text."""
    shown = subprocess.run(
        ["ip", "-n", ns.name, "route", "show", "proto", "98"], capture_output=True, check=True
    )
    return [
        line for line in shown.stdout.decode(errors="replace").splitlines() if "10.65.0." in line
    ]


def test_a_nexthop_object_holds_the_slot(namespace: Namespace, tmp_path: Path) -> None:
    """The kernel drops its IPv4 routes with it, and says nothing."""
    namespace.ip_batch(
        veth("cali1", "p1") + veth("foreign0", "f1") + "nexthop add id 1 dev foreign0\n"
        "route add 10.65.0.1 nhid 1 proto static metric 1024\n"
    )
    with AgentProcess(
        namespace,
        tmp_path,
        plan=[endpoint("web", "cali1", "10.65.0.1")],
        env={"NETREEVE_RETRY_MAX_MS": "1000"},
    ) as agent:
        before = foreign_routes(namespace)
        agent.start().wait_in_sync()
        agent.wait_present(web="error")
        agent.barrier()
        assert foreign_routes(namespace) == before
        namespace.ip("nexthop del id 1")
        agent.wait_present(web="up")
        assert_routes(namespace, {"10.65.0.1": "cali1"})
        agent.stop()


def test_a_route_of_our_protocol_but_not_of_our_shape(namespace: Namespace, tmp_path: Path) -> None:
    """Doubt means foreign: it is in the way, and stays."""
    namespace.ip_batch(
        veth("cali1", "p1") + veth("foreign0", "f1") + "addr add 172.31.0.1/24 dev foreign0\n"
        "route add 10.65.0.1 via 172.31.0.2 proto 98 metric 1024\n"
        "route add blackhole 10.65.0.2 proto 98 metric 1024\n"
    )
    before = namespace.ip("route show proto 98")
    with AgentProcess(
        namespace,
        tmp_path,
        plan=[endpoint("a", "cali1", "10.65.0.1"), endpoint("b", "cali2", "10.65.0.2")],
    ) as agent:
        namespace.ip_batch(veth("cali2", "p2"))
        agent.start().wait_in_sync()
        agent.wait_present(a="error", b="error")
        agent.barrier()
        shown = namespace.ip("route show proto 98").splitlines(keepends=True)
        assert "".join(line for line in shown if "calisentinel" not in line) == before
        agent.stop()


def test_an_endpoint_passes_to_a_vpc_and_back(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    vpc = {"name": "red", "table": 1001, "vni": 1001, "vtep": {"local": "192.0.2.1"}}
    web = endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")

    def tables() -> set[tuple[str, str]]:
        return {
            (route["dst"], str(route.get("table", "main")))
            for route in namespace.routes()
            if route["dev"] == "cali1"
        }

    with AgentProcess(namespace, tmp_path, plan=[web]) as agent:
        agent.start().wait_in_sync()
        blocking_until(lambda: {t for _, t in tables()} == {"main"}, "in the main table")
        for _ in range(3):
            agent.write_document("vpc.json", json.dumps({"vpcs": [vpc]}))
            agent.write_plan([web | {"vpc": "red"}], wait=False)
            blocking_until(
                lambda: tables() == {("10.65.0.1", "1001"), ("fd00:65::1", "1001")}, "in 1001"
            )
            # Back, and the VPC goes with the same change: its table was ours until then.
            (agent.plan_dir / "vpc.json").unlink()
            agent.write_plan([web], wait=False)
            blocking_until(
                lambda: {t for _, t in tables()} == {"main"} and len(tables()) == 2, "in main"
            )
        assert set(statuses(agent.records())) <= {"up"}
        agent.stop()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_loops_and_no_state_directory(namespace: Namespace, tmp_path: Path, loop: str) -> None:
    """An overrun (uvloop closes a handle that sees EPOLLERR), and a journal in memory."""
    namespace.ip_batch(veth("cali1", "p1"))
    env = {
        "NETREEVE_EVENT_LOOP": loop,
        "NETREEVE_RCVBUF_BYTES": "65536",
        "NETREEVE_STATE_DIR": "",
    }
    with AgentProcess(
        namespace,
        tmp_path,
        plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")],
        env=env,
        sentinel=False,
    ) as agent:
        agent.start().wait_in_sync()
        for round_ in range(1, 4):
            agent.pause()
            namespace.ip_batch("link set cali1 down\nlink set cali1 up\n" * 200)
            agent.resume()
            agent.wait_status("an overrun", lambda s, n=round_: s["overruns"] >= n)  # type: ignore[misc]
            agent.wait_in_sync()
            assert_routes(namespace, {"10.65.0.1": "cali1", "fd00:65::1": "cali1"})
            # And it still hears.
            namespace.ip("link set p1 down")
            agent.wait_status("down", lambda s: s["endpoints"]["down"] == 1)
            namespace.ip("link set p1 up")
            agent.wait_status("up", lambda s: s["endpoints"]["up"] == 1)
        agent.stop()
        assert_alternates(agent.delivered(), whole=True)
        # Without a journal on disk a new life begins with seq 1; the sink's file tells them apart.
        assert our_routes(namespace) == {"10.65.0.1": "cali1", "fd00:65::1": "cali1"}


def test_idle_the_agent_does_nothing(namespace: Namespace, tmp_path: Path) -> None:
    """No route message, no status, next to no CPU, while full comparisons run every second."""
    plan = [endpoint(f"w{i}", f"cali{i}", f"10.65.0.{i}", f"fd00:65::1:{i}") for i in range(50)]
    namespace.ip_batch("".join(veth(f"cali{i}", f"p{i}") for i in range(50)))
    with AgentProcess(
        namespace, tmp_path, plan=plan, env={"NETREEVE_RESYNC_INTERVAL_S": "1"}
    ) as agent:
        agent.start().wait_in_sync()
        blocking_until(lambda: len(agent.all_records()) == 51, "all up, and on the disk")
        before, records = agent.status()["resyncs"], agent.all_records()
        used = cpu_ticks(agent)
        with RouteWatch(namespace) as watch:
            blocking_until(lambda: agent.status()["resyncs"] >= before + 4, "four", interval_s=0.5)
            assert [message for message in watch.take() if message[1] == 98] == []
        assert agent.all_records() == records
        assert cpu_ticks(agent) - used <= 20  # hundredths of a second, of about 400
        agent.stop()


def cpu_ticks(agent: AgentProcess) -> int:
    stat = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[11]) + int(stat[12])


def test_a_full_disk_stops_the_log_and_not_the_routes(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))
    plan = [endpoint("a", "cali1", "10.65.0.1"), endpoint("b", "cali2", "10.65.0.2")]
    with (
        transitions.small_disk(tmp_path / "disk") as disk,
        AgentProcess(
            namespace,
            tmp_path,
            plan=plan,
            env={"NETREEVE_STATE_DIR": str(disk), "NETREEVE_RETRY_MAX_MS": "500"},
            sentinel=False,
        ) as agent,
    ):
        agent.state_dir = disk
        agent.start().wait_in_sync()
        agent.wait_present(a="up", b="up")
        ballast = transitions.filled(disk)
        namespace.ip_batch("link set cali1 down\nlink set cali1 up\n" * 3)
        namespace.ip("link del cali2")
        agent.wait_status("recording stopped", lambda s: not s["journal"]["recording"])
        assert not agent.status()["ready"]
        assert_routes(namespace, {"10.65.0.1": "cali1"})
        namespace.ip_batch(veth("cali2", "p3"))
        assert_routes(namespace, {"10.65.0.1": "cali1", "10.65.0.2": "cali2"})
        agent.wait_status("both up", lambda s: s["endpoints"]["up"] == 2)
        ballast.unlink()
        agent.wait_status("recording again", lambda s: s["journal"]["recording"])
        namespace.ip("link set cali1 down")
        agent.wait_present(a="down")
        records = agent.all_records()
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        (gap,) = [record for record in records if record.status == "gap"]
        # Six flaps of one, the rebuild of the other: each is in the log or among the lost.
        assert gap.lost is not None
        assert gap.seq - 1 + gap.lost == 2 + 6 + 2
        # The present status of every endpoint follows at once, then what comes.
        assert [(r.endpoint[4:5], r.status) for r in records[gap.seq :]] == [
            ("a", "up"),
            ("b", "up"),
            ("a", "down"),
        ]
        agent.stop()
        assert agent.delivered() == records
