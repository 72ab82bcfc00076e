"""The agent: wires the parts together, and decides nothing itself.

    link events ─▶ routes, status        (LinkFeed calls `told`)
    plan        ─▶ routes, status        (Plans calls `_plan_changed`)
    routes      ─▶ status                (RouteDriver calls `_routes_changed`)
    status      ─▶ journal ─▶ sinks

Everything that decides runs on the loop's thread, one call after the other, so that the order of
events is the order of transitions. Until the links are in sync and a plan is in force, nothing is
folded: the first comparison then takes every endpoint with what was last told of its link.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import signal
import socket
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netreeve import sinks, sources
from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
from netreeve.control.server import ControlServer
from netreeve.errors import KernelError, NetreeveError, NotPermitted
from netreeve.io.journal import Journal
from netreeve.io.linkfeed import LinkFeed
from netreeve.io.netlink import Kernel
from netreeve.io.routedriver import RouteDriver
from netreeve.model import ownership
from netreeve.model.backoff import Backoff
from netreeve.plan.diff import diff_endpoints
from netreeve.plan.model import Plan
from netreeve.routes.reconciler import RouteReconciler
from netreeve.sinks.runner import SinkRunner
from netreeve.status.fold import StatusFold
from netreeve.status.transition import observed_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netreeve.config.settings import Settings
    from netreeve.errors import Problem
    from netreeve.model.ids import EndpointId
    from netreeve.status.transition import Gap, Transition

__all__ = ["Agent"]

log = logging.getLogger(__name__)

# What is left of the five seconds that a stop may take, for the sinks to take what is waiting.
SINKS_LAST_S = 2.0
# A destination that no route has: TEST-NET-1 with a metric that nobody uses.
PROBE = (socket.AF_INET, socket.inet_aton("192.0.2.255"), 32, 254, 0, 0xFFFFFFFF)


class Agent:
    """One agent for the namespace that the process is in. `run()` once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._started = time.monotonic()
        self._backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms)
        self._sinks = sinks.parse(settings.status)
        self._plan: Plan | None = None
        self._plan_since: str | None = None
        self._problems: tuple[Problem, ...] = ()
        self._links_known = False
        self._folding = False

        self._kernel = Kernel()
        self._feed = LinkFeed(
            self._kernel,
            self,
            rcvbuf_bytes=settings.rcvbuf_bytes,
            resync_interval_s=settings.resync_interval_s,
            backoff=self._backoff,
        )
        self._routes = RouteReconciler(
            protocol=settings.route_protocol,
            metric=settings.route_metric,
            tables=[settings.route_table],
            backoff=self._backoff,
            random=random.random,
        )
        self._driver = RouteDriver(
            self._kernel,
            self._routes,
            protocol=settings.route_protocol,
            rcvbuf_bytes=settings.rcvbuf_bytes,
            batch_ops=settings.batch_ops,
            batch_delay_ms=settings.batch_delay_ms,
            backoff=self._backoff,
            changed=self._routes_changed,
        )
        self._plans = sources.Plans(
            sources.parse(settings.plan),
            ownership.scheme(
                endpoint_prefixes=settings.endpoint_prefixes,
                owned_base=settings.owned_base,
                suffix_vrf=settings.suffix_vrf,
                suffix_bridge=settings.suffix_bridge,
                suffix_vtep=settings.suffix_vtep,
                suffix_tap=settings.suffix_tap,
            ),
            self._plan_changed,
            self._problems_changed,
            allow_empty=settings.allow_empty_plan,
        )

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT, then stops and leaves the data plane as it is.

        Raises NetreeveError where it can't begin (NotPermitted without CAP_NET_ADMIN), and
        whatever ended a task: half an agent is worse than none.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._stop.set)
        settings = self._settings
        try:
            await self._check_capability()
            state_dir = Path(settings.state_dir) if settings.state_dir is not None else None
            self._journal = await asyncio.to_thread(
                Journal.open,
                state_dir,
                sinks=[sink.url for sink in self._sinks],
                max_bytes=settings.journal_max_bytes,
                retention_s=settings.journal_retention_s,
                retry=self._backoff,
            )
            try:
                await self._run_parts()
            finally:
                await self._journal.close()
        finally:
            await asyncio.to_thread(self._kernel.close)
        log.info("stopped; links and routes stay as they are")

    async def _run_parts(self) -> None:
        journal = self._journal
        self._fold = StatusFold(journal.present, journal.next_seq, rebooted=journal.rebooted)
        self._runners = [SinkRunner(sink, journal, self._backoff) for sink in self._sinks]
        control = None
        if self._settings.control_socket is not None:
            control = ControlServer(self._settings.control_socket, self.status)
            await control.start()
        tasks: list[asyncio.Task[Any]] = []
        try:
            tasks += self._driver.start()
            tasks.append(self._feed.start())
            self._driver.resync()
            tasks.append(asyncio.create_task(self._plans.run(), name="plan"))
            runners = [asyncio.create_task(runner.run(), name="sink") for runner in self._runners]
            tasks += runners
            # Not before: there is nothing to reread yet, and all of it is read afterwards.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reread)
            log.info(
                "started",
                extra={
                    "fields": {
                        "version": metadata.version("netreeve"),
                        "node": self._settings.node_name,
                        "plan": self._settings.plan,
                        "rcvbuf_bytes": self._feed.obtained_rcvbuf_bytes // 2,
                    }
                },
            )
            await self._until_stopped(tasks)
            await self._flush()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._feed.close()
            await self._driver.close()
            if control is not None:
                await control.stop()

    async def _until_stopped(self, tasks: list[asyncio.Task[Any]]) -> None:
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        for task in done - {stop}:
            log.critical("a task ended, so the agent ends", extra={"fields": {"task": task}})
            task.result()  # raises what ended it
            raise NetreeveError(f"the task {task.get_name()!r} ended")

    async def _flush(self) -> None:
        """Gives the sinks a moment to take what is recorded."""
        journal = self._journal
        try:
            async with asyncio.timeout(SINKS_LAST_S):
                await journal.wait(journal.next_seq - 1)
                for runner in self._runners:
                    await runner.passed(journal.next_seq - 1)
        except TimeoutError:
            left = {runner.status()["url"]: runner.status()["lag"] for runner in self._runners}
            log.warning("stopped with transitions undelivered", extra={"fields": {"lag": left}})

    async def _check_capability(self) -> None:
        """Deletes a route that doesn't exist: who lacks CAP_NET_ADMIN is told so instead."""
        try:
            refused = await self._kernel.send(
                1, lambda batch: batch.route_delete(*PROBE, self._settings.route_protocol, 1)
            )
        except KernelError as error:
            raise NetreeveError(f"asking the kernel failed: {error}") from error
        if any(answer.errno == errno.EPERM for answer in refused.values()):
            raise NotPermitted(
                "programming routes needs CAP_NET_ADMIN in this network namespace, which this "
                "process hasn't; run it as root, or add NET_ADMIN to the container's capabilities"
            )

    def _reread(self) -> None:
        """SIGHUP: read the plan again, compare everything, open the sinks' files anew."""
        log.info("rereading plan, comparing everything")
        self._plans.reread()
        self._feed.resync()
        for runner in self._runners:
            runner.reopen()

    # -- links (Listener of LinkFeed)

    def told(
        self,
        events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous],
        flushed: list[int],
    ) -> None:
        """Link events, in order; see LinkFeed."""
        if not self._folding:
            return
        table = self._feed.table
        for ifindex in flushed:
            self._routes.flushed(ifindex, gone=ifindex not in table)
        observed = now_text()
        for event in events:
            if isinstance(event, NameAmbiguous):
                continue
            self._routes.link(event)
            self._record(self._fold.link(event, observed))
        self._routes_changed()
        self._driver.wake()

    def published(self) -> None:
        """The link table equals the kernel; the routes are compared with every full comparison."""
        self._links_known = True
        self._driver.resync()
        self._begin()

    def overrun(self) -> None:
        """Link events were lost: IPv4 routes may have vanished with links that fell meanwhile."""
        log.warning("link events were lost, comparing everything")
        self._routes.overrun()

    # -- plan

    def _plan_changed(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        self._plan_since = now_text()
        log.info("plan in force", extra={"fields": {"endpoints": len(plan.endpoints)}})
        self._routes.tables_set(
            {self._settings.route_table, *(vpc.table for vpc in plan.vpcs.values() if vpc.table)}
        )
        if self._folding:
            self._apply(before, plan)
        self._begin()

    def _problems_changed(self, problems: tuple[Problem, ...]) -> None:
        self._problems = problems
        for problem in problems:
            log.error("plan not taken", extra={"fields": {"problem": problem}})
        if not problems:
            log.info("plan is good again")

    def _begin(self) -> None:
        """The first time that both the links and a plan are known: fold everything."""
        if self._folding or not self._links_known or self._plan is None:
            return
        self._folding = True
        observed = now_text()
        for endpoint_id in sorted(self._fold.known() - self._plan.endpoints.keys()):
            self._record(self._fold.endpoint_gone(endpoint_id, None, observed))
        self._apply(None, self._plan)
        self._routes.plan_complete()
        self._journal.attach(self._after_gap)
        self._journal.settle()

    def _apply(self, before: Plan | None, plan: Plan) -> None:
        diff = diff_endpoints(before, plan)
        table = self._feed.table
        observed = now_text()
        for endpoint in diff.removed:
            self._routes.endpoint_gone(endpoint.id)
            self._record(self._fold.endpoint_gone(endpoint.id, endpoint.uid, observed))
        for endpoint in (*diff.changed, *diff.added):
            told = table.told(endpoint.interface)
            self._routes.endpoint_set(
                endpoint, plan.route_table(endpoint, self._settings.route_table), told
            )
            self._record(self._fold.endpoint_set(endpoint, told, observed))
        self._routes_changed()
        self._driver.wake()

    # -- status

    def _routes_changed(self) -> None:
        """Endpoints whose routes may stand otherwise: the status hears how they do."""
        changed = self._routes.take_changed()
        if not changed:
            return
        observed = now_text()
        for endpoint_id in changed:
            state = self._routes.state(endpoint_id)
            self._record(self._fold.routes(endpoint_id, state.kind, state.reason, observed))

    def _record(self, transitions: list[Transition]) -> None:
        if transitions:
            self._journal.append(transitions)

    def _after_gap(
        self, gap: Gap, recorded: Mapping[EndpointId, Transition], next_seq: int
    ) -> list[Transition]:
        return self._fold.after_gap(gap, recorded, next_seq, now_text())

    def status(self) -> dict[str, Any]:
        """What `netreeve status --json` prints (product.md, JSON shapes)."""
        links = self._feed.table
        sync = self._feed.sync
        counts = self._routes.counts()
        journal = self._journal.stats()
        endpoints = {"total": 0, "up": 0, "down": 0, "error": 0}
        if self._plan is not None:
            endpoints["total"] = len(self._plan.endpoints)
        for transition in self._fold.present().values():
            if transition.status in endpoints:
                endpoints[transition.status] += 1
        tracked = 0
        if self._plan is not None:
            tracked = sum(
                links.told(endpoint.interface) is not None
                for endpoint in self._plan.endpoints.values()
            )
        in_sync = sync.in_sync and self._driver.in_sync and self._plans.in_sync
        problems = [str(problem) for problem in self._problems]
        return {
            "node": self._settings.node_name,
            "version": metadata.version("netreeve"),
            "ready": in_sync and self._folding and not problems and journal.recording,
            "in_sync": in_sync,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "links": {
                "total": len(links),
                "owned": 0,
                "tracked": tracked,
                "foreign": len(links) - tracked,
                "ambiguous": len(links.ambiguous),
            },
            "endpoints": endpoints,
            "routes": {
                "programmed": counts.programmed,
                "pending": counts.pending,
                "refused": counts.refused,
                "conflicts": counts.conflicts,
            },
            "requests": {
                "batches": self._driver.batches,
                "ops": self._driver.ops,
                "refused": self._driver.refused,
            },
            "conflicts": [
                {"endpoint": conflict.endpoint, "reason": conflict.reason}
                for conflict in self._routes.conflicts()
            ],
            "plan": {
                "endpoints": endpoints["total"],
                "in_force_since": self._plan_since,
            },
            "problems": problems,
            "sources": self._plans.describe(),
            "journal": {
                "pending": journal.pending,
                "bytes": journal.bytes,
                "oldest_age_s": journal.oldest_age_s,
                "recording": journal.recording,
            },
            "sinks": [runner.status() for runner in self._runners],
            "overruns": sync.overruns + self._driver.overruns,
            "resyncs": sync.resyncs,
        }


def now_text() -> str:
    """The wall clock, for people."""
    return observed_text(time.time_ns())
