"""`netreeve status`: what the running agent says of itself, asked over its control socket."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from netreeve.cli import terminal
from netreeve.config import settings
from netreeve.control import client
from netreeve.model.text import json_bytes, safe

HELP = "show the state of the running agent"

EPILOG = """\
The agent is asked on its control socket (NETREEVE_CONTROL_SOCKET). Exit code 1: no agent answers;
77: the socket is another user's.

example:
  netreeve status --json | jq .endpoints
"""

INDENT = 2
LABEL = 11

# What is shown of each group of counts, and how a count that isn't 0 is painted.
COUNTS: dict[str, dict[str, terminal.Colour | None]] = {
    "endpoints": {"total": None, "up": None, "down": "yellow", "error": "red"},
    "links": {
        "total": None,
        "owned": None,
        "tracked": None,
        "foreign": None,
        "ambiguous": "yellow",
    },
    "routes": {"programmed": None, "pending": None, "conflicts": "red"},
    "objects": {
        "wanted": None,
        "in_sync": None,
        "pending": None,
        "error": "red",
        "conflict": "red",
        "blocked": "yellow",
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, as it was given")


def run(args: argparse.Namespace) -> int:
    status = client.get(settings.load(os.environ).control_socket, "/v1/status")
    if args.json:
        print(json_bytes(status).decode())
    else:
        for line in as_text(status, terminal.of(sys.stdout, os.environ)):
            print(line)
    return 0


def as_text(status: Mapping[str, Any], screen: terminal.Terminal) -> Iterator[str]:
    """The status for people. A member that is missing is left out: agents differ in version."""
    yield _headline(status, screen)
    for label, parts in _rows(status):
        if parts:
            yield f"{'':{INDENT}}{label:<{LABEL}}{screen.flow(parts, INDENT + LABEL)}"
    for ends in ("sources", "sinks"):
        entries = [entry for entry in _list(status, ends) if isinstance(entry, Mapping)]
        if entries:
            yield f"{'':{INDENT}}{ends}"
        for entry in entries:
            yield from _end(entry, screen)
    problems = _list(status, "problems")
    if problems:
        yield f"{'':{INDENT}}problems"
    for problem in problems:
        yield _problem(problem, 2 * INDENT, screen)


def _headline(status: Mapping[str, Any], screen: terminal.Terminal) -> str:
    name = _text(status, "node", "this node")
    version = _text(status, "version", "")
    parts: list[terminal.Part] = [(f"{name}: netreeve {version}".rstrip(), "bold")]
    for member, words in (("in_sync", "in sync"), ("ready", "ready")):
        if member in status:
            parts.append((words, "green") if status[member] else (f"not {words}", "red"))
    return screen.flow(parts, INDENT)


def _rows(status: Mapping[str, Any]) -> Iterator[tuple[str, list[terminal.Part]]]:
    plan = _map(status, "plan")
    since = _text(plan, "in_force_since", "")
    yield "plan", _count(plan, "endpoints") + ([(f"in force since {since}", None)] if since else [])
    for group, members in COUNTS.items():
        counts = _map(status, group)
        parts = [_count(counts, member, colour=colour) for member, colour in members.items()]
        yield group, [part for found in parts for part in found]
    yield "journal", _journal(_map(status, "journal"))
    yield "events", [*_count(status, "overruns"), *_count(status, "resyncs")]


def _journal(journal: Mapping[str, Any]) -> list[terminal.Part]:
    parts: list[terminal.Part] = []
    if "recording" in journal:
        parts.append(("recording", None) if journal["recording"] else ("not recording", "red"))
    parts += _count(journal, "pending")
    age = journal.get("oldest_age_s")
    if journal.get("pending") and isinstance(age, int | float):
        parts.append((f"the oldest {age:.0f} s old", None))
    size = journal.get("bytes")
    if isinstance(size, int | float):
        parts.append((f"{size / 1048576:.1f} MiB", None))
    return parts


def _end(entry: Mapping[str, Any], screen: terminal.Terminal) -> Iterator[str]:
    """A source or a sink: one line, then what is wrong with it."""
    parts: list[terminal.Part] = [(_text(entry, "url", "?"), None)]
    if entry.get("in_sync") is False:
        parts.append(("not in sync", "yellow"))
    if entry.get("seq") is not None:
        parts.append((f"passed up to {_text(entry, 'seq', '')}", None))
    if entry.get("lag"):
        parts += _count(entry, "lag", "behind", "yellow")
    yield f"{'':{2 * INDENT}}{screen.flow(parts, 3 * INDENT)}"
    for problem in (*_list(entry, "problems"), entry.get("error")):
        if problem is not None:
            yield _problem(problem, 3 * INDENT, screen)


def _problem(problem: object, indent: int, screen: terminal.Terminal) -> str:
    text = screen.wrap(safe(str(problem)), indent + INDENT)
    return f"{'':{indent}}{screen.paint(text, 'red')}"


def _map(status: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    value = status.get(member)
    return value if isinstance(value, Mapping) else {}


def _list(status: Mapping[str, Any], member: str) -> list[Any]:
    value = status.get(member)
    return value if isinstance(value, list) else []


def _text(status: Mapping[str, Any], member: str, otherwise: str) -> str:
    value = status.get(member)
    return otherwise if value is None else safe(str(value))


def _count(
    counts: Mapping[str, Any],
    member: str,
    what: str = "",
    colour: terminal.Colour | None = None,
) -> list[terminal.Part]:
    """`3 down`, painted unless it is 0; nothing where there is no such number."""
    value = counts.get(member)
    if not isinstance(value, int):
        return []
    return [(f"{value} {what or member.replace('_', ' ')}", colour if value else None)]
