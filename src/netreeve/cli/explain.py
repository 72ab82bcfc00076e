"""`netreeve explain`: why something is as it is."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from netreeve.cli import changes, terminal
from netreeve.config import settings
from netreeve.control import client
from netreeve.errors import NetreeveError
from netreeve.io.journal_file import JournalReader
from netreeve.model.text import json_bytes, safe

HELP = "tell why a link, an endpoint or a route is as it is"

EPILOG = """\
SUBJECT is a link's name or ifindex, an endpoint's id, or a prefix. The running agent is asked,
which knows what it did and what the kernel answered; without one, this command looks by itself.

example:
  netreeve explain flannel.1
"""

HISTORY = 10
TIMEOUT_S = 30.0
INDENT = 14

COLOURS: dict[str, terminal.Colour] = {"owned": "green", "tracked": "green", "foreign": "yellow"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="SUBJECT", help="name, ifindex, endpoint id or prefix")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    found = settings.load(os.environ)
    told = _ask(found, args.subject)
    told["history"] = _history(found, told["endpoints"])
    if args.json:
        print(json_bytes(told).decode())
    else:
        for line in as_text(told, terminal.of(sys.stdout, os.environ)):
            print(line)
    return 0


def _ask(found: settings.Settings, subject: str) -> dict[str, Any]:
    query = {"subject": subject}
    try:
        told = client.get(found.control_socket, "/v1/explain", TIMEOUT_S, query)
    except client.NoAgent:
        return {**asyncio.run(_look(found, subject)), "told_by": "this command"}
    return {**told, "told_by": "the agent"}


async def _look(found: settings.Settings, subject: str) -> dict[str, Any]:
    # What only those need whom no agent answers: it takes a tenth of a second to load.
    from netreeve import oneshot
    from netreeve.cli.plan import known_instance
    from netreeve.plan.model import Plan

    async with oneshot.OneShot(found, known_instance(found)) as shot:
        plan: Plan | None = None
        try:
            plan = await shot.read_plan()
        except NetreeveError as error:
            print(f"netreeve: the plan can't be read: {error}", file=sys.stderr)
        await shot.look(Plan() if plan is None else plan)
        return await shot.explain(plan, subject)


def _history(found: settings.Settings, endpoints: list[str]) -> list[dict[str, Any]]:
    """The last transitions of these endpoints; none where the journal can't be read."""
    if found.state_dir is None or not endpoints:
        return []
    records: list[dict[str, Any]] = []
    with (
        contextlib.suppress(OSError, sqlite3.Error),
        contextlib.closing(JournalReader(Path(found.state_dir))) as journal,
    ):
        for endpoint in endpoints:
            first = journal.seq_of_last(HISTORY, endpoint)
            lines = journal.read(first, HISTORY, endpoint)
            records += [json.loads(line) for _, line in lines]
    return sorted(records, key=lambda record: int(record["seq"]))


def as_text(told: Mapping[str, Any], screen: terminal.Terminal) -> Iterator[str]:
    """The answer for people."""
    verdict = told["ownership"]["verdict"]
    reason = screen.wrap(safe(told["ownership"]["reason"]), INDENT)
    shown = screen.paint(verdict, COLOURS.get(verdict))
    yield f"{safe(told['subject'])}: {shown}: {reason}"
    status = told.get("status")
    if status:
        words = f"{status['state']}: {status['reason']}" if status["reason"] else status["state"]
        yield _row("status", words, screen)
    plans = told["plan"] if isinstance(told["plan"], list) else [told["plan"]]
    for plan in plans:
        yield _row("plan", "nothing" if plan is None else _members(plan), screen)
    if told["type"] != "prefix":
        observed = told["observed"]
        yield _row("observed", "nothing" if observed is None else _members(observed), screen)
    yield from _differences(told["difference"], screen)
    for each in told.get("routes", ()):
        yield _row("route", _route(each), screen)
    if told["type"] == "prefix":
        for each in told["observed"]:
            yield _row("observed", _members(each), screen)
    for each in told.get("in_the_way_of", ()):
        yield _row("in the way", f"{each['name']} ({each['object']}): {each['reason']}", screen)
    for each in told["operations"]:
        yield _row("operation", _operation(each), screen)
    yield _row("changed by", _changed_by(told), screen)
    for each in told["history"]:
        why = f" ({each['reason']})" if each["reason"] else ""
        words = f"{each['observed']} {each['previous'] or '-'} → {each['status']}{why}"
        yield _row("history", words, screen)
    if told["told_by"] != "the agent":
        yield _row("note", "no agent runs: what was done, and by whom, is not known", screen)


def _row(label: str, text: str, screen: terminal.Terminal) -> str:
    return f"  {label:<{INDENT - 2}}{screen.wrap(safe(text), INDENT)}"


def _members(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {changes.value(each)}" for name, each in value.items() if each != [])


def _differences(difference: Mapping[str, Any], screen: terminal.Terminal) -> Iterator[str]:
    for name, each in difference.items():
        before, wanted = (_side(each[side]) for side in ("observed", "wanted"))
        yield _row("difference", f"{name}: {before} → {wanted}", screen)


def _side(value: object) -> str:
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "; ".join(map(_members, value))
    return changes.value(value)


def _route(each: Mapping[str, Any]) -> str:
    why = f": {each['reason']}" if each["reason"] else ""
    shadow = ", shadowed by a route of others with a lower metric" if each["shadowed"] else ""
    return f"{each['prefix']} table {each['table']} {each['state']}{why}{shadow}"


def _operation(each: Mapping[str, Any]) -> str:
    number = each["errno"]
    answer = "done" if number == 0 else "no answer" if number is None else ""
    words = each["words"] or (os.strerror(number) if number else "")
    answer = answer or f"{words} (errno {number})"
    return f"{each['ago_s']:.1f} s ago {each['step']}({_members(each['arguments'])}): {answer}"


def _changed_by(told: Mapping[str, Any]) -> str:
    by = told["last_changed_by"]
    if told["type"] == "link":
        return "not known: the kernel doesn't tell who changes links"
    if by is None:
        return "nobody else, as far as is known"
    if by["port"] == 0:
        return "the kernel"
    process = by["process"]
    who = "which is closed by now" if process is None else f"of {process['name']} {process['pid']}"
    return f"netlink port {by['port']}, {who}"
