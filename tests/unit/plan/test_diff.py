"""What became different between two plans."""

from __future__ import annotations

from dataclasses import replace

from netreeve.model.ids import EndpointId
from netreeve.plan.diff import EndpointDiff, diff_endpoints
from netreeve.plan.model import Endpoint, Plan, Vpc, Vtep

A, B, C = (Endpoint(EndpointId("k8s", name, "eth0"), f"cali{name}") for name in "abc")


def of(*endpoints: Endpoint, table: int = 7) -> Plan:
    vpc = Vpc("red", table, 1, Vtep((2, b"\1\1\1\1"), 4789, 64))
    return Plan({"red": vpc}, {}, {endpoint.id: endpoint for endpoint in endpoints})


def test_from_no_plan_all_are_added_in_the_order_of_their_ids() -> None:
    assert diff_endpoints(None, of(C, A, B)) == EndpointDiff((), (A, B, C), ())


def test_equal_plans_differ_in_nothing() -> None:
    assert diff_endpoints(of(A, B), of(B, A)) == EndpointDiff((), (), ())


def test_removed_added_and_changed() -> None:
    changed = replace(A, admin_up=False)
    assert diff_endpoints(of(C, B, A), of(changed)) == EndpointDiff((B, C), (), (changed,))


def test_another_table_of_its_vpc_changes_an_endpoint() -> None:
    inside = replace(B, vpc="red")
    diff = diff_endpoints(of(A, inside), of(A, inside, table=8))
    assert diff == EndpointDiff((), (), (inside,))
