"""JSON (RFC 8259): the fast reader, and the slow one that knows positions.

The standard library's scanner is used with a hook that notices duplicate keys, which no typed
decoder does. Whatever it refuses is read again by `parse`, which finds the place and the words.
"""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecodeError
from typing import Any, NoReturn

from netreeve.model.quote import quoted
from netreeve.plan.document import MAX_DEPTH, MAX_INT_DIGITS, MAX_VALUES, Flaw, Malformed
from netreeve.plan.tree import Mapping, Node, Odd, Tree

__all__ = ["parse", "read"]

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z]+")


def read(text: str) -> Any:
    """The plain value of a JSON text; ValueError or RecursionError send the caller to `parse`."""
    return _DECODER.decode(text)


def parse(text: str) -> Tree:
    """Read a JSON text with positions; Malformed says what is wrong where."""
    reader = _Reader(text)
    return Tree((reader.document(),), tuple(reader.flaws))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("duplicate key")
    return made


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=Odd, parse_constant=_refuse)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.flaws: list[Flaw] = []
        self._values = 0

    def document(self) -> Node:
        node = self._value(0)
        if self._peek():
            raise Malformed(self.at, "there is more behind the end of the JSON value")
        return node

    def _peek(self) -> str:
        """Skip white space; the next character, "" at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def _value(self, depth: int) -> Node:
        first = self._peek()
        at = self.at
        self._values += 1
        if self._values > MAX_VALUES:
            raise Malformed(at, f"the file holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise Malformed(at, f"nested deeper than {MAX_DEPTH} levels")
        if first == "{":
            return Node(at, self._mapping(depth))
        if first == "[":
            return Node(at, self._sequence(depth))
        if first == '"':
            return Node(at, self._string())
        return Node(at, self._scalar())

    def _mapping(self, depth: int) -> Mapping:
        self.at += 1
        made: Mapping = {}
        if self._peek() == "}":
            self.at += 1
            return made
        while True:
            if self._peek() != '"':
                raise Malformed(self.at, self._instead("a key in double quotes"))
            key_at = self.at
            key = self._string()
            if self._peek() != ":":
                raise Malformed(self.at, self._instead("`:` after a key"))
            self.at += 1
            value = self._value(depth + 1)
            if key in made:
                self.flaws.append(Flaw(key_at, f"the key {quoted(key)} is there twice"))
            else:
                made[key] = (key_at, value)
            if self._closed("}"):
                return made

    def _sequence(self, depth: int) -> list[Node]:
        self.at += 1
        made: list[Node] = []
        if self._peek() == "]":
            self.at += 1
            return made
        while True:
            made.append(self._value(depth + 1))
            if self._closed("]"):
                return made

    def _closed(self, end: str) -> bool:
        char = self._peek()
        if char not in (",", end) or not char:
            raise Malformed(self.at, self._instead(f"`,` or `{end}`"))
        self.at += 1
        return char == end

    def _string(self) -> str:
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at)
        except JSONDecodeError as error:
            raise Malformed(error.pos, f"in a string: {error.msg.lower()}") from None
        return str(value)

    def _scalar(self) -> int | bool | Odd | None:
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _WORDS:
            self.at = word.end()
            return _WORDS[word[0]]
        number = _NUMBER.match(self.text, self.at)
        if not number:
            raise Malformed(self.at, self._instead("a JSON value"))
        self.at = number.end()
        if number[1] or number[2] or len(number[0].lstrip("-")) > MAX_INT_DIGITS:
            return Odd(number[0])
        return int(number[0])

    def _instead(self, wanted: str) -> str:
        found = self.text[self.at : self.at + 1]
        return f"expected {wanted}, found {found!r}" if found else f"expected {wanted}, not the end"
