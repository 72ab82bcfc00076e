"""The setting that lists sources: `dir:/etc/netreeve/plan.d,cni:/var/lib/cni/results`."""

from __future__ import annotations

import re
from pathlib import Path

from netreeve.model.ownership import Scheme
from netreeve.model.quote import quoted
from netreeve.plan.document import SUFFIXES
from netreeve.sources import cni
from netreeve.sources.files import DirSource, FileSource
from netreeve.sources.source import Source

__all__ = ["parse"]

_SCHEMES = ("dir", "file", "cni")
_SCHEME = re.compile(r"([a-z][a-z0-9+-]*):")
_SEPARATOR = re.compile(r"\s*,\s*(?=[a-z][a-z0-9+-]*:)")


def parse(text: str, scheme: Scheme | None = None) -> list[Source]:
    """The sources of the PLAN setting, in its order; ValueError with a sentence.

    A comma separates only where a scheme follows, so a path may hold commas. `scheme` names the
    links of endpoints, for sources of files that others write; None is good for judging the text.
    """
    sources: list[Source] = []
    seen: set[str] = set()
    for url in _SEPARATOR.split(text.strip()):
        match = _SCHEME.match(url)
        if not match or match[1] not in _SCHEMES:
            known = ", ".join(f"{scheme}:" for scheme in _SCHEMES)
            raise ValueError(f"{quoted(url)} has no scheme that this version knows ({known})")
        path = url[match.end() :]
        if match[1] == "cni" and not path:
            path = str(cni.DEFAULT_PATH)
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{quoted(url)} has no absolute path after `{match[0]}`")
        if match[1] == "file" and not path.endswith(SUFFIXES):
            names = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
            raise ValueError(f"{quoted(url)} is no plan document by its name ({names})")
        source = _source(match[1], Path(path), scheme or Scheme())
        if source.url in seen:
            raise ValueError(f"{quoted(url)} is there twice")
        seen.add(source.url)
        sources.append(source)
    return sources


def _source(kind: str, path: Path, scheme: Scheme) -> Source:
    if kind == "cni":
        return cni.CniSource(path, scheme)
    return FileSource(path) if kind == "file" else DirSource(path)
