"""Where plan documents come from, and the one plan that all sources together make."""

from __future__ import annotations

from netreeve.sources.files import DirSource, FileSource
from netreeve.sources.once import read_once
from netreeve.sources.plans import Plans, why_not_in_force
from netreeve.sources.source import Snapshot, Source
from netreeve.sources.urls import parse

__all__ = [
    "DirSource",
    "FileSource",
    "Plans",
    "Snapshot",
    "Source",
    "parse",
    "read_once",
    "why_not_in_force",
]
