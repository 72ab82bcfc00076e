"""The id of an endpoint: `orchestrator/workload/endpoint`."""

from __future__ import annotations

import re
from typing import NamedTuple

from netreeve.model.quote import quoted

__all__ = ["MAX_ID_CHARS", "EndpointId"]

MAX_ID_CHARS = 1024
"""Longest canonical text of an id; stores and file names have limits of their own."""

_NO_ESCAPE = re.compile(r"%(?!2F|2f|25)[^/]{0,2}")


class EndpointId(NamedTuple):
    """Three parts, decoded: a part may hold any printable character, also `/` and `%`.

    A tuple, so that hashing and ordering run in C: every table of endpoints has it as its key.
    """

    orchestrator: str
    workload: str
    endpoint: str

    @classmethod
    def parse(cls, text: str) -> EndpointId:
        """Parse the escaped text; ValueError says what is wrong with it.

        `%2F` (or `%2f`) stands for `/`, `%25` for `%`; no other escape exists, so that an id has
        exactly one canonical text: `str()` of the result.
        """
        parts = text.split("/")
        if len(parts) != 3:
            raise ValueError(
                f"{quoted(text)} has {len(parts)} part{'' if len(parts) == 1 else 's'}, "
                "not three: orchestrator/workload/endpoint (a `/` inside a part is written %2F)"
            )
        if not all(parts):
            raise ValueError(f"{quoted(text)} has an empty part")
        if len(text) > MAX_ID_CHARS:
            raise ValueError(f"{quoted(text)} has {len(text)} characters, more than {MAX_ID_CHARS}")
        if not text.isprintable():
            raise ValueError(f"{quoted(text)} holds a character that can't be printed")
        if "%" in text:
            _check_escapes(text)
            parts = [_decode(part) if "%" in part else part for part in parts]
        return tuple.__new__(cls, parts)

    def __str__(self) -> str:
        """The canonical escaped text; `parse` of it gives this id again."""
        text = "/".join(self)
        if text.count("/") == 2 and "%" not in text:
            return text
        return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in self)


def _decode(part: str) -> str:
    # `%25` last: what it leaves behind must not be read as an escape again.
    return part.replace("%2F", "/").replace("%2f", "/").replace("%25", "%")


def _check_escapes(text: str) -> None:
    wrong = _NO_ESCAPE.search(text)
    if wrong:
        raise ValueError(
            f"{quoted(wrong[0])} is no escape: only %2F (for `/`) and %25 (for `%`) are"
        )
