"""Endpoint ids: one canonical text for each, and words for what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.model.ids import MAX_ID_CHARS, EndpointId

parts = st.text(
    st.characters(exclude_categories=("C", "Z"), include_characters="/% "), min_size=1, max_size=20
)


def test_parts_are_decoded() -> None:
    found = EndpointId.parse("k8s/default%2Fweb-0/eth0")
    assert found == EndpointId("k8s", "default/web-0", "eth0")
    assert str(found) == "k8s/default%2Fweb-0/eth0"


def test_lower_case_escape_becomes_canonical() -> None:
    assert str(EndpointId.parse("k8s/a%2fb/e")) == "k8s/a%2Fb/e"


def test_an_escaped_percent_sign_starts_no_escape() -> None:
    assert EndpointId.parse("o/%252F/e").workload == "%2F"


@given(parts, parts, parts)
def test_text_and_back(orchestrator: str, workload: str, endpoint: str) -> None:
    made = EndpointId(orchestrator, workload, endpoint)
    assert EndpointId.parse(str(made)) == made


@given(st.text(max_size=30))
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    try:
        found = EndpointId.parse(text)
    except ValueError:
        return
    assert EndpointId.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a/b", "has 2 parts, not three"),
        ("abc", "has 1 part, not three"),
        ("a/b/c/d", "has 4 parts, not three"),
        ("a//c", "empty part"),
        ("a/%20/c", "'%20' is no escape"),
        ("a/b%/c", "'%' is no escape"),
        ("a/b/c%2", "'%2' is no escape"),
        ("a/b\n/c", "can't be printed"),
        ("a/b\ud800/c", "can't be printed"),
        ("a/b/" + "c" * MAX_ID_CHARS, "more than 1024"),
    ],
)
def test_what_is_no_id_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        EndpointId.parse(text)
    assert words in str(caught.value)


def test_ids_are_ordered_by_their_parts() -> None:
    assert sorted(map(EndpointId.parse, ["b/a/a", "a/b/a", "a/a/b"])) == [
        ("a", "a", "b"),
        ("a", "b", "a"),
        ("b", "a", "a"),
    ]
