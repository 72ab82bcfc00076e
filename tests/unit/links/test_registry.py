"""Which links a plan wants, and what the tables of the kinds say."""

from __future__ import annotations

import socket

import pytest

from netreeve.links.registry import KINDS, hold, specs
from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec
from netreeve.model.prefix import LinkAddress
from netreeve.plan.model import Plan, Tap
from tests.support.link_world import LOCAL, plan, vpc

SCHEME = ownership.Scheme()


def test_a_vpc_is_three_links_and_a_tap_is_one() -> None:
    made = specs(
        plan(
            vpc("red", 7, 1001, "10.1.0.1/24", mac="02:00:00:00:10:01", mtu=1450),
            Tap("eth0", 1400, "red-bri"),
        ),
        SCHEME,
    )
    mac = bytes.fromhex("020000001001")
    assert made == [
        LinkSpec("vrf", "red-vrf", "vpc red", (("table", 1001),), 1450, mac),
        LinkSpec(
            "bridge",
            "red-bri",
            "vpc red",
            (),
            1450,
            mac,
            "red-vrf",
            (LinkAddress.parse("10.1.0.1/24"),),
        ),
        LinkSpec(
            "vtep",
            "red-vtp",
            "vpc red",
            (("vni", 7), ("port", 4789), ("local", LOCAL), ("ttl", 64)),
            1450,
            mac,
            "red-bri",
        ),
        LinkSpec("tap", "eth0-tap", "tap eth0", (), 1400, None, "red-bri"),
    ]


def test_without_a_table_there_is_no_vrf() -> None:
    made = specs(plan(vpc("red", 7, vlan_filtering=True)), SCHEME)
    assert [(each.name, each.controller) for each in made] == [
        ("red-bri", None),
        ("red-vtp", "red-bri"),
    ]
    assert made[0].properties == (("vlan_filtering", True),)


def test_every_property_is_in_the_table_of_its_kind() -> None:
    for spec in specs(plan(vpc("red", 7, 1001, vlan_filtering=True), Tap("eth0")), SCHEME):
        assert {name for name, _ in spec.properties} == set(KINDS[spec.kind].fields)


def test_every_kind_has_its_table() -> None:
    assert tuple(KINDS) == ownership.KINDS
    assert all(KINDS[kind].kind == kind for kind in KINDS)


def test_a_vtep_keeps_its_family_for_life() -> None:
    local = KINDS["vtep"].fields["local"]
    v6 = (int(socket.AF_INET6), bytes(16))
    assert local.live(LOCAL, (LOCAL[0], b"\1\1\1\1"))
    assert local.live(None, LOCAL)
    assert not local.live(LOCAL, v6)
    assert local.key(None) == local.key(LOCAL) != local.key(v6)


@pytest.mark.parametrize(
    ("wanted", "complete", "allow_empty", "words"),
    [
        (None, True, True, "no plan"),
        (Plan(), True, False, "the plan is empty"),
        (Plan(), True, True, None),
        (Plan(), False, True, "in sync"),
        (plan(Tap("eth0")), True, False, None),
    ],
)
def test_when_a_plan_allows_no_deletes(
    wanted: Plan | None, complete: bool, allow_empty: bool, words: str | None
) -> None:
    held = hold(wanted, complete=complete, allow_empty=allow_empty)
    assert (held is None) if words is None else (held is not None and words in held)
