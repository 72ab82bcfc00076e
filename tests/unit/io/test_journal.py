from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netreeve.errors import JournalError
from netreeve.io import journal as journal_module
from netreeve.io import journal_file
from netreeve.io.journal import Journal
from netreeve.io.journal_file import JournalReader
from netreeve.model.backoff import Backoff
from netreeve.model.ids import EndpointId
from netreeve.status.fold import StatusFold
from netreeve.status.transition import Transition
from tests.support.transitions import closing, filled, flap, small_disk

WEB = EndpointId("k8s", "web", "eth0")


def opened(path: Path | None, **changes: Any) -> Journal:
    options: dict[str, Any] = {
        "sinks": ("jsonl:/a",),
        "max_bytes": 1 << 30,
        "retention_s": 86400,
        "retry": Backoff(20, 50),
        "where": "boot-1",
    }
    return Journal.open(path, **{**options, **changes})


def attached(path: Path | None, **changes: Any) -> Journal:
    journal = opened(path, **changes)
    journal.attach(closing)
    return journal


async def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def read_all(path: Path) -> list[dict[str, Any]]:
    reader = JournalReader(path)
    records = [json.loads(record) for _, record in reader.read(0, 1_000_000, None)]
    reader.close()
    return records


def overwrite(file: Path) -> None:
    with open(file, "r+b") as raw:
        raw.seek(8192)
        raw.write(os.urandom(200_000))


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", disk], check=True)


class TestRecording:
    async def test_what_was_appended_is_there_after_a_restart(self, tmp_path: Path) -> None:
        journal = attached(tmp_path)
        assert (journal.next_seq, journal.present, journal.rebooted) == (1, {}, False)
        journal.append([flap(1), flap(2)])
        journal.append([])
        journal.append([flap(3)])
        assert journal.next_seq == 4
        await journal.wait(3)
        assert await journal.read(1, 10) == [flap(2), flap(3)]
        assert await journal.read(0, 1) == [flap(1)]
        instance = journal.instance
        await journal.close()

        again = attached(tmp_path)
        assert again.present == {WEB: flap(3)}
        assert (again.next_seq, again.committed, again.instance) == (4, 3, instance)
        await again.close()

    async def test_removed_endpoints_are_not_present(self, tmp_path: Path) -> None:
        from dataclasses import replace

        journal = attached(tmp_path)
        journal.append([flap(1), replace(flap(2), status="removed"), flap(3, "k8s/b/eth0")])
        await journal.close()
        again = attached(tmp_path)
        assert again.present == {EndpointId("k8s", "b", "eth0"): flap(3, "k8s/b/eth0")}
        await again.close()

    async def test_a_number_out_of_order_is_refused(self, tmp_path: Path) -> None:
        journal = attached(tmp_path)
        with pytest.raises(ValueError, match="seq 2 where 1 is next"):
            journal.append([flap(2)])
        await journal.close()

    async def test_in_memory(self) -> None:
        journal = attached(None)
        journal.append([flap(1)])
        await journal.wait(1)
        assert await journal.read(0, 10) == [flap(1)]
        assert journal.recording
        await journal.close()

    async def test_append_never_waits_for_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = attached(tmp_path)
        write = journal_file.JournalFile.write
        calls = 0

        def slow(*args: Any, **kwargs: Any) -> None:
            nonlocal calls
            calls += 1
            time.sleep(0.2)
            write(*args, **kwargs)

        monkeypatch.setattr(journal_file.JournalFile, "write", slow)
        begin = time.monotonic()
        for seq in range(1, 1001):
            journal.append([flap(seq)])
        assert time.monotonic() - begin < 0.15
        await journal.wait(1000)
        # All that had gathered behind the first write, if it was the first, shared the second.
        assert calls <= 2
        await journal.close()

    async def test_a_writer_that_dies_takes_everybody_with_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = attached(tmp_path)

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(journal_file.JournalFile, "write", broken)
        journal.append([flap(1)])
        with pytest.raises(JournalError, match="a bug"):
            await journal.wait(1)
        with pytest.raises(JournalError, match="writer died"):
            journal.append([flap(2)])
        with pytest.raises(JournalError, match="writer died"):
            await journal.read(0, 1)
        await journal.close()


class TestStart:
    async def test_one_agent_at_a_time(self, tmp_path: Path) -> None:
        journal = attached(tmp_path)
        with pytest.raises(JournalError, match=rf"another netreeve agent \(pid {os.getpid()}\)"):
            opened(tmp_path)
        await journal.close()
        await attached(tmp_path).close()

    async def test_another_boot_until_it_is_settled(self, tmp_path: Path) -> None:
        await opened(tmp_path).close()
        for _ in range(2):
            journal = opened(tmp_path, where="boot-2")
            assert journal.rebooted
            await journal.close()
        journal = opened(tmp_path, where="boot-2")
        journal.settle()
        await journal.close()
        journal = opened(tmp_path, where="boot-2")
        assert not journal.rebooted
        await journal.close()

    async def test_the_system_says_where_we_are(self, tmp_path: Path) -> None:
        await opened(tmp_path, where=None).close()
        journal = opened(tmp_path, where=None)
        assert not journal.rebooted
        await journal.close()

    @pytest.mark.parametrize("damage", ["text", "pages", "foreign"])
    async def test_a_file_that_is_no_journal_is_moved_aside_and_said(
        self, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = tmp_path / "journal.sqlite"
        if damage == "text":
            file.write_bytes(b"not a database, but long enough to be looked at " * 100)
        elif damage == "foreign":
            with sqlite3.connect(file) as connection:
                connection.execute("CREATE TABLE transitions (x)")
            connection.close()
        else:
            journal = attached(tmp_path)
            journal.append([flap(seq, f"k8s/{seq}/eth0") for seq in range(1, 2000)])
            await journal.close()
            overwrite(file)
        instance = opened(tmp_path / "other").instance
        journal = attached(tmp_path)
        assert (tmp_path / "journal.sqlite.damaged").exists()
        assert "moved aside" in caplog.text
        await journal.wait(2)
        gap, up = await journal.read(0, 10)
        assert (gap.seq, gap.status, gap.lost) == (1, "gap", None)
        assert "damaged" in (gap.reason or "")
        assert up.seq == 2
        journal.append([flap(3)])
        assert journal.instance != instance
        await journal.close()
        again = attached(tmp_path)
        assert again.next_seq == 4
        await again.close()

    async def test_a_later_version_is_left_alone(self, tmp_path: Path) -> None:
        await opened(tmp_path).close()
        with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
            connection.execute("PRAGMA user_version = 9")
        connection.close()
        with pytest.raises(JournalError, match="later version"):
            opened(tmp_path)
        with pytest.raises(JournalError, match="later version"):  # and not "another agent"
            opened(tmp_path)

    async def test_a_torn_tail_is_cut_off(self, tmp_path: Path) -> None:
        """The WAL of a running journal, cut anywhere: what is left is whole and gap-free."""
        (tmp_path / "a").mkdir()
        journal = attached(tmp_path / "a")
        for seq in range(1, 21):
            journal.append([flap(seq)])
            await journal.wait(seq)
        whole = (tmp_path / "a" / "journal.sqlite").read_bytes()
        wal = (tmp_path / "a" / "journal.sqlite-wal").read_bytes()
        await journal.close()
        last = []
        for number, cut in enumerate(range(0, len(wal), 9_999)):
            copy = tmp_path / f"copy-{number}"
            copy.mkdir()
            (copy / "journal.sqlite").write_bytes(whole)
            (copy / "journal.sqlite-wal").write_bytes(wal[:cut])
            torn = attached(copy)
            found = await torn.read(0, 100)
            assert [each.seq for each in found] == list(range(1, torn.committed + 1))
            last.append(torn.committed)
            await torn.close()
        assert last == sorted(last)
        assert last[-1] >= 18


class TestFullDisk:
    async def test_full_and_freed(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk") as disk:
            journal = attached(disk)
            journal.append([flap(1)])
            await journal.wait(1)
            ballast = filled(disk)
            seq = 2
            while journal.recording:
                journal.append([flap(seq, reason="x" * 500)])
                seq += 1
                await asyncio.sleep(0.002)
            last = journal.committed
            lost = seq - 1 - last
            for _ in range(5):
                journal.append([flap(seq)])
                seq += 1
            # What is on the disk can still be read, and nothing spins.
            assert [each.seq for each in await journal.read(0, 10_000)] == [*range(1, last + 1)]
            await asyncio.sleep(0.3)
            assert not journal.recording

            ballast.unlink()
            await until(lambda: journal.recording)
            await journal.wait(last + 2)
            gap, up = await journal.read(last, 10)
            assert (gap.seq, gap.status, gap.lost) == (last + 1, "gap", lost + 5)
            assert gap.since == flap(1).observed
            assert "full" in (gap.reason or "")
            assert up.status == "up"
            assert up.previous == flap(last).status
            journal.append([flap(journal.next_seq)])
            await journal.close()
            seqs = [record["seq"] for record in read_all(disk)]
            assert seqs == list(range(1, last + 4))
            await opened(disk).close()

    async def test_an_agent_that_dies_meanwhile_leaves_word(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk") as disk:
            journal = attached(disk)
            journal.append([flap(1)])
            await journal.wait(1)
            ballast = filled(disk)
            while journal.recording:
                journal.append([flap(journal.next_seq, reason="x" * 500)])
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.05)
            last = journal.committed
            await journal.close()  # as good as a kill: nothing can be written
            ballast.unlink()
            again = attached(disk)
            await again.wait(last + 2)
            (gap, *_) = await again.read(last, 1)
            assert (gap.status, gap.lost, gap.since) == ("gap", None, flap(1).observed)
            await again.close()
            third = attached(disk)
            assert third.recording
            assert third.next_seq == last + 3
            await third.close()

    async def test_full_from_the_start(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "64k") as disk:
            ballast = filled(disk)
            journal = attached(disk)
            assert not journal.recording
            journal.append([flap(1)])
            ballast.unlink()
            # 64 KiB are too few for a journal.
            remount(disk, "size=2m")
            await until(lambda: journal.recording)
            await journal.wait(2)
            assert [each.status for each in await journal.read(0, 10)] == ["gap", "up"]
            await journal.close()

    async def test_read_only_and_back(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", "8m") as disk:
            await attached(disk).close()
            remount(disk, "ro")
            journal = attached(disk)
            assert not journal.recording
            with pytest.raises(JournalError):
                await journal.read(0, 1)
            journal.append([flap(1)])
            remount(disk, "rw")
            await until(lambda: journal.recording)
            await journal.wait(2)
            await journal.close()

    async def test_a_file_that_was_taken_away(self, tmp_path: Path) -> None:
        journal = attached(tmp_path)
        journal.append([flap(1)])
        await journal.wait(1)
        empty(tmp_path)
        journal.append([flap(2)])
        await until(lambda: not journal.recording)
        await until(lambda: journal.recording)
        await journal.wait(3)
        assert [each.status for each in await journal.read(0, 10)] == ["gap", "up"]
        assert [record["seq"] for record in read_all(tmp_path)] == [2, 3]
        with pytest.raises(JournalError, match="another netreeve agent"):
            opened(tmp_path)
        await journal.close()

    async def test_the_fold_and_the_journal_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that fails at random: what is recorded is gap-free and says what is missing."""
        from netreeve._ext.index import LinkAdded, LinkChanged
        from netreeve.plan.model import Endpoint

        fails = random.Random(4)
        write = journal_file.JournalFile.write

        def flaky(*args: Any, **kwargs: Any) -> None:
            if fails.random() < 0.2:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = fails.choice((sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL))
                raise error
            write(*args, **kwargs)

        journal = opened(tmp_path, retry=Backoff(1, 2))
        monkeypatch.setattr(journal_file.JournalFile, "write", flaky)
        fold = StatusFold({}, 1)
        journal.attach(lambda gap, recorded, seq: fold.after_gap(gap, recorded, seq, "t"))
        folded: list[Transition] = []

        def note(transitions: list[Transition]) -> None:
            folded.extend(transitions)
            journal.append(transitions)

        note(fold.endpoint_set(Endpoint(WEB, "cali1"), None, "t"))
        note(fold.link(LinkAdded("cali1", 10, False), "t"))
        for number in range(2_000):
            note(fold.link(LinkChanged("cali1", 10, True), "t"))
            note(fold.routes(WEB, "confirmed", None, "t"))
            note(fold.link(LinkChanged("cali1", 10, False), "t"))
            if number % 5 == 0:
                await asyncio.sleep(0.001)
        monkeypatch.setattr(journal_file.JournalFile, "write", write)
        await until(lambda: journal.recording)
        await until(lambda: journal.committed == fold.next_seq - 1)
        await journal.close()
        records = read_all(tmp_path)
        assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
        gaps = [record for record in records if record["status"] == "gap"]
        assert len(gaps) > 3
        # One record of present status follows each gap (none if nothing had been recorded).
        told = len(records) - len(gaps)
        repeated = sum(before["status"] == "gap" for before, _ in itertools.pairwise(records))
        assert told - repeated + sum(gap["lost"] for gap in gaps) == len(folded)
        previous = None
        for record in records:
            if record["status"] != "gap":
                assert record["previous"] == previous
                previous = record["status"]


class TestBounds:
    async def test_history_goes_when_every_sink_has_passed_it_and_it_is_old(
        self, tmp_path: Path
    ) -> None:
        journal = attached(tmp_path, retention_s=0, sinks=("a", "b"))
        journal.append([flap(seq) for seq in range(1, 11)])
        await journal.wait(10)
        journal.advance("a", 10)
        journal.advance("b", 4)
        assert journal.stats().pending == 6
        await journal.close()
        journal = attached(tmp_path, retention_s=0, sinks=("a", "b"))
        assert (journal.cursor("a"), journal.cursor("b")) == (10, 4)
        await until(lambda: not _has(journal, tmp_path, 4))
        assert [each.seq for each in await journal.read(0, 100)] == [5, 6, 7, 8, 9, 10]
        await journal.close()
        # A sink that is no longer configured holds nothing back; the newest one stays.
        journal = attached(tmp_path, retention_s=0, sinks=("a",))
        await until(lambda: not _has(journal, tmp_path, 9))
        assert [each.seq for each in await journal.read(0, 100)] == [10]
        assert journal.next_seq == 11
        await journal.close()

    async def test_a_dead_sink_fills_it_to_the_bound_and_no_further(self, tmp_path: Path) -> None:
        bound = 1 << 20
        journal = attached(tmp_path, max_bytes=bound)
        seen_nearly = False
        while journal.recording:
            seq = journal.next_seq
            journal.append([flap(each, reason="x" * 200) for each in range(seq, seq + 50)])
            await until(lambda seq=seq: journal.committed >= seq + 49 or not journal.recording)  # type: ignore[misc]
            seen_nearly |= journal.stats().nearly_full
        assert seen_nearly
        last = journal.committed
        assert bound * 0.8 < journal.stats().bytes <= bound + 100_000
        await asyncio.sleep(0.2)
        assert not journal.recording
        # Sinks still read, and what they pass makes room.
        assert len(await journal.read(0, 100)) == 100
        journal.advance("jsonl:/a", last)
        await until(lambda: journal.recording)
        await journal.wait(last + 2)
        (gap, _) = await journal.read(last, 10)
        assert (gap.lost, gap.status) == (50, "gap")
        assert "bound" in (gap.reason or "")
        assert journal.stats().bytes < bound * 0.8
        await journal.close()

    async def test_history_yields_to_the_bound(self, tmp_path: Path) -> None:
        """With sinks that keep up, retention never stops recording, nor spoils readiness."""
        journal = attached(tmp_path, max_bytes=1 << 20)
        for _ in range(300):
            seq = journal.next_seq
            journal.append([flap(each, reason="x" * 200) for each in range(seq, seq + 30)])
            await journal.wait(seq + 29)
            journal.advance("jsonl:/a", seq + 29)
        assert journal.recording
        await journal.close()

    async def test_a_disk_that_is_too_slow_for_the_queue(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journal_module, "MAX_QUEUED", 10)
        journal = attached(tmp_path)
        write = journal_file.JournalFile.write

        def slow(*args: Any, **kwargs: Any) -> None:
            time.sleep(0.05)
            write(*args, **kwargs)

        monkeypatch.setattr(journal_file.JournalFile, "write", slow)
        for _ in range(3):  # the second time, the record that closes the first gap is on its way
            for seq in range(journal.next_seq, journal.next_seq + 30):
                journal.append([flap(seq)])
            assert not journal.recording
            await until(lambda: journal.recording)
        await until(lambda: journal.committed == journal.next_seq - 1)
        found = await journal.read(0, 100)
        assert [each.seq for each in found] == list(range(1, len(found) + 1))
        gaps = [each for each in found if each.status == "gap"]
        assert sum(gap.lost or 0 for gap in gaps) == 90 - (len(found) - 2 * len(gaps))
        await journal.close()


def _has(journal: Journal, path: Path, seq: int) -> bool:
    journal._wake.acquire()
    journal._tidy_at = 0.0
    journal._wake.notify()
    journal._wake.release()
    reader = JournalReader(path)
    rows = reader.read(seq, 1, None)
    reader.close()
    return bool(rows) and rows[0][0] == seq


APPENDER = """
import asyncio, sys
from pathlib import Path
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from tests.support.transitions import closing, flap

async def main():
    journal = Journal.open(Path(sys.argv[1]), sinks=(), max_bytes=1 << 30, retention_s=86400,
                           retry=Backoff(1, 10), where="here")
    journal.attach(closing)
    async def acknowledge():
        while True:
            done = journal.committed
            sys.stdout.write(f"{done}\\n"); sys.stdout.flush()
            await journal.wait(done + 1)
    task = asyncio.create_task(acknowledge())
    while True:
        seq = journal.next_seq
        journal.append([flap(each) for each in range(seq, seq + 3)])
        await asyncio.sleep(0)
        if seq > journal.committed + 2000:
            await journal.wait(seq)

asyncio.run(main())
"""


def test_kill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(1)
    acknowledged = 0
    for _ in range(30):
        process = subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(tmp_path)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert int(first) >= acknowledged
        time.sleep(chance.random() * 0.08)
        process.send_signal(signal.SIGKILL)
        lines = (first + process.stdout.read()).splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        acknowledged = int([line for line in lines if line.endswith("\n")][-1])
    seqs = [record["seq"] for record in read_all(tmp_path)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= acknowledged > 100
