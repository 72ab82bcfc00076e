"""`netreeve log`: the status journal, read from the state directory."""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from netreeve.cli import terminal
from netreeve.config import settings
from netreeve.errors import JournalError, UsageError
from netreeve.io.journal_file import JournalReader
from netreeve.model.ids import EndpointId
from netreeve.model.text import printable
from netreeve.status import transition
from netreeve.status.transition import Transition

HELP = "show the status journal: every transition of every endpoint, in order"

EPILOG = """\
Works with and without a running agent; changes nothing. Times are local. What could not be recorded
shows as a gap. --json prints the records as they are (docs/reference/status.md).

example:
  netreeve log --endpoint k8s/default%2Fweb-0/eth0 --follow
"""

_CHUNK = 1_000
_POLL_S = 0.2
_FOLLOW_FROM = 10

_COLOURS: dict[str, terminal.Colour] = {
    "up": "green",
    "down": "yellow",
    "error": "red",
    "removed": "dim",
    "gap": "red",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint", metavar="ID", help="only this one, and gaps")
    parser.add_argument("--follow", "-f", action="store_true", help="wait for more; stop by Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--since-seq", metavar="N", type=_count, help="from this sequence number on")
    begin.add_argument(
        "-n",
        dest="last",
        metavar="N",
        type=_count,
        help=f"only the last N; by default all, with --follow {_FOLLOW_FROM}",
    )


def run(args: argparse.Namespace) -> int:
    endpoint = None
    if args.endpoint is not None:
        try:
            endpoint = str(EndpointId.parse(args.endpoint))
        except ValueError as error:
            raise UsageError(f"--endpoint: {error}") from error
    state_dir = settings.load(os.environ).state_dir
    if state_dir is None:
        raise JournalError("the journal is in memory: NETREEVE_STATE_DIR is empty")
    last = args.last
    if last is None and args.follow and args.since_seq is None:
        last = _FOLLOW_FROM
    line = _json_line if args.json else _Table(terminal.of(sys.stdout, os.environ)).line
    try:
        if args.follow:
            records = _follow(Path(state_dir), endpoint, args.since_seq, last)
        else:
            records = _records(Path(state_dir), endpoint, args.since_seq, last)
        _print(records, line, flush=args.follow)
    except KeyboardInterrupt:
        return 0
    except FileNotFoundError:
        raise JournalError(
            f"{state_dir}: there is no journal; NETREEVE_STATE_DIR must be the agent's"
        ) from None
    except (sqlite3.Error, PermissionError) as error:
        raise JournalError(f"{state_dir}: the journal can't be read: {error}") from error
    return 0


def _print(records: Iterator[bytes], line: Callable[[bytes], str], flush: bool) -> None:
    for record in records:
        print(line(record), flush=flush)


def _records(
    state_dir: Path, endpoint: str | None, since_seq: int | None, last: int | None
) -> Iterator[bytes]:
    with contextlib.closing(JournalReader(state_dir)) as journal:
        for _, record in _rest(journal, endpoint, _first_seq(journal, endpoint, since_seq, last)):
            yield record


def _follow(
    state_dir: Path, endpoint: str | None, since_seq: int | None, last: int | None
) -> Iterator[bytes]:
    """Never ends by itself: a journal that was replaced or taken away is waited for."""
    journal = JournalReader(state_dir)
    seq = _first_seq(journal, endpoint, since_seq, last)
    while True:
        # Asked before reading: what is in the old file by then is not missed.
        is_replaced = journal.is_replaced()
        for found, record in _rest(journal, endpoint, seq):
            yield record
            seq = found + 1
        time.sleep(_POLL_S)
        if is_replaced:
            # The new one is not there yet, or is being made.
            with contextlib.suppress(FileNotFoundError, sqlite3.OperationalError):
                new = JournalReader(state_dir)
                journal.close()
                journal = new
                # It goes on with the old one's numbers, or begins again.
                if journal.last_seq() < seq - 1:
                    seq = 1


def _first_seq(
    journal: JournalReader, endpoint: str | None, since_seq: int | None, last: int | None
) -> int:
    if last == 0:
        return journal.last_seq() + 1
    if last is not None:
        return journal.seq_of_last(last, endpoint)
    return since_seq or 0


def _rest(journal: JournalReader, endpoint: str | None, seq: int) -> Iterator[tuple[int, bytes]]:
    """All that there is from `seq` on, in chunks: no lock is held while the reader is slow."""
    while chunk := journal.read(seq, _CHUNK, endpoint):
        yield from chunk
        seq = chunk[-1][0] + 1


def _json_line(record: bytes) -> str:
    return record.decode()


class _Table:
    """Columns that grow with what they have to hold, and never shrink."""

    def __init__(self, screen: terminal.Terminal) -> None:
        self._screen = screen
        self._id_chars = 0

    def line(self, record: bytes) -> str:
        each = transition.decode(record)
        head = f"{each.seq:>7}  {_local_time(each.observed)}  "
        if each.status == "gap":
            lost = "an unknown number of" if each.lost is None else str(each.lost)
            text = f"gap: {lost} transitions since {_local_time(each.since or '')} not recorded"
            return head + self._screen.paint(f"{text}: {printable(each.reason or '')}", "red")
        name = printable(each.endpoint)
        self._id_chars = max(self._id_chars, len(name))
        change = f"{each.previous or '-':>7} → {each.status:<7}"
        row = f"{head}{name:<{self._id_chars}}  "
        row += self._screen.paint(change, _COLOURS[each.status])
        return f"{row}  {self._link(each):<22}  {_why(each)}".rstrip()

    @staticmethod
    def _link(each: Transition) -> str:
        name = printable(each.link)
        return name if each.ifindex is None else f"{name} ({each.ifindex})"


def _why(each: Transition) -> str:
    words = [] if each.reason is None else [printable(each.reason)]
    if each.routes is not None:
        words.append(f"routes {each.routes}")
    if each.inferred:
        words.append("inferred" if each.flaps is None else f"inferred, {each.flaps} times")
    return ", ".join(words)


def _local_time(observed: str) -> str:
    try:
        moment = datetime.fromisoformat(observed).astimezone()
    except ValueError:
        return printable(observed)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)
