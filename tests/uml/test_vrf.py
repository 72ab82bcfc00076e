"""VPCs with a routing domain of their own, which needs a kernel that has VRF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import AgentProcess, endpoint, veth
from tests.support.netns import Namespace

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]


def vpc(name: str, table: int, vni: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "table": table, "vni": vni, "vtep": {"local": "192.0.2.1"}, **more}


def links(ns: Namespace) -> dict[str, dict[str, Any]]:
    return {link["ifname"]: link for link in ns.links()}


def in_sync(agent: AgentProcess, wanted: int) -> None:
    agent.wait_status(
        f"{wanted} links in sync",
        lambda s: s["objects"]["wanted"] == s["objects"]["in_sync"] == wanted,
        timeout_s=60,
    )


def table_of(link: dict[str, Any]) -> int:
    table: int = link["linkinfo"]["info_data"]["table"]
    return table


def write(agent: AgentProcess, *vpcs: dict[str, Any], endpoints: tuple[Any, ...] = ()) -> None:
    document = {"vpcs": list(vpcs), "endpoints": list(endpoints)}
    agent.write_document("vpcs.json", json.dumps(document))


def test_the_life_of_vpcs_with_tables(namespace: Namespace, tmp_path: Path) -> None:
    namespace.ip_batch(
        "link add name blue-vrf type vrf table 66\n"  # of a former run, without a token
        "link add name mgmt type vrf table 77\n"  # somebody else's
        "link add name store-vrf type bridge\n"  # not what its name says
    )
    namespace.ip_batch(veth("cali1", "eth1"))
    before = {name: links(namespace)[name] for name in ("mgmt", "store-vrf")}
    with AgentProcess(namespace, tmp_path, plan=None) as agent:
        write(agent, vpc("red", 1001, 1, mac="02:00:00:00:10:01"), vpc("green", 1002, 2))
        agent.start().wait_in_sync(timeout_s=60)
        in_sync(agent, 6)
        agent.wait_status("blue-vrf collected", lambda s: s["links"]["owned"] == 6, timeout_s=60)
        seen = links(namespace)
        assert "blue-vrf" not in seen
        assert table_of(seen["red-vrf"]) == 1001
        assert seen["red-bri"]["master"] == "red-vrf"
        assert seen["red-vtp"]["master"] == "red-bri"
        assert seen["red-vrf"]["address"] == "02:00:00:00:10:01"
        bridge = seen["red-bri"]["ifindex"]

        # The tables change hands: each VRF is made anew, and gets its bridge back.
        write(agent, vpc("red", 1002, 1, mac="02:00:00:00:10:01"), vpc("green", 1001, 2))
        agent.wait_status(
            "tables swapped",
            lambda s: (
                table_of(links(namespace).get("red-vrf") or seen["red-vrf"]) == 1002
                and table_of(links(namespace).get("green-vrf") or seen["green-vrf"]) == 1001
            ),
            timeout_s=60,
        )
        in_sync(agent, 6)
        seen = links(namespace)
        assert seen["red-bri"]["ifindex"] == bridge
        assert seen["red-bri"]["master"] == "red-vrf"
        assert seen["green-bri"]["master"] == "green-vrf"

        # An endpoint of a VPC has its route in that VPC's table.
        pod = endpoint("web", "cali1", "10.65.0.2", vpc="red")
        write(agent, vpc("red", 1002, 1), vpc("green", 1001, 2), endpoints=(pod,))
        agent.wait_status("a route", lambda s: s["routes"]["programmed"] >= 2, timeout_s=60)
        routes = [route for route in namespace.routes() if route["dst"] == "10.65.0.2"]
        assert [(route["table"], route["dev"]) for route in routes] == [("1002", "cali1")]

        # A VRF deleted behind our back comes back, with what belongs in it.
        namespace.ip("link del green-vrf")
        agent.wait_status(
            "green-vrf is back",
            lambda _: links(namespace)["green-bri"].get("master") == "green-vrf",
            timeout_s=60,
        )
        in_sync(agent, 6)

        write(agent, vpc("red", 1002, 1))
        agent.wait_status("green gone", lambda s: s["links"]["owned"] == 3, timeout_s=60)
        assert not any(name.startswith("green") for name in links(namespace))
        after = {name: links(namespace)[name] for name in before}
        assert after == before
        agent.stop()
