"""The way into the second kernel: what happens in there is told out here, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.kernel
pytest_plugins = ["pytester"]

CONFTEST = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.support import uml

uml.SLACK_S = 6

def pytest_configure(config):
    config.pluginmanager.register(uml.plugin(config, Path(__file__).parent))
"""

TESTS = """
import os
import signal
import sys
import time
from pathlib import Path
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("in teardown")

def test_passes(): pass

@pytest.mark.parametrize("text", ["a b", "$(c)'"])
def test_odd_ids(text): pass

def test_fails():
    here = os.uname().release
    print("out: " + "x" * 300_000 + "end")
    assert here == "another"

def test_fails_late(broken): pass

@pytest.mark.xfail(strict=True)
def test_fails_as_expected(): assert False

@pytest.mark.timeout(2)
def test_is_too_slow(): time.sleep(60)
"""

LAST = {
    "test_panics": (
        "Path('/proc/sysrq-trigger').write_text('c'); time.sleep(60)",
        "The second kernel ended.",
    ),
    "test_hangs": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); time.sleep(60)",
        "The second kernel told nothing more for 8 s.",
    ),
}


def kernels(files: Path) -> list[str]:
    """Command lines of the user-mode kernels whose files are in there."""
    lines = (_read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    return [line for line in lines if "linux.uml" in line and f"uml_dir={files}" in line]


def until_true(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose tests all run in the second kernel; where that one's files are."""
    pytester.makeini("[pytest]\ntimeout = 120\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest(CONFTEST)
    files = pytester.mkdir("files")
    monkeypatch.setenv("TMPDIR", str(files))
    return files


@pytest.mark.parametrize("name", LAST)
def test_every_outcome_is_told(pytester: pytest.Pytester, files: Path, name: str) -> None:
    body, told = LAST[name]
    last = f"@pytest.mark.timeout(2)\ndef {name}(): {body}\n\ndef test_after(): pass\n"
    pytester.makepyfile(test_there=f"{TESTS}\n{last}")
    result = pytester.runpytest_subprocess("-v")
    result.assert_outcomes(passed=4, failed=4, errors=1, xfailed=1)
    text = result.stdout.str()
    assert f"assert '{os.uname().release}' ==" not in text
    assert "x" * 300_000 + "end" in text
    assert "Timeout (>2.0s) from pytest-timeout" in text
    result.stdout.fnmatch_lines(
        [
            "*test_odd_ids?$(c)'?*PASSED*",
            "*ERROR at teardown of test_fails_late*",
            "*ValueError: in teardown*",
            "*def test_fails():*",
            ">*assert here == *another*",
            "E*AssertionError: assert '*' == 'another'*",
            f"*_ {name} _*",
            f"{told} Its console:",
            f"*test_there.py::{name}*",
            "*_ test_after _*",
            told,
        ]
    )
    assert kernels(files) == list(files.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_outer_run(
    pytester: pytest.Pytester, files: Path, number: signal.Signals
) -> None:
    pytester.makepyfile(test_there="import time\ndef test_sleeps(): time.sleep(60)")
    with (pytester.path / "output").open("wb") as output:
        outer = subprocess.Popen([sys.executable, "-m", "pytest"], stdout=output, stderr=output)
    try:
        until_true(lambda: len(kernels(files)) > 3, "a kernel with processes")
    finally:
        outer.send_signal(number)
        outer.wait(30)
    until_true(lambda: not kernels(files), "the end of every process")
    assert bool(list(files.iterdir())) == (number == signal.SIGKILL)
