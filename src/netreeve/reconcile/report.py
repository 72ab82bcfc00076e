"""What the engine has decided, told to people and to machines. Nothing is decided here."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING

from netreeve.model import ownership
from netreeve.model.link_spec import Change, Conflict, Foreign, HeldBack
from netreeve.model.prefix import LinkAddress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netreeve._ext.details import LinkDetails
    from netreeve.model.link_spec import LinkSpec
    from netreeve.reconcile.subject import Decision, Operation, Subject

__all__ = ["changes", "conflicts", "explain", "foreign", "held_back"]


def changes(subjects: Iterable[Subject]) -> list[Change]:
    made = []
    for subject in subjects:
        decision = subject.decision
        action, status = decision.action, decision.status
        if action is None or status is None or status.state == "blocked":
            continue
        ifindex = 0 if subject.seen is None else subject.seen.ifindex
        made.append(Change(action, _object(subject), subject.name, ifindex, _fields(decision)))
    return made


def conflicts(subjects: Iterable[Subject]) -> list[Conflict]:
    made = []
    for subject in subjects:
        status = subject.decision.status
        if status is not None and status.state == "conflict":
            object_, name = _object(subject), subject.name
            made.append(Conflict(object_, name, status.holder or "", status.reason or ""))
    return made


def held_back(subjects: Iterable[Subject], hold: str | None) -> list[HeldBack]:
    """`hold` is why nothing at all is deleted: it has numbers in it that change with every link, so
    it is taken as of now, and not from when each link was decided on."""
    made = []
    for subject in subjects:
        status = subject.decision.status
        if status is not None and status.state in ("blocked", "unproven"):
            general = hold is not None and subject.spec is None and subject.blocked is None
            reason = hold if general and status.state == "blocked" else status.reason
            made.append(HeldBack(subject.name, reason or ""))
    return made


def wars(subjects: Iterable[Subject], now: float) -> list[HeldBack]:
    return [
        HeldBack(subject.name, subject.war.reason)
        for subject in subjects
        if subject.war.reason is not None and not subject.war.is_over(now)
    ]


def foreign(links: Iterable[LinkDetails], scheme: ownership.Scheme) -> list[Foreign]:
    made = []
    for link in sorted(links, key=lambda link: link.name):
        verdict = scheme.recognise(link.name, link.kind, tap_mode=link.tap is True)
        if verdict.verdict != "owned":
            made.append(Foreign(link.name, link.ifindex, link.kind, verdict.reason))
    return made


def explain(subject: Subject) -> dict[str, object]:
    decision = subject.decision
    status = decision.status
    return {
        "ownership": {"verdict": _verdict(subject), "reason": _why(subject)},
        "plan": None if subject.spec is None else _plan(subject.spec),
        "observed": None if subject.seen is None else _observed(subject, subject.seen),
        "action": decision.action,
        "difference": _fields(decision),
        "status": None if status is None else {"state": status.state, "reason": status.reason},
        "operations": [_operation(each) for each in subject.history],
    }


def _object(subject: Subject) -> str:
    if subject.spec is not None:
        return subject.spec.entry
    return subject.kind.kind if subject.kind is not None else "controller"


def _verdict(subject: Subject) -> str:
    if subject.seen is None:
        return "absent"
    return "owned" if subject.owned else "foreign"


def _why(subject: Subject) -> str:
    if subject.kind is None:
        return "a controller of others, which links of ours are to be members of"
    if not subject.looked:
        return "it has not been looked at yet"
    if subject.there:
        proof = "it has our token" if subject.proven else "it has no token of ours"
        return f"{subject.why}; {proof}"
    return subject.why


def _plan(spec: LinkSpec) -> dict[str, object]:
    plan: dict[str, object] = {"object": spec.entry, "kind": spec.kind}
    plan.update((name, _value(value)) for name, value in spec.properties)
    for name in ("mtu", "mac", "controller"):
        if getattr(spec, name) is not None:
            plan[name] = _value(getattr(spec, name))
    if spec.addresses:
        plan["addresses"] = _value(spec.addresses)
    return plan


def _observed(subject: Subject, seen: LinkDetails) -> dict[str, object]:
    observed: dict[str, object] = {
        "ifindex": seen.ifindex,
        "name": seen.name,
        "kind": seen.kind,
        "up": seen.admin_up,
        "mtu": seen.mtu,
        "mac": _value(seen.mac),
        "controller": seen.controller,
        "altnames": list(seen.altnames),
    }
    if subject.kind is not None and subject.owned:
        for name in subject.kind.fields:
            observed[name] = _value(getattr(seen, name))
    if subject.addresses is not None:
        observed["addresses"] = [
            {"address": str(address), "ours": ours} for address, ours in subject.addresses.items()
        ]
    return observed


def _fields(decision: Decision) -> dict[str, dict[str, object]]:
    return {
        name: {"observed": _value(observed), "wanted": _value(wanted)}
        for name, observed, wanted in decision.fields
    }


def _operation(operation: Operation) -> dict[str, object]:
    step = operation.step
    arguments = {
        field.name: _value(getattr(step, field.name))
        for field in dataclasses.fields(step)
        if field.name != "name" and getattr(step, field.name) is not None
    }
    return {
        "at_s": operation.at,
        "step": type(step).__name__,
        "arguments": arguments,
        "errno": operation.errno,
        "words": operation.words,
    }


def _value(value: object) -> object:
    """As JSON has it: MACs and addresses as people write them."""
    if isinstance(value, bytes):
        return value.hex(":")
    if isinstance(value, LinkAddress):
        return str(value)
    if isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[1], bytes):
            return socket.inet_ntop(value[0], value[1])
        return [_value(item) for item in value]
    return value
