"""The whole agent, killed at random moments, with etcd; and a consumer of the calico layout."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.agent import AgentProcess, endpoint, veth
from tests.support.etcd import Etcd, Proxy, Recorder, Seen
from tests.support.etcd_writing import assert_same
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

pytestmark = pytest.mark.kernel

KILLS = int(os.environ.get("NETREEVE_TEST_KILLS", "20"))
NAMES = [f"cali{n}" for n in range(8)]
PORT = "6f1c2a44-0000-4000-8000-0123456789ab"


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with Etcd() as made:
        yield made


@pytest.fixture
def proxy(etcd: Etcd, namespace: Namespace) -> Iterator[Proxy]:
    """The way from the namespace to etcd."""
    namespace.ip("link set lo up")
    listener = namespace.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with Proxy(etcd.endpoint, listener) as made:
        yield made


def wait_passed(agent: AgentProcess) -> None:
    agent.wait_status("all is in etcd", lambda status: status["sinks"][0]["lag"] == 0)


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_at_random_moments(
    etcd: Etcd, proxy: Proxy, namespace: Namespace, tmp_path: Path
) -> None:
    chance = random.Random(5)
    plan = [endpoint(f"pod-{n}", name, f"10.65.0.{n}") for n, name in enumerate(NAMES)]
    env = {"NETREEVE_STATUS": f"etcd://{proxy.endpoint}", "NETREEVE_NODE_NAME": "node-1"}
    namespace.ip_batch("".join(veth(name, f"p{name}") for name in NAMES))
    with (
        Recorder(etcd.endpoint, "/netreeve/v1/node-1/") as recorder,
        AgentProcess(namespace, tmp_path, plan=plan, env=env) as agent,
    ):
        for _ in range(KILLS):
            agent.start().wait_in_sync()
            end = time.monotonic() + chance.uniform(0.05, 0.6)
            while time.monotonic() < end:
                some = chance.sample(NAMES, 3)
                namespace.ip_batch(
                    [f"link set {name} {state}" for name in some for state in ("down", "up")]
                )
                time.sleep(chance.uniform(0, 0.03))
            agent.kill()
        agent.start().wait_in_sync()
        agent.barrier()
        wait_passed(agent)
        recorded = agent.all_records()
        assert len(recorded) > 20 * KILLS
        recorder.until(lambda seen: len(seen) >= len(recorded))
        assert_same(recorder.seen, recorded, "node-1")
        agent.stop()


def test_the_older_agent_of_a_node_stops_writing(
    etcd: Etcd, proxy: Proxy, namespace: Namespace, tmp_path: Path
) -> None:
    env = {"NETREEVE_STATUS": f"etcd://{proxy.endpoint}", "NETREEVE_NODE_NAME": "node-2"}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    namespace.ip_batch(veth("cali0", "p0"))
    plan = [endpoint("web", "cali0", "10.65.0.1")]
    with (
        AgentProcess(namespace, tmp_path / "a", plan=plan, env=env) as older,
        AgentProcess(namespace, tmp_path / "b", plan=plan, env=env, sentinel=False) as newer,
    ):
        older.start().wait_in_sync()
        wait_passed(older)
        newer.start().wait_in_sync()
        wait_passed(newer)
        namespace.ip_batch("link set cali0 down\nlink set cali0 up\n")
        older.wait_status("it isn't ready any more", lambda status: not status["ready"])
        assert "another agent writes as node 'node-2'" in older.status()["sinks"][0]["error"]
        assert "another agent has taken a sink over" in older.log_text()
        newer.wait_present(web="up")
        wait_passed(newer)
        stored = etcd.get("/netreeve/v1/node-2/endpoint/k8s/web/eth0")
        (value,) = stored.values()
        assert json.loads(value)["seq"] == newer.records("web")[-1].seq
        assert newer.status()["ready"]


class Neutron:
    """What networking-calico's status watchers make of events, in a few lines.

    The pattern has no end anchor and nothing is unescaped; an event whose value isn't a JSON
    object ends the watcher; a deleted or senseless one counts as None.
    """

    def __init__(self, region: str) -> None:
        host = f"(?:/calico/felix/v2/{region}/host)/(?P<hostname>[^/]+)"
        self._endpoint = re.compile(
            f"^{host}/workload/openstack/(?P<workload_id>[^/]+)/endpoint/(?P<endpoint_id>[^/]+)"
        )
        self._agent = re.compile(f"^{host}/status$")
        self.ports: list[tuple[str, str, str | None]] = []
        self.alive: list[tuple[str, bool]] = []

    def take(self, event: Seen) -> None:
        if match := self._agent.match(event.key):
            if event.value is not None:
                report = json.loads(event.value)
                age = datetime.now(UTC) - datetime.fromisoformat(report["time"])
                assert age.total_seconds() < 300
                self.alive.append((match["hostname"], bool(report["first_update"])))
        elif match := self._endpoint.match(event.key):
            status = None
            if event.value is not None:
                value = json.loads(event.value)
                assert isinstance(value, dict), "the watcher would have died"
                status = value.get("status")
            self.ports.append((match["hostname"], match["endpoint_id"], status))


def test_neutron_sees_a_rebuilt_vm_go_down_and_up(
    etcd: Etcd, proxy: Proxy, namespace: Namespace, tmp_path: Path
) -> None:
    env = {
        "NETREEVE_STATUS": f"etcd://{proxy.endpoint}?layout=calico&region=west",
        "NETREEVE_NODE_NAME": "compute-7.example",
    }
    vm = endpoint("", "tap1a2b3c4d", "10.65.0.2") | {"id": f"openstack/openstack%2Fvm-1/{PORT}"}
    pod = endpoint("default%2Fweb", "cali1", "10.65.0.3")
    prefix = "/calico/felix/v2/region-west/host/"
    namespace.ip_batch(veth("tap1a2b3c4d", "vm1") + veth("cali1", "pod1"))
    etcd.ctl("put", prefix + "round-trip-check", "theirs")
    with (
        Recorder(etcd.endpoint, prefix) as recorder,
        AgentProcess(namespace, tmp_path, plan=[vm, pod], env=env) as agent,
    ):
        agent.start().wait_in_sync()
        agent.barrier()
        namespace.ip_batch("link del tap1a2b3c4d\n" + veth("tap1a2b3c4d", "vm1"))
        agent.barrier()
        agent.write_plan([pod])
        wait_passed(agent)
        blocking_until(lambda: recorder.values(f"{prefix}compute-7.example/status"), "alive")
        recorder.until(lambda seen: any("/openstack/" in e.key and e.value is None for e in seen))
        keys = {each.key for each in recorder.seen}
        neutron = Neutron("region-west")
        for event in recorder.seen:
            neutron.take(event)
        agent.stop()
    statuses = [status for _, _, status in neutron.ports]
    assert {port[:2] for port in neutron.ports} == {("compute-7.example", PORT)}
    assert statuses[-4:] == ["up", "down", "up", None]
    assert neutron.alive[0] == ("compute-7.example", True)
    host = prefix + "compute-7.example"
    assert f"{host}/workload/openstack/openstack%2fvm-1/endpoint/{PORT}" in keys
    assert f"{host}/workload/k8s/default%2fweb/endpoint/eth0" in keys
    assert etcd.get(prefix + "round-trip-check") == {prefix + "round-trip-check": "theirs"}
