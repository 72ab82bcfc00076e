"""The cases of instructions.py, in the process that valgrind counts. Imports little, on purpose.

Prints nothing. Each case runs 500 and then 1,500 times, with a call of getppid(2) before, between
and after: callgrind begins a new file of counts at each.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from netreeve._ext import wire  # noqa: E402
from netreeve._ext.encode import Batch  # noqa: E402
from netreeve._ext.index import LinkAdded, LinkChanged, LinkTable  # noqa: E402
from netreeve.model.backoff import Backoff  # noqa: E402
from netreeve.model.ids import EndpointId  # noqa: E402
from netreeve.model.prefix import Prefix  # noqa: E402
from netreeve.plan.model import Endpoint  # noqa: E402
from netreeve.routes.reconciler import RouteReconciler  # noqa: E402
from netreeve.status.fold import StatusFold  # noqa: E402
from tests.support import captures, messages  # noqa: E402

REPEATS = (500, 1500)


def datagram(capture: str, kind: int) -> bytes:
    """The first event of this type in a capture."""
    return next(
        record.data
        for record in captures.load(capture)
        if record.socket == "E" and int.from_bytes(record.data[4:6], sys.byteorder) == kind
    )


def decode_link() -> Callable[[], object]:
    """wire.decode of a veth's RTM_NEWLINK, an object."""
    data = datagram("01_veth", 16)
    return lambda: wire.decode(data)


def decode_route() -> Callable[[], object]:
    """wire.decode of an RTM_NEWROUTE."""
    data = datagram("07_addr_route", 24)
    return lambda: wire.decode(data)


def observe_unchanged() -> Callable[[], object]:
    """LinkTable.observe of what is known, among 1,000 links."""
    table = LinkTable()
    for ifindex in range(1, 1001):
        table.observe(messages.link(ifindex, f"cali{ifindex}", up=True))
    table.take_told()
    data = messages.link(500, "cali500", up=True)
    return lambda: table.observe(data)


def observe_flap() -> Callable[[], object]:
    """LinkTable.observe of down and up, among 1,000 links."""
    table = LinkTable()
    for ifindex in range(1, 1001):
        table.observe(messages.link(ifindex, f"cali{ifindex}", up=True))
    table.take_told()
    down = messages.link(500, "cali500", up=False)
    up = messages.link(500, "cali500", up=True)

    def run() -> None:
        table.observe(down)
        table.observe(up)
        table.take_told()
        table.take_flushed()

    return run


def encode_routes() -> Callable[[], object]:
    """A Batch of 128 route_add."""
    addresses = [bytes((10, 65, 0, number)) for number in range(128)]

    def run() -> None:
        batch = Batch(1)
        for address in addresses:
            batch.route_add(socket.AF_INET, address, 32, 254, 0, 1024, 98, 7)
        batch.finish()

    return run


def flap_endpoint() -> Callable[[], object]:
    """Routes and status of one endpoint's down and up."""
    endpoint = Endpoint(
        EndpointId.parse("k8s/web-0/eth0"), "cali7", (Prefix.parse("10.65.0.7"),), None, True, None
    )
    routes = RouteReconciler(
        protocol=98, metric=1024, tables=[254], backoff=Backoff(100, 30000), random=lambda: 0.5
    )
    fold = StatusFold({}, 1)
    observed = "2026-01-01T00:00:00.000Z"
    routes.resync_begin()
    routes.resync_end([])
    routes.endpoint_set(endpoint, 254, None)
    fold.endpoint_set(endpoint, None, observed)
    added = LinkAdded("cali7", 7, False)
    routes.link(added)
    fold.link(added, observed)
    routes.plan_complete()
    down, up = LinkChanged("cali7", 7, False), LinkChanged("cali7", 7, True)

    def run() -> None:
        recorded = []
        routes.flushed(7)
        for event in (down, up):
            routes.link(event)
            recorded += fold.link(event, observed)
        for op in routes.collect(0.0, 128):
            routes.answer(op, 0, "", 0.0)
        for id_ in routes.take_changed():
            state = routes.state(id_)
            recorded += fold.routes(id_, state.kind, state.reason, observed)
        assert [each.status for each in recorded][-1] == "up"

    return run


CASES: tuple[Callable[[], Callable[[], object]], ...] = (
    decode_link,
    decode_route,
    observe_unchanged,
    observe_flap,
    encode_routes,
    flap_endpoint,
)


def main() -> None:
    gc.disable()  # its share depends on what else is alive
    for prepare in CASES:
        run = prepare()
        run()
        os.getppid()
        for repeats in REPEATS:
            for _ in range(repeats):
                run()
            os.getppid()


if __name__ == "__main__":
    main()
