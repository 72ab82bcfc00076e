from __future__ import annotations

import pytest

from netreeve.model.backoff import Backoff


def test_it_doubles_from_min_to_max_with_jitter_in_the_upper_half() -> None:
    backoff = Backoff(100, 1000)
    assert [backoff.delay_s(n, 0.0) for n in (1, 2, 3, 4, 5, 9)] == [
        0.05, 0.1, 0.2, 0.4, 0.5, 0.5,
    ]  # fmt: skip
    assert backoff.delay_s(1, 0.5) == pytest.approx(0.075)
    assert 0.999 < backoff.delay_s(9, 0.999999) < 1.0
    assert backoff.longest_s(0.0) == 0.5


def test_years_of_failures_are_no_overflow() -> None:
    assert Backoff(100, 30_000).delay_s(1 << 62, 0.0) == 15.0


def test_no_failure_counts_as_one() -> None:
    assert Backoff(100, 1000).delay_s(0, 0.0) == Backoff(100, 1000).delay_s(1, 0.0)


@pytest.mark.parametrize(("min_ms", "max_ms"), [(0, 10), (-1, 10), (11, 10), (float("nan"), 1)])
def test_bounds_that_make_no_sense_are_refused(min_ms: float, max_ms: float) -> None:
    with pytest.raises(ValueError, match="min_ms"):
        Backoff(min_ms, max_ms)
