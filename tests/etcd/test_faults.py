"""The etcd sink and an etcd that dies, stands still, loses its leader, its disk or its answers.

In each, a watcher must have seen exactly what was recorded.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from netreeve.io.etcd import client
from netreeve.io.etcd.access import Access, Login
from netreeve.model.backoff import Backoff
from netreeve.sinks import etcd as etcd_sink
from tests.support.etcd import VERSIONS, Cluster, Etcd, Proxy, Recorder
from tests.support.etcd_writing import Writing, native_prefix, seen_all, writing
from tests.support.watch import until

ENDPOINTS = [f"k8s/default%2Fpod-{n}/eth0" for n in range(40)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CALL_S", 1.0)
    monkeypatch.setattr(client, "CONNECT_S", 0.5)


@asynccontextmanager
async def flapping(agent: Writing) -> AsyncIterator[None]:
    """Endpoints flap all the time: many together, and one by itself."""

    async def churn() -> None:
        number = 0
        while True:
            agent.flap(ENDPOINTS[number % 7 :: 3])
            agent.flap(ENDPOINTS[:1], 3)
            number += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(churn())
    try:
        yield
    finally:
        task.cancel()


async def test_etcd_is_killed(tmp_path: Path) -> None:
    with Etcd() as etcd, Recorder(etcd.endpoint, native_prefix()) as recorder:
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            async with flapping(agent):
                for _ in range(4):
                    await asyncio.sleep(0.3)
                    etcd.kill()
                    await agent.failing()
                    etcd.start()
                    await until(lambda: agent.runner.status()["error"] is None, "it goes on", 20)
            await seen_all(recorder, agent)


@pytest.mark.parametrize("version", list(VERSIONS))
async def test_etcd_stands_still_for_longer_than_a_call_lasts(tmp_path: Path, version: str) -> None:
    with Etcd(version=version) as etcd, Recorder(etcd.endpoint, native_prefix()) as recorder:
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            async with flapping(agent):
                for _ in range(2):
                    await asyncio.sleep(0.2)
                    etcd.signal(signal.SIGSTOP)
                    await agent.failing()
                    await asyncio.sleep(0.3)
                    etcd.signal(signal.SIGCONT)
                    await until(lambda: agent.runner.status()["error"] is None, "it goes on", 20)
            await seen_all(recorder, agent)


async def test_the_leader_is_killed(tmp_path: Path) -> None:
    with Cluster() as cluster, Recorder(cluster.endpoints, native_prefix()) as recorder:
        async with writing(f"etcd://{cluster.endpoints}", tmp_path) as agent:
            async with flapping(agent):
                for _ in range(3):
                    await asyncio.sleep(0.3)
                    leader = await asyncio.to_thread(cluster.leader)
                    leader.kill()
                    seq = agent.journal.next_seq
                    await until(lambda s=seq: agent.runner.status()["seq"] > s, "failover", 20)  # type: ignore[misc]
                    leader.start()
                    await asyncio.to_thread(leader.wait_healthy)
            await seen_all(recorder, agent)


async def test_connections_are_cut_between_request_and_answer(tmp_path: Path) -> None:
    """What was sent has taken effect or not, and nobody said which."""
    in_doubt = 0
    with (
        Etcd() as etcd,
        Proxy(etcd.endpoint) as proxy,
        Recorder(etcd.endpoint, native_prefix()) as recorder,
    ):
        async with writing(f"etcd://{proxy.endpoint}", tmp_path) as agent:
            async with flapping(agent):
                for number in range(20):
                    await asyncio.sleep(0.05)
                    proxy.swallow_answers()
                    before = len(recorder.seen)
                    await asyncio.sleep(0.02 * (number % 4))
                    in_doubt += len(recorder.seen) > before
                    proxy.cut()
            await seen_all(recorder, agent)
    assert in_doubt > 5


async def test_an_answer_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    with (
        Etcd() as etcd,
        Proxy(etcd.endpoint) as proxy,
        Recorder(etcd.endpoint, native_prefix()) as recorder,
    ):
        async with writing(f"etcd://{proxy.endpoint}", tmp_path) as agent:
            agent.flap(ENDPOINTS)
            await agent.passed()
            proxy.swallow_answers()
            agent.flap(ENDPOINTS)
            assert "deadline" in (await agent.failing()).lower()
            proxy.cut()
            await seen_all(recorder, agent)


async def test_compaction_and_defragmentation(tmp_path: Path) -> None:
    with Etcd() as etcd, Recorder(etcd.endpoint, native_prefix()) as recorder:
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            async with flapping(agent):
                for _ in range(3):
                    await asyncio.sleep(0.2)
                    await agent.passed()
                    await until(lambda: len(recorder.seen) >= len(agent.recorded) - 100, "seen")
                    await asyncio.to_thread(etcd.compact)
                    await asyncio.to_thread(etcd.ctl, "defrag")
            await seen_all(recorder, agent)


async def test_no_space_and_room_again(tmp_path: Path) -> None:
    with (
        Etcd(f"--quota-backend-bytes={4 << 20}") as etcd,
        Recorder(etcd.endpoint, native_prefix()) as recorder,
    ):
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            agent.flap(ENDPOINTS)
            await agent.passed()
            with pytest.raises(Exception, match="returned non-zero"):  # noqa: PT012
                for number in range(100):
                    etcd.ctl("put", f"/ballast/{number}", stdin="x" * 400_000)
            agent.flap(ENDPOINTS, 3)
            assert "database space exceeded" in await agent.failing()
            etcd.ctl("del", "--prefix", "/ballast/")
            etcd.compact()
            etcd.ctl("defrag")
            etcd.ctl("alarm", "disarm")
            await seen_all(recorder, agent)


async def test_an_etcd_that_is_away_costs_nothing(tmp_path: Path) -> None:
    with Etcd() as etcd:
        patient = Backoff(100, 30_000)
        async with writing(f"etcd://{etcd.endpoint}", tmp_path, backoff=patient) as agent:
            agent.flap(ENDPOINTS)
            await agent.passed()
            etcd.kill()
            agent.flap(ENDPOINTS, 50)
            await agent.failing()
            started, cpu = time.monotonic(), time.process_time()
            await asyncio.sleep(4)
            # The first seconds are the dearest: the waits have only begun to grow.
            assert time.process_time() - cpu < 0.02 * (time.monotonic() - started)
            etcd.start()
            agent.runner.reopen()
            await agent.passed(60)


async def test_fewer_operations_than_usual(tmp_path: Path) -> None:
    with Etcd("--max-txn-ops=20") as etcd, Recorder(etcd.endpoint, native_prefix()) as recorder:
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            agent.flap(ENDPOINTS, 5)
            await seen_all(recorder, agent)
            assert agent.runner.status()["error"] is None


async def test_one_key_that_is_too_large_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_sink, "REPAIR_S", 0.3)
    large = "k8s/" + "x" * 900 + "/eth0"
    with (
        Etcd("--max-request-bytes=2000") as etcd,
        Recorder(etcd.endpoint, native_prefix()) as recorder,
    ):
        async with writing(f"etcd://{etcd.endpoint}", tmp_path) as agent:
            agent.flap([*ENDPOINTS[:20], large, *ENDPOINTS[20:]], 4)
            await agent.passed()
            await until(lambda: agent.runner.status()["error"], "it is said")
            assert agent.runner.status()["error"].startswith("set aside, because etcd refuses it")
            agent.recorded = [each for each in agent.recorded if each.endpoint != large]
            await seen_all(recorder, agent)


async def test_one_key_without_permission_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once it has permission, its present status is written."""
    monkeypatch.setattr(etcd_sink, "REPAIR_S", 0.3)
    monkeypatch.setattr(etcd_sink, "CHECK_S", 0.3)
    denied = "k8s/zz/eth0"
    prefix = native_prefix() + "endpoint/"
    with Etcd("--auth-token-ttl=1") as etcd:
        password = tmp_path / "password"
        password.write_text("secret\n")
        etcd.ctl("user", "add", "root:root")
        etcd.ctl("user", "add", "agent:secret")
        etcd.ctl("role", "add", "status")
        etcd.ctl("user", "grant-role", "agent", "status")
        for first, end in (
            ("/netreeve/writer/", "/netreeve/writer0"),
            (prefix, prefix + "k8s/zz"),
            (prefix + "k8s/zz/eth0/", native_prefix() + "endpoint0"),
        ):
            etcd.ctl("role", "grant-permission", "status", "readwrite", first, end)
        etcd.ctl(
            "role", "grant-permission", "status", "read", prefix, native_prefix() + "endpoint0"
        )
        etcd.ctl("auth", "enable")
        root = "--user=root:root"
        access = Access(Login("agent", str(password)))
        async with writing(f"etcd://{etcd.endpoint}", tmp_path / "s", access=access) as agent:
            agent.flap([*ENDPOINTS[:20], denied, *ENDPOINTS[20:]], 3)
            await agent.passed()
            await until(lambda: agent.runner.status()["error"], "it is said")
            assert "permission denied" in agent.runner.status()["error"]
            found = etcd.ctl(root, "get", "--prefix", "--keys-only", prefix).split()
            assert len(found) == len(ENDPOINTS)
            # Long enough for the token to be forgotten.
            await asyncio.sleep(2.5)
            agent.flap(ENDPOINTS[:2])
            await agent.passed()
            etcd.ctl(root, "role", "grant-permission", "status", "readwrite", prefix + denied)
            await until(lambda: agent.runner.status()["error"] is None, "it is mended")
            value = etcd.ctl(root, "get", "--print-value-only", prefix + denied)
            assert json.loads(value)["status"] == "up"
