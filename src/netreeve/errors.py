"""Every exception that netreeve raises on purpose.

The exit code that a command ends with is a property of the error (product.md, Commands), so that
`cli.main` needs no table of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = [
    "JournalError",
    "KernelError",
    "NetreeveError",
    "NotPermitted",
    "PlanError",
    "Problem",
    "SettingsError",
    "SinkError",
    "UsageError",
]


class NetreeveError(Exception):
    """Something that netreeve can explain: its text is a sentence for the user, no traceback."""

    exit_code = 1


class UsageError(NetreeveError):
    """The command line is off."""

    exit_code = 64


class SettingsError(NetreeveError):
    """One or more NETREEVE_* variables have values that are not allowed; all of them at once."""

    exit_code = 64

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong in a plan document.

    `line` and `column` count from 1; 0 means that the whole file is meant (unreadable, missing).
    """

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{where}: {self.message}"


class PlanError(NetreeveError):
    """The documents don't make a plan; every problem of every document."""

    exit_code = 78

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class NotPermitted(NetreeveError):
    """A capability or a file permission is missing; the text says which and what to do."""

    exit_code = 77


class KernelError(NetreeveError):
    """The kernel refused a request.

    `errno` is positive; `words` is the kernel's extended acknowledgement, "" where it gave none.
    """

    def __init__(self, errno: int, words: str = "", doing: str = "") -> None:
        text = words or os.strerror(errno)
        super().__init__(f"{doing}: {text}" if doing else text)
        self.errno = errno
        self.words = words


class JournalError(NetreeveError):
    """The journal can't be read or written; the text names the file and the remedy."""


class SinkError(NetreeveError):
    """A sink did not take records; it is tried again, in order, from the first that it missed."""


class SinkFenced(SinkError):
    """Another agent has taken the store over: this one must write nothing to it any more."""
