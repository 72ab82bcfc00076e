"""The shape of a plan document: which keys there are, and of which type.

The structures are the one description. msgspec converts a document by them in one go; where it
refuses, `explain` walks the positioned tree by the same description and names every flaw.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from netreeve.model.quote import quoted
from netreeve.plan.document import Flaw
from netreeve.plan.tree import Node, Odd

__all__ = [
    "UNSET",
    "EndpointEntry",
    "Entries",
    "TapEntry",
    "UnsetType",
    "VpcEntry",
    "VtepEntry",
    "explain",
    "salvage",
]


class VtepEntry(msgspec.Struct, forbid_unknown_fields=True):
    """`vtep` of a VPC."""

    local: str
    port: int = 4789
    ttl: int = 64


class VpcEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One item of `vpcs`."""

    name: str
    vni: int
    vtep: VtepEntry
    table: int | UnsetType = UNSET
    mac: str | UnsetType = UNSET
    mtu: int | UnsetType = UNSET
    addresses: list[str] = []
    vlan_filtering: bool | UnsetType = UNSET


class TapEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One item of `taps`."""

    name: str
    mtu: int | UnsetType = UNSET
    controller: str | UnsetType = UNSET


class EndpointEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One item of `endpoints`."""

    id: str
    interface: str
    addresses: list[str] = []
    uid: str | UnsetType = UNSET
    admin: str = "up"
    vpc: str | UnsetType = UNSET


class Entries(msgspec.Struct, forbid_unknown_fields=True):
    """One document."""

    vpcs: list[VpcEntry] = []
    taps: list[TapEntry] = []
    endpoints: list[EndpointEntry] = []


def explain(node: Node, wanted: Any = Entries, what: str = "a plan document") -> Iterator[Flaw]:
    """Every flaw of shape below `node`; none exactly where msgspec would convert it."""
    value = node.value
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        if isinstance(value, dict):
            yield from _explain_mapping(node, value, wanted, what)
        else:
            keys = ", ".join(wanted.__struct_fields__)
            yield Flaw(node.at, f"{what} is a mapping with the keys {keys}; {_found(value)}")
    elif get_origin(wanted) is list:
        if isinstance(value, list):
            (item_type,) = get_args(wanted)
            for item in value:
                yield from explain(item, item_type, _item_word(what))
        else:
            yield Flaw(node.at, f"{what} is a list ([] for none); {_found(value)}")
    elif wanted is str:
        if not isinstance(value, str):
            yield Flaw(node.at, f"{what} is text; {_found(value, quote=True)}")
    elif wanted is bool:
        if not isinstance(value, bool):
            yield Flaw(node.at, f"{what} is true or false; {_found(value)}")
    elif type(value) is not int:
        bare = isinstance(value, str) and value.isascii() and value.isdigit()
        hint = ": write it without quotes" if bare else ""
        yield Flaw(node.at, f"{what} is a whole number; {_found(value)}{hint}")


def salvage(raw: Any, wanted: Any = Entries) -> Any:
    """What of a value that `explain` has flaws for can be looked at further.

    Whatever is missing or of the wrong type becomes UNSET, also where the type says otherwise;
    lists keep their indexes.
    """
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        if not isinstance(raw, dict):
            return UNSET
        types = _field_types(wanted)
        required = {field.name for field in msgspec.structs.fields(wanted) if field.required}
        good = {name: salvage(raw[name], types[name]) for name in types if name in raw}
        return wanted(**dict.fromkeys(required, UNSET) | good)
    if get_origin(wanted) is list:
        (item_type,) = get_args(wanted)
        return [salvage(item, item_type) for item in raw] if isinstance(raw, list) else []
    return raw if type(raw) is wanted else UNSET


def _explain_mapping(
    node: Node, value: dict[str, tuple[int, Node]], wanted: type[msgspec.Struct], what: str
) -> Iterator[Flaw]:
    types = _field_types(wanted)
    for key, (at, child) in value.items():
        if key in types:
            yield from explain(child, types[key], f"`{key}`")
        else:
            yield Flaw(at, f"{what} has no key {quoted(key)}{_nearest(key, types)}")
    for field in msgspec.structs.fields(wanted):
        if field.required and field.name not in value:
            yield Flaw(node.at, f"{what} has no `{field.name}`, which it must have")


@cache
def _field_types(wanted: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: _without_unset(hint) for name, hint in get_type_hints(wanted).items()}


def _without_unset(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (kept,) = (arg for arg in get_args(hint) if arg is not UnsetType)
        return kept
    return hint


def _item_word(what: str) -> str:
    singular = {
        "`vpcs`": "a VPC",
        "`taps`": "a tap",
        "`endpoints`": "an endpoint",
        "`addresses`": "an address",
    }
    return singular[what]


def _nearest(key: str, known: dict[str, Any]) -> str:
    near = get_close_matches(key[:64].lower(), known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean `{near[0]}`?"
    return f" ({', '.join(known)} are known)"


def _found(value: Any, *, quote: bool = False) -> str:
    """What is there instead, in the words of the documents."""
    if value is None:
        return "here is no value: give one, or leave the key out"
    if isinstance(value, dict):
        return "here is a mapping"
    if isinstance(value, list):
        return "here is a list"
    if isinstance(value, str):
        return f"here is the text {quoted(value)}"
    if isinstance(value, bool):
        text = str(value).lower()
    else:
        text = quoted(value.text)[1:-1] if isinstance(value, Odd) else str(value)
    return f'here is {text}: quote it, "{text}"' if quote else f"here is {text}"
