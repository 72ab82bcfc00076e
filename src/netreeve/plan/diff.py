"""What became different between two plans."""

from __future__ import annotations

from dataclasses import dataclass

from netreeve.plan.model import Endpoint, Plan

__all__ = ["EndpointDiff", "diff_endpoints"]


@dataclass(frozen=True, slots=True)
class EndpointDiff:
    """Endpoints that went, came, and stayed with something changed (the new value); by id."""

    removed: tuple[Endpoint, ...]
    added: tuple[Endpoint, ...]
    changed: tuple[Endpoint, ...]


def diff_endpoints(old: Plan | None, new: Plan) -> EndpointDiff:
    """Compare by id; None stands for no plan at all.

    An endpoint counts as changed too when the table of its VPC is another one: its routes move.
    """
    before = old.endpoints if old is not None else {}
    after = new.endpoints
    removed = sorted(before.keys() - after.keys())
    added = sorted(after.keys() - before.keys())
    changed = [
        endpoint
        for endpoint_id, endpoint in after.items()
        if endpoint_id in before
        and old is not None
        and (before[endpoint_id] != endpoint or _table_moved(old, new, endpoint))
    ]
    return EndpointDiff(
        tuple(before[endpoint_id] for endpoint_id in removed),
        tuple(after[endpoint_id] for endpoint_id in added),
        tuple(sorted(changed, key=lambda endpoint: endpoint.id)),
    )


def _table_moved(old: Plan, new: Plan, endpoint: Endpoint) -> bool:
    return endpoint.vpc is not None and old.vpcs[endpoint.vpc].table != new.vpcs[endpoint.vpc].table
