"""plan, apply, explain and cleanup as people use them: without an agent, and beside one."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import (
    AgentProcess,
    bystanders,
    endpoint,
    foreign_routes,
    our_routes,
    veth,
)
from tests.support.foreign import Untouched, flannel, snapshot
from tests.support.netns import Namespace
from tests.support.own_links import document, tap, vpc, wrong
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

NO_NET_ADMIN = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
RED = vpc("red", 1, mtu=1450, addresses=["10.1.0.1/24"])
TAP = tap("eth0", mtu=1400, controller="red-bri")
WEB = endpoint("web", "cali1", "10.65.0.2", "fd00:65::2")
DB = endpoint("db", "cali2", "10.65.0.3")


class Node:
    """An installation and its commands; the agent doesn't run unless it is started."""

    def __init__(self, ns: Namespace, path: Path, **env: str) -> None:
        self.ns = ns
        self.agent = AgentProcess(ns, path, plan=None, sentinel=False, env=env)

    def wants(self, *entries: Mapping[str, Any], endpoints: tuple[dict[str, Any], ...] = ()) -> Any:
        """Write this plan; the agent, if it runs, isn't waited for."""
        made = document(*entries) | {"endpoints": list(endpoints)}
        self.agent.write_document("plan.json", json.dumps(made))
        return made

    def run(
        self, *words: str, prefix: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-m", "netreeve", *words]
        done = subprocess.run(
            self.ns.inside(command),
            env=os.environ | self.agent.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def ok(self, *words: str, code: int = 0) -> str:
        done = self.run(*words)
        assert done.returncode == code, (
            f"{words}: {done.returncode}\n{done.stdout}{done.stderr}{self.agent.log_text()[-4000:]}"
        )
        return done.stdout

    def plan(self, code: int = 2) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.ok("plan", "--json", code=code))
        assert parsed.keys() == {"changes", "routes", "conflicts", "foreign", "held_back"}
        return parsed

    def explain(self, subject: object) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.ok("explain", str(subject), "--json"))
        assert parsed["subject"] == str(subject)
        assert parsed.keys() >= {
            "ownership", "plan", "observed", "difference", "operations", "last_changed_by",
            "history",
        }  # fmt: skip
        return parsed

    def actions(self) -> set[tuple[str, str]]:
        return {(change["action"], change["name"]) for change in self.plan()["changes"]}


def everything(ns: Namespace) -> tuple[object, str]:
    return snapshot(ns), ns.ip("-N -d route show table all") + ns.ip(
        "-N -d -6 route show table all"
    )


@pytest.fixture
def node(namespace: Namespace, tmp_path: Path) -> Node:
    flannel(namespace)
    namespace.ip_batch(veth("cali1", "p1"))
    return Node(namespace, tmp_path)


# -- plan, apply ----------------------------------------------------------------------------------


def test_plan_changes_nothing_and_apply_does_what_it_said(node: Node) -> None:
    ns = node.ns
    bystanders(ns)
    ns.ip_batch(
        "link add stale-bri type bridge\n"
        "route add 10.65.0.9 dev cali1 proto 98 metric 1024\n"
        "route add 10.65.0.2 dev foreign0 proto 98 metric 1024\n"
    )
    wanted = node.wants(RED, TAP, endpoints=(WEB, DB))
    before = everything(ns)
    with Untouched(ns):
        said = node.plan()
        text = node.ok("plan", code=2)
    assert everything(ns) == before
    assert not node.agent.state_dir.exists()

    assert {(each["action"], each["name"]) for each in said["changes"]} == {
        ("create", "red-bri"), ("create", "red-vtp"), ("create", "eth0-tap"),
        ("delete", "stale-bri"),
    }  # fmt: skip
    assert {(each["action"], each["prefix"], each["interface"]) for each in said["routes"]} == {
        ("move", "10.65.0.2/32", "cali1"),
        ("add", "fd00:65::2/128", "cali1"),
        ("delete", "10.65.0.9/32", "cali1"),
    }
    made = next(each for each in said["changes"] if each["name"] == "red-vtp")
    assert made["fields"]["controller"] == {"observed": None, "wanted": "red-bri"}
    assert made["fields"]["vni"] == {"observed": None, "wanted": 1}
    assert {"flannel.1", "cni0", "lo"} < {each["name"] for each in said["foreign"]}
    assert "cali1" not in {each["name"] for each in said["foreign"]}
    assert "  + create    red-bri  vpc red\n              mtu: 1450\n" in text
    assert "3 to create, 1 to delete, 1 route to delete, 1 route to add, 1 route to move" in text

    links = set(snapshot(ns))
    foreign = foreign_routes(ns, "red-bri", "red-vtp", "eth0-tap")
    with Untouched(ns, names=["flannel.1", "cni0", "vethpod1", "peer1", "cali1", "foreign0"]):
        assert "everything is as planned" in node.ok("apply")
    changed = links ^ set(snapshot(ns))
    assert changed == {"red-bri", "red-vtp", "eth0-tap", "stale-bri"}
    assert wrong(ns, wanted) == []
    assert our_routes(ns) == {"10.65.0.2": "cali1", "fd00:65::2": "cali1"}
    assert foreign_routes(ns, "red-bri", "red-vtp", "eth0-tap") == foreign

    with Untouched(ns):
        assert "nothing to do" in node.ok("plan")
        assert "nothing to do" in node.ok("apply")


def test_plan_of_changes_live_and_anew(node: Node) -> None:
    green = vpc("green", 2, mtu=1400)
    node.wants(RED, green, TAP)
    node.ok("apply")
    node.ns.ip("link add late-bri up type bridge")
    # VNIs swapped; an MTU; a member taken away by others.
    node.ns.ip("link set eth0-tap nomaster")
    wanted = node.wants(RED | {"vni": 2, "mtu": 1300}, green | {"vni": 1}, TAP, vpc("late", 7))
    said = {each["name"]: each for each in node.plan()["changes"]}
    assert {name: each["action"] for name, each in said.items()} == {
        "red-bri": "change", "red-vtp": "recreate", "green-vtp": "recreate",
        "eth0-tap": "change", "late-bri": "adopt", "late-vtp": "create",
    }  # fmt: skip
    assert said["red-vtp"]["fields"]["vni"] == {"observed": 1, "wanted": 2}
    assert said["red-bri"]["fields"]["mtu"] == {"observed": 1450, "wanted": 1300}
    assert said["eth0-tap"]["fields"]["controller"] == {"observed": None, "wanted": "red-bri"}
    assert "-/+ recreate  red-vtp" in node.ok("plan", code=2)
    node.ok("apply")
    assert wrong(node.ns, wanted) == []
    node.plan(code=0)


def test_what_others_hold_is_listed_and_the_rest_converges(node: Node) -> None:
    flannel_vtep = "link add theirs type vxlan id 1 dstport 4789 local 192.0.2.78\n"
    node.ns.ip_batch(
        f"{flannel_vtep}link set theirs up\n"
        + veth("cali2", "p2")
        + "route add 10.65.0.3 dev cali2 proto bird metric 1024\n"
    )
    node.wants(RED, vpc("blue", 5), TAP, endpoints=(WEB, DB))
    conflicts = {each["name"]: each for each in node.plan()["conflicts"]}
    assert conflicts["red-vtp"]["holder"] == "theirs"
    assert conflicts["10.65.0.3/32"]["object"] == "endpoint k8s/db/eth0"
    assert conflicts["10.65.0.3/32"]["holder"] == "protocol bird (12)"
    with Untouched(node.ns, names=["flannel.1", "cni0", "theirs"]):
        started = time.monotonic()
        done = node.run("apply")
        assert time.monotonic() - started < 10
    assert done.returncode == 1
    assert "2 not as planned:" in done.stderr
    assert "  red-vtp (vpc red): conflict: " in done.stderr
    assert "  10.65.0.3/32 (endpoint k8s/db/eth0): conflict: " in done.stderr
    assert {"red-bri", "blue-bri", "blue-vtp", "eth0-tap"} < set(snapshot(node.ns))
    assert our_routes(node.ns) == {"10.65.0.2": "cali1", "fd00:65::2": "cali1"}
    # Nothing is left to do, but not all is right.
    assert node.plan(code=0)["changes"] == []
    node.ok("apply", code=1)
    told = node.explain("theirs")
    assert told["ownership"]["verdict"] == "foreign"
    assert told["in_the_way_of"][0]["name"] == "red-vtp"
    assert node.explain("10.65.0.3")["routes"][0]["state"] == "conflict"


def test_plan_documents_on_the_command_line(node: Node, tmp_path: Path) -> None:
    document_ = tmp_path / "other.json"
    document_.write_text(json.dumps(document(RED)))
    # NETREEVE_PLAN isn't read: what it holds is no plan.
    node.agent.write_document("bad.json", "{")
    assert node.run("plan", str(document_)).returncode == 2
    assert node.run("apply", str(document_)).returncode == 0
    assert node.run("plan", str(document_)).returncode == 0
    for command in ("plan", "apply"):
        done = node.run(command)
        assert (done.returncode, done.stdout) == (78, "")
        assert "bad.json" in done.stderr
        assert node.run(command, "/nowhere").returncode == 64


def test_an_empty_plan_deletes_nothing_unless_that_is_meant(node: Node) -> None:
    node.wants(RED, endpoints=(WEB,))
    node.ok("apply")
    node.wants()
    held = {each["name"]: each["reason"] for each in node.plan(code=0)["held_back"]}
    assert held.keys() == {"red-bri", "red-vtp", "10.65.0.2/32", "fd00:65::2/128"}
    assert all("NETREEVE_ALLOW_EMPTY_PLAN" in reason for reason in held.values())
    done = node.run("apply")
    assert done.returncode == 78
    assert "NETREEVE_ALLOW_EMPTY_PLAN" in done.stderr
    assert "red-bri" in snapshot(node.ns)
    assert node.run("apply", NETREEVE_ALLOW_EMPTY_PLAN="true").returncode == 0
    assert "red-bri" not in snapshot(node.ns)
    assert our_routes(node.ns) == {}


def test_the_delete_brake(node: Node) -> None:
    many = [vpc(f"v{i}", 100 + i) for i in range(8)]
    node.wants(*many)
    node.ok("apply")
    wanted = node.wants(many[0])
    assert len(node.plan(code=0)["held_back"]) == 14
    done = node.run("apply")
    assert done.returncode == 1
    assert "delete brake" in done.stderr
    assert "v7-bri" in snapshot(node.ns)
    node.ok("apply", "--yes")
    assert wrong(node.ns, wanted) == []


def test_without_cap_net_admin(node: Node) -> None:
    node.wants(RED, endpoints=(WEB,))
    prefix = tuple(NO_NET_ADMIN)
    assert node.run("plan", prefix=prefix).returncode == 2
    assert node.run("explain", "cali1", prefix=prefix).returncode == 0
    for words in (("apply",), ("apply", "--yes"), ("cleanup", "--yes")):
        done = node.run(*words, prefix=prefix)
        assert (done.returncode, done.stdout) == (77, "")
        assert "CAP_NET_ADMIN" in done.stderr
    assert not node.agent.state_dir.exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_deletes_are_asked_about_on_a_terminal(node: Node, answer: str, code: int) -> None:
    node.wants(RED)
    node.ok("apply")
    node.wants(vpc("blue", 5))
    shown, ended = on_a_terminal(node, answer, "apply")
    assert "delete 2 links, or make them anew (red-bri, red-vtp)? [y/N]" in shown
    assert ended == code
    assert ("red-bri" in snapshot(node.ns)) == (answer == "n")
    assert ("blue-bri" in snapshot(node.ns)) == (answer == "y")
    if answer == "y":
        assert "] 0/" in shown  # the bar
        assert "everything is as planned" in shown
    else:
        assert "nothing was changed" in shown


def on_a_terminal(node: Node, answer: str, *words: str) -> tuple[str, int]:
    ours, theirs = pty.openpty()
    command = node.ns.inside([sys.executable, "-m", "netreeve", *words])
    child = subprocess.Popen(
        command, env=os.environ | node.agent.env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    answered = False
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
        if not answered and b"[y/N]" in shown:
            os.write(ours, f"{answer}\n".encode())
            answered = True
    os.close(ours)
    return shown.decode(), child.wait(10)


# -- cleanup --------------------------------------------------------------------------------------


def test_cleanup_leaves_the_namespace_as_it_was(node: Node) -> None:
    ns = node.ns
    bystanders(ns)
    before = snapshot(ns), foreign_routes(ns)
    node.wants(RED, vpc("blue", 5), TAP, endpoints=(WEB, DB))
    node.agent.start().wait_in_sync()
    node.agent.wait_status("all made", lambda s: s["objects"]["in_sync"] == 5)
    done = node.run("cleanup", "--yes")
    assert done.returncode == 1
    assert f"kill {node.agent.process.pid}" in done.stderr
    node.agent.stop()
    with Untouched(ns, names=["flannel.1", "cni0", "foreign0", "cali1"]):
        done = node.run("cleanup")
        assert done.returncode == 64
        assert "--yes" in done.stderr
        assert "- delete    red-bri" in done.stdout
        assert "- route     10.65.0.2/32 dev cali1" in done.stdout
        assert "red-bri" in snapshot(ns)
        assert "nothing of ours is left" in node.ok("cleanup", "--yes")
        assert "nothing to do" in node.ok("cleanup", "--yes")
    assert (snapshot(ns), foreign_routes(ns)) == before
    assert our_routes(ns) == {}


def test_cleanup_takes_routes_in_tables_of_vpcs_and_no_others(node: Node) -> None:
    node.ns.ip_batch(
        "route add 10.65.0.2 dev cali1 proto 98 metric 1024 table 1001\n"
        "route add 10.65.0.2 dev cali1 proto 98 metric 1024 table 77\n"
    )
    node.wants(RED | {"table": 1001}, endpoints=(WEB,))
    said = node.ok("cleanup", "--yes")
    assert "left alone: 1 routes of protocol 98 in table 77" in said
    assert node.ns.ip("route show table 1001") == ""
    assert "proto 98" in node.ns.ip("route show table 77")


def test_cleanup_says_what_can_not_go(node: Node) -> None:
    node.wants(RED, vpc("blue", 5))
    node.ok("apply")
    node.ns.ip("link add macvlan0 link red-bri type macvlan")
    with Untouched(node.ns, names=["macvlan0", "flannel.1"], riding=["macvlan0"]):
        done = node.run("cleanup", "--yes")
    assert done.returncode == 1
    assert "macvlan0" in done.stderr
    assert {"red-bri", "macvlan0"} < set(snapshot(node.ns))
    assert "blue-bri" not in snapshot(node.ns)


def test_cleanup_by_tokens(namespace: Namespace, tmp_path: Path) -> None:
    node = Node(namespace, tmp_path, NETREEVE_OWNERSHIP="token")
    node.wants(RED)
    node.ok("apply")
    namespace.ip("link add hand-bri type bridge")
    assert ". held back hand-bri" in node.ok("cleanup", "--yes")
    assert set(snapshot(namespace)) == {"hand-bri"}


# -- beside the agent -----------------------------------------------------------------------------


def test_apply_while_the_agent_runs(node: Node) -> None:
    many = [vpc(f"v{i}", 100 + i) for i in range(8)]
    node.wants(*many, endpoints=(WEB,))
    agent = node.agent
    agent.start().wait_in_sync()
    assert "everything is as planned" in node.ok("apply")
    done = node.run("apply", str(agent.plan_dir))
    assert done.returncode == 1
    assert "would undo" in done.stderr
    # What was written just before is in force when the command ends.
    for mtu in range(1400, 1405):
        wanted = node.wants(*many, RED | {"mtu": mtu}, endpoints=(WEB,))
        node.ok("apply")
        assert wrong(node.ns, wanted) == []
    wanted = node.wants(RED)
    done = node.run("apply")
    assert done.returncode == 1
    assert "delete brake" in done.stderr
    assert "v7-bri" in snapshot(node.ns)
    node.ok("apply", "--yes")
    assert wrong(node.ns, wanted) == []
    assert our_routes(node.ns) == {}
    # The brake acts again for the next plan.
    node.wants(*many, RED)
    node.ok("apply")
    node.wants(RED)
    node.ok("apply", code=1)
    agent.write_document("plan.json", "{")
    assert node.run("apply").returncode == 78
    agent.stop()


def test_explain_beside_the_agent(node: Node) -> None:
    node.wants(RED, endpoints=(WEB, DB))
    ns, agent = node.ns, node.agent
    alone = node.explain("red-bri")
    assert (alone["told_by"], alone["ownership"]["verdict"]) == ("this command", "absent")
    agent.start().wait_in_sync()
    agent.wait_status("all made", lambda s: s["objects"]["in_sync"] == 2)

    told = node.explain("red-vtp")
    assert (told["told_by"], told["ownership"]["verdict"]) == ("the agent", "owned")
    assert told["status"]["state"] == "in_sync"
    assert told["plan"]["vni"] == told["observed"]["vni"] == 1
    changes = [each for each in told["operations"] if not each["step"].startswith("Look")]
    assert [each["step"] for each in changes] == ["Create", "TokenAdd"]
    assert all(each["errno"] == 0 and each["ago_s"] >= 0 for each in changes)
    assert node.explain(ns.ifindex("red-vtp"))["observed"]["name"] == "red-vtp"

    told = node.explain("flannel.1")
    assert told["ownership"] == {
        "verdict": "foreign", "reason": "no suffix of ours, no endpoint prefix"
    }  # fmt: skip
    ns.ip("link add store-vtp type bridge")
    assert "not a vxlan" in node.explain("store-vtp")["ownership"]["reason"]
    assert node.explain("nothere")["ownership"]["verdict"] == "absent"
    assert node.explain("x" * 200)["ownership"]["verdict"] == "absent"

    agent.wait_present(web="up", db="down")
    for subject in ("cali1", "k8s/web/eth0"):
        told = node.explain(subject)
        assert told["ownership"]["verdict"] == "tracked"
        assert [each["state"] for each in told["routes"]] == ["programmed", "programmed"]
        assert told["history"][-1]["status"] == "up"
    told = node.explain("k8s/db/eth0")
    assert told["ownership"]["verdict"] == "absent"
    assert told["history"][-1]["reason"] == "link-absent"
    assert node.explain("k8s/no/eth0")["plan"] is None
    agent.stop()


def test_explain_tells_who_took_a_route_away(node: Node) -> None:
    node.wants(endpoints=(WEB,))
    agent = node.agent
    agent.start().wait_in_sync()
    agent.wait_present(web="up")
    assert node.explain("10.65.0.2")["last_changed_by"] is None
    # Holds its netlink socket open between commands.
    other = node.ns.popen(["ip", "-batch", "-"], stdin=subprocess.PIPE)
    assert other.stdin is not None
    other.stdin.write("route del 10.65.0.2/32 proto 98\n")
    other.stdin.flush()

    def changed() -> Any:
        return node.explain("10.65.0.2/32")["last_changed_by"]

    blocking_until(lambda: changed() is not None, "somebody to be named")
    assert changed()["process"] == {"pid": other.pid, "name": "ip"}
    assert f"of ip {other.pid}" in node.ok("explain", "10.65.0.2")
    other.stdin.close()
    other.wait(5)
    assert changed()["process"] is None
    told = node.explain("10.65.0.2")
    assert told["ownership"]["verdict"] == "owned"
    assert told["operations"][0]["step"] == "RouteAdd"
    assert our_routes(node.ns) == {"10.65.0.2": "cali1", "fd00:65::2": "cali1"}
    agent.stop()


def test_explain_tells_who_changed_an_address_of_a_bridge(node: Node) -> None:
    node.wants(RED)
    agent = node.agent
    agent.start().wait_in_sync()
    agent.wait_status("red is made", lambda s: s["objects"]["in_sync"] == s["objects"]["wanted"])
    assert node.explain("red-bri")["last_changed_by"] is None
    other = node.ns.popen(["ip", "-batch", "-"], stdin=subprocess.PIPE)
    assert other.stdin is not None
    other.stdin.write("addr add 10.9.9.9/32 dev red-bri\n")
    other.stdin.flush()

    def changed() -> Any:
        return node.explain("red-bri")["last_changed_by"]

    blocking_until(lambda: changed() is not None, "somebody to be named")
    assert changed()["process"] == {"pid": other.pid, "name": "ip"}
    other.stdin.close()
    other.wait(5)
    agent.stop()
