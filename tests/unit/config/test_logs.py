"""Log lines: their two forms, the limit per place in the code, and that none of it raises."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from netreeve.config import logs

NAME = b"cali\x1b\xff".decode("utf-8", "surrogateescape")


class Awkward:
    """An object that can't even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Desk:
    """A logger with a handler of its own, a clock that is set by hand, and what was written."""

    def __init__(self, form: Callable[[logging.LogRecord], bytes]) -> None:
        self.now = 0.0
        self.out = io.BytesIO()
        self.handler = logs.Lines(self.out, form, lambda: self.now)
        self.log = logging.Logger("netreeve.test")
        self.log.addHandler(self.handler)

    def text(self) -> str:
        return self.out.getvalue().decode()

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]

    def again(self, times: int) -> None:
        for _ in range(times):
            self.log.warning("again")


def test_json_is_one_object_a_line_with_the_fields() -> None:
    desk = Desk(logs.as_json)
    desk.log.info("journal opened", extra={"fields": {"path": "/x", "entries": 3, "name": NAME}})
    (line,) = desk.objects()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "message": "journal opened",
        "logger": "netreeve.test",
        "path": "/x",
        "entries": 3,
        "name": NAME,
    }


def test_the_time_is_utc_whatever_the_zone() -> None:
    record = logging.makeLogRecord({"msg": "x", "created": 0.25, "msecs": 250.0})
    assert json.loads(logs.as_json(record))["time"] == "1970-01-01T00:00:00.250Z"
    assert logs.as_text(record).startswith(b"1970-01-01T00:00:00.250Z ")


def test_text_is_safe_on_a_terminal() -> None:
    desk = Desk(logs.as_text)
    fields = {"name": NAME, "path": "/a b", "n": 3, "none": None, "empty": "", "list": [1, NAME]}
    desk.log.warning("link\x1b[31m gone", extra={"fields": fields})
    _, _, rest = desk.text().partition(" ")
    assert rest == (
        r"WARNING link\x1b[31m gone  name=cali\x1b\xff  path=" + '"/a b"  n=3  none=null  empty=""'
        r'  list=[1,"cali\u001b\udcff"]' + "\n"
    )


@pytest.mark.parametrize("form", [logs.as_json, logs.as_text])
def test_nothing_that_is_logged_raises(form: Callable[[logging.LogRecord], bytes]) -> None:
    desk = Desk(form)
    desk.log.info("too few %s %s", 1)
    desk.log.info("awkward", extra={"fields": {"it": Awkward()}})
    desk.log.info("no mapping", extra={"fields": 5})
    desk.log.info(Awkward())
    desk.log.info(
        "odd", extra={"fields": {1: 2, "b": b"\xff", "big": 2**90, "nan": float("nan"), "s": {1}}}
    )
    said = desk.text().splitlines()
    assert len(said) == 5
    for line, sentence in zip(
        said, ("too few", "awkward", "no mapping", "a log line", "odd"), strict=True
    ):
        assert sentence in line


def test_an_exception_stays_on_the_line_in_json_and_follows_it_in_text() -> None:
    for form in (logs.as_json, logs.as_text):
        desk = Desk(form)
        try:
            raise ValueError("line one\nline \x1b two")
        except ValueError:
            desk.log.exception("failed")
        if form is logs.as_json:
            (line,) = desk.objects()
            assert line["exception"].endswith("ValueError: line one\nline \x1b two")
        else:
            assert desk.text().endswith("    ValueError: line one\n    line \\x1b two\n")


def test_a_field_takes_nothing_from_the_line_itself() -> None:
    desk = Desk(logs.as_json)
    desk.log.info("x", extra={"fields": {"message": "forged", "level": "error"}})
    (line,) = desk.objects()
    assert (line["message"], line["level"]) == ("x", "info")
    assert (line["field_message"], line["field_level"]) == ("forged", "error")


def test_one_place_is_cut_short_and_the_number_is_said_once() -> None:
    desk = Desk(logs.as_json)
    desk.again(logs.BURST + 7)
    assert len(desk.objects()) == logs.BURST
    desk.log.warning("elsewhere")
    assert desk.objects()[-1]["message"] == "elsewhere"
    desk.now = logs.WINDOW_S
    desk.log.warning("elsewhere, later")
    told, line = desk.objects()[-2:]
    assert (told["count"], told["file"], told["level"]) == (7, __file__, "warning")
    assert line["message"] == "elsewhere, later"
    desk.again(2)
    assert [line["message"] for line in desk.objects()[-2:]] == ["again", "again"]
    assert sum("count" in line for line in desk.objects()) == 1


def test_what_is_left_unsaid_is_said_at_the_end() -> None:
    desk = Desk(logs.as_json)
    desk.again(logs.BURST + 3)
    desk.handler.close()
    assert desk.objects()[-1]["count"] == 3
    desk.handler.close()
    assert len(desk.objects()) == logs.BURST + 1


def test_a_stream_that_fails_is_nobodys_problem() -> None:
    class Broken(io.BytesIO):
        def write(self, _data: object) -> int:
            raise BrokenPipeError

    log = logging.Logger("netreeve.test")
    log.addHandler(logs.Lines(Broken(), logs.as_json))
    log.error("x")
    closed = io.BytesIO()
    log.addHandler(logs.Lines(closed, logs.as_json))
    closed.close()
    log.error("y")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["own debug", "own info", "their warning"]),
        ("info", ["own info", "their warning"]),
        ("error", []),
    ],
)
def test_setup_sends_everything_to_standard_error(level: str, expected: list[str]) -> None:
    script = f"""
import logging
from netreeve.config import logs
logging.basicConfig()
logs.setup({level!r}, "auto")
logs.setup({level!r}, "auto")
logging.getLogger("netreeve.io").debug("own debug")
logging.getLogger("netreeve.io").info("own info")
logging.getLogger("aiohttp").info("their info")
logging.getLogger("aiohttp").warning("their warning")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b""
    assert [json.loads(line)["message"] for line in done.stderr.splitlines()] == expected
