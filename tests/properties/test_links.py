"""Own links against an enemy: random links of others, plans, meddling, and deaths of the agent.

At rest everything of ours is as planned that can be, a second pass has nothing to do, and what is
others' is what it was, attribute for attribute. On the way no request hits a link of others (the
fake kernel sees to that).
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netreeve.model.prefix import LinkAddress
from netreeve.plan.model import Tap, Vpc
from netreeve.reconcile.decision import OwnershipMode
from tests.support.fake_links import PROTOCOL, FakeLinks, LinkDetails, Refused
from tests.support.link_world import World, token, vpc

MANAGERS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("flannel.1", "vxlan", {"vni": 1, "port": 8472}),
    ("cni0", "bridge", {}),
    ("docker0", "bridge", {}),
    ("vxlan.calico", "vxlan", {"vni": 2, "port": 4789}),
    ("kube-ipvs0", "dummy", {}),
    ("virbr0", "bridge", {}),
    ("tunl0", "ipip", {}),
    ("cilium_vxlan", "vxlan", {"vni": 0, "port": 8472}),
    ("antrea-gw0", "openvswitch", {}),
    ("wg0", "wireguard", {}),
    ("br0", "bridge", {}),
    ("mgmt-vrf0", "vrf", {"table": 2}),
    # near our scheme, or with our suffix on a wrong kind
    ("-vrf", "vrf", {"table": 1001}),
    ("xred-bri0", "bridge", {}),
    ("store-vrf", "bridge", {}),
    ("red-bri", "veth", {}),
    ("blue-vtp", "bridge", {}),
    ("eth0-tap", "tun", {"tap": False}),
    ("green-bri", "vrf", {"table": 3}),
)
NAMES = ("red", "blue", "green")
PLANNED = ("red-vrf", "blue-bri", "green-vtp", "eth1-tap")
FOREIGN = tuple(name for name, _, _ in MANAGERS)


class History:
    """Each method is one thing that happens; its number picks the particulars."""

    def __init__(self, seed: int) -> None:
        kernel = FakeLinks(echo=seed % 2 == 0)
        mode: OwnershipMode = "token" if seed % 5 == 4 else "name"
        self.world = World(kernel, mode, seed=seed)
        self.guests = 0

    @property
    def kernel(self) -> FakeLinks:
        return self.world.kernel

    def plan_changed(self, n: int) -> None:
        dice = random.Random(n)
        vnis = dice.sample(range(1, 5), 3)
        tables = dice.sample(range(1001, 1005), 3)
        entries: list[Vpc | Tap] = []
        for index, name in enumerate(NAMES):
            if dice.random() < 0.75:
                addresses = dice.sample(("10.1.0.1/24", "10.1.0.2/24", "fd00::1/64"), index)
                entries.append(
                    vpc(
                        name,
                        vnis[index],
                        tables[index] if dice.random() < 0.7 else None,
                        *addresses,
                        ttl=dice.choice((64, 3)),
                        mtu=dice.choice((None, 1450)),
                        vlan_filtering=dice.choice((None, True)),
                    )
                )
        bridges = [f"{entry.name}-bri" for entry in entries]
        for name in ("eth0", "eth1"):
            if dice.random() < 0.7:
                controller = dice.choice((None, "br0", *bridges))
                entries.append(Tap(name, dice.choice((None, 1400)), controller))
        self.world.plan(*entries)

    # -- others, with links of their own --

    def manager_came(self, n: int) -> None:
        name, kind, more = MANAGERS[n % len(MANAGERS)]
        try:
            self.kernel.add(name, kind, **more)
        except Refused:
            return

    def manager_left(self, n: int) -> None:
        link = self._foreign(n)
        if link is not None:
            self.kernel.delete(link.name)

    def altname_taken(self, n: int) -> None:
        link = self._foreign(n)
        if link is not None:
            self.kernel.altname(link.name, PLANNED[n % len(PLANNED)])

    def guest_came(self, n: int) -> None:
        """A port of others in our bridge, or a macvlan on it; or a link with our ifindex."""
        ours = self._ours(n)
        if ours is not None:
            self.guests += 1
            if n % 2:
                self.kernel.add(f"cali{self.guests}", "veth", controller=ours.ifindex)
            else:
                self.kernel.add(f"mac{self.guests}", "macvlan", lower=ours.ifindex)

    def moved_in(self, n: int) -> None:
        """Ours is deleted, and a stranger comes with its ifindex from another namespace."""
        ours = self._ours(n)
        if ours is not None and not self._has_guests(ours):
            self.guests += 1
            self.kernel.delete(ours.name)
            self.kernel.add(f"in{self.guests}", "veth", ours.ifindex)

    # -- others, with links of ours --

    def ours_deleted(self, n: int) -> None:
        ours = self._ours(n)
        if ours is not None and not self._has_guests(ours):
            self.kernel.delete(ours.name)

    def ours_changed(self, n: int) -> None:
        ours = self._ours(n)
        if ours is None:
            return
        change = n % 5
        if change == 0:
            self.kernel.change(ours.name, mtu=1234)
        elif change == 1:
            self.kernel.change(ours.name, admin_up=False)
        elif change == 2:
            self.kernel.change(ours.name, controller=0)
        elif change == 3:
            self.kernel.change(ours.name, altnames=())
        elif ours.kind == "bridge":
            held = self.kernel.addresses.setdefault(ours.ifindex, {})
            held.pop(LinkAddress.parse("10.1.0.1/24"), None)
            held[LinkAddress.parse("10.9.9.9/24")] = 0
            self.world.engine.address_touched(ours.ifindex)

    def ours_stolen(self, n: int) -> None:
        ours, bridge = self._ours(n), self.kernel.by_name("docker0")
        if ours is not None and bridge is not None and bridge.kind == "bridge":
            self.kernel.change(ours.name, controller=bridge.ifindex)

    def ours_renamed(self, n: int) -> None:
        ours = self._ours(n)
        name = ("mine", "pink-bri", "pink-vtp")[n % 3]
        if ours is not None and self.kernel.by_name(name) is None:
            self.kernel.change(ours.name, name=name)

    def ours_made_by_hand(self, n: int) -> None:
        kind, suffix = (("bridge", "bri"), ("vxlan", "vtp"), ("vrf", "vrf"), ("tun", "tap"))[n % 4]
        more: dict[str, object] = {}
        if kind == "vxlan":
            more = {"vni": n % 5, "port": 4789}
        elif kind == "vrf":
            more = {"table": 1001 + n % 4}
        try:
            self.kernel.add(f"{(*NAMES, 'old')[n // 4 % 4]}-{suffix}", kind, **more)
        except Refused:
            return

    # -- the agent --

    def batches(self, n: int) -> None:
        for _ in range(1 + n % 3):
            self.world.step(limit=1 + n % 7)

    def killed(self, n: int) -> None:
        """kill -9 between any two requests: what was sent is done, no answer comes."""
        self.world.tell()
        steps = self.world.engine.collect(self.world.now, 128)
        for each in steps[: n % (len(steps) + 1)]:
            self.kernel.do(each)
        self.world.restart()

    def overrun(self, n: int) -> None:
        self.kernel.events.clear()
        self.world.engine.overrun()

    def rested(self, n: int) -> None:
        self.world.now += n % 60
        self.world.run(batches=60, timers=True)

    # -- helpers --

    def _pick(self, links: list[LinkDetails], n: int) -> LinkDetails | None:
        return links[n % len(links)] if links else None

    def _ours(self, n: int) -> LinkDetails | None:
        return self._pick(list(self.kernel.ours().values()), n)

    def _foreign(self, n: int) -> LinkDetails | None:
        links = [link for link, _ in self.kernel.foreign().values() if link.name in FOREIGN]
        return self._pick(links, n)

    def _has_guests(self, ours: LinkDetails) -> bool:
        return any(
            ours.ifindex in (link.controller, link.lower)
            for link in self.kernel.links.values()
            if not self.kernel.is_ours(link)
        )


EVENTS = sorted(name for name in vars(History) if not name.startswith("_") and name != "kernel")


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(0, 2**16),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 2**16)), min_size=3, max_size=60),
)
def test_ours_become_as_planned_and_others_stay(seed: int, events: list[tuple[str, int]]) -> None:
    history = History(seed)
    history.plan_changed(seed)
    for name, n in events:
        getattr(history, name)(n)
    _check_rest(history)


def _check_rest(history: History) -> None:
    world, kernel = history.world, history.kernel
    world.run(batches=150, timers=True)
    foreign = _foreign(kernel)
    world.engine.release_brake()
    world.now += 200
    world.engine.resync()
    world.run(batches=150, timers=True)
    world.settled()
    assert _foreign(kernel) == foreign
    assert not any(
        token("") in name for link, _ in kernel.foreign().values() for name in link.altnames
    )
    for spec in world.wanted:
        _check_planned(world, spec.name)
    planned = {spec.name for spec in world.wanted}
    for name in kernel.ours().keys() - planned:
        assert world.states([name])[name] in ("blocked", "unproven"), name
    allowed = {"in_sync", "pending", "conflict", "blocked", "unproven"}
    assert set(world.states().values()) <= allowed, world.states()
    assert not world.engine.changes() or {"pending", "conflict"} & set(world.states().values())


def _foreign(kernel: FakeLinks) -> dict[int, object]:
    """All that is others', but for our tokens on what was ours before it was renamed."""
    return {
        index: (
            replace(link, altnames=tuple(n for n in link.altnames if not n.startswith(token("")))),
            addresses,
        )
        for index, (link, addresses) in kernel.foreign().items()
    }


def _check_planned(world: World, name: str) -> None:
    """In sync means that it is; everything else has a cause that can be seen."""
    kernel, engine = world.kernel, world.engine
    (spec,) = (spec for spec in world.wanted if spec.name == name)
    state, link = world.states([name])[name], kernel.by_name(name)
    status = engine.status(name)
    assert status is not None
    if state == "in_sync":
        assert link is not None
        assert kernel.is_ours(link)
        assert link.name == name
        assert token(name) in link.altnames
        assert link.admin_up
        for key, value in spec.properties:
            assert getattr(link, key) == value
        assert spec.mtu in (None, link.mtu)
        if spec.controller is not None:
            assert link.controller == kernel[spec.controller].ifindex
        held = kernel.addresses.get(link.ifindex, {})
        assert set(spec.addresses) <= set(held)
        assert {each for each, proto in held.items() if proto == PROTOCOL} <= set(spec.addresses)
    elif state == "conflict":
        assert status.holder is not None
        holder = kernel[status.holder]
        assert not kernel.is_ours(holder), holder
    elif state == "unproven":
        assert world.mode == "token"
        assert link is not None
        assert token(name) not in link.altnames
    elif state == "blocked":
        assert link is not None
        assert status.holder is not None
        assert link.ifindex in (kernel[status.holder].controller, kernel[status.holder].lower)
    else:
        assert status.reason is not None
        assert status.reason.startswith("waits"), status
