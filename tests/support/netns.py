"""Private network namespaces, so that tests can do anything to a real kernel's links.

    with Namespace() as ns:
        ns.ip("link add cali1 type veth peer name eth0")
        ns.ip_batch("link set cali1 up\\nlink set eth0 up\\n")
        agent = ns.popen([sys.executable, "-m", "netreeve", "run"])

A namespace is called `nrv-<pid>-<n>` after the process that made it. It is removed on exit from
the context, with every process that is still inside; `remove_leftovers()` removes those of
processes that didn't come so far (kill -9). Root is needed, and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

__all__ = ["IpError", "Namespace", "remove_leftovers"]

RUN_NETNS = Path("/run/netns")
CLONE_NEWNET = 0x40000000  # <linux/sched.h>; os.setns and os.CLONE_NEWNET came with Python 3.12
KILL_WAIT_S = 5.0

T = TypeVar("T")

_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


class IpError(Exception):
    """`ip` failed; the text holds the command and what it said."""


class Namespace:
    """One private namespace, made on entry and removed on exit of the context."""

    def __init__(self) -> None:
        self.name = f"nrv-{os.getpid()}-{next(_numbers)}"
        self.path = RUN_NETNS / self.name
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        _run_ip(["netns", "add", self.name])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            _remove(self.name)
        finally:
            for child in self._children:
                child.wait(KILL_WAIT_S)
                for pipe in (child.stdin, child.stdout, child.stderr):
                    if pipe is not None:
                        pipe.close()

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    def ip(self, command: str) -> str:
        """Run `ip -n <this> COMMAND` (split at white space); its output. Raises IpError."""
        return _run_ip(["-n", self.name, *command.split()])

    def ip_batch(self, commands: str | Iterable[str]) -> None:
        """Run many `ip` commands, one a line, in one process. Raises IpError at the first failure.

        A batch is 50 times faster than as many calls of `ip()`, and leaves the agent less time
        between two changes.
        """
        lines = commands if isinstance(commands, str) else "\n".join(commands) + "\n"
        _run_ip(["-n", self.name, "-batch", "-"], stdin=lines)

    def links(self) -> list[dict[str, Any]]:
        """Every link, as `ip -j -d link` shows it."""
        return _json(["-n", self.name, "-j", "-d", "link", "show"])

    def ifindex(self, name: str) -> int:
        """The ifindex that bears this name now. Raises IpError where none does."""
        index: int = _json(["-n", self.name, "-j", "link", "show", "dev", name])[0]["ifindex"]
        return index

    def routes(self, proto: int | None = 98) -> list[dict[str, Any]]:
        """Routes of every table and both families, as `ip -j -N route` shows them.

        `proto` is a protocol number (98: the agent's default), None is every protocol. Numbers stay
        numbers in text ("protocol": "98"); `family` (4 or 6) is added; `table` is absent in the
        main one.
        """
        chosen = [] if proto is None else ["proto", str(proto)]
        found = []
        for family in (4, 6):
            command = ["-n", self.name, "-j", "-N", f"-{family}", "route", "show", "table", "all"]
            found += [route | {"family": family} for route in _json([*command, *chosen])]
        return found

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in here, without a process between the two."""
        return ["ip", "netns", "exec", self.name, *command]

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = subprocess.PIPE,
        stderr: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command in here; `pid` is its own. It is killed when the context ends.

        `env` is added to the environment of the tests. Text is UTF-8 with surrogateescape.
        """
        child = subprocess.Popen(
            self.inside(command),
            env=os.environ | env if env is not None else None,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            encoding="utf-8",
            errors="surrogateescape",
        )
        self._children.append(child)
        return child

    def call(self, function: Callable[[], T]) -> T:
        """What `function()` returns when it runs in here, in a thread of its own.

        The thread enters the namespace and ends there: the caller's never leaves its own. A socket
        opened in `function` stays in here wherever it is used.
        """
        outcome: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                with self.path.open("rb") as handle:
                    if _libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
                        number = ctypes.get_errno()
                        raise OSError(number, os.strerror(number), str(self.path))
                outcome.append(function())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, name=f"inside {self.name}")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def socket(self, family: int, type: int, proto: int = 0) -> socket.socket:
        """A socket that belongs to this namespace. The caller closes it."""
        return self.call(lambda: socket.socket(family, type, proto))


def remove_leftovers() -> list[str]:
    """Remove the namespaces whose makers are dead; their names."""
    if not RUN_NETNS.is_dir():
        return []
    removed = []
    for name in sorted(os.listdir(RUN_NETNS)):
        made_by = re.fullmatch(r"nrv-(\d+)-\d+", name)
        if made_by is not None and not Path("/proc", made_by[1]).exists():
            _remove(name)
            removed.append(name)
    return removed


def _remove(name: str) -> None:
    """Kill what runs in a namespace, then remove it: a process inside would keep it alive."""
    give_up = time.monotonic() + KILL_WAIT_S
    while pids := [int(pid) for pid in _run_ip(["netns", "pids", name]).split()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up:
            raise IpError(f"{name}: processes {pids} don't end after SIGKILL")
        time.sleep(0.005)
    _run_ip(["netns", "del", name])


def _run_ip(arguments: Sequence[str], stdin: str | None = None) -> str:
    done = subprocess.run(
        ["ip", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        check=False,
        encoding="utf-8",
        errors="surrogateescape",
    )
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        failed = re.search(r"^Command failed -:(\d+)$", said, re.MULTILINE)
        line = f" {(stdin or '').splitlines()[int(failed[1]) - 1]!r}" if failed else ""
        raise IpError(f"ip {' '.join(arguments)}{line}: {said}")
    return done.stdout


def _json(arguments: Sequence[str]) -> list[dict[str, Any]]:
    # `ip` prints nothing at all instead of an empty list in some cases.
    parsed: list[dict[str, Any]] = json.loads(_run_ip(arguments) or "[]")
    return parsed
