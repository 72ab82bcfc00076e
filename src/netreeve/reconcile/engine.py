"""Own links: level-triggered, without a socket, a clock or a random number of its own; it knows no
kind of link but by its table of properties.

A hint (`touched`, a resync, a plan) puts a link into the queue. `collect` takes links out, decides
by the last look at each, and gives the next step for it; `answer` takes the kernel's word. One
step at a time per link. After a change of a link it is read again, so that what the kernel made of
it counts, not what it was asked for.

What keeps others' links safe, in the order in which it is met:

- only names that our scheme recognises, with the kind that goes with them, are decided on at all;
- changes and deletes go by the token, an alternative name that nobody else uses. It is put on by
  ifindex, and looked at before it is used: if it landed on another link, it is taken off again;
- before deletes, a survey: a view of all links, which also says what of others would go with them;
- the hold (no complete plan) and the brake (too many at once).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netreeve.model import link_op
from netreeve.model.link_op import Step
from netreeve.model.link_spec import Change, Conflict, Foreign, HeldBack, LinkCounts, Status
from netreeve.reconcile import bulk, report
from netreeve.reconcile.decision import OwnershipMode
from netreeve.reconcile.observation import Answer, Observation
from netreeve.reconcile.steps import next_change
from netreeve.reconcile.subject import Operation, Subject
from netreeve.reconcile.survey import blast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from netreeve._ext.details import LinkDetails
    from netreeve._ext.wire import AddrMessage
    from netreeve.model import ownership
    from netreeve.model.backoff import Backoff
    from netreeve.model.link_spec import LinkSpec
    from netreeve.reconcile.kind import LinkKind

__all__ = ["LinkEngine"]

_SENT = 64
"""Steps remembered per link, to tell a repair from a change."""


class LinkEngine(Observation):
    """All links of ours in one namespace.

    `kinds` are the tables of `netreeve.links`. `instance` is the installation's id, in each token.
    `mode` is NETREEVE_OWNERSHIP. `protocol` (1 to 255) marks our addresses (IFA_PROTO). `backoff`
    spaces retries, per link; `random` gives numbers in [0, 1) for it, and for groups. With
    `acting` False it asks for steps that read and no others, until `act`. `now` is monotonic
    seconds everywhere.
    """

    def __init__(
        self,
        *,
        scheme: ownership.Scheme,
        kinds: Mapping[ownership.Kind, LinkKind],
        instance: str,
        protocol: int,
        backoff: Backoff,
        random: Callable[[], float],
        mode: OwnershipMode = "name",
        delete_brake: float = 0.5,
        acting: bool = True,
    ) -> None:
        super().__init__(scheme, kinds, instance, mode, delete_brake, protocol, backoff, random)
        self._acting = acting
        self._cleared: dict[Subject, None] = {}
        self._warring: set[Subject] = set()  # now or once, since the plan was set
        self._waiting: dict[Subject, None] = {}  # for the survey, instead of looks of their own
        self._wanted = 0
        self._clock = 1
        self._view_complete = False
        self._survey_due = False
        self._survey: link_op.Survey | None = None
        self._overruns = 0
        self._survey_overruns = 0  # as many as there were when it began
        self._survey_at = 0.0
        self._survey_failures = 0
        self._addresses_due = False
        self._addresses: link_op.AddrLook | None = None
        self._bulk_flights: dict[Step, bulk.Bulk] = {}

    # -- what is wanted ---------------------------------------------------------------------------

    def plan_set(self, specs: Iterable[LinkSpec], *, hold: str | None = None) -> None:
        """This is wanted from now on, and nothing else.

        `hold` says why nothing may be deleted (`links.hold`: the plan is empty, or a source isn't
        in sync); None where deletes are allowed. A delete brake that was released acts again.
        """
        wanted = {spec.name: spec for spec in specs}
        self._warring.clear()
        held = self._brake.hold
        self._brake.plan(hold)
        for name, subject in tuple(self._subjects.items()):
            if subject.spec is not None and name not in wanted:
                self._want(subject, None)
        for spec in wanted.values():
            subject = self._subject(spec.name)
            if subject.spec != spec:
                self._want(subject, spec)
        if held != hold:
            self._wake_doomed()

    def release_brake(self) -> None:
        """Delete however many there are to delete, until the next `plan_set`."""
        self._brake.release()
        self._wake_doomed()

    def act(self) -> None:
        """From now on, change things too."""
        self._acting = True
        for subject in self._subjects.values():
            self._queue.add(subject)

    def _unhinder(self, ifindex: int) -> None:
        """Something happened to a link; whom it kept from something looks again."""
        for subject in self._indexes.in_the_way_of(ifindex):
            subject.recheck = True
            self._queue.add(subject)

    # -- hints ------------------------------------------------------------------------------------

    def touched(self, name: str, ifindex: int) -> None:
        """The link `ifindex` was added or changed, and is called `name`. Give all links: those
        that don't concern us cost two look-ups."""
        subject = self._subjects.get(name)
        if subject is None and self._scheme.kind_of(name) is not None:
            subject = self._subject(name)
        if subject is not None:
            self._mark(subject)
        self._unhinder(ifindex)

    def gone(self, name: str, ifindex: int) -> None:
        """The link `ifindex` is called `name` no more: deleted, moved away or renamed."""
        subject = self._subjects.get(name)
        if subject is not None and subject.seen is not None and subject.seen.ifindex == ifindex:
            self._mark(subject)
        for port in self._indexes.ports.get(ifindex):
            self._mark(port)
        self._unhinder(ifindex)

    def address_touched(self, ifindex: int) -> None:
        """An address of the link `ifindex` was added or deleted."""
        subject = self._indexes.ours.get(ifindex)
        if subject is not None and subject.kind is not None and subject.kind.addressed:
            subject.addresses_dirty = True
            self._queue.add(subject)

    def overrun(self) -> None:
        """Events were lost: nothing is deleted until a survey has shown all links anew."""
        self._view_complete = False
        self._overruns += 1
        for subject in self._cleared:
            subject.cleared = False
            self._queue.add(subject)
        self._cleared.clear()
        self.resync()

    def resync(self) -> None:
        """Look at everything again: the first thing to do, and every now and then."""
        self._survey_due = True
        self._addresses_due = True

    def observe_all(self, links: Iterable[LinkDetails]) -> None:
        """All links of the namespace, read after the last answer was given: in place of the
        `Survey` that `resync` would ask for."""
        self._clock += 1
        self._observe(list(links), self._clock)
        self._view_complete = True

    @property
    def view_complete(self) -> bool:
        """Whether all links were seen, and no event was lost since."""
        return self._view_complete

    # -- what to do, and how it went --------------------------------------------------------------

    def collect(self, now: float, limit: int) -> list[Step]:
        """Steps to take in this order, about `limit` at most; each is in flight until `answer`.

        They are independent of one another: one that fails doesn't concern the others. None means
        that there is nothing to do before `deadline`, or the next hint or answer.
        """
        steps: list[Step] = []
        self._clock += 1
        self._collect_own(steps, now)
        while len(steps) < limit and (subject := self._queue.take(now)) is not None:
            step = self._next(subject, now)
            if step is not None:
                subject.flight = step
                subject.clock = self._clock
                steps.append(step)
        if self._condemned and self._survey is None and len(steps) < limit:
            # Now that the queue is empty: one survey serves for all of them.
            self._survey_due = True
            self._collect_own(steps, now)
        bulk.gather(steps, self._subjects.__getitem__, self._random)
        steps.sort(key=self._rank)
        return steps

    def answer(
        self,
        step: Step,
        errno: int | None,
        words: str,
        result: object,
        now: float,
    ) -> None:
        """The kernel's answer: `errno` 0 = done, None = lost (done or not); `words` is the extended
        acknowledgement or ""; `result` stands beside each step, None where there was an error.

        ValueError where the step isn't in flight.
        """
        taken = Answer(errno, words, result, now)
        if isinstance(step, link_op.Survey) and step == self._survey:
            self._surveyed(taken)
            return
        if isinstance(step, link_op.AddrLook) and step == self._addresses:
            self._all_addresses(taken)
            return
        if step in self._bulk_flights:
            self._bulk_answered(self._bulk_flights.pop(step), step, taken)
            return
        subject = self._subjects.get(step.name)
        if subject is None or subject.flight != step:
            raise ValueError(f"not in flight: {step}")
        subject.flight = None
        subject.clock = self._clock
        subject.history.append(Operation(now, step, errno, words))
        _HANDLERS[type(step)](self, subject, step, taken)
        self._queue.add(subject)
        self._settle(subject)

    def deadline(self) -> float | None:
        """When `collect` should be called though nothing happens; None = never."""
        times = [self._queue.deadline()]
        if self._survey_due and self._survey is None:
            times.append(self._survey_at)
        return min((time for time in times if time is not None), default=None)

    # -- the plan, seen from one link -------------------------------------------------------------

    def _want(self, subject: Subject, spec: LinkSpec | None) -> None:
        before = subject.spec
        self._wanted += (spec is not None) - (before is not None)
        self._indexes.plan(subject, spec)
        subject.spec = spec
        subject.at_rest = subject.excused = False
        subject.sent.clear()
        subject.cleared = False
        self._cleared.pop(subject, None)
        self._block(subject, None)
        self._hold_up(subject, None)
        subject.find = ()
        self._calm(subject)
        if spec is not None and spec.controller is not None:
            self._subject(spec.controller)
        if before is not None and before.controller is not None:
            controller = self._subjects.get(before.controller)
            if controller is not None:
                self._queue.add(controller)  # to be forgotten, if nobody refers to it any more
        self._queue.add(subject)
        self._settle(subject)

    # -- from the queue to a step -----------------------------------------------------------------

    @staticmethod
    def _rank(step: Step) -> int:
        return step.rank

    def _collect_own(self, steps: list[Step], now: float) -> None:
        if self._survey_due and self._survey is None and now >= self._survey_at:
            self._survey_due = False
            self._survey = link_op.Survey("", self._clock)
            self._survey_overruns = self._overruns
            steps.append(self._survey)
        if self._addresses_due and self._addresses is None:
            self._addresses_due = False
            self._addresses = link_op.AddrLook("", 0)
            steps.append(self._addresses)
        for each in self._bulks:
            self._bulk_flights[each.step] = each
            steps.append(each.step)
        self._bulks.clear()

    def _next(self, subject: Subject, now: float) -> Step | None:
        if self._subjects.get(subject.name) is not subject:
            return None  # forgotten meanwhile
        if subject.flight is not None or subject.bulk is not None:
            return None  # its answer brings it back
        if subject.read_failed and now < subject.retry_at:
            self._queue.later(subject, subject.retry_at)
            return None
        subject.read_failed = False
        if subject.misplaced and self._acting:
            if now < subject.retry_at:
                self._queue.later(subject, subject.retry_at)
                return None
            return link_op.TokenRemove(subject.name, subject.token)
        due = subject.recheck or 0.0 < subject.recheck_at <= now
        if due and not (subject.dirty and subject.blocked is not None):
            subject.recheck, subject.recheck_at = False, 0.0
            self._recheck(subject)
        if subject.dirty and self._survey_soon():
            self._waiting[subject] = None
            return None
        step = self._next_look(subject)
        if step is not None:
            return step
        self._settle(subject)
        decision = subject.decision
        status = decision.status
        if status is not None and status.state in ("conflict", "blocked") and not due:
            self._later(subject, now)
        if decision.action is None:
            return None
        deleting = decision.action in ("delete", "recreate")
        if deleting and not subject.cleared and (subject.proven or not self._acting):
            if subject.blocked is None or due:
                self._condemned[subject] = None
            return None
        if not self._acting:
            return None
        if not self._view_complete:
            # The token may be on a link that has been renamed meanwhile: then it isn't ours.
            self._waiting[subject] = None
            return None
        return self._next_change(subject, now)

    def _next_look(self, subject: Subject) -> Step | None:
        """What has to be read before it can be decided on."""
        if subject.verify:
            # First of all, also if the link has gone: then the token may be on a stranger.
            return link_op.LookToken(subject.name, subject.token)
        if subject.dirty:
            subject.dirty = False
            return link_op.Look(subject.name)
        seen, spec, kind = subject.seen, subject.spec, subject.kind
        if kind is None or spec is None:
            return None
        if seen is None:
            if subject.find:
                wanted = dict(spec.properties)
                properties = tuple((name, wanted[name]) for name in subject.find[0])
                return link_op.FindHolder(subject.name, kind.real_kind, properties)
            return None
        if not subject.owned:
            return None
        if (
            spec.controller is not None
            and seen.controller not in (0, subject.put, subject.asked)
            and seen.controller != self.controller(subject)
            and not self.is_ours(seen.controller)
        ):
            return link_op.LookIndex(subject.name, seen.controller)
        unread = subject.addresses is None or subject.addresses_dirty
        if kind.addressed and unread and self._addresses is None:
            subject.addresses_dirty = False
            return link_op.AddrLook(subject.name, seen.ifindex)
        return None

    def _next_change(self, subject: Subject, now: float) -> Step | None:
        wait_until = max(subject.retry_at, subject.slow_until)
        if now < wait_until:
            self._queue.later(subject, wait_until)
            return None
        step = next_change(subject, subject.decision, self._protocol)
        if (subject.at_rest or step in subject.sent) and not subject.excused:
            delay_s = subject.war.repair_delay_s(now, self._backoff, self._random())
            if delay_s:
                self._warring.add(subject)
                subject.excused = True
                subject.slow_until = now + delay_s
                self._queue.later(subject, subject.slow_until)
                self._settle(subject)
                return None
        subject.at_rest = subject.excused = False
        if isinstance(step, link_op.Delete):
            subject.cleared = False
            self._cleared.pop(subject, None)
        if len(subject.sent) >= _SENT:
            subject.sent.clear()
        subject.sent.add(step)
        return step

    def _later(self, subject: Subject, now: float) -> None:
        """Something of others is in the way: its end may not be announced, so look now and then."""
        if not subject.recheck_at:
            subject.recheck_at = now + self._backoff.longest_s(self._random())
        self._queue.later(subject, subject.recheck_at)

    def _survey_soon(self) -> bool:
        """Whether a survey will show the link; not if surveys fail, or are but for a delete."""
        under_way = self._survey is not None or self._survey_due
        return under_way and not self._view_complete and not self._survey_failures

    def _recheck(self, subject: Subject) -> None:
        """Is what was in the way still there? Where it stands on the link, a survey tells."""
        if subject.blocked is not None:
            return
        subject.dirty = True
        if subject.kind is not None and subject.seen is None:
            by = subject.found_by if subject.holder is not None else subject.kind.clash
            subject.find = (by,) if by else ()

    # -- answers that concern many ----------------------------------------------------------------

    def _surveyed(self, answer: Answer) -> None:
        survey, self._survey = self._survey, None
        assert survey is not None  # it was in flight
        waiting, self._waiting = self._waiting, {}
        for subject in waiting:
            self._queue.add(subject)
        if answer.errno != 0:
            self._survey_failures += 1
            delay_s = self._backoff.delay_s(self._survey_failures, self._random())
            self._survey_at = answer.now + delay_s
            self._survey_due = True
            return
        self._survey_failures = 0
        self._survey_at = 0.0
        links: list[LinkDetails] = answer.result
        self._observe(links, survey.number)
        if self._survey_overruns != self._overruns:
            return  # what has changed meanwhile is unknown; the next one is due already
        self._view_complete = True
        condemned = [each for each in self._condemned if each.clock < survey.number]
        found = blast(condemned, links, self._is_owned)
        for subject in condemned:
            del self._condemned[subject]
            if subject.seen is None:
                continue
            holder = found.get(subject.seen.ifindex)
            self._block(subject, holder)
            subject.cleared = holder is None
            if holder is None:
                self._cleared[subject] = None
            self._queue.add(subject)
            self._settle(subject)

    def _all_addresses(self, answer: Answer) -> None:
        self._addresses = None
        by_ifindex: dict[int, list[AddrMessage]] = {}
        for message in answer.result if answer.errno == 0 else ():
            by_ifindex.setdefault(message.ifindex, []).append(message)
        for ifindex, subject in self._indexes.ours.items():
            if subject.kind is None or not subject.kind.addressed:
                continue
            if answer.errno != 0 or subject.flight is not None:
                subject.addresses_dirty = True  # asked about by itself
            elif not subject.addresses_dirty:
                self._addressed(subject, by_ifindex.get(ifindex, ()))
            self._queue.add(subject)

    def _bulk_answered(self, group: bulk.Bulk, step: Step, answer: Answer) -> None:
        for subject in group.members:
            subject.history.append(Operation(answer.now, step, answer.errno, answer.words))
        if isinstance(step, link_op.GroupDelete):
            if answer.errno == 0:
                self._dissolve(group, gone=True)
            else:
                self._dissolve(group, no_bulk=True)
        elif answer.errno != 0 or not group.is_exactly(answer.result):
            self._dissolve(group, no_bulk=True)
        elif (
            not self._view_complete
            or blast(group.members, answer.result, self._is_owned)
            or not all(map(self._still_goes, group.members))
        ):
            self._dissolve(group)
        else:
            group.delete()
            self._bulks.append(group)

    def _still_goes(self, subject: Subject) -> bool:
        self._settle(subject)
        return subject.decision.action in ("delete", "recreate")

    def _dissolve(self, group: bulk.Bulk, *, gone: bool = False, no_bulk: bool = False) -> None:
        for subject in group.members:
            subject.bulk = None
            subject.no_bulk = no_bulk
            subject.clock = self._clock
            if gone:
                self._see(subject, None)
            else:
                subject.dirty = True
            self._queue.add(subject)

    # -- how it stands ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step is in flight, or could be taken at once or after a while, retries and
        looks at what is in the way included."""
        flights = (
            self._survey is not None or self._addresses is not None or bool(self._bulk_flights)
        )
        return flights or self._survey_due or len(self._queue) > 0 or self._in_flight()

    def status(self, name: str) -> Status | None:
        """How the link of ours stands; None where the name is no concern of ours."""
        subject = self._subjects.get(name)
        return None if subject is None else subject.decision.status

    def changes(self) -> list[Change]:
        """What would be done now, in the order of names: what `collect` acts on."""
        return report.changes(self._sorted())

    def conflicts(self) -> list[Conflict]:
        """Plan entries that can't have what somebody else's link has."""
        return report.conflicts(self._sorted())

    def held_back(self) -> list[HeldBack]:
        """Links of ours that are left as they are, though nobody wants them so, and why."""
        return report.held_back(self._sorted(), self._brake.reason)

    def wars(self, now: float) -> list[HeldBack]:
        """Links of ours that somebody changes as often as they are put right: repairs are slow."""
        return report.wars(self._warring, now)

    def foreign(self, links: Iterable[LinkDetails]) -> list[Foreign]:
        """Those of `links` that are left alone, with the reason, by name."""
        return report.foreign(links, self._scheme)

    def explain(self, name: str) -> dict[str, object] | None:
        """All that is known of a name, as JSON has it (product.md, `explain --json`): ownership,
        plan, observed, difference, status, operations. None for a name that is none of ours."""
        subject = self._subjects.get(name)
        return None if subject is None else report.explain(subject)

    @property
    def owned(self) -> int:
        """How many links of ours there are, wanted or not."""
        return len(self._indexes.ours)

    @property
    def ready(self) -> bool:
        """Whether `collect` has something to look at now."""
        surveys = self._survey_due and self._survey is None and not self._survey_failures
        addresses = self._addresses_due and self._addresses is None
        return self._queue.ready or surveys or addresses or bool(self._bulks)

    def counts(self) -> LinkCounts:
        states = self._states
        return LinkCounts(
            self._wanted,
            states.get("in_sync", 0),
            states.get("pending", 0),
            states.get("error", 0),
            states.get("conflict", 0),
            states.get("blocked", 0) + states.get("unproven", 0),
        )

    def _sorted(self) -> list[Subject]:
        return [self._subjects[name] for name in sorted(self._subjects)]

    def _in_flight(self) -> bool:
        return any(
            each.flight is not None or each.bulk is not None for each in self._subjects.values()
        )


_HANDLERS: dict[type[Step], Callable[[LinkEngine, Subject, Any, Answer], None]] = {
    link_op.Look: LinkEngine.on_look,
    link_op.LookToken: LinkEngine.on_look_token,
    link_op.LookIndex: LinkEngine.on_look_index,
    link_op.FindHolder: LinkEngine.on_find_holder,
    link_op.AddrLook: LinkEngine.on_addr_look,
    link_op.TokenAdd: LinkEngine.on_token_add,
    link_op.TokenRemove: LinkEngine.on_token_remove,
    link_op.Set: LinkEngine.on_set,
    link_op.Create: LinkEngine.on_create,
    link_op.CreateTap: LinkEngine.on_create,
    link_op.Delete: LinkEngine.on_delete,
    link_op.GroupSet: LinkEngine.on_group_set,
    link_op.AddrAdd: LinkEngine.on_addr_add,
    link_op.AddrDelete: LinkEngine.on_addr_delete,
}
