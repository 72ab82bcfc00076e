"""Whose a link is, by its name: the one module that makes and recognises names.

Failing to recognise a link of ours leaks it, which mends itself; taking somebody else's link for
ours destroys their network. So every rule here errs in one direction: doubt means foreign.

An owned name is a base plus the suffix of its kind (`red` and `-vrf`). The base must match an
alphabet that is fixed here, and a pattern that a site may make as narrow as its own ids: the
pattern narrows, it can't widen. No suffix ends another, so a name has one reading at most.

An endpoint's link is made by others. It is known by one of the configured prefixes *and* a plan
entry; this module can say the first half only, hence the verdict "tracked-name".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Literal

from netreeve.model.quote import quoted

__all__ = [
    "DEFAULT_BASE",
    "DEFAULT_ENDPOINT_PREFIXES",
    "DEFAULT_SUFFIXES",
    "KINDS",
    "MAX_NAME_BYTES",
    "REAL_KIND",
    "TOKEN_PREFIX",
    "Kind",
    "Scheme",
    "Suffixes",
    "Verdict",
    "check_name",
    "scheme",
    "token",
    "token_object",
]

MAX_NAME_BYTES = 15
"""IFNAMSIZ without its terminating NUL (linux/if.h)."""

Kind = Literal["vrf", "bridge", "vtep", "tap"]
KINDS: tuple[Kind, ...] = ("vrf", "bridge", "vtep", "tap")

REAL_KIND: dict[Kind, str] = {"vrf": "vrf", "bridge": "bridge", "vtep": "vxlan", "tap": "tun"}
"""IFLA_INFO_KIND that a link of ours must have."""

TOKEN_PREFIX = "netreeve."
"""What every token begins with, whoever's it is."""

_INSTANCE = re.compile(r"[A-Za-z0-9-]{8,64}")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SUFFIX = re.compile(r"[A-Za-z0-9._-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,14}")
_ILLEGAL_BYTE = re.compile(rb"[/:%\0\t\n\v\f\r \xa0]")
"""What dev_valid_name refuses (0xa0 is a space to the kernel's isspace), and `%`, a template."""


@dataclass(frozen=True, slots=True)
class Suffixes:
    """What is put behind the base of a name, by kind."""

    vrf: str = "-vrf"
    bridge: str = "-bri"
    vtep: str = "-vtp"
    tap: str = "-tap"

    def of(self, kind: Kind) -> str:
        """The suffix of `kind`."""
        suffix: str = getattr(self, kind)
        return suffix

    @property
    def all(self) -> tuple[str, ...]:
        """Every suffix."""
        return (self.vrf, self.bridge, self.vtep, self.tap)


DEFAULT_SUFFIXES = Suffixes()
DEFAULT_BASE = "[A-Za-z0-9][A-Za-z0-9._-]*"
DEFAULT_ENDPOINT_PREFIXES = ("cali", "tap", "veth")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a name says about a link, and why, as a sentence for people."""

    verdict: Literal["owned", "tracked-name", "foreign"]
    reason: str


@dataclass(frozen=True, slots=True)
class Scheme:
    """The naming of one installation; ValueError with a sentence if it could be ambiguous.

    `base` is a regular expression that the whole base of a name must match, besides the fixed
    alphabet; `endpoint_prefixes` are what the names of endpoint links begin with.
    """

    suffixes: Suffixes = DEFAULT_SUFFIXES
    base: str = DEFAULT_BASE
    endpoint_prefixes: tuple[str, ...] = DEFAULT_ENDPOINT_PREFIXES
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _endings: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            pattern = re.compile(self.base)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{self.base!r} is not a regular expression: {error}") from None
        object.__setattr__(self, "_pattern", pattern)
        object.__setattr__(self, "_endings", tuple(map(self.suffixes.of, KINDS)))
        _check_suffixes(self.suffixes)
        _check_prefixes(self.endpoint_prefixes)

    def make(self, kind: Kind, base: str) -> str:
        """The name of the link of `kind` for `base`; ValueError says why there can be none."""
        suffix = self.suffixes.of(kind)
        wrong = self._why_no_base(base)
        if wrong:
            raise ValueError(wrong)
        if len(base) + len(suffix) > MAX_NAME_BYTES:
            raise ValueError(
                f"{quoted(base + suffix)} has {len(base) + len(suffix)} bytes; a link's name has "
                f"{MAX_NAME_BYTES} at most, so with {quoted(suffix)} the base has "
                f"{MAX_NAME_BYTES - len(suffix)} at most"
            )
        return base + suffix

    def recognise(self, name: str, kind: str | None, *, tap_mode: bool = False) -> Verdict:
        """Judge a link by its IFLA_IFNAME and IFLA_INFO_KIND (None where it has none).

        `tap_mode`: the link is known to be a tap (IFLA_TUN_TYPE IFF_TAP); taps and tuns share the
        kind "tun", and a tun is never ours.
        """
        wrong = _why_no_name(name)
        if wrong:
            return Verdict("foreign", wrong)
        ours = self.kind_of(name)
        if ours is not None:
            return _judge_kind(name, ours, kind, tap_mode)
        prefix = self._prefix_of(name)
        if prefix is not None:
            return Verdict("tracked-name", f"it begins with the endpoint prefix {quoted(prefix)}")
        return Verdict("foreign", self._why_foreign(name))

    def kind_of(self, name: str) -> Kind | None:
        """The kind that a name of ours would be of; None if `make` never gives this name."""
        if not name.endswith(self._endings):
            return None
        for kind in KINDS:
            suffix = self.suffixes.of(kind)
            if name.endswith(suffix):
                fits = len(name) <= MAX_NAME_BYTES
                base = name[: -len(suffix)]
                return kind if fits and self._why_no_base(base) is None else None
        return None

    def base_of(self, name: str, kind: Kind) -> str:
        """The base of a name that `kind_of` says is of `kind`."""
        return name[: -len(self.suffixes.of(kind))]

    def check_endpoint(self, name: str) -> None:
        """ValueError says why an endpoint's link can't bear this name.

        It must be legal, longer than one of the prefixes, and must not read as a name of ours
        (`tap1-tap`): it would be tracked and owned at once, and what is owned may be deleted.
        """
        if not _PLAIN.fullmatch(name):
            check_name(name)
        if not name.startswith(self.endpoint_prefixes) or self._prefix_of(name) is None:
            prefixes = ", ".join(self.endpoint_prefixes)
            raise ValueError(
                f"{quoted(name)} doesn't begin with an endpoint prefix and more ({prefixes}; "
                "NETREEVE_ENDPOINT_PREFIXES)"
            )
        if name.endswith(self._endings):
            ours = self.kind_of(name)
            if ours is not None:
                raise ValueError(
                    f"{quoted(name)} reads as a {ours} of netreeve's own "
                    f"(suffix {quoted(self.suffixes.of(ours))})"
                )

    def _prefix_of(self, name: str) -> str | None:
        for prefix in self.endpoint_prefixes:
            if name.startswith(prefix) and len(name) > len(prefix):
                return prefix
        return None

    def _why_no_base(self, base: str) -> str | None:
        if not base:
            return "the name is empty before its suffix"
        if not _BASE.fullmatch(base):
            return (
                f"{quoted(base)} has other characters than letters, digits, `.`, `_` and `-`, "
                "or doesn't begin with a letter or digit"
            )
        if not self._pattern.fullmatch(base):
            return f"{quoted(base)} doesn't match NETREEVE_OWNED_BASE ({self.base})"
        return None

    def _why_foreign(self, name: str) -> str:
        for kind in KINDS:
            suffix = self.suffixes.of(kind)
            if name.endswith(suffix):
                wrong = self._why_no_base(name[: -len(suffix)])
                return f"it ends as a {kind} of ours does, but {wrong}"
        return "no suffix of ours, no endpoint prefix"


def scheme(
    endpoint_prefixes: Sequence[str],
    owned_base: str,
    suffix_vrf: str,
    suffix_bridge: str,
    suffix_vtep: str,
    suffix_tap: str,
) -> Scheme:
    """The scheme of the settings of these names; ValueError as `Scheme` raises it."""
    suffixes = Suffixes(vrf=suffix_vrf, bridge=suffix_bridge, vtep=suffix_vtep, tap=suffix_tap)
    return Scheme(suffixes, owned_base, tuple(endpoint_prefixes))


def token(instance: str, name: str) -> str:
    """The alternative name by which we change and delete the link of ours called `name`.

    `instance` is the installation's id in this namespace: 8 to 64 letters, digits and `-`, else
    ValueError. A token is longer than any name of a link can be, so that none can be taken for it.
    """
    if not _INSTANCE.fullmatch(instance):
        raise ValueError(
            f"an instance id is 8 to 64 letters, digits and `-`, not {quoted(instance)}"
        )
    return f"{TOKEN_PREFIX}{instance}.{name}"


def token_object(instance: str, altname: str) -> str | None:
    """The name of the link that `altname` is the token of; None if it is no token of ours."""
    prefix = f"{TOKEN_PREFIX}{instance}."
    return altname[len(prefix) :] or None if altname.startswith(prefix) else None


def check_name(name: str) -> None:
    """ValueError says why no link can be planned under `name` (dev_valid_name, and no `%`)."""
    wrong = _why_no_name(name)
    if wrong:
        raise ValueError(wrong)


def _why_no_name(name: str) -> str | None:
    if _PLAIN.fullmatch(name):
        return None
    if not name:
        return "a link's name is not empty"
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) > MAX_NAME_BYTES:
        return f"{quoted(name)} has {len(raw)} bytes; a link's name has {MAX_NAME_BYTES} at most"
    if name in (".", ".."):
        return f"{quoted(name)} is no name of a link"
    illegal = _ILLEGAL_BYTE.search(raw)
    if illegal:
        return f"{quoted(name)} holds the byte {illegal[0]!r}, which a link's name can't"
    return None


def _judge_kind(name: str, ours: Kind, kind: str | None, tap_mode: bool) -> Verdict:
    real = REAL_KIND[ours]
    if kind != real:
        seen = f"a {kind}" if kind else "of no kind"
        return Verdict("foreign", f"named as a {ours} of ours is, but it is {seen}, not a {real}")
    if ours == "tap" and not tap_mode:
        return Verdict("foreign", "named as a tap of ours is, but it is not known to be a tap")
    return Verdict("owned", f"named as a {ours} of ours is, and it is one")


def _check_suffixes(suffixes: Suffixes) -> None:
    for kind in KINDS:
        suffix = suffixes.of(kind)
        if not _SUFFIX.fullmatch(suffix):
            raise ValueError(
                f"the suffix {quoted(suffix)} ({kind}) is empty or has other characters than "
                "letters, digits, `.`, `_` and `-`"
            )
        if len(suffix) >= MAX_NAME_BYTES:
            raise ValueError(
                f"the suffix {quoted(suffix)} ({kind}) leaves no room for a base: it has "
                f"{MAX_NAME_BYTES - 1} bytes at most"
            )
    for one, other in permutations(KINDS, 2):
        if suffixes.of(one).endswith(suffixes.of(other)):
            raise ValueError(
                f"the suffix {suffixes.of(one)!r} ({one}) ends with {suffixes.of(other)!r} "
                f"({other}): a name could be read in two ways"
            )


def _check_prefixes(prefixes: Sequence[str]) -> None:
    if not prefixes:
        raise ValueError("there is no endpoint prefix: no link could be an endpoint's")
    for prefix in prefixes:
        if not prefix:
            raise ValueError("an endpoint prefix is empty: every link would be an endpoint's")
        wrong = None if prefix in (".", "..") else _why_no_name(prefix)
        if wrong:
            raise ValueError(f"the endpoint prefix can't begin a name: {wrong}")
        if len(prefix.encode("utf-8", "surrogateescape")) >= MAX_NAME_BYTES:
            raise ValueError(
                f"the endpoint prefix {quoted(prefix)} leaves no room: it has "
                f"{MAX_NAME_BYTES - 1} bytes at most"
            )
    for one, other in permutations(prefixes, 2):
        if one.startswith(other):
            raise ValueError(
                f"the endpoint prefixes {quoted(one)} and {quoted(other)} overlap: "
                "one begins with the other"
            )
