"""How long `apply` waits."""

from __future__ import annotations

from netreeve.oneshot import BUSY_S, STILL_S, Patience


def test_patience_ends_a_while_after_the_last_thing_came_right() -> None:
    patience = Patience()
    assert not patience.is_over(5, 100.0, settled=True)
    assert not patience.is_over(5, 100.0 + STILL_S, settled=True)
    assert not patience.is_over(4, 100.5 + STILL_S, settled=True)
    # Worse is no progress, and neither is as good as it was before.
    since = 100.5 + STILL_S
    assert not patience.is_over(9, since + STILL_S / 2, settled=True)
    assert not patience.is_over(4, since + STILL_S, settled=True)
    assert patience.is_over(4, since + STILL_S + 0.1, settled=True)
    assert not patience.is_over(4, since + STILL_S + 0.1, settled=False)
    assert patience.is_over(4, since + BUSY_S + 0.1, settled=False)
    assert not patience.is_over(3, since + BUSY_S + 0.2, settled=True)
