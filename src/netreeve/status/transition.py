"""One step in the life of an endpoint's status, as consumers see it, and its form as JSON.

The members and their order are fixed (product.md, JSON shapes); consumers skip members they
don't know, so new ones go to the end.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import orjson

from netreeve.model import text

__all__ = ["Gap", "Status", "Transition", "decode", "encode", "observed_text"]

Status = Literal["up", "down", "error", "removed", "gap"]
_STATUSES = frozenset(get_args(Status))


@dataclass(frozen=True, slots=True)
class Gap:
    """Transitions that happened and could not be recorded.

    `lost` is how many, None where nobody can know. `since` is the wall clock text of the first.
    """

    lost: int | None
    since: str
    reason: str


@dataclass(frozen=True, slots=True)
class Transition:
    """One record of the journal.

    `seq` counts from 1 per node, without a hole. `endpoint` is the canonical text of the id. `uid`
    is the incarnation its source gave, None where it gives none. `previous` is the status recorded
    before this one, None for the first. `reason` says why it is not up. `ifindex` is the link
    meant, for `link-absent` the one that went away, None where there was none. `inferred` is set
    where the change was concluded, not seen. `observed` is for people only (`observed_text`).

    `routes` is "unconfirmed" on an `up` whose link fell before the kernel had acknowledged the
    routes. `flaps` is set on an inferred `down` that stands for so many of them, which the kernel
    had merged into one message.

    A record with status "gap" speaks of the whole node: `endpoint` and `link` are empty, `lost` and
    `since` are as in `Gap`, and the present status of every endpoint follows.
    """

    seq: int
    endpoint: str
    uid: str | None
    status: Status
    previous: Status | None
    reason: str | None
    link: str
    ifindex: int | None
    inferred: bool
    observed: str
    routes: Literal["unconfirmed"] | None = None
    flaps: int | None = None
    lost: int | None = None
    since: str | None = None


def encode(transition: Transition) -> bytes:
    """One JSON object, without a line feed; members always in the same order."""
    record: dict[str, Any] = {
        "seq": transition.seq,
        "endpoint": transition.endpoint,
        "uid": transition.uid,
        "status": transition.status,
        "previous": transition.previous,
        "reason": transition.reason,
        "link": transition.link,
        "ifindex": transition.ifindex,
        "inferred": transition.inferred,
        "observed": transition.observed,
    }
    if transition.routes is not None:
        record["routes"] = transition.routes
    if transition.flaps is not None:
        record["flaps"] = transition.flaps
    if transition.status == "gap":
        record["lost"] = transition.lost
        record["since"] = transition.since
    return text.json_bytes(record)


def decode(line: bytes) -> Transition:
    """The transition that `encode` wrote; members of later versions are skipped.

    Raises ValueError for anything that isn't such a record.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = json.loads(line)  # a name that isn't UTF-8: orjson refuses lone surrogates
    if not isinstance(record, dict):
        raise ValueError("a transition is a JSON object")
    try:
        transition = Transition(
            seq=record["seq"],
            endpoint=record["endpoint"],
            uid=record["uid"],
            status=record["status"],
            previous=record["previous"],
            reason=record["reason"],
            link=record["link"],
            ifindex=record["ifindex"],
            inferred=record["inferred"],
            observed=record["observed"],
            routes=record.get("routes"),
            flaps=record.get("flaps"),
            lost=record.get("lost"),
            since=record.get("since"),
        )
    except KeyError as missing:
        raise ValueError(f"a transition without {missing}") from None
    if type(transition.seq) is not int or transition.status not in _STATUSES:
        raise ValueError("a transition needs a number as seq and a known status")
    return transition


def observed_text(unix_ns: int) -> str:
    """RFC 3339 in UTC with milliseconds, from nanoseconds since 1970."""
    seconds, rest_ns = divmod(unix_ns, 1_000_000_000)
    return f"{_second_text(seconds)}.{rest_ns // 1_000_000:03d}Z"


@functools.lru_cache(maxsize=2)
def _second_text(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}"
