"""The state machine that folds links, routes and the plan into status transitions.

It is told what happens, in order, and answers with the transitions to record. It keeps no clock and
does no I/O. What makes it more than a comparison of values:

- An `up` needs two things: the link's, and the kernel's word on its routes *after* that. A link
  that comes up waits (`_Routes.AWAITED`) until `routes` is called; an older answer doesn't count.
- A link that falls while it waits was up all the same. The consumer is told so: first an `up` with
  `routes: "unconfirmed"`, then the `down`. Nothing is merged.
- A status that is recorded already is not recorded again, whatever its reason.
- An endpoint that passes to another link, or becomes another incarnation, goes down first.
- The last recorded status outlives the process. A link that bears another ifindex now than in the
  record was rebuilt while nobody looked: its `down` is recorded, as inferred, before anything else.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved
from netreeve.model.ids import EndpointId
from netreeve.status.transition import Gap, Status, Transition

if TYPE_CHECKING:
    from netreeve.plan.model import Endpoint

__all__ = ["RouteState", "StatusFold"]

RouteState = Literal["pending", "confirmed", "refused"]


class _Routes(enum.Enum):
    """What is known of an endpoint's routes since its link came up."""

    AWAITED = enum.auto()
    CONFIRMED = enum.auto()
    REFUSED = enum.auto()


@dataclass(slots=True)
class _Tracked:
    """One endpoint. `plan` is None for one that is known from the journal only, so far."""

    text: str
    plan: Endpoint | None
    last: Transition | None
    ifindex: int | None = None
    link_up: bool = False
    inferred: bool = False  # how the present link state became known
    routes: _Routes = _Routes.AWAITED

    @property
    def status(self) -> Status | None:
        return None if self.last is None else self.last.status


class StatusFold:
    """See the head of this file. Every method returns the transitions to record, oldest first.

    `present` is the last recorded transition of each endpoint, `next_seq` the number of the next
    one (at least 1). `rebooted` says that no ifindex of `present` means anything any more.
    """

    def __init__(
        self,
        present: Mapping[EndpointId, Transition],
        next_seq: int,
        *,
        rebooted: bool = False,
    ) -> None:
        self._tracked = {
            id_: _Tracked(str(id_), None, transition) for id_, transition in present.items()
        }
        self._by_interface: dict[str, EndpointId] = {}
        self._next_seq = next_seq
        self._rebooted = rebooted

    @property
    def next_seq(self) -> int:
        """The number that the next transition will get."""
        return self._next_seq

    def known(self) -> frozenset[EndpointId]:
        """Every endpoint that was set, or that is known from the journal, and is not gone."""
        return frozenset(self._tracked)

    def present(self) -> dict[EndpointId, Transition]:
        """The last recorded transition of each endpoint that has one."""
        return {
            id_: tracked.last for id_, tracked in self._tracked.items() if tracked.last is not None
        }

    def endpoint_set(
        self, endpoint: Endpoint, told: tuple[int, bool] | None, observed: str
    ) -> list[Transition]:
        """The plan has this endpoint, as new or changed.

        `told` is (ifindex, up) of its interface as last told, None where it isn't there. The
        caller calls `routes` afterwards with what is known of the endpoint's routes by then.
        """
        tracked = self._tracked.get(endpoint.id)
        if tracked is None:
            tracked = self._tracked[endpoint.id] = _Tracked(str(endpoint.id), None, None)
        before, tracked.plan = tracked.plan, endpoint
        if before is not None and self._by_interface.get(before.interface) == endpoint.id:
            del self._by_interface[before.interface]
        self._by_interface[endpoint.interface] = endpoint.id
        ifindex, link_up = (None, False) if told is None else told
        if before != endpoint or (tracked.ifindex, tracked.link_up) != (ifindex, link_up):
            tracked.routes, tracked.inferred = _Routes.AWAITED, False
            tracked.ifindex, tracked.link_up = ifindex, link_up

        recorded: list[Transition] = []
        last = tracked.last
        if last is not None and last.status in ("up", "error"):
            # What is recorded was of this incarnation, on this link, or it is over.
            rebooted = self._rebooted and before is None
            if last.uid != endpoint.uid:
                self._record(recorded, tracked, "down", observed, "new-incarnation")
            elif last.link != endpoint.interface:
                if _is_up(tracked):
                    self._record(recorded, tracked, "down", observed, "interface-changed")
            elif rebooted or (ifindex is not None and ifindex != last.ifindex):
                self._record(
                    recorded, tracked, "down", observed, "link-absent",
                    ifindex=last.ifindex, inferred=True,
                )  # fmt: skip
        self._settle(recorded, tracked, observed)
        return recorded

    def endpoint_gone(self, id_: EndpointId, uid: str | None, observed: str) -> list[Transition]:
        """The plan no longer has this endpoint.

        With a `uid`, only that incarnation is meant: nothing happens where another has come since.
        An endpoint of which nothing was recorded goes without a word.
        """
        tracked = self._tracked.get(id_)
        if tracked is None:
            return []
        if uid is not None and uid != _uid(tracked):
            return []
        del self._tracked[id_]
        if tracked.plan is not None and self._by_interface.get(tracked.plan.interface) == id_:
            del self._by_interface[tracked.plan.interface]
        recorded: list[Transition] = []
        if tracked.last is not None:
            ifindex = tracked.last.ifindex if tracked.plan is None else tracked.ifindex
            self._record(recorded, tracked, "removed", observed, ifindex=ifindex)
        return recorded

    def link(self, event: LinkAdded | LinkChanged | LinkRemoved, observed: str) -> list[Transition]:
        """A link event was told. Links that no endpoint names are ignored."""
        id_ = self._by_interface.get(event.name)
        if id_ is None:
            return []
        tracked = self._tracked[id_]
        recorded: list[Transition] = []
        flaps = None
        match event:
            case LinkRemoved():
                up, ifindex, tracked.inferred = False, None, False
            case LinkChanged():
                up, ifindex, tracked.inferred = event.up, event.ifindex, event.inferred
                flaps = event.flaps if event.flaps > 1 else None
            case LinkAdded():
                up, ifindex, tracked.inferred = event.up, event.ifindex, False
        waited = _is_up(tracked) and tracked.routes is _Routes.AWAITED
        if waited and not up and tracked.status in (None, "down"):
            self._record(recorded, tracked, "up", observed, routes="unconfirmed")
        if not up or not tracked.link_up or ifindex != tracked.ifindex:
            tracked.routes = _Routes.AWAITED
        tracked.link_up, tracked.ifindex = up, ifindex
        gone = event.ifindex if ifindex is None else None
        self._settle(recorded, tracked, observed, gone=gone, flaps=flaps)
        return recorded

    def routes(
        self, id_: EndpointId, state: RouteState, reason: str | None, observed: str
    ) -> list[Transition]:
        """What the kernel said of the endpoint's routes; `reason` is its words on "refused".

        An endpoint without a route counts as confirmed. While its link isn't up, nothing that is
        said of its routes counts.
        """
        tracked = self._tracked.get(id_)
        if tracked is None or state == "pending" or not _is_up(tracked):
            return []
        recorded: list[Transition] = []
        if state == "confirmed":
            tracked.routes = _Routes.CONFIRMED
            if tracked.status != "up":
                self._record(recorded, tracked, "up", observed, inferred=tracked.inferred)
        else:
            tracked.routes = _Routes.REFUSED
            if tracked.status != "error":
                self._record(
                    recorded, tracked, "error", observed, reason, inferred=tracked.inferred
                )
        return recorded

    def after_gap(
        self,
        gap: Gap,
        recorded: Mapping[EndpointId, Transition],
        next_seq: int,
        observed: str,
    ) -> list[Transition]:
        """The journal records again: the gap, then the present status of every endpoint.

        `recorded` is what the journal holds as the last transition of each endpoint, `next_seq` the
        number that follows its last one. Endpoints that went away meanwhile come as removed. The
        status of the others is recorded even where it is the one before the gap, because what lay
        between is not known.
        """
        self._next_seq = next_seq
        out = [
            Transition(
                self._take_seq(), "", None, "gap", None, gap.reason, "", None, False, observed,
                lost=gap.lost, since=gap.since,
            )
        ]  # fmt: skip
        now = self.present()
        for id_, before in sorted(recorded.items()):
            if id_ not in now:
                out.append(
                    replace(
                        before, seq=self._take_seq(), status="removed", previous=before.status,
                        reason=None, inferred=True, observed=observed, routes=None, flaps=None,
                    )
                )  # fmt: skip
        for id_, last in sorted(now.items()):
            status_before = recorded[id_].status if id_ in recorded else None
            last = replace(last, seq=self._take_seq(), previous=status_before, flaps=None)
            self._tracked[id_].last = last
            out.append(last)
        return out

    def _settle(
        self,
        recorded: list[Transition],
        tracked: _Tracked,
        observed: str,
        *,
        gone: int | None = None,
        flaps: int | None = None,
    ) -> None:
        """Record `down` where that is what the endpoint is, and isn't recorded."""
        if _is_up(tracked) or tracked.status == "down":
            return
        assert tracked.plan is not None
        if not tracked.plan.admin_up:
            reason, inferred, flaps = "admin-down", False, None
        elif tracked.ifindex is None:
            reason, inferred = "link-absent", False
        else:
            reason, inferred = "link-down", tracked.inferred
        self._record(
            recorded, tracked, "down", observed, reason,
            ifindex=gone or tracked.ifindex, inferred=inferred, flaps=flaps,
        )  # fmt: skip

    def _record(
        self,
        recorded: list[Transition],
        tracked: _Tracked,
        status: Status,
        observed: str,
        reason: str | None = None,
        *,
        ifindex: int | None = None,
        inferred: bool = False,
        routes: Literal["unconfirmed"] | None = None,
        flaps: int | None = None,
    ) -> None:
        if tracked.plan is not None:
            link = tracked.plan.interface
        else:
            assert tracked.last is not None
            link = tracked.last.link
        tracked.last = Transition(
            self._take_seq(), tracked.text, _uid(tracked), status, tracked.status, reason, link,
            tracked.ifindex if ifindex is None else ifindex, inferred, observed, routes, flaps,
        )  # fmt: skip
        recorded.append(tracked.last)

    def _take_seq(self) -> int:
        seq = self._next_seq
        self._next_seq = seq + 1
        return seq


def _is_up(tracked: _Tracked) -> bool:
    return tracked.link_up and tracked.plan is not None and tracked.plan.admin_up


def _uid(tracked: _Tracked) -> str | None:
    if tracked.plan is not None:
        return tracked.plan.uid
    return None if tracked.last is None else tracked.last.uid
