"""`netreeve plan`: what would change now."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from netreeve import oneshot
from netreeve.cli import changes, documents, terminal
from netreeve.config import settings
from netreeve.io.state_dir import new_instance
from netreeve.model.text import json_bytes

HELP = "show what would change now, and change nothing"

EPILOG = """\
PATHs are plan documents, or directories of them; without any, NETREEVE_PLAN is read.
Exit code 0: nothing would change, 2: something would, 1: it can't be found out, 78: bad plan.

example:
  netreeve plan /etc/netreeve/plan.d || netreeve apply
"""

CHANGES = 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", type=Path, help="plan documents")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    found = settings.load(os.environ)
    preview = asyncio.run(_look(found, args.paths))
    if args.json:
        print(json_bytes(changes.as_json(preview)).decode())
    else:
        for line in changes.as_text(preview, terminal.of(sys.stdout, os.environ)):
            print(line)
    return 0 if preview.empty else CHANGES


async def _look(found: settings.Settings, paths: list[Path]) -> oneshot.Preview:
    async with oneshot.OneShot(found, known_instance(found)) as shot:
        plan = documents.load(paths, shot.scheme)[0] if paths else await shot.read_plan()
        return await shot.look(plan)


def known_instance(found: settings.Settings) -> str:
    """The installation's id for one who only looks; said where it is there and can't be read."""
    try:
        return oneshot.instance(found)
    except OSError as error:
        print(
            f"netreeve: {found.state_dir}/instance can't be read ({error.strerror}): links of ours"
            " look as if they had no token",
            file=sys.stderr,
        )
        return new_instance()
