"""What a command may do with the stream that it prints to: colours and a width, or neither."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

__all__ = ["Colour", "Part", "Terminal", "of"]

Colour = Literal["red", "green", "yellow", "bold", "dim"]
Part = tuple[str, Colour | None]

MIN_WIDTH = 20

SGR: dict[Colour, str] = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}


@dataclass(frozen=True, slots=True)
class Terminal:
    """`width` in columns; None where lines must stay whole, because a program reads them."""

    colours: bool = False
    width: int | None = None

    def paint(self, text: str, colour: Colour | None) -> str:
        if not self.colours or colour is None:
            return text
        return f"\x1b[{SGR[colour]}m{text}\x1b[0m"

    def flow(self, parts: Iterable[Part], indent: int) -> str:
        """The parts, painted, with commas between; a line ends between two parts, as `wrap`'s."""
        lines: list[list[str]] = [[]]
        room = left = max((self.width or sys.maxsize) - indent, MIN_WIDTH)
        for text, colour in parts:
            left -= len(text) + 2
            if left < 0 and lines[-1]:
                lines.append([])
                left = room - len(text) - 2
            lines[-1].append(self.paint(text, colour))
        return (",\n" + " " * indent).join(", ".join(line) for line in lines)

    def wrap(self, text: str, indent: int) -> str:
        """`text` with every line but the first `indent` columns in, none wider than the terminal.

        The first line has its beginning elsewhere: it is given `indent` columns less as well.
        """
        if self.width is None or indent + len(text) <= self.width:
            return text
        import textwrap  # 5 ms that output into a pipe need not pay

        lines = textwrap.wrap(text, max(self.width - indent, MIN_WIDTH), break_on_hyphens=False)
        return ("\n" + " " * indent).join(lines)


def of(stream: TextIO, environ: Mapping[str, str]) -> Terminal:
    """What `stream` allows. NO_COLOR (no-color.org) and TERM=dumb switch colours off."""
    if not stream.isatty():
        return Terminal()
    colours = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        width = 0
    return Terminal(colours, width or None)
