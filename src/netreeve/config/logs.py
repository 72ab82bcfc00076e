"""Log lines: a constant sentence and fields, as JSON for machines or as text for people.

    log = logging.getLogger(__name__)
    log.warning("source can't be read", extra={"fields": {"path": path, "error": str(error)}})

Modules log with the standard library alone and know nothing of this file; `setup`, once at the
start, decides what becomes of it. Two promises: writing a log line never raises, and one place in
the code that says the same thing again and again is cut short, with the number left out said.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal

from netreeve.model.text import json_bytes, printable, safe

__all__ = ["RateLimit", "as_json", "as_text", "setup"]

BURST = 20
WINDOW_S = 10.0

Site = tuple[str, int, int, str]
"""A place in the code and how it speaks: file, line, level, logger."""


class RateLimit:
    """The first BURST lines of each site in WINDOW_S pass; the rest are counted.

    A window begins with the first line that finds none open. `now` is monotonic, in seconds. What
    is kept is bounded by the number of places in the code that log.
    """

    def __init__(self) -> None:
        self._windows: dict[Site, tuple[float, int]] = {}
        self._left_out: dict[Site, int] = {}

    def admit(self, site: Site, now: float) -> bool:
        begun, lines = self._windows.get(site, (now, 0))
        if now - begun >= WINDOW_S:
            begun, lines = now, 0
        self._windows[site] = begun, lines + 1
        if lines < BURST:
            return True
        self._left_out[site] = self._left_out.get(site, 0) + 1
        return False

    def due(self, now: float) -> dict[Site, int]:
        """How many lines each site lost in a window that is over; each is given once."""
        if not self._left_out:
            return {}
        over = [site for site in self._left_out if now - self._windows[site][0] >= WINDOW_S]
        return {site: self._left_out.pop(site) for site in over}

    def rest(self) -> dict[Site, int]:
        """The same for every site, whether its window is over or not."""
        rest, self._left_out = self._left_out, {}
        return rest


class Lines(logging.Handler):
    """Writes each record as one line of bytes; nothing that goes wrong here reaches the caller."""

    def __init__(
        self,
        stream: BinaryIO,
        form: Callable[[logging.LogRecord], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._form = form
        self._clock = clock
        self._limit = RateLimit()

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        for site, count in self._limit.due(now).items():
            self._write(_left_out(site, count))
        site = (record.pathname, record.lineno, record.levelno, record.name)
        if self._limit.admit(site, now):
            self._write(record)

    def close(self) -> None:
        """Say what is still unsaid; `logging.shutdown` calls this at the end of the process."""
        for site, count in self._limit.rest().items():
            self._write(_left_out(site, count))
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = self._form(record)
        except Exception as error:
            # A bad argument must not cost the sentence that it came with.
            about = {"log_error": f"{type(error).__name__} while this line was written"}
            sentence = record.msg if isinstance(record.msg, str) else "a log line"
            line = self._form(_record(record.levelno, record.name, sentence, about))
        # Standard error may be closed, full or a broken pipe; there is nobody left to tell.
        with suppress(OSError, ValueError):
            self._stream.write(line)
            self._stream.flush()


def as_json(record: logging.LogRecord) -> bytes:
    """One JSON object: `time`, `level`, `message`, `logger`, the fields, and `exception` if any.

    A field that bears one of these names gets `field_` before it.
    """
    line: dict[str, Any] = {
        "time": _utc(record),
        "level": record.levelname.lower(),
        "message": record.getMessage(),
        "logger": record.name,
    }
    exception = _exception(record)
    if exception:
        line["exception"] = exception
    fixed = frozenset(line)
    for name, value in _fields(record).items():
        line[f"field_{name}" if name in fixed else str(name)] = value
    return json_bytes(line, _plain) + b"\n"


def as_text(record: logging.LogRecord) -> bytes:
    """`time LEVEL sentence  name=value ...`, safe on a terminal; a traceback follows, indented."""
    parts = [f"{_utc(record)} {record.levelname:<7} {safe(record.getMessage())}"]
    parts += [f"{printable(str(k))}={_word(v)}" for k, v in _fields(record).items()]
    text = "  ".join(parts)
    for line in _exception(record).splitlines():
        text += f"\n    {safe(line)}"
    return f"{text}\n".encode()


def setup(
    level: Literal["debug", "info", "warning", "error"],
    format: Literal["auto", "json", "text"],
) -> None:
    """Send every log line of the process to standard error, from now on.

    `level` is for netreeve's own lines; of libraries only warnings and worse are written.
    """
    if format == "auto":
        format = "text" if sys.stderr.isatty() else "json"
    least = getattr(logging, level.upper())
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(Lines(sys.stderr.buffer, as_text if format == "text" else as_json))
    root.setLevel(max(least, logging.WARNING))
    logging.getLogger("netreeve").setLevel(least)


def _record(level: int, name: str, sentence: str, about: Mapping[str, Any]) -> logging.LogRecord:
    record = logging.LogRecord(name, level, "", 0, sentence, None, None)
    record.fields = about
    return record


def _left_out(site: Site, count: int) -> logging.LogRecord:
    path, line, level, name = site
    about = {"file": path, "line": line, "count": count}
    return _record(level, name, "log lines of one place were left out", about)


def _fields(record: logging.LogRecord) -> Mapping[Any, Any]:
    fields: Mapping[Any, Any] = getattr(record, "fields", {})
    return fields


def _utc(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


def _exception(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")


def _plain(value: object) -> str:
    """Any object as text, for a field that JSON has no form for."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _word(value: object) -> str:
    """A field's value as one word, in quotes where it would not look like one."""
    if not isinstance(value, str | bytes):
        return safe(json_bytes(value, _plain).decode())
    text = printable(_plain(value))
    if text and not set(text) & set(' ="'):
        return text
    quoted = text.replace('"', r"\"")
    return f'"{quoted}"'
