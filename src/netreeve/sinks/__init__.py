"""Where status transitions go. `parse` reads NETREEVE_STATUS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from netreeve.model.quote import quoted
from netreeve.sinks import jsonl
from netreeve.sinks.sink import Sink

__all__ = ["parse"]

_SCHEMES: Mapping[str, Callable[[str], Sink]] = {"jsonl": jsonl.parse}

# A comma before a scheme; "host:2379" is none.
_SEPARATOR = re.compile(r",(?=[a-z][a-z0-9+]*:(?!\d+(?:[,/?]|$)))")


def parse(text: str) -> tuple[Sink, ...]:
    """The sinks of `text`, unopened, in order; ValueError says what is wrong."""
    sinks: list[Sink] = []
    for url in _SEPARATOR.split(text):
        scheme, colon, _ = url.partition(":")
        if not colon or scheme not in _SCHEMES:
            raise ValueError(f"{quoted(url)} is no sink of this version: `jsonl:PATH`, `jsonl:-`")
        sink = _SCHEMES[scheme](url)
        if any(other.url == sink.url for other in sinks):
            raise ValueError(f"{quoted(url)} is there twice")
        sinks.append(sink)
    return tuple(sinks)
