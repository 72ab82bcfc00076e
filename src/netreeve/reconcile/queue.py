"""The queue of what has to be looked at: ready items in order, the others when their time comes.

It holds keys, not decisions: an item that is taken is looked at afresh, so that adding it twice, or
for two reasons, costs nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Queue"]

T = TypeVar("T", bound=Hashable)

# An entry of the heap stays when its item is added or put off again. The heap is made anew once
# such entries are more than those that count, and this many.
_SLACK = 64


class Queue(Generic[T]):
    """Items that are ready, first come first served, and items that are to wait until some time.

    An item is in it at most once: the last `add` or `later` counts. Times are monotonic seconds.
    """

    __slots__ = ("_due", "_heap", "_ready", "_serial")

    def __init__(self) -> None:
        self._ready: OrderedDict[T, None] = OrderedDict()
        self._due: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._serial = 0  # breaks ties in the heap: items needn't have an order

    def __len__(self) -> int:
        return len(self._ready) + len(self._due)

    @property
    def ready(self) -> bool:
        """Whether `take` has an item without waiting."""
        return bool(self._ready)

    def __contains__(self, item: T) -> bool:
        return item in self._ready or item in self._due

    def add(self, item: T) -> None:
        """Make it ready now, also if it was to wait."""
        self._due.pop(item, None)
        self._ready[item] = None

    def later(self, item: T, at_s: float) -> None:
        """Make it ready at `at_s` and not before, also if it was ready."""
        self._ready.pop(item, None)
        self._due[item] = at_s
        self._serial += 1
        heapq.heappush(self._heap, (at_s, self._serial, item))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            live = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(live)
            self._heap = live

    def discard(self, item: T) -> None:
        self._ready.pop(item, None)
        self._due.pop(item, None)

    def take(self, now: float) -> T | None:
        """The next item that is ready at `now`, taken out; None where there is none."""
        while self._heap and self._heap[0][0] <= now:
            at_s, _, item = heapq.heappop(self._heap)
            if self._due.get(item) == at_s:
                del self._due[item]
                self._ready[item] = None
        return self._ready.popitem(last=False)[0] if self._ready else None

    def deadline(self) -> float | None:
        """When the first of those that wait gets ready; None where nothing waits."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
