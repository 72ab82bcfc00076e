"""The kinds of value that a setting can have: how each is read, and what it allows.

A kind is a value with one question and one sentence: `parse(text)` gives the typed value or raises
ValueError, `allowed` says in words what it accepts. The ValueError's text is empty where `allowed`
says it all, and else says what is wrong beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = [
    "AbsolutePath",
    "Choice",
    "Kind",
    "Names",
    "Optional",
    "Share",
    "Switch",
    "Text",
    "Whole",
]

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T", bound=str)


class Kind(Protocol[T_co]):
    """What every kind offers."""

    @property
    def allowed(self) -> str: ...

    def parse(self, text: str) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number, `low` to `high` inclusive, in decimal digits.

    `unit` is for people ("seconds"). `zero_means` makes 0 a value of its own, whatever `low` is.
    `refused` holds numbers inside the range that are not allowed, each with the reason.
    """

    low: int
    high: int
    unit: str = ""
    zero_means: str = ""
    refused: Mapping[int, str] = field(default_factory=dict)

    @property
    def allowed(self) -> str:
        of = f" of {self.unit}" if self.unit else ""
        zero = f", or 0 ({self.zero_means})" if self.zero_means else ""
        inside = [str(number) for number in self.refused if self.low <= number <= self.high]
        but = f", except {', '.join(inside)}" if inside else ""
        return f"a whole number{of} from {self.low} to {self.high}{zero}{but}"

    def parse(self, text: str) -> int:
        # int() would take "1_000", " 5", "+5" and digits of other scripts: none was meant that way.
        # Twenty digits hold every range, and keep a hostile value from costing anything.
        if re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII) is None:
            raise ValueError
        number = int(text)
        if number in self.refused:
            raise ValueError(self.refused[number])
        if not (self.low <= number <= self.high or (number == 0 and self.zero_means)):
            raise ValueError
        return number


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, as a decimal fraction."""

    @property
    def allowed(self) -> str:
        return "a number above 0 and up to 1"

    def parse(self, text: str) -> float:
        if not re.fullmatch(r"[01]|[01]?\.[0-9]{1,6}", text, re.ASCII):
            raise ValueError
        number = float(text)
        if not 0.0 < number <= 1.0:
            raise ValueError
        return number


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """One of a few words, in lower case."""

    words: tuple[T, ...]

    @property
    def allowed(self) -> str:
        return " or ".join(self.words)

    def parse(self, text: str) -> T:
        for word in self.words:
            if word == text:
                return word
        raise ValueError


@dataclass(frozen=True, slots=True)
class Switch:
    """`true` or `false`, in any case; not `1`, `yes` or `on`: one spelling to search for."""

    @property
    def allowed(self) -> str:
        return "true or false"

    def parse(self, text: str) -> bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise ValueError from None


@dataclass(frozen=True, slots=True)
class Text:
    """Text that matches `pattern` as a whole; `allowed` says what that is."""

    pattern: str
    allowed: str

    def parse(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Optional:
    """Text like `Text`'s; empty is None, which means `empty_means`."""

    pattern: str
    form: str
    empty_means: str

    @property
    def allowed(self) -> str:
        return f"{self.form}, or empty ({self.empty_means})"

    def parse(self, text: str) -> str | None:
        if not text:
            return None
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Names:
    """Comma-separated words; blanks around each are dropped."""

    allowed: str

    def parse(self, text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        if not all(names):
            raise ValueError
        return names


@dataclass(frozen=True, slots=True)
class AbsolutePath:
    """A path from the root, at most `most_bytes` long; empty is None, which means `empty_means`."""

    empty_means: str
    most_bytes: int = 4095

    @property
    def allowed(self) -> str:
        return f"an absolute path of at most {self.most_bytes} bytes, or empty ({self.empty_means})"

    def parse(self, text: str) -> str | None:
        if not text:
            return None
        path = text.rstrip("/")
        if not path.startswith("/"):
            raise ValueError
        if len(path.encode("utf-8", "surrogateescape")) > self.most_bytes:
            raise ValueError
        return path
