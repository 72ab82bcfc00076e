"""`netreeve run` as a process in a private namespace, and what must be true of what it left behind.

    with AgentProcess(ns, tmp_path, plan=[endpoint("web", "cali1", "10.65.0.2")]) as agent:
        agent.start().wait_in_sync()
        ns.ip("link del cali1")
        agent.barrier()
        assert_alternates(agent.records())

The full comparison is off (NETREEVE_RESYNC_INTERVAL_S=0): it would mend what the agent has missed,
a while later, and hide that it did.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from netreeve.control import client
from netreeve.errors import NetreeveError
from netreeve.io.journal_file import JournalReader
from netreeve.status import transition
from netreeve.status.transition import Transition
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

__all__ = [
    "AgentProcess",
    "RouteWatch",
    "assert_alternates",
    "assert_routes",
    "bystanders",
    "endpoint",
    "environment",
    "foreign_routes",
    "our_routes",
    "processes",
    "statuses",
    "veth",
]

STOP_S = 5.0
SENTINEL = "calisentinel"
SENTINEL_ID = "test/sentinel/eth0"
SENTINEL_ADDRESS = "198.51.100.254"
PROTOCOL = 98

RTNLGRP_IPV4_ROUTE = 7
RTNLGRP_IPV6_ROUTE = 11
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
SO_RCVBUFFORCE = 33
RTM_NEWROUTE = 24
RTM_DELROUTE = 25


def endpoint(workload: str, interface: str, *addresses: str, **more: object) -> dict[str, Any]:
    """A plan's endpoint `k8s/WORKLOAD/eth0`."""
    return {
        "id": f"k8s/{workload}/eth0",
        "interface": interface,
        "addresses": list(addresses),
        **more,
    }


class AgentProcess:
    """One installation: state directory, plan directory, control socket, jsonl sink, log file.

    `plan` is a list of endpoints, written to `plan.d/plan.json`; None writes nothing. With
    `sentinel` a link and an endpoint of the tests' own are made, which `barrier()` needs. The agent
    may be started and stopped any number of times; on exit it is killed if it still runs.
    """

    def __init__(
        self,
        ns: Namespace,
        path: Path,
        *,
        plan: Sequence[Mapping[str, Any]] | None = (),
        env: Mapping[str, str] | None = None,
        sentinel: bool = True,
        prefix: Sequence[str] = (),
    ) -> None:
        self.ns = ns
        self.path = path
        self.plan_dir = path / "plan.d"
        self.state_dir = path / "state"
        self.jsonl_path = path / "status.jsonl"
        self.log_path = path / "agent.log"
        self.control_path = path / "control.sock"
        self.env = {
            "NETREEVE_PLAN": f"dir:{self.plan_dir}",
            "NETREEVE_STATUS": f"jsonl:{self.jsonl_path}",
            "NETREEVE_STATE_DIR": str(self.state_dir),
            "NETREEVE_CONTROL_SOCKET": str(self.control_path),
            "NETREEVE_LOG_FORMAT": "json",
            "NETREEVE_RESYNC_INTERVAL_S": "0",
            **(env or {}),
        }
        self._prefix = list(prefix)
        self._process: subprocess.Popen[str] | None = None
        self._sentinel = sentinel
        self.plan_dir.mkdir()
        if sentinel:
            ns.ip(f"link add name {SENTINEL} up type bridge")
            document = endpoint("", SENTINEL, SENTINEL_ADDRESS) | {"id": SENTINEL_ID}
            self.write_document("sentinel.json", json.dumps({"endpoints": [document]}))
        if plan is not None:
            self.write_plan(plan, wait=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if value is not None:
            value.add_note(f"the agent's log ends with:\n{self.log_text()[-4000:]}")
        if self._process is not None:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the agent isn't started"
        return self._process

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> Self:
        assert self._process is None
        with self.log_path.open("a") as log:
            self._process = self.ns.popen(
                [*self._prefix, sys.executable, "-m", "netreeve", "run"],
                env=self.env,
                stdout=log.fileno(),
                stderr=log.fileno(),
            )
        return self

    def stop(self) -> None:
        """SIGTERM: exit code 0 in less than five seconds, and no traceback in its whole log."""
        started = time.monotonic()
        self.signal(signal.SIGTERM)
        code = self.wait(STOP_S)
        assert code == 0, f"exit code {code} after SIGTERM"
        assert time.monotonic() - started < STOP_S
        assert "Traceback" not in self.log_text()

    def wait(self, timeout_s: float) -> int:
        """The exit code of the agent, which ends by itself."""
        process, code = self.process, self.process.wait(timeout_s)
        self._process = None
        assert process.returncode == code
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait(STOP_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP; returns when it stands."""
        self.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        blocking_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "stopped")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    # -- what it says -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return client.get(str(self.control_path), "/v1/status")

    def wait_in_sync(self, timeout_s: float = 10.0) -> Self:
        """Until links, routes and plan are in sync, and nothing is wrong with the plan."""

        def ready() -> bool:
            code = self.process.poll()
            assert code is None, f"the agent ended with {code}"
            try:
                status = self.status()
            except NetreeveError:
                return False
            return bool(status["ready"])

        blocking_until(ready, "the agent in sync", timeout_s)
        return self

    def wait_plan_taken(self) -> None:
        """Until the plan in force has as many endpoints as the documents."""
        count = sum(
            len(json.loads(path.read_text())["endpoints"]) for path in self.plan_dir.glob("*.json")
        )
        self.wait_status("the whole plan", lambda s: s["plan"]["endpoints"] == count)

    def wait_status(
        self, what: str, condition: Callable[[dict[str, Any]], object], timeout_s: float = 10.0
    ) -> None:
        blocking_until(lambda: condition(self.status()), what, timeout_s)

    def records(self, workload: str | None = None) -> list[Transition]:
        """What the journal holds, without the sentinel's; of one endpoint, if it is given."""
        wanted = None if workload is None else f"k8s/{workload}/eth0"
        return [
            record
            for record in self.all_records()
            if record.endpoint != SENTINEL_ID and wanted in (None, record.endpoint)
        ]

    def all_records(self) -> list[Transition]:
        reader = JournalReader(self.state_dir)
        try:
            return [transition.decode(line) for _, line in reader.read(0, 1_000_000, None)]
        finally:
            reader.close()

    def present(self) -> dict[str, str]:
        """The last status of each workload."""
        return {r.endpoint.split("/")[1]: r.status for r in self.records() if r.status != "gap"}

    def wait_present(self, **wanted: str) -> None:
        """Until the journal says so of these workloads."""

        def holds() -> bool:
            present = self.present()
            return all(present.get(workload) == status for workload, status in wanted.items())

        try:
            blocking_until(holds, f"status {wanted}")
        except AssertionError as error:
            error.add_note(f"it is {self.present()}; routes: {our_routes(self.ns)}")
            raise

    def delivered(self) -> list[Transition]:
        """What the jsonl sink holds."""
        return [transition.decode(line) for line in self.jsonl_path.read_bytes().splitlines()]

    def log_text(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def barrier(self) -> None:
        """Until the agent has acted on every link event there was before this call.

        Links are read in order: a flap of the sentinel comes after them, and the route which that
        makes necessary is sent after theirs.
        """
        assert self._sentinel

        def last() -> Transition | None:
            return next(
                (r for r in reversed(self.all_records()) if r.endpoint == SENTINEL_ID), None
            )

        blocking_until(lambda: (r := last()) is not None and r.status == "up", "sentinel up")
        before = last()
        assert before is not None
        self.ns.ip_batch(f"link set {SENTINEL} down\nlink set {SENTINEL} up\n")
        blocking_until(
            lambda: (r := last()) is not None and r.seq >= before.seq + 2 and r.status == "up",
            "the sentinel's flap in the log",
        )

    # -- the plan ---------------------------------------------------------------------------------

    def write_document(self, name: str, text: str) -> None:
        """Write a plan document in one go: a rename."""
        beside = self.plan_dir / f".{name}.new"
        beside.write_text(text)
        beside.rename(self.plan_dir / name)

    def write_plan(
        self, endpoints: Iterable[Mapping[str, Any]], name: str = "plan.json", *, wait: bool = True
    ) -> None:
        """A document of these endpoints; with `wait`, returns when the changed plan is in force."""
        before = self.status()["plan"]["in_force_since"] if wait else None
        self.write_document(name, json.dumps({"endpoints": list(endpoints)}, indent=1))
        if wait:
            self.wait_status(
                "the plan in force", lambda status: status["plan"]["in_force_since"] != before
            )


# -- the kernel -----------------------------------------------------------------------------------


def veth(name: str, peer: str) -> str:
    """Commands that make a veth pair with both ends up, `name` last.

    Made up before its peer is, a link is IFF_RUNNING until linkwatch has looked at it: the kernel
    then shows one `up` more than anybody has made.
    """
    return (
        f"link add name {name} type veth peer name {peer}\nlink set {peer} up\nlink set {name} up\n"
    )


def bystanders(ns: Namespace) -> None:
    """A foreign link with foreign routes in several tables, which must stay as they are."""
    ns.ip_batch(
        veth("foreign0", "foreign1") + "addr add 192.0.2.1/24 dev foreign0\n"
        "route add 198.18.0.0/15 dev foreign0 proto static\n"
        "route add 203.0.113.7/32 dev foreign0 proto bird metric 1024 table 100\n"
        "route add blackhole 203.0.113.9/32 proto 66\n"
        "route add fd00:99::/64 dev foreign0 proto static metric 77 table 100\n"
    )


def our_routes(ns: Namespace) -> dict[str, str]:
    """Destination -> device of the routes of our protocol, in all tables, without the sentinel's.

    AssertionError where one destination has two.
    """
    found: dict[str, str] = {}
    for route in ns.routes(PROTOCOL):
        if route["dst"] == SENTINEL_ADDRESS:
            continue
        assert route["dst"] not in found, f"two routes to {route['dst']}"
        assert route["metric"] == 1024, route
        found[route["dst"]] = route["dev"]
    return found


def assert_routes(ns: Namespace, expected: Mapping[str, str], timeout_s: float = 5.0) -> None:
    """Our routes become, and then are, exactly these: destination -> device."""
    try:
        blocking_until(lambda: our_routes(ns) == dict(expected), "routes as expected", timeout_s)
    except AssertionError as error:
        raise AssertionError(f"routes {our_routes(ns)}, expected {dict(expected)}") from error


def foreign_routes(ns: Namespace, *without: str) -> str:
    """The text of every route in every table that isn't of our protocol, byte by byte.

    The kernel's own for link-local and multicast addresses don't count: it adds them in its own
    time after a link came up. `without` names devices whose routes don't count at all.
    """
    lines = []
    for family in ("-4", "-6"):
        for line in ns.ip(f"-N -d {family} route show table all").splitlines(keepends=True):
            words = line.split()
            if f"proto {PROTOCOL} " in line or f"dev {SENTINEL}" in line:
                continue
            if any(device in words for device in without):
                continue
            if "proto 2 " in line and words[1].startswith(("fe80:", "ff00:")):
                continue
            lines.append(line)
    return "".join(sorted(lines))


def processes(ns: Namespace) -> list[int]:
    """The ids of those that are in the namespace."""
    command = ["ip", "netns", "pids", ns.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


class RouteWatch:
    """Hears every route message in a namespace from the moment it is made, as `ip monitor` would.

    Only the type, the protocol and the destination are read, and without the project's decoder.
    """

    def __init__(self, ns: Namespace) -> None:
        self._socket = ns.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.bind((0, 0))
        for group in (RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE):
            self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def take(self) -> list[tuple[str, int, str]]:
        """("new" or "del", protocol, destination) of each message since the last call, in order."""
        found: list[tuple[str, int, str]] = []
        while True:
            try:
                data = self._socket.recv(1 << 17)
            except BlockingIOError:
                return found
            while len(data) >= 16:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (RTM_NEWROUTE, RTM_DELROUTE):
                    family, protocol = data[16], data[21]
                    what = "new" if kind == RTM_NEWROUTE else "del"
                    found.append((what, protocol, _destination(data[28:size], family)))
                data = data[(size + 3) & ~3 :]

    def ours(self) -> list[tuple[str, int, str]]:
        """Those of our protocol, but not the sentinel's."""
        return [m for m in self.take() if m[1] == PROTOCOL and m[2] != SENTINEL_ADDRESS]


def _destination(attributes: bytes, family: int) -> str:
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == 1:  # RTA_DST
            return socket.inet_ntop(family, attributes[4:size])
        attributes = attributes[(size + 3) & ~3 :]
    return "default"


# -- the log --------------------------------------------------------------------------------------


def statuses(records: Iterable[Transition]) -> list[str]:
    return [record.status for record in records]


def assert_alternates(records: Sequence[Transition], *, whole: bool = False) -> None:
    """Per endpoint never one status twice in a row, and `previous` is the one before.

    With `whole` (all the records of a node) seq counts 1, 2, 3 without a hole.
    """
    if whole:
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
    else:
        assert all(a.seq < b.seq for a, b in itertools.pairwise(records))
    last: dict[str, str | None] = {}
    for record in records:
        previous = last.get(record.endpoint)
        assert record.status != previous, f"{previous} twice in a row: {record}"
        assert record.previous == previous, f"previous isn't {previous!r}: {record}"
        last[record.endpoint] = None if record.status == "removed" else record.status


def environment(agent: AgentProcess, **changed: str) -> dict[str, str]:
    """The agent's environment, for a command of the tests that is to find it."""
    return dict(os.environ) | agent.env | changed
