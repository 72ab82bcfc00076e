"""What the benchmarks share: the real agent in a private namespace, what it costs, a table.

A benchmark is a script, `python benchmarks/NAME.py`. It exits 1 if what it measured was wrong.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from netreeve.control import client  # noqa: E402
from netreeve.errors import NetreeveError  # noqa: E402
from netreeve.io.journal_file import JournalReader  # noqa: E402
from tests.support import netns  # noqa: E402

__all__ = ["Agent", "Failed", "Namespace", "machine", "percentile", "table", "wait_until"]

Namespace = netns.Namespace

TIMEOUT_S = 100.0
POLL_S = 0.005


class Failed(Exception):
    """What was measured is not what should have come out; the text says what."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> float:
    """Polls until `condition()` holds; the monotonic time then. Failed after `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise Failed(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)
    return time.monotonic()


class Agent:
    """`netreeve run` in a namespace, with its state in `folder`. Ends with the context."""

    def __init__(
        self,
        namespace: netns.Namespace,
        folder: Path,
        endpoints: Iterable[Mapping[str, Any]],
        **settings: object,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        plan = folder / "plan.json"
        plan.write_text(json.dumps({"endpoints": list(endpoints)}), "ascii")
        self._control = str(folder / "control.sock")
        self._namespace = namespace
        self._reader: JournalReader | None = None
        self._settings = {
            "NETREEVE_PLAN": f"file:{plan}",
            "NETREEVE_STATUS": f"jsonl:{folder / 'status.jsonl'}",
            "NETREEVE_STATE_DIR": str(folder / "state"),
            "NETREEVE_CONTROL_SOCKET": self._control,
            "NETREEVE_LOG_LEVEL": "warning",
        } | {f"NETREEVE_{name.upper()}": str(value) for name, value in settings.items()}

    def __enter__(self) -> Self:
        """Starts it; `started` is when."""
        self.started = time.monotonic()
        with (self.folder / "log").open("ab") as log:
            self.process = self._namespace.popen(
                [sys.executable, "-m", "netreeve", "run"],
                env=self._settings,
                stdout=subprocess.DEVNULL,
                stderr=log.fileno(),
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            status = self.process.wait(10)
            if status != 0 and kind is None:
                raise Failed(f"the agent ended with {status}: {self.log()}")

    def log(self) -> str:
        """What it logged, from warnings up."""
        return (self.folder / "log").read_text("utf-8")

    def status(self) -> dict[str, Any] | None:
        """What `netreeve status --json` says; None while nobody answers."""
        if self.process.poll() is not None:
            raise Failed(f"the agent ended with {self.process.returncode}: {self.log()}")
        try:
            return client.get(self._control, "/v1/status")
        except NetreeveError:
            return None

    def wait_ready(self) -> float:
        """Waits until everything is compared and folded; seconds since the start."""

        def ready() -> bool:
            status = self.status()
            return status is not None and status["ready"] and status["routes"]["pending"] == 0

        return wait_until(ready, "the agent is ready") - self.started

    def journal(self) -> JournalReader:
        if self._reader is None:
            self._reader = JournalReader(self.folder / "state")
        return self._reader

    def wait_seq(self, seq: int) -> float:
        """Waits until the journal on the disk has `seq` transitions; the monotonic time then."""
        reader = self.journal()
        return wait_until(lambda: reader.last_seq() >= seq, f"transition {seq} in the journal")

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far, exact."""
        # CPUCLOCK_SCHED of a process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def loop_cpu_s(self) -> float:
        """CPU seconds of the event loop's thread alone."""
        pid = self.process.pid
        ran_ns = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text("ascii").split()[0]
        return int(ran_ns) / 1e9

    def memory_bytes(self) -> tuple[int, int]:
        """Resident now, and at its peak."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text("ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        return now, peak


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def machine() -> str:
    """What it ran on, in a line."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        os.uname().machine,
    )
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} CPUs {cpu}, Linux {os.uname().release}, Python {python}"


def table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Rows of (what, figure, remark) as text."""
    listed = list(rows)
    wide = max(len(what) for what, _, _ in listed)
    figures = max(len(figure) for _, figure, _ in listed)
    return "\n".join(
        f"{what:<{wide}}  {figure:>{figures}}  {remark}".rstrip() for what, figure, remark in listed
    )
