"""Route ownership stands on the same semantics here: all of tests/kernel/test_requests.py."""

from __future__ import annotations

from tests.kernel.test_requests import *  # noqa: F403
