"""Waiting for an event or a time, whichever is first."""

from __future__ import annotations

import asyncio

__all__ = ["wait_until"]


async def wait_until(event: asyncio.Event, until: float | None, shortest_s: float = 0.0) -> None:
    """Returns when `event` is set, or the loop's clock shows `until` (None: never).

    A time that has come already still takes `shortest_s`: what is due may wait for an answer that
    isn't here yet, and must not be waited for by spinning. The event is not cleared.
    """
    timeout_s = None
    if until is not None:
        timeout_s = max(shortest_s, until - asyncio.get_running_loop().time())
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
