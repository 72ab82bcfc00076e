"""The etcd sink and an etcd that does what it should."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from netreeve.model.ids import EndpointId
from netreeve.sinks import etcd as etcd_sink
from netreeve.status.transition import Transition
from tests.support.etcd import VERSIONS, Etcd, Recorder
from tests.support.etcd_writing import (
    assert_same,
    native_prefix,
    seen_all,
    writer_of,
    writing,
)
from tests.support.watch import until

WRITER = "/netreeve/writer/v1/native/n1"
ENDPOINTS = [f"k8s/default%2Fpod-{n}/eth0" for n in range(300)]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Etcd]]:
    with contextlib.ExitStack() as stack:
        yield {version: stack.enter_context(Etcd(version=version)) for version in VERSIONS}


@pytest.fixture(params=list(VERSIONS))
def each(request: pytest.FixtureRequest, servers: dict[str, Etcd]) -> Etcd:
    """Each version of etcd, empty."""
    servers[request.param].ctl("del", "", "--from-key")
    return servers[request.param]


@pytest.fixture
def etcd(servers: dict[str, Etcd]) -> Etcd:
    """One, empty, for what takes its time and depends on no version."""
    servers["3.5"].ctl("del", "", "--from-key")
    return servers["3.5"]


async def test_every_transition_once_and_in_order(each: Etcd) -> None:
    with Recorder(each.endpoint, native_prefix()) as recorder:
        async with writing(f"etcd://{each.endpoint}") as agent:
            agent.flap(ENDPOINTS, 3)
            agent.flap(ENDPOINTS[:1], 20)
            agent.record((ENDPOINTS[0], "removed"), (ENDPOINTS[0], "up"), (ENDPOINTS[1], "removed"))
            await seen_all(recorder, agent)
            revisions = {seen.revision for seen in recorder.seen}
            # 900 in transactions of at most 127, then one by one.
            assert len(revisions) <= 8 + 23
    found = writer_of(each.get(WRITER)[WRITER])
    assert (found["epoch"], found["seq"]) == (1, 923)
    stored = each.get(native_prefix())
    assert len(stored) == 299
    assert json.loads(stored[native_prefix() + f"endpoint/{ENDPOINTS[0]}"])["seq"] == 922


async def test_a_restart_goes_on_and_takes_the_next_epoch(each: Etcd, tmp_path: Path) -> None:
    url = f"etcd://{each.endpoint}"
    with Recorder(each.endpoint, native_prefix()) as recorder:
        recorded: list[Transition] = []
        for epoch in (1, 2, 3):
            async with writing(url, tmp_path, before=recorded) as agent:
                agent.flap(ENDPOINTS[:10])
                await seen_all(recorder, agent)
                recorded = agent.recorded
                assert writer_of(each.get(WRITER)[WRITER])["epoch"] == epoch


async def test_the_older_of_two_writers_stops_and_says_so(each: Etcd, tmp_path: Path) -> None:
    url = f"etcd://{each.endpoint}"
    async with writing(url, tmp_path / "a") as older:
        older.flap(ENDPOINTS[:5])
        await older.passed()
        async with writing(url, tmp_path / "b") as newer:
            newer.flap(ENDPOINTS[:5])
            await newer.passed()
            stored = each.get("/netreeve/v1/")
            older.flap(ENDPOINTS[:5])
            await until(lambda: older.runner.fenced, "the older one is fenced")
            assert "another agent writes as node 'n1'" in older.runner.status()["error"]
            assert each.get("/netreeve/v1/") == stored
            newer.flap(ENDPOINTS[:5])
            await newer.passed()
            assert not newer.runner.fenced
        assert older.runner.status()["lag"] == 5


async def test_an_idle_older_writer_notices_too(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_sink, "CHECK_S", 0.2)
    url = f"etcd://{etcd.endpoint}"
    async with writing(url) as older:
        older.flap(ENDPOINTS[:5])
        await older.passed()
        async with writing(url) as newer:
            newer.flap(ENDPOINTS[:5])
            await newer.passed()
            await until(lambda: older.runner.fenced, "the older one is fenced")


async def test_a_journal_that_was_lost_is_not_mistaken(etcd: Etcd, tmp_path: Path) -> None:
    """Its numbers begin with 1 again; what it records is new all the same."""
    url = f"etcd://{etcd.endpoint}"
    async with writing(url, tmp_path / "a") as agent:
        agent.record(("k8s/gone/eth0", "up"))
        agent.flap(ENDPOINTS[:10], 5)
        await agent.passed()
    with Recorder(etcd.endpoint, native_prefix()) as recorder:
        async with writing(url, tmp_path / "b") as agent:
            agent.flap(ENDPOINTS[:10], 2)
            await seen_all(recorder, agent)
            # Nothing is removed before it is known what there should be.
            assert native_prefix() + "endpoint/k8s/gone/eth0" in etcd.get(native_prefix())


async def test_repair_puts_right_what_differs_and_nothing_else(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(etcd_sink, "REPAIR_S", 0.2)
    monkeypatch.setattr(etcd_sink, "CHECK_S", 0.2)
    prefix = native_prefix() + "endpoint/"
    others = "/netreeve/v1/n11/endpoint/k8s/a/eth0", native_prefix() + "round-trip-check"
    async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
        agent.flap(ENDPOINTS)
        await agent.passed()
        right = etcd.get(prefix)
        with Recorder(etcd.endpoint, "/netreeve/v1/") as recorder:
            for key in others:
                etcd.ctl("put", key, "x")
            etcd.ctl("put", prefix + "k8s/stale/eth0", "{}")
            etcd.ctl("put", prefix + ENDPOINTS[0], "nonsense")
            etcd.ctl("del", prefix + ENDPOINTS[1])
            await until(lambda: len(recorder.seen) >= 7, "repaired")
            await asyncio.sleep(1.5)
            # Until a plan is known, nobody can say of the stale one that it is gone.
            assert [each.key for each in recorder.seen[5:]] == [
                prefix + ENDPOINTS[0], prefix + ENDPOINTS[1],
            ]  # fmt: skip
            agent.known = {EndpointId.parse(endpoint) for endpoint in ENDPOINTS}
            await until(lambda: len(recorder.seen) >= 8, "the stale one is removed")
            assert recorder.seen[7][1:] == (prefix + "k8s/stale/eth0", None)
            await asyncio.sleep(1.2)
            assert len(recorder.seen) == 8
        assert etcd.get(prefix) == right
        for key in others:
            assert etcd.get(key)


async def test_a_wiped_store_is_filled_again(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(etcd_sink, "CHECK_S", 0.2)
    async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
        agent.flap(ENDPOINTS)
        await agent.passed()
        right = etcd.get(native_prefix())
        etcd.ctl("del", "", "--from-key")
        await until(lambda: etcd.get(native_prefix()) == right, "all is back", interval_s=0.2)
        with Recorder(etcd.endpoint, native_prefix()) as recorder:
            agent.flap(ENDPOINTS[:3])
            await agent.passed()
            await until(lambda: len(recorder.seen) == 3, "it goes on")
        assert_same(recorder.seen, agent.recorded[-3:])


async def test_liveness_has_a_lease_that_lasts_while_the_agent_progresses(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_sink, "REPORT_S", 0.7)
    host = "/calico/felix/v2/no-region/host/n1/"
    with Recorder(etcd.endpoint, host) as recorder:
        async with writing(f"etcd://{etcd.endpoint}?layout=calico") as agent:
            await until(lambda: len(recorder.values(host + "status")) >= 3, "reports")
            reports = [json.loads(each or "") for each in recorder.values(host + "status")]
            assert [each["first_update"] for each in reports[:3]] == [True, False, False]
            assert reports[0].keys() == {"time", "uptime", "first_update"}
            assert 0 <= reports[0]["uptime"] < reports[1]["uptime"]
            agent.progresses = False
            await until(lambda: recorder.values(host + "status")[-1] is None, "expired", 15)
            agent.progresses = True
            await until(lambda: recorder.values(host + "status")[-1] is not None, "alive again")
    last = recorder.values(host + "last_reported_status")
    assert None not in last
    assert len(last) >= 4
