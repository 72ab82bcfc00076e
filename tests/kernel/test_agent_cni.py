"""A node without a controller: pods from libcni's cache, files that the CNI plugin waits for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import AgentProcess, assert_routes, our_routes, veth
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

FILE = "k8s default%2Fweb-0 eth0"
ID = "k8s/default%2Fweb-0/eth0"


class Node:
    """An agent between a result cache and a status directory, and the runtime that uses both."""

    def __init__(self, ns: Namespace, path: Path) -> None:
        self.ns = ns
        self.results = path / "results"
        self.results.mkdir()
        self.status = path / "run" / "endpoint-status"
        self.agent = AgentProcess(
            ns, path, plan=None, sentinel=False,
            env={
                "NETREEVE_PLAN": f"cni:{self.results}",
                "NETREEVE_STATUS": f"jsonl:{path / 'status.jsonl'},files:{self.status}",
                "NETREEVE_ALLOW_EMPTY_PLAN": "true",
                "NETREEVE_ENDPOINT_PREFIXES": "pod",
            },
        )  # fmt: skip

    def add(self, container: str, link: str, address: str) -> None:
        """ADD: the link first, then libcni's file, in place."""
        self.ns.ip_batch(veth(link, f"p{link}"))
        self.cached(container, link, address)

    def cached(self, container: str, link: str, address: str) -> None:
        result: dict[str, Any] = {
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": "cni0"},
                {"name": link},
                {"name": "eth0", "sandbox": "/var/run/netns/x"},
            ],
            "ips": [{"interface": 2, "address": f"{address}/16"}],
        }
        document = {
            "kind": "cniCacheV1",
            "containerId": container,
            "ifName": "eth0",
            "networkName": "cbr0",
            "cniArgs": [["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "web-0"]],
            "result": result,
        }
        self._path(container).write_text(json.dumps(document))

    def delete(self, container: str, link: str) -> None:
        """DEL: the link first, then the file."""
        self.ns.ip(f"link del {link}")
        self._path(container).unlink()

    def _path(self, container: str) -> Path:
        return self.results / f"cbr0-{container}-eth0"

    def names(self) -> list[str]:
        return sorted(os.listdir(self.status))

    def statuses(self) -> list[tuple[str, str | None]]:
        return [(r.status, r.uid) for r in self.agent.all_records() if r.endpoint == ID]


def test_a_pod_comes_is_rebuilt_and_goes(namespace: Namespace, tmp_path: Path) -> None:
    node = Node(namespace, tmp_path)
    with node.agent as agent:
        agent.start().wait_in_sync()
        assert node.names() == []
        (node.results / "cbr0-broken-eth0").write_text("{")

        node.add("c1", "pod1", "10.65.0.2")
        started = time.monotonic()
        while not node.status.joinpath(FILE).exists():
            assert time.monotonic() < started + 5
        assert our_routes(namespace) == {"10.65.0.2": "pod1"}
        assert json.loads(node.status.joinpath(FILE).read_text()) == {
            "ifaceName": "pod1",
            "ipv4Nets": ["10.65.0.2/32"],
        }

        node.delete("c1", "pod1")
        blocking_until(lambda: node.names() == [], "the file gone")
        node.add("c2", "pod2", "10.65.0.3")
        blocking_until(lambda: node.names() == [FILE], "the file there again")
        assert our_routes(namespace) == {"10.65.0.3": "pod2"}
        assert json.loads(node.status.joinpath(FILE).read_text())["ifaceName"] == "pod2"

        # Rebuilt before the old container is cleaned up.
        before = node.status.joinpath(FILE).open()  # so that its inode isn't used again
        node.add("c3", "pod3", "10.65.0.4")
        blocking_until(lambda: ("up", "c3") in node.statuses(), "the third container up")
        node.delete("c2", "pod2")
        blocking_until(
            lambda: json.loads(node.status.joinpath(FILE).read_text())["ifaceName"] == "pod3",
            "the third container's file",
        )
        before.close()
        assert_routes(namespace, {"10.65.0.4": "pod3"})
        told = [status for status, _ in node.statuses()]
        assert told[-2:] == ["down", "up"]
        agent.stop()


def test_over_a_restart_files_stay_and_stale_ones_go(namespace: Namespace, tmp_path: Path) -> None:
    node = Node(namespace, tmp_path)
    with node.agent as agent:
        agent.start().wait_in_sync()
        node.add("c1", "pod1", "10.65.0.2")
        blocking_until(lambda: node.names() == [FILE], "the file there")
        written = node.status.joinpath(FILE).stat()
        agent.kill()

        stale = node.status / "k8s default%2Fold eth0"
        stale.write_text("{}")
        agent.start().wait_in_sync()
        blocking_until(lambda: not stale.exists(), "the stale file gone")
        now = node.status.joinpath(FILE).stat()
        assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
        agent.kill()

        # Nobody looks while the pod goes.
        node.delete("c1", "pod1")
        agent.start()
        blocking_until(lambda: node.names() == [], "the file gone")
        agent.stop()
