"""What holds for every test: both event loops, a time limit, no skips, repeatable randomness."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Generator, Iterator

import hypothesis
import pytest
import uvloop

from tests.support import netns

LAST_RESORT_S = 20.0

# A crash in a process that a test starts should leave a traceback too (pytest does so for its own).
os.environ.setdefault("PYTHONFAULTHANDLER", "1")

hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", deadline=None, print_blob=True, derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs once under each loop that the agent supports."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give async tests their time limit in the loop: uvloop swallows what pytest-timeout raises.

    Where a test doesn't let itself be cancelled either, a thread ends the whole run, with stacks.
    """
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            marker = item.get_closest_marker("timeout")
            limit_s = float(marker.args[0] if marker else config.getini("timeout"))
            item.obj = _within(limit_s, item.obj)
            last_resort = pytest.mark.timeout(limit_s + LAST_RESORT_S, method="thread")
            item.add_marker(last_resort, append=False)


def _within(
    limit_s: float, test: Callable[..., Coroutine[None, None, None]]
) -> Callable[..., Coroutine[None, None, None]]:
    @functools.wraps(test)
    async def limited(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(limit_s):
            await test(*args, **kwargs)

    return limited


def pytest_sessionstart() -> None:
    netns.remove_leftovers()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A test whose requirement is missing has failed: nobody reads a list of skips."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: no test may be skipped ({reason})"


@pytest.fixture
def namespace() -> Iterator[netns.Namespace]:
    """A private network namespace with nothing but `lo`, which is down."""
    with netns.Namespace() as made:
        yield made
