"""The build and its rules: what is shipped, what is pinned, what the compiler must refuse."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXT = ROOT / "ext" / "netreeve" / "_ext"
STUBS = ROOT / "src" / "netreeve" / "_ext"
MODULES = sorted(path.stem for path in EXT.glob("*.pyx"))

# A compiled file is longer for its declarations, and cutting it in two costs calls on the hot path.
MOST_LINES = {".py": 600, ".pyi": 600, ".pyx": 800, ".pxd": 600}

pytest_plugins = ["pytester"]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(command: list[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", *(f"{key}={value}" for key, value in env.items()), *command],
        cwd=cwd,
        capture_output=True,
        check=False,
        text=True,
    )


def copy_sources(to: Path) -> None:
    """What a fresh clone has, as far as the build is concerned."""
    files = "pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE"
    for name in files.split():
        shutil.copy(ROOT / name, to / name)
    made_here = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    for name in ("src", "ext"):
        shutil.copytree(ROOT / name, to / name, ignore=made_here)


# ── what is shipped ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(600)
def test_the_sdist_makes_a_wheel_with_everything_that_runs_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    copy_sources(source)
    backend = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    made = run([sys.executable, "-c", backend], source)
    assert made.returncode == 0, made.stderr
    (sdist,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"ext/netreeve/_ext/{name}.pyx" for name in MODULES} <= inside
    assert {"LICENSE", "README.md", "CHANGELOG.md", "src/netreeve/py.typed"} <= inside
    assert not [name for name in inside if name.endswith((".c", ".so", ".pyc"))]

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps"]
    made = run([*pip, "wheel", *offline, "--no-build-isolation", "-w", ".", str(sdist)], tmp_path)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".c", ".pyx", ".pxd"))]
    for name in MODULES:
        assert f"netreeve/_ext/{name}.pyi" in names
        assert [at for at in names if re.fullmatch(rf"netreeve/_ext/{name}\..*\.so", at)]
    assert "netreeve/py.typed" in names
    packages = {path.parent.relative_to(ROOT / "src") for path in STUBS.parent.rglob("*.py")}
    assert packages == {Path(name).parent for name in names if name.endswith(".py")}

    installed = tmp_path / "installed"
    made = run([*pip, "install", *offline, "--target", str(installed), str(wheel)], tmp_path)
    assert made.returncode == 0, made.stderr
    here = {"PYTHONPATH": str(installed)}
    origin = "import netreeve._ext.wire as wire; print(wire.__file__)"
    assert run([sys.executable, "-c", origin], tmp_path, **here).stdout.startswith(str(installed))
    told = run([str(installed / "bin" / "netreeve"), "--version"], tmp_path, **here)
    assert told.stdout == f"netreeve {pyproject()['project']['version']}\n"


def test_every_compiled_module_is_built_and_has_a_stub() -> None:
    names = re.search(r"^NAMES = \[(.*)\]$", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert names is not None
    assert re.findall(r'"(\w+)"', names[1]) == MODULES
    assert sorted(path.stem for path in STUBS.glob("*.pyi")) == MODULES


# ── what the compiler refuses ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seeded", "warning"),
    [
        ("cdef uint16_t cut(uint32_t wide) noexcept nogil:\n    return wide", "-Werror=conversion"),
        ("cdef int cut(Py_ssize_t wide) noexcept nogil:\n    return wide", "-Werror=conversion"),
        (
            "cdef bint less(int left, uint32_t right) noexcept nogil:\n    return left < right",
            "-Werror=sign-compare",
        ),
        ("cdef uint16_t same(uint16_t wide) noexcept nogil:\n    return wide", None),
    ],
    ids=["unsigned", "signed", "comparison", "clean"],
)
def test_a_narrowing_does_not_compile(tmp_path: Path, seeded: str, warning: str | None) -> None:
    """Cython narrows C integers without a word (70000 becomes 4464); the compiler must not."""
    setup = (ROOT / "setup.py").read_text()
    (tmp_path / "setup.py").write_text(re.sub(r"NAMES = \[.*\]", 'NAMES = ["seeded"]', setup))
    package = tmp_path / "ext" / "netreeve" / "_ext"
    package.mkdir(parents=True)
    (package / "seeded.pyx").write_text(
        "from libc.stdint cimport uint16_t, uint32_t\n\n"
        f"{seeded}\n\n"
        f"def call(value):\n    return {seeded.split('(')[0].split()[-1]}"
        f"({'value, value' if ',' in seeded else 'value'})\n"
    )
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "made"]
    made = run(command, tmp_path, NETREEVE_BUILD_WERROR="1")
    if warning is None:
        assert made.returncode == 0, made.stderr
    else:
        assert made.returncode != 0
        assert warning in made.stderr


# ── what is pinned ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", ("project", "dependencies")),
        ("requirements-build.lock", ("build-system", "requires")),
        ("requirements-dev.lock", ("dependency-groups", "test")),
        ("requirements-dev.lock", ("dependency-groups", "lint")),
    ],
)
def test_a_lock_has_what_pyproject_asks_for(lock: str, wanted: tuple[str, str]) -> None:
    text = (ROOT / lock).read_text()
    pins = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }
    requirements = [Requirement(line) for line in pyproject()[wanted[0]][wanted[1]]]
    assert requirements
    for requirement in requirements:
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not in {lock}: make lock"
        assert requirement.specifier.contains(pinned), f"{requirement} but {pinned}: make lock"
    assert text.count("==") <= text.count("--hash=")
    assert "://" not in text


def test_the_locks_agree() -> None:
    pins: dict[str, set[str]] = {}
    for lock in ROOT.glob("requirements*.lock"):
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock.read_text(), re.MULTILINE):
            pins.setdefault(name, set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}


# ── rules that no linter knows ──────────────────────────────────────────────────────────────────


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for folder in ("src", "ext", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.p*")
        if path.suffix in MOST_LINES
    }
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES[path.suffix]} == {}


def test_make_help_shows_every_target_that_the_guides_name() -> None:
    shown = run(["make", "--no-print-directory", "help"], ROOT, MAKEFLAGS="")
    targets = set(re.findall(r"^make (\w+) ", shown.stdout, re.MULTILINE))
    assert {"help", "venv", "build", "demo", "test", "lint", "bench", "clean"} <= targets
    for guide in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        calls = re.findall(
            r"(?:^|`) *make ((?:[a-z]+ ?)+)", (ROOT / guide).read_text(), re.MULTILINE
        )
        named = {word for words in calls for word in words.split()}
        assert named
        assert named <= targets, f"{guide} names targets that are not there"


def test_links_between_documents_lead_somewhere() -> None:
    guides = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [
        (guide, target)
        for guide in guides
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", guide.read_text())
    ]
    assert links
    assert [(str(g), target) for g, target in links if not (g.parent / target).exists()] == []


def test_a_skipped_test_has_failed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}\nasyncio_default_fixture_loop_scope=function")
    pytester.makepyfile(
        test_skips="import pytest\n\ndef test_it():\n    pytest.skip('no etcd')\n",
        test_absent="import pytest\n\npytest.importorskip('no_such_module')\n",
        test_expected="import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    assert False\n",
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result = pytester.runpytest_subprocess("test_skips.py", "test_expected.py")
    result.assert_outcomes(failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["*no test may be skipped (*no etcd)"])


def test_an_async_test_that_hangs_fails_under_either_loop(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makeini(
        f"[pytest]\npythonpath = {ROOT}\nasyncio_mode = auto\n"
        "asyncio_default_fixture_loop_scope = function\ntimeout = 60\n"
    )
    pytester.makepyfile(
        "import asyncio, pytest\n\n@pytest.mark.timeout(0.2)\nasync def test_it():\n"
        "    while True:\n        await asyncio.sleep(0.01)\n"
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E *TimeoutError"])
