from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from netreeve.errors import SinkError
from netreeve.sinks import jsonl
from netreeve.sinks.jsonl import JsonlFile, JsonlOutput
from netreeve.sinks.sink import Mark
from netreeve.status.transition import encode
from tests.support.transitions import OBSERVED, filled, flap, small_disk


def sink_of(path: Path, **bounds: int) -> JsonlFile:
    return JsonlFile(f"jsonl:{path}", str(path), **{"max_bytes": 1 << 20, "keep": 3, **bounds})


def seqs(path: Path) -> list[int]:
    return [json.loads(line)["seq"] for line in path.read_bytes().splitlines()]


async def test_one_record_a_line_and_the_last_is_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "status.jsonl"
    sink = sink_of(path)
    assert await sink.open() is None
    await sink.deliver([flap(1), flap(2)])
    await sink.deliver([flap(3)])
    await sink.close()
    assert path.read_bytes() == b"".join(encode(flap(seq)) + b"\n" for seq in (1, 2, 3))
    assert await sink.open() == Mark(3, OBSERVED)
    await sink.close()


@pytest.mark.parametrize("padding", ["", "x" * 70_000])
async def test_a_torn_line_is_cut_off_wherever_it_was_torn(tmp_path: Path, padding: str) -> None:
    path = tmp_path / "status.jsonl"
    whole = encode(flap(1, reason=padding)) + b"\n"
    torn = encode(flap(2, reason=padding)) + b"\n"
    for cut in {0, 1, 20, len(torn) // 2, len(torn) - 1}:
        path.write_bytes(whole + torn[:cut])
        sink = sink_of(path)
        assert await sink.open() == Mark(1, OBSERVED)
        assert path.read_bytes() == whole
        await sink.deliver([flap(2)])
        await sink.close()
        assert seqs(path) == [1, 2]


@pytest.mark.parametrize("content", [b"hello\n", b"\n", b"\n\n", b"{}\n", b"no line"])
async def test_lines_of_others_are_left_alone_and_say_nothing(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "status.jsonl"
    path.write_bytes(content)
    sink = sink_of(path)
    assert await sink.open() is None
    await sink.deliver([flap(1)])
    await sink.close()
    assert path.read_bytes() == content[: content.rfind(b"\n") + 1] + encode(flap(1)) + b"\n"


async def test_rotation(tmp_path: Path) -> None:
    path = tmp_path / "status.jsonl"
    line_bytes = len(encode(flap(1))) + 1
    sink = sink_of(path, max_bytes=line_bytes * 3, keep=2)
    await sink.open()
    await sink.deliver([flap(seq) for seq in range(1, 6)])
    await sink.deliver([flap(seq) for seq in range(6, 10)])
    assert [seqs(tmp_path / f"status.jsonl{end}") for end in ("", ".1", ".2")] == [
        [7, 8, 9], [4, 5, 6], [1, 2, 3],
    ]  # fmt: skip
    await sink.deliver([flap(1, reason="longer than the bound " * 100)])
    await sink.close()
    assert sorted(os.listdir(tmp_path)) == ["status.jsonl", "status.jsonl.1", "status.jsonl.2"]
    assert seqs(tmp_path / "status.jsonl.2") == [4, 5, 6]


async def test_killed_right_after_rotating_the_old_file_has_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "status.jsonl"
    sink = sink_of(path)
    await sink.open()
    await sink.deliver([flap(1), flap(2)])
    await sink.close()
    os.rename(path, tmp_path / "status.jsonl.1")
    for _ in range(2):
        assert await sink.open() == Mark(2, OBSERVED)
        await sink.close()


async def test_a_file_that_others_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "status.jsonl"
    sink = sink_of(path)
    await sink.open()
    await sink.deliver([flap(1)])
    os.rename(path, tmp_path / "moved")
    await sink.deliver([flap(2)])
    path.unlink()
    await sink.deliver([flap(3)])
    await sink.close()
    assert (seqs(tmp_path / "moved"), seqs(path)) == ([1], [3])


async def test_a_full_disk_leaves_no_half_line_and_nothing_twice(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "status.jsonl"
        sink = sink_of(path)
        await sink.open()
        await sink.deliver([flap(1)])
        ballast = filled(disk)
        batch = [flap(seq, reason="x" * 3_000) for seq in range(2, 10)]
        with pytest.raises(OSError) as caught:  # noqa: PT011
            await sink.deliver(batch)
        assert caught.value.errno == errno.ENOSPC
        assert path.read_bytes().endswith(b"\n")
        await sink.close()
        ballast.unlink()
        mark = await sink.open()
        assert mark is not None
        await sink.deliver([each for each in batch if each.seq > mark.seq])
        await sink.close()
        assert seqs(path) == list(range(1, 10))


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="not a regular file"):
        await sink_of(tmp_path / "fifo").open()
    with pytest.raises(OSError, match="directory"):
        await sink_of(tmp_path).open()
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        await sink_of(tmp_path / "file" / "status.jsonl").open()


async def test_output_waits_for_a_slow_reader_but_not_beyond_its_end() -> None:
    reading, writing = os.pipe()
    sink = JsonlOutput("jsonl:-", writing)
    try:
        assert await sink.open() is None
        await sink.deliver([flap(1)])
        assert os.read(reading, 65536) == encode(flap(1)) + b"\n"
        many = [flap(seq) for seq in range(1, 2_000)]
        task = asyncio.create_task(sink.deliver(many))
        await asyncio.sleep(0.05)
        assert not task.done()
        await sink.close()
        with pytest.raises(SinkError, match="reader was slow"):
            await asyncio.wait_for(task, 5)

        await sink.open()
        os.set_blocking(reading, False)
        with suppress(BlockingIOError):
            while os.read(reading, 1 << 20):
                pass
        os.set_blocking(reading, True)
        received = bytearray()

        def drain() -> None:
            while received.count(b"\n") < len(many):
                received.extend(os.read(reading, 3_000))

        thread = threading.Thread(target=drain)
        thread.start()
        await sink.deliver(many)
        thread.join()
        assert received == b"".join(encode(each) + b"\n" for each in many)
    finally:
        os.close(reading)
    with pytest.raises(BrokenPipeError):
        await sink.deliver([flap(1)])
    os.close(writing)


def test_the_defaults_are_those_of_the_reference() -> None:
    sink = jsonl.parse("jsonl:/a%3Fb")
    assert isinstance(sink, JsonlFile)
    assert (sink._path, sink._max_bytes, sink._keep) == ("/a?b", 104857600, 5)
