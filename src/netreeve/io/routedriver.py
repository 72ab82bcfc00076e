"""Drives the routes: hears route events, sends what RouteReconciler wants, brings back the answers.

Route events have a socket of their own: a routing daemon that withdraws a full table must not make
the kernel drop link events. All ops that one wake-up makes necessary leave in one sendmsg, a
short delay (BATCH_DELAY_MS) after the first of them, so that a burst shares its batch; while one is
with the kernel, the next one gathers.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import socket
from typing import TYPE_CHECKING

from netreeve._ext.receive import EventReader
from netreeve._ext.wire import AddrMessage, RouteMessage
from netreeve.errors import KernelError
from netreeve.io.netlink import (
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_ROUTE,
    EventSocket,
    Kernel,
)
from netreeve.io.waiting import wait_until
from netreeve.io.watch import Watch
from netreeve.model import route
from netreeve.model.recent import Recent
from netreeve.routes.slot import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from netreeve._ext.encode import Batch
    from netreeve.io.namespaces import NetNs
    from netreeve.model.backoff import Backoff
    from netreeve.routes.reconciler import RouteReconciler

__all__ = ["RouteDriver"]

log = logging.getLogger(__name__)

FAMILIES = (socket.AF_INET, socket.AF_INET6)
DATAGRAMS_PER_TURN = 4096
SHORTEST_WAIT_S = 0.005
# Routes of which the last op, and the last change by somebody else, are remembered for `explain`.
REMEMBERED = 16_384


class RouteDriver:
    """See the head of this file. `changed` is called whenever endpoints may stand otherwise than
    before (`RouteReconciler.take_changed` tells which), `addressed` with the ifindex of a link that
    got or lost an address.

    Counters, ever growing: `batches`, `ops`, `refused` (ops that the kernel did not do), `resyncs`,
    `overruns`. By key, for some time: `answers` holds the last op with the time, errno (None =
    lost) and words of its answer, `changed_by` the netlink port of the last change by others; of a
    link's addresses under `(ifindex,)`.
    """

    def __init__(
        self,
        kernel: Kernel,
        reconciler: RouteReconciler,
        *,
        protocol: int,
        rcvbuf_bytes: int,
        batch_ops: int,
        batch_delay_ms: int,
        backoff: Backoff,
        changed: Callable[[], None],
        addressed: Callable[[int], None],
        netns: NetNs | None = None,
    ) -> None:
        self.batches = 0
        self.ops = 0
        self.refused = 0
        self.resyncs = 0
        self.overruns = 0
        self.in_sync = False
        self.answers: Recent[route.RouteKey, tuple[float, route.Op, int | None, str]] = Recent(
            REMEMBERED
        )
        self.changed_by: Recent[tuple[object, ...], int] = Recent(REMEMBERED)
        self._kernel = kernel
        self._reconciler = reconciler
        self._protocol = protocol
        self._rcvbuf_bytes = rcvbuf_bytes
        self._batch_ops = batch_ops
        self._batch_delay_s = batch_delay_ms / 1000
        self._backoff = backoff
        self._changed = changed
        self._addressed = addressed
        self._netns = netns
        # Without a link table: only routes and addresses reach this socket.
        self._reader = EventReader(None, protocol)
        self._reader.watched = reconciler.watched()
        self._socket: EventSocket | None = None
        self._wanted = asyncio.Event()
        self._look = asyncio.Event()
        self._subjects: collections.deque[tuple[int, int]] = collections.deque()
        self._compared = asyncio.Event()
        self._resync_due = False
        self._failures = 0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Subscribes and begins; returns the tasks, which end only if they fail.

        OSError if the socket can't be had.
        """
        self._loop = asyncio.get_running_loop()
        self._open()
        self._tasks = [
            self._loop.create_task(self._send_loop(), name="route batches"),
            self._loop.create_task(self._look_loop(), name="route dumps"),
        ]
        return self._tasks

    async def close(self) -> None:
        """Stops; what is programmed stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self._close_socket()

    def resync(self) -> None:
        """Compares all our routes with the kernel, soon."""
        self._resync_due = True
        self._look.set()

    def wake(self) -> None:
        """Something changed in the reconciler: send what it wants, after the batch delay."""
        if self._timer is None:
            wait_s = max(0.0, self._due_at + self._batch_delay_s - self._loop.time())
            self._timer = self._loop.call_later(wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._due_at = self._loop.time()
        self._wanted.set()

    # -- events

    def _open(self) -> None:
        self._socket = EventSocket(
            [
                RTNLGRP_IPV4_IFADDR,
                RTNLGRP_IPV6_IFADDR,
                RTNLGRP_IPV4_ROUTE,
                RTNLGRP_IPV6_ROUTE,
            ],
            rcvbuf_bytes=self._rcvbuf_bytes,
            netns=self._netns,
        )
        self._watch = Watch(self._loop, self._socket.watch_fd, self._readable)
        self._watch.start()

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._watch.stop()
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        """Reads what there is; the loop calls again if the socket wasn't read to empty."""
        if self._socket is None:
            return
        # Our requests may have a new port: a socket that failed is opened anew.
        self._reader.own_port = self._kernel.port
        try:
            _, lost = self._reader.drain(self._socket.fd, DATAGRAMS_PER_TURN)
        except OSError as error:
            log.warning("route socket failed, opening another", extra={"fields": {"error": error}})
            self._close_socket()
            lost = True
        found = self._reader.take_found()
        for message in found:
            if isinstance(message, RouteMessage):
                self.changed_by.put(key_of(message), message.portid)
                self._reconciler.route_event(message)
            elif isinstance(message, AddrMessage):
                if message.deleted and message.family == socket.AF_INET:
                    # With its last IPv4 address a link loses its IPv4 routes, without a word.
                    self._reconciler.flushed(message.ifindex, message.family)
                self.changed_by.put((message.ifindex,), message.portid)
                self._addressed(message.ifindex)
        if lost:
            self.overruns += 1
            self.in_sync = False
            self._reconciler.overrun()
            self.resync()
        if found or lost:
            self._changed()
            self.wake()

    # -- sending

    async def _send_loop(self) -> None:
        # Before the first comparison nothing is known of what is there: routes that a former run
        # left would all be sent once more, to be told that they exist.
        await self._compared.wait()
        while True:
            await wait_until(self._wanted, self._reconciler.deadline(), SHORTEST_WAIT_S)
            self._wanted.clear()
            while ops := self._reconciler.collect(self._loop.time(), self._batch_ops):
                await self._send(ops)
                self._changed()
            subjects = self._reconciler.ask(self._loop.time())
            if subjects:
                self._subjects.extend(sorted(subjects))
                self._look.set()

    async def _send(self, ops: list[route.Op]) -> None:
        numbers: list[int] = []

        def fill(batch: Batch) -> None:
            for op in ops:
                add = {
                    route.Add: batch.route_add,
                    route.Replace: batch.route_replace,
                    route.Delete: batch.route_delete,
                }[type(op)]
                numbers.append(add(*op.key, op.protocol, op.oif))

        self.batches += 1
        self.ops += len(ops)
        try:
            refused = await self._kernel.send(len(ops), fill)
        except KernelError as error:
            log.error("sending routes failed", extra={"fields": {"error": error}})
            now = self._loop.time()
            for op in ops:
                self._answer(op, None, "", now)
            self.resync()
            return
        now = self._loop.time()
        for op, number in zip(ops, numbers, strict=True):
            answer = refused.get(number)
            if answer is None:
                self._answer(op, 0, "", now)
            else:
                self.refused += 1
                self._answer(op, answer.errno, answer.text, now)

    def _answer(self, op: route.Op, number: int | None, words: str, now: float) -> None:
        self.answers.put(op.key, (now, op, number, words))
        self._reconciler.answer(op, number, words, now)

    # -- looking

    async def _look_loop(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if self._socket is None:
                await self._reopen()
            if self._resync_due:
                self._resync_due = False
                await self._resync()
                self._compared.set()
            while self._subjects:
                await self._ask(*self._subjects.popleft())
            self._changed()
            self.wake()

    async def _resync(self) -> None:
        self._reconciler.resync_begin()
        routes: list[RouteMessage] = []
        try:
            for family in FAMILIES:
                routes += await self._kernel.dump_routes(
                    family, protocol=self._protocol, keep=self._is_ours
                )
        except KernelError as error:
            self._failures += 1
            log.warning("dump of routes failed", extra={"fields": {"error": error}})
            delay_s = self._backoff.delay_s(self._failures, random.random())
            self._loop.call_later(delay_s, self.resync)
            return
        self._failures = 0
        self._reconciler.resync_end(routes)
        if not self._resync_due:
            self.resyncs += 1
            self.in_sync = True

    def _is_ours(self, message: RouteMessage) -> bool:
        return message.protocol == self._protocol

    async def _ask(self, family: int, table: int) -> None:
        watched = self._reconciler.watched()
        try:
            routes = await self._kernel.dump_routes(
                family,
                table=table,
                keep=lambda m: m.table == table and (m.family, m.dst, m.prefix_len) in watched,
            )
        except KernelError as error:
            log.warning("dump of routes failed", extra={"fields": {"error": error}})
            self._reconciler.holders(family, table, None, self._loop.time())
        else:
            self._reconciler.holders(family, table, routes, self._loop.time())

    async def _reopen(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._failures += 1
            log.error("opening the route socket failed", extra={"fields": {"error": error}})
            await asyncio.sleep(self._backoff.delay_s(self._failures, random.random()))
            self._look.set()
        else:
            self.resync()
