"""The agent killed at any moment, with links of others standing by."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path

import pytest

from tests.support.foreign import LinkWatch, Topology, Untouched
from tests.support.netns import IpError, Namespace
from tests.support.own_links import (
    Document,
    LinkAgent,
    agent_of,
    document,
    tap,
    tokens,
    vpc,
    wait_equal,
    wrong,
)

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

KILLS_PER_WORLD = 10
CARRIER_S = 1.1
BASES = tuple("abcdefgh")


def random_plan(rng: random.Random) -> Document:
    """Some VPCs and taps; VNIs and ports go round among them, so that they are swapped."""
    bases = [base for base in BASES if rng.random() < 0.6] or ["a"]
    keys = [(vni, port) for vni in (1, 2, 3, 4) for port in (4789, 4790)]
    vpcs = []
    for base, (vni, port) in zip(bases, rng.sample(keys, len(bases)), strict=True):
        entry = vpc(base, vni, port=port, ttl=rng.choice((64, 9)))
        if rng.random() < 0.5:
            entry["mac"] = f"02:00:00:00:00:{rng.randint(1, 9):02x}"
        if rng.random() < 0.5:
            entry["mtu"] = rng.choice((1300, 1400))
        if rng.random() < 0.5:
            entry["addresses"] = [f"10.{rng.randint(1, 3)}.0.1/24"]
        vpcs.append(entry)
    taps = [
        tap(base, **({"controller": f"{rng.choice(bases)}-bri"} if rng.random() < 0.7 else {}))
        for base in BASES[:5]
        if rng.random() < 0.6
    ]
    # At least one link is wanted that nothing of others can keep away: no plan is empty.
    return document(*vpcs, *taps, vpc("safe", 4095, port=4999))


def dependants(wanted: Document, taken: set[str]) -> set[str]:
    """Links that can't be had, or can't be in what they should be in."""
    held = set(taken)
    held |= {f"{v['name']}-vtp" for v in wanted["vpcs"] if f"{v['name']}-bri" in taken}
    return held | {f"{t['name']}-tap" for t in wanted["taps"] if t.get("controller") in taken}


@pytest.mark.parametrize("seed", range(6))
def test_killed_in_the_middle(namespace: Namespace, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    everything = {f"{base}-{kind}" for base in BASES for kind in ("bri", "vtp", "tap")}
    world = Topology(rng, everything)
    world.build(namespace)
    # A stale link or two of ours, without a token: made by hand, or by a kill.
    namespace.ip_batch(
        "link add stale-bri type bridge\nlink add stale-vtp type vxlan id 9 dstport 4789\n"
    )
    ridden: set[str] = set()
    agent = agent_of(
        namespace,
        tmp_path,
        NETREEVE_BATCH_OPS=str(rng.choice((1, 2, 7, 128))),
        NETREEVE_DELETE_BRAKE="1",
        NETREEVE_RETRY_MIN_MS="5",
        NETREEVE_RETRY_MAX_MS="200",
    )
    foreign = [
        link["ifname"] for link in namespace.links()
        if not link["ifname"].startswith("stale-") and link["ifname"] != "lo"
    ]  # fmt: skip
    with Untouched(namespace, names=foreign) as others, agent:
        for kill in range(KILLS_PER_WORLD):
            wanted = random_plan(rng)
            agent.write_document("links.json", json.dumps(wanted))
            run_until_killed(agent, rng)
            others.check()
            if kill == KILLS_PER_WORLD // 2:
                ridden |= ride(namespace, world, rng)
        agent.start().wait_in_sync()
        without = dependants(wanted, world.taken)
        keep = ridden  # what carries others' links stays, planned or not
        wait_equal(namespace, wanted, 15.0, without=without, keep=keep)
        agent.wait_status("no errors", lambda s: s["objects"]["error"] == 0)
        # A second pass changes nothing. Carriers are told of a while later, by the kernel itself.
        with LinkWatch(namespace) as watch:
            while watch.wait(1, CARRIER_S):
                watch.take()
            agent.signal_reread()
            time.sleep(0.1)
            assert watch.take() == []
        assert wrong(namespace, wanted, without=without, keep=keep) == []
        agent.stop()


# What an admin does to a link of ours, while it is made.
MEDDLING = (
    "link del {name}",
    "link set {name} down",
    "link set {name} nomaster",
    "link set {name} mtu 1280",
    "link property del dev {name} altname {token}",
)


def run_until_killed(agent: LinkAgent, rng: random.Random) -> None:
    """Starts it, and kills it after a random number of events of links; an admin meddles."""
    with LinkWatch(agent.ns) as watch:
        agent.start()
        watch.wait(rng.randint(1, 30), 1.5)
        if rng.random() < 0.3:
            made = [link for link in agent.ns.links() if tokens(link)]
            if made:
                link = rng.choice(made)
                command = rng.choice(MEDDLING)
                with contextlib.suppress(IpError):  # it is gone
                    agent.ns.ip(command.format(name=link["ifname"], token=tokens(link)[0]))
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.003)
        agent.kill()


def ride(ns: Namespace, world: Topology, rng: random.Random) -> set[str]:
    """Others put things on a bridge of ours, if one is there."""
    bridges = [
        link["ifname"]
        for link in ns.links()
        if link.get("linkinfo", {}).get("info_kind") == "bridge"
        and link["ifname"] in {f"{base}-bri" for base in BASES}
    ]
    if not bridges:
        return set()
    bridge = rng.choice(bridges)
    world.ride(ns, bridge)
    return {bridge}
