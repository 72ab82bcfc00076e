"""Names and other foreign text, for people and for machines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.model.ids import EndpointId
from netreeve.model.text import json_bytes, printable, safe


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"cali1", "cali1"),
        (b"cali\x1b[31m", r"cali\x1b[31m"),
        (b"a\nb\x00\x7f", r"a\x0ab\x00\x7f"),
        (b"tap\xff\x80", r"tap\xff\x80"),
        ("tapé日".encode(), "tapé日"),
        ("\u202eevil".encode(), r"\u202eevil"),
        ("\u0085\u00a0".encode(), r"\u0085\u00a0"),
        ("\U000e0001".encode(), r"\U000e0001"),
        (rb"\x1b", r"\\x1b"),
    ],
)
def test_printable(raw: bytes, shown: str) -> None:
    assert printable(raw.decode("utf-8", "surrogateescape")) == shown


@given(st.binary(max_size=15), st.binary(max_size=15))
def test_printable_is_one_safe_line_and_tells_names_apart(one: bytes, other: bytes) -> None:
    first, second = (printable(raw.decode("utf-8", "surrogateescape")) for raw in (one, other))
    assert first.isprintable()
    assert (first == second) == (one == other)


@given(st.text(st.characters(exclude_categories=())))
def test_safe_is_one_safe_line_and_leaves_what_is_safe(text: str) -> None:
    assert safe(text).isprintable()
    assert safe(printable(text)) == printable(text)
    assert safe("a\\b\nc") == "a\\b\\x0ac"


def test_json_of_a_name_that_is_no_utf8_keeps_its_bytes() -> None:
    name = b"tap\xff".decode("utf-8", "surrogateescape")
    line = json_bytes({"name": name, "other": "é"})
    assert rb"tap\udcff" in line
    assert json.loads(line) == {"name": name, "other": "é"}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(exclude_categories=()))
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_json_round_trip_on_one_line(value: object) -> None:
    line = json_bytes(value)
    assert b"\n" not in line
    assert json.loads(line) == value


@pytest.mark.parametrize("beside", ["plain", "\udcff"])
def test_json_asks_default_for_the_same_objects_whichever_encoder_answers(beside: str) -> None:
    endpoint = EndpointId.parse("k8s/web/eth0")
    with pytest.raises(TypeError):
        json_bytes([beside, endpoint])
    assert json.loads(json_bytes([beside, endpoint], str)) == [beside, "k8s/web/eth0"]
