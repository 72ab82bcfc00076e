"""An etcd sink at work in this process: a journal, a runner, and a list of what was recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from pathlib import Path

from netreeve.io.etcd.access import Access
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.model.ids import EndpointId
from netreeve.sinks import etcd as etcd_sink
from netreeve.sinks.runner import SinkRunner
from netreeve.sinks.sink import Node
from netreeve.status import transition
from netreeve.status.transition import Status, Transition
from tests.support.etcd import Recorder, Seen
from tests.support.watch import until

__all__ = ["Writing", "assert_same", "native_prefix", "writing"]

Records = Sequence[Transition]

QUICK = Backoff(10, 100)


class Writing:
    """`record` is the fold; `known` and `progresses` are what `Node` gives of them."""

    def __init__(
        self,
        url: str,
        path: Path | None,
        node: str,
        access: Access,
        before: Records,
        backoff: Backoff,
    ) -> None:
        self.sink = etcd_sink.parse(url)
        self.recorded = list(before)
        self.journal = Journal.open(
            path, sinks=[url], max_bytes=1 << 30, retention_s=86400, retry=Backoff(10, 20),
            where="here",
        )  # fmt: skip
        self.task: asyncio.Task[None]
        self.known: Collection[EndpointId] | None = None
        self.progresses = True
        self._present = {str(id_): each for id_, each in self.journal.present.items()}
        self.sink.attach(
            Node(
                node, self.journal.present, self.journal.next_seq - 1,
                lambda: self.known, lambda: self.progresses, access,
            )
        )  # fmt: skip
        self.runner = SinkRunner(self.sink, self.journal, backoff)

    def record(self, *steps: tuple[str, Status]) -> None:
        """(endpoint, status): record these transitions, in one go."""
        transitions = []
        for seq, (endpoint, status) in enumerate(steps, self.journal.next_seq):
            before = self._present.get(endpoint)
            each = Transition(
                seq, endpoint, None, status, before.status if before else None, None, "cali1", 12,
                False,
                f"2026-01-02T03:04:05.{seq % 1000:03d}Z",
            )  # fmt: skip
            transitions.append(each)
            if status == "removed":
                self._present.pop(endpoint, None)
            else:
                self._present[endpoint] = each
        self.recorded += transitions
        self.journal.append(transitions)

    def flap(self, endpoints: Iterable[str], times: int = 1) -> None:
        """Each of them the other way, so many times."""
        endpoints = list(endpoints)
        for _ in range(times):
            self.record(
                *((name, "down" if self._status(name) == "up" else "up") for name in endpoints)
            )

    def _status(self, endpoint: str) -> Status | None:
        last = self._present.get(endpoint)
        return last.status if last else None

    async def passed(self, timeout_s: float = 20.0) -> None:
        """Until all that was recorded is in etcd."""
        last = self.journal.next_seq - 1
        try:
            async with asyncio.timeout(timeout_s):
                passed = asyncio.create_task(self.runner.passed(last))
                try:
                    await asyncio.wait((passed, self.task), return_when=asyncio.FIRST_COMPLETED)
                    if self.task.done():
                        await self.task
                finally:
                    passed.cancel()
        except TimeoutError:
            raise AssertionError(f"not up to {last}: {self.runner.status()}") from None

    async def failing(self) -> str:
        """Until the sink has an error; its text."""
        return str(await until(lambda: self.runner.status()["error"], "the sink fails", 20))


@contextlib.asynccontextmanager
async def writing(
    url: str,
    path: Path | None = None,
    *,
    node: str = "n1",
    access: Access | None = None,
    before: Records = (),
    backoff: Backoff = QUICK,
) -> AsyncIterator[Writing]:
    """`before` is what a former one recorded to the same `path`."""
    made = Writing(url, path, node, access or Access(), before, backoff)
    task = made.task = asyncio.create_task(made.runner.run())
    try:
        yield made
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.journal.close()


def native_prefix(node: str = "n1") -> str:
    return f"/netreeve/v1/{node}/"


def assert_same(seen: Sequence[Seen], recorded: Records, node: str = "n1") -> None:
    """What was seen in the native layout is what was recorded: nothing lost, merged, repeated, or
    in another order."""
    shown = [
        (each.key, None if each.value is None else transition.decode(each.value.encode()))
        for each in seen
    ]
    prefix = native_prefix(node)
    expected = [
        (
            prefix + (f"endpoint/{each.endpoint}" if each.endpoint else "gap"),
            None if each.status == "removed" else each,
        )
        for each in recorded
    ]
    for number, (is_, should) in enumerate(zip(shown, expected, strict=False)):
        assert is_ == should, f"the {number}. of {len(expected)}"
    assert len(shown) == len(expected)


async def seen_all(recorder: Recorder, writing: Writing) -> None:
    """Until the recorder has as many as were recorded; then they must be the same."""
    await writing.passed()
    count = len(writing.recorded)
    await until(lambda: len(recorder.seen) >= count, f"{count} events", 10)
    assert_same(recorder.seen, writing.recorded)


def writer_of(value: str) -> dict[str, object]:
    found = json.loads(value)
    assert isinstance(found, dict)
    return found
