"""`netreeve config`: every setting, its value in force, and where that came from."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from netreeve.cli import terminal
from netreeve.config import settings
from netreeve.model.text import json_bytes, safe

HELP = "show every setting: variable, value in force, where it came from, default, meaning"

EPILOG = """\
A value that is not allowed is an error (exit code 64); all of them are shown at once.

example:
  NETREEVE_LOG_LEVEL=debug netreeve config
"""


def configure(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument(
        "--markdown",
        action="store_true",
        help="a table of what there is to set, whatever is set here (docs/reference/settings.md)",
    )


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        print(markdown())
        return 0
    found = settings.load(os.environ)
    for warning in found.warnings:
        print(f"netreeve: {warning}", file=sys.stderr)
    if args.json:
        print(as_json(found))
    else:
        for line in as_text(found, terminal.of(sys.stdout, os.environ)):
            print(line)
    return 0


def as_json(found: settings.Settings) -> str:
    """One object; `value` and `default` are texts as one would write them into the variable."""
    rows = [
        {
            "variable": setting.variable,
            "value": settings.show(getattr(found, setting.field)),
            "origin": found.origins[setting.variable],
            "default": setting.default,
            "allowed": setting.kind.allowed,
            "meaning": setting.meaning,
        }
        for setting in settings.SCHEMA
    ]
    return json_bytes({"settings": rows, "warnings": found.warnings}).decode()


def as_text(found: settings.Settings, screen: terminal.Terminal) -> Iterator[str]:
    """Two parts a setting: `variable = value`, with its origin, and below it the meaning."""
    widest = max(len(setting.variable) for setting in settings.SCHEMA)
    for setting in settings.SCHEMA:
        value = safe(settings.show(getattr(found, setting.field))) or "(empty)"
        if found.origins[setting.variable] == "environment":
            value = screen.paint(value, "bold")
            origin = f"environment; the default is {setting.default}"
        elif setting.default is settings.HOST_NAME:
            origin = f"default: {setting.default}"
        else:
            origin = "default"
        yield f"{setting.variable:<{widest}} = {value}  ({origin})"
        for text in (f"{setting.meaning}.", f"Allowed: {setting.kind.allowed}."):
            yield "    " + screen.paint(screen.wrap(text, 4), "dim")


def markdown() -> str:
    """The schema as a Markdown table; the same on every machine."""
    lines = ["| variable | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in settings.SCHEMA:
        default = setting.default
        if default is not settings.HOST_NAME:
            default = f"`{default}`"
        cells = (f"`{setting.variable}`", default, setting.kind.allowed, setting.meaning)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)
