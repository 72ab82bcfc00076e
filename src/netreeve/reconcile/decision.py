"""What to do about one link: the one place that compares what is wanted with what was seen.

Steps, `plan`, `explain` and the status all come from the same decision.
"""

from __future__ import annotations

import socket
from typing import Literal, Protocol

from netreeve.model.link_spec import LinkSpec, Status
from netreeve.model.prefix import LinkAddress
from netreeve.reconcile.kind import LinkKind
from netreeve.reconcile.subject import IDLE, Decision, Holder, Subject

__all__ = ["OwnershipMode", "World", "decide", "missing_addresses", "spare_addresses"]

OwnershipMode = Literal["name", "token"]


class World(Protocol):
    """What a decision about one link has to know of the others."""

    @property
    def mode(self) -> OwnershipMode: ...

    def controller(self, subject: Subject) -> int | str:
        """The ifindex of the planned controller; a sentence where there is none to use."""

    def is_ours(self, ifindex: int) -> bool: ...

    def key_holder(self, subject: Subject) -> str | Holder | None:
        """Who has what must be unique: the name of a link of ours that goes, or a foreign one."""

    def hold(self) -> str | None:
        """Why nothing may be deleted now."""


def decide(subject: Subject, world: World) -> Decision:
    """By the last look at the link; pure."""
    if subject.kind is None:
        return IDLE
    spec, seen = subject.spec, subject.seen
    if not subject.looked:
        return IDLE if spec is None else Decision(None, Status("pending", "not looked at yet"))
    if seen is None:
        return IDLE if spec is None else _absent(subject, subject.kind, spec, world)
    if not subject.owned:
        if spec is None:
            return IDLE
        return Decision(None, Status("conflict", subject.why, seen.name))
    if world.mode == "token" and not subject.proven and subject.made not in (-1, seen.ifindex):
        reason = "it has no token of this installation (NETREEVE_OWNERSHIP=token)"
        return Decision(None, Status("unproven", reason))
    if spec is None:
        return _unplanned(subject, world)
    return _planned(subject, subject.kind, spec, world)


def _absent(subject: Subject, kind: LinkKind, spec: LinkSpec, world: World) -> Decision:
    holder = subject.holder or world.key_holder(subject)
    if isinstance(holder, Holder):
        return Decision(None, Status("conflict", holder.reason, holder.name))
    if holder is not None:
        return Decision(None, Status("pending", f"waits until {holder} is gone or changed"))
    controller = world.controller(subject)
    if isinstance(controller, str):
        return Decision(None, Status("pending", controller))
    fields: list[tuple[str, object, object]] = [
        (name, None, value) for name, value in spec.properties
    ]
    for name in ("mtu", "mac", "controller"):
        value = getattr(spec, name)
        if value is not None:
            fields.append((name, None, value))
    if spec.addresses:
        fields.append(("addresses", (), spec.addresses))
    return Decision("create", _pending(subject), tuple(fields), controller)


def _unplanned(subject: Subject, world: World) -> Decision:
    hold = world.hold()
    if hold is not None:
        return Decision(None, Status("blocked", hold))
    return Decision("delete", _deleting(subject))


def _planned(subject: Subject, kind: LinkKind, spec: LinkSpec, world: World) -> Decision:
    seen = subject.seen
    assert seen is not None  # decide() looked
    live: list[tuple[str, object, object]] = []
    fixed: list[tuple[str, object, object]] = []
    for name, wanted in spec.properties:
        field = kind.fields[name]
        observed = getattr(seen, name)
        if observed is None:
            observed = field.default
        if observed != wanted:
            is_live = field.live(observed, wanted)
            (live if is_live else fixed).append((name, observed, wanted))
    if fixed:
        return Decision("recreate", _deleting(subject), (*fixed, *live))
    if spec.mtu is not None and seen.mtu != spec.mtu:
        live.append(("mtu", seen.mtu, spec.mtu))
    if spec.mac is not None and seen.mac != spec.mac:
        live.append(("mac", seen.mac, spec.mac))
    status = None
    controller = world.controller(subject)
    if isinstance(controller, str):
        status = Status("pending", controller)
        controller = 0
    elif seen.controller != controller:
        may_move = seen.controller in (0, subject.put) or world.is_ours(seen.controller)
        if may_move:
            live.append(("controller", seen.controller, controller))
        elif spec.controller is not None:
            status = _stolen(subject, spec)
    if not seen.admin_up:
        live.append(("up", False, True))
    if kind.addressed:
        if subject.addresses is None:
            status = status or Status("pending", "its addresses have not been read yet")
        elif missing_addresses(subject, spec) or spare_addresses(subject, spec):
            observed = tuple(a for a, ours in subject.addresses.items() if ours)
            live.append(("addresses", observed, spec.addresses))
    if live:
        return Decision("change", status or _pending(subject), tuple(live), controller)
    if not subject.proven:
        return Decision("adopt", status or _pending(subject), (), controller)
    return Decision(None, status or Status("in_sync", subject.war.reason), (), controller)


def missing_addresses(subject: Subject, spec: LinkSpec) -> list[LinkAddress]:
    """Wanted, and not there: one that somebody else put there is as good as ours."""
    assert subject.addresses is not None
    return [address for address in spec.addresses if address not in subject.addresses]


def spare_addresses(subject: Subject, spec: LinkSpec) -> list[LinkAddress]:
    """Ours by their protocol, and not wanted any more.

    One that shares its IPv4 network with somebody else's address stays: if it is the primary one
    there, the kernel deletes the secondary ones with it (promote_secondaries=0).
    """
    assert subject.addresses is not None
    others = {address.network for address, ours in subject.addresses.items() if not ours}
    return [
        address
        for address, ours in subject.addresses.items()
        if ours
        and address not in spec.addresses
        and (address.family != socket.AF_INET or address.network not in others)
    ]


def _pending(subject: Subject) -> Status:
    if subject.error is not None:
        return Status("error", subject.error)
    return Status("pending", subject.war.reason)


def _deleting(subject: Subject) -> Status:
    blocked = subject.blocked
    if blocked is not None:
        return Status("blocked", blocked.reason, blocked.name)
    return _pending(subject)


def _stolen(subject: Subject, spec: LinkSpec) -> Status:
    holder = subject.foreign_controller
    if holder is None:
        return Status("pending", "it is in another link, which has not been looked at yet")
    return Status("conflict", f"{holder.reason}, not in {spec.controller}", holder.name)
