"""Drives the link table from the kernel: reads events, carries out what LinkSync says.

One wake-up is one call into compiled code, however many messages wait. What may be told is handed
on at once and in order; the driver task only does the rare things (dumps, questions, waiting).
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from netreeve._ext.index import LinkTable
from netreeve._ext.receive import EventReader
from netreeve.errors import KernelError
from netreeve.io.netlink import RTNLGRP_LINK, EventSocket, Kernel
from netreeve.io.waiting import wait_until
from netreeve.io.watch import Watch
from netreeve.monitor import sync

if TYPE_CHECKING:
    from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
    from netreeve.io.namespaces import NetNs
    from netreeve.model.backoff import Backoff

__all__ = ["LinkFeed", "Listener"]

log = logging.getLogger(__name__)

# Datagrams handled in one turn of the loop: about 5 ms of work, then others may run.
DATAGRAMS_PER_TURN = 4096


class Listener(Protocol):
    """Who wants to know. The calls come from the loop, one at a time, and must not block."""

    def told(
        self,
        events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous],
        flushed: list[int],
        touched: list[tuple[str, int, bool]],
    ) -> None:
        """What the name machine tells, in order; ifindexes whose IPv4 routes the kernel has
        dropped (admin state fell, deleted, moved away); and of which watched links anything
        changed, as (name, ifindex, present)."""

    def published(self) -> None:
        """The table equals the kernel as of now."""

    def overrun(self) -> None:
        """Events were lost; `published` follows when the table is right again."""


class LinkFeed:
    """The links of one namespace, kept equal to the kernel, told to one listener.

    `rcvbuf_bytes`: receive buffer asked for; see `obtained_rcvbuf_bytes`. `resync_interval_s`: full
    comparison that often, 0 = never. `watch`: suffixes of names of which every change is told.
    `start()` before anything else, `close()` at the end.
    """

    def __init__(
        self,
        kernel: Kernel,
        listener: Listener,
        *,
        rcvbuf_bytes: int,
        resync_interval_s: float,
        backoff: Backoff,
        netns: NetNs | None = None,
        watch: tuple[str, ...] = (),
    ) -> None:
        self.table = LinkTable()
        self.table.watch(watch)
        self.reader = EventReader(self.table)
        self.sync = sync.LinkSync(
            self.table, interval_s=resync_interval_s, backoff=backoff, rng=random.random
        )
        self.reopened = 0
        self._kernel = kernel
        self._listener = listener
        self._rcvbuf_bytes = rcvbuf_bytes
        self._backoff = backoff
        self._netns = netns
        self._open_failures = 0
        self._wake = asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._socket: EventSocket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def obtained_rcvbuf_bytes(self) -> int:
        """The receive buffer as the kernel counts it (twice what it granted); 0 when not open."""
        return self._socket.rcvbuf_bytes if self._socket is not None else 0

    def start(self) -> asyncio.Task[None]:
        """Subscribes and begins; returns the driver's task, which ends only if it fails.

        OSError if the socket can't be had.
        """
        self._loop = asyncio.get_running_loop()
        self._open()
        self._task = self._loop.create_task(self._drive(), name="links")
        return self._task

    async def close(self) -> None:
        """Unsubscribes. What was told stays told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._close_socket()

    def resync(self) -> None:
        """Asks for a full comparison now."""
        self.sync.request(self._loop.time())
        self._wake.set()

    def pause(self) -> None:
        """Reads nothing until `resume()`: events pile up in the kernel, and overrun in the end."""
        if self._resumed.is_set():
            self._resumed.clear()
            if self._socket is not None:
                self._watch.stop()

    def resume(self) -> None:
        """Reads again."""
        if not self._resumed.is_set():
            self._resumed.set()
            if self._socket is not None:
                self._watch.start()

    # -- the event socket

    def _open(self) -> None:
        self._socket = EventSocket(
            [RTNLGRP_LINK], rcvbuf_bytes=self._rcvbuf_bytes, netns=self._netns
        )
        self._watch = Watch(self._loop, self._socket.watch_fd, self._readable)
        if self._resumed.is_set():
            self._watch.start()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._watch.stop()
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        self._drain()
        if self.sync.state is not sync.State.LIVE or self.table.ambiguous:
            self._wake.set()

    def _drain(self) -> bool:
        """Reads what events there are, and tells; whether the socket was read to empty."""
        if self._socket is None:
            return False
        try:
            empty, lost = self.reader.drain(self._socket.fd, DATAGRAMS_PER_TURN)
        except OSError as error:
            log.warning("event socket failed, opening another", extra={"fields": {"error": error}})
            self._close_socket()
            self.sync.lost(self._loop.time())
            self._listener.overrun()
            self._wake.set()
            return False
        self.sync.drained(empty, lost, self._loop.time())
        if lost:
            self._listener.overrun()
        self._tell()
        return empty

    def _tell(self) -> None:
        events = self.table.take_told()
        flushed = self.table.take_flushed()
        touched = self.table.take_touched()
        if events or flushed or touched:
            self._listener.told(events, flushed, touched)

    # -- the driver

    async def _drive(self) -> None:
        while True:
            await self._resumed.wait()
            if self._socket is None and not await self._reopen():
                continue
            command = self.sync.next(self._loop.time())
            match command:
                case sync.Drain():
                    if not self._drain():
                        await asyncio.sleep(0)
                case sync.Dump():
                    await self._dump()
                case sync.Ask(ifindexes, stage):
                    try:
                        answered = await self._kernel.ask_links(ifindexes, stage)
                    except KernelError as error:
                        log.warning("asking for links failed", extra={"fields": {"error": error}})
                        self.sync.failed(self._loop.time())
                    else:
                        self.sync.answered(answered, self._loop.time())
                case sync.Publish():
                    self.sync.published(self._loop.time())
                    self._listener.published()
                case sync.Wait(until):
                    self._wake.clear()
                    await wait_until(self._wake, until)

    async def _dump(self) -> None:
        try:
            stage = await self._kernel.dump_links()
        except KernelError as error:
            log.warning("dump of links failed", extra={"fields": {"error": error}})
            self.sync.failed(self._loop.time())
        else:
            self.sync.dumped(stage, self._loop.time())

    async def _reopen(self) -> bool:
        try:
            self._open()
        except OSError as error:
            self._open_failures += 1
            log.error("opening the event socket failed", extra={"fields": {"error": error}})
            await asyncio.sleep(self._backoff.delay_s(self._open_failures, random.random()))
            return False
        self._open_failures = 0
        self.reopened += 1
        self.sync.lost(self._loop.time())
        return True
