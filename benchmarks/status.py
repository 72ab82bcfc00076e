"""Transitions per second into etcd, end to end, and what etcd itself would have taken.

    python benchmarks/status.py [--json]

1,000 endpoints flap, and then one by itself: fold, journal (fsync), sink, etcd, and a watcher in a
process of its own, until that has seen the last one. The floor of the first is a bare loop of full
transactions (128 puts of the same values, one transaction in flight), of the second a bare loop of
transactions with two puts; both with the same watcher on the same etcd, and both run in turn with
ours: the median of the rounds counts. A watcher that saw something else than was recorded: exit 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import rig
import uvloop

from netreeve._ext.index import LinkChanged
from netreeve.io.etcd.access import Access
from netreeve.io.etcd.client import EtcdClient
from netreeve.io.etcd.write import Write
from netreeve.io.journal import Journal
from netreeve.model.backoff import Backoff
from netreeve.model.ids import EndpointId
from netreeve.plan.model import Endpoint
from netreeve.sinks import etcd as etcd_sink
from netreeve.sinks.runner import SinkRunner
from netreeve.sinks.sink import Node
from netreeve.status import transition
from netreeve.status.fold import StatusFold
from netreeve.status.transition import Transition
from tests.support.etcd import Etcd, Recorder

ROUNDS = 5
MANY, MANY_FLAPS = 1_000, 20
ALONE_FLAPS = 1_000
OBSERVED = "2026-01-02T03:04:05.678Z"
IN_QUEUE = 20_000
# A puts of 128, and the sink's 127 with the writer key.
FULL = 128


def endpoint(number: int) -> Endpoint:
    return Endpoint(
        EndpointId("k8s", f"default/pod-{number}", "eth0"), f"cali{number}", (), None, True, None
    )


class Watcher:
    """A process that watches a node's prefix until it has seen `count` events."""

    def __init__(self, etcd: Etcd, prefix: str, count: int) -> None:
        command = [sys.executable, __file__, "--watch", etcd.endpoint, prefix, str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        assert self._lines.readline() == "ready\n"

    async def seen(self) -> None:
        """Until all are there."""
        if await asyncio.to_thread(self._lines.readline) != "seen\n":
            raise rig.Failed("the watcher died")

    def values(self) -> list[str]:
        """What it saw, afterwards."""
        line = self._lines.readline()
        self._process.wait()
        self._lines.close()
        found: list[str] = json.loads(line)
        return found


def watch(endpoint: str, prefix: str, count: int) -> None:
    with Recorder(endpoint, prefix) as recorder:
        print("ready", flush=True)
        while len(recorder.seen) < count:
            time.sleep(0.001)
        print("seen", flush=True)
        print(json.dumps([each.value for each in recorder.seen]), flush=True)


async def ours(etcd: Etcd, node: str, endpoints: Sequence[Endpoint], flaps: int) -> float:
    """Seconds from the first event to the last one seen."""
    url = f"etcd://{etcd.endpoint}"
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.open(
            Path(directory), sinks=[url], max_bytes=1 << 30, retention_s=3600,
            retry=Backoff(100, 1000),
        )  # fmt: skip
        sink = etcd_sink.parse(url)
        sink.attach(Node(node, {}, 0, lambda: None, lambda: True))
        runner = SinkRunner(sink, journal, Backoff(100, 1000))
        task = asyncio.create_task(runner.run())
        fold = StatusFold({}, 1)
        recorded: list[Transition] = []

        def record(transitions: list[Transition]) -> None:
            recorded.extend(transitions)
            journal.append(transitions)

        for number, each in enumerate(endpoints, 1):
            record(fold.endpoint_set(each, (number, True), OBSERVED))
            record(fold.routes(each.id, "confirmed", None, OBSERVED))
        await runner.passed(journal.next_seq - 1)
        await asyncio.sleep(0.1)
        recorded.clear()
        watcher = Watcher(etcd, f"/netreeve/v1/{node}/", 2 * flaps * len(endpoints))

        began = time.perf_counter()
        for _ in range(flaps):
            for up in (False, True):
                for number, each in enumerate(endpoints, 1):
                    record(fold.link(LinkChanged(each.interface, number, up), OBSERVED))
                    if up:
                        record(fold.routes(each.id, "confirmed", None, OBSERVED))
                    if number % 32 == 0:
                        await asyncio.sleep(0)
                await journal.wait(journal.next_seq - IN_QUEUE)
                await asyncio.sleep(0)
        await watcher.seen()
        taken_s = time.perf_counter() - began
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await journal.close()
        values = watcher.values()
    if values != [transition.encode(each).decode() for each in recorded]:
        raise rig.Failed("the watcher saw something else than was recorded")
    return taken_s


async def bare(etcd: Etcd, node: str, names: int, puts: int, per_txn: int) -> float:
    """Seconds for `puts` puts by a bare loop, until the last one was seen."""
    record = Transition(
        123456, "k8s/default%2Fpod-123/eth0", None, "down", "up", "link-down", "cali123", 123,
        False, OBSERVED,
    )  # fmt: skip
    value = transition.encode(record)
    prefix = f"/netreeve/v1/{node}/"
    keys = [f"{prefix}endpoint/k8s/default%2Fpod-{n}/eth0".encode() for n in range(names)]
    guard = f"/bare/{node}".encode()
    client = EtcdClient([etcd.endpoint], Access())
    await client.connect()
    await client.write_if(guard, None, [Write(guard, b"x")])
    watcher = Watcher(etcd, prefix, puts)
    began = time.perf_counter()
    sent = 0
    while sent < puts:
        some = [keys[(sent + n) % names] for n in range(min(per_txn - 1, puts - sent))]
        writes = [*(Write(key, value) for key in some), Write(guard, b"x")]
        if not await client.write_if(guard, b"x", writes):
            raise rig.Failed("the bare loop was refused")
        sent += len(some)
    await watcher.seen()
    taken_s = time.perf_counter() - began
    watcher.values()
    await client.close()
    return taken_s


def measure(etcd: Etcd, name: str, endpoints: int, flaps: int, per_txn: int) -> dict[str, Any]:
    count = 2 * flaps * endpoints
    planned = [endpoint(number) for number in range(1, endpoints + 1)]
    turns: dict[str, Callable[[str], Coroutine[Any, Any, float]]] = {
        "ours": lambda node: ours(etcd, node, planned, flaps),
        "bare": lambda node: bare(etcd, node, endpoints, count, per_txn),
    }
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(ROUNDS):
        for who, turn in turns.items():
            rates[who].append(count / uvloop.run(turn(f"{name}-{who}-{number}")))
    mine, floor = median(rates["ours"]), median(rates["bare"])
    return {
        "transitions": count,
        "per_s": round(mine),
        "floor_per_s": round(floor),
        "ratio": round(mine / floor, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        watch(args.watch[0], args.watch[1], int(args.watch[2]))
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        Etcd("--quota-backend-bytes=8000000000", directory=directory) as etcd,
    ):
        results = {
            "many": measure(etcd, "many", MANY, MANY_FLAPS, FULL),
            "alone": measure(etcd, "alone", 1, ALONE_FLAPS, 2),
        }
    if args.json:
        print(json.dumps(results))
        return
    print(f"{rig.machine()}; etcd on the same disk as the journal\n")
    print("transitions a second    ours   floor  ratio")
    for name, what in (("many", f"{MANY} endpoints"), ("alone", "one endpoint")):
        row = results[name]
        print(f"{what:<20}{row['per_s']:>8}{row['floor_per_s']:>8}{row['ratio']:>7}")


if __name__ == "__main__":
    try:
        main()
    except rig.Failed as failed:
        sys.exit(f"status: {failed}")
