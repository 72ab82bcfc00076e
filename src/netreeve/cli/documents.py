"""Plan documents that a command line names: files, or directories of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from netreeve.errors import PlanError, Problem, UsageError
from netreeve.model import ownership
from netreeve.model.text import printable
from netreeve.plan import loading
from netreeve.plan.document import Document
from netreeve.plan.model import Plan
from netreeve.sources.files import plan_names, read_document

__all__ = ["load"]


def load(paths: Iterable[Path], scheme: ownership.Scheme) -> tuple[Plan, int]:
    """The plan that the documents under `paths` make together, and how many they are.

    Raises UsageError for a path that isn't there, PlanError with all that is wrong, sorted.
    """
    documents, problems = _read(paths)
    plan = None
    try:
        plan = loading.load(documents, scheme, whole=not problems)
    except PlanError as error:
        problems.extend(error.problems)
    if plan is None or problems:
        raise PlanError(tuple(sorted(problems)))
    return plan, len(documents)


def _read(paths: Iterable[Path]) -> tuple[list[Document], list[Problem]]:
    documents: dict[Path, Document] = {}
    problems: list[Problem] = []
    for path in _expand(paths, problems):
        read = read_document(path)
        if isinstance(read, Problem):
            problems.append(read)
        else:
            documents[path] = read
    return list(documents.values()), problems


def _expand(paths: Iterable[Path], problems: list[Problem]) -> list[Path]:
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
