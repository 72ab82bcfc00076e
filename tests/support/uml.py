"""Tests on a second kernel: Debian's user-mode Linux, a kernel that runs as a process.

The tests in tests/uml/ need what the running kernel may lack (VRF, dummy, VLAN), or ask what an
older one does. The outer pytest collects them like all others, but its plugin, `Outside`, runs
none: it boots one `Guest`, in which a second pytest runs them with the plugin `Inside`, and passes
on that one's reports as they come, one JSON value a line on a console of the guest. So a failure
in there has its name, traceback and output out here, and is counted.

The guest has the host's root, read-only, as its root, and no network. It runs in a PID namespace
whose end comes with that of the outer pytest, kill -9 too. Root is needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Guest", "Inside", "Outside", "plugin"]

MODULES = "vrf dummy veth bridge vxlan tun 8021q macvlan"
MEMORY = "1G"  # a sparse file: what isn't touched costs nothing

# A test is stopped by its own time limit inside. The first one waits for the boot too (2 s here).
SLACK_S = 60.0
CONSOLE_TAIL_BYTES = 4000

REPORTS = "NETREEVE_TEST_REPORTS"  # set inside: where reports are written

# What init does. /tmp stays the host's, read-only: the clone may be in it. Writable is /run.
INIT = """\
#!/bin/sh
trap 'echo o >/proc/sysrq-trigger; sleep 60' EXIT  # power off; an init that ends is a panic
set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/home /run/tmp /run/lib
ln -s /usr/lib/uml/modules /run/lib/modules
modprobe --all --dirname /run {modules}
export HOME=/run/home TMPDIR=/run/tmp LANG=C.UTF-8 TERM=dumb CI=1 PYTHONDONTWRITEBYTECODE=1
export HYPOTHESIS_STORAGE_DIRECTORY=/run/hypothesis
cd {root}
export {reports}=/dev/tty1
{python} -m pytest -p no:cacheprovider --verbose --no-summary @{arguments} || true
"""

# unshare's child is no init of the namespace's own: as such, a kernel that panics couldn't abort.
COMMAND = [
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--pid", "--fork", "--kill-child"),
    *("sh", "-c", '"$@"; exit $?', "sh"),
    *("linux.uml", f"mem={MEMORY}", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
    *("con=null", "con0=null,fd:1"),
]


class Guest:
    """A booted second kernel in which pytest runs the tests `ids` of the project at `root`."""

    def __init__(self, root: Path, ids: Sequence[str]) -> None:
        _remove_leftovers()
        self._dir = Path(tempfile.mkdtemp(prefix=f"nrv-uml-{os.getpid()}-"))
        self._console = self._dir / "console"
        arguments = self._dir / "arguments"
        arguments.write_text("".join(f"{id}\n" for id in ids))
        init = self._dir / "init"
        paths = {"root": root, "python": sys.executable, "arguments": arguments}
        quoted = {name: shlex.quote(str(path)) for name, path in paths.items()}
        init.write_text(INIT.format(modules=MODULES, reports=REPORTS, **quoted))
        init.chmod(0o755)
        self._read_fd, write_fd = os.pipe()
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                [*COMMAND, f"con1=null,fd:{write_fd}", f"uml_dir={self._dir}/", f"init={init}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=[write_fd],
            )
        os.close(write_fd)
        self._unread = b""
        self._reason = ""
        self._lost: str | None = None

    def told(self, limit_s: float) -> Iterator[dict[str, Any]]:
        """What is told next, each within `limit_s` from now; the guest is stopped if it isn't.

        Ends where the guest does, at once if it has; then `why()` tells more.
        """
        give_up = time.monotonic() + limit_s
        while self._lost is None:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                yield json.loads(line)
            elif not select.select([self._read_fd], [], [], max(0, give_up - time.monotonic()))[0]:
                self._lose(f"The second kernel told nothing more for {limit_s:.0f} s.")
            elif received := os.read(self._read_fd, 1 << 16):
                self._unread += received
            else:
                self._lose("The second kernel ended.")

    def why(self) -> str:
        """Why there are no more reports; the first time with the end of the console's output."""
        assert self._lost is not None
        text, self._lost = self._lost, self._reason
        return text

    def _lose(self, reason: str) -> None:
        console = self._console.read_bytes()[-CONSOLE_TAIL_BYTES:].decode(errors="replace")
        self._reason, self._lost = reason, f"{reason} Its console:\n{console.replace(chr(13), '')}"
        self.stop()

    def stop(self) -> None:
        """Kill every process of it and remove its files. May be called again."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._read_fd)
        shutil.rmtree(self._dir, ignore_errors=True)


def _remove_leftovers() -> None:
    """Files of guests whose pytest was killed; the kernel has removed their processes."""
    for path in Path(tempfile.gettempdir()).glob("nrv-uml-*-*"):
        if not Path("/proc", path.name.split("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)


class Outside:
    """The plugin of the outer run: tests in `directory` run in the guest, after all others."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._guest: Guest | None = None

    def _is_inside(self, item: pytest.Item) -> bool:
        return item.path.is_relative_to(self._directory)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Nothing is set up for them out here, and pytest's own tests must not find that missing.
        items.sort(key=self._is_inside)
        for item in filter(self._is_inside, items):
            item.add_marker(pytest.mark.timeout(0), append=False)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self._is_inside(item):
            return None
        if self._guest is None:
            ids = [one.nodeid for one in item.session.items if self._is_inside(one)]
            self._guest = Guest(self._config.rootpath, ids)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(self._guest, item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(self, guest: Guest, item: pytest.Item) -> Iterator[pytest.TestReport]:
        """The guest runs the tests in the order in which they were collected here."""
        own = [marker for marker in item.iter_markers("timeout") if marker.args != (0,)]
        limit_s = float(own[0].args[0] if own else self._config.getini("timeout"))
        for told in guest.told(limit_s + SLACK_S):
            if told.get("finished") == item.nodeid:
                return
            report = self._config.hook.pytest_report_from_serializable(
                config=self._config, data=told["report"]
            )
            assert report.nodeid == item.nodeid
            yield report
        yield pytest.TestReport(
            item.nodeid, item.location, {}, outcome="failed", longrepr=guest.why(), when="call"
        )

    def pytest_unconfigure(self) -> None:
        if self._guest is not None:
            self._guest.stop()


class Inside:
    """The plugin of the run in the guest: it tells every report, and the end of every test."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config = config
        self._stream = open(path, "w", buffering=1)  # noqa: SIM115  # until the guest ends

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._stream.write(json.dumps({"report": data}) + "\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._stream.write(json.dumps({"finished": nodeid}) + "\n")


def plugin(config: pytest.Config, directory: Path) -> Outside | Inside:
    """The one that fits: `directory` is that of the tests for the second kernel."""
    reports = os.environ.get(REPORTS)
    return Outside(config, directory) if reports is None else Inside(config, reports)
