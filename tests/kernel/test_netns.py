"""The helper that the kernel tests stand on: nothing leaks, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from tests.support import netns

pytestmark = pytest.mark.kernel


def test_links_and_routes_are_those_of_the_namespace_alone(namespace: netns.Namespace) -> None:
    namespace.ip_batch(
        ["link add cali1 type veth peer name eth0", "link set eth0 up", "link set cali1 up"]
    )
    namespace.ip_batch(
        "route add 10.65.0.2/32 dev cali1 proto 98 metric 1024\n"
        "route add fd00::2/128 dev cali1 proto 98 metric 1024 table 1001\n"
    )
    assert {link["ifname"] for link in namespace.links()} == {"lo", "cali1", "eth0"}
    assert namespace.ifindex("cali1") == namespace.links()[-1]["ifindex"]
    routes = namespace.routes()
    assert [(route["dst"], route["dev"], route["family"]) for route in routes] == [
        ("10.65.0.2", "cali1", 4),
        ("fd00::2", "cali1", 6),
    ]
    assert routes[1]["table"] == "1001"
    assert namespace.routes(proto=97) == []
    assert len(namespace.routes(proto=None)) > 2
    with pytest.raises(OSError, match="no interface"):
        socket.if_nametoindex("cali1")


def test_a_failure_says_the_command_and_the_kernels_words(namespace: netns.Namespace) -> None:
    with pytest.raises(netns.IpError, match=r"link add x type veth.*File exists"):
        namespace.ip_batch("link add x type veth\nlink add x type veth\n")
    with pytest.raises(netns.IpError, match=r"link del absent: Cannot find device"):
        namespace.ip("link del absent")


def test_a_socket_stays_inside_and_the_caller_outside(namespace: netns.Namespace) -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as inside:
        assert os.readlink("/proc/thread-self/ns/net") == before
        namespace.ip("link set lo up")
        inside.bind(("127.0.0.1", 0))
        listed = namespace.call(lambda: Path("/proc/thread-self/net/udp").read_text())
        assert f"{inside.getsockname()[1]:04X}" in listed
    assert namespace.call(lambda: os.readlink("/proc/thread-self/ns/net")) != before
    with pytest.raises(ZeroDivisionError):
        namespace.call(lambda: 1 // 0)


def test_everything_is_gone_afterwards_also_stopped_processes() -> None:
    with netns.Namespace() as made:
        sleeper = made.popen(["sleep", "1000"])
        code = "import os, time; os.fork() and print(1, flush=True); time.sleep(1000)"
        spawner = made.popen([sys.executable, "-c", code])
        assert spawner.stdout is not None
        assert spawner.stdout.readline() == "1\n"
        sleeper.send_signal(signal.SIGSTOP)
    assert not made.path.exists()
    assert sleeper.returncode == spawner.returncode == -signal.SIGKILL


def test_leftovers_of_a_killed_process_are_removed() -> None:
    code = (
        "import os, signal\n"
        "from tests.support.netns import Namespace\n"
        "with Namespace() as ns:\n"
        "    ns.popen(['sleep', '1000'])\n"
        "    print(ns.name, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        text=True,
    )
    name = killed.stdout.strip()
    assert Path("/run/netns", name).exists()
    with netns.Namespace() as alive:
        assert name in netns.remove_leftovers()
        assert alive.path.exists()
    assert not Path("/run/netns", name).exists()


async def test_async_tests_run_under_both_loops(request: pytest.FixtureRequest) -> None:
    under_uvloop = isinstance(asyncio.get_running_loop(), uvloop.Loop)
    assert request.node.name.endswith("[uvloop]" if under_uvloop else "[asyncio]")
