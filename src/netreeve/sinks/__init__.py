"""Where status transitions go. `parse` reads NETREEVE_STATUS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from netreeve.model.quote import quoted
from netreeve.sinks import etcd, jsonl
from netreeve.sinks.sink import Sink

if TYPE_CHECKING:
    from netreeve.sinks.files import InForce

__all__ = ["parse"]


def _files(url: str, in_force: InForce) -> Sink:
    from netreeve.sinks import files  # with an event loop, which other sinks' settings spare

    return files.parse(url, in_force)


_SCHEMES: Mapping[str, Callable[[str, InForce], Sink]] = {
    "jsonl": lambda url, _: jsonl.parse(url),
    "files": _files,
    "etcd": lambda url, _: etcd.parse(url),
}

# A comma before a scheme; "host:2379" is none.
_SEPARATOR = re.compile(r",(?=[a-z][a-z0-9+]*:(?!\d+(?:[,/?]|$)))")


def parse(text: str, in_force: InForce = lambda: None) -> tuple[Sink, ...]:
    """The sinks of `text`, unopened, in order; ValueError says what is wrong.

    `in_force` gives the plan, for sinks that tell more of an endpoint than its transitions do.
    """
    sinks: list[Sink] = []
    for url in _SEPARATOR.split(text):
        scheme, colon, _ = url.partition(":")
        if not colon or scheme not in _SCHEMES:
            raise ValueError(
                f"{quoted(url)} is no sink of this version: `jsonl:PATH`, `jsonl:-`, `files:DIR`,"
                " `etcd://HOST:PORT`"
            )
        sink = _SCHEMES[scheme](url, in_force)
        if any(other.url == sink.url for other in sinks):
            raise ValueError(f"{quoted(url)} is there twice")
        sinks.append(sink)
    return tuple(sinks)
