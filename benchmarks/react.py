"""How long from a link's rise to its route in the kernel, one flap at a time on an idle node.

    python benchmarks/react.py [--flaps 200] [--json]

An independent netlink socket hears the link's event and the route's. Time runs from the read of the
one to the read of the other. Three reactors take turns in one run: nothing but a loop in this
process that adds the route when it reads the event (the floor: two wake-ups and the kernel's work),
the agent with its default BATCH_DELAY_MS, and the agent with none. A route too few, too many, or on
another link: exit 1.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rig

from netreeve._ext import wire
from netreeve._ext.encode import Batch

# <linux/rtnetlink.h>, <linux/netlink.h>, <linux/if.h>, <asm/socket.h>
RTM_NEWLINK = 16
NLM_F_REQUEST = 1
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
SO_RCVBUFFORCE = 33
RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE = 1, 7
IFF_UP, IFF_RUNNING = 0x1, 0x40
UP = IFF_UP | IFF_RUNNING
OURS = 98
DST, PREFIX_LEN, TABLE, METRIC = socket.inet_aton("10.65.0.7"), 32, 254, 1024

ENDPOINT = {"id": "k8s/default%2Fweb-0/eth0", "interface": "cali7", "addresses": ["10.65.0.7"]}
PAUSE_S = 0.02
WAIT_S = 5


class Flapper:
    """One veth pair, flapped from here, and a socket that hears what becomes of it."""

    def __init__(self, namespace: rig.Namespace) -> None:
        namespace.ip_batch("link add cali7 type veth peer name eth0\nlink set eth0 up\n")
        self.ifindex = namespace.ifindex("cali7")
        arguments = (socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self.events = namespace.socket(*arguments)
        self.requests = namespace.socket(*arguments)
        self.events.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        for sock in (self.events, self.requests):
            sock.bind((0, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", WAIT_S, 0))
        for group in (RTNLGRP_LINK, RTNLGRP_IPV4_ROUTE):
            self.events.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)

    def close(self) -> None:
        self.events.close()
        self.requests.close()

    def set_up(self, up: bool) -> None:
        body = struct.pack("=BxHiII", 0, 0, self.ifindex, IFF_UP if up else 0, IFF_UP)
        header = struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, NLM_F_REQUEST, 0, 0)
        self.requests.send(header + body)

    def add_route(self) -> None:
        batch = Batch(1)
        batch.route_add(socket.AF_INET, DST, PREFIX_LEN, TABLE, 0, METRIC, OURS, self.ifindex)
        self.requests.send(batch.finish())
        self.requests.recv(65536)

    def read(self) -> tuple[int, list[Any]]:
        """When the next datagram was read (monotonic ns), and what was in it."""
        try:
            data = self.events.recv(65536)
        except BlockingIOError:
            raise rig.Failed(f"no event within {WAIT_S} s") from None
        return time.monotonic_ns(), wire.decode(data).messages

    def flap(self, *, react_here: bool) -> float:
        """Down, and up again; milliseconds from the link's event to the route's."""
        self.set_up(False)
        time.sleep(PAUSE_S)
        self.events.setblocking(False)
        try:
            while True:
                self.events.recv(65536)
        except BlockingIOError:
            self.events.setblocking(True)
        self.set_up(True)
        risen_ns = 0
        while True:
            read_ns, messages = self.read()
            for message in messages:
                match message:
                    case wire.LinkMessage():
                        is_up = message.flags & UP == UP
                        if not risen_ns and message.ifindex == self.ifindex and is_up:
                            risen_ns = read_ns
                            if react_here:
                                self.add_route()
                    case wire.RouteMessage() if message.protocol == OURS and not message.deleted:
                        if not risen_ns:
                            raise rig.Failed("the route was there before the link's event")
                        if (message.dst, message.oif) != (DST, self.ifindex):
                            raise rig.Failed(f"another route: {message!r}")
                        return (read_ns - risen_ns) / 1e6


def summary(latencies_ms: list[float]) -> dict[str, float]:
    return {
        "flaps": len(latencies_ms),
        "p50_ms": rig.percentile(latencies_ms, 0.5),
        "p99_ms": rig.percentile(latencies_ms, 0.99),
        "max_ms": max(latencies_ms),
    }


def measure_floor(flaps: int) -> dict[str, float]:
    with rig.Namespace() as namespace:
        flapper = Flapper(namespace)
        try:
            return summary([flapper.flap(react_here=True) for _ in range(flaps)])
        finally:
            flapper.close()


def measure_agent(folder: Path, flaps: int, **settings: object) -> dict[str, float]:
    with (
        rig.Namespace() as namespace,
        rig.Agent(namespace, folder, [ENDPOINT], **settings) as agent,
    ):
        flapper = Flapper(namespace)
        try:
            agent.wait_ready()
            flapper.flap(react_here=False)  # the first one finds everything cold
            first_seq = agent.journal().last_seq()
            cpu_s = agent.cpu_s()
            found = summary([flapper.flap(react_here=False) for _ in range(flaps)])
            found["cpu_us_per_flap"] = (agent.cpu_s() - cpu_s) / flaps * 1e6
            agent.wait_seq(first_seq + 2 * flaps)
        finally:
            flapper.close()
        time.sleep(PAUSE_S)
        last = [json.loads(record) for _, record in agent.journal().read(1, 1_000_000, None)]
        statuses = [record["status"] for record in last]
        if statuses != ["down", "up"] * (flaps + 1):
            raise rig.Failed(f"the journal has {len(statuses)} transitions that don't alternate")
        if [(r["dst"], r["dev"]) for r in namespace.routes()] != [("10.65.0.7", "cali7")]:
            raise rig.Failed(f"routes at the end: {namespace.routes()}")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flaps", type=int, default=200, help="how many, of each reactor")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="netreeve-bench-") as folder:
            found = {
                "floor": measure_floor(options.flaps),
                "agent": measure_agent(Path(folder, "default"), options.flaps),
                "agent, no delay": measure_agent(
                    Path(folder, "at-once"), options.flaps, batch_delay_ms=0
                ),
            }
    except rig.Failed as failure:
        print(f"react: {failure}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found | {"machine": rig.machine()}))
        return 0
    print(f"{options.flaps} flaps each; {rig.machine()}\n")
    floor = found["floor"]["p50_ms"]
    print(f"{'milliseconds':<16}     p50     p99     max  p50 / floor  CPU us")
    for name, figures in found.items():
        cpu = f"{figures['cpu_us_per_flap']:8.0f}" if "cpu_us_per_flap" in figures else ""
        print(
            f"{name:<16} {figures['p50_ms']:7.3f} {figures['p99_ms']:7.3f} "
            f"{figures['max_ms']:7.3f} {figures['p50_ms'] / floor:12.1f} {cpu}".rstrip()
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
