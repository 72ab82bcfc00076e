"""The recorded datagrams of tests/captures (README.md there says what each file holds)."""

from __future__ import annotations

import functools
import json
import lzma
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "captures"
NAMES = tuple(sorted(path.name.removesuffix(".bin.xz") for path in FOLDER.glob("*.bin.xz")))


@dataclass(frozen=True, slots=True)
class Record:
    """One datagram; `socket` is "E" (events) or "D" (dump)."""

    data: bytes
    sender_portid: int
    truncated: bool
    socket: str


def load(name: str) -> list[Record]:
    """The records of one capture, in the order they were read."""
    raw = lzma.decompress((FOLDER / f"{name}.bin.xz").read_bytes())
    records = []
    offset = 0
    for known in about(name)["records"]:
        (size,) = struct.unpack_from("<I", raw, offset)
        data = raw[offset + 4 : offset + 4 + size]
        assert len(data) == size
        records.append(Record(data, **known))
        offset += 4 + size
    assert offset == len(raw)
    return records


def about(name: str) -> dict[str, Any]:
    """What is known of a capture besides its bytes."""
    known: dict[str, Any] = json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    return known


@functools.cache
def messages() -> tuple[bytes, ...]:
    """Every distinct message of all captures, without padding."""
    found: dict[bytes, None] = {}
    for name in NAMES:
        for record in load(name):
            data, offset = record.data, 0
            while offset + 16 <= len(data):
                (size,) = struct.unpack_from("<I", data, offset)
                if size < 16 or offset + size > len(data):
                    break  # the truncated one
                found[data[offset : offset + size]] = None
                offset += (size + 3) & ~3
    return tuple(found)


@functools.cache
def shapes() -> tuple[bytes, ...]:
    """The shortest message of each shape: same type, family and top-level attributes."""
    shortest: dict[object, bytes] = {}
    for message in sorted(messages(), key=len):
        shortest.setdefault(_shape(message), message)
    return tuple(shortest.values())


def _shape(message: bytes) -> object:
    (type_,) = struct.unpack_from("<H", message, 4)
    header = {2: 20, 3: 4, 16: 16, 17: 16, 20: 8, 21: 8}.get(type_, 12)
    attributes = set()
    offset = 16 + header
    while offset + 4 <= len(message):
        size, kind = struct.unpack_from("<HH", message, offset)
        if size < 4:
            break
        attributes.add(kind & 0x3FFF)
        offset += (size + 3) & ~3
    # An answer has no family; its flags say where its attributes start.
    return type_, message[16] if type_ > 15 else message[6:8], frozenset(attributes)
