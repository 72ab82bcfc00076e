"""The agent's start and end: permissions, settings, one at a time, signals at any moment."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.agent import (
    AgentProcess,
    assert_routes,
    endpoint,
    processes,
    statuses,
    veth,
)
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(90)]

NO_NET_ADMIN = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
WEB = endpoint("web", "cali1", "10.65.0.1")


def ends(agent: AgentProcess, code: int, within_s: float) -> str:
    """The agent ends by itself, with this code, in that time; what it had to say."""
    started = time.monotonic()
    assert agent.wait(within_s + 5) == code, agent.log_text()
    assert time.monotonic() - started < within_s
    text = agent.log_text()
    assert "Traceback" not in text
    return text


def test_without_cap_net_admin(namespace: Namespace, tmp_path: Path) -> None:
    with AgentProcess(namespace, tmp_path, plan=[WEB], prefix=NO_NET_ADMIN) as agent:
        assert "CAP_NET_ADMIN" in ends(agent.start(), 77, within_s=2)
        # It has left nothing behind that would be in the way of the next one.
        assert not agent.control_path.exists()
        assert not agent.jsonl_path.exists()


def test_in_a_user_namespace_root_is_nobody(namespace: Namespace, tmp_path: Path) -> None:
    """All capabilities, but not over this network namespace."""
    with AgentProcess(namespace, tmp_path, plan=[WEB], prefix=["unshare", "-Ur"]) as agent:
        assert "CAP_NET_ADMIN" in ends(agent.start(), 77, within_s=2)


def test_wrong_settings_are_told_all_at_once(namespace: Namespace, tmp_path: Path) -> None:
    wrong = {
        "NETREEVE_RESYNC_INTERVAL_S": "-1",
        "NETREEVE_ROUTE_METRIC": "0",
        "NETREEVE_ROUTE_PROTOCOL": "4",
        "NETREEVE_EVENT_LOOP": "twisted",
        "NETREEVE_STATE_DIR": "relative/path",
        "NETREEVE_BATCH_OPS": "many",
    }
    with AgentProcess(namespace, tmp_path, plan=[WEB], env=wrong) as agent:
        text = ends(agent.start(), 64, within_s=2)
        assert [variable for variable in wrong if variable not in text] == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PLAN", "etcdv9://x"), ("PLAN", ""), ("STATUS", "DIR:/tmp"), ("STATUS", "jsonl:relative")],
)
def test_a_wrong_url(namespace: Namespace, tmp_path: Path, variable: str, value: str) -> None:
    with AgentProcess(
        namespace, tmp_path, plan=[WEB], env={f"NETREEVE_{variable}": value}
    ) as agent:
        assert f"NETREEVE_{variable}" in ends(agent.start(), 64, within_s=2)


def test_a_mistyped_variable_is_warned_about(namespace: Namespace, tmp_path: Path) -> None:
    with AgentProcess(namespace, tmp_path, plan=[WEB], env={"NETREEVE_ROUTE_TABEL": "7"}) as agent:
        agent.start().wait_in_sync()
        assert "NETREEVE_ROUTE_TABLE" in agent.log_text()
        agent.stop()


def test_a_second_agent_on_the_same_state_directory(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        (tmp_path / "second").mkdir()
        second = {"NETREEVE_STATE_DIR": str(agent.state_dir)}
        with AgentProcess(
            namespace, tmp_path / "second", plan=[WEB], env=second, sentinel=False
        ) as other:
            text = ends(other.start(), 1, within_s=2)
            assert str(agent.state_dir) in text
            assert str(agent.process.pid) in text
        (tmp_path / "third").mkdir()
        third = {"NETREEVE_CONTROL_SOCKET": str(agent.control_path)}
        with AgentProcess(
            namespace, tmp_path / "third", plan=[WEB], env=third, sentinel=False
        ) as other:
            assert "NETREEVE_CONTROL_SOCKET" in ends(other.start(), 1, within_s=4)
        # The first one hasn't noticed.
        agent.barrier()
        agent.wait_present(web="up")
        assert statuses(agent.records()) == ["up"]
        agent.stop()


def test_the_ends_of_an_agent_that_works(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        for signals in (
            [signal.SIGTERM],
            [signal.SIGTERM, signal.SIGTERM],
            [signal.SIGINT],
            [signal.SIGHUP, signal.SIGTERM],
            [signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM],
        ):
            agent.start().wait_in_sync()
            for number in signals:
                agent.signal(number)
            ends(agent, 0, within_s=5)
            assert not agent.control_path.exists()
            assert_routes(namespace, {"10.65.0.1": "cali1"})
        assert statuses(agent.records()) == ["up"]
        assert agent.delivered() == agent.all_records()


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGTERM],
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGHUP, signal.SIGTERM],
    ],
    ids=["SIGTERM", "SIGTERM twice", "SIGHUP, SIGTERM"],
)
def test_signals_at_any_moment_of_the_start(
    namespace: Namespace, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    """From the moment on that Python runs our code; before, the process can't catch anything."""
    moments = random.Random(7)
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        for _ in range(8):
            agent.start()
            wait_handled(agent)
            time.sleep(moments.random() * 0.5)
            for number in signals:
                agent.signal(number)
            ends(agent, 0, within_s=5)
            assert not agent.control_path.exists()


def wait_handled(agent: AgentProcess) -> None:
    """Until it catches SIGTERM (SigCgt, proc(5)). Before, Python itself is still starting."""
    status = Path(f"/proc/{agent.process.pid}/status")

    def caught() -> bool:
        (line,) = [s for s in status.read_text().splitlines() if s.startswith("SigCgt:")]
        return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    blocking_until(caught, "a handler of SIGTERM", interval_s=0.001)


def test_sigterm_again_and_again_until_the_end(namespace: Namespace, tmp_path: Path) -> None:
    """Also in the last moments, when the loop has gone and the interpreter is on its way out."""
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        for _ in range(5):
            agent.start().wait_in_sync()
            while agent.process.poll() is None:
                agent.signal(signal.SIGTERM)
                agent.signal(signal.SIGHUP)
                time.sleep(0.0005)
            ends(agent, 0, within_s=5)


def test_the_handler_is_there_before_the_long_imports(namespace: Namespace, tmp_path: Path) -> None:
    """Most of the start is loading code: a SIGTERM then must not be a death by signal."""
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start()
        wait_handled(agent)
        assert "netreeve/_ext/index" not in Path(f"/proc/{agent.process.pid}/maps").read_text()
        agent.signal(signal.SIGTERM)
        ends(agent, 0, within_s=5)


def test_pid_1_ends_on_sigterm_and_leaves_no_child(namespace: Namespace, tmp_path: Path) -> None:
    with AgentProcess(
        namespace, tmp_path, plan=[WEB], prefix=["unshare", "--pid", "--fork", "--kill-child"]
    ) as agent:
        agent.start().wait_in_sync()
        (child,) = (
            Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
        )
        os.kill(int(child), signal.SIGTERM)
        ends(agent, 0, within_s=5)
        assert processes(namespace) == []


def test_sighup_rereads_compares_and_reopens(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        assert_routes(namespace, {"10.65.0.1": "cali1"})
        before = agent.status()["resyncs"]
        agent.jsonl_path.rename(tmp_path / "rotated.jsonl")
        agent.signal(signal.SIGHUP)
        agent.wait_status("a resync", lambda s: s["resyncs"] > before)
        agent.barrier()
        agent.wait_present(web="up")
        assert statuses(agent.records()) == ["up"]
        agent.stop()
        rotated = len((tmp_path / "rotated.jsonl").read_bytes().splitlines())
        assert agent.delivered() == agent.all_records()[rotated:]


def test_descriptors_and_threads_don_t_leak(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        process = Path(f"/proc/{agent.process.pid}")

        def used() -> tuple[int, int]:
            return len(os.listdir(process / "fd")), len(os.listdir(process / "task"))

        def churn() -> None:
            for i in range(10):
                before = agent.status()["resyncs"]
                agent.signal(signal.SIGHUP)
                agent.wait_status("a resync", lambda s, n=before: s["resyncs"] > n)  # type: ignore[misc]
                agent.write_plan([endpoint("web", "cali1", f"10.65.0.{i + 2}")])
                agent.barrier()
            blocking_until(lambda: agent.status()["sinks"][0]["lag"] == 0, "delivered")

        churn()
        first = used()
        churn()
        # The last control connection may not be closed yet.
        blocking_until(lambda: used() <= first, "no more descriptors and threads than before")
        agent.stop()


def test_spoofed_events_are_not_believed(namespace: Namespace, tmp_path: Path) -> None:
    """Another root process multicasts a link's end; only the kernel's word counts."""
    namespace.ip_batch(veth("cali1", "p1"))
    with AgentProcess(namespace, tmp_path, plan=[WEB]) as agent:
        agent.start().wait_in_sync()
        agent.wait_present(web="up")
        heard = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        heard.bind((0, 1))
        namespace.ip_batch("link set p1 down\nlink set p1 up\n")
        agent.barrier()
        before = len(agent.records())
        liar = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        heard.setblocking(False)
        said = []
        while True:
            try:
                said.append(heard.recv(1 << 17))
            except BlockingIOError:
                break
        for message in said:
            liar.sendto(message, (0, 1))
        heard.close()
        liar.close()
        agent.barrier()
        assert len(agent.records()) == before
        agent.stop()
