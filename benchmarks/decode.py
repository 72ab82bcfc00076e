"""Nanoseconds per message, without a kernel: the recorded datagrams, and tables of 10 to 100,000.

    python benchmarks/decode.py [--json]

The datagrams of tests/captures are decoded (`wire.decode`, one object a message) and observed
(`LinkTable.observe`, an object only for what is told); each pass is timed, the quickest counts.
Then a table of N links hears of links in random order: nothing new, and up or down each time. What
it costs may not grow with N beyond what the processor's caches explain: a hash table that
degenerated would show as a factor of N. Wrong results: exit 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import rig

from netreeve._ext import wire
from netreeve._ext.index import LinkTable
from tests.support import captures, messages

SIZES = (10, 100, 1_000, 10_000, 100_000)
MESSAGES = 20_000
# A record of 100,000 links is out of every cache, one of 10 links in the nearest.
FLAT_RATIO = 20.0


def quickest_s(passes: int, prepare: Callable[[], Callable[[], object]]) -> float:
    """Seconds of the quickest of `passes` calls of what `prepare` returns."""
    best = float("inf")
    for _ in range(passes):
        run = prepare()
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
    return best


def measure_captures() -> dict[str, Any]:
    datagrams = [
        record.data
        for name in captures.NAMES
        for record in captures.load(name)
        if not record.truncated
    ]
    links = [
        record.data
        for name in captures.NAMES
        for record in captures.load(name)
        if not record.truncated and record.socket == "E" and is_link(record.data)
    ]

    def decode_all() -> None:
        for datagram in datagrams:
            wire.decode(datagram)

    def observe_all() -> None:
        table = LinkTable()
        for datagram in links:
            table.observe(datagram)
        table.take_told()

    decoded = [wire.decode(datagram) for datagram in datagrams]
    count = sum(len(each.messages) + each.ignored for each in decoded)
    if count < len(datagrams):
        raise rig.Failed(f"{count} messages in {len(datagrams)} datagrams")
    return {
        "decode": {
            "messages": count,
            "bytes": sum(map(len, datagrams)),
            "ns": quickest_s(7, lambda: decode_all) / count * 1e9,
        },
        "observe": {
            "messages": len(links),
            "bytes": sum(map(len, links)),
            "ns": quickest_s(7, lambda: observe_all) / len(links) * 1e9,
        },
    }


def is_link(datagram: bytes) -> bool:
    return len(datagram) >= 16 and int.from_bytes(datagram[4:6], sys.byteorder) in (16, 17)


def measure_table(size: int) -> dict[str, Any]:
    """One table of `size` links; nanoseconds per message that says nothing new, and per change."""
    chance = random.Random(size)
    table = LinkTable()
    for ifindex in range(1, size + 1):
        table.observe(messages.link(ifindex, f"cali{ifindex}", up=False))
    if len(table.take_told()) != size or len(table) != size:
        raise rig.Failed(f"a table of {size} links has {len(table)}")
    chosen = [chance.randrange(1, size + 1) for _ in range(MESSAGES)]
    down = {i: messages.link(i, f"cali{i}", up=False) for i in set(chosen)}
    up = {i: messages.link(i, f"cali{i}", up=True) for i in set(chosen)}
    same = [down[i] for i in chosen]

    state: set[int] = set()
    changes = []
    for ifindex in chosen:
        state ^= {ifindex}
        changes.append(up[ifindex] if ifindex in state else down[ifindex])
    back = [down[ifindex] for ifindex in state]

    def observe(datagrams: list[bytes]) -> Callable[[], object]:
        def run() -> None:
            for datagram in datagrams:
                table.observe(datagram)

        return run

    def prepare_changes() -> Callable[[], object]:
        for datagram in back:
            table.observe(datagram)
        table.take_told()
        return observe(changes)

    unchanged_s = quickest_s(5, lambda: observe(same))
    if table.take_told():
        raise rig.Failed("messages that say nothing new told something")
    changed_s = quickest_s(5, prepare_changes)
    told = len(table.take_told())
    if told != MESSAGES:
        raise rig.Failed(f"{MESSAGES} changes told {told} events")
    return {
        "links": size,
        "unchanged_ns": unchanged_s / MESSAGES * 1e9,
        "changed_ns": changed_s / MESSAGES * 1e9,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        found = measure_captures() | {"tables": [measure_table(size) for size in SIZES]}
        for key in ("unchanged_ns", "changed_ns"):
            costs = [each[key] for each in found["tables"]]
            if max(costs) > FLAT_RATIO * min(costs):
                raise rig.Failed(f"{key} is not flat: {costs}")
    except rig.Failed as failure:
        print(f"decode: {failure}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found | {"machine": rig.machine()}))
        return 0
    print(f"{rig.machine()}\n")
    for name in ("decode", "observe"):
        part = found[name]
        print(
            f"{name:<8} {part['ns']:7.0f} ns a message: {part['messages']} recorded messages,"
            f" {part['bytes'] / part['messages']:.0f} bytes on average"
        )
    print(f"\n{'links':>8} {'unchanged ns':>13} {'up or down ns':>14}")
    for each in found["tables"]:
        print(f"{each['links']:>8} {each['unchanged_ns']:>13.0f} {each['changed_ns']:>14.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
