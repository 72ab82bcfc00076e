"""Bridges: what a VPC's links are members of; they bear its addresses."""

from __future__ import annotations

from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec, Value
from netreeve.plan.model import Vpc
from netreeve.reconcile.kind import Field, LinkKind, always

__all__ = ["KIND", "spec"]

# Where the kernel has no VLAN filtering, the property is absent, and off.
KIND = LinkKind("bridge", {"vlan_filtering": Field(always, default=False)}, addressed=True)


def spec(vpc: Vpc, scheme: ownership.Scheme) -> LinkSpec:
    """The bridge of `vpc`, in its VRF where it has one."""
    properties: tuple[tuple[str, Value], ...] = ()
    if vpc.vlan_filtering is not None:
        properties = (("vlan_filtering", vpc.vlan_filtering),)
    return LinkSpec(
        kind="bridge",
        name=scheme.make("bridge", vpc.name),
        entry=f"vpc {vpc.name}",
        properties=properties,
        mtu=vpc.mtu,
        mac=vpc.mac_bytes,
        controller=None if vpc.table is None else scheme.make("vrf", vpc.name),
        addresses=vpc.addresses,
    )
