"""The agent killed, stopped, started again, and overrun: nothing lost, nothing twice."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from netreeve.errors import NetreeveError
from tests.support.agent import (
    AgentProcess,
    RouteWatch,
    assert_alternates,
    assert_routes,
    bystanders,
    endpoint,
    foreign_routes,
    our_routes,
    processes,
    statuses,
    veth,
)
from tests.support.netns import Namespace

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(280)]

PODS = 8
KILLS = 100


class Churn:
    """Does to pods' links, routes and plan what nodes do, in a thread, until it is left.

    Every link has an address of its own; the plan moves `10.65.1.1` from pod to pod and leaves a
    pod out now and then. On exit everything is up and `wanted` says which route belongs where.
    """

    def __init__(self, ns: Namespace, agent: AgentProcess, seed: int) -> None:
        self.ns = ns
        self.agent = agent
        self.random = random.Random(seed)
        self.steps = 0
        self.failure: BaseException | None = None
        self.wanted: dict[str, str] = {}
        self._peers = 0
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn")
        ns.ip_batch("".join(veth(f"cali{i}", self._peer()) for i in range(PODS)))
        self.write(range(PODS), 0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self.ns.ip_batch("".join(f"link set cali{i} up\n" for i in range(PODS)))
        self.write(range(PODS), 3)

    def write(self, pods: range | list[int], floating: int) -> None:
        plan = []
        self.wanted = {}
        for i in pods:
            addresses = [f"10.65.0.{i + 1}", f"fd00:65::{i + 1:x}"]
            if i == floating:
                addresses.append("10.65.1.1")
            plan.append(endpoint(f"pod{i}", f"cali{i}", *addresses))
            self.wanted |= dict.fromkeys(addresses, f"cali{i}")
        self.agent.write_plan(plan, wait=False)

    def _peer(self) -> str:
        self._peers += 1
        return f"p{self._peers}"

    def _run(self) -> None:
        try:
            while not self._leave.is_set():
                self._step()
                self.steps += 1
        except BaseException as error:
            self.failure = error

    def _step(self) -> None:
        i = self.random.randrange(PODS)
        match self.random.randrange(6):
            case 0 | 1:
                self.ns.ip_batch(f"link set cali{i} down\nlink set cali{i} up\n" * 2)
            case 2:
                self.ns.ip_batch(f"link del cali{i}\n" + veth(f"cali{i}", self._peer()))
            case 3:
                peer = self._peer()
                self.ns.ip_batch(
                    f"link set cali{i} name x{peer}\n"
                    + veth(f"cali{i}", peer)
                    + f"link del x{peer}\n"
                )
            case 4:
                pods = [pod for pod in range(PODS) if self.random.random() < 0.9] or [i]
                self.write(pods, self.random.randrange(PODS))
            case 5:
                self.ns.ip("route flush proto 98 dev cali0")
        self._leave.wait(self.random.random() * 0.02)


def test_killed_100_times_during_churn(namespace: Namespace, tmp_path: Path) -> None:
    bystanders(namespace)
    before = foreign_routes(namespace)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    moments = random.Random(seed)
    with AgentProcess(namespace, tmp_path, plan=None) as agent:
        with Churn(namespace, agent, seed) as churn:
            for _ in range(KILLS):
                agent.start()
                if moments.random() < 0.6:
                    # In the middle of work, and not of Python's imports, most of the time.
                    agent.wait_in_sync()
                    time.sleep(moments.random() * 0.2)
                else:
                    time.sleep(moments.random() * 0.6)
                agent.kill()
                assert "Traceback" not in agent.log_text()
            agent.start()
        assert churn.steps > KILLS
        agent.wait_in_sync()
        agent.wait_plan_taken()
        agent.barrier()
        assert_routes(namespace, churn.wanted)
        agent.wait_present(**{f"pod{i}": "up" for i in range(PODS)})
        agent.stop()
        records = agent.all_records()
        print(f"{churn.steps} steps, {len(records)} transitions")
        assert_alternates(records, whole=True)
        assert agent.delivered() == records
        last = {record.endpoint: record for record in records}
        for i in range(PODS):
            assert last[f"k8s/pod{i}/eth0"].ifindex == namespace.ifindex(f"cali{i}")
    after = foreign_routes(namespace)
    assert [line for line in after.splitlines() if " cali" not in line] == before.splitlines()


def test_sigterm_and_start_send_no_route_message(namespace: Namespace, tmp_path: Path) -> None:
    bystanders(namespace)
    plan = [endpoint(f"w{i}", f"cali{i}", f"10.65.0.{i}", f"fd00:65::1:{i}") for i in range(10)]
    wanted = {address: e["interface"] for e in plan for address in e["addresses"]}
    namespace.ip_batch("".join(veth(f"cali{i}", f"p{i}") for i in range(10)))
    with AgentProcess(namespace, tmp_path, plan=plan) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, wanted)
        foreign = foreign_routes(namespace)
        for end in (agent.stop, agent.kill):
            agent.barrier()
            before = agent.all_records()
            with RouteWatch(namespace) as watch:
                end()
                assert our_routes(namespace) == wanted
                agent.start().wait_in_sync()
                assert [m for m in watch.take() if m[1] == 98] == []
            agent.wait_status("all up", lambda s: s["endpoints"]["up"] == 11)
            # The workloads have not noticed, so nobody is told anything.
            assert agent.all_records() == before
        assert foreign_routes(namespace) == foreign
        agent.stop()


def test_what_happened_while_the_agent_was_away(namespace: Namespace, tmp_path: Path) -> None:
    plan = [endpoint(f"w{i}", f"cali{i}", f"10.65.0.{i}") for i in range(7)]
    namespace.ip_batch("".join(veth(f"cali{i}", f"p{i}") for i in range(7)))
    with AgentProcess(namespace, tmp_path, plan=plan) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, {f"10.65.0.{i}": f"cali{i}" for i in range(7)})
        agent.wait_present(**{f"w{i}": "up" for i in range(7)})
        agent.stop()
        namespace.ip_batch(
            # Rebuilt; gone; down; flapped, with its route lost; moved in the plan; out of the plan.
            "link del cali1\n"
            + veth("cali1", "p1")
            + "link del cali2\nlink set cali3 down\nlink set cali4 down\nlink set cali4 up\n"
        )
        agent.write_plan([*plan[:5], endpoint("w5", "cali6", "10.65.0.5")], wait=False)
        agent.start().wait_in_sync()
        assert_routes(
            namespace,
            {
                "10.65.0.0": "cali0",
                "10.65.0.1": "cali1",
                "10.65.0.4": "cali4",
                "10.65.0.5": "cali6",
            },
        )
        agent.wait_present(w0="up", w1="up", w2="down", w3="down", w4="up", w5="up", w6="removed")
        assert {f"w{i}": statuses(agent.records(f"w{i}")) for i in range(7)} == {
            "w0": ["up"],
            "w1": ["up", "down", "up"],
            "w2": ["up", "down"],
            "w3": ["up", "down"],
            "w4": ["up"],
            "w5": ["up", "down", "up"],
            "w6": ["up", "removed"],
        }
        assert [record.inferred for record in agent.records("w1")] == [False, True, False]
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()
        assert agent.delivered() == agent.all_records()


def test_overrun(namespace: Namespace, tmp_path: Path) -> None:
    links = 500
    plan = [endpoint(f"w{i}", f"cali{i}", f"10.65.2.{i}", f"fd00:65::2:{i}") for i in range(50)]

    def make(count: int, start: int = 0) -> None:
        namespace.ip_batch(
            f"link add name cali{i} group 7 type veth peer name p{i}\n"
            f"link set p{i} group 7 up\nlink set cali{i} up\n"
            for i in range(start, count)
        )

    make(links)
    small = {"NETREEVE_RCVBUF_BYTES": "65536"}
    with AgentProcess(namespace, tmp_path, plan=plan, env=small) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(**{f"w{i}": "up" for i in range(50)})
        for round_ in range(1, 4):
            agent.pause()
            namespace.ip("link del group 7")
            # This time with fewer links, and some of them down.
            make(links - 100 * round_, start=round_)
            namespace.ip_batch(f"link set cali{i} down\n" for i in range(10, 15))
            agent.resume()
            agent.wait_status("overruns", lambda s, n=round_: s["overruns"] >= n)  # type: ignore[misc]
            agent.wait_in_sync()
            agent.barrier()
            up = [i for i in range(round_, 50) if not 10 <= i < 15]
            assert_routes(
                namespace,
                {f"10.65.2.{i}": f"cali{i}" for i in up}
                | {f"fd00:65::2:{i}": f"cali{i}" for i in up},
            )
            agent.wait_present(
                **{f"w{i}": "up" if i in up else "down" for i in range(50)},
            )
            status = agent.status()
            assert status["links"]["total"] == len(namespace.links())
            assert status["links"]["ambiguous"] == 0
            assert status["endpoints"]["up"] == len(up) + 1
            for i in up:
                assert agent.records(f"w{i}")[-1].ifindex == namespace.ifindex(f"cali{i}")
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()


def test_an_overrun_of_route_events(namespace: Namespace, tmp_path: Path) -> None:
    """20,000 foreign route changes and the loss of our routes among them."""
    namespace.ip_batch(veth("cali1", "p1") + veth("foreign0", "f1"))
    small = {"NETREEVE_RCVBUF_BYTES": "65536"}
    with AgentProcess(
        namespace, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.1", "fd00:65::1")], env=small
    ) as agent:
        agent.start().wait_in_sync()
        both = {"10.65.0.1": "cali1", "fd00:65::1": "cali1"}
        assert_routes(namespace, both)
        agent.pause()
        burst = [f"10.{i // 250}.{i % 250}.0/24 dev foreign0 table 1000" for i in range(5000)]
        namespace.ip_batch(f"route add {route}" for route in burst)
        namespace.ip("route del 10.65.0.1 proto 98")
        namespace.ip("-6 route del fd00:65::1 proto 98")
        namespace.ip_batch(f"route del {route}" for route in burst)
        agent.resume()
        assert_routes(namespace, both)
        agent.barrier()
        assert statuses(agent.records()) == ["up"]
        agent.stop()


def test_a_killed_agent_leaves_its_socket_and_lock_to_the_next(
    namespace: Namespace, tmp_path: Path
) -> None:
    with AgentProcess(namespace, tmp_path) as agent:
        agent.start().wait_in_sync()
        agent.kill()
        assert agent.control_path.exists()
        with pytest.raises(NetreeveError, match="no agent answers"):
            agent.status()
        agent.start().wait_in_sync()
        assert json.loads((agent.state_dir / "lock").read_text())["pid"] == agent.process.pid
        agent.stop()
        assert not agent.control_path.exists()
        # What is left is the installation's, nothing temporary.
        assert sorted(path.name for path in agent.state_dir.iterdir()) == [
            "instance",
            "journal.sqlite",
            "lock",
        ]
        assert processes(namespace) == []
