"""Whatever happens to a document: a plan, or PlanError with places inside the file."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import yaml
from hypothesis import given
from hypothesis import strategies as st

from netreeve.errors import PlanError
from netreeve.model.ownership import Scheme
from netreeve.plan import json_tree, schema, yaml_tree
from netreeve.plan.document import Document, Malformed
from netreeve.plan.loading import load as load_plan
from netreeve.plan.model import Plan
from netreeve.plan.tree import plain

SCHEME = Scheme()
VALID: dict[str, Any] = {
    "vpcs": [
        {"name": "red", "table": 1001, "vni": 1001, "mac": "02:00:00:00:10:01", "mtu": 1450,
         "vtep": {"local": "192.0.2.1", "port": 4789, "ttl": 64}, "addresses": ["10.1.0.1/24"]},
        {"name": "blue", "table": 1002, "vni": 1002, "vtep": {"local": "fd00::1"}},
    ],
    "taps": [{"name": "eth0", "mtu": 1500, "controller": "red-bri"}],
    "endpoints": [
        {"id": "a/b/c", "interface": "tap1", "addresses": ["10.65.0.2", "fd00:65::2"],
         "uid": "6f1c", "admin": "up", "vpc": "red"},
        {"id": "a/b/d", "interface": "cali2", "addresses": ["10.65.0.3"]},
    ],
}  # fmt: skip
TEXTS = {
    "yaml": yaml.safe_dump(VALID, sort_keys=False),
    "yml": "%YAML 1.1\n---\nendpoints: &a\n- &b {id: a/b/c, interface: cali1}\n- {<<: *b, id: é}\n",
    "json": json.dumps(VALID, indent=1),
}
fragments = st.sampled_from(
    ["", "\n", "  ", "\t", "-", ":", "{", "}", "[", "]", '"', "'", "&x", "*x", "<<", "? ", "!!int ",
     "\0", "\x85", "\u2028", "\ufeff", "\ud7ff", "\U0001f600", "| \n", "...\n", "---\n", "%", "#",
     "null", "1e9", "\\u0000", ",", "é"]
)  # fmt: skip
edits = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 40), fragments | st.text(max_size=4)), max_size=4
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
    | st.sampled_from(["10.0.0.1", "red", "a/b/c", "cali2", "254", "02:00:00:00:00:01", 0, 255]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["id", "name", "vtep", "x", "local"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def outcome(suffix: str, data: bytes) -> Plan | PlanError:
    """The plan or the error; every place is in the file."""
    try:
        return load_plan([Document(f"a.{suffix}", data)], SCHEME)
    except PlanError as error:
        lines = data.decode("utf-8-sig", "replace").split("\n")
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines)
            assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
            assert problem.message
        return error


@given(st.sampled_from(sorted(TEXTS)), edits)
def test_edited_text(suffix: str, changes: list[tuple[int, int, str]]) -> None:
    text = TEXTS[suffix]
    for at, length, new in changes:
        at %= len(text) + 1
        text = text[:at] + new + text[at + length :]
    outcome(suffix, text.encode("utf-8", "surrogatepass"))


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 2000), st.binary(max_size=3))
def test_edited_bytes(suffix: str, at: int, new: bytes) -> None:
    data = TEXTS[suffix].encode()
    at %= len(data) + 1
    outcome(suffix, data[:at] + new + data[at + len(new) :])


@given(st.sampled_from(sorted(TEXTS)))
def test_every_half_written_file(suffix: str) -> None:
    data = TEXTS[suffix].encode()
    for end in range(len(data)):
        outcome(suffix, data[:end])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below `value`."""
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    below = [place for _, item in pairs if isinstance(item, dict | list) for place in places(item)]
    return [(value, key) for key, _ in pairs] + below


@given(st.data(), values, st.sampled_from(["set", "remove", "add", "repeat"]))
def test_edited_values(data: st.DataObject, value: Any, how: str) -> None:
    raw = copy.deepcopy(VALID)
    container, key = data.draw(st.sampled_from(places(raw)))
    if how == "set":
        container[key] = value
    elif how == "remove":
        del container[key]
    elif isinstance(container, list):
        container.append(value if how == "add" else copy.deepcopy(container[key]))
    else:
        container[data.draw(st.sampled_from(["uid", "mac", "colour", ""]))] = value
    text = json.dumps(raw)
    made = outcome("json", text.encode())
    as_yaml = outcome("yaml", yaml.safe_dump(raw, allow_unicode=True).encode("utf-8", "replace"))
    assert isinstance(made, Plan) == isinstance(as_yaml, Plan)
    if isinstance(made, Plan):
        assert made == as_yaml
    check_shape(text)


def check_shape(text: str) -> None:
    """`explain` finds a flaw exactly where msgspec refuses, and both JSON readers agree."""
    try:
        tree = json_tree.parse(text)
    except Malformed:  # NaN and its like: the quick reader has to refuse as well
        tree = None
    try:
        msgspec.convert(json_tree.read(text), schema.Entries)
    except ValueError:
        assert tree is None or list(schema.explain(tree.roots[0]))
        return
    assert tree is not None
    assert not list(schema.explain(tree.roots[0]))
    assert plain(tree.roots[0]) == json_tree.read(text)


@given(values)
def test_json_reads_as_yaml(value: Any) -> None:
    """JSON texts mean the same to the YAML reader, where both can read them."""
    text = json.dumps(value)
    if "NaN" in text or "Infinity" in text:
        return
    assert plain(json_tree.parse(text).roots[0]) == json_tree.read(text)
    if not any(mark in text for mark in ("\\ud", "e+", "E+")):
        assert plain(yaml_tree.parse(text).roots[0]) == json_tree.read(text)
