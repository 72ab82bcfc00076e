"""Links of ours as values: what is wanted of one, how it stands, what would be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from netreeve.model import ownership
from netreeve.model.prefix import LinkAddress

__all__ = [
    "Action",
    "Change",
    "Conflict",
    "Foreign",
    "HeldBack",
    "LinkCounts",
    "LinkSpec",
    "State",
    "Status",
    "Value",
]

Value: TypeAlias = int | bool | tuple[int, bytes]
"""Of a kind's property; an address is (family, packed)."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One link as the plan wants it; always administratively up.

    `entry` is the plan entry that it comes from ("vpc red"). `properties` are those of its kind:
    each name is an argument of `encode.Batch.link_create` and an attribute of
    `details.LinkDetails`. None for `mtu` (bytes) or `mac` (6 bytes) leaves it as it is. With
    `controller` None it has no controller that is ours; another's is left alone.
    """

    kind: ownership.Kind
    name: str
    entry: str
    properties: tuple[tuple[str, Value], ...] = ()
    mtu: int | None = None
    mac: bytes | None = None
    controller: str | None = None
    addresses: tuple[LinkAddress, ...] = ()


State = Literal["in_sync", "pending", "error", "conflict", "blocked", "unproven"]


@dataclass(frozen=True, slots=True)
class Status:
    """How a link of ours stands.

    `in_sync`: as planned. `pending`: something is to be done, or waited for. `error`: the kernel
    refused; tried again later. `conflict`: somebody else's link (`holder`, its name) has what the
    plan wants. `blocked`: it is not to be deleted, or not now. `unproven`: named as ours is, but
    without our token (NETREEVE_OWNERSHIP=token). `reason` is a sentence for people.
    """

    state: State
    reason: str | None = None
    holder: str | None = None


Action = Literal["create", "change", "recreate", "adopt", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """What would be done now; `fields` holds {"observed", "wanted"} by name, as JSON has them.

    `object` is the plan entry, or the kind of a link that no entry wants. `ifindex` is 0 where
    the link isn't there.
    """

    action: Action
    object: str
    name: str
    ifindex: int
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conflict:
    """The plan entry `object` can't have its link `name` as planned: `holder` is in the way."""

    object: str
    name: str
    holder: str
    reason: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A link of ours that would be deleted, recreated or taken over, if `reason` were not."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Foreign:
    """A link that is left alone, and why."""

    name: str
    ifindex: int
    kind: str
    reason: str


class LinkCounts(NamedTuple):
    """`wanted` by the plan, and all links of ours, planned or not, by how they stand.

    `blocked` includes those that are unproven.
    """

    wanted: int
    in_sync: int
    pending: int
    error: int
    conflict: int
    blocked: int
