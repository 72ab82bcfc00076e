"""One FIB key that concerns us: what is wanted there, what we believe is there, what follows.

The kernel can't be read for every decision, and its events don't tell all (IPv4 routes vanish
silently). So each key has a belief, which says how far we may go:

- adding is always safe: the kernel refuses it (EEXIST) where anybody's route holds the key;
- replacing overwrites whatever comes first, also a foreign route, so it takes proof that our route
  is the only one of its key (`SOLE`);
- deleting names protocol and device, so that a wrong belief costs a request and hurts nobody.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netreeve.model.route import Conflict

if TYPE_CHECKING:
    from netreeve._ext import wire
    from netreeve.model.ids import EndpointId
    from netreeve.model.route import Op, RouteKey

__all__ = ["Belief", "Claim", "Holder", "Slot", "Standing", "Step", "is_device_route", "key_of"]

RTN_UNICAST = 1  # <linux/rtnetlink.h>


class Belief(enum.Enum):
    """What is at a key. `oif` is `Slot.oif`."""

    NONE = "none"  # certainly no route of ours; oif is 0
    UNKNOWN = "unknown"  # perhaps one of ours, if so probably on oif (0: no idea where)
    FOUND = "found"  # ours on oif, seen in a dump of our routes: others may share the key
    SOLE = "sole"  # ours on oif, and no other route of this key
    SHARED = "shared"  # others hold the key; ours is there too, on oif, if that isn't 0


class Standing(enum.IntEnum):
    """How a key stands for those who want it; an index into the reconciler's counters."""

    IDLE = 0  # nothing is wanted, or the link isn't up yet
    PROGRAMMED = 1
    PENDING = 2
    REFUSED = 3
    CONFLICT = 4


class Step(enum.Enum):
    """What to do about a key next."""

    NOTHING = "nothing"
    ADD = "add"
    REPLACE = "replace"
    DELETE = "delete"
    ASK = "ask"  # who holds it?


@dataclass(frozen=True, slots=True)
class Holder:
    """The foreign route that holds a key."""

    protocol: int
    oif: int  # 0 where it has no single device


class Claim:
    """An endpoint as the routes see it: where its link is, and the keys that it wants."""

    __slots__ = ("admin_up", "id", "ifindex", "interface", "slots", "up")

    def __init__(self, endpoint_id: EndpointId, interface: str) -> None:
        self.id = endpoint_id
        self.interface = interface
        self.admin_up = False
        self.ifindex = 0  # as told, 0 = absent
        self.up = False  # as told
        self.slots: tuple[Slot, ...] = ()  # in the order of the endpoint's addresses


class Slot:
    """A key with its claims, belief and history. Compared by identity."""

    __slots__ = (
        "asking",
        "belief",
        "claims",
        "create",
        "failures",
        "flight",
        "holder",
        "keep",
        "key",
        "oif",
        "refs",
        "refusal",
        "stale",
        "standing",
        "touched",
    )

    def __init__(self, key: RouteKey, belief: Belief) -> None:
        self.key = key
        # The newest claim counts. There is more than one only while a change of the plan is being
        # handed over: the address has moved, and its old endpoint hasn't been told yet.
        self.claims: tuple[Claim, ...] = ()
        self.keep = 0  # the ifindex that our route may be on, 0 = nowhere
        self.create = False  # whether to put it there if it isn't: the link is up
        self.belief = belief
        self.oif = 0
        self.holder: Holder | None = None  # the foreign route last seen in the way
        self.refusal: str | None = None  # the kernel's words, for another reason than a holder
        self.flight: Op | None = None
        self.stale = False  # something happened at this key while the op was in flight
        self.asking = False  # a question about it waits to be put, or to be answered
        self.failures = 0
        self.touched = 0  # the reconciler's clock when an event, an op or an answer was here
        self.standing = Standing.IDLE
        self.refs: tuple[int, ...] = ()  # ifindexes under which the reconciler finds it

    def __repr__(self) -> str:
        return (
            f"<Slot {self.key} table {self.key.table} {self.belief.value}@{self.oif} "
            f"keep={self.keep} create={self.create} flight={self.flight} asking={self.asking}>"
        )

    @property
    def elsewhere(self) -> bool:
        """Whether a route of ours is, or may be, on a device that it must leave."""
        return self.oif != 0 and self.oif != self.keep

    @property
    def ours(self) -> bool:
        """Whether the kernel has our route where it should be."""
        return (self.belief is Belief.SOLE or self.belief is Belief.FOUND) and (
            self.oif == self.keep != 0
        )

    def only_on(self, oif: int) -> bool:
        """Whether no route of ours is there, once there is none on `oif`."""
        return self.belief is Belief.NONE or (self.belief is not Belief.SHARED and self.oif == oif)

    def step(self) -> Step:
        """What the belief and the wish make necessary; the caller knows what is allowed now."""
        if self.flight is not None or self.asking:
            return Step.NOTHING
        belief = self.belief
        if belief is Belief.SHARED and self.elsewhere:
            return Step.DELETE
        if self.create:
            if belief is Belief.SOLE:
                return Step.NOTHING if self.oif == self.keep else Step.REPLACE
            # Also where ours is in its place: a foreign one beside it may come first.
            return Step.ASK if belief is Belief.FOUND else Step.ADD
        if self.elsewhere:
            return Step.DELETE
        if belief is Belief.UNKNOWN and self.oif == 0:
            return Step.ASK
        return Step.NOTHING

    def stand(self) -> Standing:
        if not self.claims or self.keep == 0:
            return Standing.IDLE
        if self.ours:
            return Standing.PROGRAMMED
        if not self.create:
            return Standing.IDLE
        if self.holder is not None:
            return Standing.CONFLICT
        return Standing.PENDING if self.refusal is None else Standing.REFUSED

    def conflict(self) -> Conflict:
        """Only while it stands as one."""
        assert self.holder is not None
        endpoint = str(self.claims[-1].id)
        return Conflict(self.key, endpoint, self.holder.protocol, self.holder.oif)

    def reason(self) -> str:
        """Why it can't be had; only while it stands as a conflict or as refused."""
        return f"{self.key}: {self.refusal}" if self.holder is None else self.conflict().reason


def key_of(message: wire.RouteMessage) -> tuple[int, bytes, int, int, int, int]:
    """The FIB key of a message; equal, as a tuple, to the RouteKey of the same values."""
    return (
        message.family,
        message.dst,
        message.prefix_len,
        message.table,
        message.tos,
        message.metric,
    )


def is_device_route(message: wire.RouteMessage) -> bool:
    """Whether it has the only shape that we give a route: unicast, straight to one device.

    Another shape under our protocol number wasn't made by us, and a request that names one device
    can't describe it: doubt means foreign.
    """
    return (
        message.type == RTN_UNICAST
        and message.oif > 0
        and message.nexthops == 0
        and not message.has_gateway
    )
