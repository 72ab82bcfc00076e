"""Plan documents half written, wrong, swapped, deleted: the last good plan stays in force."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.support.agent import (
    AgentProcess,
    RouteWatch,
    assert_alternates,
    assert_routes,
    endpoint,
    our_routes,
    statuses,
    veth,
)
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

A = endpoint("a", "cali1", "10.65.0.1")
B = endpoint("b", "cali2", "10.65.0.2")
ROUTES = {"10.65.0.1": "cali1", "10.65.0.2": "cali2"}


@pytest.fixture
def links(namespace: Namespace) -> Namespace:
    namespace.ip_batch(veth("cali1", "p1") + veth("cali2", "p2"))
    return namespace


def text(*endpoints: dict[str, object]) -> str:
    return json.dumps({"endpoints": endpoints}, indent=1)


class Untouched:
    """Routes and status stay as they are; the agent says what is wrong, and isn't ready."""

    def __init__(self, agent: AgentProcess, routes: dict[str, str]) -> None:
        self.agent = agent
        self.routes = routes

    def __enter__(self) -> None:
        assert_routes(self.agent.ns, self.routes)
        self.agent.barrier()
        self.watch = RouteWatch(self.agent.ns)
        self.before = self.agent.records()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.watch:
            if kind is None:
                self.agent.barrier()
                assert self.watch.ours() == []
                assert our_routes(self.agent.ns) == self.routes
                assert self.agent.records() == self.before


def says(agent: AgentProcess, *words: str) -> None:
    """A problem with all these words is shown, and the agent isn't ready."""
    agent.wait_status(
        f"a problem that says {words}",
        lambda s: any(all(word in problem for word in words) for problem in s["problems"]),
    )
    status = agent.status()
    assert not status["ready"]
    assert any(source["error"] for source in status["sources"]) or "empty" in words


def test_a_file_that_is_half_written(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B]) as agent:
        agent.start().wait_in_sync()
        whole = text(A, B, endpoint("c", "cali3", "10.65.0.3"))
        half = len(whole) // 2
        with (agent.plan_dir / "plan.json").open("w") as file:
            with Untouched(agent, ROUTES):
                file.write(whole[:half])
                file.flush()
                # Twice what the agent waits for quiet: it would have read half a file by then.
                agent.barrier()
                time.sleep(0.1)
                assert agent.status()["problems"] == []
            file.write(whole[half:])
        agent.wait_status("the whole plan", lambda s: s["plan"]["endpoints"] == 4)
        agent.wait_present(a="up", b="up", c="down")
        assert len(agent.records()) == 3
        agent.stop()


def test_half_a_file_that_is_closed_is_an_error(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B]) as agent:
        agent.start().wait_in_sync()
        with Untouched(agent, ROUTES):
            whole = text(A, B)
            agent.write_document("plan.json", whole[: whole.index("cali2")])
            says(agent, "plan.json:")
        agent.write_document("plan.json", whole)
        agent.wait_in_sync()
        assert agent.status()["problems"] == []
        agent.stop()


def test_an_invalid_plan_with_all_its_errors(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B]) as agent:
        agent.start().wait_in_sync()
        with Untouched(agent, ROUTES):
            agent.write_document(
                "plan.json",
                "{\n"
                ' "endpoints": [\n'
                '  {"id": "k8s/a/eth0", "interface": "cali1", "adresses": ["10.65.0.1"]},\n'
                '  {"id": "k8s/b/eth0", "interface": "cali2", "addresses": ["10.65.0.300"]}\n'
                " ]\n}\n",
            )
            agent.write_document(
                "more.yaml",
                "endpoints:\n"
                "  - id: k8s/c/eth0\n"
                "    interface: cali-name-that-is-too-long\n"
                "    addresses: [10.65.0.9]\n"
                "  - {id: k8s/d/eth0, interface: cali4, addresses: [10.65.0.4]}\n"
                "  - {id: k8s/d/eth0, interface: cali4, addresses: [10.65.0.4]}\n",
            )
            says(agent, f"{agent.plan_dir}/plan.json:3:46:", "adresses")
            says(agent, f"{agent.plan_dir}/plan.json:4:", "10.65.0.300")
            says(agent, f"{agent.plan_dir}/more.yaml:3:16:", "15")
            says(agent, f"{agent.plan_dir}/more.yaml:6:", "k8s/d/eth0")
            # Nothing of the good parts is in force.
            assert agent.status()["plan"]["endpoints"] == 3
            # SIGHUP rereads, and finds the same.
            agent.signal(signal.SIGHUP)
        # Started with it, the agent has no plan: nothing of what is there is touched.
        agent.stop()
        before = agent.records()
        with RouteWatch(links) as watch:
            agent.start()
            blocking_until(lambda: agent.control_path.exists(), "control socket")
            says(agent, "plan.json:3:46:")
            agent.wait_status("links", lambda s: s["resyncs"] >= 1)
            assert watch.ours() == []
        assert our_routes(links) == ROUTES
        assert agent.records() == before
        (agent.plan_dir / "more.yaml").unlink()
        agent.write_plan([A, B], wait=False)
        agent.wait_in_sync()
        assert_routes(links, ROUTES)
        assert agent.records() == before
        agent.stop()


def test_one_address_for_two_endpoints_in_two_files(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B]) as agent:
        agent.start().wait_in_sync()
        with Untouched(agent, ROUTES):
            agent.write_document("z.json", text(endpoint("z", "cali9", "10.65.0.2")))
            says(agent, "z.json:", "10.65.0.2")
        (agent.plan_dir / "z.json").unlink()
        agent.wait_in_sync()
        agent.stop()


def test_a_configmap_swapped_by_symbolic_link(links: Namespace, tmp_path: Path) -> None:
    """`plan.json -> ..data/plan.json`, `..data -> ..v1`; a rename replaces the latter."""
    with AgentProcess(links, tmp_path, plan=None) as agent:
        directory = agent.plan_dir

        def mount(version: str, document: str) -> None:
            (directory / f"..{version}").mkdir()
            (directory / f"..{version}" / "plan.json").write_text(document)
            os.symlink(f"..{version}", directory / "..data_tmp")
            os.rename(directory / "..data_tmp", directory / "..data")

        mount("v1", text(A))
        os.symlink("..data/plan.json", directory / "plan.json")
        agent.start().wait_in_sync()
        assert_routes(links, {"10.65.0.1": "cali1"})
        mount("v2", text(A, B))
        shutil.rmtree(directory / "..v1")
        assert_routes(links, ROUTES, timeout_s=2)
        with Untouched(agent, ROUTES):
            mount("v3", text(A, B | {"interface": 7}))
            shutil.rmtree(directory / "..v2")
            says(agent, "plan.json:")
        mount("v4", text(B))
        shutil.rmtree(directory / "..v3")
        assert_routes(links, {"10.65.0.2": "cali2"}, timeout_s=2)
        agent.wait_present(a="removed", b="up")
        assert statuses(agent.records("b")) == ["up"]
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()


def test_documents_or_their_directory_deleted(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B]) as agent:
        agent.start().wait_in_sync()
        sentinel = (agent.plan_dir / "sentinel.json").read_text()
        with Untouched(agent, ROUTES):
            for path in agent.plan_dir.iterdir():
                path.unlink()
            says(agent, "empty")
            agent.plan_dir.rmdir()
            says(agent, "the directory is not there")
            agent.signal(signal.SIGHUP)
            agent.barrier()
            agent.plan_dir.mkdir()
            says(agent, "empty")
        agent.write_document("sentinel.json", sentinel)
        agent.write_plan([A], wait=False)
        assert_routes(links, {"10.65.0.1": "cali1"})
        agent.wait_present(b="removed")
        agent.wait_in_sync()
        agent.stop()


def test_a_file_source_deleted(links: Namespace, tmp_path: Path) -> None:
    env = {"NETREEVE_PLAN": f"dir:{tmp_path}/plan.d,file:{tmp_path}/one.json"}
    one = tmp_path / "one.json"
    with AgentProcess(links, tmp_path, plan=[A], env=env) as agent:
        agent.start()
        # Not every source has been there: no plan is in force yet.
        blocking_until(lambda: agent.control_path.exists(), "control socket")
        says(agent, "one.json", "the file is not there")
        agent.wait_status("links", lambda s: s["resyncs"] >= 1)
        assert our_routes(links) == {}
        one.write_text(text(B))
        agent.wait_in_sync()
        with Untouched(agent, ROUTES):
            one.unlink()
            says(agent, "one.json", "the file is not there")
        one.write_text(text(B | {"addresses": ["10.65.0.7"]}))
        assert_routes(links, {"10.65.0.1": "cali1", "10.65.0.7": "cali2"})
        agent.stop()


def test_an_empty_plan_only_where_it_is_allowed(links: Namespace, tmp_path: Path) -> None:
    with AgentProcess(links, tmp_path, plan=[A, B], sentinel=False) as agent:
        agent.start().wait_in_sync()
        assert_routes(links, ROUTES)
        with RouteWatch(links) as watch:
            agent.write_plan([], wait=False)
            says(agent, "empty")
            assert watch.ours() == []
        agent.stop()
        agent.env["NETREEVE_ALLOW_EMPTY_PLAN"] = "true"
        agent.start().wait_in_sync()
        assert_routes(links, {})
        agent.wait_present(a="removed", b="removed")
        assert_alternates(agent.all_records(), whole=True)
        agent.stop()
        assert agent.delivered() == agent.all_records()
