"""Endpoints from an empty node to all `up`: the whole agent, once, on the real kernel.

    python benchmarks/pods.py [--endpoints 2000] [--json]

In a private namespace the same `ip -batch` makes the links twice: once alone, with `ip -batch`
setting their routes afterwards (what the kernel and a shell script take), and once with the agent
looking on. Then the agent is started again on the node that it left. Wrong routes, a wrong status
or a transition too many: exit 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rig

FAMILIES = 2


def name_of(number: int) -> str:
    return f"cali{number:05d}"


def addresses_of(number: int) -> tuple[str, str]:
    return f"10.65.{number >> 8}.{number & 255}", f"fd00:65::{number + 1:x}"


def endpoint_of(number: int) -> dict[str, Any]:
    return {
        "id": f"k8s/default%2Fpod-{number}/eth0",
        "interface": name_of(number),
        "addresses": list(addresses_of(number)),
    }


def links(count: int) -> list[str]:
    """Commands for `ip -batch`: pod after pod, as a CNI plugin makes them."""
    commands = []
    for number in range(count):
        commands += [
            f"link add {name_of(number)} type veth peer name eth{number}",
            f"link set eth{number} up",
            f"link set {name_of(number)} up",
        ]
    return commands


def routes(count: int) -> list[str]:
    return [
        f"route add {address} dev {name_of(number)} proto 98 metric 1024"
        for number in range(count)
        for address in addresses_of(number)
    ]


def batch_s(namespace: rig.Namespace, commands: list[str]) -> float:
    begun = time.monotonic()
    namespace.ip_batch(commands)
    return time.monotonic() - begun


def measure(count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"endpoints": count, "routes": FAMILIES * count}
    with tempfile.TemporaryDirectory(prefix="netreeve-bench-") as folder:
        with (
            rig.Namespace() as namespace,
            rig.Agent(namespace, Path(folder, "one"), [endpoint_of(0)]) as agent,
        ):
            agent.wait_ready()
            found["small_rss_bytes"], _ = agent.memory_bytes()
        with rig.Namespace() as bare:
            found["kernel_links_s"] = batch_s(bare, links(count))
            found["kernel_routes_s"] = batch_s(bare, routes(count))
        with rig.Namespace() as namespace:
            agent = rig.Agent(namespace, Path(folder, "all"), map(endpoint_of, range(count)))
            with agent:
                found |= measure_empty_to_up(namespace, agent, count)
            with agent:
                found |= measure_restart(namespace, agent, count)
    found["kernel_s"] = found["kernel_links_s"] + found["kernel_routes_s"]
    found["ratio_to_kernel"] = found["first_link_to_all_up_s"] / found["kernel_s"]
    found["cpu_us_per_endpoint"] = found["cpu_s"] / count * 1e6
    grown = found["peak_rss_bytes"] - found["small_rss_bytes"]
    found["rss_bytes_per_endpoint"] = grown / count
    return found


def measure_empty_to_up(namespace: rig.Namespace, agent: rig.Agent, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"start_empty_s": agent.wait_ready()}
    agent.wait_seq(count)  # everyone is `down`: no link yet
    found["start_empty_cpu_s"] = agent.cpu_s()
    cpu_s, loop_cpu_s = agent.cpu_s(), agent.loop_cpu_s()
    begun = time.monotonic()
    namespace.ip_batch(links(count))
    made = time.monotonic()
    up = agent.wait_seq(2 * count)
    found["links_s"] = made - begun
    found["first_link_to_all_up_s"] = up - begun
    found["last_link_to_all_up_s"] = up - made
    rig.wait_until(lambda: _settled(agent), "the sink has everything")
    found["cpu_s"] = agent.cpu_s() - cpu_s
    found["loop_cpu_s"] = agent.loop_cpu_s() - loop_cpu_s
    found["rss_bytes"], found["peak_rss_bytes"] = agent.memory_bytes()
    status = agent.status()
    assert status is not None
    found["batches"] = status["requests"]["batches"]
    found["ops"] = status["requests"]["ops"]
    found["refused_ops"] = status["requests"]["refused"]
    found["overruns"] = status["overruns"]
    check(namespace, agent, count)
    if status["endpoints"] != {"total": count, "up": count, "down": 0, "error": 0}:
        raise rig.Failed(f"status says {status['endpoints']}")
    return found


def measure_restart(namespace: rig.Namespace, agent: rig.Agent, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"restart_s": agent.wait_ready()}
    found["restart_cpu_s"] = agent.cpu_s()
    time.sleep(0.2)
    status = agent.status()
    assert status is not None
    found["restart_ops"] = status["requests"]["ops"]
    check(namespace, agent, count)  # no transition came twice
    return found


def _settled(agent: rig.Agent) -> bool:
    status = agent.status()
    return (
        status is not None
        and status["routes"]["pending"] == 0
        and all(sink["lag"] == 0 for sink in status["sinks"])
    )


def check(namespace: rig.Namespace, agent: rig.Agent, count: int) -> None:
    """Routes of the kernel, the journal and the sink's file are exactly those of N rises."""
    wanted = {(a, name_of(n)) for n in range(count) for a in addresses_of(n)}
    found = [(route["dst"], route["dev"]) for route in namespace.routes()]
    if len(found) != len(wanted) or set(found) != wanted:
        raise rig.Failed(f"{len(found)} routes, {len(wanted ^ set(found))} of them wrong")
    records = [record for _, record in agent.journal().read(1, 1_000_000, None)]
    if records != (agent.folder / "status.jsonl").read_bytes().splitlines():
        raise rig.Failed("the sink's file is not the journal")
    histories: dict[str, list[str]] = collections.defaultdict(list)
    for number, record in enumerate(map(json.loads, records), 1):
        if record["seq"] != number:
            raise rig.Failed(f"seq {record['seq']} where {number} is next")
        histories[record["endpoint"]].append(record["status"])
    wrong = {key: value for key, value in histories.items() if value != ["down", "up"]}
    if wrong or len(histories) != count:
        raise rig.Failed(
            f"{len(histories)} endpoints, {len(wrong)} wrong: {list(wrong.items())[:3]}"
        )
    if agent.log():
        raise rig.Failed(f"it logged: {agent.log()[:500]}")


def show(found: dict[str, Any]) -> str:
    def seconds(key: str, remark: str = "") -> tuple[str, str, str]:
        return key.removesuffix("_s").replace("_", " "), f"{found[key]:.3f} s", remark

    def mebibytes(key: str, remark: str = "") -> tuple[str, str, str]:
        return key.removesuffix("_bytes").replace("_", " "), f"{found[key] / 2**20:.1f} MiB", remark

    count = found["endpoints"]
    return rig.table([
        seconds("kernel_links_s", f"`ip -batch`, {count} veth pairs, up, nobody looks on"),
        seconds("kernel_routes_s", f"`ip -batch`, {found['routes']} routes"),
        seconds("links_s", "the same links, the agent looks on"),
        seconds("first_link_to_all_up_s", f"{found['ratio_to_kernel']:.2f} of the kernel's two"),
        seconds("last_link_to_all_up_s", "what the agent was behind"),
        seconds("cpu_s", f"{found['cpu_us_per_endpoint']:.0f} us per endpoint"),
        seconds("loop_cpu_s", "of it the event loop's thread"),
        ("ops", f"{found['ops']}", f"{found['batches']} batches, {found['refused_ops']} refused"),
        mebibytes("rss_bytes"),
        mebibytes("peak_rss_bytes", f"{found['rss_bytes_per_endpoint'] / 1024:.1f} KiB each"),
        seconds("start_empty_s", f"no link there; CPU {found['start_empty_cpu_s']:.2f} s"),
        seconds("restart_s", f"all links there; CPU {found['restart_cpu_s']:.2f} s,"
                f" {found['restart_ops']} ops"),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--endpoints", type=int, default=2000, help="how many (1 to 65536)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        found = measure(options.endpoints)
    except rig.Failed as failure:
        print(f"pods: {failure}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found | {"machine": rig.machine()}))
    else:
        print(f"{options.endpoints} endpoints; {rig.machine()}\n\n{show(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
