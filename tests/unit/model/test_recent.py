"""A bounded memory keeps what came last."""

from __future__ import annotations

from netreeve.model.recent import Recent


def test_the_oldest_is_forgotten() -> None:
    memory: Recent[str, int] = Recent(2)
    memory.put("a", 1)
    memory.put("b", 2)
    memory.put("a", 3)
    memory.put("c", 4)
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (3, None, 4)
    assert len(memory) == 2
