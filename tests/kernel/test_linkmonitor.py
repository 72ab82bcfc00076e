"""The link monitor on a real kernel: renames, swaps, moves, rebuilds, overruns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
from collections.abc import AsyncIterator

import pytest

import netreeve
from netreeve import LinkAdded, LinkChanged, LinkRemoved
from netreeve.io.linkmonitor import LinkEvent, LinkMonitor
from tests.support import messages
from tests.support.netns import Namespace
from tests.support.watch import until

pytestmark = pytest.mark.kernel


class Watched:
    """A LinkMonitor of a namespace and what it has told so far."""

    def __init__(self, links: LinkMonitor) -> None:
        self.links = links
        self.events: list[LinkEvent] = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.links:
            self.events.append(event)

    def of(self, name: str) -> list[LinkEvent]:
        return [event for event in self.events if getattr(event, "name", None) == name]

    async def stop_reading(self) -> None:
        """As if the process were stopped; what was told before has been read."""
        await until(lambda: not self.links._queue, "all events read")
        self.links._feed.pause()

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    async def equals_kernel(self, ns: Namespace) -> None:
        """Waits until the view is the kernel's, then checks what was told against it."""
        seen = {}
        for _ in range(200):
            seen = {link.name: (link.ifindex, link.admin_up) for link in self.links}
            truth = {
                link["ifname"]: (link["ifindex"], "UP" in link["flags"]) for link in ns.links()
            }
            if seen == truth and self.links.in_sync:
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"the view {seen} is not the kernel's {truth}")
        await asyncio.sleep(0.02)
        told: dict[str, tuple[int, bool]] = {}
        for event in self.events:
            match event:
                case LinkAdded(name, ifindex, up):
                    assert name not in told, event
                    told[name] = (ifindex, up)
                case LinkChanged(name, ifindex, up):
                    assert told[name] == (ifindex, not up), event
                    told[name] = (ifindex, up)
                case LinkRemoved(name, ifindex):
                    assert told.pop(name)[0] == ifindex, event
        assert {name: i for name, (i, _) in told.items()} == {n: i for n, (i, _) in truth.items()}


@contextlib.asynccontextmanager
async def watching(ns: Namespace, **options: float) -> AsyncIterator[Watched]:
    async with LinkMonitor(netns=ns.path, **options) as links:  # type: ignore[arg-type]
        watched = Watched(links)
        await until(lambda: links.in_sync, "in sync")
        yield watched
        watched._task.cancel()


async def in_thread(work: object, *arguments: object) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work, *arguments)  # type: ignore[arg-type]


async def test_life_of_a_pod_link(namespace: Namespace) -> None:
    async with watching(namespace) as watched:
        namespace.ip("link add name cali1 type veth peer name eth0")
        namespace.ip_batch("link set eth0 up\nlink set cali1 up\n")
        await until(lambda: len(watched.of("cali1")) == 2, "added, up")
        index = namespace.ifindex("cali1")
        namespace.ip("link del cali1")
        await until(lambda: len(watched.of("cali1")) == 4, "down, removed")
        assert watched.of("cali1") == [
            LinkAdded("cali1", index, up=False),
            LinkChanged("cali1", index, up=True),
            LinkChanged("cali1", index, up=False),
            LinkRemoved("cali1", index),
        ]


async def test_what_is_there_at_the_start_comes_before_in_sync(namespace: Namespace) -> None:
    namespace.ip("link add name cali1 type bridge")
    async with watching(namespace) as watched:
        await until(lambda: watched.count(netreeve.InSync), "InSync")
        assert watched.events[-1] == netreeve.InSync(2)
        assert {event.name for event in watched.events[:-1]} == {"lo", "cali1"}  # type: ignore[union-attr]
        assert watched.links.by_name("cali1") == watched.links[namespace.ifindex("cali1")]
        assert len(watched.links) == 2


async def test_three_admin_flaps_in_one_batch(namespace: Namespace) -> None:
    namespace.ip("link add name cali1 up type bridge")
    async with watching(namespace) as watched:
        before = len(watched.of("cali1"))
        namespace.ip_batch("link set cali1 down\nlink set cali1 up\n" * 3)
        await until(lambda: len(watched.of("cali1")) >= before + 6, "six changes")
        index = namespace.ifindex("cali1")
        assert watched.of("cali1")[before:] == [
            LinkChanged("cali1", index, up=up) for up in (False, True) * 3
        ]


async def test_three_admin_flaps_of_a_veth_in_one_batch(namespace: Namespace) -> None:
    """Up to the last one linkwatch may not have come round: then the counters tell."""
    namespace.ip_batch(
        "link add name cali1 type veth peer name eth0\nlink set eth0 up\nlink set cali1 up\n"
    )
    async with watching(namespace) as watched:
        await until(lambda: watched.links.by_name("cali1").up, "up")  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        for _ in range(20):
            before = len(watched.of("cali1"))
            await in_thread(namespace.ip_batch, "link set cali1 down\nlink set cali1 up\n" * 3)
            await until(lambda b=before: len(watched.of("cali1")) >= b + 6, "six changes")  # type: ignore[misc]
            await asyncio.sleep(0.02)
            told = watched.of("cali1")[before:]
            assert [event.up for event in told] == [False, True] * 3  # type: ignore[union-attr]


async def test_carrier_flaps_that_the_kernel_merged_are_inferred(namespace: Namespace) -> None:
    namespace.ip_batch(
        "link add name cali1 type veth peer name eth0\nlink set eth0 up\nlink set cali1 up\n"
    )
    async with watching(namespace) as watched:
        await until(lambda: watched.links.by_name("cali1").up, "up")  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        before = len(watched.of("cali1"))
        namespace.ip_batch("link set eth0 down\nlink set eth0 up\n" * 5)
        await asyncio.sleep(1)
        told = watched.of("cali1")[before:]
        assert told
        assert [event.up for event in told] == [False, True] * (len(told) // 2)  # type: ignore[union-attr]
        downs = [event for event in told if isinstance(event, LinkChanged) and not event.up]
        assert sum(event.flaps or 1 for event in downs) == 5


async def test_a_veth_made_up_before_its_peer_is_never_told_up(namespace: Namespace) -> None:
    async with watching(namespace) as watched:
        for i in range(10):
            namespace.ip(f"link add name cali{i} up type veth peer name eth{i}")
        await asyncio.sleep(0.2)
        for i in range(10):
            assert watched.of(f"cali{i}") == [
                LinkAdded(f"cali{i}", namespace.ifindex(f"cali{i}"), up=False)
            ]


async def test_rename_into_and_out_of_a_name(namespace: Namespace) -> None:
    namespace.ip("link add name veth12345 up type bridge")
    index = namespace.ifindex("veth12345")
    async with watching(namespace) as watched:
        namespace.ip("link set veth12345 name cali1")
        namespace.ip("link set cali1 name foo0")
        await until(lambda: watched.of("foo0"), "renamed twice")
        up = watched.links[index].up
        names = [e for e in watched.events if getattr(e, "ifindex", None) == index]
        assert names[-5:] == [
            LinkAdded("veth12345", index, up=up),
            LinkRemoved("veth12345", index),
            LinkAdded("cali1", index, up=up),
            LinkRemoved("cali1", index),
            LinkAdded("foo0", index, up=up),
        ]


async def test_port_of_a_bridge_that_is_released_is_not_gone(namespace: Namespace) -> None:
    namespace.ip_batch(
        "link add name cali1 type veth peer name eth0\nlink set eth0 up\nlink set cali1 up\n"
        "link add name br0 up type bridge\n"
    )
    async with watching(namespace) as watched:
        await until(lambda: watched.links.by_name("cali1").up, "up")  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        before = len(watched.of("cali1"))
        for _ in range(5):
            namespace.ip("link set cali1 master br0")
            namespace.ip("link set cali1 nomaster")
        await asyncio.sleep(0.1)
        assert watched.of("cali1")[before:] == []
        assert watched.links.by_name("cali1").controller == 0  # type: ignore[union-attr]


async def test_moved_to_another_namespace_and_back_with_its_old_ifindex(
    namespace: Namespace,
) -> None:
    with Namespace() as other:
        namespace.ip("link add name cali1 index 500 type veth peer name eth0")
        async with watching(namespace) as watched:
            for _ in range(20):
                namespace.ip(f"link set cali1 netns {other.name} name eth7")
                other.ip(f"link set eth7 netns {namespace.name} name cali1")
            await watched.equals_kernel(namespace)
            assert watched.links[500].name == "cali1"
            assert [type(event) for event in watched.of("cali1")] == (
                [LinkAdded] + [LinkRemoved, LinkAdded] * 20
            )
            # It arrives under the name it had there, and is renamed in the same request.
            assert [type(event) for event in watched.of("eth7")] == [LinkAdded, LinkRemoved] * 20


async def test_two_links_swap_names(namespace: Namespace) -> None:
    namespace.ip("link add name a type bridge")
    namespace.ip("link add name b type bridge")
    swap = "link set dev a name t\nlink set dev b name a\nlink set dev t name b\n"
    async with watching(namespace) as watched:
        await watched.stop_reading()
        await in_thread(namespace.ip_batch, swap * 51)
        watched.links._feed.resume()
        await watched.equals_kernel(namespace)


@pytest.mark.parametrize("rcvbuf_bytes", [4608, 60_000, 8_388_608])
async def test_churn_with_any_receive_buffer(namespace: Namespace, rcvbuf_bytes: int) -> None:
    """Overruns, rebuilds under one name, renames: the view ends as the kernel's, told properly."""
    rng = random.Random(rcvbuf_bytes)

    def churn() -> None:
        for _ in range(60):
            names = [f"cali{i}" for i in rng.sample(range(12), 4)]
            present = {link["ifname"] for link in namespace.links()}
            lines = []
            for name in names:
                if name in present:
                    choice = rng.randrange(3)
                    if choice == 0:
                        lines.append(f"link del {name}")
                    elif choice == 1:
                        lines.append(f"link set {name} up\nlink set {name} down")
                    else:
                        lines.append(f"link del {name}\nlink add name {name} type bridge")
                else:
                    lines.append(f"link add name {name} type bridge\nlink set {name} up")
            namespace.ip_batch("\n".join(lines) + "\n")

    async with watching(namespace, rcvbuf_bytes=rcvbuf_bytes) as watched:
        await in_thread(churn)
        await watched.equals_kernel(namespace)
        assert watched.links._feed.reader.faults == 0
        if rcvbuf_bytes == 4608:
            assert watched.count(netreeve.Overrun) > 0


async def test_rebuilt_a_hundred_times_while_nobody_reads(namespace: Namespace) -> None:
    namespace.ip("link add name cali1 type bridge")
    async with watching(namespace) as watched:
        for round_ in range(10):
            await watched.stop_reading()
            await in_thread(
                namespace.ip_batch, "link del cali1\nlink add name cali1 type bridge\n" * 10
            )
            if round_ % 2:
                await asyncio.sleep(0.05)
            watched.links._feed.resume()
        await watched.equals_kernel(namespace)


async def test_overrun_while_stopped_then_the_view_is_right(namespace: Namespace) -> None:
    async with watching(namespace, rcvbuf_bytes=20_000) as watched:
        await watched.stop_reading()
        await in_thread(
            namespace.ip_batch,
            "".join(f"link add name v{i} type veth peer name w{i}\n" for i in range(150))
            + "".join(f"link del v{i}\n" for i in range(20)),
        )
        watched.links._feed.resume()
        await watched.equals_kernel(namespace)
        assert watched.count(netreeve.Overrun) > 0
        assert len(watched.links) == 261


async def test_a_slow_reader_costs_an_overrun_not_memory(namespace: Namespace) -> None:
    namespace.ip("link add name a up type bridge")
    async with LinkMonitor(netns=namespace.path, queue_events=10, rcvbuf_bytes=4608) as links:
        await until(lambda: links.in_sync, "in sync")
        await in_thread(namespace.ip_batch, "link set dev a down\nlink set dev a up\n" * 500)
        await asyncio.sleep(0.1)
        assert len(links._queue) < 300
        seen: list[LinkEvent] = []
        async for event in links:
            seen.append(event)
            lost = any(isinstance(e, netreeve.Overrun) for e in seen)
            if lost and isinstance(event, netreeve.InSync) and links.in_sync and not links._queue:
                break


async def test_a_socket_that_breaks_is_opened_anew(namespace: Namespace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    async with watching(namespace) as watched:
        feed = watched.links._feed
        for _ in range(5):
            resyncs = feed.sync.resyncs
            # The descriptor now is another kind of socket: reading fails, as it would with EBADF.
            assert feed._socket is not None
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as wrong:
                os.dup2(wrong.fileno(), feed._socket.fd)
            feed._readable()
            namespace.ip(f"link add name r{resyncs} type bridge")
            await until(lambda r=resyncs: feed.sync.resyncs > r, "resynced")  # type: ignore[misc]
        await watched.equals_kernel(namespace)
        assert feed.reopened == 5
    assert len(os.listdir("/proc/self/fd")) <= before


def spoof(ns: Namespace, port: int, datagram: bytes) -> None:
    with ns.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sender:
        sender.bind((0, 0))
        with contextlib.suppress(ConnectionRefusedError):
            sender.sendto(datagram, (port, 0))
        sender.sendto(datagram, (0, 1))  # to the group


async def test_messages_of_other_processes_are_not_the_kernels(namespace: Namespace) -> None:
    async with watching(namespace) as watched:
        feed = watched.links._feed
        assert feed._socket is not None
        port = feed._socket._socket.getsockname()[0]
        spoof(namespace, port, messages.link(4711, "evil", up=True))
        spoof(namespace, port, b"rubbish")
        namespace.ip("link add name real type bridge")
        await until(lambda: watched.of("real"), "a real link")
        assert 4711 not in watched.links
        assert feed.reader.spoofed >= 2
        assert feed.reader.faults == 0
        assert watched.count(netreeve.Overrun) == 0


async def test_a_link_with_hundreds_of_altnames_hides_nobody(namespace: Namespace) -> None:
    """Its message has 67 KB: a dump without IFLA_EXT_MASK ends before it, and says that's all."""
    namespace.ip("link add name big up type bridge")
    for start in range(0, 490, 70):
        names = [f"altname{i:03}-".ljust(127, "x") for i in range(start, start + 70)]
        namespace.ip("link property add dev big " + " ".join(f"altname {n}" for n in names))
    namespace.ip("link add name after type bridge")
    async with watching(namespace) as watched:
        namespace.ip_batch("link set big down\nlink set big up\n")
        await watched.equals_kernel(namespace)
        assert watched.links.by_name("after") is not None
        assert watched.links._feed.reader.truncated == 0
        await until(lambda: len(watched.of("big")) >= 3, "flap of the big one")


async def test_names_that_are_no_text(namespace: Namespace) -> None:
    names = ["cali\udcff\udcfe1", "cali\x1b[31m", 'a"b', "cali;rm"]
    for name in names:
        command = ["ip", "-n", namespace.name, "link", "add", "name", name, "type", "bridge"]
        raw = [word.encode("utf-8", "surrogateescape") for word in command]
        await in_thread(subprocess.check_call, raw)
    async with watching(namespace) as watched:
        assert {link.name for link in watched.links} == {"lo", *names}
        for name in names:
            assert watched.links.by_name(name) is not None


async def test_an_ambiguous_name_is_resolved_by_asking(namespace: Namespace) -> None:
    """A record that no event will ever correct, as after a loss nobody noticed."""
    namespace.ip("link add name cali1 type bridge")
    async with watching(namespace) as watched:
        feed = watched.links._feed
        index = namespace.ifindex("cali1")
        feed.table.observe(messages.link(9999, "cali1", up=True))
        feed._tell()
        feed.sync.drained(True, False, asyncio.get_running_loop().time())
        feed._wake.set()
        assert feed.table.ambiguous == {"cali1": tuple(sorted((index, 9999)))}
        await until(lambda: not feed.table.ambiguous, "settled")
        assert watched.links.by_name("cali1").ifindex == index  # type: ignore[union-attr]
        assert feed.sync.ambiguous_total == 1
        await watched.equals_kernel(namespace)
