"""What the kernel makes of our requests about links: what the ownership of links stands on.

Each was found out on 6.18, and holds on 6.1 too (tests/uml); a kernel where one of these fails
needs another way to act.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from netreeve._ext import details, wire
from netreeve._ext.encode import Batch
from tests.support import netns

pytestmark = pytest.mark.kernel

SOL_NETLINK, CAP_ACK, EXT_ACK, STRICT_CHK = 270, 10, 11, 12
DONE = (0, "")
TWIN = (errno.EEXIST, "A VXLAN device with the specified VNI already exists")
V4, V6 = socket.AF_INET, socket.AF_INET6
LOCAL, OTHER = (V4, socket.inet_aton("127.0.0.1")), (V4, socket.inet_aton("127.0.0.2"))
LOCAL6 = (V6, socket.inet_pton(V6, "fd00::1"))
MAC = bytes.fromhex("0200000000aa")
ECHOES = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 2)

Add = Callable[[Batch], int]


def token(name: str) -> str:
    return f"netreeve.0123456789.{name}"


@dataclass
class Kernel:
    """A request socket in a namespace of its own."""

    ns: netns.Namespace
    socket: socket.socket
    seq: int = 1
    sent: list[int] = field(default_factory=list)

    def ask(self, *requests: Add) -> list[details.LinkDetails | wire.AddrMessage | wire.Answer]:
        """One batch; all that came until its last request was answered."""
        batch = Batch(self.seq)
        self.sent = [add(batch) for add in requests]
        self.seq = batch.next_seq
        self.socket.send(batch.finish())
        found: list[details.LinkDetails | wire.AddrMessage | wire.Answer] = []
        while not (
            found and isinstance(found[-1], wire.Answer) and found[-1].seq == batch.last_seq
        ):
            decoded = details.decode_links(self.socket.recv(1 << 17))
            assert (decoded.faults, decoded.ignored) == (0, 0)
            found += decoded.items
        return found

    def answer(self, request: Add) -> tuple[int, str]:
        (found,) = self.ask(request)
        assert isinstance(found, wire.Answer)
        return found.errno, found.text

    def done(self, *requests: Add) -> None:
        found = self.ask(*requests)
        assert all(answer.errno == 0 for answer in found if isinstance(answer, wire.Answer)), found

    def link(self, name: str) -> details.LinkDetails:
        link, _ = self.ask(lambda batch: batch.link_get_by_name(name))
        assert isinstance(link, details.LinkDetails)
        return link

    def at(self, ifindex: int) -> details.LinkDetails:
        link, _ = self.ask(lambda batch: batch.link_get(ifindex))
        assert isinstance(link, details.LinkDetails)
        return link

    def names(self) -> set[str]:
        return {link["ifname"] for link in self.ns.links()} - {"lo"}

    def bridge(self, name: str, mtu: int | None = None, mac: bytes | None = None) -> int:
        """A bridge of ours, with its token; the ifindex."""
        self.done(lambda batch: batch.link_create("bridge", name, mtu=mtu, mac=mac))
        return self._own(name)

    def vtep(self, name: str, vni: int, local: tuple[int, bytes] | None = LOCAL) -> int:
        """A VTEP of ours, with its token; the ifindex."""
        self.done(lambda batch: batch.link_create("vxlan", name, vni=vni, port=4789, local=local))
        return self._own(name)

    def _own(self, name: str) -> int:
        ifindex = self.link(name).ifindex
        self.done(lambda batch: batch.token_add(ifindex, token(name)))
        return ifindex


@pytest.fixture
def kernel(namespace: netns.Namespace) -> Iterator[Kernel]:
    with open_kernel(namespace) as found:
        yield Kernel(namespace, found)


def open_kernel(namespace: netns.Namespace) -> socket.socket:
    opened = namespace.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    opened.bind((0, 0))
    for option in (CAP_ACK, EXT_ACK, STRICT_CHK):
        opened.setsockopt(SOL_NETLINK, option, 1)
    opened.settimeout(10)
    return opened


# ── create ──────────────────────────────────────────────────────────────────────────────────────


def test_a_bridge_and_a_vtep_are_as_they_were_asked_for(kernel: Kernel) -> None:
    kernel.done(
        lambda batch: batch.link_create("bridge", "red-bri", up=True, mtu=1400, mac=MAC),
    )
    bridge = kernel.link("red-bri")
    assert (bridge.kind, bridge.admin_up, bridge.mtu, bridge.mac) == ("bridge", True, 1400, MAC)
    kernel.done(
        lambda batch: batch.link_create(
            "vxlan", "red-vtp", controller=bridge.ifindex, vni=5, port=4790, local=LOCAL, ttl=64,
            learning=False, mtu=1450, mac=MAC,
        )
    )  # fmt: skip
    vtep = kernel.link("red-vtp")
    assert (vtep.kind, vtep.admin_up, vtep.mtu, vtep.mac) == ("vxlan", False, 1450, MAC)
    assert vtep.controller == bridge.ifindex
    assert (vtep.vni, vtep.port, vtep.local, vtep.ttl) == (5, 4790, LOCAL, 64)
    assert (vtep.learning, vtep.external, vtep.group, vtep.altnames) == (False, False, 0, ())
    kernel.done(lambda batch: batch.link_create("vxlan", "six-vtp", vni=6, port=4790, local=LOCAL6))
    assert (kernel.link("six-vtp").local, kernel.link("six-vtp").learning) == (LOCAL6, True)


def test_the_echo_of_a_create_tells_the_ifindex_and_not_yet_the_controller(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    *echoes, done = kernel.ask(
        lambda batch: batch.link_create(
            "vxlan", "red-vtp", up=True, echo=True, controller=bridge, vni=5, port=4789
        )
    )
    made = kernel.link("red-vtp")
    assert isinstance(done, wire.Answer)
    assert (done.errno, made.admin_up, made.controller) == (0, True, bridge)
    assert len(echoes) == int(ECHOES)
    for echo in echoes:
        assert isinstance(echo, details.LinkDetails)
        assert (echo.seq, echo.portid) == (done.seq, kernel.socket.getsockname()[0])
        assert (echo.ifindex, echo.name, echo.vni) == (made.ifindex, "red-vtp", 5)
        assert (echo.admin_up, echo.controller) == (True, 0)


def test_echoes_of_a_batch_are_told_apart_by_number(kernel: Kernel) -> None:
    def create(name: str) -> Add:
        return lambda batch: batch.link_create("bridge", name, echo=True)

    found = kernel.ask(*map(create, ("a-bri", "b-bri", "a-bri", "c-bri")))
    one, two, again, three = kernel.sent
    made = {link.seq: link.name for link in found if isinstance(link, details.LinkDetails)}
    assert made == ({one: "a-bri", two: "b-bri", three: "c-bri"} if ECHOES else {})
    refused = [item.seq for item in found if isinstance(item, wire.Answer) and item.errno]
    assert refused == [again]
    assert kernel.names() == {"a-bri", "b-bri", "c-bri"}


def test_a_taken_name_and_a_taken_vni_differ_by_the_text_alone(kernel: Kernel) -> None:
    kernel.vtep("red-vtp", 5)
    kernel.ns.ip("link add far type veth peer name near")
    kernel.ns.ip("link property add dev far altname taken")

    def create(name: str, vni: int, port: int, local: tuple[int, bytes] = LOCAL) -> tuple[int, str]:
        return kernel.answer(
            lambda batch: batch.link_create("vxlan", name, vni=vni, port=port, local=local)
        )

    before = kernel.names()
    for name in ("red-vtp", "near", "taken"):
        assert create(name, 6, 4789) == (errno.EEXIST, "")
    assert create("blue-vtp", 5, 4789) == TWIN
    assert create("blue-vtp", 5, 4789, OTHER) == TWIN
    # The name is looked at first.
    assert create("red-vtp", 5, 4789) == (errno.EEXIST, "")
    assert kernel.names() == before
    # IPv4 and IPv6 are ports of their own; so are two ports.
    assert create("six-vtp", 5, 4789, LOCAL6) == DONE
    assert create("port-vtp", 5, 4790) == DONE


def test_a_create_that_fails_late_leaves_nothing(kernel: Kernel) -> None:
    vtep = kernel.vtep("red-vtp", 5)

    def create(controller: int) -> int:
        code, _ = kernel.answer(
            lambda batch: batch.link_create(
                "vxlan", "late-vtp", controller=controller, vni=6, port=4789
            )
        )
        assert kernel.names() == {"red-vtp"}
        return code

    assert create(99999) == errno.EINVAL
    assert create(vtep) == errno.EOPNOTSUPP


def test_a_vtep_whose_port_another_socket_has_is_made_but_not_up(kernel: Kernel) -> None:
    with kernel.ns.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("0.0.0.0", 4789))

        def create(up: bool) -> tuple[int, str]:
            return kernel.answer(
                lambda batch: batch.link_create("vxlan", "red-vtp", up=up, vni=5, port=4789)
            )

        assert create(up=True)[0] == errno.EADDRINUSE
        assert kernel.names() == set()
        assert create(up=False) == DONE
        ifindex = kernel.link("red-vtp").ifindex
        kernel.done(lambda batch: batch.token_add(ifindex, token("red-vtp")))
        up = kernel.answer(lambda batch: batch.link_set(token("red-vtp"), up=True))
        assert up[0] == errno.EADDRINUSE
    assert kernel.answer(lambda batch: batch.link_set(token("red-vtp"), up=True)) == DONE


def test_an_external_vxlan_has_its_port_for_itself_while_it_is_up(kernel: Kernel) -> None:
    kernel.vtep("red-vtp", 5)
    kernel.ns.ip_batch(
        ["link add far type vxlan external dstport 4789", "link set far up"],
    )
    assert (kernel.link("far").external, kernel.link("far").vni) == (True, 0)
    up = kernel.answer(lambda batch: batch.link_set(token("red-vtp"), up=True))
    assert up[0] == errno.EADDRINUSE


def test_the_mtu_of_a_bridge_follows_its_ports_until_it_was_changed(kernel: Kernel) -> None:
    kernel.bridge("a-bri", mtu=1400)
    kernel.bridge("b-bri", mtu=1400)
    # To set what it has already is no change.
    kernel.done(lambda batch: batch.link_set(token("b-bri"), mtu=1400))
    kernel.bridge("c-bri")
    kernel.done(lambda batch: batch.link_set(token("c-bri"), mtu=1400))
    for name in ("a-bri", "b-bri", "c-bri"):
        kernel.ns.ip(f"link add {name}-x mtu 1300 master {name} type veth peer name {name}-y")
    assert [kernel.link(name).mtu for name in ("a-bri", "b-bri", "c-bri")] == [1300, 1300, 1400]
    kernel.done(lambda batch: batch.link_set(token("a-bri"), mtu=1400))
    kernel.ns.ip("link add later mtu 1200 master a-bri type veth peer name far")
    assert kernel.link("a-bri").mtu == 1400


def test_a_mac_from_the_create_of_a_bridge_stays(kernel: Kernel) -> None:
    kernel.bridge("red-bri", mac=MAC)
    kernel.ns.ip("link add one address 02:00:00:00:00:01 master red-bri type veth peer name two")
    assert kernel.link("red-bri").mac == MAC


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────


def test_a_token_is_one_links_at_a_time(kernel: Kernel) -> None:
    one, two = kernel.bridge("one-bri"), kernel.bridge("two-bri")

    def give(ifindex: int, name: str) -> tuple[int, str]:
        return kernel.answer(lambda batch: batch.token_add(ifindex, token(name)))

    assert give(one, "one-bri") == give(two, "one-bri") == (errno.EEXIST, "")
    assert give(99999, "x")[0] == errno.ENODEV
    link, _ = kernel.ask(lambda batch: batch.link_get_by_altname(token("one-bri")))
    assert isinstance(link, details.LinkDetails)
    assert (link.ifindex, link.name, link.altnames) == (one, "one-bri", (token("one-bri"),))
    assert kernel.answer(lambda batch: batch.token_remove(token("one-bri"))) == DONE
    assert kernel.link("one-bri").altnames == ()
    for request in (
        lambda batch: batch.token_remove(token("one-bri")),
        lambda batch: batch.link_get_by_altname(token("one-bri")),
    ):
        assert kernel.answer(request)[0] == errno.ENODEV


def test_without_its_token_nothing_is_changed_made_or_deleted(kernel: Kernel) -> None:
    kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)
    before = kernel.ns.links()
    for request in (
        lambda batch: batch.link_set(token("x"), mtu=1300, up=True, controller=0, group=7),
        lambda batch: batch.link_change(token("x"), "vxlan", ttl=9),
        lambda batch: batch.link_delete(token("x")),
        lambda batch: batch.token_remove(token("x")),
    ):
        assert kernel.answer(request)[0] == errno.ENODEV
    assert kernel.ns.links() == before


def test_a_token_outlives_the_name_and_goes_with_the_link(kernel: Kernel) -> None:
    ifindex = kernel.bridge("red-bri")
    kernel.ns.ip_batch(["link set red-bri name other", "link set other up"])
    link, _ = kernel.ask(lambda batch: batch.link_get_by_altname(token("red-bri")))
    assert isinstance(link, details.LinkDetails)
    assert (link.ifindex, link.name) == (ifindex, "other")
    kernel.done(lambda batch: batch.link_delete(token("red-bri")))
    assert kernel.bridge("red-bri") > ifindex


def test_a_stranger_on_the_ifindex_of_a_link_of_ours_survives(kernel: Kernel) -> None:
    kernel.bridge("pad-bri")  # the far end of the stranger will have this one's ifindex
    ours = kernel.bridge("red-bri")
    kernel.ns.ip("link del red-bri")
    with netns.Namespace() as elsewhere:
        elsewhere.ip(f"link add index {ours} name red-bri type veth peer name far")
        elsewhere.ip(f"link set red-bri netns {kernel.ns.name}")
        stranger = kernel.link("red-bri")
        assert (stranger.ifindex, stranger.kind) == (ours, "veth")
        for request in (
            lambda batch: batch.link_set(token("red-bri"), mtu=1300, group=7),
            lambda batch: batch.link_change(token("red-bri"), "bridge", vlan_filtering=True),
            lambda batch: batch.link_delete(token("red-bri")),
        ):
            assert kernel.answer(request)[0] == errno.ENODEV
        assert kernel.link("red-bri") == stranger
        # The one change by ifindex there is does hit it: hence the read-back, and the removal.
        kernel.done(lambda batch: batch.token_add(ours, token("red-bri")))
        assert kernel.link("red-bri").altnames == (token("red-bri"),)
        kernel.done(lambda batch: batch.token_remove(token("red-bri")))
        assert kernel.link("red-bri") == stranger


def test_an_altname_is_looked_up_among_the_names_too(kernel: Kernel) -> None:
    ifindex = kernel.bridge("red-bri")
    link, _ = kernel.ask(lambda batch: batch.link_get_by_altname("red-bri"))
    assert isinstance(link, details.LinkDetails)
    assert link.ifindex == ifindex
    # And the other way round, but a token is too long to be asked for as a name.
    kernel.ns.ip("link property add dev red-bri altname short")
    assert kernel.link("short").ifindex == ifindex


# ── set, change, delete ─────────────────────────────────────────────────────────────────────────


def test_settings_are_those_of_the_link_with_the_token(kernel: Kernel) -> None:
    bridge, vtep = kernel.bridge("red-bri"), kernel.vtep("red-vtp", 5)
    foreign = kernel.link("lo")
    kernel.done(
        lambda batch: batch.link_set(
            token("red-vtp"), up=True, mtu=1300, mac=MAC, controller=bridge, group=4000000001
        )
    )
    link = kernel.link("red-vtp")
    assert (link.ifindex, link.admin_up, link.mtu, link.mac) == (vtep, True, 1300, MAC)
    assert (link.controller, link.group) == (bridge, 4000000001)
    # MAC and MTU change while it is up.
    kernel.done(
        lambda batch: batch.link_set(token("red-vtp"), mtu=1301, mac=bytes([2, 0, 0, 0, 0, 1]))
    )
    kernel.done(lambda batch: batch.link_set(token("red-vtp"), up=False, controller=0, group=0))
    link = kernel.link("red-vtp")
    assert (link.admin_up, link.mtu, link.controller, link.group) == (False, 1301, 0, 0)
    assert kernel.link("lo") == foreign


def test_a_missing_controller_releases_and_then_fails(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)
    kernel.done(lambda batch: batch.link_set(token("red-vtp"), controller=bridge))
    found = kernel.answer(lambda batch: batch.link_set(token("red-vtp"), controller=99999))
    assert found[0] == errno.EINVAL
    assert kernel.link("red-vtp").controller == 0


def test_what_a_vtep_can_change_live(kernel: Kernel) -> None:
    vtep = kernel.vtep("red-vtp", 5)
    kernel.done(
        lambda batch: batch.link_set(token("red-vtp"), up=True),
        lambda batch: batch.link_change(
            token("red-vtp"), "vxlan", local=OTHER, ttl=7, learning=False
        ),
    )
    link = kernel.link("red-vtp")
    assert (link.ifindex, link.admin_up, link.vni, link.port) == (vtep, True, 5, 4789)
    assert (link.local, link.ttl, link.learning) == (OTHER, 7, False)
    other_family = kernel.answer(
        lambda batch: batch.link_change(token("red-vtp"), "vxlan", local=LOCAL6)
    )
    assert other_family == (errno.EOPNOTSUPP, "New local address family does not match old")
    assert kernel.link("red-vtp") == link


def test_a_change_for_another_kind_is_refused_by_the_kernel(kernel: Kernel) -> None:
    kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)
    before = kernel.ns.links()
    for request in (
        lambda batch: batch.link_change(token("red-bri"), "vxlan", ttl=9),
        lambda batch: batch.link_change(token("red-vtp"), "bridge", vlan_filtering=False),
    ):
        assert kernel.answer(request)[0] == errno.EOPNOTSUPP
    assert kernel.ns.links() == before


def test_a_tap_is_set_and_deleted_by_its_token_too(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    kernel.ns.ip("tuntap add dev red-tap mode tap")
    kernel.ns.ip("tuntap add dev red-tun mode tun")
    tap, tun = kernel.link("red-tap"), kernel.link("red-tun")
    assert (tap.kind, tap.tap, tap.persist) == ("tun", True, True)
    assert (tun.kind, tun.tap, tun.persist) == ("tun", False, True)
    kernel.done(
        lambda batch: batch.token_add(tap.ifindex, token("red-tap")),
        lambda batch: batch.link_set(token("red-tap"), up=True, mtu=1400, controller=bridge),
    )
    link = kernel.link("red-tap")
    assert (link.admin_up, link.mtu, link.controller) == (True, 1400, bridge)
    kernel.done(lambda batch: batch.link_delete(token("red-tap")))
    assert kernel.names() == {"red-bri", "red-tun"}


def test_a_delete_hits_the_link_with_the_token_once(kernel: Kernel) -> None:
    kernel.bridge("red-bri")
    kernel.bridge("blue-bri")
    assert kernel.answer(lambda batch: batch.link_delete(token("red-bri"))) == DONE
    assert kernel.names() == {"blue-bri"}
    assert kernel.answer(lambda batch: batch.link_delete(token("red-bri")))[0] == errno.ENODEV


def test_a_deleted_bridge_lets_its_ports_go(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)
    kernel.done(lambda batch: batch.link_set(token("red-vtp"), controller=bridge, up=True))
    kernel.done(lambda batch: batch.link_delete(token("red-bri")))
    link = kernel.link("red-vtp")
    assert (link.controller, link.admin_up) == (0, True)


def test_a_group_is_deleted_as_a_whole_or_not_at_all(kernel: Kernel) -> None:
    group = 1000000001  # `ip` takes no more than an int
    names = [f"b{n}-bri" for n in range(5)]
    for name in names:
        kernel.bridge(name)
    kernel.ns.ip("link add far type veth peer name near")
    empty = kernel.answer(lambda batch: batch.link_delete_group(group))
    assert empty[0] == errno.ENODEV

    def gather(name: str) -> Add:
        return lambda batch: batch.link_set(token(name), group=group)

    kernel.done(*map(gather, names[:4]))
    kernel.ns.ip(f"link set lo group {group}")
    stuck = kernel.answer(lambda batch: batch.link_delete_group(group))
    assert stuck[0] == errno.EOPNOTSUPP
    assert kernel.names() == {*names, "far", "near"}
    kernel.ns.ip("link set lo group 0")
    kernel.done(lambda batch: batch.link_delete_group(group))
    assert kernel.names() == {names[4], "far", "near"}


# ── dumps ───────────────────────────────────────────────────────────────────────────────────────


def test_a_dump_of_a_kind_may_be_a_dump_of_all(kernel: Kernel) -> None:
    kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)

    def dump(kind: str) -> set[str]:
        *links, _ = kernel.ask(lambda batch: batch.link_dump(kind))
        return {link.name for link in links if isinstance(link, details.LinkDetails)}

    assert dump("vxlan") == {"red-vtp"}
    assert dump("tun") == set()
    assert dump("no such kind") == {"lo", "red-bri", "red-vtp"}


def test_a_dump_tells_what_a_single_answer_tells(kernel: Kernel) -> None:
    kernel.bridge("red-bri")
    kernel.vtep("red-vtp", 5)
    *links, _ = kernel.ask(lambda batch: batch.link_dump())
    for dumped in links:
        assert isinstance(dumped, details.LinkDetails)
        assert kernel.at(dumped.ifindex) == dumped


# ── addresses ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("family", "text"), [(V4, "10.1.0.1"), (V6, "fd00:1::1")])
def test_an_address_of_ours_is_known_by_its_protocol(
    kernel: Kernel, family: int, text: str
) -> None:
    bridge = kernel.bridge("red-bri")
    packed = socket.inet_pton(family, text)

    def dump(ifindex: int) -> list[wire.AddrMessage]:
        found = kernel.ask(lambda batch: batch.addr_dump(family, ifindex))
        return [address for address in found if isinstance(address, wire.AddrMessage)]

    kernel.ns.ip("link set lo up")
    assert kernel.answer(lambda batch: batch.addr_add(bridge, family, packed, 24, 98)) == DONE
    again = kernel.answer(lambda batch: batch.addr_add(bridge, family, packed, 24, 98))
    assert again[0] == errno.EEXIST
    (address,) = dump(bridge)
    assert (address.family, address.ifindex, address.address) == (family, bridge, packed)
    assert (address.prefix_len, address.proto) == (24, 98)
    assert len(dump(0)) == 2
    wrong = kernel.answer(lambda batch: batch.addr_delete(bridge, "red-bri", family, packed, 25))
    assert wrong[0] == errno.EADDRNOTAVAIL
    kernel.done(lambda batch: batch.addr_delete(bridge, "red-bri", family, packed, 24))
    assert dump(bridge) == []
    gone = kernel.answer(lambda batch: batch.addr_dump(family, 99999))
    assert gone[0] == errno.ENODEV


def test_an_ipv4_address_of_a_link_of_another_name_is_not_deleted(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    packed = socket.inet_aton("10.1.0.1")
    kernel.done(lambda batch: batch.addr_add(bridge, V4, packed, 24, 98))
    wrong = kernel.answer(lambda batch: batch.addr_delete(bridge, "other", V4, packed, 24))
    assert wrong[0] == errno.EADDRNOTAVAIL
    kernel.ns.ip("link set red-bri name other")
    kernel.done(lambda batch: batch.addr_delete(bridge, "other", V4, packed, 24))


def test_an_ipv6_address_is_usable_before_its_bridge_has_a_port(kernel: Kernel) -> None:
    bridge = kernel.bridge("red-bri")
    packed = socket.inet_pton(V6, "fd00:1::1")
    kernel.done(
        lambda batch: batch.link_set(token("red-bri"), up=True),
        lambda batch: batch.addr_add(bridge, V6, packed, 64, 98),
    )
    with kernel.ns.socket(socket.AF_INET6, socket.SOCK_DGRAM) as user:
        user.bind(("fd00:1::1", 1234))


def test_an_ipv4_address_takes_others_of_its_subnet_along(kernel: Kernel) -> None:
    """Whoever deletes one looks for those first: the kernel doesn't ask whose they are."""
    bridge = kernel.bridge("red-bri")
    packed = socket.inet_aton("10.1.0.1")
    kernel.done(lambda batch: batch.addr_add(bridge, V4, packed, 24, 98))
    kernel.ns.ip("addr add 10.1.0.2/24 dev red-bri")
    ours, theirs, _ = kernel.ask(lambda batch: batch.addr_dump(V4, bridge))
    assert isinstance(ours, wire.AddrMessage)
    assert isinstance(theirs, wire.AddrMessage)
    secondary = 0x01  # IFA_F_SECONDARY
    assert (ours.flags & secondary, ours.proto) == (0, 98)
    assert (theirs.flags & secondary, theirs.proto) == (secondary, 0)
    kernel.done(lambda batch: batch.addr_delete(bridge, "red-bri", V4, packed, 24))
    assert len(kernel.ask(lambda batch: batch.addr_dump(V4, bridge))) == 1
