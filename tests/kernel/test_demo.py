"""`netreeve demo`: the story is told to its end, and nothing of it is left, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import Namespace
from tests.support.watch import blocking_until

pytestmark = pytest.mark.kernel

COMMAND = [sys.executable, "-m", "netreeve", "demo"]
CHAPTERS = 9


class Stage:
    """Where a demo is played: in `home`, with a directory for its files and a mark on its
    processes, which they inherit from each other."""

    def __init__(self, home: Namespace, directory: Path) -> None:
        self.home = home
        self.directory = directory
        self.mark = f"DEMO_OF={uuid.uuid4()}"

    def start(self) -> subprocess.Popen[str]:
        # The agent of the demo must not get settings that are meant for another one.
        name, _, value = self.mark.partition("=")
        environ = {"TMPDIR": str(self.directory), name: value, "NETREEVE_ROUTE_PROTOCOL": "wrong"}
        return self.home.popen(COMMAND, env=environ)

    def start_until(self, chapter: int) -> subprocess.Popen[str]:
        """Started, and that chapter has begun."""
        demo = self.start()
        assert demo.stdout is not None
        assert any(line.startswith(f"{chapter}. ") for line in demo.stdout)
        return demo

    def processes(self) -> dict[int, str]:
        """The command line of each process that bears the mark, by pid."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        command = (entry / "cmdline").read_bytes()
                        found[int(entry.name)] = command.replace(b"\0", b" ").decode()
                except OSError:
                    continue  # it ended meanwhile, or is a zombie
        return found

    def agent(self) -> int:
        """The pid of the agent."""
        return next(pid for pid, command in self.processes().items() if command.endswith("run "))

    def expect_nothing_left(self) -> None:
        blocking_until(lambda: not self.processes(), "no process of the demo is left")
        assert os.listdir(self.directory) == []
        assert [link["ifname"] for link in self.home.links()] == ["lo"]
        assert self.home.routes(proto=None) == []


@pytest.fixture
def stage(namespace: Namespace) -> Iterator[Stage]:
    # Not tmp_path: the path of a Unix socket has 107 bytes at the most.
    with tempfile.TemporaryDirectory(prefix="nrv-") as directory:
        yield Stage(namespace, Path(directory))


def test_the_story_is_told_and_nothing_is_left(stage: Stage) -> None:
    began_s = time.monotonic()
    demo = stage.start()
    told, complaints = demo.communicate(timeout=60)
    assert (demo.returncode, complaints) == (0, ""), told
    assert time.monotonic() - began_s < 20
    stage.expect_nothing_left()

    chapters = re.split(r"^\d\. ", told, flags=re.MULTILINE)[1:]
    assert len(chapters) == CHAPTERS
    assert all("   ok  " in chapter for chapter in chapters)
    assert max(map(len, told.splitlines())) <= 90
    assert "\x1b" not in told
    for sentence in (
        "40 routes are in the kernel, each on its pod's link",
        "each of the three links was seen, in order",
        "six transitions in order, none merged",
        "held by a route of protocol static (4)",
        "one replace, so that it was never without a route",
        "exit code 0",
    ):
        assert sentence in told
    # What is shown of the log is in order, and its end is the end of the log.
    shown = [int(number) for number in re.findall(r"^ +(\d+) k8s/", told, re.MULTILINE)]
    assert shown == sorted(set(shown))
    assert f"the log goes from 1 to {shown[-1]} without a gap" in told


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
@pytest.mark.parametrize("chapter", [1, 4])
def test_killed_in_the_middle_nothing_is_left(
    stage: Stage, chapter: int, number: signal.Signals, code: int
) -> None:
    """In chapter 1 the agent is just starting, in chapter 4 it is stopped."""
    demo = stage.start_until(chapter)
    demo.send_signal(number)
    assert demo.wait(10) == code
    stage.expect_nothing_left()


def test_an_agent_that_dies_ends_the_story(stage: Stage) -> None:
    demo = stage.start_until(chapter=3)
    os.kill(stage.agent(), signal.SIGKILL)
    _, complaints = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert complaints.startswith("netreeve: the agent ended, exit code -9; it said:\nnetreeve: {")
    stage.expect_nothing_left()


def test_what_is_not_as_told_ends_the_story(stage: Stage) -> None:
    demo = stage.start_until(chapter=5)
    os.kill(stage.agent(), signal.SIGSTOP)
    _, complaints = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert re.fullmatch(
        r"netreeve: in chapter [5-8], this is not so: .* \(within 8 s\)\n", complaints
    )
    stage.expect_nothing_left()


@pytest.mark.parametrize("capability", ["net_admin", "sys_admin"])
def test_without_a_capability_it_says_what_to_do(capability: str) -> None:
    less = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}"]
    done = subprocess.run([*less, *COMMAND], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stdout) == (77, "")
    assert re.fullmatch(
        r"netreeve: .* CAP_SYS_ADMIN and CAP_NET_ADMIN: run it as root, .*\n", done.stderr
    )
