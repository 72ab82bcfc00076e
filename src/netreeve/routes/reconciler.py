"""Endpoint routes: one per address, on the endpoint's link, whatever happens on the node.

Level-triggered, without a socket, a clock or a random number of its own. Events change what is
wanted or believed at a key and put the key into a queue; `collect` looks at queued keys afresh and
gives the ops that they need; `answer` takes the kernel's verdicts. `slot.py` says what a belief
allows. What is here is which event touches which belief.

Three things shape it:

- IPv4 routes vanish without a message when their link goes down, so `flushed` voids beliefs, and
  the next Add finds out. An Add is always safe.
- EEXIST doesn't say who is there. Keys with that question are gathered per table, `ask` gives the
  tables, and one dump of each, handed to `holders`, answers for all of them.
- What a dump shows may be older or newer than an event at the same key. So what was touched, by an
  event, an op or its answer, since the dump began isn't judged by it.

Ours is a route of our protocol, in one of our tables, with a metric of at least 1, straight to one
device. Every other is foreign: it is never replaced or deleted, and where it holds a key of ours
the endpoint is refused.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from netreeve._ext import index
from netreeve.model import route
from netreeve.reconcile.queue import Queue
from netreeve.routes import verdict
from netreeve.routes.indexes import Destination, Destinations, Devices, Interfaces
from netreeve.routes.questions import Questions, Subject
from netreeve.routes.slot import (
    Belief,
    Claim,
    Holder,
    Slot,
    Standing,
    Step,
    is_device_route,
    key_of,
)
from netreeve.routes.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, KeysView

    from netreeve._ext import wire
    from netreeve.model.backoff import Backoff
    from netreeve.model.ids import EndpointId
    from netreeve.plan.model import Endpoint

__all__ = ["RouteReconciler"]

_Key = tuple[int, bytes, int, int, int, int]
_OPS: dict[Step, type[route.Op]] = {
    Step.ADD: route.Add,
    Step.REPLACE: route.Replace,
    Step.DELETE: route.Delete,
}


class RouteReconciler:
    """The routes of all endpoints of the plan.

    `protocol` (1 to 255) and `metric` (at least 1) mark our routes; `tables` are those that the
    plan may put routes in. `backoff` spaces the retries of each key; `random` gives numbers in
    [0, 1) for it. `now` is monotonic seconds wherever it is asked for; only what may set a timer
    asks.
    """

    def __init__(
        self,
        *,
        protocol: int,
        metric: int,
        tables: Iterable[int],
        backoff: Backoff,
        random: Callable[[], float],
    ) -> None:
        if not (1 <= protocol <= 255 and metric >= 1):
            raise ValueError(f"protocol {protocol} and metric {metric} must be at least 1")
        self._protocol = protocol
        self._metric = metric
        self._tables = frozenset(tables)
        self._backoff = backoff
        self._random = random
        self._slots: dict[_Key, Slot] = {}
        self._claims: dict[EndpointId, Claim] = {}
        self._interfaces = Interfaces()
        self._devices = Devices()
        self._destinations = Destinations()
        self._queue: Queue[Slot] = Queue()
        self._questions = Questions(backoff)
        self._changed: dict[Claim, None] = {}
        self._conflicts: dict[Slot, None] = {}
        self._counts = [0] * len(Standing)
        self._clock = 1  # counts dumps begun; Slot.touched is compared with it
        self._resync = 0  # the clock of the resync that runs, 0 = none
        self._flushes: dict[int, int] = {}  # ifindex -> clock, while a dump is under way
        self._whole = False  # no event was lost since the last resync
        self._plan_complete = False

    # -- the plan ---------------------------------------------------------------------------------

    def tables_set(self, tables: Iterable[int]) -> None:
        """The tables that the plan may put routes in; routes of our protocol in others are not
        ours, unless we put them there ourselves."""
        self._tables = frozenset(tables)

    def plan_complete(self) -> None:
        """Every source has been read and the links are in sync: from now on, routes of ours that
        nobody wants are deleted."""
        self._plan_complete = True
        for slot in self._slots.values():
            if slot.elsewhere and slot not in self._queue:
                self._queue.add(slot)

    def endpoint_set(self, endpoint: Endpoint, table: int, told: tuple[int, bool] | None) -> None:
        """The endpoint is new or changed; `told` is (ifindex, up) of its interface as the name
        machine last told it, None where it is absent.

        An address that another endpoint has goes to the one that was set last, so that a plan's
        changes may be handed over in any order before the next `collect`.
        """
        claim = self._claims.get(endpoint.id)
        if claim is None:
            claim = self._claims[endpoint.id] = Claim(endpoint.id, endpoint.interface)
            self._interfaces.add(claim)
        elif claim.interface != endpoint.interface:
            self._interfaces.discard(claim)
            claim.interface = endpoint.interface
            self._interfaces.add(claim)
        claim.ifindex, claim.up = told or (0, False)
        claim.admin_up = endpoint.admin_up
        before = claim.slots
        claim.slots = tuple(
            self._slot((*prefix, table, 0, self._metric))
            for prefix in dict.fromkeys(endpoint.addresses)
        )
        if claim.slots != before:
            for slot in before:
                if slot not in claim.slots:
                    self._unclaim(slot, claim)
            for slot in claim.slots:
                if slot not in before:
                    self._claim(slot, claim)
        for slot in claim.slots:
            self._retarget(slot)
        self._changed[claim] = None

    def endpoint_gone(self, endpoint_id: EndpointId) -> None:
        """The plan has it no more. Nothing happens where it is unknown."""
        claim = self._claims.pop(endpoint_id, None)
        if claim is None:
            return
        self._interfaces.discard(claim)
        for slot in claim.slots:
            self._unclaim(slot, claim)
        self._changed.pop(claim, None)

    # -- the kernel's events ----------------------------------------------------------------------

    def link(self, event: index.LinkAdded | index.LinkChanged | index.LinkRemoved) -> None:
        """What the name machine told, in its order. Names that no endpoint has cost a look-up."""
        for claim in self._interfaces.claims(event.name):
            if isinstance(event, index.LinkRemoved):
                claim.ifindex, claim.up = 0, False
            else:
                claim.ifindex, claim.up = event.ifindex, event.up
            for slot in claim.slots:
                self._retarget(slot)
            # Also where nothing changes for the routes: after each `up` the status waits for them.
            self._changed[claim] = None

    def flushed(self, ifindex: int, family: int | None = None, *, gone: bool = False) -> None:
        """Routes through `ifindex` may have vanished: its admin state fell, or an address of
        `family` (None = both families) went from it. `gone`: the link itself has left the
        namespace, so they certainly have."""
        if self._resync or self._questions.under_way:
            # Such a dump may show a route that was flushed after it was read.
            self._flushes[ifindex] = self._clock
        for slot in self._devices.slots(ifindex):
            if family is not None and slot.key.family != family:
                continue
            self._touch(slot, flight_too=False)
            op = slot.flight
            if op is not None and op.oif == ifindex and not isinstance(op, route.Delete):
                slot.stale = True
            if slot.oif == ifindex:
                if slot.belief is Belief.SHARED:
                    self._believe(slot, Belief.UNKNOWN, 0)
                elif gone:
                    self._believe(slot, Belief.NONE, 0)
                else:
                    self._believe(slot, Belief.UNKNOWN, ifindex)
                self._wake(slot)
            elif slot.holder is not None and slot.holder.oif == ifindex:
                self._wake(slot)
            self._settle(slot)

    def route_event(self, message: wire.RouteMessage) -> None:
        """A route of our protocol, or at a watched destination, was made or deleted by others.

        Echoes of our own requests (their port is ours) must not come here.
        """
        key = key_of(message)
        slot = self._slots.get(key)
        ours = self._is_ours(message, key)
        if slot is None:
            if message.deleted or not ours:
                return
            slot = self._slot(key)
        self._touch(slot)
        if ours and message.deleted:
            self._ours_deleted(slot, message.oif)
        elif ours:
            self._ours_made(slot, message.oif)
        elif message.deleted:
            self._foreign_deleted(slot)
        else:
            self._foreign_made(slot)
        self._settle(slot)

    def overrun(self) -> None:
        """Events were lost: nothing that was believed is sure, and nothing is deleted, until a
        resync that begins after this. One that has begun before is void."""
        self._whole = False
        self._resync = 0
        for slot in tuple(self._slots.values()):
            self._touch(slot)
            self._believe(slot, Belief.UNKNOWN, 0)
            self._settle(slot)

    def resync_begin(self) -> None:
        """A dump of all routes of our protocol, in all tables, is about to begin."""
        self._clock += 1
        self._resync = self._clock

    def resync_end(self, routes: Iterable[wire.RouteMessage]) -> None:
        """What that dump held. Nothing happens if an overrun has made it void."""
        if not self._resync:
            return
        seen: dict[_Key, set[int]] = {}
        for message in routes:
            key = key_of(message)
            if self._is_ours(message, key):
                seen.setdefault(key, set()).add(message.oif)
        self._whole = True
        for key in seen:
            if key not in self._slots:
                self._slot(key).belief = Belief.UNKNOWN
        for slot in tuple(self._slots.values()):
            oifs = seen.get(slot.key, set())
            if not slot.asking and self._untouched(slot, oifs, self._resync):
                self._compare(slot, oifs)
            if slot not in self._queue and slot.step() is not Step.NOTHING:
                self._queue.add(slot)
            self._settle(slot)
        self._resync = 0
        self._forget_flushes()

    # -- what to do, and how it went --------------------------------------------------------------

    def collect(self, now: float, limit: int) -> list[route.Op]:
        """At most `limit` ops to send in this order; each is in flight until `answer`.

        Fewer than `limit` means that there is nothing more to do now.
        """
        ops: list[route.Op] = []
        deletes = self._plan_complete and self._whole
        while len(ops) < limit and (slot := self._queue.take(now)) is not None:
            step = slot.step()
            if step is Step.NOTHING or (step is Step.DELETE and not deletes):
                continue
            if step is Step.ASK:
                # Before the resync every key is in question, and the resync is the answer.
                if slot.create or self._whole:
                    self._questions.put(slot)
                continue
            oif = slot.oif if step is Step.DELETE else slot.keep
            op = _OPS[step](slot.key, oif, self._protocol)
            slot.flight = op
            slot.touched = self._clock
            self._devices.place(slot)
            ops.append(op)
        ops.sort(key=attrgetter("rank"))
        return ops

    def answer(self, op: route.Op, errno: int | None, words: str, now: float) -> None:
        """The kernel's answer to an op: 0 = done; None = it was lost, the op is done or not.

        `words` is the extended acknowledgement, "" where there is none. ValueError where the op
        isn't in flight.
        """
        slot = self._slots.get(op.key)
        if slot is None or slot.flight != op:
            raise ValueError(f"not in flight: {op}")
        stale = slot.stale
        slot.flight = None
        slot.stale = False
        slot.touched = self._clock
        judged = verdict.judge(op, errno, words)
        deleting = isinstance(op, route.Delete)
        if judged is Verdict.DONE or judged is Verdict.ABSENT:
            if judged is Verdict.DONE:
                slot.failures = 0
                slot.refusal = slot.holder = None
            if stale or (deleting and not slot.only_on(op.oif)):
                # What happened at the key meanwhile may be older or newer than the op; and where
                # several routes share a key there may be another of ours.
                self._believe(slot, Belief.UNKNOWN, 0)
            elif deleting or judged is Verdict.ABSENT:
                self._believe(slot, Belief.NONE, 0)
            else:
                self._believe(slot, Belief.SOLE, op.oif)
            if slot.step() is not Step.NOTHING:
                self._queue.add(slot)
        elif judged is Verdict.HELD:
            slot.failures += 1
            self._question(slot)
        else:
            if judged is Verdict.LOST:
                self._believe(slot, Belief.UNKNOWN, 0)
            self._devices.place(slot)
            if deleting:
                same = slot.elsewhere and slot.oif == op.oif
            else:
                same = slot.create and slot.keep == op.oif
            if same:
                slot.failures += 1
                if judged is Verdict.REFUSED and errno and not deleting:
                    slot.refusal = verdict.reason(errno, words)
                    self._mark(slot)
                delay_s = self._backoff.delay_s(slot.failures, self._random())
                self._queue.later(slot, now + delay_s)
            else:
                # The link or the plan has moved on meanwhile: the failure says nothing.
                slot.failures = 0
                self._queue.add(slot)
        self._settle(slot)

    def ask(self, now: float) -> set[Subject]:
        """The (family, table) pairs of which a dump is needed now, of all protocols.

        Each is due until `holders` takes its result.
        """
        self._clock += 1
        return self._questions.take(now, self._clock)

    def holders(
        self, family: int, table: int, routes: Iterable[wire.RouteMessage] | None, now: float
    ) -> None:
        """The routes of that table at watched destinations (more do no harm); None: the dump
        failed, and will be asked for again. ValueError where it wasn't asked for."""
        if routes is None:
            self._questions.lost((family, table), now, self._random())
            return
        clock, slots = self._questions.answered((family, table))
        found: dict[_Key, list[wire.RouteMessage]] = {slot.key: [] for slot in slots}
        for message in routes:
            at_key = found.get(key_of(message))
            if at_key is not None:
                at_key.append(message)
        for slot in slots:
            slot.asking = False
            if self._untouched(slot, (message.oif for message in found[slot.key]), clock):
                self._occupied(slot, found[slot.key], now)
            else:
                self._queue.add(slot)
            self._settle(slot)
        self._forget_flushes()

    def deadline(self) -> float | None:
        """When `collect` and `ask` should be called though nothing happens; None = never."""
        times = self._queue.deadline(), self._questions.deadline()
        return min((time for time in times if time is not None), default=None)

    # -- how it stands ----------------------------------------------------------------------------

    def state(self, endpoint_id: EndpointId) -> route.RouteState:
        """KeyError where the endpoint isn't set."""
        claim = self._claims[endpoint_id]
        if not (claim.admin_up and claim.up):
            return route.PENDING
        state = route.CONFIRMED
        for slot in claim.slots:
            if slot.claims[-1] is not claim:
                state = route.PENDING
            elif slot.standing in (Standing.CONFLICT, Standing.REFUSED):
                return route.RouteState("refused", slot.reason())
            elif slot.standing is not Standing.PROGRAMMED:
                state = route.PENDING
        return state

    def take_changed(self) -> list[EndpointId]:
        """Endpoints whose state may have changed since the last call, oldest change first."""
        changed, self._changed = self._changed, {}
        return [claim.id for claim in changed]

    def slots(self, endpoint_id: EndpointId | None = None) -> tuple[Slot, ...]:
        """Those of one endpoint, in the order of its addresses; of None, all that there are."""
        if endpoint_id is None:
            return tuple(self._slots.values())
        return self._claims[endpoint_id].slots

    def watched(self) -> KeysView[Destination]:
        """The destinations that endpoints want: (family, dst, prefix_len).

        A live view, to be taken once: `in` always answers for the present.
        """
        return self._destinations.view()

    def counts(self) -> route.RouteCounts:
        return route.RouteCounts(*self._counts[Standing.PROGRAMMED :])

    def conflicts(self) -> list[route.Conflict]:
        """Keys that an endpoint with its link up wants and a foreign route holds."""
        return [slot.conflict() for slot in self._conflicts]

    # -- claims -----------------------------------------------------------------------------------

    def _claim(self, slot: Slot, claim: Claim) -> None:
        if not slot.claims:
            self._destinations.add(slot.key[:3])
        slot.claims = (*slot.claims, claim)

    def _unclaim(self, slot: Slot, claim: Claim) -> None:
        slot.claims = tuple(c for c in slot.claims if c is not claim)
        if not slot.claims:
            self._destinations.discard(slot.key[:3])
        self._mark(slot)
        self._retarget(slot)

    def _retarget(self, slot: Slot) -> None:
        """Find out afresh where the route of `slot` is to be."""
        claim = slot.claims[-1] if slot.claims else None
        keep, create = (claim.ifindex, claim.up) if claim and claim.admin_up else (0, False)
        if keep != slot.keep or create != slot.create:
            slot.keep, slot.create = keep, create
            if slot.belief is Belief.SHARED:
                # The one of ours that was in its place isn't now, or the other way round.
                self._believe(slot, Belief.UNKNOWN if slot.oif else Belief.NONE, 0)
            self._wake(slot)
        self._settle(slot)

    # -- beliefs ----------------------------------------------------------------------------------

    def _is_ours(self, message: wire.RouteMessage, key: _Key) -> bool:
        return (
            message.protocol == self._protocol
            and message.metric >= 1
            and is_device_route(message)
            and (message.table in self._tables or key in self._slots)
        )

    def _ours_deleted(self, slot: Slot, oif: int) -> None:
        # With another device it is the late news of a route that we have moved or replaced since.
        if slot.belief is Belief.SHARED or slot.oif in (0, oif):
            self._believe(slot, Belief.UNKNOWN, 0 if slot.belief is Belief.SHARED else slot.oif)
            self._wake(slot)

    def _ours_made(self, slot: Slot, oif: int) -> None:
        if slot.oif == oif and slot.belief in (Belief.SOLE, Belief.FOUND):
            self._believe(slot, Belief.FOUND, oif)
            self._queue.add(slot)
        else:
            # Somebody uses our protocol: moved ours, or put a second one beside it.
            self._wake(slot)
            self._question(slot)

    def _foreign_deleted(self, slot: Slot) -> None:
        if slot.belief is Belief.SHARED and slot.oif:
            self._questions.put(slot)  # is ours alone there now?
        elif slot.belief in (Belief.SHARED, Belief.NONE, Belief.UNKNOWN):
            if slot.belief is Belief.SHARED:
                self._believe(slot, Belief.NONE, 0)
            self._wake(slot)

    def _foreign_made(self, slot: Slot) -> None:
        # NONE and UNKNOWN find out with the Add that they are waiting for.
        if slot.belief in (Belief.SOLE, Belief.FOUND, Belief.SHARED):
            slot.failures = 0
            self._question(slot)

    def _untouched(self, slot: Slot, oifs: Iterable[int], clock: int) -> bool:
        """Whether a dump that began at `clock` and shows routes on `oifs` still holds for it."""
        return (
            slot.flight is None
            and slot.touched < clock
            and all(self._flushes.get(oif, 0) < clock for oif in oifs)
        )

    def _forget_flushes(self) -> None:
        if not (self._resync or self._questions.under_way):
            self._flushes.clear()

    def _compare(self, slot: Slot, oifs: set[int]) -> None:
        """Judge an untouched slot by the devices that a dump of our routes shows for it."""
        if not oifs:
            # Weak evidence: a dump of IPv4 routes may skip some of one prefix. An Add tells.
            if slot.belief is Belief.UNKNOWN:
                self._believe(slot, Belief.NONE, 0)
            elif slot.oif:
                self._believe(slot, Belief.UNKNOWN, 0 if slot.belief is Belief.SHARED else slot.oif)
        elif len(oifs) > 1:
            self._question(slot)
        elif slot.belief in (Belief.NONE, Belief.UNKNOWN) or slot.oif not in oifs:
            self._believe(slot, Belief.FOUND, min(oifs))

    def _occupied(self, slot: Slot, routes: list[wire.RouteMessage], now: float) -> None:
        """Judge an untouched slot by all the routes of its key."""
        ours = {message.oif for message in routes if self._is_ours(message, slot.key)}
        foreign = [message for message in routes if not self._is_ours(message, slot.key)]
        if not foreign and len(ours) <= 1:
            self._believe(slot, Belief.SOLE if ours else Belief.NONE, min(ours, default=0))
            slot.holder = None
            if slot.ours:
                slot.failures = 0
                slot.refusal = None
        else:
            slot.holder = Holder(foreign[0].protocol, foreign[0].oif) if foreign else None
            wrong = ours - {slot.keep}
            self._believe(slot, Belief.SHARED, min(wrong or ours, default=0))
        self._devices.place(slot)
        self._mark(slot)
        if slot.belief is Belief.SHARED and not slot.elsewhere:
            # Its holder's end is announced, unless it vanishes with its link.
            if slot.create:
                self._queue.later(slot, now + self._backoff.longest_s(self._random()))
        elif slot.step() is not Step.NOTHING:
            if slot.failures > 1:
                delay_s = self._backoff.delay_s(slot.failures, self._random())
                self._queue.later(slot, now + delay_s)
            else:
                self._queue.add(slot)

    # -- slots ------------------------------------------------------------------------------------

    def _slot(self, key: _Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            # After a resync no route of ours is unknown to us.
            belief = Belief.NONE if self._whole else Belief.UNKNOWN
            slot = self._slots[key] = Slot(route.RouteKey(*key), belief)
            self._counts[Standing.IDLE] += 1
        return slot

    def _touch(self, slot: Slot, *, flight_too: bool = True) -> None:
        slot.touched = self._clock
        if flight_too and slot.flight is not None:
            slot.stale = True

    def _wake(self, slot: Slot) -> None:
        """Something changed from outside: look at it now, as if nothing had failed before."""
        slot.failures = 0
        slot.refusal = None
        if slot.holder is not None:
            slot.holder = None
            self._devices.place(slot)
        self._queue.add(slot)

    def _question(self, slot: Slot) -> None:
        """Somebody is there, and it takes a dump to tell who."""
        self._believe(slot, Belief.UNKNOWN, 0)
        self._questions.put(slot)

    def _believe(self, slot: Slot, belief: Belief, oif: int) -> None:
        slot.belief = belief
        slot.oif = oif
        self._devices.place(slot)

    def _mark(self, slot: Slot) -> None:
        for claim in slot.claims:
            self._changed[claim] = None

    def _settle(self, slot: Slot) -> None:
        """After every change: count the slot by how it stands, and drop it if it says nothing."""
        standing = slot.stand()
        if standing is not slot.standing:
            self._counts[slot.standing] -= 1
            self._counts[standing] += 1
            if standing is Standing.CONFLICT:
                self._conflicts[slot] = None
            elif slot.standing is Standing.CONFLICT:
                del self._conflicts[slot]
            slot.standing = standing
            self._mark(slot)
        if (
            not slot.claims
            and slot.oif == 0
            and slot.belief is not Belief.UNKNOWN
            and slot.flight is None
            and not slot.asking
        ):
            self._queue.discard(slot)
            slot.holder = None
            self._devices.place(slot)
            self._counts[standing] -= 1
            del self._slots[slot.key]
