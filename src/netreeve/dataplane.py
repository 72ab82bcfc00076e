"""What the agent keeps equal to the plan in the kernel: its own links, and endpoint routes.

Wiring of LinkFeed, LinkEngine with its driver, and RouteReconciler with its driver: events of the
kernel go to whoever they concern, in the order in which they came. It knows nothing of status:
the agent listens, and folds; the one-shot commands (`plan`, `apply`, `cleanup`) don't.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from netreeve._ext.index import LinkRemoved, NameAmbiguous
from netreeve.errors import KernelError, NetreeveError, NotPermitted
from netreeve.io.linkdriver import LinkDriver
from netreeve.io.linkfeed import LinkFeed
from netreeve.io.routedriver import RouteDriver
from netreeve.links import registry
from netreeve.model.backoff import Backoff
from netreeve.plan.diff import diff_endpoints
from netreeve.plan.model import Plan
from netreeve.reconcile.engine import LinkEngine
from netreeve.routes import report
from netreeve.routes.preview import preview
from netreeve.routes.reconciler import RouteReconciler
from netreeve.routes.slot import Standing

if TYPE_CHECKING:
    from collections.abc import Collection

    from netreeve._ext.index import LinkAdded, LinkChanged
    from netreeve.config.settings import Settings
    from netreeve.io.netlink import Kernel
    from netreeve.model import ownership, route

__all__ = ["DataPlane", "Left", "Listener", "RoutePreview", "Wrong", "check_permission"]

log = logging.getLogger(__name__)

# A destination that no route has: TEST-NET-1 with a metric that nobody uses.
PROBE = (socket.AF_INET, socket.inet_aton("192.0.2.255"), 32, 254, 0, 0xFFFFFFFF)


async def check_permission(kernel: Kernel, protocol: int) -> None:
    """NotPermitted without CAP_NET_ADMIN: deletes a route that doesn't exist, of `protocol`, to be
    told so."""
    try:
        refused = await kernel.send(1, lambda batch: batch.route_delete(*PROBE, protocol, 1))
    except KernelError as error:
        raise NetreeveError(f"asking the kernel failed: {error}") from error
    if any(answer.errno == errno.EPERM for answer in refused.values()):
        raise NotPermitted(
            "programming routes needs CAP_NET_ADMIN in this network namespace, which this "
            "process hasn't; run it as root, or add NET_ADMIN to the container's capabilities"
        )


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that is not as planned: `object` is the plan entry, or a kind, `name` its link or
    prefix, `state` one of `link_spec.State`, or "refused"."""

    object: str
    name: str
    state: str
    reason: str

    @property
    def lasting(self) -> bool:
        """Whether waiting is in vain: others, or a rule, stand in the way."""
        return self.state in ("conflict", "blocked", "unproven")


class Left(NamedTuple):
    """How far it is to the plan. `settled`: nothing is under way, or could be without waiting.
    `amount`: how many links and routes are not as planned."""

    settled: bool
    amount: int


@dataclass(frozen=True, slots=True)
class RoutePreview:
    """What would be sent for routes, and which of them others hold."""

    ops: list[route.Op]
    conflicts: list[route.Conflict]


class Listener(Protocol):
    """Who wants to know. The calls come from the loop, one at a time, and must not block."""

    def told(self, events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous]) -> None:
        """Link events in order; routes and links of ours have heard of them already."""

    def links_known(self) -> None:
        """The link table equals the kernel, for the first time or again."""

    def routes_changed(self) -> None:
        """Endpoints may stand otherwise than before (`DataPlane.routes.take_changed`)."""


class DataPlane:
    """See the head of this file.

    `instance` is the installation's id, in the tokens of our links. With `acting` False nothing
    is changed: links of ours are looked at and decided on, routes are left out.
    """

    def __init__(
        self,
        kernel: Kernel,
        settings: Settings,
        scheme: ownership.Scheme,
        instance: str,
        listener: Listener,
        *,
        acting: bool = True,
    ) -> None:
        self.settings = settings
        self.scheme = scheme
        self._listener = listener
        self.acting = acting
        self._plan: Plan | None = None
        self._links_known = False
        self._wars: frozenset[str] = frozenset()
        backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms)
        self.feed = LinkFeed(
            kernel,
            self,
            rcvbuf_bytes=settings.rcvbuf_bytes,
            resync_interval_s=settings.resync_interval_s,
            backoff=backoff,
            watch=scheme.suffixes.all,
        )
        self.engine = LinkEngine(
            scheme=scheme,
            kinds=registry.KINDS,
            instance=instance,
            protocol=settings.route_protocol,
            backoff=backoff,
            random=random.random,
            mode=settings.ownership,
            delete_brake=settings.delete_brake,
            acting=acting,
        )
        self.link_driver = LinkDriver(
            kernel,
            self.engine,
            batch_ops=settings.batch_ops,
            batch_delay_ms=settings.batch_delay_ms,
            changed=self._links_changed,
        )
        self.kernel = kernel
        self._backoff = backoff
        self._tables: frozenset[int] = frozenset()
        self.routes = self._reconciler()
        self.route_driver = RouteDriver(
            kernel,
            self.routes,
            protocol=settings.route_protocol,
            rcvbuf_bytes=settings.rcvbuf_bytes,
            batch_ops=settings.batch_ops,
            batch_delay_ms=settings.batch_delay_ms,
            backoff=backoff,
            changed=listener.routes_changed,
            addressed=self._addressed,
        )

    @property
    def in_sync(self) -> bool:
        """Whether links and routes were compared, and nothing was lost since."""
        return self.feed.sync.in_sync and (self.route_driver.in_sync or not self.acting)

    def start(self) -> list[asyncio.Task[None]]:
        """Subscribes and begins; returns the tasks, which end only if they fail. OSError if the
        sockets can't be had."""
        tasks = [self.feed.start()]
        if self.acting:
            tasks += self.route_driver.start()
            self.route_driver.resync()
        self.engine.resync()
        tasks.append(self.link_driver.start())
        return tasks

    def act(self) -> list[asyncio.Task[None]]:
        """From now on changes what differs, though `acting` was False; returns further tasks."""
        self.acting = True
        tasks = self.route_driver.start()
        self.route_driver.resync()
        # What was seen before may be old by now: nothing is deleted by that.
        self.engine.overrun()
        self.engine.act()
        self.link_driver.wake()
        if self._plan is not None:
            self._want_routes(self.routes, None, self._plan)
            self.route_driver.wake()
        return tasks

    async def close(self) -> None:
        """Stops; links and routes stay as they are."""
        await self.feed.close()
        await self.link_driver.close()
        if self.acting:
            await self.route_driver.close()

    def resync(self) -> None:
        """Compares everything with the kernel, now."""
        self.feed.resync()

    def plan_set(self, plan: Plan, tables: Collection[int] = ()) -> None:
        """Wants this from now on. Only once the links are known (Listener.links_known).

        `tables`: further ones in which routes of our protocol are ours.
        """
        before, self._plan = self._plan, plan
        self._tables = frozenset(tables)
        settings = self.settings
        self.engine.plan_set(
            registry.specs(plan, self.scheme),
            hold=registry.hold(plan, complete=True, allow_empty=settings.allow_empty_plan),
        )
        self.link_driver.wake()
        if self.acting:
            self._want_routes(self.routes, before, plan)
            self.route_driver.wake()

    def _want_routes(self, routes: RouteReconciler, before: Plan | None, plan: Plan) -> None:
        default = self.settings.route_table
        routes.tables_set(
            {default, *self._tables, *(vpc.table for vpc in plan.vpcs.values() if vpc.table)}
        )
        diff = diff_endpoints(before, plan)
        for endpoint in diff.removed:
            routes.endpoint_gone(endpoint.id)
        for endpoint in (*diff.changed, *diff.added):
            routes.endpoint_set(
                endpoint,
                plan.route_table(endpoint, default),
                self.feed.table.told(endpoint.interface),
            )
        routes.plan_complete()

    def _reconciler(self) -> RouteReconciler:
        return RouteReconciler(
            protocol=self.settings.route_protocol,
            metric=self.settings.route_metric,
            tables=[self.settings.route_table],
            backoff=self._backoff,
            random=random.random,
        )

    async def preview_routes(self) -> RoutePreview:
        """What `act` would do to routes now, for the plan that was set. KernelError where they
        can't be read."""
        routes = self._reconciler()
        if self._plan is not None:
            self._want_routes(routes, None, self._plan)
        protocol, watched = self.settings.route_protocol, routes.watched()
        found = [
            message
            for family in (socket.AF_INET, socket.AF_INET6)
            for message in await self.kernel.dump_routes(
                family,
                keep=lambda m: m.protocol == protocol or (m.family, m.dst, m.prefix_len) in watched,
            )
        ]
        ops = preview(routes, found, asyncio.get_running_loop().time())
        return RoutePreview(ops, routes.conflicts())

    # -- LinkFeed's listener

    def told(
        self,
        events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous],
        flushed: list[int],
        touched: list[tuple[str, int, bool]],
    ) -> None:
        """See LinkFeed."""
        if not self._links_known:
            return
        table = self.feed.table
        for ifindex in flushed:
            self.routes.flushed(ifindex, gone=ifindex not in table)
        for name, ifindex, present in touched:
            (self.engine.touched if present else self.engine.gone)(name, ifindex)
        for event in events:
            if isinstance(event, NameAmbiguous):
                continue
            (self.engine.gone if isinstance(event, LinkRemoved) else self.engine.touched)(
                event.name, event.ifindex
            )
            self.routes.link(event)
        self._listener.told(events)
        if self.acting:
            self.route_driver.wake()
        if self.engine.ready:
            self.link_driver.wake()

    def published(self) -> None:
        """See LinkFeed. Routes and links of ours are compared with every full comparison."""
        self._links_known = True
        if self.acting:
            self.route_driver.resync()
        self.engine.resync()
        self.link_driver.wake()
        self._listener.links_known()

    def overrun(self) -> None:
        """See LinkFeed: IPv4 routes may have vanished with links that fell meanwhile."""
        self.routes.overrun()
        self.engine.overrun()

    def _addressed(self, ifindex: int) -> None:
        self.engine.address_touched(ifindex)
        if self.engine.ready:
            self.link_driver.wake()

    def _links_changed(self) -> None:
        """A turn of the link driver is over: what is new is heard from events, but for wars."""
        now = asyncio.get_running_loop().time()
        wars = {war.name: war.reason for war in self.engine.wars(now)}
        for name in wars.keys() - self._wars:
            log.warning(
                "a link of ours is fought over", extra={"fields": {"link": name, "war": wars[name]}}
            )
        self._wars = frozenset(wars)

    # -- how it stands

    def left(self) -> Left:
        """See Left; `settled` means nothing before everything was compared (`in_sync`)."""
        objects = self.engine.counts()
        count = objects.pending + objects.error + objects.conflict + objects.blocked
        routes = self.routes.counts()
        slots = sum(map(report.unsettled, self.routes.slots())) if self.acting else 0
        count += slots + routes.refused + routes.conflicts
        idle = self.link_driver.idle.is_set() and not self.engine.ready
        return Left(self.in_sync and idle and not slots, count)

    def wrong(self) -> list[Wrong]:
        """What isn't as planned, links first."""
        found: dict[str, Wrong] = {}
        specs = [] if self._plan is None else registry.specs(self._plan, self.scheme)
        entries = [(spec.entry, spec.name) for spec in specs]
        entries += [(change.object, change.name) for change in self.engine.changes()]
        entries += [("link", held.name) for held in self.engine.held_back()]
        for entry, name in entries:
            status = self.engine.status(name)
            if name not in found and status is not None and status.state != "in_sync":
                reason = status.reason or "not done yet"
                found[name] = Wrong(entry, name, status.state, reason)
        wrong = list(found.values())
        for conflict in self.routes.conflicts():
            entry = f"endpoint {conflict.endpoint}"
            wrong.append(Wrong(entry, str(conflict.key), "conflict", conflict.reason))
        for slot in self.routes.slots():
            entry = f"endpoint {slot.claims[-1].id}" if slot.claims else "route"
            if slot.standing is Standing.REFUSED:
                wrong.append(Wrong(entry, str(slot.key), "refused", slot.reason()))
            elif report.unsettled(slot):
                wrong.append(Wrong(entry, str(slot.key), "pending", "not done yet"))
        return wrong

    def status(self, plan: Plan | None) -> dict[str, Any]:
        """The data plane's members of `status --json` (product.md, JSON shapes)."""
        table, sync = self.feed.table, self.feed.sync
        counts, objects = self.routes.counts(), self.engine.counts()
        tracked = 0
        if plan is not None:
            tracked = sum(
                table.told(endpoint.interface) is not None for endpoint in plan.endpoints.values()
            )
        owned = self.engine.owned
        return {
            "links": {
                "total": len(table),
                "owned": owned,
                "tracked": tracked,
                "foreign": len(table) - owned - tracked,
                "ambiguous": len(table.ambiguous),
            },
            "routes": {
                "programmed": counts.programmed,
                "pending": counts.pending,
                "refused": counts.refused,
                "conflicts": counts.conflicts,
            },
            "objects": objects._asdict(),
            "conflicts": [
                {"endpoint": conflict.endpoint, "reason": conflict.reason}
                for conflict in self.routes.conflicts()
            ]
            + [
                {"object": conflict.object, "name": conflict.name, "reason": conflict.reason}
                for conflict in self.engine.conflicts()
            ],
            "held_back": [
                {"name": held.name, "reason": held.reason} for held in self.engine.held_back()
            ],
            "wars": [
                {"name": war.name, "reason": war.reason}
                for war in self.engine.wars(asyncio.get_running_loop().time())
            ],
            "requests": {
                "batches": self.route_driver.batches + self.link_driver.batches,
                "ops": self.route_driver.ops + self.link_driver.steps,
                "refused": self.route_driver.refused + self.link_driver.refused,
            },
            "overruns": sync.overruns + self.route_driver.overruns,
            "resyncs": sync.resyncs,
            "ambiguous_total": sync.ambiguous_total,
            "ambiguous_seconds": round(sync.ambiguous_seconds, 6),
        }
