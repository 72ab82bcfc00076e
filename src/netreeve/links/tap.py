"""Taps: persistent, for a virtual machine to attach to."""

from __future__ import annotations

from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec
from netreeve.plan.model import Tap
from netreeve.reconcile.kind import LinkKind

__all__ = ["KIND", "spec"]

KIND = LinkKind("tap", by_device=True)


def spec(tap: Tap, scheme: ownership.Scheme) -> LinkSpec:
    """The tap of the entry; in its controller, anybody's, where one is named."""
    return LinkSpec(
        kind="tap",
        name=scheme.make("tap", tap.name),
        entry=f"tap {tap.name}",
        mtu=tap.mtu,
        controller=tap.controller,
    )
