"""Transitions to fill a journal with, and a disk that is full on demand."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from netreeve.model.ids import EndpointId
from netreeve.status.transition import Gap, Transition

__all__ = ["closing", "filled", "flap", "small_disk"]

OBSERVED = "2026-01-02T03:04:05.678Z"


def flap(seq: int, endpoint: str = "k8s/web/eth0", reason: str | None = None) -> Transition:
    """An `up` where `seq` is odd, else a `down`."""
    status, previous = ("up", "down") if seq % 2 else ("down", "up")
    return Transition(
        seq, endpoint, None, status, previous, reason, "cali1", 12, False, OBSERVED  # type: ignore[arg-type]
    )  # fmt: skip


def closing(gap: Gap, recorded: Mapping[EndpointId, Transition], next_seq: int) -> list[Transition]:
    """What a fold with the one endpoint of `flap`, now up, says after a gap."""
    head = Transition(
        next_seq, "", None, "gap", None, gap.reason, "", None, False, OBSERVED,
        lost=gap.lost, since=gap.since,
    )  # fmt: skip
    before = recorded.get(EndpointId("k8s", "web", "eth0"))
    up = Transition(
        next_seq + 1, "k8s/web/eth0", None, "up", before.status if before else None, None,
        "cali1", 12, False, OBSERVED,
    )  # fmt: skip
    return [head, up]


@contextmanager
def small_disk(path: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of its own on `path`. Needs root."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def filled(path: Path) -> Path:
    """Fill the disk that `path` is on, to the last byte, with a file; remove it to make room."""
    ballast = path / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    os.sync()
    return ballast
