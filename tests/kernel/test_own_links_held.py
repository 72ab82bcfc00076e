"""When nothing may be deleted, and when many go at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.agent import AgentProcess
from tests.support.foreign import LinkWatch, Untouched
from tests.support.netns import Namespace
from tests.support.own_links import agent_of, document, names, plan, tap, vpc, wait_equal, wrong
from tests.support.watch import blocking_until

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

STILL_S = 0.5


def several(count: int) -> list[dict[str, object]]:
    return [vpc(f"v{number}", number) for number in range(1, count + 1)]


def held(agent: AgentProcess, links: set[str], *words: str) -> None:
    """Exactly these are held back, each with all of the words."""
    try:
        agent.wait_status(
            "held back",
            lambda s: (
                {h["name"] for h in s["held_back"]} == links
                and all(word in h["reason"] for h in s["held_back"] for word in words)
            ),
        )
    except AssertionError as error:
        error.add_note(f"held back: {agent.status()['held_back']}")
        raise


def nothing_deleted(watch: LinkWatch) -> None:
    time.sleep(STILL_S)
    assert [event for event in watch.take() if not event.present] == []


def test_no_plan_no_delete(namespace: Namespace, tmp_path: Path) -> None:
    """An invalid plan from the start, a broken file later, a directory without a document."""
    namespace.ip_batch("link add old-bri type bridge\ntuntap add name old-tap mode tap\n")
    with agent_of(namespace, tmp_path) as agent, LinkWatch(namespace) as watch:
        agent.write_document("broken.json", '{"vpcs": [')
        plan(agent, *several(2), wait=False)
        agent.start()
        blocking_until(agent.control_path.exists, "control socket")
        agent.wait_status("the problem", lambda s: s["problems"])
        held(agent, {"old-bri", "old-tap"}, "no plan")
        nothing_deleted(watch)
        (agent.plan_dir / "broken.json").unlink()
        agent.wait_in_sync()
        wait_equal(namespace, document(*several(2)))
        watch.take()
        # Half of a plan, and the rest can't be read: the last good one stays.
        agent.write_document("broken.json", '{"vpcs": [')
        agent.wait_status("the problem", lambda s: s["problems"])
        plan(agent, vpc("v1", 1), wait=False)
        nothing_deleted(watch)
        assert wrong(namespace, document(*several(2))) == []
        (agent.plan_dir / "broken.json").unlink()
        wait_equal(namespace, document(vpc("v1", 1)))
        agent.stop()


@pytest.mark.parametrize("how", ["document", "no file", "at start"])
def test_an_empty_plan(namespace: Namespace, tmp_path: Path, how: str) -> None:
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, *several(2), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        with Untouched(namespace):
            if how == "at start":
                agent.stop()
            if how == "no file":
                (agent.plan_dir / "links.json").unlink()
            else:
                plan(agent, wait=False)
            if how == "at start":
                agent.start()
                blocking_until(agent.control_path.exists, "control socket")
                held(agent, names(wanted), "no plan")
            agent.wait_status("said", lambda s: any("empty" in p for p in s["problems"]))
            assert not agent.status()["ready"]
            time.sleep(STILL_S)
        agent.stop()


def test_an_empty_plan_where_that_is_allowed(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path, NETREEVE_ALLOW_EMPTY_PLAN="true") as agent:
        wanted = plan(agent, *several(3), tap("t"), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        wait_equal(namespace, plan(agent))
        agent.stop()


def test_the_brake(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path) as agent:
        entries = several(12)
        wanted = plan(agent, *entries, wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        with LinkWatch(namespace) as watch:
            # 18 of 24: more than half, more than 10. What is to be made is made all the same.
            less = plan(agent, *entries[:3], tap("new"))
            doomed = names(wanted) - names(less)
            wait_equal(namespace, less, keep=doomed)
            held(agent, doomed, "brake", "18 of")
            nothing_deleted(watch)
            # Repairs go on.
            namespace.ip("link set v1-vtp mtu 1300")
            namespace.ip("link set v1-vtp down")
            wait_equal(namespace, less, keep=doomed)
            # A restart releases nothing.
            agent.stop()
            agent.start().wait_in_sync()
            held(agent, doomed, "brake")
            nothing_deleted(watch)
        # A mended plan does: 10 of 25 may go.
        mended = plan(agent, *entries[:7], tap("new"))
        wait_equal(namespace, mended)
        agent.wait_status("nothing held back", lambda s: s["held_back"] == [])
        # Exactly 10, and all but one: few enough.
        last = plan(agent, *entries[:2], tap("new"))
        wait_equal(namespace, last)
        agent.stop()


def test_a_change_of_all_links_is_no_delete(namespace: Namespace, tmp_path: Path) -> None:
    """The brake is about links that nobody wants: VTEPs made anew with another port aren't."""
    with agent_of(namespace, tmp_path) as agent:
        wanted = plan(agent, *several(20), wait=False)
        agent.start().wait_in_sync()
        wait_equal(namespace, wanted)
        wanted = plan(agent, *(entry | {"vtep": {"local": "192.0.2.1", "port": 4790}}
                               for entry in several(20)))  # fmt: skip
        wait_equal(namespace, wanted)
        agent.stop()


# -- many at once ---------------------------------------------------------------------------------

MANY = 200


def make_many(agent: AgentProcess, count: int) -> list[dict[str, object]]:
    entries = several(count)
    wanted = plan(agent, *entries, wait=False)
    agent.start().wait_in_sync()
    wait_equal(agent.ns, wanted, 60.0)
    return entries


def one_by_one_s(count: int) -> float:
    """What `ip -batch` takes to delete a VPC, link by link: the mean of `count`."""
    with Namespace() as ns:
        ns.ip_batch(
            f"link add v{n}-bri up type bridge\n"
            f"link add v{n}-vtp up master v{n}-bri type vxlan id {n} dstport 4789 local 192.0.2.1"
            for n in range(count)
        )
        begun = time.monotonic()
        ns.ip_batch(f"link del v{n}-vtp\nlink del v{n}-bri" for n in range(count))
        return (time.monotonic() - begun) / count


def test_many_go_at_once(namespace: Namespace, tmp_path: Path) -> None:
    with agent_of(namespace, tmp_path, NETREEVE_DELETE_BRAKE="1") as agent:
        entries = make_many(agent, MANY)
        namespace.ip_batch(
            "link add foreign0 type bridge\nlink set foreign0 group 77\n"
            "link add foreign1 type ifb\nlink set v7-bri group 77\nlink set v8-vtp group 77\n"
        )
        with Untouched(namespace, names=["foreign0", "foreign1"]):
            begun = time.monotonic()
            left = plan(agent, entries[0])
            wait_equal(namespace, left, 60.0)
            taken_s = time.monotonic() - begun
        agent.stop()
    slow_s = (MANY - 1) * one_by_one_s(30)
    print(f"{MANY - 1} VPCs: {taken_s:.2f} s, one by one {slow_s:.2f} s")
    assert taken_s < 0.6 * slow_s


def test_a_stranger_in_the_group_of_a_bulk_delete(namespace: Namespace, tmp_path: Path) -> None:
    """Somebody puts a link of theirs into the one-shot group, right before it is deleted."""
    strangers = ["foreign0", "foreign1", "foreign2"]
    namespace.ip_batch(f"link add {name} type bridge" for name in strangers)
    with agent_of(namespace, tmp_path, NETREEVE_DELETE_BRAKE="1") as agent:
        entries = make_many(agent, 20)
        ours = names(document(*entries[1:]))
        with LinkWatch(namespace) as watch:
            left = plan(agent, entries[0], wait=False)
            assert watch.wait(1, 10.0, ours)
            agent.pause()
            shown = [link for link in namespace.links() if link["ifname"] in ours]
            groups = {link["group"] for link in shown} - {"default"}
            assert shown, "stopped too late"
            assert 1 <= len(groups) <= len(strangers)
            namespace.ip_batch(
                f"link set {name} group {group}"
                for name, group in zip(strangers, sorted(groups), strict=False)
            )
            watch.take()
            with Untouched(namespace, names=strangers):
                agent.resume()
                wait_equal(namespace, left, 30.0)
        agent.stop()
