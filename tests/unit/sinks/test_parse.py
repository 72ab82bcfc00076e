from __future__ import annotations

import pytest

from netreeve import sinks
from netreeve.sinks import jsonl


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("jsonl:/var/lib/netreeve/status.jsonl", ["jsonl:/var/lib/netreeve/status.jsonl"]),
        ("jsonl:-", ["jsonl:-"]),
        ("jsonl:/a,b", ["jsonl:/a,b"]),
        ("jsonl:/a,jsonl:-", ["jsonl:/a", "jsonl:-"]),
        ("files:/run/a,b,jsonl:/a", ["files:/run/a,b", "jsonl:/a"]),
        ("jsonl:/a?max_bytes=4096&keep=1,jsonl:/b", ["jsonl:/a?max_bytes=4096&keep=1", "jsonl:/b"]),
    ],
)
def test_a_comma_before_a_scheme_separates(text: str, urls: list[str]) -> None:
    assert [sink.url for sink in sinks.parse(text)] == urls


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no sink of this version"),
        ("/a", "no sink of this version"),
        ("jsonl:/a,file:/b", "'file:/b' is no sink"),
        ("files:", "an absolute path"),
        ("files:a/b", "an absolute path"),
        ("files:/", "no path of a directory of its own"),
        ("files:/a/..", "no path of a directory of its own"),
        ("files:/a%00", "no path of a directory of its own"),
        ("files:/a?keep=1", "has no parameters"),
        ("jsonl:/a,jsonl:/a", "is there twice"),
        ("jsonl:", "an absolute path, or `-`"),
        ("jsonl:a/b", "an absolute path, or `-`"),
        ("jsonl:/a/", "no path of a file"),
        ("jsonl:/a%00", "no path of a file"),
        ("jsonl:-?keep=2", "no parameters"),
        ("jsonl:/a?kepp=2", "no parameter 'kepp': max_bytes, keep"),
        ("jsonl:/a?keep=0", "keep is a whole number from 1 to 1000"),
        ("jsonl:/a?keep=", "keep is a whole number"),
        ("jsonl:/a?max_bytes=1e9", "max_bytes is a whole number from 4096"),
        ("jsonl:/a?max_bytes=" + "9" * 5000, "max_bytes is a whole number"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        sinks.parse(text)
    assert words in str(caught.value)


def test_parsing_touches_nothing(tmp_path: object) -> None:
    (sink,) = sinks.parse(f"jsonl:{tmp_path}/new/status.jsonl")
    assert isinstance(sink, jsonl.JsonlFile)
    assert not (tmp_path / "new").exists()  # type: ignore[operator]
