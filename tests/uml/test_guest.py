"""The second kernel has what the tests in this directory come here for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import uml
from tests.support.netns import Namespace

pytestmark = pytest.mark.kernel


def test_it_is_the_kernel_of_the_package() -> None:
    assert Path("/usr/lib/uml/modules", os.uname().release).is_dir()


def test_the_hosts_files_cannot_be_written() -> None:
    with pytest.raises(OSError, match="Read-only file system"):
        Path(__file__).with_name("written").touch()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("vrf", "type vrf table 100"),
        ("dummy", "type dummy"),
        ("vlan", "link one type vlan id 7"),
        ("macvlan", "link one type macvlan"),
        ("bridge", "type bridge vlan_filtering 1"),
        ("vxlan", "type vxlan id 1 dstport 4789"),
    ],
)
def test_links_of_every_kind_can_be_made(namespace: Namespace, kind: str, more: str) -> None:
    namespace.ip("link add one type veth peer name two")
    link, _, rest = more.rpartition("type ")
    namespace.ip(f"link add {link}name made type {rest}")
    (made,) = (one for one in namespace.links() if one["ifname"] == "made")
    assert made["linkinfo"]["info_kind"] == kind


def test_a_tap_can_be_made(namespace: Namespace) -> None:
    namespace.ip("tuntap add made mode tap")
    assert "made" in {link["ifname"] for link in namespace.links()}


def test_a_vrf_holds_the_routes_of_its_links(namespace: Namespace) -> None:
    namespace.ip_batch(
        [
            "link add red type vrf table 100",
            "link add one type dummy",
            "link set one master red",
            "link set red up",
            "link set one up",
            "addr add 192.0.2.1/24 dev one",
        ]
    )
    tables = {r.get("table") for r in namespace.routes(proto=None) if r["dst"] == "192.0.2.0/24"}
    assert tables == {"100"}


def test_every_module_is_loaded() -> None:
    loaded = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
    assert set(uml.MODULES.split()) <= loaded
