"""What a source of plan documents is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from netreeve.errors import Problem
from netreeve.plan.document import Document

__all__ = ["Publish", "Snapshot", "Source"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All documents of one source at one moment; with a problem it must not be put in force."""

    documents: tuple[Document, ...]
    problems: tuple[Problem, ...] = ()


Publish = Callable[[Snapshot], None]


class Source(Protocol):
    """One place that documents come from."""

    @property
    def url(self) -> str:
        """As in the setting."""

    async def run(self, publish: Publish) -> None:
        """Publish the present snapshot, and each later one that differs; runs until cancelled."""

    def reread(self) -> None:
        """Look again soon, whatever was or was not noticed (SIGHUP)."""
