"""`netreeve check`: are these plan documents good?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from netreeve.config import settings
from netreeve.errors import PlanError, Problem, UsageError
from netreeve.model import ownership
from netreeve.model.text import printable
from netreeve.plan.document import Document
from netreeve.plan.loading import load
from netreeve.plan.model import Plan
from netreeve.sources.files import plan_names, read_document

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
    scheme = ownership.scheme(**{name: getattr(chosen, name) for name in settings.NAMING})
    documents, problems = _read(paths)
    plan = None
    try:
        plan = load(documents, scheme, whole=not problems)
    except PlanError as error:
        problems.extend(error.problems)
    if plan is None or problems:
        for problem in sorted(problems):
            print(printable(str(problem)), file=sys.stderr)
        return PlanError.exit_code
    print(_summary(plan, len(documents)))
    return 0


def _read(paths: list[Path]) -> tuple[list[Document], list[Problem]]:
    documents: dict[Path, Document] = {}
    problems: list[Problem] = []
    for path in _expand(paths, problems):
        read = read_document(path)
        if isinstance(read, Problem):
            problems.append(read)
        else:
            documents[path] = read
    return list(documents.values()), problems


def _expand(paths: list[Path], problems: list[Problem]) -> list[Path]:
    """The files that the arguments name, each once; UsageError for one that isn't there."""
    files: dict[Path, None] = {}
    for path in paths:
        try:
            if path.is_dir():
                files.update(dict.fromkeys(path / name for name in plan_names(path)))
            elif path.exists():
                files[path] = None
            else:
                raise UsageError(f"{printable(str(path))} is not there")
        except OSError as error:
            problems.append(Problem(str(path), 0, 0, f"can't be read: {error.strerror}"))
        except ValueError as error:
            raise UsageError(f"{printable(str(path))}: {error}") from None
    return list(files)


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
