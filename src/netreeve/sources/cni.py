"""Endpoints from libcni's result cache, `/var/lib/cni/results`: a Kubernetes node's plan.

Whoever runs CNI plugins through libcni (containerd, CRI-O, multus) has one file there per
attachment, written after the plugins have made it and removed after they have unmade it
(libcni/api.go, `cacheAdd`, `cacheDel`): in place, without a rename, named
`<network>-<container>-<ifname>`.

The files are others', and some are always odd: of plugins without a link on the host, of containers
that are long gone (a runtime that crashed doesn't clean up), twice the same where multus delegates.
So none of them can be wrong as a plan document is. One that makes no endpoint is left out, and said
once; of two that contradict each other the younger is taken. A file that can't be read, or is torn,
stands as it was last read until it is whole again or gone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from netreeve.errors import PlanError
from netreeve.model.ids import EndpointId
from netreeve.model.ownership import Scheme
from netreeve.model.prefix import Prefix
from netreeve.model.text import printable
from netreeve.plan.document import Document
from netreeve.plan.loading import load
from netreeve.plan.model import Endpoint
from netreeve.sources.files import DirSource
from netreeve.sources.source import Snapshot

__all__ = ["DEFAULT_PATH", "CniSource"]

log = logging.getLogger(__name__)

DEFAULT_PATH = Path("/var/lib/cni/results")

_KIND = "cniCacheV1"

_Key = EndpointId | str | Prefix
"""What only one endpoint can have: an id, a link, an address."""


class _Interface(msgspec.Struct):
    name: str = ""
    sandbox: str = ""


class _Address(msgspec.Struct):
    address: str
    interface: int | None = None


class _Result(msgspec.Struct):
    """A result of CNI 0.3.0 and later. Those before name no links (`ip4`, `ip6` only)."""

    interfaces: list[_Interface] | None = None
    ips: list[_Address] | None = None


class _Cached(msgspec.Struct, rename="camel"):
    """`cachedInfo` of libcni/api.go; what isn't used here is skipped."""

    kind: str = ""
    container_id: str = ""
    if_name: str = ""
    network_name: str = ""
    cni_args: list[tuple[str, str]] | None = None
    result: _Result | None = None


class _Torn(Exception):
    """The file says nothing, neither that there is an endpoint nor that there is none."""


class _LeftOut(Exception):
    """The file makes no endpoint of this node; the text is why."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one file came to: an endpoint as a document, unless `why_not` says why not.

    `read` is what it was read from, and `torn` whether that was no good, so that the rest is older.
    """

    read: object
    mtime_ns: int = 0
    document: Document | None = None
    endpoint: Endpoint | None = None
    why_not: str = ""
    torn: bool = False


class CniSource(DirSource):
    """`cni:PATH`: see the head of this file. `scheme` says what an endpoint's link is called."""

    def __init__(self, path: Path, scheme: Scheme) -> None:
        super().__init__(path)
        self.url = f"cni:{path}"
        self._scheme = scheme
        self._readings: dict[str, _Reading] = {}
        self._said: dict[str, str] = {}

    def _names(self) -> list[str]:
        return sorted(filter(self._wants, os.listdir(self._directory)))

    def _wants(self, name: str) -> bool:
        # A network's name begins with a letter or a digit (pkg/utils/utils.go).
        return not name.startswith(".")

    def _snapshot(self) -> Snapshot:
        before, self._readings = self._readings, {}
        for name in self._known:
            self._readings[name] = self._reading(name, before.get(name))
        documents, left_out = _without_contradictions(self._readings)
        self._say(left_out)
        return Snapshot(tuple(documents))

    def _reading(self, name: str, before: _Reading | None) -> _Reading:
        read = self._known[name]
        if before is not None and before.read is read:
            return before
        mtime_ns = 0 if read.signature is None else read.signature[3]
        try:
            if read.wrong is not None:
                raise _Torn(read.wrong)
            document = _document(self._directory / name, read.data, self._scheme)
            endpoint = _endpoint(document, self._scheme)
        except _Torn as torn:
            if before is None or before.endpoint is None:
                return _Reading(read, why_not=str(torn))
            return _Reading(
                read, before.mtime_ns, before.document, before.endpoint, str(torn), torn=True
            )
        except _LeftOut as left_out:
            return _Reading(read, why_not=str(left_out))
        return _Reading(read, mtime_ns, document, endpoint)

    def _say(self, left_out: dict[str, str]) -> None:
        for name, why_not in left_out.items():
            if self._said.get(name) == why_not:
                continue
            stays = self._readings[name].torn
            log.warning(
                "a CNI result stands as it was last read" if stays else "a CNI result is left out",
                extra={
                    "fields": {
                        "file": printable(str(self._directory / name)),
                        "reason": why_not,
                        "odd_results": len(left_out),
                    }
                },
            )
        self._said = left_out


def _document(path: Path, data: bytes, scheme: Scheme) -> Document:
    """The plan document that a file of the cache comes to; `_endpoint` is to judge it."""
    try:
        cached = msgspec.json.decode(data, type=_Cached)
    except msgspec.ValidationError as error:
        raise _LeftOut(f"it is no entry of libcni's cache: {error}") from None
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise _Torn("it is not JSON, or only half of it") from None
    if cached.kind != _KIND:
        raise _LeftOut(f"it is no entry of libcni's cache of the kind {_KIND}")
    result = cached.result or _Result()
    interfaces = result.interfaces or []
    inside = _inside(interfaces, cached.if_name)
    outside = _outside(interfaces, inside, scheme)
    entry = {
        "id": str(_id(cached)),
        "interface": interfaces[outside].name,
        "addresses": _addresses(result.ips or [], outside if inside is None else inside),
        "uid": cached.container_id,
    }
    return Document(f"{path}.json", msgspec.json.encode({"endpoints": [entry]}))


def _id(cached: _Cached) -> EndpointId:
    args = dict(cached.cni_args or [])
    namespace, pod = args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME")
    if namespace and pod:
        return EndpointId("k8s", f"{namespace}/{pod}", cached.if_name)
    return EndpointId("cni", f"{cached.network_name}/{cached.container_id}", cached.if_name)


def _inside(interfaces: list[_Interface], if_name: str) -> int | None:
    """The index of the link in the container; None where the plugin doesn't name it (Calico)."""
    sandboxed = [index for index, link in enumerate(interfaces) if link.sandbox]
    for index in sandboxed:
        if interfaces[index].name == if_name:
            return index
    return sandboxed[0] if sandboxed else None


def _outside(interfaces: list[_Interface], inside: int | None, scheme: Scheme) -> int:
    """The index of the link on the host that leads to the container.

    Plugins list what they make in order: a bridge, the host's end, the container's end, and then
    what chained plugins add. So of several that an endpoint's link could be called, it is the last
    before the container's end, or else the first.
    """
    here = [index for index, link in enumerate(interfaces) if not link.sandbox]
    if not here:
        raise _LeftOut("it names no link on the host")
    good = []
    for index in here:
        try:
            scheme.check_endpoint(interfaces[index].name)
        except ValueError as error:
            wrong = str(error)
        else:
            good.append(index)
    if not good:
        raise _LeftOut(wrong)
    before = [index for index in good if inside is not None and index < inside]
    return before[-1] if before else good[0]


def _addresses(ips: list[_Address], index: int) -> list[str]:
    """The addresses of interface `index`, and those that are no interface's, without a length.

    An address comes with the length of its network, which is not routed to one container.
    """
    own = (ip.address.partition("/")[0] for ip in ips if ip.interface in (None, index))
    return list(dict.fromkeys(own))


def _endpoint(document: Document, scheme: Scheme) -> Endpoint:
    """What the document means to the plan: the same judge, so that it can't be refused there."""
    try:
        (endpoint,) = load([document], scheme).endpoints.values()
    except PlanError as error:
        raise _LeftOut(error.problems[0].message) from None
    return endpoint


def _without_contradictions(
    readings: dict[str, _Reading],
) -> tuple[list[Document], dict[str, str]]:
    """The documents that go together, and by name of the file why any other is odd.

    Youngest first: of two containers with one pod's name, one link or one address, the older one is
    a container that was not cleaned up. Entries that are equal are one (multus and its delegate).
    """
    taken: dict[_Key, str] = {}
    endpoints: dict[EndpointId, Endpoint] = {}
    documents: list[Document] = []
    odd: dict[str, str] = {}
    for name, reading in sorted(readings.items(), key=_age, reverse=True):
        if reading.why_not:
            odd[name] = reading.why_not
        endpoint, document = reading.endpoint, reading.document
        if endpoint is None or document is None or endpoints.get(endpoint.id) == endpoint:
            continue
        keys: list[_Key] = [endpoint.id, endpoint.interface, *endpoint.addresses]
        clash = next((key for key in keys if key in taken), None)
        if clash is not None:
            odd[name] = f"{clash} is in {printable(taken[clash])} too, which is younger"
            continue
        taken.update(dict.fromkeys(keys, name))
        endpoints[endpoint.id] = endpoint
        documents.append(document)
    return sorted(documents, key=lambda document: document.path), odd


def _age(item: tuple[str, _Reading]) -> tuple[int, str]:
    name, reading = item
    return reading.mtime_ns, name
