"""What the kernel's answers make of the links: the half of the engine that takes things in."""

from __future__ import annotations

import errno as errnos
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from netreeve.model import link_op, ownership
from netreeve.model.prefix import LinkAddress
from netreeve.reconcile.brake import Brake
from netreeve.reconcile.decision import OwnershipMode, decide
from netreeve.reconcile.indexes import Indexes, observed_key
from netreeve.reconcile.queue import Queue
from netreeve.reconcile.subject import Holder, Subject, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from netreeve._ext.details import LinkDetails
    from netreeve._ext.wire import AddrMessage
    from netreeve.model.backoff import Backoff
    from netreeve.model.link_op import Step
    from netreeve.reconcile.bulk import Bulk
    from netreeve.reconcile.kind import LinkKind

__all__ = ["Answer", "Observation"]

_TAKEN = (errnos.EEXIST, errnos.EADDRINUSE, errnos.EBUSY, errnos.EINVAL)
"""What a create says when a name, or what must be unique, is taken (EINVAL: TUNSETIFF)."""


class Answer(NamedTuple):
    """What `LinkEngine.answer` was given."""

    errno: int | None
    words: str
    result: Any
    now: float


class Observation:
    """The subjects with their indexes, and how each answer changes them."""

    def __init__(
        self,
        scheme: ownership.Scheme,
        kinds: Mapping[ownership.Kind, LinkKind],
        instance: str,
        mode: OwnershipMode,
        delete_brake: float,
        protocol: int,
        backoff: Backoff,
        random: Callable[[], float],
    ) -> None:
        self.mode = mode
        self._scheme = scheme
        self._kinds = kinds
        self._by_real_kind = {kind.real_kind: kind for kind in kinds.values()}
        self._instance = instance
        self._backoff = backoff
        self._random = random
        self._subjects: dict[str, Subject] = {}
        self._queue: Queue[Subject] = Queue()
        self._indexes = Indexes()
        self._brake = Brake(delete_brake)
        self._protocol = protocol
        self._states: dict[str, int] = {}
        self._condemned: dict[Subject, None] = {}  # to be deleted, if a survey shows no guests
        self._bulks: list[Bulk] = []  # whose own step is due

    # -- the world, as `decision.World` -----------------------------------------------------------

    def controller(self, subject: Subject) -> int | str:
        spec = subject.spec
        if spec is None or spec.controller is None:
            return 0
        controller = self._subjects[spec.controller]
        seen = controller.seen
        if seen is None or seen.name != controller.name:
            return f"waits for its controller {controller.name}, which is not there"
        if controller.kind is not None and not controller.owned:
            return f"waits for its controller {controller.name}: {controller.why}"
        if controller.decision.action == "recreate":
            return f"waits for its controller {controller.name}, which is made anew"
        return seen.ifindex

    def is_ours(self, ifindex: int) -> bool:
        return ifindex in self._indexes.ours

    def key_holder(self, subject: Subject) -> str | Holder | None:
        key = subject.wanted_key
        if key is None:
            return None
        for other in self._indexes.holding.get(key):
            if other is not subject:
                return other.name
        return self._indexes.foreign.get(key)

    def hold(self) -> str | None:
        return self._brake.reason

    # -- what was seen ----------------------------------------------------------------------------

    def _subject(self, name: str) -> Subject:
        subject = self._subjects.get(name)
        if subject is None:
            kind = self._scheme.kind_of(name)
            if kind is None:
                subject = Subject(name, None, "")
            else:
                token = ownership.token(self._instance, name)
                subject = Subject(name, self._kinds[kind], token)
            self._subjects[name] = subject
            self._queue.add(subject)
        return subject

    def _is_owned(self, link: LinkDetails) -> bool:
        verdict = self._scheme.recognise(link.name, link.kind, tap_mode=link.tap is True)
        return verdict.verdict == "owned"

    def _mark(self, subject: Subject) -> None:
        """It has to be looked at; and if it was to be deleted, or what it is in, then who else
        would be hit has to be found out once more."""
        subject.dirty = True
        subject.cleared = False
        self._condemned.pop(subject, None)
        self._queue.add(subject)
        controller = (
            None if subject.seen is None else self._indexes.ours.get(subject.seen.controller)
        )
        if controller is not None and controller.cleared:
            controller.cleared = False
            self._queue.add(controller)

    def _see(self, subject: Subject, link: LinkDetails | None) -> None:
        """This is what answers to the name of `subject` now."""
        seen = () if link is None else facts(link)
        if subject.looked and seen == subject.facts:
            return
        indexes = self._indexes
        before = 0 if subject.seen is None else subject.seen.ifindex
        now = 0 if link is None else link.ifindex
        freed = subject.held_key
        indexes.unsee(subject)
        subject.looked, subject.seen, subject.facts = True, link, seen
        subject.owned, subject.why = self._judge(subject, link)
        indexes.see(subject)
        if subject.made == -1:
            subject.made = now if subject.owned else 0
        if now != before:
            fresh = now != 0 and subject.made == now
            subject.addresses = {} if fresh else None
            if not fresh:
                subject.made = 0
            subject.put = 0
            subject.cleared = subject.no_bulk = False
            self._block(subject, None)
            for port in indexes.ports.get(before) if before else ():
                self._mark(port)
            for port in indexes.ports.get(now) if now else ():
                self._queue.add(port)
        if link is not None:
            self._hold_up(subject, None)
            subject.find = ()
        for member in indexes.members.get(subject.name):
            self._queue.add(member)
        if freed is not None and freed != subject.held_key:
            for other in indexes.wanting.get(freed):
                self._queue.add(other)
        self._calm(subject)
        self._queue.add(subject)
        self._settle(subject)

    def _judge(self, subject: Subject, link: LinkDetails | None) -> tuple[bool, str]:
        if link is None:
            return False, "there is no such link"
        if link.name != subject.name:
            kind = link.kind or "no kind"
            return False, f"{subject.name} is an alternative name of {link.name} ({kind})"
        verdict = self._scheme.recognise(link.name, link.kind, tap_mode=link.tap is True)
        return verdict.verdict == "owned", verdict.reason

    def _observe(self, links: list[LinkDetails], clock: int) -> None:
        """All links; what was worked on at `clock` or later is looked at by itself."""
        present: dict[str, LinkDetails] = {}
        aliases: dict[str, LinkDetails] = {}
        foreign: list[LinkDetails] = []
        for link in links:
            present[link.name] = link
            owned = self._is_owned(link)
            if owned:
                self._subject(link.name)
            else:
                foreign.append(link)
            for altname in link.altnames:
                aliases[altname] = link
                name = ownership.token_object(self._instance, altname)
                if name is not None and name != link.name and self._scheme.kind_of(name):
                    self._subject(name).misplaced = True
        self._foreigners(foreign)
        for name, subject in tuple(self._subjects.items()):
            if subject.misplaced:
                self._queue.add(subject)
            if subject.clock >= clock or subject.flight is not None:
                self._mark(subject)
            else:
                subject.dirty = False
                self._see(subject, present.get(name) or aliases.get(name))

    def _foreigners(self, links: Iterable[LinkDetails]) -> None:
        """These are all links of others: take note of what they have of what must be unique."""
        holders = {}
        for link in links:
            kind = self._by_real_kind.get(link.kind)
            key = None if kind is None else observed_key(kind, link)
            if kind is not None and key is not None:
                holders[key] = _key_holder(link, kind.clash)
        for key in self._indexes.foreign_set(holders):
            for subject in self._indexes.wanting.get(key):
                self._queue.add(subject)

    # -- what stands in the way -------------------------------------------------------------------

    def _calm(self, subject: Subject) -> None:
        """Something is new, or went well: try at once, as if nothing had failed before."""
        subject.failures = 0
        subject.retry_at = 0.0
        subject.error = None

    def _failed(self, subject: Subject, step: Step, answer: Answer) -> None:
        subject.failures += 1
        subject.sent.discard(step)
        subject.retry_at = answer.now + self._backoff.delay_s(subject.failures, self._random())
        if answer.errno:
            what = type(step).__name__
            subject.error = (
                f"{what}: {answer.words or os.strerror(answer.errno)} (errno {answer.errno})"
            )

    def _hold_up(self, subject: Subject, holder: Holder | None) -> None:
        self._indexes.hinder(subject, subject.holder, holder)
        subject.holder = holder

    def _block(self, subject: Subject, holder: Holder | None) -> None:
        self._indexes.hinder(subject, subject.blocked, holder)
        subject.blocked = holder

    def _wake_doomed(self) -> None:
        for subject in tuple(self._brake.doomed):
            self._queue.add(subject)
            self._settle(subject)

    def _settle(self, subject: Subject) -> None:
        """After each change: decide afresh, count it, and forget it if it says nothing."""
        before = subject.decision
        decision = subject.decision = decide(subject, self)
        status = decision.status
        was = before.status.state if before.status is not None else None
        state = status.state if status is not None else None
        if was != state:
            if was is not None:
                self._states[was] -= 1
            if state is not None:
                self._states[state] = self._states.get(state, 0) + 1
        if state == "in_sync":
            subject.at_rest = True
            subject.recheck_at = 0.0
        seen = subject.seen
        if seen is not None and decision.controller == seen.controller:
            subject.put = seen.controller
        if (before.action == "recreate") != (decision.action == "recreate"):
            for member in self._indexes.members.get(subject.name):
                self._queue.add(member)
        if self._brake.count(subject, unproven=state == "unproven"):
            self._wake_doomed()
        if (
            subject.spec is None
            and not subject.there
            and not subject.dirty
            and not subject.misplaced
            and not subject.verify
            and subject.flight is None
            and subject.bulk is None
            and subject.name not in self._indexes.members
            and self._subjects.get(subject.name) is subject
        ):
            self._indexes.unsee(subject)
            self._queue.discard(subject)
            del self._subjects[subject.name]

    # -- answers, one method a step ---------------------------------------------------------------
    # Each gets the subject, whose flight is over.

    def _unread(self, subject: Subject, step: Step, answer: Answer) -> bool:
        """Whether the question got no answer; then it is to be put again, after a while."""
        if answer.errno in (0, errnos.ENODEV):
            return False
        self._failed(subject, step, answer)
        subject.read_failed = True
        return True

    def on_look(self, subject: Subject, step: link_op.Look, answer: Answer) -> None:
        if self._unread(subject, step, answer):
            subject.dirty = True
            return
        self._see(subject, answer.result)
        if answer.result is None:
            subject.made = 0

    def on_look_token(self, subject: Subject, step: link_op.LookToken, answer: Answer) -> None:
        if self._unread(subject, step, answer):
            return
        expected, subject.verify = subject.verify, 0
        if answer.result is None:
            subject.dirty = True
            self._failed(subject, step, answer)
        elif (answer.result.ifindex, answer.result.name) == (
            expected,
            subject.name,
        ) and self._is_owned(answer.result):
            self._see(subject, answer.result)
        else:
            # It came on another link, which took the ifindex or has borne the token before.
            subject.misplaced = True

    def on_look_index(self, subject: Subject, step: link_op.LookIndex, answer: Answer) -> None:
        if self._unread(subject, step, answer):
            return
        subject.asked = step.ifindex
        subject.foreign_controller = None
        if answer.result is None:
            subject.dirty = True
        elif self._is_owned(answer.result):
            self._mark(self._subject(answer.result.name))
        else:
            link = answer.result
            reason = f"it is in {link.name} ({link.kind or 'no kind'}), which isn't ours"
            subject.foreign_controller = Holder(link.ifindex, link.name, reason)

    def on_find_holder(self, subject: Subject, step: link_op.FindHolder, answer: Answer) -> None:
        if self._unread(subject, step, answer):
            return
        kind = subject.kind
        assert kind is not None  # asked for links of ours only
        by = subject.find[0] if subject.find else ()
        subject.find = ()
        exact = by == kind.clash
        holder = None
        for link in answer.result:
            if self._is_owned(link):
                self._mark(self._subject(link.name))
            elif not exact or observed_key(kind, link) == subject.wanted_key:
                holder = _key_holder(link, by)
        if exact and subject.wanted_key is not None:
            self._indexes.foreign_found(subject.wanted_key, holder)
        subject.found_by = by
        self._hold_up(subject, holder)

    def on_addr_look(self, subject: Subject, step: link_op.AddrLook, answer: Answer) -> None:
        if self._unread(subject, step, answer):
            subject.addresses_dirty = True
        elif subject.seen is not None and subject.seen.ifindex == step.ifindex:
            self._addressed(subject, answer.result or ())

    def _addressed(self, subject: Subject, messages: Iterable[AddrMessage]) -> None:
        subject.addresses = {
            LinkAddress(message.family, message.address, message.prefix_len): (
                message.proto == self._protocol
            )
            for message in messages
        }

    def on_token_add(self, subject: Subject, step: link_op.TokenAdd, answer: Answer) -> None:
        if answer.errno in (0, None, errnos.EEXIST):
            subject.verify = step.ifindex  # where is it now?
        else:
            self._changed(subject, step, answer)

    def on_token_remove(self, subject: Subject, step: link_op.TokenRemove, answer: Answer) -> None:
        subject.misplaced = answer.errno not in (0, errnos.ENODEV)
        self._changed(subject, step, answer)

    def on_set(self, subject: Subject, step: link_op.Set, answer: Answer) -> None:
        self._changed(subject, step, answer)

    def _changed(self, subject: Subject, step: Step, answer: Answer) -> None:
        """It was changed, or part of it; in any case the link tells. ENODEV: it lost its token."""
        subject.dirty = True
        if answer.errno == 0:
            self._calm(subject)
        elif answer.errno != errnos.ENODEV:
            self._failed(subject, step, answer)

    def on_create(self, subject: Subject, step: Step, answer: Answer) -> None:
        if answer.errno == 0:
            self._calm(subject)
            self._hold_up(subject, None)
            subject.made = -1 if answer.result is None else answer.result.ifindex
            if answer.result is None:
                subject.dirty = True
            else:
                self._see(subject, answer.result)
            return
        self._failed(subject, step, answer)
        subject.dirty = True
        if answer.errno in _TAKEN and subject.kind is not None:
            by = subject.kind.clashes.get(answer.errno)
            subject.find = () if by is None else (by,)

    def on_delete(self, subject: Subject, step: link_op.Delete, answer: Answer) -> None:
        if answer.errno == 0:
            self._see(subject, None)
        else:
            self._changed(subject, step, answer)

    def on_group_set(self, subject: Subject, step: link_op.GroupSet, answer: Answer) -> None:
        bulk = subject.bulk
        assert bulk is not None  # it has the group
        if answer.errno != 0:
            subject.bulk = None
            subject.no_bulk = True
            self._changed(subject, step, answer)
        if bulk.entered(subject, done=answer.errno == 0) and bulk.members:
            self._bulks.append(bulk)

    def on_addr_add(self, subject: Subject, step: link_op.AddrAdd, answer: Answer) -> None:
        if answer.errno == 0 and subject.addresses is not None:
            self._calm(subject)
            subject.addresses[step.address] = True
        else:
            self._addresses_changed(subject, step, answer)

    def on_addr_delete(self, subject: Subject, step: link_op.AddrDelete, answer: Answer) -> None:
        # Also where it went well: the kernel may have taken others of the same network with it.
        self._addresses_changed(subject, step, answer)

    def _addresses_changed(self, subject: Subject, step: Step, answer: Answer) -> None:
        subject.addresses_dirty = True
        if answer.errno == 0:
            self._calm(subject)
        elif answer.errno not in (errnos.EEXIST, errnos.EADDRNOTAVAIL):
            self._failed(subject, step, answer)
            subject.dirty = True


def _key_holder(link: LinkDetails, by: Iterable[str]) -> Holder:
    """Of those properties; by name."""
    what = ", ".join(f"{name} {getattr(link, name)}" for name in by)
    reason = f"{what}: held by {link.name} ({link.kind}), which isn't ours"
    return Holder(link.ifindex, link.name, reason)
