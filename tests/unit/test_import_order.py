"""The import order where import-linter can't see it: compiled files, and what the core may do.

Between the packages of src/ the order is held by the contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
EXT = ROOT / "ext" / "netreeve" / "_ext"
SRC = ROOT / "src" / "netreeve"

# A file takes from what stands below it; files of one line don't know each other.
EXT_ORDER = [
    {"receive"},
    {"index"},
    {"stage", "details"},
    {"encode", "wire"},
    {"check"},
    {"attributes", "map", "payload", "prefix"},
    {"cursor"},
    {"kernel"},
]
C_WORLD = {"cpython", "cython", "libc", "posix"}
PYTHON_WORLD = {"netreeve.errors"}
BELOW_IO = ["_ext", "errors.py", "model", "monitor", "plan", "reconcile", "routes", "status"]

STATEMENT = re.compile(
    r"^[ \t]*(?:"
    r"from[ \t]+(?P<source>[\w.]+)[ \t]+(?P<how>cimport|import)[ \t]+(?P<names>\([^)]*\)|[^\n]+)"
    r"|(?P<plain>cimport|import)[ \t]+(?P<modules>[^\n]+)"
    r")",
    re.MULTILINE,
)


class Import(NamedTuple):
    """One module that a compiled file takes from; `compiled` for cimport."""

    module: str
    compiled: bool


def imports(text: str) -> Iterator[Import]:
    text = re.sub(r'"""(?s:.*?)"""', "", text)
    text = re.sub(r"#[^\n]*", "", text)
    for found in STATEMENT.finditer(text):
        if found["plain"]:
            for module in found["modules"].split(","):
                yield Import(module.split()[0], found["plain"] == "cimport")
        elif found["source"] in ("netreeve", "netreeve._ext"):
            for name in found["names"].strip("()").replace("\n", " ").split(","):
                if name.strip():
                    yield Import(f"{found['source']}.{name.split()[0]}", found["how"] == "cimport")
        else:
            yield Import(found["source"], found["how"] == "cimport")


def offences(name: str, text: str) -> list[str]:
    """What a compiled file takes and may not; `name` is that of the file, with its suffix."""
    stem, _, suffix = name.partition(".")
    level = next((at for at, names in enumerate(EXT_ORDER) if stem in names), None)
    if level is None:
        return [f"{name}: has no place in EXT_ORDER"]
    below = set().union(*EXT_ORDER[level + 1 :])
    found = []
    for module, compiled in imports(text):
        inner = module.removeprefix("netreeve._ext.").partition(".")[0]
        if module.startswith("netreeve._ext."):
            fine = inner == stem or inner in below
        elif compiled:
            fine = module.partition(".")[0] in C_WORLD
        else:
            fine = module in PYTHON_WORLD
        if suffix == "pxd" and not compiled:
            fine = False
        if not fine:
            found.append(f"{name}: {'cimport' if compiled else 'import'} {module}")
    return found


def test_compiled_files_take_only_from_below() -> None:
    files = [path for path in sorted(EXT.glob("*.p*")) if path.suffix in (".pyx", ".pxd")]
    found = [
        offence
        for path in files
        if path.name != "__init__.pxd"
        for offence in offences(path.name, path.read_text())
    ]
    assert found == []
    assert {path.stem for path in files} - {"__init__"} == set().union(*EXT_ORDER)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wire.pyx", "from netreeve._ext.index cimport LinkTable"),
        ("wire.pyx", "from netreeve._ext cimport kernel, encode"),
        ("wire.pyx", "cimport netreeve._ext.receive"),
        ("wire.pyx", "import time"),
        ("wire.pyx", "    import logging, asyncio"),
        ("wire.pyx", "from netreeve.model import (\n    link,\n)"),
        ("wire.pyx", "from netreeve import plan"),
        ("wire.pyx", "from numpy cimport ndarray"),
        ("wire.pxd", "from netreeve.errors import KernelError"),
        ("cursor.pxd", "from netreeve._ext.wire cimport (  # why\n    Message,\n)"),
        ("newcomer.pyx", ""),
    ],
)
def test_an_offence_is_seen(name: str, text: str) -> None:
    assert offences(name, f"{text}\n") != []


def test_what_is_allowed_is_no_offence() -> None:
    text = (
        '"""from time import sleep\n"""\n'
        "import netreeve.errors\n"
        "from libc.string cimport memcpy\n"
        "from netreeve._ext cimport kernel\n"
        "from netreeve._ext.wire cimport (\n    Span,\n)\n"
    )
    assert offences("index.pyx", text) == []


def test_nothing_below_io_awaits_or_opens() -> None:
    paths = [
        path
        for name in BELOW_IO
        for path in ([SRC / name] if name.endswith(".py") else sorted((SRC / name).glob("**/*.py")))
    ]
    found = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "input", "print")
        )
    ]
    assert found == []
