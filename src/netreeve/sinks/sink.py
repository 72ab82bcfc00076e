"""What a sink must do. Order, cursor, retries and isolation are the runner's (`sinks.runner`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from netreeve.status.transition import Transition

__all__ = ["Mark", "Sink"]


class Mark(NamedTuple):
    """The last transition that a store holds.

    `observed` tells whether the journal's transition of that number is the same one: a journal that
    was lost begins again with 1.
    """

    seq: int
    observed: str


class Sink(Protocol):
    """A place that transitions are delivered to.

    All calls come from one task, one at a time; after an error `close`, then `open` again. Errors
    of the store are SinkError or OSError; any other exception ends the agent.
    """

    @property
    def url(self) -> str:
        """As in NETREEVE_STATUS; the name of its cursor."""

    async def open(self) -> Mark | None:
        """Make ready, and say what the store holds, None where it can't say.

        A store that can say gets each transition exactly once, also where an answer was lost or
        the agent was killed; the other gets the last batch again.
        """

    async def deliver(self, transitions: Sequence[Transition]) -> None:
        """Store them in this order; on return all of them are safe. Numbers have no hole."""

    async def close(self) -> None:
        """Let go of everything; never raises for the store's sake."""
