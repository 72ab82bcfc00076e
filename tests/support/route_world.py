"""A route reconciler, a fake kernel, and the agent's wiring between them, one step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from netreeve._ext.index import LinkAdded, LinkChanged, LinkRemoved
from netreeve.model import route
from netreeve.model.backoff import Backoff
from netreeve.model.ids import EndpointId
from netreeve.model.prefix import Prefix
from netreeve.model.route import Op, RouteKey
from netreeve.plan.model import Endpoint
from netreeve.routes.reconciler import RouteReconciler
from tests.support.fake_kernel import OURS, FakeKernel, Flushed, Route, RouteMessage, Told

METRIC = 1024
TABLES = (254, 1001)


def key(text: str, table: int = 254, metric: int = METRIC) -> RouteKey:
    return RouteKey(*Prefix.parse(text), table, 0, metric)


def endpoint(
    name: str, interface: str, *addresses: str, admin_up: bool = True, table: int = 254
) -> tuple[Endpoint, int]:
    return (
        Endpoint(
            EndpointId("test", name, "eth0"),
            interface,
            tuple(Prefix.parse(address) for address in addresses),
            admin_up=admin_up,
        ),
        table,
    )


@dataclass
class Batch:
    ops: list[Op]
    known: dict[RouteKey, tuple[Route, ...]]  # the foreign routes the agent had read of
    results: list[tuple[int | None, str]] | None = None


@dataclass
class World:
    kernel: FakeKernel = field(default_factory=FakeKernel)
    now: float = 1000.0
    random: Callable[[], float] = lambda: 0.5
    told: dict[str, tuple[int, bool]] = field(default_factory=dict)
    plan: dict[EndpointId, tuple[Endpoint, int]] = field(default_factory=dict)
    batch: Batch | None = None
    dumps: deque[tuple[int, int]] = field(default_factory=deque)
    dumped: deque[tuple[tuple[int, int], list[RouteMessage] | None]] = field(default_factory=deque)
    resync: list[RouteMessage] | None = None
    resyncing: bool = False
    lost: bool = False
    known: set[Route] = field(default_factory=set)
    log: list[Op] = field(default_factory=list)
    questions: int = 0

    def __post_init__(self) -> None:
        self.routes = RouteReconciler(
            protocol=OURS,
            metric=METRIC,
            tables=TABLES,
            backoff=Backoff(100, 30_000),
            random=self.random,
        )

    # -- the plan --

    def set(self, made: tuple[Endpoint, int]) -> None:
        what, table = made
        self.plan[what.id] = made
        self.routes.endpoint_set(what, table, self.told.get(what.interface))

    def gone(self, name: str) -> None:
        endpoint_id = EndpointId("test", name, "eth0")
        self.plan.pop(endpoint_id, None)
        self.routes.endpoint_gone(endpoint_id)

    # -- events --

    def drain(self) -> None:
        """Read all events, as one wake-up of the agent does."""
        if self.lost:
            # What is still queued is older than what was lost. Then the link table is made anew.
            self._read_events()
            self.lost = False
            self.routes.overrun()
            self.resyncing = False
            self.resync = None
            self.known.update(r for _, r in self.kernel.routes() if r.foreign)
            self._links_anew()
        else:
            self._read_events()

    def lose_events(self) -> None:
        """The queue overflowed: what is in it goes, and the reader will be told."""
        self.kernel.events.clear()
        self.lost = True

    def _read_events(self) -> None:
        events = self.kernel.events
        while events:
            event = events.popleft()
            if isinstance(event, Told):
                self._tell(event)
            elif isinstance(event, Flushed):
                self.routes.flushed(event.ifindex, event.family, gone=event.gone)
            else:
                if event.route is not None:
                    self.known.add(event.route)
                self.routes.route_event(event.message)  # type: ignore[arg-type]

    def _tell(self, event: Told) -> None:
        before = self.told.get(event.name)
        if event.up is None:
            if before is not None and before[0] == event.ifindex:
                del self.told[event.name]
                self.routes.link(LinkRemoved(event.name, event.ifindex))
            return
        self.told[event.name] = (event.ifindex, event.up)
        made = LinkAdded if before is None else LinkChanged
        self.routes.link(made(event.name, event.ifindex, event.up))

    def _links_anew(self) -> None:
        for name, (ifindex, _) in list(self.told.items()):
            link = self.kernel.links.get(ifindex)
            if link is None or link.name != name:
                self._tell(Told(name, ifindex, None))
        for ifindex, link in self.kernel.links.items():
            if self.told.get(link.name) != (ifindex, link.up):
                self._tell(Told(link.name, ifindex, link.up))

    # -- ops --

    def collect(self, limit: int = 128) -> list[Op]:
        """Decide; what is decided is done by `execute` and answered by `answer`."""
        assert self.batch is None
        ops = self.routes.collect(self.now, limit)
        assert len({op.key for op in ops}) == len(ops)
        self.log += ops
        if ops:
            known = {
                op.key: tuple(
                    r for r in self.kernel.fib.get(op.key, ()) if r.foreign and r in self.known
                )
                for op in ops
            }
            self.batch = Batch(ops, known)
        return ops

    def execute(self) -> None:
        if self.batch is not None and self.batch.results is None:
            self.batch.results = [
                self.kernel.apply(op, self.batch.known[op.key]) for op in self.batch.ops
            ]

    def answer(self, *, lost: bool = False) -> None:
        if self.batch is None or (self.batch.results is None and not lost):
            return
        batch, self.batch = self.batch, None
        results = batch.results or [(None, "")] * len(batch.ops)
        for op, (errno, words) in zip(batch.ops, results, strict=True):
            self.routes.answer(op, None if lost else errno, words, self.now)

    def ask(self) -> None:
        due = self.routes.ask(self.now)
        self.questions += len(due)
        self.dumps += sorted(due)

    def dump(self) -> None:
        if self.dumps:
            family, table = self.dumps.popleft()
            self.dumped.append(((family, table), self.kernel.dump(family=family, table=table)))

    def holders(self, *, failed: bool = False) -> None:
        if self.dumped:
            (family, table), found = self.dumped.popleft()
            self.routes.holders(family, table, None if failed else found, self.now)  # type: ignore[arg-type]

    def resync_begin(self) -> None:
        self.routes.resync_begin()
        self.resyncing = True
        self.resync = None

    def resync_dump(self) -> None:
        if self.resyncing and self.resync is None:
            self.resync = self.kernel.dump(protocol=OURS)

    def resync_end(self) -> None:
        if self.resyncing and self.resync is not None:
            self.routes.resync_end(self.resync)  # type: ignore[arg-type]
            self.resyncing = False
            self.resync = None

    # -- all of it --

    def start(self) -> None:
        """A resync of an agent whose plan is complete."""
        self.drain()
        self.resync_begin()
        self.resync_dump()
        self.resync_end()
        self.routes.plan_complete()

    def cycle(self) -> bool:
        """One wake-up with all that follows at once; whether anything was to do."""
        self.drain()
        self.execute()
        self.answer()
        self.resync_dump()
        self.resync_end()
        self.collect()
        self.ask()
        busy = bool(self.batch or self.dumps or self.dumped)
        self.execute()
        self.answer()
        while self.dumps:
            self.dump()
        while self.dumped:
            self.holders()
        return busy

    def run(self) -> None:
        """Cycles until there is nothing to do without waiting."""
        for _ in range(200):
            if not self.cycle():
                return
        raise AssertionError(f"no end: {self.log[-8:]}")

    def wait(self, seconds: float) -> None:
        """Let time pass, acting at each deadline."""
        end = self.now + seconds
        self.run()
        while (due := self.routes.deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.run()
        self.now = end

    # -- what must be true at rest --

    def wanted(self) -> dict[RouteKey, tuple[Endpoint, int, bool]]:
        """key -> endpoint, ifindex, link up; only where the link is there and both ends agree."""
        found: dict[RouteKey, tuple[Endpoint, int, bool]] = {}
        for what, table in self.plan.values():
            ifindex = self.kernel.by_name(what.interface)
            if what.admin_up and ifindex is not None:
                for prefix in what.addresses:
                    up = self.kernel.links[ifindex].up
                    found[RouteKey(*prefix, table, 0, METRIC)] = (what, ifindex, up)
        return found

    def check(self) -> None:
        """The kernel has what is wanted where nothing foreign is in the way, and nothing else of
        ours; states, conflicts and counts say exactly that."""
        wanted = self.wanted()
        conflicts = set()
        blocked = set()
        for at, (what, ifindex, up) in wanted.items():
            there = self.kernel.fib.get(at, [])
            ours = [r.oif for r in there if not r.foreign]
            assert set(ours) <= {ifindex}, (at, there)
            assert len(ours) <= 1
            if not up:
                continue
            if any(r.foreign for r in there):
                conflicts.add((at, str(what.id)))
                blocked.add(what.id)
            else:
                assert ours == [ifindex], (str(at), ours, ifindex)
        for at, r in self.kernel.routes():
            if not r.foreign and at.table in TABLES and at.metric >= 1:
                assert at in wanted, f"left over: {at} {r}"
        assert {(c.key, c.endpoint) for c in self.routes.conflicts()} == conflicts
        for what, _ in self.plan.values():
            link = self.kernel.by_name(what.interface)
            state = self.routes.state(what.id)
            if not what.admin_up or link is None or not self.kernel.links[link].up:
                assert state.kind == "pending"
            elif what.id in blocked:
                assert state.kind == "refused"
                assert state.reason
            else:
                assert state.kind == "confirmed", (what, state)
        counts = self.routes.counts()
        assert counts.conflicts == len(conflicts)
        assert counts.pending == counts.refused == 0
        destinations = {
            tuple(prefix) for what, _ in self.plan.values() for prefix in what.addresses
        }
        assert set(self.routes.watched()) == destinations


def kinds(ops: list[Op]) -> list[str]:
    return [type(op).__name__.lower() for op in ops]


def up(world: World, name: str = "cali0", address: str = "10.65.0.1", owner: str = "a") -> int:
    """An endpoint with its link up and its route there."""
    ifindex = world.kernel.link_add(name, up=True)
    world.set(endpoint(owner, name, address))
    world.run()
    world.check()
    world.log.clear()
    return ifindex


def ready(world: World) -> route.Add:
    """An Add in flight, not executed."""
    world.kernel.link_add("cali0", up=True)
    world.set(endpoint("a", "cali0", "10.65.0.1"))
    world.drain()
    (op,) = world.routes.collect(world.now, 9)
    assert isinstance(op, route.Add)
    return op
