"""Taps: they are made through /dev/net/tun, not by netlink."""

from __future__ import annotations

import fcntl
import os
import struct

__all__ = ["make_tap"]

# <linux/if_tun.h>
TUNSETIFF = 0x400454CA
TUNSETPERSIST = 0x400454CB
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
IFF_TUN_EXCL = 0x8000


def make_tap(name: str) -> None:
    """Makes the persistent tap `name` in this thread's network namespace.

    OSError: EBUSY where a tap of that name is there already (IFF_TUN_EXCL: without it a stranger's
    persistent tap would silently be taken over), EINVAL where another link bears the name, ENOENT
    without /dev/net/tun.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if not 1 <= len(raw) <= 15:
        raise ValueError(f"{name!r} is no link name: 1 to 15 bytes")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", raw, IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL)
        made = fcntl.ioctl(descriptor, TUNSETIFF, request)
        assert made[:16].rstrip(b"\0") == raw
        fcntl.ioctl(descriptor, TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
