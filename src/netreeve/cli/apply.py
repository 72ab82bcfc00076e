"""`netreeve apply`: make it so, once, and say what isn't."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from netreeve import oneshot
from netreeve.cli import changes, documents, terminal
from netreeve.config import settings
from netreeve.control import client
from netreeve.dataplane import Wrong
from netreeve.errors import NetreeveError, PlanError, Problem
from netreeve.io.state_dir import new_instance
from netreeve.sources import why_not_in_force

HELP = "make links and routes equal the plan once, and wait until they are"

EPILOG = """\
PATHs are plan documents, or directories of them; without any, NETREEVE_PLAN is read.
Where the agent runs it is asked to compare everything now. On a terminal, deletes are asked about;
--yes says yes, also to more of them than NETREEVE_DELETE_BRAKE allows. Exit code 1: the list shows
what isn't right; 77: needs CAP_NET_ADMIN; 78: bad plan.

example:
  netreeve apply --yes
"""

ORDER_TIMEOUT_S = 60.0
POLL_S = 0.1
BAR = 30


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="plan documents")
    parser.add_argument("--yes", action="store_true", help="don't ask; release the delete brake")


def run(args: argparse.Namespace) -> int:
    found = settings.load(os.environ)
    try:
        agent = client.get(found.control_socket, "/v1/status")
    except client.NoAgent:
        return asyncio.run(_alone(found, args.paths, yes=args.yes))
    if args.paths:
        raise NetreeveError(
            f"the agent runs (pid {agent.get('pid', 'unknown')}), and would undo what differs from"
            f" its own plan ({found.plan}): change that, or stop the agent"
        )
    return _by_agent(found, yes=args.yes)


async def _alone(found: settings.Settings, paths: list[Path], *, yes: bool) -> int:
    await oneshot.allowed(found)
    held = oneshot.hold(found)
    try:
        if yes:
            found = dataclasses.replace(found, delete_brake=1.0)
        instance = new_instance() if held is None else held.instance()
        async with oneshot.OneShot(found, instance) as shot:
            plan = documents.load(paths, shot.scheme)[0] if paths else await shot.read_plan()
            refused = why_not_in_force(plan, allow_empty=found.allow_empty_plan)
            if refused:
                where = ", ".join(map(str, paths)) or found.plan
                raise PlanError((Problem(where, 0, 0, refused),))
            preview = await shot.look(plan)
            for line in changes.as_text(preview, terminal.of(sys.stdout, os.environ)):
                print(line)
            if preview.empty:
                return _end(preview.wrong)
            if not yes and not _agreed(preview):
                raise NetreeveError("nothing was changed")
            with Progress() as progress:
                wrong = await shot.act(progress.show)
            return _end(wrong)
    finally:
        if held is not None:
            held.release()


def _agreed(preview: oneshot.Preview) -> bool:
    names = changes.deletes(preview)
    if not names or not changes.is_interactive():
        return True
    return changes.ask(f"delete {len(names)} links, or make them anew ({', '.join(names)})?")


def _by_agent(found: settings.Settings, *, yes: bool) -> int:
    order = {"release_brake": yes}
    begun = client.post(found.control_socket, "/v1/apply", order, ORDER_TIMEOUT_S)
    if begun["problems"]:
        for problem in begun["problems"]:
            print(problem, file=sys.stderr)
        return PlanError.exit_code
    patience = oneshot.Patience()
    with Progress() as progress:
        while True:
            state = client.get(found.control_socket, "/v1/reconciled")
            if state["settled"] and all(each["lasting"] for each in state["wrong"]):
                return _end(state["wrong"])
            # Whatever is left: before everything was compared it is not known.
            left = state["left"] if state["compared"] else sys.maxsize
            if state["compared"]:
                progress.show(left)
            if patience.is_over(left, time.monotonic(), settled=state["settled"]):
                break
            time.sleep(POLL_S)
    state = client.get(found.control_socket, "/v1/reconciled", query={"all": ""})
    if not state["settled"] and not state["wrong"]:
        raise NetreeveError("the agent didn't come to compare everything; see its log")
    return _end(state["wrong"])


def _end(wrong: Sequence[Wrong | Mapping[str, Any]]) -> int:
    if not wrong:
        print("everything is as planned")
        return 0
    print(f"{len(wrong)} not as planned:", file=sys.stderr)
    for line in changes.wrong_lines(wrong):
        print(f"  {line}", file=sys.stderr)
    return NetreeveError.exit_code


class Progress:
    """A bar on standard error, if that is a terminal; it is gone in the end."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._most = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, left: int) -> None:
        """So much is left."""
        self._most = max(self._most, left)
        if not self._on or not self._most:
            return
        done = self._most - left
        bar = "#" * (BAR * done // self._most)
        print(f"\r[{bar:<{BAR}}] {done}/{self._most}", end="", file=sys.stderr, flush=True)
