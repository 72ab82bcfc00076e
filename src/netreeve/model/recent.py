"""A memory that is bounded: what was put last is kept, what is older is forgotten."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `limit` keys (at least 1), each with the value that was put last."""

    __slots__ = ("_limit", "_values")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}  # dicts keep the order in which keys came

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._limit:
            del self._values[next(iter(self._values))]

    def get(self, key: K) -> V | None:
        return self._values.get(key)
