"""The agent: wires the parts together, and decides nothing itself.

    kernel ─▶ data plane ─▶ status       (DataPlane calls `told`, `routes_changed`)
    plan   ─▶ data plane, status         (Plans calls `_plan_changed`)
    status ─▶ journal ─▶ sinks

Everything that decides runs on the loop's thread, one call after the other, so that the order of
events is the order of transitions. Until the links are in sync and a plan is in force, nothing is
folded: the first comparison then takes every endpoint with what was last told of its link.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netreeve import explain, sinks, sources
from netreeve._ext.index import NameAmbiguous
from netreeve.control.server import ControlServer, Misunderstood
from netreeve.dataplane import DataPlane, check_permission
from netreeve.errors import NetreeveError, PlanError
from netreeve.io.journal import Journal
from netreeve.io.netlink import Kernel
from netreeve.model.backoff import Backoff
from netreeve.plan.diff import diff_endpoints
from netreeve.plan.model import Plan
from netreeve.sinks.files import Planned
from netreeve.sinks.runner import SinkRunner
from netreeve.sinks.sink import Node
from netreeve.status.fold import StatusFold
from netreeve.status.transition import observed_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved
    from netreeve.config.settings import Settings
    from netreeve.errors import Problem
    from netreeve.model.ids import EndpointId
    from netreeve.status.transition import Gap, Transition

__all__ = ["Agent"]

log = logging.getLogger(__name__)

# What is left of the five seconds that a stop may take, for the sinks to take what is waiting.
SINKS_LAST_S = 2.0
# A call to the kernel that takes longer has been lost, or the kernel has: a dump of 100,000 links
# takes half a second.
STALLED_S = 30.0


class Agent:
    """One agent for the namespace that the process is in. `run()` once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._started = time.monotonic()
        self._backoff = Backoff(settings.retry_min_ms, settings.retry_max_ms)
        self._planned: Planned | None = None
        self._sinks = sinks.parse(settings.status, lambda: self._planned)
        self._plan: Plan | None = None
        self._plan_since: str | None = None
        self._problems: tuple[Problem, ...] = ()
        self._links_known = False
        self._folding = False
        self._ordered: _Order | None = None
        self._committed_before = -1

        self._kernel = Kernel()
        self._scheme = settings.scheme()
        self._plans = sources.Plans(
            sources.parse(settings.plan, self._scheme),
            self._scheme,
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
            await check_permission(self._kernel, settings.route_protocol)
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
        self._plane = DataPlane(self._kernel, self._settings, self._scheme, journal.instance, self)
        self._fold = StatusFold(journal.present, journal.next_seq, rebooted=journal.rebooted)
        node = Node(
            self._settings.node_name,
            journal.present,
            journal.next_seq - 1,
            known=lambda: self._fold.known() if self._folding else None,
            progresses=self._progresses,
            access=self._settings.etcd_access(),
        )
        for sink in self._sinks:
            sink.attach(node)
        self._runners = [SinkRunner(sink, journal, self._backoff) for sink in self._sinks]
        control = None
        if self._settings.control_socket is not None:
            control = ControlServer(
                self._settings.control_socket,
                self.status,
                questions={"/v1/explain": self.explain, "/v1/reconciled": self.reconciled},
                orders={"/v1/apply": self.apply},
            )
            await control.start()
        tasks: list[asyncio.Task[Any]] = []
        try:
            tasks += self._plane.start()
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
                        "rcvbuf_bytes": self._plane.feed.obtained_rcvbuf_bytes // 2,
                    }
                },
            )
            await self._until_stopped(tasks)
            await self._flush()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._plane.close()
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

    def _reread(self) -> None:
        """SIGHUP: read the plan again, compare everything, open the sinks' files anew."""
        log.info("rereading plan, comparing everything")
        self._plans.reread()
        self._plane.resync()
        for runner in self._runners:
            runner.reopen()

    # -- links and routes (Listener of DataPlane)

    def told(self, events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous]) -> None:
        """Link events, in order."""
        if not self._folding:
            return
        observed = now_text()
        for event in events:
            if not isinstance(event, NameAmbiguous):
                self._record(self._fold.link(event, observed))
        self.routes_changed()

    def links_known(self) -> None:
        """The link table equals the kernel."""
        self._links_known = True
        self._begin()

    def routes_changed(self) -> None:
        """Endpoints whose routes may stand otherwise: the status hears how they do."""
        if not self._folding:
            return
        routes = self._plane.routes
        changed = routes.take_changed()
        if not changed:
            return
        observed = now_text()
        for endpoint_id in changed:
            state = routes.state(endpoint_id)
            self._record(self._fold.routes(endpoint_id, state.kind, state.reason, observed))

    # -- plan

    def _plan_changed(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        self._plan_since = now_text()
        log.info("plan in force", extra={"fields": {"endpoints": len(plan.endpoints)}})
        if self._folding:
            self._apply(before, plan)
        self._begin()
        self._release_brake()

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
        self._journal.attach(self._after_gap)
        self._journal.settle()

    def _apply(self, before: Plan | None, plan: Plan) -> None:
        self._plane.plan_set(plan)
        diff = diff_endpoints(before, plan)
        observed = now_text()
        for endpoint in diff.removed:
            self._record(self._fold.endpoint_gone(endpoint.id, endpoint.uid, observed))
        for endpoint in (*diff.changed, *diff.added):
            told = self._plane.feed.table.told(endpoint.interface)
            self._record(self._fold.endpoint_set(endpoint, told, observed))
        self.routes_changed()
        self._planned = Planned(plan.endpoints, self._journal.next_seq - 1)

    # -- orders (`netreeve apply`) and questions

    async def apply(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """`{"release_brake": bool}`: rereads the plan and compares everything; `reconciled` tells
        how that goes. Returns `{"problems": [...]}`: with any, nothing was begun."""
        release_brake = order.get("release_brake")
        if not isinstance(release_brake, bool):
            raise Misunderstood("release_brake is to be true or false")
        try:
            plan = await sources.read_once(
                self._settings.plan, self._scheme, allow_empty=self._settings.allow_empty_plan
            )
        except PlanError as error:
            return {"problems": [str(problem) for problem in error.problems]}
        self._ordered = _Order(
            plan, release_brake, self._plane.feed.sync.resyncs, self._plane.route_driver.resyncs
        )
        log.info("asked to apply the plan", extra={"fields": {"release_brake": release_brake}})
        self._reread()
        self._release_brake()
        return {"problems": []}

    def _release_brake(self) -> None:
        """For the plan that it was ordered for, and no other."""
        ordered = self._ordered
        if ordered is not None and ordered.release_brake and self._plan == ordered.plan:
            self._plane.engine.release_brake()
            self._plane.link_driver.wake()

    async def reconciled(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """How far the last `apply` is: `compared`, whether its plan is in force and everything
        was compared since; `settled`, whether nothing is under way; how many things are `left`;
        once it is settled, or with `all`, what is `wrong`."""
        ordered, plane = self._ordered, self._plane
        compared = ordered is not None and (
            self._plan == ordered.plan
            and plane.feed.sync.resyncs > ordered.link_resyncs
            and plane.route_driver.resyncs > ordered.route_resyncs
        )
        left = plane.left()
        wrong = plane.wrong() if left.settled or "all" in query else []
        return {
            "compared": compared,
            "settled": compared and left.settled,
            "left": left.amount,
            "wrong": [dataclasses.asdict(each) | {"lasting": each.lasting} for each in wrong],
        }

    async def explain(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """What `netreeve explain --json` prints, but for the history (see netreeve.explain)."""
        subject = query.get("subject")
        if not subject:
            raise Misunderstood("there is no subject")
        plan = self._plan if self._folding else None
        return await explain.explain(self._plane, plan, subject)

    # -- status

    def _record(self, transitions: list[Transition]) -> None:
        if transitions:
            self._journal.append(transitions)

    def _after_gap(
        self, gap: Gap, recorded: Mapping[EndpointId, Transition], next_seq: int
    ) -> list[Transition]:
        return self._fold.after_gap(gap, recorded, next_seq, now_text())

    def _progresses(self) -> bool:
        """Whether the kernel answers, and what is recorded gets to the disk (see Node)."""
        journal = self._journal
        before, self._committed_before = self._committed_before, journal.committed
        moves = journal.committed != before or journal.committed >= journal.next_seq - 1
        return self._kernel.longest_call_s < STALLED_S and (moves or not journal.recording)

    def status(self) -> dict[str, Any]:
        """What `netreeve status --json` prints (product.md, JSON shapes)."""
        journal = self._journal.stats()
        endpoints = {"total": 0, "up": 0, "down": 0, "error": 0}
        if self._plan is not None:
            endpoints["total"] = len(self._plan.endpoints)
        for transition in self._fold.present().values():
            if transition.status in endpoints:
                endpoints[transition.status] += 1
        in_sync = self._plane.in_sync and self._plans.in_sync
        problems = [str(problem) for problem in self._problems]
        return {
            "node": self._settings.node_name,
            "version": metadata.version("netreeve"),
            "pid": os.getpid(),
            "ready": in_sync
            and self._folding
            and not problems
            and journal.recording
            and not any(runner.fenced for runner in self._runners),
            "in_sync": in_sync,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "endpoints": endpoints,
            "plan": {"endpoints": endpoints["total"], "in_force_since": self._plan_since},
            "problems": problems,
            "sources": self._plans.describe(),
            "journal": {
                "pending": journal.pending,
                "bytes": journal.bytes,
                "oldest_age_s": journal.oldest_age_s,
                "recording": journal.recording,
            },
            "sinks": [runner.status() for runner in self._runners],
        } | self._plane.status(self._plan)


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    """`netreeve apply`: the plan that it found, and how many comparisons there had been."""

    plan: Plan
    release_brake: bool
    link_resyncs: int
    route_resyncs: int


def now_text() -> str:
    """The wall clock, for people."""
    return observed_text(time.time_ns())
