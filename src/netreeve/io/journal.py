"""The status journal: what the fold says, on the disk before any sink sees it.

One thread does all that touches the disk. The loop's thread only puts transitions into a queue;
the writer takes all that is waiting into one transaction, so that the cost of an fsync falls as
load rises.

When the disk refuses (full, broken, read-only, the file taken away), or the bound is reached, or
the disk is too slow for the queue, recording stops and what happens is counted. The data plane
doesn't notice. The writer tries again with backoff; once it has written something, `on_room` is
called on the loop's thread for a gap record and the present status of every endpoint, which are the
next transitions of the journal. So numbers have no hole, and what is missing is said in its place.

    recording ──a write fails──▶ stopped ──a write succeeds──▶ on_room ──▶ recording
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from netreeve.errors import JournalError
from netreeve.io.journal_file import FILE_NAME, JournalFile, is_refusal
from netreeve.io.journal_outage import Outage
from netreeve.io.journal_space import BoundReachedError, Space, Stats
from netreeve.io.state_dir import StateDir, new_instance, where_we_are
from netreeve.model.backoff import Backoff
from netreeve.model.ids import EndpointId
from netreeve.status.transition import Gap, Transition, observed_text

__all__ = ["Journal", "OnRoom"]

log = logging.getLogger(__name__)

OnRoom = Callable[[Gap, Mapping[EndpointId, Transition], int], list[Transition]]
"""(gap, what the journal holds as present, next seq) -> the gap record and what follows it."""

MAX_QUEUED = 100_000
_MAX_BATCH = 8_192
_CURSOR_DELAY_S = 1.0
_TIDY_INTERVAL_S = 30.0
_MEMORY_MAX_BYTES = 64 << 20
_CLOSE_S = 4.0


@dataclass(frozen=True, slots=True)
class _Append:
    transitions: Sequence[Transition]
    closes: Outage | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    after_seq: int
    limit: int
    answer: asyncio.Future[list[Transition]]


@dataclass(frozen=True, slots=True)
class _Room:
    """The writer could write again; `on_room` is due."""

    recorded: Mapping[EndpointId, Transition]
    next_seq: int


class Journal:
    """See the head of this file. `open` makes one.

    `present`, `next_seq` and `rebooted` are what a `StatusFold` starts from; `instance` is the id
    of this installation. Except `open`, everything is called on the loop's thread.
    """

    def __init__(
        self,
        state_dir: Path | None,
        sinks: Collection[str],
        space: Space,
        retry: Backoff,
        where: str,
    ) -> None:
        self._path = None if state_dir is None else state_dir / FILE_NAME
        self._dir = None if state_dir is None else StateDir(state_dir)
        self._sinks = tuple(sinks)
        self._space = space
        self._retry = retry
        self._where = where

        self.instance = new_instance()
        self.rebooted = False
        self.present: Mapping[EndpointId, Transition] = {}

        # Shared by the two threads, under the lock of `_wake`.
        self._wake = threading.Condition()
        self._queue: deque[_Append] = deque()
        self._queued = 0
        self._reads: deque[_Read] = deque()
        self._cursors: dict[str, int] = dict.fromkeys(self._sinks, 0)
        self._moved: dict[str, int] = {}
        self._meta: dict[str, str] = {}
        self._outage: Outage | None = None
        self._recording = True
        self._room: _Room | None = None
        self._closing = False
        self._failure: BaseException | None = None

        # The writer's own; others read single values.
        self._file: JournalFile | None = None
        self._committed = 0
        self._failures = 0
        self._small_at = self._tidy_at = self._probe_at = time.monotonic()

        # The loop's own.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_room: OnRoom | None = None
        self._expected_seq = 1
        self._advanced = asyncio.Event()

        self._start()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        state_dir: Path | None,
        *,
        sinks: Collection[str],
        max_bytes: int,
        retention_s: float,
        retry: Backoff,
        where: str | None = None,
    ) -> Journal:
        """Open the journal in `state_dir`, or with None one that ends with the process. Blocks.

        `sinks` are the URLs of all sinks; the cursors of others are forgotten. `where` names this
        boot and network namespace (read from the system if None): ifindexes mean nothing in
        another. In memory, transitions are kept only until every sink has passed them.

        Raises JournalError where another agent holds the directory, or a later version wrote the
        file. A directory that can't be written is no error: it is as if the disk were full.
        """
        if state_dir is None:
            max_bytes, retention_s = min(max_bytes, _MEMORY_MAX_BYTES), 0
            log.warning(
                "the journal is in memory: transitions that no sink has yet are lost when the "
                "agent ends"
            )
        space = Space(max_bytes, retention_s)
        return cls(state_dir, sinks, space, retry, where or where_we_are())

    @property
    def next_seq(self) -> int:
        """The number that the next transition must have."""
        return self._expected_seq

    @property
    def committed(self) -> int:
        """The number of the newest transition that is safe on the disk."""
        return self._committed

    @property
    def recording(self) -> bool:
        """Whether transitions are recorded; otherwise they are counted."""
        return self._recording

    def attach(self, on_room: OnRoom) -> None:
        """Say who closes gaps. Call it once, when the fold holds the first plan.

        A gap that a former run left open is closed at once.
        """
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._resume()

    def settle(self) -> None:
        """The first plan is folded and appended: from now on `present` fits this boot.

        Before that, the next start counts as one after a reboot too, if this one does.
        """
        with self._wake:
            self._meta["where"] = self._where
            self._small_at = time.monotonic()
            self._wake.notify()

    def append(self, transitions: Sequence[Transition]) -> None:
        """Record these, after all that was appended before. Never blocks.

        Raises JournalError when the writer has died, ValueError if the first doesn't have the
        number `next_seq`.
        """
        if not transitions:
            return
        self._check()
        with self._wake:
            if not self._recording:
                assert self._outage is not None
                self._outage.add(transitions)
                return
            if transitions[0].seq != self._expected_seq:
                raise ValueError(f"seq {transitions[0].seq} where {self._expected_seq} is next")
            if self._queued + len(transitions) > MAX_QUEUED:
                self._stop("the disk is too slow", self._expected_seq, [_Append(transitions)])
                self._wake.notify()
                return
            self._put(_Append(transitions))

    async def wait(self, seq: int) -> None:
        """Return when `committed` is at least `seq`; JournalError when the writer has died.

        After a gap its numbers are given anew, so that it may be another transition by then.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        while self._committed < seq:
            self._check()
            await self._advanced.wait()

    async def read(self, after_seq: int, limit: int) -> list[Transition]:
        """The first `limit` committed transitions with a higher number, in order.

        Transitions that every sink has passed may be missing at the beginning. Raises JournalError
        while the file can't be read.
        """
        self._check()
        self._loop = asyncio.get_running_loop()
        read = _Read(after_seq, limit, self._loop.create_future())
        with self._wake:
            self._reads.append(read)
            self._wake.notify()
        return await read.answer

    def cursor(self, sink: str) -> int:
        """The number of the last transition that `sink` is known to have, 0 for none."""
        return self._cursors[sink]

    def advance(self, sink: str, seq: int) -> None:
        """`sink` has everything up to `seq`. On the disk with the next write, within a second.

        The sink itself knows better after a crash (`Sink.open`), so this need not be at once.
        """
        with self._wake:
            self._cursors[sink] = seq
            if not self._moved and not self._meta:
                self._small_at = time.monotonic() + _CURSOR_DELAY_S
                self._wake.notify()
            self._moved[sink] = seq

    def stats(self) -> Stats:
        """A snapshot."""
        pending = max(0, self._committed - self._passed())
        return self._space.stats(pending, self._recording, time.time())

    async def close(self) -> None:
        """Write what is queued, and end. Gives up on a disk that doesn't answer for 4 s."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join, _CLOSE_S)

    # The loop's thread.

    def _check(self) -> None:
        if self._failure is not None:
            raise JournalError(f"the journal's writer died: {self._failure!r}") from self._failure

    def _put(self, entry: _Append) -> None:
        self._queue.append(entry)
        self._queued += len(entry.transitions)
        self._expected_seq += len(entry.transitions)
        self._wake.notify()

    def _resume(self) -> None:
        """Record again, if the writer has said that it can."""
        if self._room is None or self._on_room is None:
            return
        room, outage = self._room, self._outage
        assert outage is not None
        transitions: list[Transition] = []
        if outage.lost != 0:
            # Nothing can be appended meanwhile: that too happens on this thread only.
            transitions = self._on_room(outage.gap(), room.recorded, room.next_seq)
        with self._wake:
            self._expected_seq = room.next_seq
            self._room, self._outage, self._recording = None, None, True
            self._put(_Append(transitions, outage))
        log.warning(
            "the journal records again",
            extra={"fields": {"lost": outage.lost, "since": outage.since}},
        )

    def _wake_waiters(self) -> None:
        self._advanced.set()
        self._advanced.clear()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call `function` on the loop's thread, if there is a loop."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(function, *arguments)

    # Either thread, with the lock held.

    def _passed(self) -> int:
        return min(self._cursors.values(), default=self._committed)

    def _stop(self, reason: str, first_seq: int, entries: Sequence[_Append]) -> None:
        """Stop recording; `entries` are lost. An outage that they were to close goes on."""
        if self._outage is None:
            self._outage = Outage(0, observed_text(time.time_ns()), reason, first_seq)
            log.error(
                "the journal stopped recording; transitions are counted until it can",
                extra={"fields": {"path": str(self._path), "reason": reason}},
            )
        for entry in entries:
            if entry.closes is None:
                self._outage.add(entry.transitions)
        for entry in entries:
            if entry.closes is not None:
                self._outage = entry.closes.joined(self._outage)
        self._recording = False

    # The writer's thread; `_start` runs before it.

    def _start(self) -> None:
        """Open everything. What the disk refuses is tried again by the writer."""
        now_text = observed_text(time.time_ns())
        is_known = False
        try:
            mark = None if self._dir is None else self._dir.hold()
            file = self._file = JournalFile(self._path, self._sinks)
            self._committed = file.last_seq()
            self._expected_seq = self._committed + 1
            self.present = file.present()
            self._cursors.update(file.cursors())
            stored = file.meta("where")
            self.rebooted = stored is not None and stored != self._where
            is_known = True
            if stored is None:
                file.write((), {}, {"where": self._where}, 0)
            self._space.measure(file, self._passed())
        except Exception as error:
            self._close_file()
            if not is_refusal(error):
                if self._dir is not None:
                    self._dir.release()
                raise
            self._stop(str(error), self._expected_seq, ())
            assert self._outage is not None
            self._outage.lost = 0 if is_known else None
            self._put_off_probe()
        else:
            if file.damage is not None:
                reason = f"the journal was damaged: {file.damage}"
                self._outage = Outage(None, now_text, reason, self._expected_seq)
            elif mark is not None and not file.has_gap_record(mark.next_seq):
                self._outage = Outage(None, mark.since, mark.reason, mark.next_seq)
            if self._outage is not None:
                self._recording = False
                self._room = _Room(self.present, self._expected_seq)
        if self._dir is not None:
            self.instance = self._dir.instance()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # nobody may go on as if this were recorded
            log.critical("the journal's writer died", exc_info=error)
            with self._wake:
                self._failure = error
                reads, self._reads = self._reads, deque()
            for read in reads:
                self._answer_error(read, error)
        finally:
            self._close_file()
            if self._dir is not None:
                if self._outage is not None and self._outage.lost == 0:
                    self._dir.mark(None)
                self._dir.release()
            self._call(self._wake_waiters)

    def _turn(self) -> bool:
        """Wait for something to do and do it; False when closed."""
        with self._wake:
            while not (self._queue or self._reads or self._closing or self._is_unmarked()):
                wait_s = self._next_at() - time.monotonic()
                if wait_s <= 0:
                    break
                self._wake.wait(wait_s)
            now = time.monotonic()
            batch = self._take_batch()
            reads, self._reads = self._reads, deque()
            closing = self._closing and not self._queue
            small_due = self._recording and self._has_small() and now >= self._small_at
            probe_due = self._is_probing() and not self._queue and now >= self._probe_at
        if self._is_unmarked():
            self._mark()
        if batch or small_due or (closing and self._has_small()):
            self._commit(batch)
        for read in reads:
            self._answer(read)
        if now >= self._tidy_at:
            self._tidy()
        if probe_due and not batch:
            self._probe()
        return not closing

    def _next_at(self) -> float:
        at = self._tidy_at
        if self._recording and self._has_small():
            at = min(at, self._small_at)
        if self._is_probing():
            at = min(at, self._probe_at)
        return at

    def _has_small(self) -> bool:
        """Whether there is something to write that can wait for a transition to go with."""
        return bool(self._moved or self._meta)

    def _is_probing(self) -> bool:
        return not self._recording and self._room is None

    def _is_unmarked(self) -> bool:
        return self._outage is not None and not self._outage.is_marked

    def _take_batch(self) -> list[_Append]:
        batch: list[_Append] = []
        count = 0
        while self._queue and (not batch or count + len(self._queue[0].transitions) <= _MAX_BATCH):
            count += len(self._queue[0].transitions)
            batch.append(self._queue.popleft())
        self._queued -= count
        return batch

    def _commit(self, batch: list[_Append]) -> None:
        transitions = [each for entry in batch for each in entry.transitions]
        try:
            file = self._opened()
            if transitions:
                self._space.require(file, self._passed())
            self._write(file, transitions)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._refused(error, batch)
            return
        if transitions:
            self._committed = transitions[-1].seq
        if any(entry.closes for entry in batch):
            self._failures = 0
            with self._wake:
                # Another one may have begun behind it.
                if self._outage is None and self._dir is not None:
                    self._dir.mark(None)
        self._call(self._wake_waiters)
        try:
            self._space.measure(file, self._passed())
            if self._space.crowds_history:
                self._tidy_at = min(self._tidy_at, time.monotonic() + _CURSOR_DELAY_S)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._refused(error, [])

    def _write(self, file: JournalFile, transitions: Sequence[Transition], **meta: str) -> None:
        """Write these, and with them the small things that wait for a write."""
        with self._wake:
            moved, self._moved = self._moved, {}
            waiting, self._meta = self._meta, {}
        try:
            file.write(transitions, moved, {**waiting, **meta}, int(time.time()))
        except BaseException:
            with self._wake:
                self._moved = {**moved, **self._moved}
                self._meta = {**waiting, **self._meta}
            raise

    def _refused(self, error: Exception, batch: list[_Append]) -> None:
        """A write failed: what was in it and what waits behind it is lost, and counted."""
        with self._wake:
            behind, self._queue, self._queued = list(self._queue), deque(), 0
            self._stop(str(error), self._committed + 1, [*batch, *behind])
        if not _is_full(error):
            self._close_file()
        self._put_off_probe()

    def _probe(self) -> None:
        """Try to write; if that works, have recording begin again."""
        try:
            if self._dir is not None:
                self._dir.hold()
            file = self._opened()
            self._space.require(file, self._passed(), comfortable=True)
            self._write(file, (), probe=str(time.time_ns()))
            recorded = file.present()
            # After a failed fsync the file may hold more than was thought, a new one holds nothing.
            self._committed = max(self._committed, file.last_seq())
        except Exception as error:
            if not is_refusal(error) and not isinstance(error, JournalError | ValueError):
                raise
            if not _is_full(error):
                self._close_file()
            self._put_off_probe()
            log.info(
                "the journal still can't record",
                extra={"fields": {"path": str(self._path), "reason": str(error)}},
            )
        else:
            self._room = _Room(recorded, self._committed + 1)
            self._call(self._resume)

    def _opened(self) -> JournalFile:
        """The file, opened anew where a failure closed it."""
        if self._file is not None:
            return self._file
        self._file = file = JournalFile(self._path, self._sinks)
        with self._wake:
            # It may be a new one, which knows nothing of the sinks, nor of the boot.
            for sink, seq in file.cursors().items():
                self._cursors[sink] = max(seq, self._cursors[sink])
            self._moved = dict(self._cursors)
            if file.meta("where") is None:
                self._meta["where"] = self._where
            if self._outage is not None:
                self._outage.is_marked = False
                if file.last_seq() < self._committed:
                    self._outage.lost = None
        return file

    def _mark(self) -> None:
        outage = self._outage
        if outage is not None:
            outage.is_marked = True
            if self._dir is not None:
                self._dir.mark(outage.mark())

    def _put_off_probe(self) -> None:
        self._probe_at = time.monotonic() + self._retry.delay_s(self._failures, random.random())
        self._failures += 1

    def _tidy(self) -> None:
        """Drop some history; in steps, so that nobody is held up."""
        now = time.monotonic()
        self._tidy_at = now + _TIDY_INTERVAL_S
        if self._file is None:
            return
        try:
            if self._space.drop(self._file, self._passed(), time.time()):
                self._tidy_at = now
        except Exception as error:
            if not is_refusal(error):
                raise
            self._refused(error, [])

    def _answer(self, read: _Read) -> None:
        try:
            if self._file is None:
                raise OSError("it is not open")
            transitions = self._file.read(read.after_seq, read.limit)
        except Exception as error:
            if not is_refusal(error) and not isinstance(error, ValueError):
                raise
            self._answer_error(read, error)
        else:
            self._call(_fulfil, read.answer, transitions)

    def _answer_error(self, read: _Read, error: BaseException) -> None:
        self._call(_fulfil, read.answer, JournalError(f"the journal can't be read: {error}"))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_full(error: Exception) -> bool:
    """Whether only room is missing: the file can still be read."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or isinstance(error, BoundReachedError)


def _fulfil(
    future: asyncio.Future[list[Transition]], outcome: list[Transition] | Exception
) -> None:
    if future.done():  # cancelled
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
