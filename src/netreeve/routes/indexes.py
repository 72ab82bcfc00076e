"""Where the reconciler finds its slots and claims, so that an event costs what it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import KeysView

    from netreeve.routes.slot import Claim, Slot

__all__ = ["Destination", "Destinations", "Devices", "Interfaces"]

Destination: TypeAlias = tuple[int, bytes, int]  # family, dst, prefix_len


class Destinations:
    """What endpoints want a route to; several tables may want one to the same."""

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted: dict[Destination, int] = {}

    def add(self, destination: Destination) -> None:
        self._wanted[destination] = self._wanted.get(destination, 0) + 1

    def discard(self, destination: Destination) -> None:
        if self._wanted[destination] > 1:
            self._wanted[destination] -= 1
        else:
            del self._wanted[destination]

    def view(self) -> KeysView[Destination]:
        """Live."""
        return self._wanted.keys()


class Interfaces:
    """Claims by the name of their link; more than one only while a plan is being handed over."""

    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[str, tuple[Claim, ...]] = {}

    def claims(self, name: str) -> tuple[Claim, ...]:
        return self._claims.get(name, ())

    def add(self, claim: Claim) -> None:
        self._claims[claim.interface] = (*self.claims(claim.interface), claim)

    def discard(self, claim: Claim) -> None:
        others = tuple(other for other in self.claims(claim.interface) if other is not claim)
        if others:
            self._claims[claim.interface] = others
        else:
            del self._claims[claim.interface]


class Devices:
    """Slots by each ifindex that matters to them: that of the belief, the op, the holder."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: dict[int, dict[Slot, None]] = {}  # dicts, for their order

    def slots(self, ifindex: int) -> tuple[Slot, ...]:
        return tuple(self._slots.get(ifindex, ()))

    def place(self, slot: Slot) -> None:
        """Call it after each change of the slot's oif, flight or holder."""
        refs = (
            slot.oif,
            0 if slot.flight is None else slot.flight.oif,
            0 if slot.holder is None else slot.holder.oif,
        )
        before = slot.refs
        if refs == before:
            return
        slot.refs = refs
        for ifindex in {*before}.difference(refs, (0,)):
            slots = self._slots[ifindex]
            del slots[slot]
            if not slots:
                del self._slots[ifindex]
        for ifindex in {*refs}.difference(before, (0,)):
            self._slots.setdefault(ifindex, {})[slot] = None
