"""The command `netreeve`: finds the subcommand, runs it, turns its end into an exit code.

A subcommand is a module of this package: `HELP` (one sentence), `EPILOG` (an example),
`configure(parser)` and `run(args) -> exit code`. Only the chosen one is imported, so that none pays
for another's libraries.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from netreeve.errors import NetreeveError, UsageError

__all__ = ["COMMANDS", "Command", "main"]

COMMANDS = (
    "run",
    "monitor",
    "check",
    "plan",
    "apply",
    "status",
    "explain",
    "log",
    "config",
    "cleanup",
    "demo",
)

DESCRIPTION = """\
Race-free links, owned routes and ordered endpoint status on a node.

commands:
{commands}
"""

EPILOG = """\
Settings are environment variables; `netreeve config` shows them all.

example:
  netreeve check /etc/netreeve/plan.d && netreeve run
"""


class Command(Protocol):
    """What a subcommand's module offers."""

    HELP: str
    EPILOG: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    """argparse with the exit code for bad usage that product.md has; it would say 2, which is
    taken: `netreeve plan` ends with it where something would change."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(UsageError.exit_code, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (that of the process by default); returns the exit code.

    Asks for help and bad usage end in SystemExit, as argparse does it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    _prepare_streams()
    try:
        code = _run(words)
        sys.stdout.flush()
    except NetreeveError as error:
        for line in str(error).splitlines():
            print(f"netreeve: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read has left (`netreeve log | head`). The interpreter flushes once more at its
        # end, and must not meet the broken pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code


def _prepare_streams() -> None:
    """Make standard output and error such that printing can't end a command by itself."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  as long as the process
        stream = getattr(sys, name)
        # A name that is no text in the locale's encoding is shown escaped.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    if words and words[0] in COMMANDS:
        command = _command(words[0])
        parser = Parser(
            prog=f"netreeve {words[0]}",
            description=command.HELP,
            epilog=command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.configure(parser)
        return command.run(parser.parse_args(words[1:]))
    return _without_command(words)


def _without_command(words: list[str]) -> int:
    parser = Parser(
        prog="netreeve",
        usage="netreeve [-h] [--version] COMMAND ...",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    if words and not words[0].startswith("-"):
        parser.error(_unknown(words[0]))
    if "-h" in words or "--help" in words:
        parser.description = DESCRIPTION.format(commands=_summary())
    if not parser.parse_args(words).version:
        parser.error(f"a command is needed: {', '.join(COMMANDS)}")
    from importlib import metadata  # 25 ms

    print(f"netreeve {metadata.version('netreeve')}")
    return 0


def _unknown(word: str) -> str:
    import difflib  # 5 ms that only a mistyped command needs

    near = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
    return f"there is no command {word!r}; {hint}"


def _command(name: str) -> Command:
    return cast(Command, importlib.import_module(f"netreeve.cli.{name}"))


def _summary() -> str:
    return "\n".join(f"  {name:<9} {_command(name).HELP}" for name in COMMANDS)
