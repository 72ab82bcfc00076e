"""All sources together: the last good plan, and what is wrong with what came after it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from netreeve.errors import PlanError, Problem
from netreeve.model.ownership import Scheme
from netreeve.plan.loading import load
from netreeve.plan.model import Plan
from netreeve.sources.source import Snapshot, Source

__all__ = ["Plans", "why_not_in_force"]


def why_not_in_force(plan: Plan, *, allow_empty: bool) -> str | None:
    """The sentence that says why a valid plan is not put in force; None if it is.

    A plan of nothing is more often a mount that is missing or a generator that failed than a wish,
    and it would take every route away.
    """
    if not plan.empty or allow_empty:
        return None
    return (
        "the plan is empty and was not put in force; "
        "if nothing is wanted on this node, set NETREEVE_ALLOW_EMPTY_PLAN=true"
    )


class Plans:
    """Runs the sources and keeps one plan in force.

    `on_plan(plan)` is called with each plan that differs from the one in force, `on_problems` with
    all present problems whenever they change, () when there are none any more; both on the loop,
    and where one snapshot causes both, the plan comes first. Documents are loaded in a thread.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        scheme: Scheme,
        on_plan: Callable[[Plan], None],
        on_problems: Callable[[tuple[Problem, ...]], None],
        *,
        allow_empty: bool,
    ) -> None:
        self._sources = tuple(sources)
        self._scheme = scheme
        self._on_plan = on_plan
        self._on_problems = on_problems
        self._allow_empty = allow_empty
        self._latest: dict[str, Snapshot] = {}
        self._changed = asyncio.Event()
        self.plan: Plan | None = None
        """The plan in force; None until every source has delivered and a plan was good."""
        self.problems: tuple[Problem, ...] = ()

    @property
    def in_sync(self) -> bool:
        """Whether every source has delivered, so that what no document names is not wanted."""
        return len(self._latest) == len(self._sources)

    def reread(self) -> None:
        """Make every source look again (SIGHUP)."""
        for source in self._sources:
            source.reread()

    def describe(self) -> list[dict[str, Any]]:
        """Per source, for the status: url, in_sync, documents, error (its first problem)."""
        return [self._describe(source) for source in self._sources]

    async def run(self) -> None:
        """Run until cancelled; an exception of a source ends all."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(self._run_source(source), name=f"source {source.url}")
            tasks.create_task(self._load(), name="plan loader")

    async def _run_source(self, source: Source) -> None:
        def publish(snapshot: Snapshot) -> None:
            self._latest[source.url] = snapshot
            self._changed.set()

        await source.run(publish)

    async def _load(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            snapshots = [self._latest[s.url] for s in self._sources if s.url in self._latest]
            with _collection_paused():
                plan, problems = await asyncio.to_thread(self._judge, snapshots, self.in_sync)
            if plan is not None:
                self.plan = plan
                self._on_plan(plan)
            if problems != self.problems:
                self.problems = problems
                self._on_problems(problems)

    def _judge(
        self, snapshots: Sequence[Snapshot], in_sync: bool
    ) -> tuple[Plan | None, tuple[Problem, ...]]:
        """The plan to put in force, if there is a new one, and all problems. Runs in a thread."""
        documents = [document for snapshot in snapshots for document in snapshot.documents]
        problems = [problem for snapshot in snapshots for problem in snapshot.problems]
        plan = None
        try:
            plan = load(documents, self._scheme, whole=in_sync and not problems)
        except PlanError as error:
            problems.extend(error.problems)
        if plan is None or problems or not in_sync:
            return None, tuple(sorted(problems))
        refused = why_not_in_force(plan, allow_empty=self._allow_empty)
        if refused:
            urls = ",".join(source.url for source in self._sources)
            return None, (Problem(urls, 0, 0, refused),)
        return (None if plan == self.plan else plan), ()

    def _describe(self, source: Source) -> dict[str, Any]:
        snapshot = self._latest.get(source.url)
        if snapshot is None:
            return {"url": source.url, "in_sync": False, "documents": 0, "error": None}
        mine = {document.path for document in snapshot.documents}
        wrong = [
            *snapshot.problems,
            *(problem for problem in self.problems if problem.path in mine),
        ]
        return {
            "url": source.url,
            "in_sync": True,
            "documents": len(snapshot.documents),
            "error": str(wrong[0]) if wrong else None,
        }


@contextmanager
def _collection_paused() -> Iterator[None]:
    """No garbage collection inside.

    Loading makes many objects and no cycles. They set off full collections, each of which holds the
    lock of the interpreter, and so the loop, for longer than all the rest of loading does.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
