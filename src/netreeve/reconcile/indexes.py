"""Where the engine finds its subjects, so that an event costs what it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from netreeve.reconcile.kind import Key, LinkKind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from netreeve._ext.details import LinkDetails
    from netreeve.model.link_spec import LinkSpec
    from netreeve.reconcile.subject import Holder, Subject

__all__ = ["Indexes", "observed_key", "planned_key"]

K = TypeVar("K", bound="Hashable")


class _Index(Generic[K]):
    """Subjects by a key that several may have; in order."""

    __slots__ = ("_subjects",)

    def __init__(self) -> None:
        self._subjects: dict[K, dict[Subject, None]] = {}

    def get(self, key: K) -> tuple[Subject, ...]:
        return tuple(self._subjects.get(key, ()))

    def __contains__(self, key: K) -> bool:
        return key in self._subjects

    def add(self, key: K, subject: Subject) -> None:
        self._subjects.setdefault(key, {})[subject] = None

    def discard(self, key: K, subject: Subject) -> None:
        subjects = self._subjects.get(key)
        if subjects is not None:
            subjects.pop(subject, None)
            if not subjects:
                del self._subjects[key]


class Indexes:
    """Of what was seen, and of what is wanted."""

    def __init__(self) -> None:
        self.ours: dict[int, Subject] = {}  # by ifindex, links of ours that are there
        self.ports: _Index[int] = _Index()  # by the ifindex of the controller they have
        self.members: _Index[str] = _Index()  # by the name of the controller they want
        self.wanting: _Index[Key] = _Index()  # by the key that their spec has
        self.holding: _Index[Key] = _Index()  # by the key that their link has
        self.hindered: _Index[int] = _Index()  # by the ifindex of others' links in their way
        self.foreign: dict[Key, Holder] = {}  # keys that others' links have
        self._foreign_keys: dict[int, Key] = {}  # by ifindex

    def unsee(self, subject: Subject) -> None:
        """Before what was seen of `subject` changes."""
        seen = subject.seen
        if seen is None:
            return
        if self.ours.get(seen.ifindex) is subject:
            del self.ours[seen.ifindex]
        if not subject.owned:
            self.hindered.discard(seen.ifindex, subject)
        self.ports.discard(seen.controller, subject)
        if subject.owned and subject.kind is not None:
            key = observed_key(subject.kind, seen)
            if key is not None:
                self.holding.discard(key, subject)

    def see(self, subject: Subject) -> None:
        """After it has changed."""
        seen = subject.seen
        if seen is None:
            return
        self.ports.add(seen.controller, subject)
        if subject.owned and subject.kind is not None:
            self.ours[seen.ifindex] = subject
            key = observed_key(subject.kind, seen)
            if key is not None:
                self.holding.add(key, subject)
        else:
            self.hindered.add(seen.ifindex, subject)  # it has the name, perhaps as an altname

    def plan(self, subject: Subject, spec: LinkSpec | None) -> None:
        """Call it before the spec of `subject` is changed to this one."""
        before = subject.spec
        if before is not None and before.controller is not None:
            self.members.discard(before.controller, subject)
        if spec is not None and spec.controller is not None:
            self.members.add(spec.controller, subject)
        key = None if spec is None or subject.kind is None else planned_key(subject.kind, spec)
        if key != subject.wanted_key:
            if subject.wanted_key is not None:
                self.wanting.discard(subject.wanted_key, subject)
            if key is not None:
                self.wanting.add(key, subject)
            subject.wanted_key = key

    def foreign_set(self, holders: dict[Key, Holder]) -> set[Key]:
        """These are all; returns the keys whose holder came or went."""
        changed = set(self.foreign.keys() ^ holders.keys())
        self.foreign = holders
        self._foreign_keys = {holder.ifindex: key for key, holder in holders.items()}
        return changed

    def foreign_found(self, key: Key, holder: Holder | None) -> None:
        """This is the one that has `key` now."""
        before = self.foreign.pop(key, None)
        if before is not None:
            self._foreign_keys.pop(before.ifindex, None)
        if holder is not None:
            self.foreign[key] = holder
            self._foreign_keys[holder.ifindex] = key

    def in_the_way_of(self, ifindex: int) -> tuple[Subject, ...]:
        """Those that somebody else's link `ifindex` keeps from what they want."""
        key = self._foreign_keys.get(ifindex)
        wanting = () if key is None else self.wanting.get(key)
        return (*self.hindered.get(ifindex), *wanting)

    def hinder(self, subject: Subject, before: Holder | None, after: Holder | None) -> None:
        """Others' link `after` is in its way now, no longer `before`."""
        if before is not None:
            self.hindered.discard(before.ifindex, subject)
        if after is not None:
            self.hindered.add(after.ifindex, subject)


def observed_key(kind: LinkKind, seen: LinkDetails) -> Key | None:
    return kind.key(lambda name: getattr(seen, name))


def planned_key(kind: LinkKind, spec: LinkSpec) -> Key | None:
    properties = dict(spec.properties)
    return kind.key(lambda name: properties.get(name, kind.fields[name].default))
