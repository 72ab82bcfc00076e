"""`LinkMonitor`: the race-free view of links as a library, without the rest of the agent."""

from __future__ import annotations

import asyncio
import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
from netreeve.io.linkfeed import LinkFeed
from netreeve.io.netlink import Kernel
from netreeve.model.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from netreeve._ext.index import Link
    from netreeve.io.namespaces import NetNs

__all__ = ["InSync", "LinkEvent", "LinkMonitor", "Overrun"]


@dataclass(frozen=True, slots=True)
class InSync:
    """The view equals the kernel as of now; `links` is how many there are.

    Comes once after the start, and after every full comparison from then on.
    """

    links: int


@dataclass(frozen=True, slots=True)
class Overrun:
    """The kernel dropped events; what changed meanwhile is told up to the next InSync."""


LinkEvent = LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous | InSync | Overrun


class LinkMonitor:
    """What happens to the links of a namespace, told without races, from 10 to 100,000 links.

    An async context manager and an async iterator of LinkEvent::

        async with netreeve.LinkMonitor() as links:
            async for event in links:
                match event:
                    case netreeve.LinkAdded(name, ifindex, up):
                        ...

    Per name the events are LinkAdded, LinkChanged ..., LinkRemoved, for one ifindex at a time; two
    links never bear one name. `links[ifindex]` and `links.by_name(name)` look at the present, which
    may be ahead of the events not yet read. Names are `str`; bytes that aren't UTF-8 are
    surrogate-escaped.

    `netns`: path or descriptor of another namespace (needs CAP_SYS_ADMIN). `rcvbuf_bytes`: kernel
    buffer for events; without CAP_NET_ADMIN it is capped by net.core.rmem_max. `resync_interval_s`:
    full comparison that often, 0 = only when events were lost. `queue_events`: when so many events
    wait to be read, nothing more is taken from the kernel until half of them have been: a reader
    that is too slow costs an Overrun, never memory without bound.

    Works under asyncio and uvloop. OSError or NotPermitted on entering if the sockets can't be had.
    Iteration ends when the monitor is closed.
    """

    def __init__(
        self,
        *,
        netns: NetNs | None = None,
        rcvbuf_bytes: int = 8 * 1024 * 1024,
        resync_interval_s: float = 90.0,
        queue_events: int = 100_000,
    ) -> None:
        if queue_events < 1:
            raise ValueError(f"queue_events must be at least 1, not {queue_events}")
        self._netns = netns
        self._rcvbuf_bytes = rcvbuf_bytes
        self._resync_interval_s = resync_interval_s
        self._queue_events = queue_events
        self._queue: collections.deque[LinkEvent] = collections.deque()
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._kernel = Kernel(self._netns)
        try:
            self._feed = LinkFeed(
                self._kernel,
                self,
                rcvbuf_bytes=self._rcvbuf_bytes,
                resync_interval_s=self._resync_interval_s,
                backoff=Backoff(50, 5000),
                netns=self._netns,
            )
            self._task = self._feed.start()
        except BaseException:
            self._kernel.close()
            raise
        self._task.add_done_callback(lambda _: self._notify())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await self._feed.close()
        self._notify()
        await asyncio.get_running_loop().run_in_executor(None, self._kernel.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LinkEvent:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            if self._task is not None and self._task.done():
                self._task.result()  # what ended the driver
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        event = self._queue.popleft()
        if len(self._queue) <= self._queue_events // 2 and not self._closed:
            self._feed.resume()
        return event

    # -- the present

    def __len__(self) -> int:
        return len(self._feed.table)

    def __getitem__(self, ifindex: int) -> Link:
        return self._feed.table[ifindex]

    def __contains__(self, ifindex: object) -> bool:
        return ifindex in self._feed.table

    def __iter__(self) -> Iterator[Link]:
        """Every link, as of now, in no order."""
        return iter(self._feed.table)

    def by_name(self, name: str | bytes) -> Link | None:
        """The link of this name; None if there is none, or (for a moment) several."""
        return self._feed.table.by_name(name)

    @property
    def in_sync(self) -> bool:
        """Whether the view was complete and nothing was lost since."""
        return self._feed.sync.in_sync

    # -- Listener

    def told(
        self,
        events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous],
        flushed: list[int],
        touched: list[tuple[str, int, bool]],
    ) -> None:
        self._queue.extend(events)
        self._notify()

    def published(self) -> None:
        self._queue.append(InSync(len(self._feed.table)))
        self._notify()

    def overrun(self) -> None:
        self._queue.append(Overrun())
        self._notify()

    def _notify(self) -> None:
        if len(self._queue) >= self._queue_events:
            self._feed.pause()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
