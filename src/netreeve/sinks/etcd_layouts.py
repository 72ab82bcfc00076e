"""Where in etcd the status of a node's endpoints is, and what it looks like there. No I/O.

- `native`: `/netreeve/v1/<node>/endpoint/<id>` holds the transition record.
- `calico`: `/calico/felix/v2/<region>/host/<node>/workload/<orchestrator>/<workload>/endpoint/<e>`
  holds `{"status":"up"}`.

`removed` deletes the key. `calico` is what networking-calico reads: the id's parts are decoded,
then escaped with `%25` and `%2f`, in this order. The writer key is elsewhere: those who watch the
status would have to skip it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import orjson

from netreeve.model.ids import EndpointId
from netreeve.status import transition
from netreeve.status.transition import Transition

__all__ = ["Calico", "Layout", "Native"]


class Layout(Protocol):
    """Keys and values for one node."""

    @property
    def writer_key(self) -> bytes:
        """Epoch and number of who writes the status."""

    @property
    def prefix(self) -> bytes:
        """All keys of this node's endpoints begin with it, and none of anybody else's."""

    @property
    def liveness(self) -> tuple[bytes, bytes] | None:
        """The keys that say that the agent lives: with a lease and without; None for no such."""

    def key(self, endpoint: str) -> bytes:
        """Of an endpoint, by its canonical id; of "", where gaps are recorded, if at all."""

    def records(self, each: Transition) -> bool:
        """Whether this transition is shown at all."""

    def value(self, each: Transition) -> bytes:
        """Of a transition that is not `removed`."""

    def agrees(self, value: bytes, each: Transition) -> bool:
        """Whether a stored value says what this transition says."""


@dataclass(frozen=True, slots=True)
class Native:
    node: str

    @property
    def writer_key(self) -> bytes:
        return f"/netreeve/writer/v1/native/{self.node}".encode()

    @property
    def prefix(self) -> bytes:
        return f"/netreeve/v1/{self.node}/endpoint/".encode()

    @property
    def liveness(self) -> None:
        return None

    def key(self, endpoint: str) -> bytes:
        name = f"endpoint/{endpoint}" if endpoint else "gap"
        return f"/netreeve/v1/{self.node}/{name}".encode()

    def records(self, each: Transition) -> bool:
        return True

    def value(self, each: Transition) -> bytes:
        return transition.encode(each)

    def agrees(self, value: bytes, each: Transition) -> bool:
        # Members that another version adds are no reason to write what watchers know already.
        try:
            return transition.decode(value) == each
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Calico:
    """`region` is None or OpenStack's name of it."""

    node: str
    region: str | None

    @property
    def writer_key(self) -> bytes:
        return f"/netreeve/writer/v1/calico/{self._region}/{self.node}".encode()

    @property
    def prefix(self) -> bytes:
        return f"{self._host}/workload/".encode()

    @property
    def liveness(self) -> tuple[bytes, bytes]:
        return f"{self._host}/status".encode(), f"{self._host}/last_reported_status".encode()

    def key(self, endpoint: str) -> bytes:
        orchestrator, workload, name = map(_escaped, EndpointId.parse(endpoint))
        return f"{self._host}/workload/{orchestrator}/{workload}/endpoint/{name}".encode()

    def records(self, each: Transition) -> bool:
        return each.status != "gap"

    def value(self, each: Transition) -> bytes:
        return b'{"status":"%s"}' % each.status.encode()

    def agrees(self, value: bytes, each: Transition) -> bool:
        try:
            stored = orjson.loads(value)
        except orjson.JSONDecodeError:
            return False
        return isinstance(stored, dict) and stored.get("status") == each.status

    @property
    def _region(self) -> str:
        return "no-region" if self.region is None else f"region-{self.region}"

    @property
    def _host(self) -> str:
        return f"/calico/felix/v2/{self._region}/host/{self.node}"


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2f")
