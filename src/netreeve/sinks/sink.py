"""What a sink must do. Order, cursor, retries and isolation are the runner's (`sinks.runner`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from netreeve.io.etcd.access import Access
from netreeve.model.ids import EndpointId
from netreeve.status.transition import Transition

__all__ = ["Mark", "Node", "Sink"]


class Mark(NamedTuple):
    """The last transition that a store holds.

    `observed` tells whether the journal's transition of that number is the same one: a journal that
    was lost begins again with 1.
    """

    seq: int
    observed: str


@dataclass(frozen=True, slots=True)
class Node:
    """What a sink may ask of the agent, beyond the transitions.

    `present` and `last_seq` are the journal's when the agent started: the last transition of each
    endpoint that was not removed, and the number of the newest one. `known` gives every endpoint
    that is planned or recorded, None until the first plan is folded: before that, nobody can say
    of an endpoint that it is gone. `progresses` says whether the agent's work gets on, as opposed
    to its loop merely going round. `access` is for sinks in etcd.
    """

    name: str
    present: Mapping[EndpointId, Transition]
    last_seq: int
    known: Callable[[], Collection[EndpointId] | None]
    progresses: Callable[[], bool]
    access: Access = field(default_factory=Access)


class Sink(Protocol):
    """A place that transitions are delivered to. To be inherited from.

    All calls come from one task, one at a time; after an error `close`, then `open` again. Errors
    of the store are SinkError or OSError; any other exception ends the agent. After SinkFenced
    nothing is called any more but `close`.
    """

    url: str
    """As in NETREEVE_STATUS; the name of its cursor."""

    def attach(self, node: Node) -> None:
        """Called once, before everything else."""
        return

    async def open(self) -> Mark | None:
        """Make ready, and say what the store holds, None where it can't say.

        A store that can say gets each transition exactly once, also where an answer was lost or
        the agent was killed; the other gets the last batch again.
        """

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        """Store them in this order; on return all of them are safe. Numbers have no hole."""

    async def tend(self, seq: int) -> str | None:
        """Look after what is stored; `seq` is the number of the last transition that it has.

        Called after `open` (and what was waiting then), after each delivery, and about once a
        second in between. Returns what is wrong although the sink goes on, for `netreeve status`.
        """
        return None

    async def close(self) -> None:
        """Let go of everything; never raises for the store's sake."""
