"""Whose a netlink port is: notifications name the port of the request that caused them."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["process_of"]


def process_of(port: int, proc: Path = Path("/proc")) -> dict[str, object] | None:
    """{"pid", "name"} of a process that has the rtnetlink port now; None where none is to be found:
    it has ended, or is not ours to look into. Reads all of `proc`: milliseconds; blocks."""
    inode = _inode_of(port, proc)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        with contextlib.suppress(OSError):
            if _has(proc / str(pid) / "fd", wanted):
                name = (proc / str(pid) / "comm").read_text(errors="surrogateescape").strip()
                return {"pid": pid, "name": name}
    return None


def _has(descriptors: Path, wanted: str) -> bool:
    for name in os.listdir(descriptors):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(descriptors / name) == wanted:
                return True
    return False


def _inode_of(port: int, proc: Path) -> int | None:
    """net/netlink/af_netlink.c, netlink_native_seq_show: sk Eth Pid Groups … Inode."""
    with contextlib.suppress(OSError):
        for line in (proc / "thread-self" / "net" / "netlink").read_text().splitlines()[1:]:
            words = line.split()
            if int(words[1]) == socket.NETLINK_ROUTE and int(words[2]) == port:
                return int(words[-1])
    return None
