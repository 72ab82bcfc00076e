"""`netreeve status` from outside, against a real control socket, and its form for people."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.cli import status, terminal
from netreeve.control.server import ControlServer
from tests.unit.cli.test_main import CLEAN, netreeve

FULL: dict[str, Any] = {
    "node": "n1",
    "version": "0.1.0",
    "in_sync": True,
    "ready": False,
    "links": {"total": 121, "owned": 0, "tracked": 20, "foreign": 101, "ambiguous": 1},
    "endpoints": {"total": 20, "up": 18, "down": 1, "error": 1},
    "routes": {"programmed": 36, "pending": 0, "conflicts": 1},
    "objects": {"wanted": 4, "in_sync": 4, "pending": 0, "error": 0, "conflict": 0, "blocked": 0},
    "journal": {"pending": 3, "bytes": 3145728, "oldest_age_s": 2.4, "recording": False},
    "plan": {"endpoints": 20, "in_force_since": "2026-01-02T03:04:05Z"},
    "sources": [
        {"url": "dir:/etc/a", "in_sync": True, "problems": []},
        {"url": "file:/b", "in_sync": False, "problems": ["/b:3:7: unknown key `adress`"]},
    ],
    "sinks": [{"url": "jsonl:/x", "seq": 44, "lag": 3, "error": "no space left on device"}],
    "overruns": 0,
    "resyncs": 4,
    "problems": ["the journal is not recording"],
}

SHOWN = """\
n1: netreeve 0.1.0, in sync, not ready
  plan       20 endpoints, in force since 2026-01-02T03:04:05Z
  endpoints  20 total, 18 up, 1 down, 1 error
  links      121 total, 0 owned, 20 tracked, 101 foreign, 1 ambiguous
  routes     36 programmed, 0 pending, 1 conflicts
  objects    4 wanted, 4 in sync, 0 pending, 0 error, 0 conflict, 0 blocked
  journal    not recording, 3 pending, the oldest 2 s old, 3.0 MiB
  events     0 overruns, 4 resyncs
  sources
    dir:/etc/a
    file:/b, not in sync
      /b:3:7: unknown key `adress`
  sinks
    jsonl:/x, passed up to 44, 3 behind
      no space left on device
  problems
    the journal is not recording
"""

PLAIN = terminal.Terminal()


def shown(given_status: dict[str, Any], screen: terminal.Terminal = PLAIN) -> str:
    return "".join(f"{line}\n" for line in status.as_text(given_status, screen))


def test_the_form_for_people() -> None:
    assert shown(FULL) == SHOWN


def test_colours_change_no_character() -> None:
    coloured = shown(FULL, terminal.Terminal(colours=True))
    assert re.sub(r"\x1b\[\d*m", "", coloured) == SHOWN
    assert "\x1b[31m1 error\x1b[0m" in coloured
    assert "\x1b[33m1 down\x1b[0m" in coloured
    calm = {"endpoints": {"total": 1, "up": 1, "down": 0, "error": 0}}
    assert "\x1b[3" not in shown(calm, terminal.Terminal(colours=True))


@pytest.mark.parametrize("width", [50, 60, 80])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, colours: bool) -> None:
    text = re.sub(r"\x1b\[\d*m", "", shown(FULL, terminal.Terminal(colours, width)))
    assert max(map(len, text.splitlines())) <= width
    assert "".join(text.split()) == "".join(SHOWN.split())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.data())
def test_members_that_are_missing_or_of_another_type_do_not_crash_it(data: st.DataObject) -> None:
    kept = {name: value for name, value in FULL.items() if data.draw(st.booleans())}
    for name in list(kept):
        if data.draw(st.booleans()):
            kept[name] = data.draw(JSON)
        elif isinstance(kept[name], dict):
            kept[name] = {m: data.draw(JSON) for m in kept[name] if data.draw(st.booleans())}
        elif name in ("sources", "sinks"):
            kept[name] = [{m: data.draw(JSON) for m in entry} for entry in kept[name]]
    text = shown(kept)
    assert all(line.isprintable() for line in text.splitlines())


async def in_another_process(
    path: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        netreeve, "status", *words, NETREEVE_CONTROL_SOCKET=str(path), **variables
    )


async def test_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    agent = ControlServer(str(path), lambda: FULL)
    await agent.start()
    try:
        done = await in_another_process(path)
        assert (done.returncode, done.stdout, done.stderr) == (0, SHOWN, "")
        done = await in_another_process(path, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, FULL)
        assert done.stdout.count("\n") == 1
    finally:
        await agent.stop()
    done = await in_another_process(path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"netreeve: no agent: there is no control socket {path}; start")


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
async def test_on_a_terminal(tmp_path: Path, variables: dict[str, str], coloured: bool) -> None:
    path = tmp_path / "c.sock"
    agent = ControlServer(str(path), lambda: FULL)
    await agent.start()
    try:
        output = await asyncio.to_thread(on_a_terminal, str(path), variables)
    finally:
        await agent.stop()
    assert ("\x1b[" in output) == coloured
    assert "n1: netreeve 0.1.0" in output


def on_a_terminal(path: str, variables: dict[str, str]) -> str:
    keyboard, screen = pty.openpty()
    environ = {k: v for k, v in CLEAN.items() if k != "NO_COLOR"}
    try:
        subprocess.run(
            [sys.executable, "-m", "netreeve", "status"],
            stdout=screen,
            env={**environ, **variables, "NETREEVE_CONTROL_SOCKET": path},
            check=True,
        )
        os.close(screen)
        output = b""
        # At the end of the other side a pty gives EIO, not an empty read.
        while True:
            try:
                output += os.read(keyboard, 65536)
            except OSError:
                return output.decode()
    finally:
        os.close(keyboard)
