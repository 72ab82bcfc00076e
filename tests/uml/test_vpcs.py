"""The benchmark of VPCs on the kernel that has VRF: `pytest -rP tests/uml/test_vpcs.py` shows it.

A few are enough to see that it works; benchmarks/README.md has the figures of a thousand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1200)]

COUNT = "20"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "vpcs.py"


def test_vpcs_with_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--tables", "--vpcs", COUNT],
        capture_output=True,
        check=False,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("NETREEVE_")},
    )
    assert done.returncode == 0, done.stderr
    assert "unchanged pass" in done.stdout
    print(done.stdout)
