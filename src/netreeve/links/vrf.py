"""VRFs: the routing table of a VPC."""

from __future__ import annotations

from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec
from netreeve.plan.model import Vpc
from netreeve.reconcile.kind import Field, LinkKind, never

__all__ = ["KIND", "spec"]

# drivers/net/vrf.c has no changelink: another table takes another VRF.
KIND = LinkKind("vrf", {"table": Field(never)}, unique=("table",))


def spec(vpc: Vpc, scheme: ownership.Scheme) -> LinkSpec | None:
    """The VRF of `vpc`; None where it has no table of its own."""
    if vpc.table is None:
        return None
    return LinkSpec(
        kind="vrf",
        name=scheme.make("vrf", vpc.name),
        entry=f"vpc {vpc.name}",
        properties=(("table", vpc.table),),
        mtu=vpc.mtu,
        mac=vpc.mac_bytes,
    )
