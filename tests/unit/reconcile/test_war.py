"""When repairs have become a war."""

from __future__ import annotations

from netreeve.model.backoff import Backoff
from netreeve.reconcile.war import WAR_REPAIRS, WAR_WINDOW_S, War

BACKOFF = Backoff(100, 30_000)


def test_a_few_repairs_are_no_war() -> None:
    war = War()
    for n in range(100):
        assert war.repair_delay_s(n * WAR_WINDOW_S / WAR_REPAIRS * 1.01, BACKOFF, 0.5) == 0.0
    assert war.reason is None


def test_a_war_gets_slower_and_ends() -> None:
    war = War()
    delays = [war.repair_delay_s(0.01 * n, BACKOFF, 0.5) for n in range(WAR_REPAIRS + 3)]
    assert delays == [0.0] * WAR_REPAIRS + [0.075, 0.15, 0.3]
    assert war.rounds == 3
    assert "repair 3 since" in str(war.reason)
    assert war.repair_delay_s(5.0, BACKOFF, 0.5) == 0.6
    assert war.repair_delay_s(5.0 + WAR_WINDOW_S + 0.1, BACKOFF, 0.5) == 0.0
    assert war.reason is None


def test_its_end_takes_longer_than_its_delays() -> None:
    war = War()
    now = 0.0
    for _ in range(30):
        delay_s = war.repair_delay_s(now, BACKOFF, 0.5)
        now += delay_s + 0.1
    assert delay_s == 22.5
    assert war.repair_delay_s(now + 10, BACKOFF, 0.5) == 22.5
    assert war.repair_delay_s(now + 60, BACKOFF, 0.5) == 0.0
