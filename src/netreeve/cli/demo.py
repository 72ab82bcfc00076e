"""`netreeve demo`: the agent at work in a network namespace of its own, told as a story.

Nothing is staged: the agent is `netreeve run` in a process of its own, the links are real ones, and
what the story says was looked up in the kernel or in the agent's status log. Whatever is not as
told ends the command.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from netreeve.cli import terminal
from netreeve.errors import NetreeveError

if TYPE_CHECKING:
    from netreeve.demo.node import Node
    from netreeve.demo.rtnetlink import RouteEvent
    from netreeve.model.prefix import Prefix
    from netreeve.status.transition import Transition

HELP = "show the agent at work in a private network namespace, then remove everything"

EPILOG = """\
Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN; exit code 77 without them), nothing else. Links and
routes of this host are not touched. Exit code 1: something was not as it should be.

example:
  netreeve demo
"""

PODS = 20
WAIT_S = 8.0  # for what takes milliseconds, the start of the agent a second
MAIN_TABLE, METRIC = 254, 1024  # the agent's defaults
RTPROT_STATIC = 4  # <linux/rtnetlink.h>
MAX_ROWS = 6  # of the status log at a time; more are cut in the middle
POLL_S = 0.002
REASON_CHARS = 28  # a longer one gets a line of its own

COLOURS: dict[str, terminal.Colour] = {"up": "green", "down": "yellow", "error": "red"}


def configure(parser: argparse.ArgumentParser) -> None:
    """There is nothing to choose."""


def run(args: argparse.Namespace) -> int:
    from netreeve.demo.node import Node

    began_s = time.monotonic()
    screen = terminal.of(sys.stdout, os.environ)
    with Node() as node:
        story = Story(node, screen)
        for chapter in (
            story.begin,
            story.pods_start,
            story.pod_is_rebuilt,
            story.pod_is_rebuilt_while_the_agent_is_stopped,
            story.link_flaps,
            story.routes_are_deleted,
            story.foreign_route,
            story.address_moves,
            story.agent_ends,
        ):
            chapter()
        path = node.directory
    print()
    story.expect(not path.exists(), "the namespace and all files of the demo are gone again")
    print(f"       {time.monotonic() - began_s:.1f} s in all")
    return 0


class Story:
    """The chapters, to be told in order; each leaves all endpoints up.

    A chapter raises NetreeveError with the sentence that turned out not to be so.
    """

    def __init__(self, node: Node, screen: terminal.Terminal) -> None:
        self._node = node
        self._screen = screen
        self._number = 0
        self._transitions: list[Transition] = []  # all that were shown
        self._events: list[RouteEvent] = []  # of this chapter
        self._addresses = {n: _addresses(n) for n in range(1, PODS + 1)}

    # -- the chapters

    def begin(self) -> None:
        node = self._node
        print(self._screen.paint("netreeve demo", "bold"), end=": ")
        print(f"one agent, {PODS} endpoints, a network namespace of its own.")
        print("Lines that begin with a number are the agent's status log.")
        self._chapter(f"A plan with {PODS} endpoints; none of their links is there yet")
        self._write_plan()
        began_s = time.monotonic()
        node.start()
        rows = self._await_log({n: ["down"] for n in self._addresses})
        self._await(lambda: self._status("ready"), "the agent is ready")
        self._tell(f"ready {_ms_since(began_s)} after the start of the process")
        self.expect(
            all(each.reason == "link-absent" for each in rows),
            f"{PODS} endpoints are down, because their links are absent",
        )

    def pods_start(self) -> None:
        self._chapter(f"{PODS} pods start, each with a veth pair")
        began_s = time.monotonic()
        for n in self._addresses:
            self._make_pod(n)
        self._tell(f"the last link was set up after {_ms_since(began_s)}")
        self._await_log({n: ["up"] for n in self._addresses})
        self._tell(f"the last endpoint was up, and logged, after {_ms_since(began_s)}")
        self._expect_routes(self._addresses)

    def pod_is_rebuilt(self) -> None:
        self._chapter("web-3 is rebuilt: its link goes, another one gets the same name")
        old, new = self._ifindex(3), self._rebuild(3)
        rows = self._await_log({3: ["down", "up"]})
        self.expect(
            old != new == rows[-1].ifindex,
            f"it was seen going down and up: cali3 was ifindex {old}, now it is {new}",
        )
        self._expect_routes([3])

    def pod_is_rebuilt_while_the_agent_is_stopped(self) -> None:
        self._chapter("web-3 is rebuilt three times while the agent is stopped (SIGSTOP)")
        agent = self._node.agent
        agent.pause()
        indexes = [self._rebuild(3) for _ in range(3)]
        agent.signal(signal.SIGCONT)
        began_s = time.monotonic()
        rows = self._await_log({3: ["down", "up"] * 3})
        self._tell(f"logged {_ms_since(began_s)} after SIGCONT")
        self.expect(
            [each.ifindex for each in rows if each.status == "up"] == indexes,
            "each of the three links was seen, in order",
        )
        self._expect_routes([3])

    def link_flaps(self) -> None:
        from netreeve.demo.rtnetlink import Request

        self._chapter("The link of web-7 is set down and up three times in one batch")
        flap = [Request.admin("cali7", up=up) for up in (False, True)]
        self._node.kernel.change(*flap * 3)
        rows = self._await_log({7: ["down", "up"] * 3})
        self.expect(len(rows) == 6, "six transitions in order, none merged")
        self._expect_routes([7])

    def routes_are_deleted(self) -> None:
        self._chapter("Somebody deletes routes behind the agent's back")
        one = self._addresses[9][0]
        every = [prefix for prefixes in self._addresses.values() for prefix in prefixes]
        for prefixes, what in (
            ([one], f"the route to {one}"),
            (every, f"all {len(every)} (`ip route flush proto 98`)"),
        ):
            deleted_s = self._delete_routes(prefixes)
            back_s = self._await_made(prefixes, f"put back: {what}")
            self._tell(f"put back within {_ms(back_s - deleted_s)}: {what}")
        self._expect_routes(self._addresses)
        self._expect_silence()

    def foreign_route(self) -> None:
        self._chapter("Somebody replaces the route of web-5 by a static one over another link")
        kernel = self._node.kernel
        key = (*self._addresses[5][0], MAIN_TABLE, 0, METRIC, RTPROT_STATIC, self._ifindex(6))
        kernel.change_routes(lambda batch: batch.route_replace(*key))
        before = kernel.routes(RTPROT_STATIC)
        rows = self._await_log({5: ["error"]})
        self.expect("static (4)" in (rows[-1].reason or ""), "the endpoint is in error, and why")
        resyncs = self._status("resyncs")
        self._node.agent.signal(signal.SIGHUP)  # what comes by itself every 90 seconds
        self._await(lambda: self._status("resyncs") > resyncs, "everything is compared")
        self.expect(
            len(before) == 1 and kernel.routes(RTPROT_STATIC) == before,
            "the foreign route is untouched, after a full comparison (SIGHUP) too",
        )
        kernel.change_routes(lambda batch: batch.route_delete(*key))
        began_s = time.monotonic()
        self._await_log({5: ["up"]})
        self._tell(f"logged {_ms_since(began_s)} after the foreign route's owner had removed it")
        self._expect_routes([5])

    def address_moves(self) -> None:
        moving = self._addresses[1].pop(0)
        self._addresses[2].append(moving)
        self._chapter(f"The plan changes: {moving} moves from web-1 to web-2")
        self._write_plan()
        began_s = time.monotonic()
        moved_s = self._await_made([moving], "the route moved")
        self._tell(f"moved {_ms(moved_s - began_s)} after the document was written")
        self.expect(
            [(each.prefix, each.deleted) for each in self._events] == [(moving, False)],
            "one replace, so that it was never without a route",
        )
        self._expect_routes([2])
        self._expect_silence()

    def agent_ends(self) -> None:
        self._chapter("The agent is told to end (SIGTERM)")
        agent = self._node.agent
        began_s = time.monotonic()
        agent.signal(signal.SIGTERM)
        code = agent.wait(WAIT_S)
        self.expect(code == 0, f"it ended after {_ms_since(began_s)}, exit code {code}")
        self._expect_routes([])
        self._expect_silence()
        self.expect(
            [each.seq for each in self._transitions] == [*range(1, len(self._transitions) + 1)],
            f"the log goes from 1 to {len(self._transitions)} without a gap",
        )

    # -- telling

    def expect(self, is_so: bool, sentence: str) -> None:
        """Says the sentence if it is so; otherwise the story ends with it."""
        if not is_so:
            raise self._untrue(sentence)
        print(f"   {self._screen.paint('ok', 'green')}  {sentence}", flush=True)

    def _untrue(self, sentence: str) -> NetreeveError:
        self._node.agent.check_alive()
        return NetreeveError(f"in chapter {self._number}, this is not so: {sentence}")

    def _chapter(self, title: str) -> None:
        self._number += 1
        self._node.watch.take()
        self._events.clear()
        print(f"\n{self._screen.paint(f'{self._number}. {title}', 'bold')}", flush=True)

    def _tell(self, sentence: str) -> None:
        print(f"       {sentence}", flush=True)

    def _show(self, rows: list[Transition]) -> None:
        left_out = len(rows) - MAX_ROWS
        for i, each in enumerate(rows):
            if left_out <= 0 or i < MAX_ROWS // 2 or i >= len(rows) - MAX_ROWS // 2:
                self._show_row(each)
            elif i == MAX_ROWS // 2:
                print(self._screen.paint(f"       … {left_out} more like these", "dim"))

    def _show_row(self, each: Transition) -> None:
        link = each.link if each.ifindex is None else f"{each.link} ({each.ifindex})"
        why = [each.reason] if each.reason else []
        why += [f"routes {each.routes}"] if each.routes else []
        why += ["inferred"] if each.inferred else []
        row = f"{each.seq:>6} {each.endpoint:<25} "
        row += self._screen.paint(
            f"{each.previous or '-':>5} → {each.status:<5}", COLOURS.get(each.status)
        )
        row += f"  {link:<12}  "
        reason = ", ".join(why)
        if len(reason) > REASON_CHARS:
            print(f"{row.rstrip()}\n{'':7}{reason}")
        else:
            print(f"{row}{reason}".rstrip())

    # -- looking

    def _await(self, is_so: Callable[[], Any], sentence: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            self._node.agent.check_alive()
            if time.monotonic() > deadline_s:
                raise self._untrue(f"{sentence} (within {WAIT_S:g} s)")
            time.sleep(POLL_S)

    def _await_log(self, statuses: Mapping[int, list[str]]) -> list[Transition]:
        """Waits until these pods have had these statuses, one after the other, shows and returns
        the log. A transition of any other pod, and one too many, is not as told."""
        want = {_id(n): expected for n, expected in statuses.items()}
        rows: list[Transition] = []

        def complete() -> bool:
            rows.extend(self._node.log.read())
            return len(rows) >= sum(map(len, want.values()))

        try:
            self._await(complete, "the status log has all that is expected")
        finally:
            self._show(rows)
            self._transitions += rows
        got: dict[str, list[str]] = {}
        for each in rows:
            got.setdefault(each.endpoint, []).append(each.status)
        for endpoint in sorted(want.keys() | got.keys()):
            if got.get(endpoint) != want.get(endpoint):
                expected = ", ".join(want.get(endpoint, ["nothing"]))
                raise self._untrue(f"the log of {endpoint} is {expected}")
        return rows

    def _expect_silence(self) -> None:
        rows = self._node.log.read()
        self._show(rows)
        self.expect(not rows, "no endpoint's status changed")

    def _await_made(self, prefixes: Iterable[Prefix], sentence: str) -> float:
        """When the last of these routes was made, from now on; monotonic seconds."""
        missing = set(prefixes)
        deadline_s = time.monotonic() + WAIT_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._node.watch.wait(left_s)
            for event in self._take_events():
                if not event.deleted:
                    missing.discard(event.prefix)
                if not missing:
                    return event.at_s
        raise self._untrue(f"{sentence} (within {WAIT_S:g} s)")

    def _take_events(self) -> list[RouteEvent]:
        events = self._node.watch.take()
        self._events += events
        return events

    def _expect_routes(self, touched: Collection[int]) -> None:
        """All routes are there, each on its pod's link, and nothing happened in this chapter to
        those of other pods than `touched`."""
        from netreeve.demo.node import PROTOCOL
        from netreeve.demo.rtnetlink import prefix_of

        want = {
            prefix: self._ifindex(n)
            for n, prefixes in self._addresses.items()
            for prefix in prefixes
        }
        routes = self._node.kernel.routes(PROTOCOL)
        self._take_events()
        spared = self._addresses.keys() - touched
        happened = {event.prefix for event in self._events}
        sentence = f"{len(want)} routes are in the kernel, each on its pod's link"
        self.expect({prefix_of(each): each.oif for each in routes} == want, sentence)
        if spared:
            of_whom = f"{len(spared)} others" if touched else f"all {PODS}"
            self.expect(
                all(happened.isdisjoint(self._addresses[n]) for n in spared),
                f"nothing happened to the routes of {of_whom}",
            )

    def _status(self, member: str) -> Any:
        return (self._node.agent.status() or {}).get(member)

    def _ifindex(self, n: int) -> int:
        return self._node.kernel.link(f"cali{n}").ifindex

    # -- acting

    def _write_plan(self) -> None:
        self._node.plan(
            [
                {
                    "id": _id(n),
                    "interface": f"cali{n}",
                    "addresses": [str(prefix) for prefix in prefixes],
                }
                for n, prefixes in self._addresses.items()
            ]
        )

    def _make_pod(self, n: int) -> None:
        from netreeve.demo.rtnetlink import Request

        host, pod = f"cali{n}", f"pod{n}"
        self._node.kernel.change(
            Request.veth(host, pod), Request.admin(pod, up=True), Request.admin(host, up=True)
        )

    def _rebuild(self, n: int) -> int:
        """Another link under the same name; its ifindex. Returns when it has a carrier."""
        from netreeve.demo.rtnetlink import Request

        self._node.kernel.change(Request.delete(f"cali{n}"))
        self._make_pod(n)
        self._await(lambda: self._node.kernel.is_up(f"cali{n}"), f"cali{n} has a carrier")
        return self._ifindex(n)

    def _delete_routes(self, prefixes: Iterable[Prefix]) -> float:
        """As a person would; returns when it was done, in monotonic seconds."""
        from netreeve.demo.node import PROTOCOL

        pods = {prefix: n for n, all_of_n in self._addresses.items() for prefix in all_of_n}
        keys = [
            (*prefix, MAIN_TABLE, 0, METRIC, PROTOCOL, self._ifindex(pods[prefix]))
            for prefix in prefixes
        ]
        self._node.kernel.change_routes(lambda batch: [batch.route_delete(*key) for key in keys])
        return time.monotonic()


def _id(n: int) -> str:
    return f"k8s/default%2Fweb-{n}/eth0"


def _addresses(n: int) -> list[Prefix]:
    """IPv4, and IPv6 unless the kernel was started without it."""
    from netreeve.model.prefix import Prefix

    texts = [f"10.65.0.{n}"] + [f"fd00:65::{n:x}"] * os.path.exists("/proc/sys/net/ipv6")
    return [Prefix.parse(text) for text in texts]


def _ms(span_s: float) -> str:
    return f"{span_s:.1f} s" if span_s >= 1 else f"{span_s * 1000:.0f} ms"


def _ms_since(began_s: float) -> str:
    return _ms(time.monotonic() - began_s)
