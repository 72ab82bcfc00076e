from __future__ import annotations

import pytest

from tests.support.route_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.start()
    return world
