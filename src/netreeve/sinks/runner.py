"""Brings the journal to one sink, in order, whatever that sink does.

Each sink has a runner, a task and a cursor of its own. One that fails is closed and opened again
with backoff; it holds up nobody, and goes on with the first transition that it doesn't have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import random as random_number
from typing import Any

from netreeve.errors import JournalError, SinkError, SinkFenced
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.sinks.sink import Sink
from netreeve.status.transition import Transition

__all__ = ["SinkRunner"]

log = logging.getLogger(__name__)

_BATCH = 1_000
_TEND_S = 1.0


class SinkRunner:
    """`run` is its task. `random` gives numbers in [0, 1)."""

    def __init__(
        self,
        sink: Sink,
        journal: Journal,
        backoff: Backoff,
        random: Callable[[], float] = random_number,
    ) -> None:
        self._sink = sink
        self._journal = journal
        self._backoff = backoff
        self._random = random
        self._seq = journal.cursor(sink.url)
        # The read of what follows the transitions that are being delivered.
        self._ahead: asyncio.Task[list[Transition]] | None = None
        self._error: str | None = None
        self._fenced = False
        self._reopen = asyncio.Event()
        self._advanced = asyncio.Event()

    @property
    def fenced(self) -> bool:
        """Whether another agent has taken the store over; this one has stopped writing to it."""
        return self._fenced

    def status(self) -> dict[str, Any]:
        """For `netreeve status`: `seq` is delivered, `lag` is how many are not."""
        return {
            "url": self._sink.url,
            "seq": self._seq,
            "lag": max(0, self._journal.committed - self._seq),
            "error": self._error,
        }

    def reopen(self) -> None:
        """Close the sink and open it again before the next delivery (SIGHUP)."""
        self._reopen.set()

    async def passed(self, seq: int) -> None:
        """Return when the sink has everything up to `seq`."""
        while self._seq < seq:
            await self._advanced.wait()

    async def run(self) -> None:
        """Deliver until cancelled. Raises only for what is not the sink's or the disk's fault."""
        failures = 0
        while True:
            try:
                self._move(await self._open())
                while not self._reopen.is_set():
                    if self._journal.committed > self._seq:
                        await self._deliver()
                    self._error = await self._sink.tend(self._seq)
                    failures = 0
                    await self._wait()
                self._reopen.clear()
            except SinkFenced as error:
                self._fenced = True
                self._error = str(error)
                log.critical(
                    "another agent has taken a sink over; nothing more is written to it",
                    extra={"fields": {"sink": self._sink.url, "error": self._error}},
                )
                await self._sink.close()
                await asyncio.Event().wait()
            except (SinkError, JournalError, OSError) as error:
                failures += 1
                self._error = str(error)
                if failures == 1:
                    log.warning(
                        "a sink fails; it is tried again until it takes what is waiting",
                        extra={"fields": {"sink": self._sink.url, "error": self._error}},
                    )
                await self._forget_ahead()
                await self._sink.close()
                await asyncio.sleep(self._backoff.delay_s(failures, self._random()))
            finally:
                await self._forget_ahead()
                await self._sink.close()

    async def _forget_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _open(self) -> int:
        """Open the sink; returns the number of the last transition that it has."""
        mark = await self._sink.open()
        seq = self._journal.cursor(self._sink.url)
        if mark is None or mark.seq <= seq:
            return seq
        found = await self._journal.read(mark.seq - 1, 1)
        # A later one was found: what the sink has was dropped as passed, and the cursor lagged.
        if found and (found[0].seq > mark.seq or found[0].observed == mark.observed):
            return mark.seq
        log.warning(
            "a sink holds transitions of another journal; it gets all of this one",
            extra={"fields": {"sink": self._sink.url, "its_seq": mark.seq, "cursor": seq}},
        )
        return seq

    async def _deliver(self) -> None:
        ahead, self._ahead = self._ahead, None
        transitions = await (ahead or self._journal.read(self._seq, _BATCH))
        last = transitions[-1].seq
        if self._journal.committed > last:
            self._ahead = asyncio.create_task(self._journal.read(last, _BATCH))
        await self._sink.deliver(transitions)
        self._move(last)
        self._journal.advance(self._sink.url, self._seq)

    def _move(self, seq: int) -> None:
        self._seq = seq
        self._advanced.set()
        self._advanced.clear()

    async def _wait(self) -> None:
        """Until there is something to deliver, the sink is to be opened anew, or it is time to
        look after it."""
        if self._journal.committed > self._seq:
            return
        more = asyncio.create_task(self._journal.wait(self._seq + 1))
        reopen = asyncio.create_task(self._reopen.wait())
        try:
            await asyncio.wait((more, reopen), timeout=_TEND_S, return_when=asyncio.FIRST_COMPLETED)
            if more.done():
                await more
        finally:
            more.cancel()
            reopen.cancel()
