"""A node for a few seconds: a namespace without a name, a directory, and the agent in them.

Nothing of it outlives this process, however it ends. The namespace exists as long as a process is
in it or holds a descriptor of it. The agent is killed by the kernel with this process. The
directory is a third process's: it removes it as soon as nobody holds the other end of its standard
input any more, which this process and the agent do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from netreeve.control import client
from netreeve.demo.rtnetlink import PERMISSION, Request, RouteWatch, Rtnetlink
from netreeve.errors import NetreeveError, NotPermitted
from netreeve.io.namespaces import CLONE_NEWNET, inside
from netreeve.model.text import json_bytes
from netreeve.status import transition
from netreeve.status.transition import Transition

__all__ = ["PROTOCOL", "Agent", "Node", "StatusLog"]

PROTOCOL = 98  # the agent's default

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
HERE = "/proc/thread-self/ns/net"
LAST_WORDS = 5

JANITOR = """
import shutil, sys, tempfile
path = tempfile.mkdtemp(prefix="netreeve-demo-")
print(path, flush=True)
sys.stdin.read()
shutil.rmtree(path)
"""


class Node:
    """Use as a context; `agent` runs from `start` on. NotPermitted without the capabilities."""

    directory: Path
    kernel: Rtnetlink
    watch: RouteWatch
    log: StatusLog
    agent: Agent

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._netns = _namespace()
            stack.callback(os.close, self._netns)
            self.directory, self._lifeline = stack.enter_context(_directory())
            self._plan_dir = self.directory / "plan.d"
            self._plan_dir.mkdir()
            self.log = StatusLog(self.directory / "status.jsonl")
            self.kernel = Rtnetlink(self._netns)
            stack.callback(self.kernel.close)
            self.kernel.change(Request.admin("lo", up=True))  # whether we may, told before all else
            self.watch = RouteWatch(self._netns, PROTOCOL)
            stack.callback(self.watch.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plan(self, endpoints: list[dict[str, Any]]) -> None:
        """Put a plan document in the place of the last one, as a careful writer does."""
        new = self.directory / "plan.new"
        new.write_bytes(json_bytes({"endpoints": endpoints}))
        new.rename(self._plan_dir / "demo.json")

    def start(self) -> None:
        """Start the agent; it is killed when the context ends."""
        settings = {
            "PLAN": f"dir:{self._plan_dir}",
            "STATUS": f"jsonl:{self.log.path}",
            "STATE_DIR": f"{self.directory}/state",
            "CONTROL_SOCKET": f"{self.directory}/control.sock",
            "LOG_FORMAT": "json",
        }
        # Ctrl-C between the birth of the process and the note that it is to be killed would leave
        # it alive, and this one waiting for the end of all who hold the directory.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.agent = Agent(self._netns, self._lifeline, self.directory, settings)
            self._stack.callback(self.agent.kill)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Agent:
    """`netreeve run` with these settings in the namespace `netns`, a process of its own."""

    def __init__(
        self, netns: int, lifeline: int, directory: Path, settings: Mapping[str, str]
    ) -> None:
        self._log_path = directory / "agent.log"
        self._control_path = settings["CONTROL_SOCKET"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NETREEVE_")}
        environ = inherited | {f"NETREEVE_{name}": value for name, value in settings.items()}
        with self._log_path.open("wb") as log:
            self._process = inside(
                netns,
                lambda: subprocess.Popen(
                    [sys.executable, "-P", "-m", "netreeve", "run"],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lifeline],
                    start_new_session=True,  # Ctrl-C is for this process; it ends the other
                    preexec_fn=_die_with(os.getpid()),
                ),
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP; returns when it has stopped (or ended: WNOWAIT leaves that to `check_alive`)."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, negative for a signal; None if it doesn't end in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def status(self) -> dict[str, Any] | None:
        """What `netreeve status --json` shows; None while it doesn't answer."""
        try:
            return client.get(self._control_path, "/v1/status")
        except NetreeveError:
            return None

    def check_alive(self) -> None:
        """Raises NetreeveError, with what it said last, if the agent has ended."""
        code = self._process.poll()
        if code is not None:
            said = self._log_path.read_text(errors="backslashreplace").splitlines()[-LAST_WORDS:]
            raise NetreeveError("\n".join([f"the agent ended, exit code {code}; it said:", *said]))


class StatusLog:
    """What the agent's `jsonl` sink has written to `path`, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> list[Transition]:
        """The transitions that came since the last time."""
        found = []
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    found.append(transition.decode(line))
        return found


def _namespace() -> int:
    """A descriptor of a new network namespace; this thread stays where it is."""

    def make() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "making a network namespace")
        return os.open(HERE, os.O_RDONLY | os.O_CLOEXEC)

    try:
        return inside(HERE, make)  # back from where `make` goes
    except (NotPermitted, PermissionError):
        raise NotPermitted(PERMISSION) from None
    except OSError as error:
        raise NetreeveError(f"no network namespace can be had: {error}") from error


@contextlib.contextmanager
def _directory() -> Iterator[tuple[Path, int]]:
    """A new directory, and the descriptor that keeps it: it goes when no process holds that."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", JANITOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must not reach it
        encoding="utf-8",
        errors="surrogateescape",
    ) as janitor:
        assert janitor.stdin is not None
        assert janitor.stdout is not None
        path = janitor.stdout.readline().rstrip("\n")
        if not path:
            raise NetreeveError("no temporary directory can be made; set TMPDIR to a place for it")
        yield Path(path), janitor.stdin.fileno()


def _die_with(parent: int) -> Callable[[], None]:
    """For a child of `parent`, before exec: it is killed as soon as its parent has ended."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a mask outlives exec
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that
            os._exit(1)

    return ask
