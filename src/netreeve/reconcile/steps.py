"""From a decision to the one step that comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netreeve.model import link_op
from netreeve.reconcile.decision import missing_addresses, spare_addresses

if TYPE_CHECKING:
    from netreeve.model.link_op import Step
    from netreeve.reconcile.subject import Decision, Subject

__all__ = ["next_change"]


def next_change(subject: Subject, decision: Decision, protocol: int) -> Step:
    """The first change that `decision` needs; its action is not None.

    A link that is there needs its token first, whatever comes then.
    """
    if decision.action == "create":
        return _create(subject, decision)
    assert subject.seen is not None  # all other actions are about a link that is there
    if not subject.proven:
        return link_op.TokenAdd(subject.name, subject.seen.ifindex, subject.token)
    if decision.action == "change":
        return _change(subject, decision, protocol)
    return link_op.Delete(subject.name, subject.token)


def _create(subject: Subject, decision: Decision) -> Step:
    spec, kind = subject.spec, subject.kind
    assert spec is not None  # what nobody wants isn't made
    assert kind is not None
    if kind.by_device:
        return link_op.CreateTap(subject.name)
    properties = tuple(
        (name, value) for name, value in spec.properties if value != kind.fields[name].default
    )
    return link_op.Create(
        subject.name, kind.real_kind, properties, spec.mtu, spec.mac, decision.controller
    )


def _change(subject: Subject, decision: Decision, protocol: int) -> Step:
    spec, kind, seen = subject.spec, subject.kind, subject.seen
    assert spec is not None  # what nobody wants isn't changed
    assert kind is not None
    assert seen is not None
    names = {name for name, _, _ in decision.fields}
    data = tuple((name, value) for name, value in spec.properties if name in names)
    if data:
        # By itself: RTM_NEWLINK takes it, RTM_SETLINK the rest.
        return link_op.Set(subject.name, subject.token, real_kind=kind.real_kind, data=data)
    if names - {"addresses"}:
        return link_op.Set(
            subject.name,
            subject.token,
            up=True if "up" in names else None,
            mtu=spec.mtu if "mtu" in names else None,
            mac=spec.mac if "mac" in names else None,
            controller=decision.controller if "controller" in names else None,
        )
    # New ones first: at no time is the bridge without an address of its network.
    missing = missing_addresses(subject, spec)
    if missing:
        return link_op.AddrAdd(subject.name, seen.ifindex, missing[0], protocol)
    spare = spare_addresses(subject, spec)
    return link_op.AddrDelete(subject.name, seen.ifindex, spare[0])
