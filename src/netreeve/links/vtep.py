"""VTEPs: the VXLAN end of a VPC, a port of its bridge."""

from __future__ import annotations

import errno
import socket

from netreeve.model import ownership
from netreeve.model.link_spec import LinkSpec, Value
from netreeve.plan.model import Vpc
from netreeve.reconcile.kind import Field, LinkKind, always, never

__all__ = ["KIND", "spec"]


def _family(local: Value | None) -> object:
    return local[0] if isinstance(local, tuple) else int(socket.AF_INET)


def _same_family(observed: Value | None, wanted: Value) -> bool:
    return _family(observed) == _family(wanted)


# drivers/net/vxlan: vxlan_nl2conf() refuses another VNI, port or family on a link that exists.
# A socket is shared by family and port, and within it a VNI is unique. One with other flags than
# ours (a link that collects metadata) lets us have no socket at all: EADDRINUSE.
KIND = LinkKind(
    "vtep",
    {
        "vni": Field(never),
        "port": Field(never),
        "local": Field(_same_family, key=_family),
        "ttl": Field(always),
    },
    unique=("vni", "port", "local"),
    clashes={errno.EEXIST: ("vni", "port"), errno.EADDRINUSE: ("port",)},
)


def spec(vpc: Vpc, scheme: ownership.Scheme) -> LinkSpec:
    """The VTEP of `vpc`, in its bridge."""
    vtep = vpc.vtep
    return LinkSpec(
        kind="vtep",
        name=scheme.make("vtep", vpc.name),
        entry=f"vpc {vpc.name}",
        properties=(
            ("vni", vpc.vni),
            ("port", vtep.port),
            ("local", vtep.local),
            ("ttl", vtep.ttl),
        ),
        mtu=vpc.mtu,
        mac=vpc.mac_bytes,
        controller=scheme.make("bridge", vpc.name),
    )
