"""`netreeve cleanup`: remove all that is ours, and nothing else."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys

from netreeve import oneshot
from netreeve.cli import changes, terminal
from netreeve.cli.apply import Progress
from netreeve.config import settings
from netreeve.control import client
from netreeve.errors import NetreeveError, UsageError
from netreeve.io.state_dir import new_instance
from netreeve.plan.model import Plan

HELP = "remove all links and routes of ours, and nothing else"

EPILOG = """\
For uninstalling. Shows first what goes: links by our names, kind and tokens (NETREEVE_OWNERSHIP),
and routes of our protocol in NETREEVE_ROUTE_TABLE and the tables of our VPCs. Refuses while the
agent runs, which would make all of it anew. Journal and settings stay. Exit code 1: something
could not be removed; 64: without a terminal it needs --yes; 77: needs CAP_NET_ADMIN.

example:
  systemctl stop netreeve && netreeve cleanup --yes
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="don't ask")


def run(args: argparse.Namespace) -> int:
    found = settings.load(os.environ)
    try:
        agent = client.get(found.control_socket, "/v1/status")
    except client.NoAgent:
        return asyncio.run(_cleanup(found, yes=args.yes))
    pid = agent.get("pid", "PID")
    raise NetreeveError(
        f"the agent runs (pid {pid}), and would make anew what is removed: stop it first, with"
        f" `systemctl stop netreeve` or `kill {pid}`"
    )


async def _cleanup(found: settings.Settings, *, yes: bool) -> int:
    await oneshot.allowed(found)
    held = oneshot.hold(found)
    # Nothing is wanted, and that is meant.
    found = dataclasses.replace(found, allow_empty_plan=True, delete_brake=1.0)
    try:
        instance = new_instance() if held is None else held.instance()
        async with oneshot.OneShot(found, instance) as shot:
            tables = await shot.tables_of_vrfs() | await _planned_tables(shot)
            preview = await shot.look(Plan(), tables)
            for line in changes.as_text(preview, terminal.of(sys.stdout, os.environ)):
                print(line)
            for table, count in sorted((await shot.other_tables(tables)).items()):
                print(
                    f"left alone: {count} routes of protocol {found.route_protocol} in table"
                    f" {table}, which is no table of ours that is known"
                )
            if not preview.empty:
                if not yes:
                    _confirm()
                with Progress() as progress:
                    await shot.act(progress.show)
            # Where only a token makes a link ours, one without is nobody's business.
            wrong = [each for each in shot.plane.wrong() if each.state != "unproven"]
    finally:
        if held is not None:
            held.release()
    if wrong:
        print(f"{len(wrong)} could not be removed:", file=sys.stderr)
        for line in changes.wrong_lines(wrong):
            print(f"  {line}", file=sys.stderr)
        return NetreeveError.exit_code
    print("nothing of ours is left")
    return 0


def _confirm() -> None:
    if not changes.is_interactive():
        raise UsageError("nothing was removed: without a terminal to ask on, it takes --yes")
    if not changes.ask("remove all of this?"):
        raise NetreeveError("nothing was removed")


async def _planned_tables(shot: oneshot.OneShot) -> set[int]:
    """The tables of the VPCs in the plan; where that can't be read, those of VRFs must do."""
    try:
        plan = await shot.read_plan()
    except NetreeveError:
        return set()
    return {vpc.table for vpc in plan.vpcs.values() if vpc.table is not None}
