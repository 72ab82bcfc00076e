"""What is collected here runs in the second kernel (tests/support/uml.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import uml


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(uml.plugin(config, Path(__file__).parent))
