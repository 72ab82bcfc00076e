from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from netreeve.errors import SinkError, SinkFenced
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.sinks.jsonl import JsonlFile
from netreeve.sinks.runner import SinkRunner
from netreeve.sinks.sink import Mark, Sink
from netreeve.status.transition import Transition
from tests.support.transitions import closing, flap


class Store(Sink):
    """A sink in memory that fails on demand. With `tells`, it knows what it holds."""

    def __init__(self, url: str = "mem:a", tells: bool = True) -> None:
        self.url = url
        self.tells = tells
        self.holds: list[Transition] = []
        self.fail: Callable[[str], None] = lambda _: None
        self.opened = 0

    async def open(self) -> Mark | None:
        self.fail("open")
        self.opened += 1
        if not self.tells or not self.holds:
            return None
        return Mark(self.holds[-1].seq, self.holds[-1].observed)

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        self.fail("before")
        for each in transitions:
            self.holds.append(each)
            self.fail("between")
        self.fail("after")

    async def close(self) -> None:
        self.fail("close")

    @property
    def seqs(self) -> list[int]:
        return [each.seq for each in self.holds]


def opened(path: Path | None, *sinks: Sink) -> Journal:
    journal = Journal.open(
        path, sinks=[sink.url for sink in sinks], max_bytes=1 << 30, retention_s=86400,
        retry=Backoff(10, 20), where="here",
    )  # fmt: skip
    journal.attach(closing)
    return journal


@asynccontextmanager
async def running(journal: Journal, sink: Sink) -> AsyncIterator[SinkRunner]:
    runner = SinkRunner(sink, journal, Backoff(1, 5))
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.002)


async def test_order_cursor_and_status(tmp_path: Path) -> None:
    store = Store(tells=False)
    journal = opened(tmp_path, store)
    async with running(journal, store) as runner:
        for seq in range(1, 2_501):
            journal.append([flap(seq)])
        await runner.passed(2_500)
        assert runner.status() == {"url": "mem:a", "seq": 2_500, "lag": 0, "error": None}
    assert store.seqs == list(range(1, 2_501))
    await journal.close()

    journal = opened(tmp_path, store)
    assert journal.cursor("mem:a") == 2_500
    async with running(journal, store) as runner:
        journal.append([flap(2_501)])
        await until(lambda: runner.status()["seq"] == 2_501)
    assert store.seqs == list(range(1, 2_502))
    await journal.close()


@pytest.mark.parametrize("seed", range(3))
async def test_a_store_that_fails_everywhere_gets_each_once_and_in_order(seed: int) -> None:
    store = Store()
    chance = random.Random(seed)

    def fail(place: str) -> None:
        if place != "close" and chance.random() < {"between": 0.01}.get(place, 0.3):
            raise chance.choice((SinkError("no"), OSError("no"), TimeoutError("no")))

    store.fail = fail
    journal = opened(None, store)
    async with running(journal, store) as runner:
        for seq in range(1, 1_001):
            journal.append([flap(seq)])
            if seq % 10 == 0:
                await asyncio.sleep(0.001)
        await until(lambda: runner.status()["seq"] == 1_000)
    assert store.seqs == list(range(1, 1_001))
    await journal.close()


async def test_a_dead_sink_holds_up_nobody_and_says_so() -> None:
    dead, alive = Store("mem:dead"), Store("mem:alive")

    def refuse(place: str) -> None:
        if place == "open":
            raise SinkError("connection refused")

    dead.fail = refuse
    journal = opened(None, dead, alive)
    async with running(journal, dead) as first, running(journal, alive) as second:
        for seq in range(1, 101):
            journal.append([flap(seq)])
        await until(lambda: second.status()["seq"] == 100)
        await until(lambda: first.status()["error"] is not None)
        assert first.status() == {
            "url": "mem:dead", "seq": 0, "lag": 100, "error": "connection refused",
        }  # fmt: skip
        assert journal.stats().pending == 100
        dead.fail = lambda _: None
        await until(lambda: first.status()["error"] is None and first.status()["lag"] == 0)
    assert dead.seqs == alive.seqs
    assert journal.stats().pending == 0
    await journal.close()


async def test_a_sink_that_hangs_holds_up_nobody() -> None:
    class Hanging(Store):
        async def deliver(self, transitions: Sequence[Transition]) -> None:
            await asyncio.Event().wait()

    hanging, alive = Hanging("mem:hanging"), Store("mem:alive")
    journal = opened(None, hanging, alive)
    async with running(journal, hanging), running(journal, alive) as second:
        journal.append([flap(1)])
        await until(lambda: second.status()["seq"] == 1)
    await journal.close()


async def test_reopen(tmp_path: Path) -> None:
    store = Store()
    journal = opened(None, store)
    async with running(journal, store) as runner:
        journal.append([flap(1)])
        await until(lambda: store.seqs == [1])
        runner.reopen()
        await until(lambda: store.opened == 2)
        journal.append([flap(2)])
        await until(lambda: store.seqs == [1, 2])
    await journal.close()


async def test_a_lost_journal_begins_again_and_nothing_of_the_new_one_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    store = Store()
    store.holds = [replace(flap(50), observed="2020-01-01T00:00:00.000Z")]
    for before in (0, 60):  # shorter than the old one, and longer
        store.holds[1:] = []
        journal = opened(None, store)
        for seq in range(1, before + 1):
            journal.append([flap(seq)])
        await journal.wait(before)
        async with running(journal, store) as runner:
            journal.append([flap(before + 1)])
            await until(lambda runner=runner, last=before + 1: runner.status()["seq"] == last)  # type: ignore[misc]
        assert store.seqs == [50, *range(1, before + 2)]
        assert "another journal" in caplog.text
        caplog.clear()
        await journal.close()


async def test_a_bug_in_a_sink_is_not_retried() -> None:
    store = Store()

    def bug(_: str) -> None:
        raise ZeroDivisionError

    store.fail = bug
    journal = opened(None, store)
    with pytest.raises(ZeroDivisionError):
        await SinkRunner(store, journal, Backoff(1, 5)).run()
    await journal.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from netreeve import sinks
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.sinks.runner import SinkRunner
from tests.support.transitions import closing, flap

async def main():
    (sink,) = sinks.parse(sys.argv[2])
    journal = Journal.open(Path(sys.argv[1]), sinks=[sink.url], max_bytes=1 << 30, retention_s=0,
                           retry=Backoff(1, 10), where="here")
    journal.attach(closing)
    task = asyncio.create_task(SinkRunner(sink, journal, Backoff(1, 10)).run())
    print("on", flush=True)
    while not task.done():
        seq = journal.next_seq
        journal.append([flap(each) for each in range(seq, seq + 3)])
        await asyncio.sleep(0)
        if seq > journal.committed + 500:
            await journal.wait(seq)
    await task

asyncio.run(main())
"""


def test_kill_at_any_moment_writes_each_line_once(tmp_path: Path) -> None:
    """With rotation all the time; the old files together hold the whole history."""
    url = f"jsonl:{tmp_path}/out/status.jsonl?max_bytes=20000&keep=1000"
    chance = random.Random(1)
    for _ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "state"), url],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        time.sleep(chance.random() * 0.08)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    sink = JsonlFile(url, str(tmp_path / "out" / "status.jsonl"), 20_000, 1_000)
    asyncio.run(sink.open())
    files = sorted(
        (tmp_path / "out").iterdir(), key=lambda path: -int(path.suffix[1:].replace("jsonl", "0"))
    )
    seqs = [json.loads(line)["seq"] for file in files for line in file.read_bytes().splitlines()]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) > 100
    asyncio.run(sink.close())


class Tended(Store):
    """Says what it was asked to look after."""

    def __init__(self) -> None:
        super().__init__()
        self.tended: list[int] = []
        self.says: str | None = None

    async def tend(self, seq: int) -> str | None:
        self.fail("tend")
        self.tended.append(seq)
        return self.says


async def test_a_sink_is_tended_after_each_delivery_and_while_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("netreeve.sinks.runner._TEND_S", 0.02)
    store = Tended()
    store.says = "half of it is set aside"
    journal = opened(None, store)
    async with running(journal, store) as runner:
        await until(lambda: len(store.tended) >= 3)
        journal.append([flap(1), flap(2)])
        await until(lambda: 2 in store.tended)
        assert runner.status()["error"] == "half of it is set aside"
        store.says = None
        await until(lambda: runner.status()["error"] is None)

        store.fail = lambda place: _raise(SinkError("broken")) if place == "tend" else None
        await until(lambda: store.opened >= 3)
        assert runner.status()["error"] == "broken"
        store.fail = lambda _: None
        await until(lambda: runner.status()["error"] is None)
    await journal.close()


async def test_a_fenced_sink_is_left_alone() -> None:
    store = Tended()
    journal = opened(None, store)
    async with running(journal, store) as runner:
        journal.append([flap(1)])
        await runner.passed(1)
        store.fail = lambda place: _raise(SinkFenced("taken over")) if place != "close" else None
        journal.append([flap(2)])
        await until(lambda: runner.fenced)
        store.fail = lambda _: None
        runner.reopen()
        await asyncio.sleep(0.1)
        assert (store.opened, store.seqs) == (1, [1])
        assert runner.status() == {"url": "mem:a", "seq": 1, "lag": 1, "error": "taken over"}
    await journal.close()


def _raise(error: Exception) -> None:
    raise error
