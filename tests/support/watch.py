"""Waiting for what asynchronous code will do, with a bound and a message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def until(
    condition: Callable[[], T], what: str, timeout_s: float = 10.0, interval_s: float = 0.005
) -> T:
    """What `condition` returns once that is true; AssertionError saying `what` after the time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(interval_s)
    return value


def blocking_until(
    condition: Callable[[], T], what: str, timeout_s: float = 10.0, interval_s: float = 0.02
) -> T:
    """The same for tests that run no loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(interval_s)
    return value
