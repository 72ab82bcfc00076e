"""All kinds of links of ours, and which links a plan wants."""

from __future__ import annotations

from collections.abc import Mapping

from netreeve.links import bridge, tap, vrf, vtep
from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec
from netreeve.plan.model import Plan
from netreeve.reconcile.kind import LinkKind

__all__ = ["KINDS", "hold", "specs"]

KINDS: Mapping[ownership.Kind, LinkKind] = {
    module.KIND.kind: module.KIND for module in (vrf, bridge, vtep, tap)
}


def specs(plan: Plan, scheme: ownership.Scheme) -> list[LinkSpec]:
    """Every link of ours that `plan` wants, controllers before members."""
    wanted: list[LinkSpec] = []
    for vpc in plan.vpcs.values():
        own_vrf = vrf.spec(vpc, scheme)
        if own_vrf is not None:
            wanted.append(own_vrf)
        wanted.append(bridge.spec(vpc, scheme))
        wanted.append(vtep.spec(vpc, scheme))
    wanted.extend(tap.spec(each, scheme) for each in plan.taps.values())
    return wanted


def hold(plan: Plan | None, *, complete: bool, allow_empty: bool) -> str | None:
    """Why nothing may be deleted for the sake of `plan`; None where it may.

    `complete`: every source is in sync. `allow_empty` is NETREEVE_ALLOW_EMPTY_PLAN.
    """
    if plan is None:
        return "there is no plan yet"
    if not complete:
        return "not every source of the plan is in sync"
    if plan.empty and not allow_empty:
        return "the plan is empty (NETREEVE_ALLOW_EMPTY_PLAN)"
    return None
