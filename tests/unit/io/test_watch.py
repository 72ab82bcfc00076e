"""Reading at once after a quiet moment, and rarely in a flood."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from netreeve.io.watch import PAUSE_S, Watch
from tests.support.watch import until


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


async def test_what_comes_after_a_quiet_moment_is_read_at_once(pipe: tuple[int, int]) -> None:
    loop = asyncio.get_running_loop()
    read: list[bytes] = []
    watch = Watch(loop, pipe[0], lambda: read.append(os.read(pipe[0], 100)))
    watch.start()
    for _ in range(3):
        await asyncio.sleep(0.05)
        os.write(pipe[1], b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
    assert read == [b"x"] * 3
    watch.stop()
    os.write(pipe[1], b"y")
    await asyncio.sleep(0.02)
    assert len(read) == 3


async def test_a_flood_is_read_in_pieces_and_to_its_end(pipe: tuple[int, int]) -> None:
    loop = asyncio.get_running_loop()
    read: list[bytes] = []
    watch = Watch(loop, pipe[0], lambda: read.append(os.read(pipe[0], 10_000)))
    watch.start()
    begun = loop.time()
    while loop.time() - begun < 0.2:
        os.write(pipe[1], b"x")
        await asyncio.sleep(0)
    took_s = loop.time() - begun
    os.write(pipe[1], b"!")
    await asyncio.sleep(10 * PAUSE_S)
    watch.stop()
    assert b"".join(read)[-1:] == b"!"
    assert len(read) <= took_s / PAUSE_S + 15


async def test_stopped_in_a_pause_and_started_again(pipe: tuple[int, int]) -> None:
    loop = asyncio.get_running_loop()
    read: list[bytes] = []
    watch = Watch(loop, pipe[0], lambda: read.append(os.read(pipe[0], 1)))
    watch.start()
    os.write(pipe[1], b"abcdef")
    await until(lambda: len(read) >= 2, "two reads", interval_s=0)
    watch.stop()
    watch.stop()
    await asyncio.sleep(5 * PAUSE_S)
    seen = len(read)
    watch.start()
    await until(lambda: len(read) >= 6, "all read")
    watch.stop()
    assert seen < 6
    assert b"".join(read) == b"abcdef"
