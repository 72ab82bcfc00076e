"""`netreeve check`: are these plan documents good?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from netreeve.cli import documents
from netreeve.config import settings
from netreeve.errors import PlanError
from netreeve.model.text import printable
from netreeve.plan.model import Plan

HELP = "Validate plan documents; every error with file, line, column and what was expected."

EPILOG = """\
All PATHs together are one plan, as all files of a directory are. Exit code 78 if anything is wrong.

example:
  netreeve check /etc/netreeve/plan.d
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", type=Path, help="a document, or a directory of them"
    )


def run(args: argparse.Namespace) -> int:
    """Print the counts and return 0, or print every problem and return 78."""
    paths: list[Path] = args.paths
    chosen = settings.load(os.environ)
    scheme = chosen.scheme()
    try:
        plan, files = documents.load(paths, scheme)
    except PlanError as error:
        for problem in error.problems:
            print(printable(str(problem)), file=sys.stderr)
        return PlanError.exit_code
    print(_summary(plan, files))
    return 0


def _summary(plan: Plan, files: int) -> str:
    addresses = sum(len(endpoint.addresses) for endpoint in plan.endpoints.values())
    counts = (
        (files, "file"),
        (len(plan.vpcs), "VPC"),
        (len(plan.taps), "tap"),
        (len(plan.endpoints), "endpoint"),
        (addresses, "address"),
    )
    text = ", ".join(f"{number} {_plural(word, number)}" for number, word in counts)
    if plan.empty:
        return f"ok: {text}; `netreeve run` needs NETREEVE_ALLOW_EMPTY_PLAN=true for an empty plan"
    return f"ok: {text}"


def _plural(word: str, number: int) -> str:
    if number == 1:
        return word
    return word + ("es" if word.endswith("s") else "s")
