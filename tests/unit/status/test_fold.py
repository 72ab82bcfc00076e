from __future__ import annotations

from dataclasses import replace

import pytest

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved
from netreeve.model.ids import EndpointId
from netreeve.plan.model import Endpoint
from netreeve.status.fold import StatusFold
from netreeve.status.transition import Gap, Transition

T = "2026-01-02T03:04:05.678Z"
ID = EndpointId("k8s", "default/web-0", "eth0")
WEB = Endpoint(ID, "cali1")


def recorded(status: str, ifindex: int | None = 10, uid: str | None = None) -> Transition:
    return Transition(5, str(ID), uid, status, None, None, "cali1", ifindex, False, T)  # type: ignore[arg-type]


def short(transitions: list[Transition]) -> list[str]:
    """`status reason`, with `?` behind an inferred one and `!` behind unconfirmed routes."""
    return [
        " ".join(filter(None, [each.status, each.reason]))
        + ("?" if each.inferred else "")
        + ("!" if each.routes else "")
        for each in transitions
    ]


class Told:
    """A fold, and what it recorded, with short hands."""

    def __init__(
        self, present: dict[EndpointId, Transition] | None = None, rebooted: bool = False
    ) -> None:
        self.fold = StatusFold(present or {}, 6 if present else 1, rebooted=rebooted)
        self.all: list[Transition] = []

    def _note(self, transitions: list[Transition]) -> list[str]:
        self.all += transitions
        return short(transitions)

    def set(self, told: tuple[int, bool] | None, endpoint: Endpoint = WEB) -> list[str]:
        return self._note(self.fold.endpoint_set(endpoint, told, T))

    def gone(self, uid: str | None = None) -> list[str]:
        return self._note(self.fold.endpoint_gone(ID, uid, T))

    def added(self, ifindex: int, up: bool, name: str = "cali1") -> list[str]:
        return self._note(self.fold.link(LinkAdded(name, ifindex, up), T))

    def changed(self, up: bool, inferred: bool = False, flaps: int = 0) -> list[str]:
        return self._note(self.fold.link(LinkChanged("cali1", 10, up, inferred, flaps), T))

    def removed(self, ifindex: int = 10) -> list[str]:
        return self._note(self.fold.link(LinkRemoved("cali1", ifindex), T))

    def confirmed(self) -> list[str]:
        return self._note(self.fold.routes(ID, "confirmed", None, T))

    def refused(self, reason: str = "File exists") -> list[str]:
        return self._note(self.fold.routes(ID, "refused", reason, T))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def up() -> Told:
    told = Told()
    told.set((10, True))
    told.confirmed()
    return told


def test_the_table_of_situations(told: Told) -> None:
    assert told.set(None) == ["down link-absent"]
    assert told.added(10, False) == []
    assert told.changed(True) == []
    assert told.confirmed() == ["up"]
    assert told.changed(False) == ["down link-down"]
    assert told.changed(True) == []
    assert told.refused() == ["error File exists"]
    assert told.confirmed() == ["up"]
    assert told.removed() == ["down link-absent"]
    assert told.gone() == ["removed"]
    assert [each.seq for each in told.all] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.previous for each in told.all] == [
        None, "down", "up", "down", "error", "up", "down",
    ]  # fmt: skip


def test_a_record_says_what_it_is_about(told: Told) -> None:
    told.set((10, True), replace(WEB, uid="u1"))
    told.confirmed()
    told.removed()
    assert told.all == [
        Transition(1, str(ID), "u1", "up", None, None, "cali1", 10, False, T),
        Transition(2, str(ID), "u1", "down", "up", "link-absent", "cali1", 10, False, T),
    ]


def test_pending_changes_nothing(up: Told) -> None:
    assert up.fold.routes(ID, "pending", None, T) == []
    assert up.changed(False) == ["down link-down"]


def test_three_flaps_are_six_transitions_and_the_last_up_waits_for_its_routes(up: Told) -> None:
    flaps = [up.changed(state) for state in (False, True, False, True, False, True)]
    assert [each for part in flaps for each in part] == [
        "down link-down", "up!", "down link-down", "up!", "down link-down",
    ]  # fmt: skip
    assert up.confirmed() == ["up"]


def test_an_answer_from_before_the_up_does_not_count(up: Told) -> None:
    up.changed(False)
    assert up.confirmed() == []
    assert up.refused() == []
    assert up.changed(True) == []
    assert up.confirmed() == ["up"]


def test_removal_of_a_link_that_was_up_but_not_confirmed(told: Told) -> None:
    told.set((10, True))
    assert told.removed() == ["up!", "down link-absent"]
    assert told.added(11, True) == []
    assert told.all[0].ifindex == told.all[1].ifindex == 10
    assert told.confirmed() == ["up"]
    assert told.all[-1].ifindex == 11


def test_an_error_is_not_turned_into_an_up_by_its_links_fall(told: Told) -> None:
    told.set((10, True))
    told.refused()
    assert told.changed(False) == ["down link-down"]


def test_equal_status_is_recorded_once_whatever_its_reason(up: Told) -> None:
    assert up.confirmed() == []
    up.refused("a")
    assert up.refused("b") == []
    up.changed(False)
    assert up.removed() == []
    assert up.set(None) == []


def test_flaps_that_the_kernel_merged_are_marked(up: Told) -> None:
    assert up.changed(False, inferred=True, flaps=3) == ["down link-down?"]
    assert up.all[-1].flaps == 3
    assert up.changed(True, inferred=True) == []
    assert up.confirmed() == ["up?"]


def test_admin_down_beats_the_link(up: Told) -> None:
    down = replace(WEB, admin_up=False)
    assert up.set((10, True), down) == ["down admin-down"]
    assert up.confirmed() == []
    assert up.changed(False) == []
    assert up.changed(True) == []
    assert up.set((10, True)) == []
    assert up.confirmed() == ["up"]


def test_links_that_nobody_planned_are_ignored(up: Told) -> None:
    assert up.added(12, True, "other") == []


class TestIncarnations:
    def test_a_new_one_is_seen_going_down_and_up(self, told: Told) -> None:
        told.set((10, True), replace(WEB, uid="a"))
        told.confirmed()
        assert told.set((10, True), replace(WEB, uid="b")) == ["down new-incarnation"]
        assert told.all[-1].uid == "b"
        assert told.confirmed() == ["up"]

    def test_one_that_is_down_already_is_not_told_twice(self, told: Told) -> None:
        told.set(None, replace(WEB, uid="a"))
        assert told.set(None, replace(WEB, uid="b")) == []
        told.added(10, True)
        told.confirmed()
        assert told.all[-1].uid == "b"

    def test_a_late_removal_of_the_old_one_does_nothing(self, told: Told) -> None:
        told.set((10, True), replace(WEB, uid="b"))
        told.confirmed()
        assert told.gone("a") == []
        assert told.gone("b") == ["removed"]
        assert told.gone("b") == []

    def test_a_removal_without_uid_means_any(self, told: Told) -> None:
        told.set((10, True), replace(WEB, uid="b"))
        told.confirmed()
        assert told.gone() == ["removed"]

    def test_what_was_never_recorded_goes_without_a_word(self, told: Told) -> None:
        told.set((10, True))
        assert told.gone() == []
        assert told.fold.known() == frozenset()


class TestInterfaces:
    def test_another_link_is_evaluated_anew(self, up: Told) -> None:
        assert up.set((20, True), replace(WEB, interface="cali2")) == ["down interface-changed"]
        assert up.changed(False) == []
        assert up.refused() == ["error File exists"]
        assert up.all[-1].link == "cali2"
        assert up.all[-1].ifindex == 20

    def test_to_one_that_is_not_there_or_not_up(self, up: Told) -> None:
        assert up.set(None, replace(WEB, interface="cali2")) == ["down link-absent"]
        up.set((10, True))
        up.confirmed()
        assert up.set((20, False), replace(WEB, interface="cali2")) == ["down link-down"]

    def test_one_that_passes_to_another_endpoint_in_either_order(self, up: Told) -> None:
        other = Endpoint(EndpointId("k8s", "b", "eth0"), "cali1")
        up.fold.endpoint_set(other, (10, True), T)
        assert up.gone() == ["removed"]
        assert short(up.fold.link(LinkRemoved("cali1", 10), T)) == ["up!", "down link-absent"]

    def test_two_that_are_swapped(self, up: Told) -> None:
        other = Endpoint(EndpointId("k8s", "b", "eth0"), "cali2")
        up.fold.endpoint_set(other, (20, True), T)
        up.fold.endpoint_set(replace(WEB, interface="cali2"), (20, True), T)
        up.fold.endpoint_set(replace(other, interface="cali1"), (10, True), T)
        assert {each.endpoint for each in up.fold.link(LinkRemoved("cali2", 20), T)} == {str(ID)}
        assert {each.endpoint for each in up.fold.link(LinkRemoved("cali1", 10), T)} == {
            str(other.id)
        }


class TestRestart:
    def test_nothing_changed(self) -> None:
        told = Told({ID: recorded("up")})
        assert told.set((10, True)) == []
        assert told.confirmed() == []
        assert told.changed(False) == ["down link-down"]

    @pytest.mark.parametrize("status", ["up", "error"])
    def test_the_link_was_rebuilt_while_nobody_looked(self, status: str) -> None:
        told = Told({ID: recorded(status)})
        assert told.set((11, True)) == ["down link-absent?"]
        assert told.all[0].ifindex == 10
        assert told.all[0].seq == 6
        assert told.confirmed() == ["up"]

    def test_after_a_reboot_an_ifindex_proves_nothing(self) -> None:
        told = Told({ID: recorded("up")}, rebooted=True)
        assert told.set((10, True)) == ["down link-absent?"]
        assert told.confirmed() == ["up"]
        assert told.set((10, True), replace(WEB, admin_up=False)) == ["down admin-down"]

    def test_what_was_down_says_nothing_more(self) -> None:
        told = Told({ID: recorded("down")}, rebooted=True)
        assert told.set((11, True)) == []
        assert told.confirmed() == ["up"]

    def test_the_link_is_away_or_down(self) -> None:
        assert Told({ID: recorded("up")}).set(None) == ["down link-absent"]
        assert Told({ID: recorded("up")}).set((10, False)) == ["down link-down"]

    def test_an_error_that_is_mended(self) -> None:
        told = Told({ID: recorded("error")})
        assert told.set((10, True)) == []
        assert told.confirmed() == ["up"]

    def test_an_error_whose_link_falls_was_not_up(self) -> None:
        told = Told({ID: recorded("error")})
        told.set((10, True))
        assert told.changed(False) == ["down link-down"]

    def test_another_incarnation_came(self) -> None:
        told = Told({ID: recorded("up", uid="a")})
        assert told.set((11, True), replace(WEB, uid="b")) == ["down new-incarnation"]

    def test_the_plan_lost_it_meanwhile(self) -> None:
        told = Told({ID: recorded("up", uid="a")})
        assert told.fold.known() == {ID}
        assert told.gone() == ["removed"]
        assert (told.all[0].uid, told.all[0].link, told.all[0].ifindex) == ("a", "cali1", 10)


class TestAfterGap:
    GAP = Gap(4, "since", "database or disk is full")

    def test_the_gap_then_the_present_of_every_endpoint(self, up: Told) -> None:
        other = EndpointId("k8s", "a", "eth0")
        away = EndpointId("k8s", "z", "eth0")
        up.fold.endpoint_set(Endpoint(other, "cali2"), None, T)
        before = {ID: recorded("error"), away: replace(recorded("up"), endpoint=str(away))}
        out = up.fold.after_gap(self.GAP, before, 41, T)
        assert [(each.seq, each.endpoint, each.status, each.previous) for each in out] == [
            (41, "", "gap", None),
            (42, str(away), "removed", "up"),
            (43, str(other), "down", None),
            (44, str(ID), "up", "error"),
        ]
        assert (out[0].lost, out[0].since, out[0].reason) == (4, "since", self.GAP.reason)
        assert up.fold.next_seq == 45
        assert up.changed(False) == ["down link-down"]
        assert up.all[-1].previous == "up"

    def test_before_the_first_plan_what_the_journal_holds_stays(self) -> None:
        present = {ID: recorded("up")}
        told = Told(present)
        out = told.fold.after_gap(self.GAP, present, 6, T)
        assert short(out)[1:] == ["up"]
        assert told.set((11, True)) == ["down link-absent?"]
