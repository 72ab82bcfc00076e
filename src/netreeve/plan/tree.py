"""A document as a tree of values that know where they were written.

YAML is always read into such a tree. JSON is only when something is wrong with it: its happy path
needs no positions, and makes up most of the time that a large plan takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netreeve.plan.document import Flaw

__all__ = ["Mapping", "Node", "Odd", "Sequence", "Tree", "plain"]


@dataclass(frozen=True, slots=True)
class Odd:
    """A scalar that no field takes: a fraction, a number in another notation, a huge number."""

    text: str


class Node:
    """One value: `at` is the character offset of its first character."""

    __slots__ = ("at", "value")

    def __init__(self, at: int, value: Mapping | Sequence | str | int | bool | Odd | None) -> None:
        self.at = at
        self.value = value


Mapping = dict[str, tuple[int, Node]]
"""By key: the offset of the key, and the value."""

Sequence = list[Node]


@dataclass(frozen=True, slots=True)
class Tree:
    """What was read from one file: its documents, and the duplicate keys that were met."""

    roots: tuple[Node, ...]
    flaws: tuple[Flaw, ...]


def plain(node: Node) -> Any:
    """The value as dicts, lists and scalars; `Odd` stays, so that no typed field takes it."""
    value = node.value
    if isinstance(value, dict):
        return {key: plain(child) for key, (_, child) in value.items()}
    if isinstance(value, list):
        return [plain(child) for child in value]
    return value
