"""The fold against random histories and a slow, obvious model of status.md."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved
from netreeve.model.ids import EndpointId
from netreeve.plan.model import Endpoint
from netreeve.status.fold import StatusFold
from netreeve.status.transition import Transition

NAMES = ("cali1", "cali2", "cali3")
IDS = tuple(EndpointId("k8s", f"pod-{n}", "eth0") for n in range(4))
T = "2026-01-02T03:04:05.678Z"


@dataclass
class Model:
    """Per endpoint the statuses that must be in the journal; nothing shared, nothing clever."""

    links: dict[str, tuple[int, bool]] = field(default_factory=dict)
    plan: dict[EndpointId, Endpoint] = field(default_factory=dict)
    journal: dict[EndpointId, list[str]] = field(default_factory=lambda: {id_: [] for id_ in IDS})
    waits: dict[EndpointId, bool] = field(default_factory=dict)

    def say(self, id_: EndpointId, status: str) -> None:
        if self.status(id_) != status:
            self.journal[id_].append(status)

    def status(self, id_: EndpointId) -> str | None:
        return self.journal[id_][-1] if self.journal[id_] else None

    def link_is_up(self, id_: EndpointId) -> bool:
        endpoint = self.plan[id_]
        return endpoint.admin_up and self.links.get(endpoint.interface, (0, False))[1]

    def set(self, endpoint: Endpoint) -> None:
        before = self.plan.get(endpoint.id)
        self.plan[endpoint.id] = endpoint
        if before != endpoint:
            self.waits[endpoint.id] = True
        moved = before and (before.uid, before.interface) != (endpoint.uid, endpoint.interface)
        if moved and self.status(endpoint.id) in ("up", "error"):
            self.say(endpoint.id, "down")
        if not self.link_is_up(endpoint.id):
            self.say(endpoint.id, "down")

    def gone(self, id_: EndpointId) -> None:
        del self.plan[id_]
        if self.status(id_) not in (None, "removed"):
            self.say(id_, "removed")

    def link(self, name: str, ifindex: int, up: bool | None) -> None:
        users = [id_ for id_, endpoint in self.plan.items() if endpoint.interface == name]
        for id_ in users:
            if self.link_is_up(id_) and not up and self.waits[id_] and self.status(id_) != "error":
                self.say(id_, "up")
        if up is None:
            del self.links[name]
        else:
            self.links[name] = (ifindex, up)
        for id_ in users:
            self.waits[id_] = True
            if not up:
                self.say(id_, "down")

    def routes(self, id_: EndpointId, state: str) -> None:
        if state != "pending" and self.link_is_up(id_):
            self.waits[id_] = False
            self.say(id_, "up" if state == "confirmed" else "error")


class History:
    """Draws steps that the name machine and the plan allow, and gives them to both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = Model()
        self.fold = StatusFold({}, 1)
        self.records: list[Transition] = []
        self.ifindex = 10

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.55:
            self._link()
        elif draw < 0.85 and self.model.plan:
            id_ = self.random.choice(sorted(self.model.plan))
            state = self.random.choice(("pending", "confirmed", "confirmed", "refused"))
            self.records += self.fold.routes(id_, state, "why", T)  # type: ignore[arg-type]
            self.model.routes(id_, state)
        else:
            self._plan()

    def _link(self) -> None:
        name = self.random.choice(NAMES)
        event: LinkAdded | LinkChanged | LinkRemoved
        if name not in self.model.links:
            self.ifindex += 1
            up: bool | None = self.random.random() < 0.5
            event = LinkAdded(name, self.ifindex, bool(up))
            ifindex = self.ifindex
        else:
            ifindex, was_up = self.model.links[name]
            up = None if self.random.random() < 0.3 else not was_up
            if up is None:
                event = LinkRemoved(name, ifindex)
            else:
                event = LinkChanged(name, ifindex, up, self.random.random() < 0.2)
        self.records += self.fold.link(event, T)
        self.model.link(name, ifindex, up)

    def _plan(self) -> None:
        id_ = self.random.choice(IDS)
        taken = {each.interface for each in self.model.plan.values() if each.id != id_}
        if id_ in self.model.plan and self.random.random() < 0.3:
            self.records += self.fold.endpoint_gone(id_, None, T)
            self.model.gone(id_)
        elif free := [name for name in NAMES if name not in taken]:
            endpoint = Endpoint(
                id_,
                self.random.choice(free),
                uid=self.random.choice((None, "a", "b")),
                admin_up=self.random.random() < 0.8,
            )
            told = self.model.links.get(endpoint.interface)
            self.records += self.fold.endpoint_set(endpoint, told, T)
            self.model.set(endpoint)

    def check(self) -> None:
        assert [each.seq for each in self.records] == list(range(1, len(self.records) + 1))
        for id_ in IDS:
            mine = [each for each in self.records if each.endpoint == str(id_)]
            assert [each.status for each in mine] == self.model.journal[id_]
            previous = None
            for each in mine:
                assert each.status != previous
                assert each.previous == (None if previous == "removed" else previous)
                previous = each.status


@pytest.mark.parametrize("seed", range(50))
def test_random_histories(seed: int) -> None:
    history = History(seed)
    for _ in range(2_000):
        history.step()
    history.check()


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_at_any_moment_loses_and_repeats_nothing(seed: int) -> None:
    """The links stay as they are: what is recorded afterwards joins what was before."""
    history = History(1_000 + seed)
    for _ in range(300):
        for _ in range(history.random.randrange(20)):
            history.step()
        # The model knows no restart. Routes are asked for anew, as after any start.
        history.fold = StatusFold(history.fold.present(), history.fold.next_seq)
        for endpoint in history.model.plan.values():
            told = history.model.links.get(endpoint.interface)
            history.records += history.fold.endpoint_set(endpoint, told, T)
            history.records += history.fold.routes(endpoint.id, "confirmed", None, T)
            history.model.routes(endpoint.id, "confirmed")
    history.check()
