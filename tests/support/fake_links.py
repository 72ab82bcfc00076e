"""An obvious model of what the kernel does with links, for the engine's enemies.

As kernel-facts and the ownership research have it: names and alternative names share one space;
CREATE|EXCL fails on a taken name, or a taken VNI and port; a request by an alternative name acts
on exactly that link or is ENODEV; a bridge that goes releases its ports; a link that goes takes
those on top of it (macvlan) along; a link moved in keeps its ifindex; a master that isn't there
costs the port its old one.

It records every request, and fails (AssertionError) when one hits a link of others. The exception
is a token: put on by ifindex it can come on a stranger, and has to come off again.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from netreeve.model import link_op, ownership
from netreeve.model.link_op import Step
from netreeve.model.prefix import LinkAddress

PROTOCOL = 98
AF_INET = int(socket.AF_INET)


@dataclass(frozen=True)
class LinkDetails:
    """Has the attributes of `netreeve._ext.details.LinkDetails`, which can't be made by hand."""

    ifindex: int
    name: str
    kind: str
    admin_up: bool = False
    mtu: int = 1500
    mac: bytes = b"\2\0\0\0\0\1"
    controller: int = 0
    group: int = 0
    altnames: tuple[str, ...] = ()
    lower: int = 0
    remote_lower: bool = False
    table: int | None = None
    vlan_filtering: bool | None = None
    vni: int | None = None
    port: int | None = None
    local: tuple[int, bytes] | None = None
    ttl: int | None = None
    tap: bool | None = None

    @property
    def family(self) -> int:
        return self.local[0] if self.local else AF_INET


@dataclass(frozen=True)
class AddrMessage:
    """As `netreeve._ext.wire.AddrMessage`."""

    ifindex: int
    family: int
    address: bytes
    prefix_len: int
    proto: int


@dataclass(frozen=True)
class Event:
    """What the name machine tells: `gone` is LinkRemoved; an address has no name."""

    name: str
    ifindex: int
    gone: bool = False


class Refused(Exception):
    def __init__(self, number: int, words: str = "") -> None:
        super().__init__(number, words)
        self.errno = number
        self.words = words


@dataclass
class FakeLinks:
    scheme: ownership.Scheme = field(default_factory=ownership.Scheme)
    links: dict[int, LinkDetails] = field(default_factory=dict)
    addresses: dict[int, dict[LinkAddress, int]] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=deque)
    log: list[Step] = field(default_factory=list)
    next_ifindex: int = 10
    strays: set[tuple[int, str]] = field(default_factory=set)  # our tokens on strangers
    echo: bool = True
    broken: dict[type[Step], tuple[int, str]] = field(default_factory=dict)
    has_filtering: bool = True
    macs: int = 0

    # -- what is there --

    def by_name(self, name: str) -> LinkDetails | None:
        for link in self.links.values():
            if name == link.name or name in link.altnames:
                return link
        return None

    def __getitem__(self, name: str) -> LinkDetails:
        link = self.by_name(name)
        assert link is not None, name
        return link

    def is_ours(self, link: LinkDetails) -> bool:
        verdict = self.scheme.recognise(link.name, link.kind, tap_mode=bool(link.tap))
        return verdict.verdict == "owned"

    def foreign(self) -> dict[int, tuple[LinkDetails, tuple[tuple[LinkAddress, int], ...]]]:
        """All that is not ours, attribute for attribute; a port's controller that goes is not."""
        return {
            index: (link, tuple(self.addresses.get(index, {}).items()))
            for index, link in self.links.items()
            if not self.is_ours(link)
        }

    def ours(self) -> dict[str, LinkDetails]:
        return {link.name: link for link in self.links.values() if self.is_ours(link)}

    # -- what others (and the requests below) do --

    def add(self, name: str, kind: str, ifindex: int = 0, /, **more: object) -> LinkDetails:
        if self.by_name(name) is not None:
            raise Refused(errno.EEXIST)
        self._check_unique(kind, more)
        controller = more.get("controller")
        if controller and controller not in self.links:
            raise Refused(errno.EINVAL)
        if ifindex in self.links:
            raise Refused(errno.EBUSY)
        if not ifindex:
            while self.next_ifindex in self.links:
                self.next_ifindex += 1
            ifindex = self.next_ifindex
            self.next_ifindex += 1
        if kind == "bridge" and self.has_filtering:
            more.setdefault("vlan_filtering", False)
        if kind == "tun":
            more.setdefault("tap", True)
        self.macs += 1
        more.setdefault("mac", b"\2\0" + self.macs.to_bytes(4))
        link = LinkDetails(ifindex, name, kind, **more)  # type: ignore[arg-type]
        self.links[ifindex] = link
        self._tell(link)
        for other in (link.controller, link.lower):
            if other in self.links:
                self._tell(self.links[other])  # its features, or its number of users
        return link

    def _check_unique(self, kind: str, more: dict[str, object]) -> None:
        if kind != "vxlan":
            return
        local = more.get("local")
        family = local[0] if isinstance(local, tuple) else AF_INET
        for link in self.links.values():
            same = link.vni, link.port, link.family
            if link.kind == "vxlan" and same == (more.get("vni"), more.get("port"), family):
                words = "A VXLAN device with the specified VNI already exists"
                raise Refused(errno.EEXIST, words)

    def change(self, name: str, /, **more: object) -> LinkDetails:
        before = self[name]
        after = replace(before, **more)  # type: ignore[arg-type]
        self.links[before.ifindex] = after
        if before.name != after.name:
            self.events.append(Event(before.name, before.ifindex, gone=True))
        self._tell(after)
        return after

    def altname(self, name: str, altname: str) -> None:
        if self.by_name(altname) is None:
            link = self[name]
            self.change(link.name, altnames=(*link.altnames, altname))

    def delete(self, name: str) -> None:
        self._remove(self[name])

    def _remove(self, link: LinkDetails) -> None:
        for other in tuple(self.links.values()):
            if other.lower == link.ifindex and other.kind == "macvlan":
                self._remove(other)
        for other in tuple(self.links.values()):
            if other.controller == link.ifindex:
                self.links[other.ifindex] = replace(other, controller=0)
                self._tell(self.links[other.ifindex])
        del self.links[link.ifindex]
        self.addresses.pop(link.ifindex, None)
        self.strays = {stray for stray in self.strays if stray[0] != link.ifindex}
        self.events.append(Event(link.name, link.ifindex, gone=True))

    def _tell(self, link: LinkDetails) -> None:
        self.events.append(Event(link.name, link.ifindex))

    # -- requests --

    def do(self, step: Step) -> tuple[int, str, object]:
        """errno, words and result of one step."""
        self.log.append(step)
        broken = self.broken.get(type(step))
        if broken is not None:
            return (*broken, None)
        try:
            return 0, "", getattr(self, "do_" + type(step).__name__)(step)
        except Refused as refused:
            return refused.errno, refused.words, None

    def _token(self, token: str) -> LinkDetails:
        assert token.startswith("netreeve.")
        assert len(token) > ownership.MAX_NAME_BYTES
        for link in self.links.values():
            if token in link.altnames:
                return link
        raise Refused(errno.ENODEV)

    def _our(self, token: str, step: Step) -> LinkDetails:
        link = self._token(token)
        assert self.is_ours(link), (step, link)
        assert link.name == step.name, (step, link)
        return link

    def do_Look(self, step: link_op.Look) -> LinkDetails | None:  # noqa: N802
        return self.by_name(step.name)

    def do_LookToken(self, step: link_op.LookToken) -> LinkDetails | None:  # noqa: N802
        return self._token(step.token)

    def do_LookIndex(self, step: link_op.LookIndex) -> LinkDetails | None:  # noqa: N802
        return self.links.get(step.ifindex)

    def do_FindHolder(self, step: link_op.FindHolder) -> list[LinkDetails]:  # noqa: N802
        return [
            link
            for link in self.links.values()
            if link.kind == step.real_kind
            and link.name != step.name
            and all(getattr(link, name) == value for name, value in step.properties)
        ]

    def do_AddrLook(self, step: link_op.AddrLook) -> list[AddrMessage]:  # noqa: N802
        if step.ifindex and step.ifindex not in self.links:
            raise Refused(errno.ENODEV)
        return [
            AddrMessage(index, each.family, each.address, each.length, proto)
            for index, held in self.addresses.items()
            for each, proto in held.items()
            if step.ifindex in (0, index)
        ]

    def do_Survey(self, step: link_op.Survey) -> list[LinkDetails]:  # noqa: N802
        return list(self.links.values())

    def do_Create(self, step: link_op.Create) -> LinkDetails | None:  # noqa: N802
        more: dict[str, object] = dict(step.properties)
        if "vlan_filtering" in more and not self.has_filtering:
            raise Refused(errno.EOPNOTSUPP)
        if step.mac:
            more["mac"] = step.mac
        mtu = step.mtu or 1500
        link = self.add(
            step.name, step.real_kind, admin_up=True, mtu=mtu, controller=step.controller, **more
        )
        return link if self.echo else None

    def do_CreateTap(self, step: link_op.CreateTap) -> None:  # noqa: N802
        try:
            self.add(step.name, "tun", tap=True)
        except Refused:
            held = self[step.name]
            raise Refused(errno.EBUSY if held.kind == "tun" else errno.EINVAL) from None

    def do_TokenAdd(self, step: link_op.TokenAdd) -> None:  # noqa: N802
        link = self.links.get(step.ifindex)
        if link is None:
            raise Refused(errno.ENODEV)
        if self.by_name(step.token) is not None:
            raise Refused(errno.EEXIST)
        self.change(link.name, altnames=(*link.altnames, step.token))
        if not self.is_ours(link) or link.name != step.name:
            self.strays.add((link.ifindex, step.token))

    def do_TokenRemove(self, step: link_op.TokenRemove) -> None:  # noqa: N802
        link = self._token(step.token)
        kept = tuple(name for name in link.altnames if name != step.token)
        self.change(link.name, altnames=kept)
        self.strays.discard((link.ifindex, step.token))

    def do_Set(self, step: link_op.Set) -> None:  # noqa: N802
        link = self._our(step.token, step)
        attributes = {
            name: getattr(step, name) for name in ("mtu", "mac") if getattr(step, name) is not None
        }
        if step.up is not None:
            attributes["admin_up"] = step.up
        assert bool(attributes or step.controller is not None) != bool(step.data), step
        for name, value in step.data:
            assert name not in ("vni", "port", "table")
            if name == "vlan_filtering" and not self.has_filtering:
                raise Refused(errno.EOPNOTSUPP)
            if name == "local":
                assert isinstance(value, tuple)
                assert value[0] == link.family
            attributes[name] = value
        if step.controller is not None:
            attributes["controller"] = step.controller
            if step.controller and step.controller not in self.links:
                self.change(link.name, controller=0)
                raise Refused(errno.EINVAL)
        self.change(link.name, **attributes)

    def do_Delete(self, step: link_op.Delete) -> None:  # noqa: N802
        self._delete(self._our(step.token, step))

    def _delete(self, link: LinkDetails) -> None:
        for other in self.links.values():
            goes_along = other.lower == link.ifindex and not other.remote_lower
            if goes_along or other.controller == link.ifindex:
                assert self.is_ours(other), f"{link.name} takes {other.name} along"
        self._remove(link)

    def do_GroupSet(self, step: link_op.GroupSet) -> None:  # noqa: N802
        self.change(self._our(step.token, step).name, group=step.group)

    def do_GroupLook(self, step: link_op.GroupLook) -> list[LinkDetails]:  # noqa: N802
        return list(self.links.values())

    def do_GroupDelete(self, step: link_op.GroupDelete) -> None:  # noqa: N802
        assert step.group
        members = [link for link in self.links.values() if link.group == step.group]
        for link in members:
            assert self.is_ours(link), link
        for link in members:
            self._delete(link)

    def do_AddrAdd(self, step: link_op.AddrAdd) -> None:  # noqa: N802
        link = self.links.get(step.ifindex)
        if link is None:
            raise Refused(errno.ENODEV)
        assert self.is_ours(link), (step, link)
        held = self.addresses.setdefault(step.ifindex, {})
        if step.address in held:
            raise Refused(errno.EEXIST)
        held[step.address] = step.protocol

    def do_AddrDelete(self, step: link_op.AddrDelete) -> None:  # noqa: N802
        link = self.links.get(step.ifindex)
        if link is None:
            raise Refused(errno.ENODEV)
        assert self.is_ours(link), (step, link)
        held = self.addresses.get(step.ifindex, {})
        if step.address not in held:
            raise Refused(errno.EADDRNOTAVAIL)
        assert held[step.address] == PROTOCOL, "an admin's address"
        before = list(held)
        del held[step.address]
        # A primary address takes the secondaries of its network along (promote_secondaries=0).
        for other in before[before.index(step.address) :] if step.address.family == AF_INET else ():
            if other in held and _network(other) == _network(step.address):
                del held[other]

    def tell(self) -> Iterator[Event]:
        while self.events:
            yield self.events.popleft()


def _network(address: LinkAddress) -> tuple[int, int]:
    host_bits = len(address.address) * 8 - address.length
    return address.length, int.from_bytes(address.address) >> host_bits
