"""YAML: libyaml's events into a tree of values with positions.

Scalars are resolved by the core schema of YAML 1.2, not by 1.1 as PyYAML's loaders do: there,
`12:00:00:00:10:01` is a number in base 60 and `on` a boolean. Whatever could be read as different
numbers (`010`) is `Odd`. Anchors, aliases and merge keys work; what they expand to is counted, so
that a small file can't become a large one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from netreeve.model.quote import quoted
from netreeve.plan.document import MAX_DEPTH, MAX_INT_DIGITS, MAX_VALUES, Flaw, Malformed
from netreeve.plan.tree import Mapping, Node, Odd, Tree

__all__ = ["parse"]

_NOT_YAML = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(rf"[-+]?(?:0|[1-9][0-9]{{0,{MAX_INT_DIGITS - 1}}})")
_NUMBER_LIKE = re.compile(
    r"[-+]?(?:[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+|(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_CORE = "tag:yaml.org,2002:"
_PLAIN_TAGS = (None, *(_CORE + name for name in ("null", "bool", "int", "float", "map", "seq")))
_MERGE = "<<"


def parse(text: str) -> Tree:
    """Read all documents of a YAML text; Malformed says what is wrong where."""
    wrong = _NOT_YAML.search(text)
    if wrong:
        raise Malformed(wrong.start(), f"the character {wrong[0]!r} is not allowed in YAML")
    reader = _Reader(text)
    try:
        roots = tuple(reader.documents())
    except yaml.MarkedYAMLError as error:
        raise Malformed(*_explain(error, text)) from None
    except yaml.YAMLError as error:
        raise Malformed(0, str(error)) from None
    return Tree(roots, tuple(reader.flaws))


def _explain(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    at = mark.index if mark else 0
    words = error.problem or "not YAML"
    if error.context:
        words = f"{words} ({error.context})"
    line = text[text.rfind("\n", 0, at) + 1 : at + 1]
    if "\t" in line and not line.strip(" \t-"):
        words += "; tabs can't indent in YAML, use spaces"
    elif text[at : at + 1] == ":":
        words += "; an IPv6 address that begins with `:` needs quotes"
    return at, words


class _Reader:
    """One pass over the events. Recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str) -> None:
        self.flaws: list[Flaw] = []
        self._events: Iterator[Any] = yaml.parse(text, yaml.CSafeLoader)
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        self._values = 0

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 0)

    def _node(self, event: Any, depth: int) -> Node:
        at: int = event.start_mark.index
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), at)
        before = self._values
        self._count(1, at)
        if depth > MAX_DEPTH:
            raise Malformed(at, f"nested deeper than {MAX_DEPTH} levels")
        anchor = event.anchor
        if anchor is None:
            return Node(at, self._content(event, at, depth))
        self._anchors[anchor] = None
        node = Node(at, self._content(event, at, depth))
        self._anchors[anchor] = (node, self._values - before)
        return node

    def _count(self, values: int, at: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise Malformed(
                at, f"the file holds more than {MAX_VALUES} values, aliases counted in full"
            )

    def _alias(self, anchor: str, at: int) -> Node:
        shown = quoted(anchor)[1:-1]
        if anchor not in self._anchors:
            raise Malformed(at, f"the alias *{shown} has no anchor before it")
        known = self._anchors[anchor]
        if known is None:
            raise Malformed(at, f"the alias *{shown} stands inside its own anchor")
        node, size = known
        self._count(size, at)
        return node

    def _content(self, event: Any, at: int, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event, at)
        if event.tag not in _PLAIN_TAGS:
            raise Malformed(at, f"the tag {quoted(event.tag)} means nothing here")
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._node(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        return self._mapping(depth)

    def _until(self, end: type) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _mapping(self, depth: int) -> Mapping:
        made: Mapping = {}
        merged: Mapping = {}
        for event in self._until(yaml.MappingEndEvent):
            at = event.start_mark.index
            is_plain = isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            key = self._key(event, depth)
            value = self._node(next(self._events), depth + 1)
            if is_plain and key == _MERGE:
                self._merge(value, merged)
            elif key in made:
                self.flaws.append(Flaw(at, f"the key {quoted(key)} is there twice"))
            else:
                made[key] = (at, value)
        return {**merged, **made} if merged else made

    def _key(self, event: Any, depth: int) -> str:
        if isinstance(event, yaml.ScalarEvent):
            self._node(event, depth + 1)
            return str(event.value)
        at = event.start_mark.index
        key = self._node(event, depth + 1).value
        if not isinstance(key, str):
            raise Malformed(at, "a key must be text")
        return key

    def _merge(self, value: Node, into: Mapping) -> None:
        sources = value.value if isinstance(value.value, list) else [value]
        for source in sources:
            if not isinstance(source.value, dict):
                raise Malformed(source.at, "`<<` takes a mapping or a list of mappings")
            for key, entry in source.value.items():
                into.setdefault(key, entry)


def _scalar(event: Any, at: int) -> str | int | bool | Odd | None:
    text: str = event.value
    plain, quoted_or_str = event.implicit
    if quoted_or_str and not plain:
        return text
    if not plain and event.tag in (_CORE + "str", "!"):
        return text
    if not plain and event.tag not in _PLAIN_TAGS:
        raise Malformed(at, f"the tag {quoted(event.tag)} means nothing here")
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _NUMBER_LIKE.fullmatch(text):
        return Odd(text)
    return text
