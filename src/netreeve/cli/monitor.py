"""`netreeve monitor`: what happens to the links of this namespace, as the name machine tells it."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
from netreeve.cli import terminal
from netreeve.errors import NetreeveError
from netreeve.io.linkmonitor import InSync, LinkMonitor, Overrun
from netreeve.model.text import json_bytes, printable

if TYPE_CHECKING:
    from netreeve.io.linkmonitor import LinkEvent

HELP = "print what happens to links, race-free: two links never bear one name"

EPILOG = """\
Needs no privilege. What is lost in an overrun is made up for by a full comparison.
Ctrl-C stops it.

example:
  netreeve monitor --name 'cali*'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--name",
        metavar="GLOB",
        default="*",
        help="only links whose name matches, with *, ? and [...]; case counts",
    )


def run(args: argparse.Namespace) -> int:
    try:
        asyncio.run(_monitor(_json_line if args.json else _text_line, args.name))
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise NetreeveError(f"watching links: {error}") from error
    return 0


async def _monitor(line: Any, pattern: str) -> None:
    screen = terminal.of(sys.stdout, os.environ)
    kinds: dict[int, str] = {}
    async with LinkMonitor() as links:
        async for event in links:
            if isinstance(event, LinkAdded):
                kinds[event.ifindex] = links[event.ifindex].kind if event.ifindex in links else ""
            name = getattr(event, "name", None)
            if name is None or fnmatch.fnmatchcase(name, pattern):
                kind = kinds.get(getattr(event, "ifindex", 0), "")
                print(line(event, kind, screen), flush=True)
            if isinstance(event, LinkRemoved):
                kinds.pop(event.ifindex, None)


def _json_line(event: LinkEvent, kind: str, _: terminal.Terminal) -> str:
    """The line that product documents promise; see docs/reference/monitor.md."""
    members: dict[str, Any]
    match event:
        case LinkAdded(name, ifindex, up):
            members = _link("link-added", name, ifindex, up, kind)
        case LinkChanged(name, ifindex, up, inferred, flaps):
            members = _link("link-changed", name, ifindex, up, kind, inferred)
            if flaps:
                members["flaps"] = flaps
        case LinkRemoved(name, ifindex):
            members = _link("link-removed", name, ifindex, False, kind)
        case NameAmbiguous(name, ifindexes):
            members = {"event": "name-ambiguous", "name": name, "ifindexes": ifindexes}
        case InSync(count):
            members = {"event": "in-sync", "links": count}
        case Overrun():
            members = {"event": "overrun"}
    return json_bytes(members).decode()


def _link(
    event: str, name: str, ifindex: int, up: bool, kind: str, inferred: bool = False
) -> dict[str, Any]:
    return {
        "event": event,
        "name": name,
        "ifindex": ifindex,
        "up": up,
        "kind": kind,
        "inferred": inferred,
    }


def _text_line(event: LinkEvent, kind: str, screen: terminal.Terminal) -> str:
    now = datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3]
    match event:
        case LinkAdded(name, ifindex, up):
            what = screen.paint("+", "green") + _row(name, ifindex, _state(screen, up), kind)
        case LinkChanged(name, ifindex, up, inferred, flaps):
            what = " " + _row(name, ifindex, _state(screen, up), kind)
            if inferred:
                times = f", {flaps} times" if flaps > 1 else ""
                what += screen.paint(f"  inferred from carrier counters{times}", "dim")
        case LinkRemoved(name, ifindex):
            what = screen.paint("-", "red") + _row(name, ifindex, "gone", kind)
        case NameAmbiguous(name, ifindexes):
            several = ", ".join(map(str, ifindexes))
            what = f"? {printable(name)}  seems to be ifindex {several}; asking the kernel"
        case InSync(count):
            what = screen.paint(f"= in sync, {count} links", "dim")
        case Overrun():
            what = screen.paint("! the kernel dropped events; comparing everything", "yellow")
    return f"{now} {what}".rstrip()


def _row(name: str, ifindex: int, state: str, kind: str) -> str:
    return f" {printable(name):<16} {ifindex:>6}  {state}  {printable(kind)}"


def _state(screen: terminal.Terminal, up: bool) -> str:
    return screen.paint("up  ", "green") if up else screen.paint("down", "yellow")
