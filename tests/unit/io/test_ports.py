"""Who has a netlink port: the real /proc, with sockets of this process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from netreeve.io.ports import process_of


def test_the_process_is_found_as_long_as_it_has_the_port() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as ours:
        ours.bind((0, 0))
        port = ours.getsockname()[0]
        found = process_of(port)
        assert found is not None
        assert found["pid"] == os.getpid()
        assert found["name"] == Path("/proc/self/comm").read_text().strip()
    assert process_of(port) is None


def test_a_port_of_another_netlink_family_is_another() -> None:
    generic = 16  # NETLINK_GENERIC of <linux/netlink.h>
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, generic) as other:
        other.bind((0x7FFF1234, 0))
        assert process_of(0x7FFF1234) is None


def test_what_can_not_be_read_is_not_known(tmp_path: Path) -> None:
    assert process_of(1, tmp_path) is None
