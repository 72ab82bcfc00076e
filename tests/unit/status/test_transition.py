from __future__ import annotations

import json

import pytest

from netreeve.status import transition
from netreeve.status.transition import Transition

UP = Transition(
    7, "k8s/web/eth0", "u1", "up", "down", None, "cali1", 12, False, "2026-01-02T03:04:05.678Z"
)


def test_members_and_their_order_are_those_of_the_product_page() -> None:
    assert transition.encode(UP) == (
        b'{"seq":7,"endpoint":"k8s/web/eth0","uid":"u1","status":"up","previous":"down",'
        b'"reason":null,"link":"cali1","ifindex":12,"inferred":false,'
        b'"observed":"2026-01-02T03:04:05.678Z"}'
    )


@pytest.mark.parametrize(
    ("change", "members"),
    [
        ({"routes": "unconfirmed"}, {"routes": "unconfirmed"}),
        ({"status": "down", "inferred": True, "flaps": 3}, {"flaps": 3}),
        (
            {"status": "gap", "endpoint": "", "link": "", "since": "t"},
            {"lost": None, "since": "t"},
        ),
        ({"status": "gap", "lost": 9, "since": "t"}, {"lost": 9, "since": "t"}),
    ],
)
def test_further_members_come_last_and_only_where_they_mean_something(
    change: dict[str, object], members: dict[str, object]
) -> None:
    from dataclasses import replace

    one = replace(UP, **change)  # type: ignore[arg-type]
    record = json.loads(transition.encode(one))
    assert dict(list(record.items())[10:]) == members
    assert transition.decode(transition.encode(one)) == one


def test_a_link_name_that_is_no_utf8_survives() -> None:
    from dataclasses import replace

    one = replace(UP, link="a\udcffb")
    assert b'"a\\udcffb"' in transition.encode(one)
    assert transition.decode(transition.encode(one)) == one


def test_members_of_later_versions_are_skipped() -> None:
    assert transition.decode(transition.encode(UP)[:-1] + b',"new":[1]}') == UP


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b"{", transition.encode(UP)[:-2], b'{"seq":1}', b"\xff",
     transition.encode(UP).replace(b'"seq":7', b'"seq":"7"'),
     transition.encode(UP).replace(b'"status":"up"', b'"status":"odd"')],
)  # fmt: skip
def test_what_is_no_transition_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        transition.decode(line)


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_999_999_999, "2023-11-14T22:13:20.999Z"),
        (951_782_400_001_000_000, "2000-02-29T00:00:00.001Z"),
    ],
)
def test_observed_text(unix_ns: int, text: str) -> None:
    assert transition.observed_text(unix_ns) == text
