"""Ownership of links stands on the same semantics here; and here are VRF and VLAN filtering."""

from __future__ import annotations

import errno

from tests.kernel.test_link_requests import *  # noqa: F403
from tests.kernel.test_link_requests import Kernel, token


def test_a_vrf_is_as_it_was_asked_for_and_can_not_change(kernel: Kernel) -> None:
    kernel.done(lambda batch: batch.link_create("vrf", "red-vrf", up=True, table=70000, mtu=1400))
    vrf = kernel.link("red-vrf")
    assert (vrf.kind, vrf.table, vrf.admin_up, vrf.mtu) == ("vrf", 70000, True, 1400)
    twice = kernel.answer(lambda batch: batch.link_create("vrf", "red-vrf", table=70001))
    assert twice == (errno.EEXIST, "")
    assert kernel.link("red-vrf") == vrf


def test_two_vrfs_may_have_one_table(kernel: Kernel) -> None:
    kernel.done(
        lambda batch: batch.link_create("vrf", "red-vrf", table=10),
        lambda batch: batch.link_create("vrf", "blue-vrf", table=10),
    )
    assert kernel.link("red-vrf").table == kernel.link("blue-vrf").table == 10


def test_a_vrf_controls_a_bridge_and_lets_it_go(kernel: Kernel) -> None:
    kernel.done(lambda batch: batch.link_create("vrf", "red-vrf", up=True, table=10))
    vrf = kernel.link("red-vrf")
    bridge = kernel.bridge("red-bri")
    kernel.done(
        lambda batch: batch.token_add(vrf.ifindex, token("red-vrf")),
        lambda batch: batch.link_set(token("red-bri"), up=True, controller=vrf.ifindex),
    )
    assert kernel.link("red-bri").controller == vrf.ifindex
    kernel.done(lambda batch: batch.link_set(token("red-vrf"), mtu=1500, up=False))
    kernel.done(lambda batch: batch.link_delete(token("red-vrf")))
    assert kernel.at(bridge).controller == 0
    assert kernel.at(bridge).admin_up


def test_vlan_filtering_is_made_and_changed_live(kernel: Kernel) -> None:
    kernel.done(lambda batch: batch.link_create("bridge", "a-bri", vlan_filtering=True))
    assert kernel.link("a-bri").vlan_filtering is True
    kernel.bridge("b-bri")
    kernel.done(
        lambda batch: batch.link_set(token("b-bri"), up=True),
        lambda batch: batch.link_change(token("b-bri"), "bridge", vlan_filtering=True),
    )
    assert kernel.link("b-bri").vlan_filtering is True
    kernel.done(lambda batch: batch.link_change(token("b-bri"), "bridge", vlan_filtering=False))
    assert kernel.link("b-bri").vlan_filtering is False


def test_the_first_vrf_of_a_namespace_leaves_a_rule_behind(kernel: Kernel) -> None:
    def rules() -> list[str]:
        listed = kernel.ns.ip("-4 rule") + kernel.ns.ip("-6 rule")
        return [line for line in listed.splitlines() if "l3mdev-table" in line]

    assert rules() == []
    kernel.done(lambda batch: batch.link_create("vrf", "red-vrf", table=10))
    kernel.ns.ip("link del red-vrf")
    assert len(rules()) == 2
    assert all(rule.startswith("1000:") for rule in rules())
