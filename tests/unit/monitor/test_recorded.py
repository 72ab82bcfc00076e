"""Recorded interleavings of a real kernel's events and dump, on which arrival order goes wrong."""

from __future__ import annotations

import pytest

from netreeve._ext.index import LinkTable
from netreeve._ext.stage import Stage
from netreeve._ext.wire import LinkMessage, decode
from netreeve.model.backoff import Backoff
from netreeve.monitor import sync
from tests.support import captures

NAMES = [f"30_resync_{number:02}" for number in range(10)]


def truth(name: str) -> dict[int, tuple[str, int]]:
    links = captures.about(name)["truth"]
    return {int(i): (link["ifname"], link["master"] or 0) for i, link in links.items()}


def in_arrival_order(records: list[captures.Record]) -> dict[int, tuple[str, int]]:
    """What a reader gets that takes each message for the newest word on its link."""
    links: dict[int, tuple[str, int]] = {}
    for record in records:
        for message in decode(record.data).messages:
            if isinstance(message, LinkMessage):
                if message.deleted:
                    links.pop(message.ifindex, None)
                else:
                    links[message.ifindex] = (message.name, message.controller)
    return links


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_resync_ends_in_the_truth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some dumps are marked as interrupted. There is no second one to be had from a recording, and
    # on a kernel that goes by ifindex the first one is right.
    monkeypatch.setattr(sync, "INTERRUPTED_TRIES", 1)
    records = captures.load(name)
    table = LinkTable()
    machine = sync.LinkSync(table, interval_s=0, backoff=Backoff(1, 2), rng=lambda: 0.0)
    assert machine.next(0.0) == sync.Drain()
    machine.drained(True, False, 0.0)
    assert machine.next(0.0) == sync.Dump()
    stage = Stage()
    (seq,) = {
        int.from_bytes(record.data[8:12], "little") for record in records if record.socket == "D"
    }
    for record in records:
        if record.socket == "E":
            assert table.observe(record.data) == 0
            machine.drained(False, False, 0.0)
        else:
            stage.feed(record.data, seq)
    assert stage.whole
    machine.dumped(stage, 0.0)
    while not isinstance(command := machine.next(0.0), sync.Publish):
        match command:
            case sync.Drain():
                machine.drained(True, False, 0.0)
            case sync.Ask(ifindexes, asked):
                assert asked is not None
                for ifindex in ifindexes:
                    assert ifindex not in truth(name)
                    asked.mark_gone(ifindex)
                machine.answered(asked, 0.0)
            case _:
                raise AssertionError(command)
    seen = {link.ifindex: (link.name, link.controller) for link in table}
    assert seen == truth(name)
    assert table.ambiguous == {}


def test_arrival_order_gets_some_of_them_wrong() -> None:
    """Otherwise the recordings would show nothing."""
    wrong = [name for name in NAMES if in_arrival_order(captures.load(name)) != truth(name)]
    said = [
        name for name in NAMES if captures.about(name)["naive_results"]["arrival_order"] == "WRONG"
    ]
    assert wrong == said
    assert wrong
