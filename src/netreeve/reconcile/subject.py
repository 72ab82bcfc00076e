"""One link that the engine looks after: what is wanted, what was seen, what is under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netreeve.model.link_op import Step
from netreeve.model.link_spec import Status
from netreeve.reconcile.war import War

if TYPE_CHECKING:
    from netreeve._ext.details import LinkDetails
    from netreeve.model.link_spec import Action, LinkSpec
    from netreeve.model.prefix import LinkAddress
    from netreeve.reconcile.bulk import Bulk
    from netreeve.reconcile.kind import Key, LinkKind

__all__ = ["IDLE", "Decision", "Facts", "Holder", "Operation", "Subject", "facts"]

_HISTORY = 16

Facts = tuple[object, ...]


def facts(details: LinkDetails) -> Facts:
    """What of a link the engine looks at; a change of anything else is none."""
    return (
        details.ifindex,
        details.name,
        details.kind,
        details.admin_up,
        details.mtu,
        details.mac,
        details.controller,
        details.altnames,
        details.table,
        details.vlan_filtering,
        details.vni,
        details.port,
        details.local,
        details.ttl,
        details.tap,
    )


@dataclass(frozen=True, slots=True)
class Holder:
    """Somebody else's link that is in the way."""

    ifindex: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A step and the kernel's answer to it: `errno` 0 = done, None = lost; `at` monotonic s."""

    at: float
    step: Step
    errno: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about a link; None where nothing is, or nothing can be now.

    `fields` are (name, observed, wanted). `controller` is the ifindex that the spec's controller
    has now, 0 where there is none.
    """

    action: Action | None
    status: Status | None  # None: nothing to report, the link is none of ours
    fields: tuple[tuple[str, object, object], ...] = ()
    controller: int = 0


IDLE = Decision(None, None)


class Subject:
    """A name, of a link of ours or of a controller of others that ours refer to."""

    __slots__ = (
        "addresses",
        "addresses_dirty",
        "asked",
        "at_rest",
        "blocked",
        "bulk",
        "cleared",
        "clock",
        "decision",
        "dirty",
        "error",
        "excused",
        "facts",
        "failures",
        "find",
        "flight",
        "foreign_controller",
        "found_by",
        "history",
        "holder",
        "kind",
        "looked",
        "made",
        "misplaced",
        "name",
        "no_bulk",
        "owned",
        "put",
        "read_failed",
        "recheck",
        "recheck_at",
        "retry_at",
        "seen",
        "sent",
        "slow_until",
        "spec",
        "token",
        "verify",
        "wanted_key",
        "war",
        "why",
    )

    def __init__(self, name: str, kind: LinkKind | None, token: str) -> None:
        self.name = name
        self.kind = kind  # None: a controller of others
        self.token = token
        self.spec: LinkSpec | None = None
        self.wanted_key: Key | None = None
        # What was seen. `seen` may be somebody else's link, which has the name.
        self.looked = False
        self.seen: LinkDetails | None = None
        self.facts: Facts = ()
        self.owned = False
        self.why = ""
        self.addresses: dict[LinkAddress, bool] | None = None  # True: ours by IFA_PROTO
        self.clock = 0  # of the engine, when it was last seen or worked on
        # What is to be read.
        self.dirty = True
        self.addresses_dirty = False
        self.find: tuple[tuple[str, ...], ...] = ()  # properties to find a holder by
        self.verify = 0  # ifindex that the token was put on, to be looked at
        self.misplaced = False  # the token is on another link, and comes off first
        self.found_by: tuple[str, ...] = ()  # what `holder` was found by
        self.read_failed = False  # no answer to a question: it waits like a change does
        self.asked = 0  # ifindex of the controller that `foreign_controller` is about
        self.foreign_controller: Holder | None = None
        # What is under way, and what came of it.
        self.flight: Step | None = None
        self.bulk: Bulk | None = None  # the bulk delete that has it
        self.no_bulk = False
        self.made = 0  # ifindex of the link that we made, -1 = not told; proof until the token
        self.put = 0  # ifindex of the controller that it had as planned
        self.cleared = False  # a survey says that nothing of others goes with it
        self.blocked: Holder | None = None
        self.holder: Holder | None = None
        self.recheck = False
        self.recheck_at = 0.0
        self.error: str | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.war = War()
        self.slow_until = 0.0
        self.excused = False  # the repair was slowed once already
        self.at_rest = False
        self.sent: set[Step] = set()
        self.history: deque[Operation] = deque(maxlen=_HISTORY)
        self.decision = IDLE

    def __repr__(self) -> str:
        return f"<Subject {self.name} {self.decision.action} {self.decision.status} {self.flight}>"

    @property
    def proven(self) -> bool:
        """It was seen with our token."""
        return self.seen is not None and self.token in self.seen.altnames

    @property
    def there(self) -> bool:
        """There is a link of ours by that name."""
        return self.seen is not None and self.owned

    @property
    def held_key(self) -> Key | None:
        """What its link has of what must be unique."""
        if not self.there or self.kind is None:
            return None
        return self.kind.key(lambda name: getattr(self.seen, name))
