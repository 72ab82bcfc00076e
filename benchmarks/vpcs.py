"""VPCs from nothing, once more unchanged, and all removed: bridges and VTEPs on the real kernel.

    python benchmarks/vpcs.py [--vpcs 1000] [--tables] [--json]

In a private namespace `ip -batch` makes and deletes the same links, as a shell script would. Then
the agent does: it makes them by a plan, is started again on what it left, compares once more, and
removes them all by another plan. A link that isn't as planned, a change in a pass that has nothing
to do, or a link of somebody else's that was touched: exit 1. Figures are ratios to `ip -batch`.
With `--tables` each VPC has a VRF too, for which the kernel must have that kind; tests/uml runs it.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rig

from tests.support.foreign import LinkWatch, differences, snapshot

LOCAL = "192.0.2.1"
MTU = 1450
STRANGERS = ("link add cni0 type bridge", "link add flannel.1 type vxlan id 1 dstport 8472")


def name_of(number: int) -> str:
    return f"v{number:05d}"


def vpc_of(number: int, tables: bool) -> dict[str, Any]:
    return {
        **({"table": 100_001 + number} if tables else {}),
        "name": name_of(number),
        "vni": number + 1,
        "vtep": {"local": LOCAL, "port": 4789, "ttl": 64},
        "mac": f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}",
        "mtu": MTU,
        "addresses": [f"10.{number >> 8}.{number & 255}.1/24"],
    }


def kinds(tables: bool) -> tuple[str, ...]:
    """Suffixes of the links of one VPC, members first."""
    return ("vtp", "bri", "vrf") if tables else ("vtp", "bri")


def creates(count: int, tables: bool) -> list[str]:
    """Commands for `ip -batch`: all that the agent makes, alternative names included."""
    commands = []
    for number in range(count):
        name, vpc = name_of(number), vpc_of(number, tables)
        both = f"up mtu {MTU} address {vpc['mac']}"
        if tables:
            commands.append(f"link add {name}-vrf {both} type vrf table {vpc['table']}")
        commands += [
            f"link add {name}-bri {both} {f'master {name}-vrf' if tables else ''} type bridge",
            f"link add {name}-vtp {both} master {name}-bri type vxlan id {number + 1}"
            f" dstport 4789 local {LOCAL} ttl 64",
            f"addr add {vpc['addresses'][0]} dev {name}-bri",
        ]
        commands += [
            f"link property add dev {name}-{kind} altname netreeve.0123456789ab.{name}-{kind}"
            for kind in kinds(tables)
        ]
    return commands


def deletes(count: int, tables: bool) -> list[str]:
    return [
        f"link del {name_of(number)}-{kind}" for number in range(count) for kind in kinds(tables)
    ]


def batch_s(namespace: rig.Namespace, commands: list[str]) -> float:
    begun = time.monotonic()
    namespace.ip_batch(commands)
    return time.monotonic() - begun


class Vpcs(rig.Agent):
    """An agent whose plan is VPCs."""

    def __init__(self, namespace: rig.Namespace, folder: Path, tables: bool) -> None:
        self.tables = tables
        super().__init__(namespace, folder, [], allow_empty_plan="true", delete_brake=1)

    def plan(self, count: int) -> None:
        text = json.dumps({"vpcs": [vpc_of(number, self.tables) for number in range(count)]})
        beside = self.folder / "plan.new"
        beside.write_text(text, "ascii")
        beside.rename(self.folder / "plan.json")

    def wait_links(self, count: int) -> float:
        """Until all are as planned, none is left over, nothing is under way; the time then."""
        links = len(kinds(self.tables)) * count
        wanted = {"wanted": links, "in_sync": links, "pending": 0, "error": 0}

        def settled() -> bool:
            status = self.status()
            if status is None or not status["ready"] or status["links"]["owned"] != links:
                return False
            return bool(wanted.items() <= status["objects"].items())

        return rig.wait_until(settled, f"{links} links as planned")

    def requests(self) -> int:
        status = self.status()
        assert status is not None
        return int(status["requests"]["ops"])


def measure(count: int, tables: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"vpcs": count, "links": len(kinds(tables)) * count}
    with rig.Namespace() as bare:
        found["kernel_create_s"] = batch_s(bare, creates(count, tables))
        found["kernel_delete_s"] = batch_s(bare, deletes(count, tables))
    with tempfile.TemporaryDirectory(prefix="netreeve-bench-") as folder, rig.Namespace() as ns:
        ns.ip_batch(STRANGERS)
        before = snapshot(ns)
        agent = Vpcs(ns, Path(folder, "agent"), tables)
        with agent:
            agent.wait_ready()
            found |= measure_create(ns, agent, count)
        with agent:
            found |= measure_unchanged(ns, agent, count)
            found |= measure_delete(ns, agent)
        changed = differences(before, snapshot(ns))
        if changed:
            raise rig.Failed(f"links of others changed: {changed}")
        if agent.log():
            raise rig.Failed(f"it logged: {agent.log()[:500]}")
    for what in ("create", "delete"):
        found[f"{what}_ratio"] = found[f"{what}_s"] / found[f"kernel_{what}_s"]
    for what in ("restart", "unchanged"):
        found[f"{what}_ratio"] = found[f"{what}_s"] / found["kernel_create_s"]
    return found


def measure_create(ns: rig.Namespace, agent: Vpcs, count: int) -> dict[str, Any]:
    cpu_s, begun = agent.cpu_s(), time.monotonic()
    agent.plan(count)
    made = agent.wait_links(count)
    found = {
        "create_s": made - begun,
        "create_cpu_s": agent.cpu_s() - cpu_s,
        "create_ops": agent.requests(),
        "rss_bytes": agent.memory_bytes()[0],
    }
    check(ns, count, agent.tables)
    return found


def measure_unchanged(ns: rig.Namespace, agent: Vpcs, count: int) -> dict[str, Any]:
    """Started on what is there, then compared once more: neither may change anything."""
    with LinkWatch(ns) as watch:
        found: dict[str, Any] = {"restart_s": agent.wait_links(count) - agent.started}
        found["restart_cpu_s"] = agent.cpu_s()
        status = agent.status()
        assert status is not None
        cpu_s, ops, resyncs = agent.cpu_s(), agent.requests(), status["resyncs"]
        begun = time.monotonic()
        agent.process.send_signal(signal.SIGHUP)

        def compared() -> bool:
            status = agent.status()
            return status is not None and status["resyncs"] > resyncs and status["in_sync"]

        rig.wait_until(compared, "a full comparison")
        found["unchanged_s"] = agent.wait_links(count) - begun
        found["unchanged_cpu_s"] = agent.cpu_s() - cpu_s
        found["unchanged_ops"] = agent.requests() - ops
        # A bridge tells of its ports' states (family 7) some time after they were made.
        events = [event for event in watch.take() if event.family == socket.AF_UNSPEC]
        if events:
            raise rig.Failed(f"{len(events)} events where nothing was to do: {events[:3]}")
    return found


def measure_delete(ns: rig.Namespace, agent: Vpcs) -> dict[str, Any]:
    cpu_s, ops, begun = agent.cpu_s(), agent.requests(), time.monotonic()
    agent.plan(0)
    gone = agent.wait_links(0)
    found = {
        "delete_s": gone - begun,
        "delete_cpu_s": agent.cpu_s() - cpu_s,
        "delete_ops": agent.requests() - ops,
    }
    check(ns, 0, agent.tables)
    return found


def check(ns: rig.Namespace, count: int, tables: bool) -> None:
    """The links of the kernel are exactly those of N VPCs, each with its token."""
    shown = {link["ifname"]: link for link in json.loads(ns.ip("-d -j addr show"))}
    wrong = []
    for number in range(count):
        bridge, vtep = (shown.pop(f"{name_of(number)}-{kind}", {}) for kind in ("bri", "vtp"))
        vrf = shown.pop(f"{name_of(number)}-vrf", {})
        vpc = vpc_of(number, tables)
        data = vtep.get("linkinfo", {}).get("info_data", {})
        good = (
            data.get("id") == vpc["vni"]
            and data.get("port") == 4789
            and data.get("local") == LOCAL
            and data.get("ttl") == 64
            and vtep.get("master") == bridge.get("ifname")
            and bridge.get("master") == vrf.get("ifname")
            and vrf.get("linkinfo", {}).get("info_data", {}).get("table") == vpc.get("table")
            and f"{bridge.get('addr_info', [{}])[0].get('local')}/24" in vpc["addresses"]
            and all(
                link.get("mtu") == MTU
                and link.get("address") == vpc["mac"]
                and "UP" in link["flags"]
                and any(name.endswith(f".{link['ifname']}") for name in link.get("altnames", ()))
                for link in (bridge, vtep, vrf)[: len(kinds(tables))]
            )
        )
        if not good:
            wrong.append(name_of(number))
    left = [name for name in shown if name.endswith(("-bri", "-vtp", "-vrf"))]
    if wrong or left:
        raise rig.Failed(f"{len(wrong)} VPCs wrong: {wrong[:3]}; left over: {left[:3]}")


def show(found: dict[str, Any]) -> str:
    def row(what: str, ratio: str, remark: str) -> tuple[str, str, str]:
        return what, f"{found[ratio + '_ratio']:.2f}", remark

    def cost(what: str) -> str:
        return (
            f"{found[what + '_s']:.2f} s, CPU {found[what + '_cpu_s']:.2f} s,"
            + (f" {found[what + '_ops']} requests" if what + "_ops" in found else "")
        ).rstrip(",")

    return rig.table([
        ("ip -batch creates", "1.00", f"{found['kernel_create_s']:.2f} s"),
        row("from nothing", "create", f"{cost('create')}, {found['rss_bytes'] / 2**20:.1f} MiB"),
        row("started again", "restart", f"{cost('restart')}, nothing changed"),
        row("unchanged pass", "unchanged", f"{cost('unchanged')}, nothing changed"),
        ("ip -batch deletes", "1.00", f"{found['kernel_delete_s']:.2f} s"),
        row("all removed", "delete", cost("delete")),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vpcs", type=int, default=1000, help="how many (1 to 65536)")
    parser.add_argument("--tables", action="store_true", help="with a VRF each")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        found = measure(options.vpcs, options.tables)
    except rig.Failed as failure:
        print(f"vpcs: {failure}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found | {"machine": rig.machine()}))
    else:
        print(f"{options.vpcs} VPCs; {rig.machine()}\n\n{show(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
