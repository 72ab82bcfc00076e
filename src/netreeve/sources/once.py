"""The plan of all sources, read once: for commands that don't stay."""

from __future__ import annotations

import asyncio

from netreeve.errors import NetreeveError, PlanError, Problem
from netreeve.model.ownership import Scheme
from netreeve.plan.model import Plan
from netreeve.sources.plans import Plans
from netreeve.sources.urls import parse

__all__ = ["read_once"]

LONGEST_S = 30.0
"""A file that is written to without end is waited for ten seconds."""


async def read_once(urls: str, scheme: Scheme, *, allow_empty: bool) -> Plan:
    """The plan that the sources `urls` (the PLAN setting) make now.

    Raises PlanError with all that is wrong, an empty plan included unless `allow_empty`;
    NetreeveError where a source doesn't deliver.
    """
    found: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()

    def good(plan: Plan) -> None:
        if not found.done():
            found.set_result(plan)

    def bad(problems: tuple[Problem, ...]) -> None:
        if problems and not found.done():
            found.set_exception(PlanError(problems))

    plans = Plans(parse(urls, scheme), scheme, good, bad, allow_empty=allow_empty)
    running = asyncio.create_task(plans.run(), name="plan")
    try:
        async with asyncio.timeout(LONGEST_S):
            await asyncio.wait((running, found), return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                running.result()  # raises what ended it
            return await found
    except TimeoutError:
        late = [each["url"] for each in plans.describe() if not each["in_sync"]]
        raise NetreeveError(
            f"no plan within {LONGEST_S:g} seconds from {', '.join(late)}"
        ) from None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
