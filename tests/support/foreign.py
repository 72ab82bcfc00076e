"""What others have in a namespace, and whether it was left alone.

    topology.build(ns)
    with Untouched(ns):
        ...  # the agent at work: no link that is there now may be another, nor be touched

`snapshot` knows nothing of the project's decoders: it is `ip -d -j` as text. What is foreign is
said by the test, not by the naming scheme.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.netns import Namespace

__all__ = ["LinkEvent", "LinkWatch", "Topology", "Untouched", "differences", "flannel", "snapshot"]

Snapshot = dict[str, dict[str, Any]]
"""By name: all that `ip` shows of a link, its addresses and neighbours."""

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTNLGRP_LINK = 1
IFLA_IFNAME = 3
SETTLED_S = 0.3
SO_RCVBUFFORCE = 33
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1

# A link on top of another, or in it, follows it: the kernel's doing, not a request of anybody's.
_FOLLOWS = frozenset(
    {"flags", "operstate", "state", "max_mtu", "min_mtu", "tso_max_size", "tso_max_segs",
     "gso_max_size", "gso_max_segs", "gro_max_size", "addr_info", "info_slave_data"}
)  # fmt: skip
# Duplicate address detection ends a while after its link came up.
_PASSES = frozenset({"tentative"})


def flannel(ns: Namespace, port: int = 8472) -> None:
    """What flannel and a CNI plugin have: a VXLAN of VNI 1, a bridge with a pod in it."""
    ns.ip_batch(
        f"link add flannel.1 address 0a:58:0a:f4:00:00 mtu 1450 type vxlan id 1 dstport {port}"
        " local 192.0.2.77 nolearning\n"
        "addr add 10.244.0.0/32 dev flannel.1\n"
        "link set flannel.1 up\n"
        "link add cni0 address 0a:58:0a:f4:00:01 mtu 1450 type bridge\n"
        "addr add 10.244.0.1/24 dev cni0\n"
        "link set cni0 up\n"
        "link add vethpod1 master cni0 type veth peer name peer1\n"
        "link set peer1 up\n"
        "link set vethpod1 up\n"
    )


def snapshot(
    ns: Namespace, *, without: Collection[str] = (), riding: Collection[str] = ()
) -> Snapshot:
    """Every link but those of the names `without`, attribute for attribute.

    `riding` are on top of links that aren't foreign, or in them: what follows from the state of
    those is left out.
    """
    shown = json.loads(
        subprocess.run(
            ["ip", "-n", ns.name, "-d", "-j", "addr", "show"],
            check=True, capture_output=True, encoding="utf-8", errors="surrogateescape",
        ).stdout
    )  # fmt: skip
    found = {}
    for link in shown:
        name = link["ifname"]
        if name in without or name == "lo":
            continue
        found[name] = _without(link, _PASSES | _FOLLOWS if name in riding else _PASSES)
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What is not as it was, a line each; empty where all is. New links don't count."""
    lines = []
    for name, link in before.items():
        there = after.get(name)
        if there is None:
            lines.append(f"{name} is gone")
            continue
        lines += [
            f"{name}: {key} was {link.get(key)!r}, is {there.get(key)!r}"
            for key in sorted(link.keys() | there.keys())
            if link.get(key) != there.get(key)
        ]
    return lines


def _without(value: Any, drop: Collection[str]) -> Any:
    if isinstance(value, dict):
        # Time passes, and so do timers.
        return {
            key: _without(item, drop)
            for key, item in value.items()
            if key not in drop and not key.endswith("_timer")
        }
    if isinstance(value, list):
        return [_without(item, drop) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """A notification: whether the link is (still) there; `portid` is the requester's, 0 = none."""

    present: bool
    ifindex: int
    name: str
    portid: int
    family: int


class LinkWatch:
    """Hears every link message in a namespace from the moment it is made."""

    def __init__(self, ns: Namespace) -> None:
        self._socket = ns.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._socket.bind((0, 0))
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
        self._heard: list[LinkEvent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def take(self) -> list[LinkEvent]:
        """All since the last call."""
        self._socket.setblocking(False)
        while self._read():
            pass
        heard, self._heard = self._heard, []
        return heard

    def wait(self, count: int, timeout_s: float, names: Collection[str] | None = None) -> bool:
        """Until `count` messages about links of these names (all) came; False: not in time."""
        self._socket.settimeout(timeout_s)
        while sum(names is None or event.name in names for event in self._heard) < count:
            if not self._read():
                return False
        return True

    def assert_untouched(self, foreign: Mapping[str, Any], riding: Collection[str] = ()) -> None:
        """Nobody changed a link of the snapshot `foreign` since the last `take`, but `riding`."""
        names = {link["ifindex"]: name for name, link in foreign.items() if name not in riding}
        # AF_BRIDGE tells of ports: their state follows that of their bridge, without a request.
        touched = [
            event
            for event in self.take()
            if (event.ifindex in names or (event.name in foreign and event.name not in riding))
            and event.family == socket.AF_UNSPEC
        ]
        assert touched == [], f"links of others had events: {touched}"

    def _read(self) -> bool:
        try:
            data = self._socket.recv(1 << 17)
        except (BlockingIOError, TimeoutError):
            return False
        while len(data) >= 16:
            size, kind, _, _, portid = struct.unpack_from("=IHHII", data)
            if kind in (RTM_NEWLINK, RTM_DELLINK):
                family, ifindex = data[16], struct.unpack_from("=i", data, 20)[0]
                name = _name(data[32:size])
                self._heard.append(LinkEvent(kind == RTM_NEWLINK, ifindex, name, portid, family))
            data = data[(size + 3) & ~3 :]
        return True


def _name(attributes: bytes) -> str:
    while len(attributes) >= 4:
        size, kind = struct.unpack_from("=HH", attributes)
        if kind == IFLA_IFNAME:
            return attributes[4:size].rstrip(b"\0").decode("utf-8", "surrogateescape")
        attributes = attributes[(size + 3) & ~3 :]
    return ""


# Links of other managers, as they make them where this kernel has the kind.
_MANAGERS = (
    "link add docker0 type bridge",
    "link add virbr0 type bridge",
    "link add br-1a2b3c4d5e6f type bridge",
    "link add cbr0 type bridge",
    "link add vxlan.calico type vxlan id 4096 dstport 4789 local 192.0.2.77",
    "link add vxlan_sys_4790 type vxlan external dstport 4790",
    "link add cilium_vxlan type vxlan id 77 dstport 8473",
    "link add antrea-gw0 type veth peer name antrea-peer",
    "link add cilium_host type veth peer name cilium_net",
    "tuntap add name tun0 mode tun",
    "tuntap add name vnet0 mode tap",
    "link add ifb7 type ifb",
)
# Near our scheme, and not in it.
_NEAR = (
    "link add -vrf type bridge",
    "link add -bri type bridge",
    "link add red-brid type bridge",
    "link add red-br type bridge",
    "link add red_bri type bridge",
    "link add RED-BRI type bridge",
    "link add .red-bri type bridge",
    "link add r~d-bri type bridge",
    "link add red-vtp2 type vxlan id 901 dstport 4791",
    "link add vtp-red type vxlan id 902 dstport 4791",
    "tuntap add name red-tapx mode tap",
)
# Our suffix on a wrong kind. `tap` needs a tap: a tun is of the same kind to the kernel.
_WRONG_KINDS = (
    "link add {base}-vrf type bridge",
    "link add {base}-bri type veth peer name {base}-peer",
    "link add {base}-vtp type bridge",
    "tuntap add name {base}-tap mode tun",
    "link add {base}-bri type vxlan id {number} dstport 4792",
    "link add {base}-vtp type ifb",
    "link add {base}-tap type bridge",
)


class Topology:
    """Random links of others. `riding` are those on links of ours.

    `planned` are names of links of ours that the plan will want: some get a foreign link with such
    an alternative name, which then keeps the plan from its link; those are in `taken`.
    """

    def __init__(self, rng: random.Random, planned: Collection[str] = ()) -> None:
        self.riding: set[str] = set()
        self.taken: set[str] = set()
        self.commands: list[str] = []
        self._rng = rng
        self.commands += rng.sample(_MANAGERS, rng.randint(3, len(_MANAGERS)))
        self.commands += rng.sample(_NEAR, rng.randint(3, len(_NEAR)))
        for number, shape in enumerate(rng.sample(_WRONG_KINDS, rng.randint(2, 6))):
            self.commands.append(shape.format(base=f"f{number}", number=910 + number))
        self._take_names(sorted(planned))
        if rng.random() < 0.7:
            self.commands += [
                *(() if self._has("cbr0") else ("link add cbr0 type bridge",)),
                "link add vethc master cbr0 type veth peer name vethd",
                "link set vethd up",
                "link set vethc up",
                "link set cbr0 up",
                "addr add 203.0.113.1/24 dev cbr0",
            ]

    def build(self, ns: Namespace) -> None:
        """Make them; settles what the kernel would tell later."""
        ns.ip_batch(self.commands)

    def ride(self, ns: Namespace, bridge: str) -> list[str]:
        """Put things of others on a bridge of ours that is there; their names.

        A macvlan on it would go with it; a port in it would be cut off.
        """
        number = len(self.riding)
        made = []
        if self._rng.random() < 0.6:
            name = f"macv{number}"
            ns.ip(f"link add {name} link {bridge} type macvlan mode bridge")
            made.append(name)
        if not made or self._rng.random() < 0.6:
            name = f"fport{number}"
            ns.ip(f"link add {name} master {bridge} type veth peer name fpeer{number}")
            made += [name]
        self.riding |= set(made)
        return made

    def _has(self, name: str) -> bool:
        return any(f" {name} " in command for command in self.commands)

    def _take_names(self, planned: list[str]) -> None:
        """Two of the planned names go to others: one as a name of a wrong kind, one as altname."""
        if len(planned) < 2:
            return
        by_name, by_altname = self._rng.sample(planned, 2)
        if self._rng.random() < 0.5:
            self.commands.append(f"link add {by_name} type ifb")
            self.taken.add(by_name)
        if self._rng.random() < 0.5:
            self.commands += [
                "link add innocent type ifb",
                f"link property add dev innocent altname {by_altname}",
            ]
            self.taken.add(by_altname)


class Untouched:
    """Nothing happens to links of others inside: neither in the end, nor on the way.

    `names` are the foreign ones, all that are there by default. `riding` are on links of ours.
    """

    def __init__(
        self, ns: Namespace, *, names: Collection[str] | None = None, riding: Collection[str] = ()
    ) -> None:
        self._ns = ns
        self._names = names
        self._riding = riding

    def __enter__(self) -> Self:
        # What the kernel tells late of what was done before: carriers, addresses.
        self._watch = LinkWatch(self._ns)
        while self._watch.wait(1, SETTLED_S):
            self._watch.take()
        shown = snapshot(self._ns, riding=self._riding)
        self.before = {
            name: link for name, link in shown.items() if self._names is None or name in self._names
        }
        if self._names is not None:
            assert self.before.keys() == set(self._names)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._watch:
            if kind is None:
                self.check()

    def check(self) -> None:
        after = snapshot(self._ns, riding=self._riding)
        changed = differences(self.before, after)
        assert not changed, "\n".join(changed)
        self._watch.assert_untouched(self.before, self._riding)

    def forget(self, *names: str) -> None:
        """These may change from now on."""
        for name in names:
            del self.before[name]
