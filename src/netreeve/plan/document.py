"""The files that a plan is made of, and the bounds on them."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

__all__ = [
    "MAX_DEPTH",
    "MAX_DOCUMENT_BYTES",
    "MAX_INT_DIGITS",
    "MAX_VALUES",
    "SUFFIXES",
    "Document",
    "Flaw",
    "Lines",
    "Malformed",
    "decode_text",
]

SUFFIXES = (".yaml", ".yml", ".json")
"""What a plan document's name ends with."""

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""Largest file; about 100,000 endpoints. More go into several files."""

MAX_DEPTH = 32
"""Deepest nesting that is read at all; the schema needs 4."""

MAX_VALUES = 1_000_000
"""Most values that a file may hold, every YAML alias counted as what it stands for."""


MAX_INT_DIGITS = 4300
"""Longer numbers are not converted: Python refuses to by default, since it takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Document:
    """One file: `path` is what messages call it, and its suffix says what is in it."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at the character offset `at` of a file's text."""

    at: int
    message: str


class Malformed(Exception):
    """The text can't be read on from here; internal to the plan package."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.flaw = Flaw(at, message)


class Lines:
    """Turns character offsets of a text into lines and columns, both from 1.

    A line ends with a line feed; offsets behind the last character are put on it.
    """

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._end = len(text)

    def position(self, at: int) -> tuple[int, int]:
        """(line, column) of the character at offset `at`."""
        at = min(at, self._end)
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1


def decode_text(data: bytes) -> str:
    """The text of a file, without a byte order mark; Malformed if it is too large or no UTF-8.

    The offset of a Malformed is one in the text that `data.decode(errors="replace")` gives.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise Malformed(
            0,
            f"the file has {len(data)} bytes, more than {MAX_DOCUMENT_BYTES}: "
            "spread the plan over several files",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig")
        hint = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise Malformed(
            len(good), f"the byte 0x{data[error.start]:02x} is not UTF-8{hint}"
        ) from None
