"""Why something is as it is: whose it is and why, what is planned, what is there, what was done.

The same for the agent, which remembers what it did, and for a command that looks by itself.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

from netreeve.errors import KernelError
from netreeve.io.ports import process_of
from netreeve.model import route
from netreeve.model.ids import EndpointId
from netreeve.model.ownership import MAX_NAME_BYTES
from netreeve.model.prefix import Prefix
from netreeve.routes import report
from netreeve.routes.slot import is_device_route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from netreeve._ext.details import LinkDetails
    from netreeve._ext.encode import Batch
    from netreeve._ext.wire import RouteMessage
    from netreeve.dataplane import DataPlane
    from netreeve.plan.model import Endpoint, Plan

__all__ = ["explain"]


async def explain(plane: DataPlane, plan: Plan | None, subject: str) -> dict[str, Any]:
    """`explain --json` (product.md) but for `history`, which is in the journal; besides, `type`
    ("link", "endpoint", "prefix") and `endpoints`, the ids that it is about.

    A number is an ifindex, what reads as an endpoint's id is one, what reads as an address or a
    prefix is one unless a link is called so; all else is a link's name. KernelError where the
    kernel doesn't tell.
    """
    endpoints = () if plan is None else tuple(plan.endpoints.values())
    endpoint_id = _endpoint_id(subject)
    if endpoint_id is not None:
        endpoint = None if plan is None else plan.endpoints.get(endpoint_id)
        found = await _endpoint(plane, plan, endpoint_id, endpoint)
    else:
        prefix = _prefix(subject)
        link = await _ask(plane, subject) if prefix is None or "/" not in subject else None
        if prefix is not None and link is None:
            wanting = [each for each in endpoints if prefix in each.addresses]
            found = await _prefix_routes(plane, plan, prefix, wanting)
        else:
            found = await _link(plane, plan, subject, link)
    now = asyncio.get_running_loop().time()
    for operation in found["operations"]:
        operation["ago_s"] = round(now - operation.pop("at_s"), 3)
    return {"subject": subject, **found}


def _endpoint_id(subject: str) -> EndpointId | None:
    try:
        return EndpointId.parse(subject)
    except ValueError:
        return None


def _prefix(subject: str) -> Prefix | None:
    try:
        return Prefix.parse(subject)
    except ValueError:
        return None


# -- links


async def _ask(plane: DataPlane, subject: str) -> LinkDetails | None:
    """The link of that ifindex or name, perhaps an alternative one."""

    def fill(batch: Batch) -> int:
        if subject.isascii() and subject.isdigit():
            return batch.link_get(int(subject))
        if len(subject.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            return batch.link_get_by_altname(subject)
        return batch.link_get_by_name(subject)

    try:
        refused, links = await plane.kernel.exchange(1, fill)
    except (ValueError, OverflowError):
        return None  # no link can be called so
    for answer in refused.values():
        if answer.errno != errno.ENODEV:
            raise KernelError(answer.errno, answer.text, f"asking for link {subject}")
    return next(iter(links.values()), None)


async def _link(
    plane: DataPlane, plan: Plan | None, subject: str, link: LinkDetails | None
) -> dict[str, Any]:
    name = subject if link is None else link.name
    endpoint = None
    if plan is not None:
        endpoint = next((e for e in plan.endpoints.values() if e.interface == name), None)
    if endpoint is not None:
        return await _endpoint(plane, plan, endpoint.id, endpoint)
    found: dict[str, Any] = {
        "type": "link",
        "endpoints": [],
        "ownership": None,
        "plan": None,
        "observed": None,
        "difference": {},
        "operations": [],
        "last_changed_by": None,
    }
    if link is not None:
        # The kernel doesn't tell who changes a link, but who changes its addresses.
        port = plane.route_driver.changed_by.get((link.ifindex,))
        found["last_changed_by"] = await _changed_by(port)
    known = plane.engine.explain(name)
    if known is not None:
        found.update(known)
    elif link is None:
        found["ownership"] = {"verdict": "absent", "reason": "there is no such link"}
    else:
        found["ownership"] = {"verdict": "foreign", "reason": _why_foreign(plane, plan, link)}
        found["observed"] = _observed(link)
    holds = [each for each in plane.engine.conflicts() if each.holder == name]
    found["in_the_way_of"] = [
        {"object": each.object, "name": each.name, "reason": each.reason} for each in holds
    ]
    return found


def _why_foreign(plane: DataPlane, plan: Plan | None, link: LinkDetails) -> str:
    verdict = plane.scheme.recognise(link.name, link.kind, tap_mode=link.tap is True)
    if verdict.verdict != "tracked-name":
        return verdict.reason
    where = "the plan can't be read" if plan is None else "no endpoint of the plan has it"
    return f"{verdict.reason}, but {where}"


def _observed(link: LinkDetails) -> dict[str, Any]:
    return {
        "ifindex": link.ifindex,
        "name": link.name,
        "kind": link.kind,
        "up": link.admin_up,
        "mtu": link.mtu,
        "mac": link.mac.hex(":"),
        "controller": link.controller,
        "altnames": list(link.altnames),
    }


# -- endpoints and their routes


async def _endpoint(
    plane: DataPlane, plan: Plan | None, endpoint_id: EndpointId, endpoint: Endpoint | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "endpoint",
        "endpoints": [str(endpoint_id)],
        "ownership": {"verdict": "foreign", "reason": "the plan has no such endpoint"},
        "plan": None,
        "observed": None,
        "difference": {},
        "operations": [],
        "last_changed_by": None,
        "routes": [],
    }
    if plan is None:
        found["ownership"]["reason"] = "the plan can't be read"
    if plan is None or endpoint is None:
        return found
    name = endpoint.interface
    link = await _ask(plane, name)
    if link is None or link.name != name:
        reason = f"its link {name} is not there; when it is, it is tracked"
        found["ownership"] = {"verdict": "absent", "reason": reason}
    else:
        named = plane.scheme.recognise(name, link.kind).reason
        reason = f"{named}, and {endpoint_id} of the plan has it"
        found["ownership"] = {"verdict": "tracked", "reason": reason}
        found["observed"] = _observed(link)
    table = plan.route_table(endpoint, plane.settings.route_table)
    found["plan"] = _plan(endpoint, table)
    keys = [
        route.RouteKey(*prefix, table, 0, plane.settings.route_metric)
        for prefix in endpoint.addresses
    ]
    await _add_routes(plane, found, [endpoint], keys, table)
    return found


def _plan(endpoint: Endpoint, table: int) -> dict[str, Any]:
    return {
        "object": f"endpoint {endpoint.id}",
        "interface": endpoint.interface,
        "addresses": [str(each) for each in endpoint.addresses],
        "uid": endpoint.uid,
        "admin": "up" if endpoint.admin_up else "down",
        "vpc": endpoint.vpc,
        "table": table,
    }


async def _prefix_routes(
    plane: DataPlane, plan: Plan | None, prefix: Prefix, wanting: Sequence[Endpoint]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "prefix",
        "endpoints": [str(each.id) for each in wanting],
        "ownership": None,
        "plan": None,
        "observed": [],
        "difference": {},
        "operations": [],
        "last_changed_by": None,
        "routes": [],
    }
    keys = []
    if plan is not None and wanting:
        tables = [plan.route_table(each, plane.settings.route_table) for each in wanting]
        found["plan"] = [_plan(each, table) for each, table in zip(wanting, tables, strict=True)]
        metric = plane.settings.route_metric
        keys = [route.RouteKey(*prefix, table, 0, metric) for table in dict.fromkeys(tables)]
    there = await _add_routes(plane, found, wanting, keys, 0, prefix)
    found["observed"] = [_route(plane, each) for each in there]
    ours = [each for each in there if _is_ours(plane, each)]
    if ours:
        reason = f"it has a route of our protocol ({plane.settings.route_protocol})"
        verdict = "owned"
    elif there:
        by = ", ".join(dict.fromkeys(route.protocol_text(each.protocol) for each in there))
        verdict, reason = "foreign", f"its routes are of protocol {by}"
    else:
        verdict, reason = "absent", "there is no route to it"
    found["ownership"] = {"verdict": verdict, "reason": reason}
    return found


async def _add_routes(
    plane: DataPlane,
    found: dict[str, Any],
    endpoints: Iterable[Endpoint],
    keys: Sequence[route.RouteKey],
    table: int,
    prefix: Prefix | None = None,
) -> list[RouteMessage]:
    """Fill in what there is to say of the routes `keys`; returns all that are to their prefixes,
    or to `prefix`, in `table` (0: in all)."""
    wanted = {(key.family, key.dst, key.prefix_len) for key in keys}
    if prefix is not None:
        wanted.add((prefix.family, prefix.address, prefix.length))
    there: list[RouteMessage] = []
    for family in sorted({each[0] for each in wanted}):
        there += await plane.kernel.dump_routes(
            family,
            table=table,
            keep=lambda m: (m.family, m.dst, m.prefix_len) in wanted and table in (0, m.table),
        )
    found["routes"] = await _standings(plane, endpoints, keys)
    for each in found["routes"]:
        at = [m for m in there if (_key_text(m), m.table) == (each["prefix"], each["table"])]
        each["observed"] = [_route(plane, message) for message in at]
        each["shadowed"] = any(
            not _is_ours(plane, message) and message.metric < each["metric"] for message in at
        )
        if each["state"] not in ("programmed", "idle"):
            found["difference"][each["prefix"]] = {
                "observed": each["observed"],
                "wanted": {"ifindex": each["wanted_ifindex"], "table": each["table"]},
            }
    port = None
    for key in keys:
        answer = plane.route_driver.answers.get(key)
        if answer is not None:
            found["operations"].append(_operation(*answer))
        port = plane.route_driver.changed_by.get(key) if port is None else port
    found["last_changed_by"] = await _changed_by(port)
    return there


async def _changed_by(port: int | None) -> dict[str, Any] | None:
    """Who has that netlink port now; None where nobody else has changed anything."""
    if port is None:
        return None
    process = await asyncio.to_thread(process_of, port) if port else None
    return {"port": port, "process": process}


async def _standings(
    plane: DataPlane, endpoints: Iterable[Endpoint], keys: Sequence[route.RouteKey]
) -> list[dict[str, Any]]:
    """How each of the routes stands: the agent knows, a command finds out."""
    if plane.acting:
        slots = {
            slot.key: slot
            for endpoint in endpoints
            for slot in plane.routes.slots(endpoint.id)
            if slot.key in keys
        }
        return [report.explain(slots[key]) for key in keys if key in slots]
    seen = await plane.preview_routes()
    to_do = {op.key: type(op).__name__.lower() for op in seen.ops}
    held = {each.key: each.reason for each in seen.conflicts}
    told = [plane.feed.table.told(each.interface) or (0, False) for each in endpoints]
    ifindex, up = told[-1] if told else (0, False)
    standings = []
    for key in keys:
        state = "conflict" if key in held else "pending" if key in to_do else "programmed"
        reason = held.get(key) or (f"to {to_do[key]}" if key in to_do else None)
        if state == "programmed" and not up:
            state, reason = "idle", "its link is not up"
        standings.append(
            {
                "prefix": str(key),
                "table": key.table,
                "metric": key.metric,
                "state": state,
                "reason": reason,
                "wanted_ifindex": ifindex,
            }
        )
    return standings


def _key_text(message: RouteMessage) -> str:
    """The destination as people write it."""
    return f"{socket.inet_ntop(message.family, message.dst)}/{message.prefix_len}"


def _route(plane: DataPlane, message: RouteMessage) -> dict[str, Any]:
    table = plane.feed.table
    return {
        "table": message.table,
        "metric": message.metric,
        "protocol": message.protocol,
        "ifindex": message.oif,
        "interface": table[message.oif].name if message.oif in table else None,
        "ours": _is_ours(plane, message),
    }


def _is_ours(plane: DataPlane, message: RouteMessage) -> bool:
    ours = message.protocol == plane.settings.route_protocol
    return ours and message.metric >= 1 and is_device_route(message)


def _operation(at: float, op: route.Op, number: int | None, words: str) -> dict[str, Any]:
    arguments = {"prefix": str(op.key), "table": op.key.table, "ifindex": op.oif}
    step = f"Route{type(op).__name__}"
    return {"at_s": at, "step": step, "arguments": arguments, "errno": number, "words": words}
