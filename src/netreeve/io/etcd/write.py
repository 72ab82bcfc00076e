"""One write of a transaction."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Write"]


class Write(NamedTuple):
    """Put `value`, or with None delete the key. `lease` is a lease's id, 0 for none."""

    key: bytes
    value: bytes | None
    lease: int = 0
