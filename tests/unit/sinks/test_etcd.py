"""Keys, values and the URL of the etcd sink, without etcd; the store itself is in tests/etcd."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve import sinks
from netreeve.model.ids import EndpointId
from netreeve.sinks.etcd import Writer
from netreeve.sinks.etcd_layouts import Calico, Layout, Native
from netreeve.status import transition
from tests.support.transitions import flap

NATIVE, CALICO, WEST = Native("n1"), Calico("n1", None), Calico("n1", "west")
part = st.text("aä/%25fF -", min_size=1, max_size=6)


def test_keys() -> None:
    id_ = str(EndpointId("k8s", "default/a%b", "eth0"))
    assert NATIVE.key(id_) == b"/netreeve/v1/n1/endpoint/k8s/default%2Fa%25b/eth0"
    assert NATIVE.key("") == b"/netreeve/v1/n1/gap"
    host = b"/calico/felix/v2/no-region/host/n1/"
    assert CALICO.key(id_) == host + b"workload/k8s/default%2fa%25b/endpoint/eth0"
    assert CALICO.liveness == (host + b"status", host + b"last_reported_status")
    assert WEST.key(id_).startswith(b"/calico/felix/v2/region-west/host/n1/workload/")
    assert NATIVE.liveness is None


@pytest.mark.parametrize("layout", [NATIVE, CALICO, WEST])
def test_the_writer_key_is_where_nobody_watches(layout: Layout) -> None:
    watched = (b"/netreeve/v1/", b"/calico/")
    assert not layout.writer_key.startswith(watched)
    assert len({each.writer_key for each in (NATIVE, CALICO, WEST, Calico("n2", None))}) == 4


@given(st.tuples(part, part, part), st.tuples(part, part, part))
def test_different_endpoints_have_different_keys_below_the_prefix(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    for layout in (NATIVE, CALICO):
        keys = [layout.key(str(EndpointId(*each))) for each in (one, other)]
        assert (keys[0] == keys[1]) == (one == other)
        for key in keys:
            assert key.startswith(layout.prefix)
            assert key.removeprefix(layout.prefix).count(b"/") == (2 if layout is NATIVE else 3)


def test_values() -> None:
    up = flap(1)
    assert NATIVE.value(up) == transition.encode(up)
    assert NATIVE.agrees(NATIVE.value(up), up)
    later_version = NATIVE.value(up).replace(b'{"seq"', b'{"new":1,"seq"')
    assert NATIVE.agrees(later_version, up)
    assert not NATIVE.agrees(NATIVE.value(flap(2)), up)
    assert CALICO.value(up) == b'{"status":"up"}'
    assert CALICO.agrees(b'{"status": "up", "more": 1}', up)
    for value in (b'{"status":"down"}', b"{}", b'"up"', b"10", b"", b"{"):
        assert not CALICO.agrees(value, up)
        assert not NATIVE.agrees(value, up)
    gap = dataclasses.replace(up, endpoint="", status="gap")
    assert NATIVE.records(gap)
    assert not CALICO.records(gap)


def test_the_writer_as_json() -> None:
    writer = Writer(3, 42, "2026-01-02T03:04:05.678Z", "abc")
    assert Writer.decode(writer.encode()) == writer
    assert Writer.decode(b'{"id":"abc","epoch":1,"seq":0,"observed":"","more":[]}').epoch == 1
    for value in (b"", b"{}", b"[]", b'{"epoch":"1","seq":0,"observed":"","id":"a"}'):
        with pytest.raises(ValueError, match=r"."):
            Writer.decode(value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd:h:2379", "`//HOST:PORT` must follow"),
        ("etcd://", "no HOST:PORT"),
        ("etcd://h", "'h' is no HOST:PORT"),
        ("etcd://h:1/prefix", "no HOST:PORT"),
        ("etcd://user:pw@h:1", "no HOST:PORT"),
        ("etcd://h:1,h:1", "is there twice"),
        ("etcd://h:1?layout=felix", "layout is native or calico"),
        ("etcd://h:1?layout=native&layout=calico", "each once"),
        ("etcd://h:1?ttl=3", "no parameter 'ttl'"),
        ("etcd://h:1?region=a", "with calico only"),
        ("etcd://h:1?layout=calico&region=", "region is a name"),
        ("etcd://h:1?layout=calico&region=a%2Fb", "region is a name"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        sinks.parse(url)


def test_urls() -> None:
    text = "etcd://h:2379,i:2379?layout=calico&region=west,jsonl:/a,etcd://[fd00::1]:2379"
    assert [sink.url for sink in sinks.parse(text)] == [
        "etcd://h:2379,i:2379?layout=calico&region=west", "jsonl:/a", "etcd://[fd00::1]:2379",
    ]  # fmt: skip
