"""Several sources, one plan: the last good one stays in force."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from netreeve import sources
from netreeve.errors import Problem
from netreeve.model.ownership import Scheme
from netreeve.plan.document import Document
from netreeve.plan.model import Plan
from netreeve.sources import Plans, Snapshot, why_not_in_force
from netreeve.sources.source import Publish


class Told:
    """A Plans at work, and what it told."""

    def __init__(self, chosen: list[sources.Source], *, allow_empty: bool = False) -> None:
        self.plans: list[Plan] = []
        self.problems: list[tuple[Problem, ...]] = []
        self.subject = Plans(
            chosen, Scheme(), self.plans.append, self.problems.append, allow_empty=allow_empty
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    @property
    def words(self) -> list[str]:
        return [str(problem) for problem in self.subject.problems]


@asynccontextmanager
async def running(told: Told) -> AsyncIterator[None]:
    task = asyncio.create_task(told.subject.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Manual:
    """A source that publishes what the test says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rereads = 0
        self.publish: Publish = lambda snapshot: None

    async def run(self, publish: Publish) -> None:
        self.publish = publish
        await asyncio.Event().wait()

    def reread(self) -> None:
        self.rereads += 1


def document(name: str, *ids: str) -> Document:
    endpoints = [{"id": f"k8s/{i}/eth0", "interface": f"cali{i}"} for i in ids]
    return Document(name, json.dumps({"endpoints": endpoints}).encode())


def workloads(plan: Plan) -> list[str]:
    return [endpoint_id.workload for endpoint_id in plan.endpoints]


async def test_in_sync_only_when_every_source_has_delivered() -> None:
    one, two = Manual("x:1"), Manual("x:2")
    told = Told([one, two])
    async with running(told):
        await asyncio.sleep(0.02)
        one.publish(Snapshot((document("1.json", "a"),)))
        await asyncio.sleep(0.1)
        assert not told.plans
        assert not told.subject.in_sync
        assert [entry["in_sync"] for entry in told.subject.describe()] == [True, False]
        two.publish(Snapshot((document("2.json", "b"),)))
        await told.until(lambda: bool(told.plans))
        assert told.subject.in_sync
        assert workloads(told.plans[0]) == ["a", "b"]
        assert told.subject.plan is told.plans[0]
        told.subject.reread()
        assert (one.rereads, two.rereads) == (1, 1)


async def test_the_last_good_plan_stays_in_force() -> None:
    one, two = Manual("x:1"), Manual("x:2")
    told = Told([one, two])
    async with running(told):
        await asyncio.sleep(0.02)
        one.publish(Snapshot((document("1.json", "a"),)))
        two.publish(Snapshot((document("2.json", "b"),)))
        await told.until(lambda: bool(told.plans))
        one.publish(Snapshot((document("1.json", "b"),)))
        await told.until(lambda: bool(told.problems))
        assert [words.split(": ")[0] for words in told.words] == ["2.json:1:23", "2.json:1:50"]
        assert told.subject.describe()[1]["error"].startswith("2.json:1:23: the endpoint")
        one.publish(Snapshot((), (Problem("1.json", 0, 0, "gone"),)))
        await told.until(lambda: told.words == ["1.json: gone"])
        assert told.subject.describe()[0]["error"] == "1.json: gone"
        assert len(told.plans) == 1
        one.publish(Snapshot((document("1.json", "c"),)))
        await told.until(lambda: len(told.plans) == 2)
        await told.until(lambda: told.subject.problems == ())
        assert workloads(told.plans[1]) == ["c", "b"]


async def test_a_document_that_changes_nothing_makes_no_plan() -> None:
    one = Manual("x:1")
    told = Told([one])
    async with running(told):
        await asyncio.sleep(0.02)
        one.publish(Snapshot((document("1.json", "a"),)))
        await told.until(lambda: bool(told.plans))
        one.publish(Snapshot((document("renamed.json", "a"),)))
        await asyncio.sleep(0.1)
        assert len(told.plans) == 1
        assert told.subject.describe()[0]["documents"] == 1


async def test_an_empty_plan_needs_permission() -> None:
    one = Manual("x:1")
    told = Told([one])
    async with running(told):
        await asyncio.sleep(0.02)
        one.publish(Snapshot((document("1.json", "a"),)))
        await told.until(lambda: bool(told.plans))
        one.publish(Snapshot(()))
        await told.until(lambda: bool(told.problems))
        assert "NETREEVE_ALLOW_EMPTY_PLAN=true" in told.words[0]
        assert len(told.plans) == 1
    told = Told([one], allow_empty=True)
    async with running(told):
        await asyncio.sleep(0.02)
        one.publish(Snapshot(()))
        await told.until(lambda: bool(told.plans))
        assert told.plans[0].empty
        assert told.subject.problems == ()


def test_the_rule_of_the_empty_plan() -> None:
    assert why_not_in_force(Plan(), allow_empty=False)
    assert why_not_in_force(Plan(), allow_empty=True) is None


async def test_a_large_plan_does_not_hold_up_the_loop() -> None:
    one = Manual("x:1")
    told = Told([one])
    endpoints = [
        {
            "id": f"k8s/default%2Fweb-{i}/eth0",
            "interface": f"cali{i:08x}",
            "addresses": [f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}", f"fd00:65::{i:x}"],
            "uid": f"6f1c3a5e-0000-4000-8000-{i:012d}",
        }
        for i in range(1, 32_000)
    ]
    large = Document("1.json", json.dumps({"endpoints": endpoints}).encode())
    assert len(large.data) > 5_000_000
    worst_s = 0.0
    async with running(told):
        await asyncio.sleep(0.02)
        began = time.monotonic()
        one.publish(Snapshot((large,)))
        while not told.plans:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            worst_s = max(worst_s, time.monotonic() - before)
    took_s = time.monotonic() - began
    print(f"worst delay of the loop: {worst_s * 1000:.0f} ms, of {took_s * 1000:.0f} ms")
    # The target is 50 ms on an idle machine; a share of the whole holds on a busy one as well.
    assert worst_s < took_s / 4


async def test_a_real_directory_from_end_to_end(tmp_path: Path) -> None:
    told = Told(sources.parse(f"dir:{tmp_path}"))
    path = tmp_path / "a.yaml"
    path.write_text("endpoints: [{id: k8s/a/eth0, interface: calia}]")
    async with running(told):
        await told.until(lambda: bool(told.plans))
        path.write_text("endpoints: [{id: k8s/a/eth0, interface: cali")
        await told.until(lambda: bool(told.problems))
        assert told.words[0].startswith(f"{path}:1:45: ")
        path.unlink()
        await told.until(lambda: "the plan is empty" in told.words[0])
        assert len(told.plans) == 1
        path.write_text("endpoints: [{id: k8s/b/eth0, interface: calib}]")
        await told.until(lambda: len(told.plans) == 2)
        await told.until(lambda: told.problems[-1] == ())
