"""Documents in, one plan out; or every problem of every document.

Three steps. Each file becomes *parts* (a YAML file may hold several documents), converted by the
schema in one go. Then the entries of all parts are checked in one pass, VPCs first, since the
others refer to them. What is wrong is noted with the path of the value (`endpoints`, 3, `id`);
only if there is anything to say are the files read again for lines and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from socket import AF_INET6
from typing import Any, TypeVar

import msgspec

from netreeve.errors import PlanError, Problem
from netreeve.model import ownership
from netreeve.model.ids import EndpointId
from netreeve.model.prefix import LinkAddress, Prefix
from netreeve.model.quote import quoted
from netreeve.plan import fields, json_tree, schema
from netreeve.plan.document import SUFFIXES, Document, Flaw, Lines, Malformed, decode_text
from netreeve.plan.model import Endpoint, Plan, Tap, Vpc, Vtep
from netreeve.plan.schema import UNSET, UnsetType
from netreeve.plan.tree import Node, Tree, plain

__all__ = ["load"]

T = TypeVar("T")
V = TypeVar("V")
Path = tuple[str | int, ...]

_VPC_KINDS: tuple[ownership.Kind, ...] = ("vrf", "bridge", "vtep")


def load(documents: Iterable[Document], scheme: ownership.Scheme, *, whole: bool = True) -> Plan:
    """The plan that all documents make together; PlanError holds all that is wrong, sorted.

    `whole` is False if it is known that a document is missing: then a VPC that is named but not
    there is not called a mistake, as it isn't when a document can't be read.
    """
    return _Loading(scheme, whole).load(documents)


class _File:
    """One document file; the text and its tree are kept for the positions of problems."""

    def __init__(self, document: Document) -> None:
        self.path = document.path
        self._data = document.data
        self._text: str | None = None
        self._tree: Tree | None = None
        self._lines: Lines | None = None

    @property
    def is_json(self) -> bool:
        return self.path.endswith(".json")

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = decode_text(self._data)
        return self._text

    def tree(self) -> Tree:
        """The positioned tree; Malformed where there is none."""
        if self._tree is None:
            if self.is_json:
                self._tree = json_tree.parse(self.text)
            else:
                # Imported when needed: who has JSON only never pays for PyYAML.
                from netreeve.plan import yaml_tree

                self._tree = yaml_tree.parse(self.text)
        return self._tree

    def problem(self, flaw: Flaw) -> Problem:
        if self._lines is None:
            self._lines = Lines(self._data.decode("utf-8-sig", "replace"))
        return Problem(self.path, *self._lines.position(flaw.at), flaw.message)


@dataclass(frozen=True, slots=True)
class _Part:
    """One document of a file."""

    file: _File
    index: int
    entries: schema.Entries

    def offset(self, path: Path) -> int:
        """Where the value at `path` was written; its nearest ancestor if it was left out."""
        node = self.file.tree().roots[self.index]
        for step in path:
            value = node.value
            if isinstance(value, list) and isinstance(step, int):
                node = value[step]
            elif isinstance(value, dict) and step in value:
                node = value[str(step)][1]
        return node.at


Where = tuple[_Part, Path]


@dataclass(frozen=True, slots=True)
class _Finding:
    """Something wrong at `where`; `first` is where the same thing was before."""

    where: Where
    message: str
    first: Where | None = None


class _Loading:
    def __init__(self, scheme: ownership.Scheme, whole: bool) -> None:
        self._scheme = scheme
        self._problems: list[Problem] = []
        self._findings: list[_Finding] = []
        self._whole = whole
        self._vpc_names: set[str] = set()
        self._without_table: set[str] = set()
        self._taken: dict[Hashable, Where] = {}
        self._ids: dict[EndpointId, Where] = {}
        self._interfaces: dict[str, Where] = {}
        self._addresses_by_vpc: dict[str | None, dict[Prefix, Where]] = {}

    def load(self, documents: Iterable[Document]) -> Plan:
        parts = [part for document in documents for part in self._parts(_File(document))]
        self._note_vpc_names(parts)
        vpcs = self._collect(parts, "vpcs", self._vpc, lambda vpc: vpc.name)
        taps = self._collect(parts, "taps", self._tap, lambda tap: tap.name)
        endpoints = self._collect(parts, "endpoints", self._endpoint, lambda made: made.id)
        problems = self._problems + [_resolve(finding) for finding in self._findings]
        if problems:
            raise PlanError(tuple(sorted(problems)))
        return Plan(vpcs, taps, endpoints)

    # Files to parts.

    def _parts(self, file: _File) -> list[_Part]:
        try:
            return self._read(file)
        except Malformed as malformed:
            self._whole = False
            self._problems.append(file.problem(malformed.flaw))
            return []

    def _read(self, file: _File) -> list[_Part]:
        if not file.path.endswith(SUFFIXES):
            self._whole = False
            names = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            self._problems.append(Problem(file.path, 0, 0, f"a plan document is called {names}"))
            return []
        if file.is_json:
            quick = _read_json(file.text)
            if quick is not None:
                return [_Part(file, 0, quick)]
        tree = file.tree()
        self._problems.extend(map(file.problem, tree.flaws))
        roots = [(i, root) for i, root in enumerate(tree.roots) if root.value is not None]
        if not roots:
            raise Malformed(0, "the file holds nothing; a plan that wants nothing is {}")
        return [self._convert(file, index, root) for index, root in roots]

    def _convert(self, file: _File, index: int, root: Node) -> _Part:
        raw = plain(root)
        try:
            return _Part(file, index, msgspec.convert(raw, schema.Entries))
        except msgspec.ValidationError:
            self._problems.extend(map(file.problem, schema.explain(root)))
        if not isinstance(raw, dict) or not isinstance(raw.get("vpcs", []), list):
            self._whole = False
            return _Part(file, index, schema.Entries())
        return _Part(file, index, schema.salvage(raw))

    def _note_vpc_names(self, parts: list[_Part]) -> None:
        """A VPC with a flaw is there nevertheless: who refers to it is not wrong as well."""
        for part in parts:
            for vpc in part.entries.vpcs:
                name: str | UnsetType = getattr(vpc, "name", UNSET)
                if name is UNSET:
                    self._whole = False
                else:
                    self._vpc_names.add(name)
                    if getattr(vpc, "table", UNSET) is UNSET:
                        self._without_table.add(name)

    # Entries to objects.

    def _collect(
        self,
        parts: list[_Part],
        kind: str,
        make: Callable[[Any, _Part, Path], T | None],
        key: Callable[[T], V],
    ) -> dict[V, T]:
        made: dict[V, T] = {}
        for part in parts:
            for index, entry in enumerate(getattr(part.entries, kind)):
                if entry is UNSET:
                    continue
                value = make(entry, part, (kind, index))
                if value is not None:
                    made[key(value)] = value
        return made

    def _vpc(self, entry: schema.VpcEntry, part: _Part, path: Path) -> Vpc | None:
        before = len(self._findings)
        here = (part, path)
        name = self._value(str, entry.name, here, "name")
        if name is not None:
            for kind in _VPC_KINDS:
                if self._value(partial(self._scheme.make, kind), name, here, "name") is None:
                    break
            self._take(("vpc", name), f"a VPC is called {quoted(name)} already", here, "name")
        table = self._value(fields.table, entry.table, here, "table")
        if table is not None:
            self._take(("table", table), f"`table` {table} is another VPC's", here, "table")
        vni = self._value(fields.vni, entry.vni, here, "vni")
        vtep = self._vtep(entry.vtep, (part, (*path, "vtep")))
        if vni is not None and vtep is not None:
            words = f"`vni` {vni} with `port` {vtep.port} is another VPC's"
            self._take(("vni", vni, vtep.port), words, here, "vni")
        mac = self._value(fields.mac, entry.mac, here, "mac")
        mtu = self._value(fields.mtu, entry.mtu, here, "mtu")
        addresses = self._bridge_addresses(entry.addresses, mtu, here)
        filtering = None if entry.vlan_filtering is UNSET else entry.vlan_filtering
        if len(self._findings) > before or not (name and vni and vtep):
            return None
        return Vpc(name, table, vni, vtep, mac, mtu, addresses, filtering)

    def _vtep(self, entry: schema.VtepEntry | UnsetType, here: Where) -> Vtep | None:
        if entry is UNSET:
            return None
        local = self._value(fields.vtep_local, entry.local, here, "local")
        port = self._value(fields.port, entry.port, here, "port")
        ttl = self._value(fields.ttl, entry.ttl, here, "ttl")
        if local is None or port is None or ttl is None:
            return None
        return Vtep(local, port, ttl)

    def _bridge_addresses(
        self, texts: list[str], mtu: int | None, here: Where
    ) -> tuple[LinkAddress, ...]:
        made: list[LinkAddress] = []
        for index, text in enumerate(texts):
            address = self._value(fields.link_address, text, here, "addresses", index)
            if address is None:
                continue
            if address in made:
                self._note(f"{address} is there twice", here, "addresses", index)
            elif address.family == AF_INET6 and mtu is not None and mtu < fields.MIN_IPV6_MTU:
                words = f"IPv6 needs an `mtu` of {fields.MIN_IPV6_MTU} at least, here it is {mtu}"
                self._note(words, here, "addresses", index)
            made.append(address)
        return tuple(made)

    def _tap(self, entry: schema.TapEntry, part: _Part, path: Path) -> Tap | None:
        before = len(self._findings)
        here = (part, path)
        name = self._value(str, entry.name, here, "name")
        if name is not None:
            self._value(partial(self._scheme.make, "tap"), name, here, "name")
            self._take(("tap", name), f"a tap is called {quoted(name)} already", here, "name")
        mtu = self._value(fields.mtu, entry.mtu, here, "mtu")
        controller = self._value(self._controller, entry.controller, here, "controller")
        if name is None or len(self._findings) > before:
            return None
        return Tap(name, mtu, controller)

    def _controller(self, name: str) -> str:
        ownership.check_name(name)
        kind = self._scheme.kind_of(name)
        if kind in ("vtep", "tap"):
            raise ValueError(f"`controller` is a bridge or a VRF; {quoted(name)} reads as a {kind}")
        if kind is not None and self._whole:
            base = self._scheme.base_of(name, kind)
            if base not in self._vpc_names:
                raise ValueError(
                    f"`controller` {quoted(name)} would be of a VPC {quoted(base)}, "
                    "which is not in the plan"
                )
            if kind == "vrf" and base in self._without_table:
                raise ValueError(
                    f"`controller` {quoted(name)}: the VPC {quoted(base)} has no `table`, "
                    "so there is no VRF"
                )
        return name

    def _endpoint(self, entry: schema.EndpointEntry, part: _Part, path: Path) -> Endpoint | None:
        # Nodes have thousands of these: nothing is made here that only a finding needs.
        before = len(self._findings)
        here = (part, path)
        endpoint_id = self._value(EndpointId.parse, entry.id, here, "id")
        if endpoint_id is not None:
            first = self._ids.setdefault(endpoint_id, here)
            if first is not here:
                words = f"the endpoint {quoted(entry.id)} is there already"
                self._note(words, here, "id", first=first)
        interface = self._value(self._interface, entry.interface, here, "interface")
        if interface is not None:
            first = self._interfaces.setdefault(interface, here)
            if first is not here:
                words = f"{quoted(interface)} is another endpoint's `interface` already"
                self._note(words, here, "interface", first=first)
        vpc = None if entry.vpc is UNSET else entry.vpc
        if vpc is not None and vpc not in self._vpc_names and self._whole:
            self._note(f"`vpc` {quoted(vpc)} is not in the plan", here, "vpc")
        uid = self._value(fields.uid, entry.uid, here, "uid")
        admin_up = entry.admin == "up" or self._value(fields.admin_up, entry.admin, here, "admin")
        routed = None if vpc in self._without_table else vpc
        addresses = self._addresses(entry.addresses, routed, here)
        if endpoint_id is None or interface is None or admin_up is None:
            return None
        if len(self._findings) > before:
            return None
        return Endpoint(endpoint_id, interface, addresses, uid, admin_up, vpc)

    def _interface(self, name: str) -> str:
        self._scheme.check_endpoint(name)
        return name

    def _addresses(self, texts: list[str], vpc: str | None, here: Where) -> tuple[Prefix, ...]:
        taken = self._addresses_by_vpc.setdefault(vpc, {})
        made: list[Prefix] = []
        for index, text in enumerate(texts):
            prefix = self._value(fields.endpoint_prefix, text, here, "addresses", index)
            if prefix is None:
                continue
            if prefix.length == 0 and vpc is None:
                words = (
                    f"{quoted(text)} would take the node's own default route; "
                    "only an endpoint of a VPC with a `table` can have it"
                )
                self._note(words, here, "addresses", index)
            first = taken.setdefault(prefix, here)
            if first is not here or prefix in made:
                words = f"{prefix} is an endpoint's address already, in the same table"
                self._note(words, here, "addresses", index, first=first)
            made.append(prefix)
        return tuple(made)

    # Small parts of the above.

    def _note(
        self, message: str, here: Where, *steps: str | int, first: Where | None = None
    ) -> None:
        part, path = here
        if first is not None:
            first = (first[0], (*first[1], steps[0]))
        self._findings.append(_Finding((part, path + steps), message, first))

    def _value(
        self, parse: Callable[[T], V], raw: T | UnsetType, here: Where, *steps: str | int
    ) -> V | None:
        """What `parse` makes of a field; None if it is left out, or wrong and noted."""
        if raw is UNSET:
            return None
        try:
            return parse(raw)
        except ValueError as error:
            self._note(str(error), here, *steps)
            return None

    def _take(self, key: Hashable, words: str, here: Where, *steps: str | int) -> None:
        """Of what there can be one only: a finding if another entry has `key` already."""
        first = self._taken.setdefault(key, here)
        if first is not here:
            self._note(words, here, *steps, first=first)


def _read_json(text: str) -> schema.Entries | None:
    """What a flawless JSON document holds; None if it has to be looked at closely."""
    try:
        return msgspec.convert(json_tree.read(text), schema.Entries)
    except (ValueError, RecursionError):
        return None


def _resolve(finding: _Finding) -> Problem:
    part, path = finding.where
    problem = part.file.problem(Flaw(part.offset(path), finding.message))
    if finding.first is None:
        return problem
    first, first_path = finding.first
    other = first.file.problem(Flaw(first.offset(first_path), ""))
    message = f"{problem.message}: see {other.path}:{other.line}"
    return Problem(problem.path, problem.line, problem.column, message)
