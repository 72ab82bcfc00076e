"""The file sink on a real directory: what a reader sees, whatever fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis
import pytest
from hypothesis import strategies as st

from netreeve import sinks
from netreeve.errors import SinkError
from netreeve.model.ids import EndpointId
from netreeve.model.prefix import Prefix
from netreeve.plan.model import Endpoint
from netreeve.sinks import files
from netreeve.sinks.files import FilesSink, Planned
from netreeve.sinks.sink import Node
from netreeve.status.transition import Status, Transition
from tests.support.transitions import OBSERVED, filled, small_disk

WEB = EndpointId("k8s", "default/web-0", "eth0")
DB = EndpointId("k8s", "default/db-0", "eth0")
WEB_FILE = "k8s default%2Fweb-0 eth0"
DB_FILE = "k8s default%2Fdb-0 eth0"


def planned(id_: EndpointId, link: str = "cali1", *addresses: str, uid: str | None = None) -> Any:
    return Endpoint(id_, link, tuple(map(Prefix.parse, addresses or ("10.65.0.2",))), uid)


def told(seq: int, id_: EndpointId, status: Status, link: str = "cali1", **more: Any) -> Transition:
    made = Transition(seq, str(id_), None, status, None, None, link, 12, False, OBSERVED)
    return replace(made, **more)


@dataclass
class World:
    """A sink and the agent that it asks."""

    directory: Path
    plan: Planned | None = None
    present: dict[EndpointId, Transition] = field(default_factory=dict)
    seq: int = 0

    def __post_init__(self) -> None:
        (sink,) = sinks.parse(f"files:{self.directory}", lambda: self.plan)
        assert isinstance(sink, FilesSink)
        self.sink = sink
        self.sink.attach(Node("node-1", self.present, self.seq, lambda: self.present, lambda: True))

    def plan_is(self, *endpoints: Endpoint) -> None:
        self.plan = Planned({each.id: each for each in endpoints}, self.seq)

    async def tell(self, *transitions: Transition) -> None:
        """As the runner does it."""
        await self.sink.deliver(transitions)
        self.seq = transitions[-1].seq
        await self.sink.tend(self.seq)

    async def later(self) -> None:
        """Tend as if the time for a whole look had come."""
        self.sink._look_at = self.sink._notice_at = 0.0
        await self.sink.tend(self.seq)

    @property
    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def read(self, name: str) -> Any:
        return json.loads((self.directory / name).read_bytes())


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    made = World(tmp_path / "run" / "endpoint-status")
    await made.sink.open()
    yield made
    await made.sink.close()


async def test_a_file_is_there_while_the_endpoint_is_up(world: World) -> None:
    world.plan_is(planned(WEB, "cali1", "10.65.0.2", "fd00::2"), planned(DB, "cali2"))
    await world.tell(told(1, WEB, "down"), told(2, DB, "down", "cali2"))
    assert world.names == []
    await world.tell(told(3, WEB, "up"))
    assert world.names == [WEB_FILE]
    assert (world.directory / WEB_FILE).read_bytes() == (
        b'{"ifaceName":"cali1","ipv4Nets":["10.65.0.2/32"],"ipv6Nets":["fd00::2/128"]}'
    )
    assert (world.directory / WEB_FILE).stat().st_mode & 0o777 == 0o644
    await world.tell(told(4, DB, "up", "cali2"), told(5, WEB, "error"))
    assert world.names == [DB_FILE]
    assert world.read(DB_FILE) == {"ifaceName": "cali2", "ipv4Nets": ["10.65.0.2/32"]}
    world.plan_is(planned(WEB))
    await world.tell(told(6, DB, "removed", "cali2"), told(7, WEB, "up"))
    assert world.names == [WEB_FILE]
    assert os.listdir(world.directory.parent / ".endpoint-status.netreeve") == []


async def test_a_rebuilt_endpoint_goes_and_comes_also_within_one_delivery(world: World) -> None:
    world.plan_is(planned(WEB))
    await world.tell(told(1, WEB, "up"))
    before = (world.directory / WEB_FILE).stat().st_ino
    holder = (world.directory / WEB_FILE).open()  # so that the inode isn't used again
    await world.tell(told(2, WEB, "down"), told(3, WEB, "up"))
    assert (world.directory / WEB_FILE).stat().st_ino != before
    holder.close()


async def test_an_up_of_another_incarnation_or_link_makes_no_file(world: World) -> None:
    world.plan_is(planned(WEB, "cali2", uid="new"))
    await world.tell(told(1, WEB, "up", "cali2", uid="old"))
    await world.tell(told(2, WEB, "down", "cali1", uid="new"))
    await world.tell(told(3, WEB, "up", "cali1", uid="new"))
    assert world.names == []
    await world.tell(told(4, WEB, "up", "cali2", uid="new"))
    assert world.names == [WEB_FILE]


async def test_equal_files_are_not_rewritten(world: World) -> None:
    world.plan_is(planned(WEB))
    await world.tell(told(1, WEB, "up"))
    written = (world.directory / WEB_FILE).stat()
    await world.sink.close()
    await world.sink.open()
    await world.later()
    await world.later()
    now = (world.directory / WEB_FILE).stat()
    assert (now.st_ino, now.st_ctime_ns) == (written.st_ino, written.st_ctime_ns)


async def test_a_changed_plan_changes_the_content_without_any_transition(world: World) -> None:
    world.plan_is(planned(WEB))
    await world.tell(told(1, WEB, "up"))
    world.plan_is(planned(WEB, "cali1", "10.65.0.3"))
    await world.sink.tend(1)
    assert world.read(WEB_FILE)["ipv4Nets"] == ["10.65.0.3/32"]


async def test_stale_files_go_only_when_the_plan_is_complete(tmp_path: Path) -> None:
    directory = tmp_path / "status"
    directory.mkdir()
    cut = files.file_name(EndpointId("k8s", "x" * 300, "eth0"))
    foreign = ["notes.txt", "a b", "a b c d", "k8s a/b eth0".replace("/", "%2f"), "a  b"]
    for name in [WEB_FILE, DB_FILE, cut, *foreign]:
        (directory / name).write_text("former")
    (directory / "dir dir dir").mkdir()
    everything = sorted(os.listdir(directory))
    up = told(7, WEB, "up")
    world = World(directory, present={WEB: up, DB: told(6, DB, "up", "cali2")}, seq=7)
    await world.sink.open()
    await world.later()
    await world.tell(told(8, DB, "down", "cali2"))
    assert world.names == everything
    # The plan is known, but what came of taking it is not delivered yet.
    world.plan = Planned({WEB: planned(WEB)}, 9)
    await world.later()
    assert world.names == everything
    await world.tell(told(9, DB, "removed", "cali2"))
    assert world.names == sorted([WEB_FILE, *foreign, "dir dir dir"])
    assert world.read(WEB_FILE)["ifaceName"] == "cali1"
    await world.sink.close()


async def test_after_a_gap_numbers_begin_anew(world: World) -> None:
    world.plan = Planned({WEB: planned(WEB)}, 500)
    await world.tell(told(1, WEB, "up"))
    assert world.names == []
    gap = replace(told(2, WEB, "gap"), endpoint="", link="", lost=700, since=OBSERVED)
    await world.tell(gap, told(3, WEB, "up"))
    assert world.names == [WEB_FILE]


async def test_what_others_did_to_files_is_mended(world: World) -> None:
    world.plan_is(planned(WEB), planned(DB))
    await world.tell(told(1, WEB, "up"), told(2, DB, "up"))
    good = (world.directory / WEB_FILE).read_bytes()
    (world.directory / WEB_FILE).write_bytes(good[::-1])
    (world.directory / DB_FILE).unlink()
    elsewhere = world.directory.parent / "elsewhere"
    elsewhere.write_text("others'")
    (world.directory / DB_FILE).symlink_to(elsewhere)
    await world.later()
    assert (world.directory / WEB_FILE).read_bytes() == good
    assert not (world.directory / DB_FILE).is_symlink()
    assert elsewhere.read_text() == "others'"


async def test_a_removed_directory_is_made_again(world: World) -> None:
    world.plan_is(planned(WEB))
    await world.tell(told(1, WEB, "up"))
    shutil.rmtree(world.directory.parent)
    world.sink._notice_at = 0.0
    with pytest.raises(SinkError, match="was taken away"):
        await world.sink.tend(1)
    await world.sink.close()
    await world.sink.open()
    await world.sink.tend(1)
    assert world.names == [WEB_FILE]


async def test_half_written_files_of_a_killed_agent_are_removed(world: World) -> None:
    beside = world.directory.parent / ".endpoint-status.netreeve"
    (beside / WEB_FILE).write_text('{"ifaceN')
    await world.sink.close()
    await world.sink.open()
    assert os.listdir(beside) == []


async def test_one_file_in_the_way_holds_up_no_other(world: World) -> None:
    world.plan_is(planned(WEB), planned(DB))
    (world.directory / DB_FILE).mkdir()
    with pytest.raises(SinkError, match="Is a directory"):
        await world.tell(told(1, DB, "up"), told(2, WEB, "up"))
    assert WEB_FILE in world.names
    (world.directory / DB_FILE).rmdir()
    await world.sink.close()
    await world.sink.open()
    await world.sink.tend(2)
    assert world.names == [DB_FILE, WEB_FILE]


async def test_a_full_disk_loses_nothing_and_what_goes_goes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        world = World(disk / "status")
        await world.sink.open()
        world.plan_is(planned(WEB), planned(DB, "cali2"))
        await world.tell(told(1, DB, "up", "cali2"))
        ballast = filled(disk)
        with pytest.raises(SinkError, match="No space left on device"):
            await world.tell(told(2, WEB, "up"))
        assert world.names == [DB_FILE]
        assert world.read(DB_FILE)["ifaceName"] == "cali2"
        assert os.listdir(disk / ".status.netreeve") == []
        await world.sink.close()
        ballast.unlink()
        await world.sink.open()
        await world.tell(told(2, WEB, "up"))
        assert world.names == [DB_FILE, WEB_FILE]
        await world.sink.close()


async def test_a_read_only_disk_is_an_error_that_is_tried_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        world = World(disk / "status")
        await world.sink.open()
        world.plan_is(planned(WEB))
        remount(disk, "ro")
        with pytest.raises(SinkError, match="Read-only file system"):
            await world.tell(told(1, WEB, "up"))
        await world.sink.close()
        await world.sink.open()
        with pytest.raises(SinkError, match="Read-only file system"):
            await world.sink.tend(1)
        remount(disk, "rw")
        await world.sink.tend(1)
        assert world.names == [WEB_FILE]
        await world.sink.close()


async def test_a_mount_point_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        world = World(disk)
        with pytest.raises(SinkError, match="name a directory below it"):
            await world.sink.open()
        await world.sink.close()


@pytest.mark.timeout(30)
async def test_a_reader_never_sees_half_a_file(world: World) -> None:
    path = world.directory / WEB_FILE
    ends = threading.Event()
    seen: set[int] = set()
    wrong: list[bytes] = []

    def poll() -> None:
        while not ends.is_set():
            try:
                data = path.read_bytes()
                seen.add(len(json.loads(data)["ipv4Nets"]))
            except FileNotFoundError:
                continue
            except ValueError:
                wrong.append(data)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for seq in range(1, 401):
            addresses = [f"10.{seq % 250}.{n}.1" for n in range(seq % 40 * 5 + 1)]
            world.plan_is(planned(WEB, "cali1", *addresses))
            status: Status = "down" if seq % 7 == 0 else "up"
            await world.tell(told(seq, WEB, status))
    finally:
        ends.set()
        reader.join()
    assert not wrong
    assert len(seen) > 3


SCRIPT = """
import asyncio, itertools, sys
from pathlib import Path
from tests.unit.sinks.test_files import World, planned, told, WEB

async def main():
    world = World(Path(sys.argv[1]))
    await world.sink.open()
    for seq in itertools.count(1):
        world.plan_is(planned(WEB, "cali1", *(f"10.0.{n}.1" for n in range(seq % 200 + 1))))
        await world.tell(told(seq, WEB, "up"))
        print(seq, flush=True)

asyncio.run(main())
"""


@pytest.mark.timeout(60)
def test_killed_at_any_moment_it_leaves_whole_files_only(tmp_path: Path) -> None:
    directory = tmp_path / "status"
    for round_ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(5 + 3 * round_):
            assert process.stdout.readline()
        process.kill()
        process.communicate()
        for name in os.listdir(directory):
            assert name == WEB_FILE
            assert json.loads((directory / name).read_bytes())["ifaceName"] == "cali1"

    async def again() -> None:
        world = World(directory, present={WEB: told(1, WEB, "up")}, seq=1)
        world.plan_is(planned(WEB))
        await world.sink.open()
        await world.sink.tend(1)
        await world.sink.close()

    asyncio.run(again())
    assert json.loads((directory / WEB_FILE).read_bytes())["ipv4Nets"] == ["10.65.0.2/32"]
    assert os.listdir(tmp_path / ".status.netreeve") == []


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        (("k8s", "default/testpod1", "eth0"), "k8s default%2Ftestpod1 eth0"),
        (("..", ".", "../../etc/passwd"), ".. . ..%2F..%2Fetc%2Fpasswd"),
        (("a b", "%2F", "é"), "a%20b %252F %C3%A9"),
        (("$&+:=@", "-_.~", "!*'();?#,[]"), "$&+:=@ -_.~ %21%2A%27%28%29%3B%3F%23%2C%5B%5D"),
    ],
)
def test_names_are_those_that_go_escapes_to(id_: tuple[str, str, str], name: str) -> None:
    assert files.file_name(EndpointId(*id_)) == name


PART = st.text(
    st.one_of(
        st.sampled_from("/%.# +~2F25"), st.characters(exclude_categories=["C", "Z"]), st.just("a")
    ),
    min_size=1,
    max_size=340,
)
IDS = st.builds(EndpointId, PART, PART, PART)


@hypothesis.given(st.lists(IDS, min_size=1, max_size=8))
def test_names_stay_inside_fit_and_tell_ids_apart(ids: list[EndpointId]) -> None:
    names = [files.file_name(id_) for id_ in ids]
    assert len(set(names)) == len(set(ids))
    for id_, name in zip(ids, names, strict=True):
        assert "/" not in name
        assert "\0" not in name
        assert name not in (".", "..")
        assert len(name.encode()) <= 255
        assert re.search(r"%[0-9A-F]?[a-f]", name) is None or "#" in name
        assert files.is_file_name(name)
        if "#" not in name:
            assert tuple(map(unquote, name.split(" "))) == tuple(id_)


@hypothesis.given(PART, st.integers(1, 60))
def test_long_ids_that_begin_alike_are_told_apart(part: str, more: int) -> None:
    beginning = "x" * 300 + part
    one = EndpointId("k8s", beginning, "eth0")
    other = EndpointId("k8s", beginning + "y" * more, "eth0")
    assert files.file_name(one) != files.file_name(other)


@hypothesis.given(st.lists(IDS, min_size=1, max_size=20, unique=True))
@hypothesis.settings(max_examples=20)
def test_every_name_can_be_a_file(ids: list[EndpointId]) -> None:
    async def body(directory: Path) -> None:
        world = World(directory)
        world.plan_is(*(planned(id_) for id_ in ids))
        await world.sink.open()
        await world.tell(*(told(seq, id_, "up") for seq, id_ in enumerate(ids, 1)))
        assert set(world.names) == _names(ids)
        world.plan_is(planned(WEB))
        await world.later()
        assert world.names == []
        await world.sink.close()

    import tempfile

    with tempfile.TemporaryDirectory() as made:
        asyncio.run(body(Path(made) / "status"))
        assert sorted(os.listdir(made)) == [".status.netreeve", "status"]


def _names(ids: Iterable[EndpointId]) -> set[str]:
    return {files.file_name(id_) for id_ in ids}
