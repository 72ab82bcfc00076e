"""What should be there: the values that plan documents are loaded into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from netreeve.model.ids import EndpointId
from netreeve.model.prefix import LinkAddress, Prefix

__all__ = ["Endpoint", "Plan", "Tap", "Vpc", "Vtep"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A workload's attachment: one link, made by others, and the routes to its addresses.

    `uid` is the incarnation where the source gives one. `vpc` names an entry of the same plan.
    """

    id: EndpointId
    interface: str
    addresses: tuple[Prefix, ...] = ()
    uid: str | None = None
    admin_up: bool = True
    vpc: str | None = None


@dataclass(frozen=True, slots=True)
class Vtep:
    """The VXLAN end of a VPC: `local` is (family, packed address), `port` UDP, `ttl` 1 to 255."""

    local: tuple[int, bytes]
    port: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Vpc:
    """A routing domain: a VRF of `table`, a bridge with `addresses`, a VTEP of `vni`.

    `name` is the base that the link names are made from. Without a `table` there is no VRF. `mac`
    ("02:00:00:00:10:01", lower case) and `mtu` (bytes) hold for all of its links; None leaves
    them, and `vlan_filtering` of the bridge, to the kernel.
    """

    name: str
    table: int | None
    vni: int
    vtep: Vtep
    mac: str | None = None
    mtu: int | None = None
    addresses: tuple[LinkAddress, ...] = ()
    vlan_filtering: bool | None = None

    @property
    def mac_bytes(self) -> bytes | None:
        """`mac` as the kernel has it."""
        return None if self.mac is None else bytes.fromhex(self.mac.replace(":", ""))


@dataclass(frozen=True, slots=True)
class Tap:
    """A tap: `name` is the base of its link name, `controller` the full name of a bridge or VRF."""

    name: str
    mtu: int | None = None
    controller: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is wanted on this node; whole and consistent, or it would not have been made."""

    vpcs: Mapping[str, Vpc] = field(default_factory=dict)
    taps: Mapping[str, Tap] = field(default_factory=dict)
    endpoints: Mapping[EndpointId, Endpoint] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is wanted."""
        return not (self.vpcs or self.taps or self.endpoints)

    def route_table(self, endpoint: Endpoint, default: int) -> int:
        """The table that the endpoint's routes go to: its VPC's, or `default` where it has no
        VPC, or that has no table."""
        table = None if endpoint.vpc is None else self.vpcs[endpoint.vpc].table
        return default if table is None else table
