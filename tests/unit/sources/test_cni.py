"""libcni's result cache as a source: what each kind of file comes to, and how changes are seen."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netreeve.model.ownership import Scheme
from netreeve.plan.loading import load
from netreeve.sources import Snapshot, files
from netreeve.sources.cni import CniSource

SCHEME = Scheme(endpoint_prefixes=("cali", "veth"))

BRIDGE: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "interfaces": [
        {"name": "cni0", "mac": "02:00:00:00:00:01"},
        {"name": "veth1a2b", "mac": "02:00:00:00:00:02"},
        {"name": "eth0", "mac": "02:00:00:00:00:03", "sandbox": "/var/run/netns/x"},
    ],
    "ips": [{"interface": 2, "address": "10.22.0.5/16", "gateway": "10.22.0.1"}],
    "dns": {},
}


def pod(namespace: str, name: str, container: str) -> list[list[str]]:
    """The arguments as containerd gives them."""
    return [
        ["IgnoreUnknown", "1"],
        ["K8S_POD_NAMESPACE", namespace],
        ["K8S_POD_NAME", name],
        ["K8S_POD_INFRA_CONTAINER_ID", container],
    ]


class Cache:
    """The directory as libcni keeps it: files are written in place, without a rename."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)

    def add(
        self,
        result: Any,
        container: str = "c1",
        *,
        network: str = "cbr0",
        ifname: str = "eth0",
        args: list[list[str]] | None = None,
        age_s: float = 0,
    ) -> Path:
        cached = {
            "kind": "cniCacheV1",
            "containerId": container,
            "config": base64.b64encode(b'{"name":"cbr0"}').decode(),
            "ifName": ifname,
            "networkName": network,
            "netns": "/var/run/netns/x",
            "cniArgs": pod("default", "web-0", container) if args is None else args,
            "capabilityArgs": {"dns": {}},
            "result": result,
        }
        path = self.path / f"{network}-{container}-{ifname}"
        path.write_text(json.dumps(cached))
        if age_s:
            then = time.time() - age_s
            os.utime(path, (then, then))
        return path


class Seen:
    """What a running source has published, as a plan takes it."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    @property
    def plan(self) -> dict[str, tuple[str, list[str], str | None]]:
        """Id -> link, addresses, uid. Every snapshot must make a plan."""
        snapshot = self.snapshots[-1]
        assert not snapshot.problems
        made = load(snapshot.documents, SCHEME)
        return {
            str(e.id): (e.interface, [str(p).partition("/")[0] for p in e.addresses], e.uid)
            for e in made.endpoints.values()
        }

    async def until(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not (self.snapshots and holds()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)


async def watching(path: Path, body: Callable[[Seen], Awaitable[None]]) -> None:
    seen = Seen()
    task = asyncio.create_task(CniSource(path, SCHEME).run(seen.snapshots.append))
    try:
        await seen.until(lambda: True)
        await body(seen)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "results")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{Path(record.fields['file']).name}: {record.fields['reason']}"  # type: ignore[attr-defined]
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]


WEB = "k8s/default%2Fweb-0/eth0"


async def one(cache: Cache, result: Any, **more: Any) -> dict[str, Any]:
    cache.add(result, **more)
    found: dict[str, Any] = {}

    async def body(seen: Seen) -> None:
        found.update(seen.plan)

    await watching(cache.path, body)
    return found


async def test_a_bridge_plugins_result(cache: Cache) -> None:
    assert await one(cache, BRIDGE) == {WEB: ("veth1a2b", ["10.22.0.5"], "c1")}


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1", "0.4.0"])
async def test_a_result_of_an_older_version_in_both_families(cache: Cache, version: str) -> None:
    result = {
        **BRIDGE,
        "cniVersion": version,
        "ips": [
            {"version": "4", "interface": 2, "address": "10.22.0.5/16"},
            {"version": "6", "interface": 2, "address": "fd00:22::5/64"},
            {"version": "4", "interface": 0, "address": "10.22.0.1/16"},
        ],
    }
    assert await one(cache, result) == {WEB: ("veth1a2b", ["10.22.0.5", "fd00:22::5"], "c1")}


async def test_calicos_result_names_the_hosts_link_only(cache: Cache) -> None:
    result = {
        "cniVersion": "0.3.1",
        "interfaces": [{"name": "cali1a2b"}],
        "ips": [{"version": "4", "address": "10.65.0.2/32"}],
    }
    assert await one(cache, result) == {WEB: ("cali1a2b", ["10.65.0.2"], "c1")}


async def test_without_kubernetes_arguments_the_id_is_of_the_network_and_container(
    cache: Cache,
) -> None:
    for args in ([], [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", ""], ["K8S_POD_NAME", "x"]]):
        assert [*await one(cache, BRIDGE, args=args)] == ["cni/cbr0%2Fc1/eth0"]


@pytest.mark.parametrize(
    ("names", "link"),
    [
        (["cni0", "veth1", "veth2", "+eth0"], "veth2"),
        (["cni0", "veth1", "+eth0", "veth2", "bwp1"], "veth1"),
        (["+eth0", "veth1", "veth2"], "veth1"),
        (["veth1", "veth2"], "veth1"),
        (["veth1", "+net1", "veth2", "+eth0"], "veth2"),
        (["veth1", "+other0"], "veth1"),
    ],
)
async def test_which_of_several_links_it_is(cache: Cache, names: list[str], link: str) -> None:
    interfaces = [
        {"name": name.lstrip("+"), "sandbox": "/ns" if name.startswith("+") else ""}
        for name in names
    ]
    found = await one(cache, {**BRIDGE, "interfaces": interfaces, "ips": []})
    assert found == {WEB: (link, [], "c1")}


async def test_several_networks_of_one_pod(cache: Cache) -> None:
    second = {
        "interfaces": [{"name": "veth9"}, {"name": "net1", "sandbox": "/ns"}],
        "ips": [{"interface": 1, "address": "10.99.0.5/24"}],
    }
    cache.add(second, network="storage", ifname="net1")
    assert await one(cache, BRIDGE) == {
        WEB: ("veth1a2b", ["10.22.0.5"], "c1"),
        "k8s/default%2Fweb-0/net1": ("veth9", ["10.99.0.5"], "c1"),
    }


async def test_multus_and_its_delegate_say_the_same_which_is_nothing_odd(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.add(BRIDGE, network="multus-cni-network")
    assert await one(cache, BRIDGE) == {WEB: ("veth1a2b", ["10.22.0.5"], "c1")}
    assert warnings(caplog) == []


ODD = [
    ({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.2.3/24"}, "dns": {}}, "names no link on the host"),
    ({"cniVersion": "1.0.0", "interfaces": None, "ips": None}, "names no link on the host"),
    (None, "names no link on the host"),
    ({"interfaces": [{"name": "eth0", "sandbox": "/ns"}]}, "names no link on the host"),
    ({"interfaces": [{"name": "lxc1"}]}, "'lxc1' doesn't begin with an endpoint prefix"),
    ({"interfaces": [{"name": "veth1-vrf"}]}, "veth1-vrf"),
    ({"interfaces": [{"name": "veth" + "x" * 20}]}, "15 at most"),
    ({"interfaces": [{"name": "veth1"}], "ips": [{"address": "10.1/8"}]}, "is not an IPv4"),
    ({"interfaces": [{"name": "veth1"}], "ips": [{"address": "224.0.0.1/4"}]}, "multicast"),
    ({"interfaces": [{"name": "veth1"}], "ips": [{"address": "0.0.0.0/0"}]}, "unspecified"),
    ({"interfaces": "veth1"}, "no entry of libcni's cache"),
    ("text", "no entry of libcni's cache"),
]


@pytest.mark.parametrize(("result", "words"), ODD)
async def test_what_makes_no_endpoint_stops_no_other_and_is_said_once(
    cache: Cache, caplog: pytest.LogCaptureFixture, result: Any, words: str
) -> None:
    cache.add(result, "c0", network="odd", args=[])
    cache.add(BRIDGE)

    async def body(seen: Seen) -> None:
        assert [*seen.plan] == [WEB]
        cache.add(BRIDGE, "c2", args=[])  # the same link and address: the younger container
        await seen.until(lambda: [*seen.plan] == ["cni/cbr0%2Fc2/eth0"])

    await watching(cache.path, body)
    said = [line for line in warnings(caplog) if line.startswith("odd-")]
    assert len(said) == 1
    assert words in said[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\udcff",
        "[" * 100_000,
        "[]",
        "null",
        "{}",
        json.dumps({"cniVersion": "0.3.1", "interfaces": [{"name": "veth1"}]}),  # before libcni 0.8
        json.dumps({"kind": "cniCacheV2", "result": BRIDGE}),
        json.dumps({"kind": "cniCacheV1", "result": BRIDGE}),
        json.dumps({"kind": "cniCacheV1", "containerId": "c", "ifName": "e\x07", "result": BRIDGE}),
        json.dumps({"kind": "cniCacheV1", "containerId": "c" * 2000, "result": BRIDGE}),
    ],
)
async def test_files_of_anything_else(
    cache: Cache, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (cache.path / "odd").write_bytes(text.encode("utf-8", "surrogateescape"))
    (cache.path / "below").mkdir()
    (cache.path / ".hidden").write_text("x")
    assert [*await one(cache, BRIDGE)] == [WEB]
    assert sorted(line.partition(":")[0] for line in warnings(caplog)) == ["below", "odd"]


async def test_of_two_that_contradict_each_other_the_younger_is_taken(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    other = {**BRIDGE, "interfaces": [{"name": "veth2"}], "ips": [{"address": "10.22.0.6/16"}]}
    cache.add(other, "old-pod", age_s=60)
    cache.add(BRIDGE, "old-link", args=[], age_s=50)
    same = {"interfaces": [{"name": "veth3"}], "ips": [{"address": "10.22.0.5/16"}]}
    cache.add(same, "old-address", args=[], age_s=40)
    assert await one(cache, BRIDGE, container="new") == {WEB: ("veth1a2b", ["10.22.0.5"], "new")}
    assert sorted(warnings(caplog)) == [
        "cbr0-old-address-eth0: 10.22.0.5/32 is in cbr0-new-eth0 too, which is younger",
        "cbr0-old-link-eth0: veth1a2b is in cbr0-new-eth0 too, which is younger",
        f"cbr0-old-pod-eth0: {WEB} is in cbr0-new-eth0 too, which is younger",
    ]


async def test_a_pod_comes_and_goes_within_100_ms(cache: Cache) -> None:
    async def body(seen: Seen) -> None:
        for number in range(5):
            container = f"c{number}"
            started = time.monotonic()
            path = cache.add(BRIDGE, container)
            await seen.until(lambda c=container: seen.plan.get(WEB, ("", "", ""))[2] == c)  # type: ignore[misc]
            assert time.monotonic() - started < 0.1
            await asyncio.sleep(0.1)
            started = time.monotonic()
            path.unlink()
            await seen.until(lambda: seen.plan == {})
            assert time.monotonic() - started < 0.1
            await asyncio.sleep(0.1)

    await watching(cache.path, body)


async def test_a_rebuilt_pod_while_the_old_container_is_still_there(cache: Cache) -> None:
    old = cache.add(BRIDGE, "c1", age_s=5)
    rebuilt = {**BRIDGE, "interfaces": [{"name": "veth2"}], "ips": [{"address": "10.22.0.9/16"}]}

    async def body(seen: Seen) -> None:
        assert seen.plan[WEB][2] == "c1"
        cache.add(rebuilt, "c2")
        await seen.until(lambda: seen.plan == {WEB: ("veth2", ["10.22.0.9"], "c2")})
        old.unlink()
        await asyncio.sleep(0.2)
        assert seen.plan == {WEB: ("veth2", ["10.22.0.9"], "c2")}

    await watching(cache.path, body)


async def test_a_half_written_file_is_read_when_it_is_closed(cache: Cache) -> None:
    text = cache.add(BRIDGE).read_text()
    (cache.path / "cbr0-c1-eth0").unlink()

    async def body(seen: Seen) -> None:
        with (cache.path / "cbr0-c1-eth0").open("w") as file:
            file.write(text[:200])
            file.flush()
            await asyncio.sleep(0.3)
            assert seen.plan == {}
            file.write(text[200:])
        await seen.until(lambda: [*seen.plan] == [WEB])

    await watching(cache.path, body)


async def test_a_torn_file_stands_as_it_was_until_it_is_whole_or_gone(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    path = cache.add(BRIDGE)
    text = path.read_text()

    async def body(seen: Seen) -> None:
        path.write_text(text[:100])
        await asyncio.sleep(0.3)
        assert seen.plan[WEB][2] == "c1"
        path.write_text(text.replace('"c1"', '"c2"'))
        await seen.until(lambda: seen.plan[WEB][2] == "c2")
        path.write_text("")
        await asyncio.sleep(0.3)
        assert seen.plan[WEB][2] == "c2"
        path.unlink()
        await seen.until(lambda: seen.plan == {})

    await watching(cache.path, body)
    assert [record.message for record in caplog.records] == [
        "a CNI result stands as it was last read"
    ] * 2


async def test_a_missing_directory_is_a_problem_and_not_an_empty_plan(tmp_path: Path) -> None:
    path = tmp_path / "results"

    async def body(seen: Seen) -> None:
        problems = [str(problem) for problem in seen.snapshots[-1].problems]
        assert problems == [f"{path}: the directory is not there"]
        Cache(path).add(BRIDGE)
        await seen.until(lambda: not seen.snapshots[-1].problems and [*seen.plan] == [WEB])

    await watching(path, body)


async def test_hundreds_of_pods_at_once(cache: Cache) -> None:
    async def body(seen: Seen) -> None:
        for number in range(300):
            result = {
                "interfaces": [{"name": f"veth{number}"}],
                "ips": [{"address": f"10.22.{number // 200}.{number % 200 + 1}/16"}],
            }
            cache.add(result, f"c{number}", args=pod("default", f"web-{number}", f"c{number}"))
        await seen.until(lambda: len(seen.plan) == 300, files.DEBOUNCE_MAX_S + 2)

    await watching(cache.path, body)
