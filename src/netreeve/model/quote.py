"""Text that somebody else wrote, shown in a message."""

from __future__ import annotations

__all__ = ["quoted"]

_MAX_CHARS = 64


def quoted(text: str) -> str:
    """`text` in quotes, what can't be printed escaped, and what is long cut short."""
    return repr(text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + "...")
