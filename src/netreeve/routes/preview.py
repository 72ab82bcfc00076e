"""What the reconciler would do, found out by asking it: the kernel's answers come from a dump.

So `plan` and the agent can't come to differ: both are decided by the same code.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from netreeve.model import route
from netreeve.routes.slot import is_device_route, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from netreeve._ext import wire
    from netreeve.routes.reconciler import RouteReconciler

__all__ = ["preview"]

_MANY = 1 << 30


def preview(
    reconciler: RouteReconciler, routes: Iterable[wire.RouteMessage], now: float
) -> list[route.Op]:
    """The ops that lead from `routes` to what `reconciler` wants, in their order.

    `reconciler` is fresh, has its plan, and is used up. `routes` are those of our protocol, and
    those of others at watched destinations, in all tables. Conflicts are its own to tell.
    """
    there: dict[tuple[int, ...] | tuple[object, ...], list[wire.RouteMessage]] = {}
    for message in routes:
        there.setdefault(key_of(message), []).append(message)
    reconciler.resync_begin()
    reconciler.resync_end(message for each in there.values() for message in each)
    done: list[route.Op] = []
    while True:
        ops = reconciler.collect(now, _MANY)
        for op in ops:
            if isinstance(op, route.Add) and there.get(op.key):
                reconciler.answer(op, errno.EEXIST, "", now)
                continue
            if not isinstance(op, route.Add):
                there[op.key] = [each for each in there[op.key] if not _goes(each, op)]
            done.append(op)
            reconciler.answer(op, 0, "", now)
        asked = reconciler.ask(now)
        for family, table in asked:
            held = (each for key, at in there.items() if _is_in(key, family, table) for each in at)
            reconciler.holders(family, table, held, now)
        if not ops and not asked:
            return done


def _is_in(key: tuple[object, ...], family: int, table: int) -> bool:
    return (key[0], key[3]) == (family, table)


def _goes(message: wire.RouteMessage, op: route.Op) -> bool:
    """Whether `op` takes the route away: a move takes it from wherever it was."""
    ours = message.protocol == op.protocol and is_device_route(message)
    return ours and (isinstance(op, route.Replace) or message.oif == op.oif)
