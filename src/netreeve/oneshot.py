"""The data plane for a while: what `plan`, `apply`, `explain` and `cleanup` do without the agent.

First it only looks. `act` makes it so, and ends when everything is as planned, or waiting longer
is in vain.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from netreeve import explain, sources
from netreeve.dataplane import DataPlane, Wrong, check_permission
from netreeve.errors import JournalError, NetreeveError
from netreeve.io.netlink import Kernel
from netreeve.io.state_dir import StateDir, new_instance, read_instance
from netreeve.links import registry
from netreeve.model import route
from netreeve.model.link_spec import Change, HeldBack
from netreeve.plan.model import Plan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from types import TracebackType

    from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
    from netreeve.config.settings import Settings
    from netreeve.model.link_spec import Conflict, Foreign, LinkSpec

__all__ = ["OneShot", "Patience", "Preview", "RouteChange", "allowed", "hold", "instance"]

T = TypeVar("T")

LOOK_S = 60.0
"""A namespace with 100,000 links is read in a fraction of it."""
STILL_S = 10.0
"""So long without anything coming right, and it is given up."""
BUSY_S = 60.0
"""The same while something is under way: one request may delete a thousand links, 20 ms each."""
POLL_S = 0.05


async def allowed(settings: Settings) -> None:
    """NotPermitted where this process may not change links and routes."""
    kernel = Kernel()
    try:
        await check_permission(kernel, settings.route_protocol)
    finally:
        await asyncio.to_thread(kernel.close)


def hold(settings: Settings) -> StateDir | None:
    """The state directory, held so that no agent begins meanwhile; None where there is to be none.

    JournalError where it is held already (an agent runs), or can't be used.
    """
    if settings.state_dir is None:
        return None
    state_dir = StateDir(Path(settings.state_dir))
    try:
        state_dir.hold()
    except OSError as error:
        raise JournalError(
            f"{settings.state_dir}: the state directory can't be used: {error.strerror}"
        ) from error
    return state_dir


def instance(settings: Settings) -> str:
    """The installation's id, for a command that only looks. OSError where it can't be read."""
    found = None if settings.state_dir is None else read_instance(Path(settings.state_dir))
    return found or new_instance()


class Patience:
    """Whether to go on waiting. There is an end: `count` can't fall for ever."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._since = 0.0

    def is_over(self, count: int, now: float, *, settled: bool) -> bool:
        """`count` things are not right at `now` (monotonic seconds); over once it hasn't fallen
        for a while. `settled`: nothing is under way."""
        if self._least is None or count < self._least:
            self._least, self._since = count, now
        return now - self._since > (STILL_S if settled else BUSY_S)


@dataclasses.dataclass(frozen=True, slots=True)
class RouteChange:
    """`action` is "add", "move" or "delete"; the link's name is "" where it has gone."""

    action: str
    endpoint: str | None
    key: route.RouteKey
    interface: str
    ifindex: int


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What `act` would do now, and what it would leave."""

    changes: list[Change]
    routes: list[RouteChange]
    conflicts: list[Conflict]
    route_conflicts: list[route.Conflict]
    held_back: list[HeldBack]
    foreign: list[Foreign]

    @property
    def empty(self) -> bool:
        """Whether nothing would change."""
        return not (self.changes or self.routes)

    @property
    def wrong(self) -> list[Wrong]:
        """What would not be as planned even then."""
        found = [Wrong(c.object, c.name, "conflict", c.reason) for c in self.conflicts]
        for each in self.route_conflicts:
            entry = f"endpoint {each.endpoint}"
            found.append(Wrong(entry, str(each.key), "conflict", each.reason))
        found += [Wrong("held back", held.name, "blocked", held.reason) for held in self.held_back]
        return found


class OneShot:
    """`async with` it; `look` first. `instance` is the installation's id."""

    def __init__(self, settings: Settings, instance: str) -> None:
        self._settings = settings
        self._instance = instance
        self._links_known = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._plan = Plan()
        self._wanting: dict[tuple[object, ...], str] = {}
        self.scheme = settings.scheme()

    async def __aenter__(self) -> Self:
        self._kernel = Kernel()
        try:
            self.plane = DataPlane(
                self._kernel, self._settings, self.scheme, self._instance, self, acting=False
            )
            self._tasks += self.plane.start()
        except BaseException:
            await asyncio.to_thread(self._kernel.close)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.plane.close()
        await asyncio.to_thread(self._kernel.close)

    # -- Listener of DataPlane

    def told(self, events: list[LinkAdded | LinkChanged | LinkRemoved | NameAmbiguous]) -> None:
        """Nobody is to be told."""

    def links_known(self) -> None:
        self._links_known.set()

    def routes_changed(self) -> None:
        """Nobody is to be told."""

    # -- what the commands want

    async def read_plan(self) -> Plan:
        """The plan of the sources, which may be empty; PlanError, NetreeveError."""
        return await sources.read_once(self._settings.plan, self.scheme, allow_empty=True)

    async def look(self, plan: Plan, tables: Collection[int] = ()) -> Preview:
        """What would be done for `plan`; `tables` are further ones with routes of ours."""
        self._plan = plan
        self._wanting = {
            (*prefix, plan.route_table(endpoint, self._settings.route_table)): str(endpoint.id)
            for endpoint in plan.endpoints.values()
            for prefix in endpoint.addresses
        }
        try:
            async with asyncio.timeout(LOOK_S):
                await self._guarded(self._links_known.wait())
                self.plane.plan_set(plan, tables)
                await self._guarded(self.plane.link_driver.idle.wait())
        except TimeoutError:
            raise NetreeveError(
                f"the kernel's links could not be compared within {LOOK_S:g} seconds"
            ) from None
        return await self._preview()

    async def tables_of_vrfs(self) -> set[int]:
        """The tables of VRFs that are ours by name and kind."""
        links = await self._kernel.dump_details("vrf")
        return {
            link.table
            for link in links
            if link.table and self.scheme.recognise(link.name, link.kind).verdict == "owned"
        }

    async def other_tables(self, tables: Collection[int]) -> dict[int, int]:
        """How many routes of our protocol there are in tables that are neither these nor ours."""
        known = {self._settings.route_table, *tables}
        protocol = self._settings.route_protocol
        counts: dict[int, int] = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in await self._kernel.dump_routes(
                family,
                protocol=protocol,
                keep=lambda m: m.protocol == protocol and m.table not in known,
            ):
                counts[message.table] = counts.get(message.table, 0) + 1
        return counts

    async def explain(self, plan: Plan | None, subject: str) -> dict[str, Any]:
        """See netreeve.explain; after `look`."""
        return await explain.explain(self.plane, plan, subject)

    async def act(self, progress: Callable[[int], object]) -> list[Wrong]:
        """Do it; what isn't right in the end. `progress` is told how much isn't, now and then."""
        self._tasks += self.plane.act()
        return await self._guarded(self._converge(progress))

    async def _converge(self, progress: Callable[[int], object]) -> list[Wrong]:
        patience = Patience()
        loop = asyncio.get_running_loop()
        while True:
            left = self.plane.left()
            progress(left.amount)
            if left.settled and all(each.lasting for each in self.plane.wrong()):
                break
            if patience.is_over(left.amount, loop.time(), settled=left.settled):
                break
            await asyncio.sleep(POLL_S)
        wrong = self.plane.wrong()
        if not wrong and not left.settled:
            raise NetreeveError("the kernel could not be compared with the plan in the end")
        return wrong

    async def _preview(self) -> Preview:
        engine, plan = self.plane.engine, self._plan
        routes = await self.plane.preview_routes()
        links, waiting = self._links()
        held = engine.held_back() + waiting
        changes = [self._route_change(op) for op in routes.ops]
        refused = sources.why_not_in_force(plan, allow_empty=self._settings.allow_empty_plan)
        if refused:
            held += [HeldBack(str(each.key), refused) for each in changes]
            changes = []
        tracked = {each.interface for each in plan.endpoints.values()}
        foreign = engine.foreign(await self._kernel.dump_details())
        return Preview(
            links,
            changes,
            engine.conflicts(),
            routes.conflicts,
            held,
            [link for link in foreign if link.name not in tracked],
        )

    def _links(self) -> tuple[list[Change], list[HeldBack]]:
        """What the engine would do next, and what follows from that; and who waits in vain."""
        changes = {change.name: change for change in self.plane.engine.changes()}
        waiting = {}
        stuck = {held.name for held in self.plane.engine.held_back()}
        for spec in registry.specs(self._plan, self.scheme):
            status = self.plane.engine.status(spec.name)
            known = self.plane.engine.explain(spec.name)
            if status is None or known is None or status.state != "pending":
                continue
            # Controllers come before their members, so one pass is enough.
            made = spec.controller is not None and (
                spec.controller in changes
                and changes[spec.controller].action in ("create", "recreate")
            )
            change = changes.get(spec.name)
            if change is not None and (change.action in ("create", "recreate") or not made):
                continue
            there = spec.controller is None or self.plane.feed.table.by_name(spec.controller)
            reason = status.reason or ""
            # It waits for a link of ours that goes: the reason names it. Not if that stays.
            in_vain = not made and (not there or not stuck.isdisjoint(reason.split()))
            if change is None and in_vain:
                waiting[spec.name] = HeldBack(spec.name, reason)
            elif known["observed"] is None:
                changes[spec.name] = Change("create", spec.entry, spec.name, 0, _made(known))
            else:
                changes[spec.name] = _moved(spec, known, change)
        named = [self._named(changes[name]) for name in sorted(changes)]
        return named, list(waiting.values())

    def _named(self, change: Change) -> Change:
        """With the names of controllers in place of ifindexes."""
        table = self.plane.feed.table
        found = change.fields.get("controller")
        if found is None:
            return change
        named = {
            side: (table[each].name if each in table else None) if isinstance(each, int) else each
            for side, each in found.items()
        }
        return dataclasses.replace(change, fields={**change.fields, "controller": named})

    def _route_change(self, op: route.Op) -> RouteChange:
        action = {route.Add: "add", route.Replace: "move", route.Delete: "delete"}[type(op)]
        table = self.plane.feed.table
        name = table[op.oif].name if op.oif in table else ""
        wanting = self._wanting.get(op.key[:4]) if action != "delete" else None
        return RouteChange(action, wanting, op.key, name, op.oif)

    async def _guarded(self, work: Awaitable[T]) -> T:
        """`work`, unless a task of the data plane ends: then what ended it."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            for each in self._tasks:
                if each.done():
                    each.result()
            raise NetreeveError("a part of the data plane ended")
        finally:
            task.cancel()


def _made(known: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of a link that is yet to be made; `known` is what the engine explains of it."""
    return {
        name: {"observed": None, "wanted": wanted}
        for name, wanted in known["plan"].items()
        if name not in ("object", "kind")
    }


def _moved(spec: LinkSpec, known: Mapping[str, Any], change: Change | None) -> Change:
    """It has to go into its controller, which is made anew."""
    observed = known["observed"]
    fields = {"controller": {"observed": observed["controller"], "wanted": spec.controller}}
    if change is None:
        return Change("change", spec.entry, spec.name, observed["ifindex"], fields)
    return dataclasses.replace(change, action="change", fields={**change.fields, **fields})
