"""Status in etcd, each transition exactly once and in order: `etcd://HOST:PORT,...?layout=...`.

All of it hangs on one key. The writer key holds who writes (`id`, `epoch`) and what is written
(`seq`, `observed` of the last transition). A transaction compares it with what was there before,
writes the statuses, and puts the next value; so it takes effect once or not at all, whoever repeats
it. One transaction is in flight at a time.

    open:    read the writer key; put it back with the next epoch and an `id` of this process
    deliver: if the writer key is as we left it: statuses, writer key with the new `seq`
    doubt:   no answer, or the key is another: `open` again. Its `seq` says what got through, and
             with the new epoch nothing of before, that may still be on its way, can take effect
    fenced:  at `open`, the key has an `id` of another and an epoch that isn't below ours

What etcd refuses for good is narrowed down by halves to the one key. That is set aside: its
transitions are passed over, and repair tries it again.

Repair compares all keys of the node with the last transitions delivered, after each `open` and
every few minutes. It writes only what differs, under the same guard.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import orjson

from netreeve.errors import SinkError, SinkFenced
from netreeve.io.etcd.access import endpoints
from netreeve.io.etcd.errors import EtcdError, EtcdRefused, EtcdTooManyOps
from netreeve.io.etcd.write import Write
from netreeve.model.quote import quoted
from netreeve.sinks.etcd_layouts import Calico, Layout, Native
from netreeve.sinks.sink import Mark, Node, Sink
from netreeve.status.transition import Transition

if TYPE_CHECKING:
    from netreeve.io.etcd.client import EtcdClient

__all__ = ["EtcdSink", "Writer", "parse"]

log = logging.getLogger(__name__)

REPAIR_S = 300.0
CHECK_S = 10.0
"""Between looks at the writer key while there is nothing to write: is etcd there, are we fenced?"""
REPORT_S = 30.0
"""Between reports of liveness; the lease lasts three times as long."""

_MAX_WRITES = 127  # and the writer key: etcd's default of --max-txn-ops is 128
_TAKE_ATTEMPTS = 5
_MAX_BLIND = 8
_NAME = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"


def parse(url: str) -> Sink:
    """The sink that `url` names, unopened; ValueError says what is wrong with it.

    `?layout=native` (the default) or `?layout=calico`, the latter with `&region=NAME` where
    OpenStack has regions.
    """
    members, _, query = url.removeprefix("etcd:").partition("?")
    if not members.startswith("//"):
        raise ValueError(f"{quoted(url)}: `//HOST:PORT` must follow `etcd:`")
    try:
        found = endpoints(members[2:])
    except ValueError as error:
        raise ValueError(f"{quoted(url)}: {error}") from None
    given = parse_qsl(query, keep_blank_values=True)
    options = dict(given)
    unknown = options.keys() - {"layout", "region"}
    if unknown or len(options) < len(given):
        name = min(unknown) if unknown else "twice"
        raise ValueError(f"{quoted(url)}: no parameter {quoted(name)}: layout, region, each once")
    layout, region = options.get("layout", "native"), options.get("region")
    if layout not in ("native", "calico"):
        raise ValueError(f"{quoted(url)}: layout is native or calico")
    if region is not None and (layout != "calico" or not region or set(region) - {*_NAME}):
        raise ValueError(
            f"{quoted(url)}: region is a name of the characters A-Z a-z 0-9 . _ -, with calico only"
        )
    if layout == "native":
        return EtcdSink(url, found, Native)
    return EtcdSink(url, found, lambda node: Calico(node, region))


@dataclass(frozen=True, slots=True)
class Writer:
    """The value of the writer key. `seq` 0 means that nothing was written yet."""

    epoch: int
    seq: int
    observed: str
    id: str

    def encode(self) -> bytes:
        return b'{"epoch":%d,"seq":%d,"observed":%s,"id":%s}' % (
            self.epoch, self.seq, orjson.dumps(self.observed), orjson.dumps(self.id),
        )  # fmt: skip

    @classmethod
    def decode(cls, value: bytes) -> Writer:
        """ValueError where it is none."""
        found = orjson.loads(value)
        match found:
            case {"epoch": int(epoch), "seq": int(seq), "observed": str(observed), "id": str(id_)}:
                return cls(epoch, seq, observed, id_)
        raise ValueError("it is no JSON object with epoch, seq, observed and id")


@asynccontextmanager
async def _explained() -> AsyncIterator[None]:
    """An error of etcd's is the sink's."""
    try:
        yield
    except EtcdError as error:
        raise SinkError(str(error)) from error


class EtcdSink(Sink):
    """See the head of this file."""

    def __init__(self, url: str, members: Sequence[str], layout: Callable[[str], Layout]) -> None:
        self.url = url
        self._members = members
        self._make_layout = layout
        self._id = secrets.token_hex(8)
        self._epoch = 0
        self._writer = Writer(0, 0, "", "")
        self._holds = b""
        # The last transaction of `deliver`: what the writer key says if it got through.
        self._in_flight: tuple[Writer, Sequence[Transition]] = (self._writer, ())
        # The last transition delivered of each endpoint that is there; None before the first call
        # that says what is delivered.
        self._present: dict[str, Transition] | None = None
        self._aside: dict[str, str] = {}
        self._has_accepted = False
        self._most = self._limit = _MAX_WRITES
        self._repair_at = self._check_at = self._report_at = 0.0
        self._lease = 0
        self._first_update = True
        self._stalled = False
        self._report_error: str | None = None

    def attach(self, node: Node) -> None:
        from netreeve.io.etcd.client import EtcdClient  # with grpcio

        self._node = node
        self._layout = self._make_layout(node.name)
        self._writer_key = self._layout.writer_key
        self._client: EtcdClient = EtcdClient(self._members, node.access)
        self._started = time.monotonic()

    async def open(self) -> Mark | None:
        async with _explained():
            await self._client.connect()
            await self._take()
        # `replace`: the take itself may have been in doubt, and been repeated.
        sent, batch = self._in_flight
        if batch and self._writer == replace(sent, epoch=self._epoch):
            self._delivered(batch)
        self._in_flight = (self._writer, ())
        self._repair_at = 0.0
        return Mark(self._writer.seq, self._writer.observed) if self._writer.seq else None

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        import asyncio  # 35 ms that commands which only read the setting need not pay

        self._begin(transitions[0].seq - 1)
        done = 0
        async with _explained():
            batch, writes = self._batch(transitions, 0)
            while done < len(transitions):
                sending = asyncio.create_task(self._send(batch, writes))
                # Two turns of the loop, and it is on its way; the next one is made meanwhile.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                following = self._batch(transitions, done + len(batch))
                if await sending:
                    done += len(batch)
                    batch, writes = following
                else:
                    batch, writes = self._batch(transitions, done)
        self._check_at = time.monotonic() + CHECK_S

    async def tend(self, seq: int) -> str | None:
        self._begin(seq)
        if not self._client.is_connected:
            raise SinkError("the connection to etcd broke")
        now = time.monotonic()
        async with _explained():
            if now >= self._check_at:
                if await self._client.get(self._writer_key) != self._holds:
                    raise _overtaken()
                self._check_at = now + CHECK_S
            if now >= self._repair_at:
                complete = await self._repair(seq)
                # Incomplete where nobody can say yet what is gone.
                wait_s = REPAIR_S * random.uniform(0.9, 1.1) if complete else CHECK_S
                self._repair_at = time.monotonic() + wait_s
            await self._report(now)
        return self._wrong()

    async def close(self) -> None:
        await self._client.close()

    # -- the writer key

    async def _take(self) -> None:
        """Become the writer, with the next epoch."""
        for _ in range(_TAKE_ATTEMPTS):
            before = await self._client.get(self._writer_key)
            found = self._held(before)
            if self._epoch and found.id != self._id and found.epoch >= self._epoch:
                raise SinkFenced(
                    f"another agent writes as node {self._node.name!r} (epoch {found.epoch}, ours"
                    f" was {self._epoch}); stop one of the two, or give it its own"
                    " NETREEVE_NODE_NAME, and restart this one if it is the right one"
                )
            # An older value, or none: etcd was wiped, or restored from a backup. Go on, and repair.
            writer = replace(found, epoch=max(found.epoch, self._epoch) + 1, id=self._id)
            holds = writer.encode()
            if await self._client.write_if(
                self._writer_key, before, [Write(self._writer_key, holds)]
            ):
                self._epoch, self._writer, self._holds = writer.epoch, writer, holds
                return
        raise SinkError("the writer key changes again and again: two agents start at once?")

    def _held(self, value: bytes | None) -> Writer:
        if value is None:
            return Writer(0, 0, "", "")
        try:
            return Writer.decode(value)
        except ValueError as error:
            key = self._writer_key.decode()
            raise SinkError(f"{key} holds what is no writer's ({error}); delete it") from error

    # -- transitions

    def _begin(self, seq: int) -> None:
        if self._present is None:
            self._present = {
                each.endpoint: each for each in self._node.present.values() if each.seq <= seq
            }

    async def _send(self, batch: Sequence[Transition], writes: Sequence[Write]) -> bool:
        """One transaction; False where another one has to be made of these transitions."""
        writer = Writer(self._epoch, batch[-1].seq, batch[-1].observed, self._id)
        holds = writer.encode()
        self._in_flight = writer, batch
        try:
            if not await self._write(writes, Write(self._writer_key, holds)):
                return False
        except EtcdRefused as error:
            if not writes:
                raise
            (refused,) = (each for each in batch if self._is_shown(each))
            self._set_aside(refused.endpoint, error)
            return False
        self._writer, self._holds = writer, holds
        self._has_accepted = self._has_accepted or bool(writes)
        self._delivered(batch)
        return True

    def _batch(
        self, transitions: Sequence[Transition], start: int
    ) -> tuple[Sequence[Transition], list[Write]]:
        """As many successive transitions as one transaction takes, and what is written for them."""
        layout, limit = self._layout, self._limit
        seen: set[str] = set()
        writes: list[Write] = []
        end = start
        for end in range(start, len(transitions)):
            each = transitions[end]
            if not self._is_shown(each):
                continue
            # etcd refuses one key twice in a transaction.
            if len(writes) == limit or each.endpoint in seen:
                break
            seen.add(each.endpoint)
            value = None if each.status == "removed" else layout.value(each)
            writes.append(Write(layout.key(each.endpoint), value))
        else:
            end = len(transitions)
        return transitions[start:end], writes

    def _is_shown(self, each: Transition) -> bool:
        return each.endpoint not in self._aside and self._layout.records(each)

    def _delivered(self, batch: Sequence[Transition]) -> None:
        present = self._present
        assert present is not None
        for each in batch:
            if each.status == "removed":
                present.pop(each.endpoint, None)
                self._aside.pop(each.endpoint, None)
            elif each.status != "gap":
                present[each.endpoint] = each

    async def _write(self, writes: Sequence[Write], *more: Write) -> bool:
        """One transaction under our guard; False: it was too much, try fewer `writes`.

        Raises EtcdRefused where there were no fewer to try, SinkError where the guard doesn't hold.
        """
        try:
            done = await self._client.write_if(self._writer_key, self._holds, [*writes, *more])
        except EtcdRefused as error:
            if len(writes) <= 1:
                raise
            self._limit = len(writes) // 2
            if isinstance(error, EtcdTooManyOps):
                self._most = self._limit
            return False
        if not done:
            raise _overtaken()
        self._limit = min(self._most, self._limit * 2)
        return True

    def _set_aside(self, endpoint: str, error: EtcdRefused) -> None:
        self._aside[endpoint] = str(error)
        if not self._has_accepted and len(self._aside) > _MAX_BLIND:
            # It isn't one key: nothing of ours is let in. Then none shall be passed over.
            self._aside.clear()
            raise SinkError(f"etcd refuses every status: {error}") from error
        log.error(
            "etcd refuses an endpoint's status for good; it is set aside, the others go on",
            extra={"fields": {"sink": self.url, "endpoint": endpoint, "error": str(error)}},
        )

    def _wrong(self) -> str | None:
        if self._aside:
            endpoint, error = next(iter(self._aside.items()))
            more = f" and {len(self._aside) - 1} more" if len(self._aside) > 1 else ""
            return f"set aside, because etcd refuses it: {endpoint}{more}: {error}"
        return self._report_error

    # -- repair

    async def _repair(self, seq: int) -> bool:
        """Make the node's keys what was delivered; False where what is gone couldn't be judged."""
        assert self._present is not None
        layout = self._layout
        wanted = {layout.key(endpoint): each for endpoint, each in self._present.items()}
        known = self._node.known()
        # Until what was waiting at the start is delivered, a key may belong to an endpoint whose
        # removal is among that.
        complete = known is not None and seq >= self._node.last_seq
        kept = {layout.key(str(id_)) for id_ in known or ()}
        removals: list[Write] = []
        differing: list[Transition] = []
        async for page in self._client.pages(layout.prefix):
            for key, value in page:
                each = wanted.pop(key, None)
                if each is None:
                    if complete and key not in kept:
                        removals.append(Write(key, None))
                elif not layout.agrees(value, each):
                    differing.append(each)
        differing += wanted.values()
        differing.sort(key=lambda each: each.seq)
        apart = [each for each in differing if each.endpoint in self._aside]
        together = [each for each in differing if each.endpoint not in self._aside]
        if removals or together:
            log.warning(
                "etcd didn't hold what was written to it; it is put right",
                extra={"fields": {"put": len(together), "removed": len(removals)}},
            )
        await self._mend(removals)
        await self._mend([self._put(each) for each in together])
        for each in apart:
            try:
                await self._write([self._put(each)])
            except EtcdRefused as error:
                self._aside[each.endpoint] = str(error)
            else:
                del self._aside[each.endpoint]
        return complete

    async def _mend(self, writes: Sequence[Write]) -> None:
        done = 0
        while done < len(writes):
            some = writes[done : done + self._limit]
            try:
                if await self._write(some):
                    done += len(some)
            except EtcdRefused as error:
                log.error(
                    "etcd refuses a key that was to be put right",
                    extra={"fields": {"key": some[0].key.decode(), "error": str(error)}},
                )
                done += 1

    def _put(self, each: Transition) -> Write:
        return Write(self._layout.key(each.endpoint), self._layout.value(each))

    # -- liveness

    async def _report(self, now: float) -> None:
        """Say that the agent lives: only while its work gets on, or it would say too much."""
        keys = self._layout.liveness
        if keys is None or now < self._report_at:
            return
        if not self._node.progresses():
            if not self._stalled:
                log.error("the agent's work stands still; it doesn't report that it lives")
            self._stalled = True
            return
        self._stalled = False
        report = {
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "uptime": round(now - self._started, 3),
            "first_update": self._first_update,
        }
        value = orjson.dumps(report)
        try:
            if not self._lease or not await self._client.lease_renew(self._lease):
                self._lease = await self._client.lease_grant(int(3 * REPORT_S))
            await self._write([], Write(keys[0], value, self._lease), Write(keys[1], value))
        except EtcdRefused as error:
            self._report_error = f"etcd refuses to be told that the agent lives: {error}"
        else:
            self._report_error, self._first_update = None, False
        self._report_at = now + REPORT_S


def _overtaken() -> SinkError:
    return SinkError("the writer key is not as it was left")
