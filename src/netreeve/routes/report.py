"""How routes stand, told to people and to machines. Nothing is decided here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netreeve.routes.slot import Standing, Step

if TYPE_CHECKING:
    from netreeve.routes.slot import Slot

__all__ = ["explain", "unsettled"]

_REFUSED = (Standing.CONFLICT, Standing.REFUSED)


def unsettled(slot: Slot) -> bool:
    """Whether something is under way at the key, or would be next; not where it was refused."""
    if slot.flight is not None or slot.asking:
        return True
    return slot.standing not in _REFUSED and slot.step() is not Step.NOTHING


def explain(slot: Slot) -> dict[str, object]:
    """One route of an endpoint, as `explain --json` has it; ifindexes are 0 where there is none."""
    return {
        "prefix": str(slot.key),
        "table": slot.key.table,
        "metric": slot.key.metric,
        "state": slot.standing.name.lower(),
        "reason": slot.reason() if slot.standing in _REFUSED else None,
        "wanted_ifindex": slot.keep,
        "observed_ifindex": slot.oif,
        "belief": slot.belief.value,
        "failures": slot.failures,
    }
