"""`netreeve check`, as people call it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def check(*paths: Path | str, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NETREEVE_")} | settings
    return subprocess.run(
        [sys.executable, "-m", "netreeve", "check", *map(str, paths)],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )


def test_a_good_plan_in_a_directory_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.yaml").write_text(
        "vpcs: [{name: red, table: 7, vni: 7, vtep: {local: 192.0.2.1}}]"
    )
    (tmp_path / "b.json").write_text(
        '{"endpoints": [{"id": "a/b/c", "interface": "cali1", "vpc": "red", '
        '"addresses": ["10.0.0.1", "10.0.0.2"]}]}'
    )
    done = check(tmp_path / "d", tmp_path / "b.json", tmp_path / "b.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "ok: 2 files, 1 VPC, 0 taps, 1 endpoint, 2 addresses\n"


def test_every_problem_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("endpoints: [{id: a/b/c, interface: cali1, admin: on}]\n")
    (tmp_path / "b.yaml").write_text("endpoints: [")
    (tmp_path / "c.yaml").mkdir()
    done = check(tmp_path)
    assert done.returncode == 78
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == f"{tmp_path}/a.yaml:1:50: `admin` is up or down, not 'on'"
    assert lines[1].startswith(f"{tmp_path}/b.yaml:1:13: ")
    assert lines[2] == f"{tmp_path}/c.yaml: this is no regular file"


def test_a_path_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    done = check(tmp_path / "nope")
    assert done.returncode == 64
    assert done.stderr == f"netreeve: {tmp_path}/nope is not there\n"
    assert check().returncode == 64


def test_an_empty_plan_is_good_with_a_word(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 0
    assert "NETREEVE_ALLOW_EMPTY_PLAN=true" in done.stdout


@pytest.mark.parametrize("prefixes", ["pod", "pod,eni"])
def test_the_naming_comes_from_the_settings(tmp_path: Path, prefixes: str) -> None:
    (tmp_path / "a.yaml").write_text("endpoints: [{id: a/b/c, interface: pod1}]")
    assert check(tmp_path).returncode == 78
    assert check(tmp_path, NETREEVE_ENDPOINT_PREFIXES=prefixes).returncode == 0


def test_names_can_not_take_over_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m.yaml").write_text("x: 1")
    done = check(tmp_path)
    assert done.returncode == 78
    assert "\x1b" not in done.stderr
