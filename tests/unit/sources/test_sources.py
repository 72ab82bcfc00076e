"""Sources on a real directory: every way in which people and machines change files."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netreeve import sources
from netreeve.sources import DirSource, FileSource, Snapshot, files
from netreeve.sources.watch import Watch


class Seen:
    """What a running source has published."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    @property
    def last(self) -> dict[str, str]:
        found = self.snapshots[-1]
        return {Path(document.path).name: document.data.decode() for document in found.documents}

    @property
    def problems(self) -> list[str]:
        return [str(problem) for problem in self.snapshots[-1].problems]

    async def until(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not (self.snapshots and holds()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def watching(source: DirSource | FileSource, body: Callable[[Seen], Awaitable[None]]) -> Seen:
    seen = Seen()
    task = asyncio.create_task(source.run(seen.snapshots.append))
    try:
        await seen.until(lambda: True)
        await body(seen)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return seen


async def settle() -> None:
    """Long enough for a look that should not have published anything."""
    await asyncio.sleep(files.DEBOUNCE_MAX_S + 0.2)


def replace(path: Path, text: str) -> None:
    """As careful writers do it: a temporary file, renamed into place."""
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.write_text(text)
    hidden.rename(path)


async def test_what_counts_as_a_document(tmp_path: Path) -> None:
    for name in ("b.json", "a.yaml", "c.yml", ".hidden.yaml", "d.txt", "e.yaml~", "..data.yaml"):
        (tmp_path / name).write_text(name)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "f.yaml").write_text("f")

    async def body(seen: Seen) -> None:
        assert [*seen.last] == ["a.yaml", "b.json", "c.yml"]
        assert not seen.problems

    await watching(DirSource(tmp_path), body)


async def test_files_come_change_and_go(tmp_path: Path) -> None:
    async def body(seen: Seen) -> None:
        assert seen.last == {}
        (tmp_path / "a.yaml").write_text("1")
        await seen.until(lambda: seen.last == {"a.yaml": "1"})
        replace(tmp_path / "a.yaml", "2")
        await seen.until(lambda: seen.last == {"a.yaml": "2"})
        (tmp_path / "a.yaml").write_text("3")
        await seen.until(lambda: seen.last == {"a.yaml": "3"})
        (tmp_path / "a.yaml").rename(tmp_path / "b.json")
        await seen.until(lambda: seen.last == {"b.json": "3"})
        (tmp_path / "b.json").unlink()
        await seen.until(lambda: seen.last == {})

    await watching(DirSource(tmp_path), body)


async def test_a_half_written_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("old")

    async def body(seen: Seen) -> None:
        with path.open("w") as file:
            for part in ("first half, ", "second half"):
                file.write(part)
                file.flush()
                # Something else happens in the directory, and makes the source look.
                replace(tmp_path / "b.yaml", part)
                await seen.until(lambda part=part: seen.last.get("b.yaml") == part)  # type: ignore[misc]
        await seen.until(lambda: seen.last["a.yaml"] == "first half, second half")

    seen = await watching(DirSource(tmp_path), body)
    read = [Path(d.path).name + ":" + d.data.decode() for s in seen.snapshots for d in s.documents]
    assert "a.yaml:" not in read
    assert "a.yaml:first half, " not in read


async def test_a_file_that_nobody_closes_is_read_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITING_S", 0.3)

    async def body(seen: Seen) -> None:
        with (tmp_path / "a.yaml").open("w") as file:
            file.write("text")
            file.flush()
            await seen.until(lambda: seen.last == {"a.yaml": "text"}, 3)

    await watching(DirSource(tmp_path), body)


async def test_endless_writing_does_not_starve_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITING_MAX_S", 1.0)

    async def body(seen: Seen) -> None:
        async def scribble() -> None:
            with (tmp_path / "noise.yaml").open("w") as file:
                while True:
                    file.write("x")
                    file.flush()
                    await asyncio.sleep(0.01)

        task = asyncio.create_task(scribble())
        await asyncio.sleep(0.1)
        (tmp_path / "a.yaml").write_text("1")
        await seen.until(lambda: seen.last.get("a.yaml") == "1", files.DEBOUNCE_MAX_S + 0.7)
        await seen.until(lambda: "noise.yaml" in seen.last, 3)
        task.cancel()

    await watching(DirSource(tmp_path), body)


async def test_a_config_map_is_swapped_as_a_whole(tmp_path: Path) -> None:
    def revision(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        for file in ("a.yaml", "b.yaml"):
            (tmp_path / name / file).write_text(text)
        (tmp_path / "..data_tmp").symlink_to(name)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    revision("..2024_1", "1")
    for file in ("a.yaml", "b.yaml"):
        (tmp_path / file).symlink_to(f"..data/{file}")

    async def body(seen: Seen) -> None:
        assert seen.last == {"a.yaml": "1", "b.yaml": "1"}
        for number in range(2, 6):
            revision(f"..2024_{number}", str(number))
            shutil.rmtree(tmp_path / f"..2024_{number - 1}")
            await seen.until(
                lambda text=str(number): seen.last == {"a.yaml": text, "b.yaml": text}  # type: ignore[misc]
            )

    seen = await watching(DirSource(tmp_path), body)
    assert all(len({d.data for d in snapshot.documents}) == 1 for snapshot in seen.snapshots)


async def test_the_target_of_a_link_elsewhere_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "POLL_S", 0.2)
    (tmp_path / "d").mkdir()
    (tmp_path / "real.yaml").write_text("1")
    (tmp_path / "d" / "a.yaml").symlink_to(tmp_path / "real.yaml")

    async def body(seen: Seen) -> None:
        (tmp_path / "real.yaml").write_text("22")
        await seen.until(lambda: seen.last == {"a.yaml": "22"})
        (tmp_path / "real.yaml").unlink()
        await seen.until(lambda: seen.last == {})
        assert seen.problems[0].endswith("a symbolic link to a file that is not there")

    await watching(DirSource(tmp_path / "d"), body)


@pytest.mark.parametrize("how", ["remove", "rename", "parent"])
async def test_the_directory_goes_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(files, "POLL_S", 0.3)
    directory = tmp_path / "parent" / "d"
    directory.mkdir(parents=True)
    (directory / "a.yaml").write_text("1")

    async def body(seen: Seen) -> None:
        assert seen.last == {"a.yaml": "1"}
        if how == "remove":
            shutil.rmtree(directory)
        elif how == "rename":
            directory.rename(tmp_path / "elsewhere")
        else:
            directory.parent.rename(tmp_path / "elsewhere")
        await seen.until(lambda: seen.problems == [f"{directory}: the directory is not there"])
        directory.mkdir(parents=True, exist_ok=True)
        await seen.until(lambda: not seen.problems)
        (directory / "a.yaml").write_text("2")
        await seen.until(lambda: seen.last == {"a.yaml": "2"})
        (directory / "a.yaml").write_text("3")
        await seen.until(lambda: seen.last == {"a.yaml": "3"}, 1.0)

    await watching(DirSource(directory), body)


async def test_a_directory_that_is_swapped_for_another_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "POLL_S", 0.3)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(name)
    (tmp_path / "plan.d").symlink_to("one")

    async def body(seen: Seen) -> None:
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(tmp_path / "plan.d")
        await seen.until(lambda: seen.last == {"a.yaml": "two"})

    await watching(DirSource(tmp_path / "plan.d"), body)


async def test_a_burst_is_looked_at_once_or_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = files._read

    def spy(path: Path, known: Any) -> Any:
        reads.append(path.name)
        return read(path, known)

    monkeypatch.setattr(files, "_read", spy)

    async def body(seen: Seen) -> None:
        for number in range(500):
            (tmp_path / f"{number}.yaml").write_text("x")
        await seen.until(lambda: len(seen.last) == 500)

    seen = await watching(DirSource(tmp_path), body)
    assert len(seen.snapshots) <= 5
    assert len(reads) <= 2500


async def test_what_is_unchanged_is_not_published_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("1")
    opened: list[Any] = []
    os_open = os.open

    def spy(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("a.yaml"):
            opened.append(path)
        return os_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", spy)
    source = DirSource(tmp_path)

    async def body(seen: Seen) -> None:
        (tmp_path / "other.txt").write_text("x")
        await settle()
        assert len(opened) == 1
        (tmp_path / "a.yaml").touch()
        await settle()
        replace(tmp_path / "a.yaml", "1")
        await settle()
        opened.clear()
        source.reread()
        await settle()
        assert len(opened) == 1

    seen = await watching(source, body)
    assert len(seen.snapshots) == 1


async def test_events_that_the_kernel_dropped(tmp_path: Path) -> None:
    room = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())  # noqa: ASYNC240
    path = tmp_path / "a.yaml"
    path.write_text("old")
    dropped: list[str] = []

    class Spy(DirSource):
        def _ended(self, name: str) -> None:
            dropped.append(name)
            super()._ended(name)

    source = Spy(tmp_path)

    async def body(seen: Seen) -> None:
        # Nothing awaits here, so nobody reads the events; what is told of a.yaml is lost.
        for number in range(room // 2 + 1):
            (tmp_path / f"{number}.tmp").touch()
        path.write_text("new")
        await seen.until(lambda: seen.last == {"a.yaml": "new"}, 3)

    await watching(source, body)
    assert "" in dropped
    assert "a.yaml" not in dropped


async def test_without_inotify_it_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "UNWATCHED_POLL_S", 0.1)

    def none_left(directory: Path) -> Watch:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(files, "Watch", none_left)

    async def body(seen: Seen) -> None:
        replace(tmp_path / "a.yaml", "1")
        await seen.until(lambda: seen.last == {"a.yaml": "1"})

    await watching(DirSource(tmp_path), body)
    assert [record.message.split(":")[0] for record in caplog.records] == ["no inotify for dir"]


async def test_what_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "dir.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "good.yaml").write_text("1")

    async def body(seen: Seen) -> None:
        assert seen.last == {"good.yaml": "1"}
        assert [problem.partition(": ")[2] for problem in seen.problems] == [
            "this is no regular file",
            "the file can't be read: Too many levels of symbolic links",
            "this is no regular file",
        ]

    await watching(DirSource(tmp_path), body)


async def test_files_that_vanish_between_list_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "listdir", lambda path: ["ghost.yaml"])

    async def body(seen: Seen) -> None:
        assert seen.last == {}
        assert not seen.problems

    await watching(DirSource(tmp_path), body)


async def test_one_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"

    async def body(seen: Seen) -> None:
        assert seen.problems == [f"{path}: the file is not there"]
        path.write_text("1")
        await seen.until(lambda: not seen.problems and seen.last == {"plan.json": "1"})
        replace(path, "2")
        await seen.until(lambda: seen.last == {"plan.json": "2"})
        path.unlink()
        await seen.until(lambda: seen.problems == [f"{path}: the file is not there"])

    await watching(FileSource(path), body)


async def test_a_descriptor_is_not_left_behind(tmp_path: Path) -> None:
    async def body(seen: Seen) -> None:
        shutil.rmtree(tmp_path)
        await seen.until(lambda: bool(seen.problems))
        os.mkdir(tmp_path)
        await seen.until(lambda: not seen.problems)

    await watching(DirSource(tmp_path), body)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await watching(DirSource(tmp_path), body)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("dir:/etc/netreeve/plan.d", ["dir:/etc/netreeve/plan.d"]),
        ("dir:/a,file:/b.json", ["dir:/a", "file:/b.json"]),
        (" dir:/a,b , file:/c.yml ", ["dir:/a,b", "file:/c.yml"]),
        ("cni:,dir:/a", ["cni:/var/lib/cni/results", "dir:/a"]),
        ("cni:/run/results", ["cni:/run/results"]),
    ],
)
async def test_the_setting(text: str, urls: list[str]) -> None:
    assert [source.url for source in sources.parse(text)] == urls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' has no scheme that this version knows (dir:, file:, cni:)"),
        ("/etc/plan.d", "no scheme"),
        ("etcd://host/prefix", "'etcd://host/prefix' has no scheme that this version knows"),
        ("dir:/a,cnt:/b", "'cnt:/b' has no scheme that this version knows"),
        ("cni:results", "no absolute path"),
        ("cni:,cni:/var/lib/cni/results", "is there twice"),
        ("dir:plan.d", "no absolute path"),
        ("dir:", "no absolute path"),
        ("dir:/a,dir:/a", "is there twice"),
        ("file:/a/plan", "*.yaml, *.yml, *.json"),
    ],
)
def test_settings_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        sources.parse(text)
    assert words in str(caught.value)


async def test_the_first_view_waits_for_a_writer_who_began_before(tmp_path: Path) -> None:
    with (tmp_path / "a.yaml").open("w") as file:
        file.write("first half, ")
        file.flush()
        seen = Seen()
        task = asyncio.create_task(DirSource(tmp_path).run(seen.snapshots.append))
        await asyncio.sleep(0.05)
        file.write("second half")
        file.flush()
        await asyncio.sleep(files.QUIET_S + files.DEBOUNCE_S)
        file.write(", end")
    await seen.until(lambda: True)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert seen.last == {"a.yaml": "first half, second half, end"}
    assert len(seen.snapshots) == 1
