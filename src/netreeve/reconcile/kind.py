"""What the engine knows of a kind of link: a table of properties, no code of its own."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from netreeve.model import ownership
from netreeve.model.link_spec import Value

__all__ = ["Field", "Key", "LinkKind", "always", "never"]

Key: TypeAlias = tuple[object, ...]
"""Kind and values: what two links of one kind can't share."""


def always(observed: Value | None, wanted: Value) -> bool:
    return True


def never(observed: Value | None, wanted: Value) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Field:
    """A property. `live`: whether the kernel changes it from `observed` to `wanted` on a link that
    exists. `default` is what its absence means, and is not sent when a link is made: a kernel
    that lacks the property refuses even that. `key`: the part of it that has to be unique."""

    live: Callable[[Value | None, Value], bool]
    default: Value | None = None
    key: Callable[[Value | None], object] = lambda value: value


@dataclass(frozen=True, slots=True)
class LinkKind:
    """A kind of ours and its properties.

    `unique` names the properties that no two links share as a whole. `clashes`: by which
    properties to find the holder when a create fails with that errno. `by_device`: made through
    /dev/net/tun, bare. `addressed`: bears the addresses of its spec.
    """

    kind: ownership.Kind
    fields: Mapping[str, Field] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    clashes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    by_device: bool = False
    addressed: bool = False

    @property
    def real_kind(self) -> str:
        return ownership.REAL_KIND[self.kind]

    @property
    def clash(self) -> tuple[str, ...]:
        """By which properties to find who has what must be unique."""
        return self.clashes.get(errno.EEXIST, self.unique)

    def key(self, value: Callable[[str], Value | None]) -> Key | None:
        """The key of a link with these properties; None where nothing has to be unique."""
        if not self.unique:
            return None
        return (self.kind, *(self.fields[name].key(value(name)) for name in self.unique))
