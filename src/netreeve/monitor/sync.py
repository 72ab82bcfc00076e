"""How the link table gets, and stays, equal to the kernel: which step comes when.

The minimal correct resync (ARCHITECTURE.md, "Resync"), as a machine without a socket:

    drain the event socket to empty   (ends the congested state after an overrun: mandatory)
    dump on a socket of its own       (an event beats a dump entry, whichever was read first)
    drain; ask for each absent link   (absence in a dump is weak evidence)
    drain; accept the dump; drain; publish

Events lost at any point before "publish" start it again. What each step is for was measured:
without the first drain 54 of 59 overruns ended silently wrong, with messages taken in the order of
their arrival 232 of 600 dumps under churn.

The driver does what `next()` says, reports the outcome with the method of the same name, and asks
again. It drains the event socket whenever that is readable, too, and reports this with `drained()`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netreeve.model.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from netreeve._ext.index import LinkTable
    from netreeve._ext.stage import Stage

__all__ = ["Ask", "Command", "Drain", "Dump", "LinkSync", "Publish", "State", "Wait"]

# A dump in which links came and went (NLM_F_DUMP_INTR) is right all the same on kernels that go by
# ifindex (since 6.2); older ones may skip a link, so it is done again, but not for ever.
INTERRUPTED_TRIES = 3
INTERRUPTED_AGAIN_S = 1.0


class State(enum.Enum):
    """DOWN: nothing known yet. DUMPING: a resync runs. LIVE: table equals the kernel. STALE: a
    resync is due (lost events, a failed dump), the table may miss something."""

    DOWN = "down"
    DUMPING = "dumping"
    LIVE = "live"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Drain:
    """Read the event socket until it is empty."""


@dataclass(frozen=True, slots=True)
class Dump:
    """Dump all links on the dump socket into a new Stage."""


@dataclass(frozen=True, slots=True)
class Ask:
    """RTM_GETLINK for each ifindex on the request socket, into `stage` (or a new one if None)."""

    ifindexes: tuple[int, ...]
    stage: Stage | None


@dataclass(frozen=True, slots=True)
class Publish:
    """The table equals the kernel as of now: tell whoever waits."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until` (monotonic seconds; None: until something happens)."""

    until: float | None


Command = Drain | Dump | Ask | Publish | Wait


class _Step(enum.Enum):
    IDLE = 0
    DRAIN_BEFORE = 1
    DUMP = 2
    DRAIN_DUMPED = 3
    ASK = 4
    DRAIN_ASKED = 5
    DRAIN_ACCEPTED = 6
    PUBLISH = 7
    NAMES_ASK = 8
    NAMES_DRAIN = 9


class LinkSync:
    """The resync and the resolution of ambiguous names, one step at a time.

    `interval_s`: a full comparison that often, 0 = only when events were lost. `backoff` spaces
    attempts that failed. `rng` gives numbers in [0, 1). Counters, ever growing: `resyncs` (whole
    ones), `restarts` (attempts that were given up), `overruns`, `ambiguous_total`,
    `ambiguous_seconds`.
    """

    def __init__(
        self,
        table: LinkTable,
        *,
        interval_s: float,
        backoff: Backoff,
        rng: Callable[[], float],
    ) -> None:
        self._table = table
        self._interval_s = interval_s
        self._backoff = backoff
        self._rng = rng
        self._step = _Step.IDLE
        self._due: float | None = 0.0
        self._failures = 0
        self._interrupted = 0
        self._stale = False
        self._begun = 0.0
        self._quiet_until = 0.0
        self._stage: Stage | None = None
        self._asked_version = 0
        self._names_failures = 0
        self._names_due = 0.0
        self._ambiguous_since: dict[str, float] = {}
        self._published = False
        self.resyncs = 0
        self.restarts = 0
        self.overruns = 0
        self.ambiguous_total = 0
        self.ambiguous_seconds = 0.0

    @property
    def state(self) -> State:
        """Where the table stands; see State."""
        if self._step not in (_Step.IDLE, _Step.NAMES_ASK, _Step.NAMES_DRAIN):
            return State.DUMPING
        if not self._published:
            return State.DOWN
        return State.STALE if self._stale else State.LIVE

    @property
    def in_sync(self) -> bool:
        """Whether the table was published and no event was lost since."""
        return self._published and not self._stale

    # -- what happened

    def request(self, now: float) -> None:
        """A full comparison is wanted now (SIGHUP)."""
        if self._step is _Step.IDLE and (self._due is None or self._due > now):
            self._due = now

    def drained(self, empty: bool, lost: bool, now: float) -> None:
        """The event socket was read. `lost`: an overrun, or a datagram that can't be trusted."""
        if lost:
            self.overruns += 1
            self.lost(now)
        self._note_names(now)
        if not empty:
            return
        match self._step:
            case _Step.DRAIN_BEFORE:
                self._begun = now
                self._table.resync_begin()
                self._step = _Step.DUMP
            case _Step.DRAIN_DUMPED:
                assert self._stage is not None
                absent = self._table.absent(self._stage)
                self._step = _Step.ASK if absent else _Step.DRAIN_ASKED
                if not absent:
                    self._accept(now)
            case _Step.DRAIN_ASKED:
                self._accept(now)
            case _Step.DRAIN_ACCEPTED:
                self._step = _Step.PUBLISH
            case _Step.NAMES_DRAIN:
                assert self._stage is not None
                self._table.settle_answers(self._stage, self._asked_version)
                self._stage = None
                self._step = _Step.IDLE
                self._note_names(now)
                self._names_due = now + self._backoff.delay_s(self._names_failures, self._rng())
                self._names_failures += 1
            case _:
                pass

    def lost(self, now: float) -> None:
        """Events may have been missed (also: the event socket had to be opened anew)."""
        self._stale = True
        if self._step in (_Step.NAMES_ASK, _Step.NAMES_DRAIN):
            self._stage = None
            self._step = _Step.IDLE
        if self._step is _Step.IDLE:
            due = max(now, self._quiet_until)
            self._due = due if self._due is None else min(self._due, due)
        elif self._step is not _Step.DRAIN_BEFORE:
            self._restart(now)

    def dumped(self, stage: Stage, now: float) -> None:
        """The dump has ended, well or not."""
        if self._step is not _Step.DUMP:
            return  # of an attempt that was given up meanwhile
        if not stage.whole:
            self.failed(now)
            return
        if stage.interrupted:
            self._interrupted += 1
            if self._interrupted < INTERRUPTED_TRIES:
                self._restart(now, at_once=True)
                return
        self._stage = stage
        self._step = _Step.DRAIN_DUMPED

    def answered(self, stage: Stage, now: float) -> None:
        """The questions of the last Ask have been answered."""
        if self._step is _Step.ASK and stage is self._stage:
            self._step = _Step.DRAIN_ASKED
        elif self._step is _Step.NAMES_ASK:
            self._stage = stage
            self._step = _Step.NAMES_DRAIN

    def failed(self, now: float) -> None:
        """A dump or a question failed (an error, no answer, a malformed one)."""
        if self._step is _Step.NAMES_ASK:
            self._step = _Step.IDLE
            self._names_due = now + self._backoff.delay_s(self._names_failures, self._rng())
            self._names_failures += 1
        elif self._step in (_Step.DUMP, _Step.ASK):
            self._restart(now)

    def published(self, now: float) -> None:
        """Publish was carried out."""
        if self._step is not _Step.PUBLISH:
            return
        self._published = True
        self._stale = False
        # An overrun right after a resync must not mean one resync after the other: at most half of
        # the time is spent on them.
        self._quiet_until = now + (now - self._begun)
        self._failures = 0
        self.resyncs += 1
        self._step = _Step.IDLE
        if self._interrupted >= INTERRUPTED_TRIES:
            self._due = now + INTERRUPTED_AGAIN_S
        else:
            self._due = now + self._interval_s if self._interval_s > 0 else None
        self._interrupted = 0
        self._names_failures = 0
        self._names_due = now

    # -- what is to be done

    def next(self, now: float) -> Command:
        """The next thing to do; the same again until its outcome is reported."""
        if self._step is _Step.IDLE:
            if self._due is not None and self._due <= now:
                self._step = _Step.DRAIN_BEFORE
            elif self._ambiguous_since and self.in_sync and self._names_due <= now:
                self._step = _Step.NAMES_ASK
                self._asked_version = self._table.version
            else:
                return Wait(self._wake())
        match self._step:
            case _Step.DUMP:
                return Dump()
            case _Step.ASK:
                assert self._stage is not None
                return Ask(tuple(self._table.absent(self._stage)), self._stage)
            case _Step.NAMES_ASK:
                holders = {i for found in self._table.ambiguous.values() for i in found}
                return Ask(tuple(sorted(holders)), None)
            case _Step.PUBLISH:
                return Publish()
            case _:
                return Drain()

    # -- inside

    def _accept(self, now: float) -> None:
        assert self._stage is not None
        self._table.accept(self._stage)
        self._stage = None
        self._step = _Step.DRAIN_ACCEPTED
        self._note_names(now)

    def _restart(self, now: float, *, at_once: bool = False) -> None:
        self._table.resync_abandon()
        self._stage = None
        self.restarts += 1
        self._step = _Step.IDLE
        self._due = now
        if not at_once:
            self._due += self._backoff.delay_s(self._failures, self._rng())
            self._failures += 1

    def _wake(self) -> float | None:
        due = self._due
        if self._ambiguous_since and self.in_sync:
            due = self._names_due if due is None else min(due, self._names_due)
        return due

    def _note_names(self, now: float) -> None:
        """Keeps count of ambiguous names, and for how long each was."""
        ambiguous = self._table.ambiguous
        since = self._ambiguous_since
        if not ambiguous and not since:
            return
        for name in [name for name in since if name not in ambiguous]:
            self.ambiguous_seconds += now - since.pop(name)
        for name in ambiguous:
            if name not in since:
                since[name] = now
                self.ambiguous_total += 1
                self._names_failures = 0
                self._names_due = now
