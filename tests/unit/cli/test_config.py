"""`netreeve config` from outside, and the reference page that it makes."""

from __future__ import annotations

import json
from pathlib import Path

from netreeve.cli import config, terminal
from netreeve.config import settings
from tests.unit.cli.test_main import netreeve

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
AGAIN = "regenerate the table of docs/reference/settings.md with: netreeve config --markdown"


def test_the_reference_page_is_the_schema() -> None:
    table = [line for line in REFERENCE.read_text().splitlines() if line.startswith("|")]
    assert table == config.markdown().splitlines(), AGAIN


def test_markdown_is_the_same_whatever_is_set() -> None:
    done = netreeve("config", "--markdown", NETREEVE_BATCH_OPS="many")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == config.markdown() + "\n"
    assert "(name" not in done.stdout


def test_text_shows_value_and_origin() -> None:
    done = netreeve("config", NETREEVE_LOG_LEVEL="debug", NETREEVE_STATE_DIR="")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "NETREEVE_LOG_LEVEL = debug (environment; the default is info)" in lines
    assert "NETREEVE_LOG_FORMAT = auto (default)" in lines
    assert "NETREEVE_STATE_DIR = (empty) (environment; the default is /var/lib/netreeve)" in lines
    assert "\x1b" not in done.stdout


def test_json_has_every_setting() -> None:
    done = netreeve("config", "--json", NETREEVE_ROUTE_TABLE="7", NETREEVE_ROUTE_TABEL="8")
    found = json.loads(done.stdout)
    rows = {row["variable"]: row for row in found["settings"]}
    assert list(rows) == [setting.variable for setting in settings.SCHEMA]
    assert rows["NETREEVE_ROUTE_TABLE"]["value"] == "7"
    assert rows["NETREEVE_ROUTE_TABLE"]["origin"] == "environment"
    assert rows["NETREEVE_ROUTE_TABLE"]["default"] == "254"
    assert found["warnings"] == [done.stderr.removeprefix("netreeve: ").rstrip("\n")]
    assert "NETREEVE_ROUTE_TABLE" in found["warnings"][0]


def test_all_wrong_values_end_it_with_64() -> None:
    done = netreeve("config", NETREEVE_BATCH_OPS="many", NETREEVE_EVENT_LOOP="x")
    assert (done.returncode, done.stdout) == (64, "")
    assert [line.partition("=")[0] for line in done.stderr.splitlines()] == [
        "netreeve: NETREEVE_BATCH_OPS",
        "netreeve: NETREEVE_EVENT_LOOP",
    ]


def test_on_a_terminal_no_meaning_is_wider_than_it() -> None:
    found = settings.load({})
    for line in "\n".join(config.as_text(found, terminal.Terminal(width=60))).splitlines():
        assert len(line) <= 60 or line.startswith("NETREEVE_")


def test_a_value_cannot_take_over_the_terminal() -> None:
    found = settings.load({"NETREEVE_OWNED_BASE": "a\x1b[3]m"})
    assert "\x1b" not in "\n".join(config.as_text(found, terminal.Terminal()))
