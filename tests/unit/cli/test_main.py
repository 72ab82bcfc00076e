"""The command line from outside: exit codes, help, quiet ends, and what a start costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from netreeve.cli import main
from netreeve.errors import KernelError, NotPermitted, SettingsError

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("NETREEVE_")}


def netreeve(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "netreeve", *words],
        capture_output=True,
        text=True,
        env={**CLEAN, **variables},
        check=False,
    )


def a_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Put a command in the place of `config` that ends with `error`."""

    def run(_args: object) -> int:
        raise error

    module = ModuleType("netreeve.cli.config")
    module.__dict__.update(HELP="h", EPILOG="e", configure=lambda _parser: None, run=run)
    monkeypatch.setitem(sys.modules, "netreeve.cli.config", module)


def test_version() -> None:
    done = netreeve("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("netreeve 0.")


def test_help_lists_every_command_with_its_sentence() -> None:
    done = netreeve("-h")
    assert (done.returncode, done.stderr) == (0, "")
    for name in main.COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = netreeve(name, "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: netreeve {name} " in done.stdout
    assert "example" in done.stdout
    assert f"netreeve {name}" in done.stdout.partition("example")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), f"netreeve: a command is needed: {', '.join(main.COMMANDS)}"),
        (("confg",), "netreeve: there is no command 'confg'; did you mean config?"),
        (("zzz", "--x"), "netreeve: there is no command 'zzz'; there are run, monitor,"),
        (("--verbose",), "netreeve: unrecognized arguments: --verbose"),
        (("config", "--xml"), "netreeve config: unrecognized arguments: --xml"),
        (("config", "--js"), "netreeve config: unrecognized arguments: --js"),
        (("config", "--json", "--markdown"), "netreeve config: argument --markdown: not allowed"),
    ],
)
def test_bad_usage_is_64(words: tuple[str, ...], said: str) -> None:
    done = netreeve(*words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("usage: netreeve ")
    assert f"\n{said}" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SettingsError(("one", "two")), 64, "netreeve: one\nnetreeve: two\n"),
        (NotPermitted("no"), 77, "netreeve: no\n"),
        (KernelError(17, "exists", "route"), 1, "netreeve: route: exists\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_command_ends(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_command(monkeypatch, error)
    assert main.main(["config"]) == code
    assert capsys.readouterr().err == said


def test_what_netreeve_cannot_explain_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    a_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main.main(["config"])


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "netreeve", "config"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=CLEAN,
            check=False,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_crash(closed: str) -> None:
    line = f"exec {sys.executable} -m netreeve config {closed}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, env=CLEAN, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
def test_text_beyond_the_locale_is_shown_escaped(locale: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "netreeve", "\udcff→"],
        capture_output=True,
        env={**CLEAN, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        check=False,
    )
    assert done.returncode == 64
    assert b"there is no command" in done.stderr


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("--version",), ("asyncio", "aiohttp", "uvloop", "orjson", "netreeve.config")),
        (("config",), ("asyncio", "aiohttp", "uvloop", "sqlite3", "inotify_simple", "yaml")),
        (("status",), ("asyncio", "aiohttp", "uvloop", "sqlite3", "inotify_simple", "yaml")),
    ],
)
def test_a_command_does_not_pay_for_anothers_libraries(
    words: tuple[str, ...], heavy: tuple[str, ...]
) -> None:
    script = (
        "import sys\n"
        "from netreeve.cli.main import main\n"
        f"main({list(words)!r})\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=CLEAN, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
