"""netreeve: race-free links, owned routes and ordered endpoint status on a node.

As a library it offers `LinkMonitor` and what that yields; see its docstring. Names are loaded when
they are first used, so that a command pays for what it needs and no more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netreeve._ext.index import Link, LinkAdded, LinkChanged, LinkRemoved, NameAmbiguous
    from netreeve.io.linkmonitor import InSync, LinkEvent, LinkMonitor, Overrun

__all__ = [
    "InSync",
    "Link",
    "LinkAdded",
    "LinkChanged",
    "LinkEvent",
    "LinkMonitor",
    "LinkRemoved",
    "NameAmbiguous",
    "Overrun",
]

_INDEX = ("Link", "LinkAdded", "LinkChanged", "LinkRemoved", "NameAmbiguous")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "netreeve._ext.index" if name in _INDEX else "netreeve.io.linkmonitor"
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
