"""Text that left the kernel, on its way to people and to machines.

Link names are bytes. Above `_ext` they are `str` decoded as UTF-8 with surrogateescape, so that a
byte which is no UTF-8 is a lone surrogate U+DC80..U+DCFF. Such a string can't be printed or encoded
as it is, and a name may hold an escape sequence that would take over a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

__all__ = ["json_bytes", "printable", "safe"]


def printable(text: str) -> str:
    r"""`text` as one line that is safe on a terminal and in a log, and that says what was there.

    Printable characters stay, a backslash is doubled; a control byte, or a byte that was no UTF-8,
    becomes `\xNN`, any other character that can't be seen (U+202E, U+00A0, a line separator)
    `\uNNNN` or `\UNNNNNNNN`. Different texts give different results.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_visible, text))


def safe(text: str) -> str:
    """`text` as one line that is safe on a terminal; a backslash stays as it is.

    For sentences, whose names are escaped already; for a bare name, `printable`.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _visible(char) for char in text)


def _visible(char: str) -> str:
    if char == "\\":
        return r"\\"
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


# Both encoders must give an object the same form. The standard one knows no dataclass and no
# datetime, so here orjson asks `default` for them; it takes a named tuple for a list, where orjson
# asks, so there `_asked` does.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def json_bytes(obj: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    r"""`obj` as one line of JSON, without the line end; members stay in their order.

    A lone surrogate is written as `\udcXX`, an integer beyond 64 bits as it is; orjson refuses
    both, and the slower encoder of the standard library takes such a value as a whole. `default`
    turns an object that has no JSON form (a dataclass and a named tuple have none) into one that
    has; without it TypeError is raised.
    """
    try:
        return orjson.dumps(obj, default, _OPTIONS)
    except TypeError:
        plain = _asked(obj, default)
        text = json.dumps(plain, default=default, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")


def _asked(obj: Any, default: Callable[[Any], Any] | None) -> Any:
    if isinstance(obj, dict):
        return {key: _asked(value, default) for key, value in obj.items()}
    if type(obj) in (list, tuple):
        return [_asked(value, default) for value in obj]
    if isinstance(obj, tuple):
        if default is None:
            raise TypeError(f"{type(obj).__name__} has no JSON form")
        return _asked(default(obj), default)
    return obj
