"""Decode with an unreadable page right behind the last byte: one byte too many is a SIGSEGV.

Ordinary tests and AddressSanitizer miss an over-read of a Python buffer. Run as a process of its
own, `python -m tests.support.guard wire|details|overread`: it prints what it decoded, or dies. With
`overread` it reads a byte too many itself, so that a test can see that the guard works.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import struct
import sys
import time
from collections.abc import Iterator

from netreeve._ext import details, wire
from tests.support import captures, messages

PROT_NONE = 0
VALUES = (0, 1, 3, 4, 5, 7, 8, 20, 127, 255)


class Guard:
    """Room for 128 KiB, and then the page that must not be read."""

    def __init__(self) -> None:
        self.size = 128 * 1024
        self._map = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.end = address + self.size
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if libc.mprotect(self.end, mmap.PAGESIZE, PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._view = memoryview(self._map)

    def place(self, data: bytes) -> memoryview:
        """A copy of `data` whose last byte is the last one that can be read."""
        place = self._view[self.size - len(data) : self.size]
        place[:] = data
        return place


def prefixes(message: bytes) -> Iterator[bytes]:
    """Every prefix, or of a message over 2 KB, which is one long attribute, some of the rest."""
    for size in (*range(min(len(message), 2048)), *range(2048, len(message), 61)):
        yield message[:size]


def said_whole(prefix: bytes) -> bytes:
    """A prefix whose nlmsg_len says that it is the whole message: the attributes are cut."""
    return struct.pack("=I", len(prefix)) + prefix[4:] if len(prefix) >= 4 else prefix


def mutated(message: bytes) -> Iterator[bytes]:
    """Each byte that may be one of a length (all lengths are at multiples of four) made wrong."""
    changed = bytearray(message)
    for offset in range(0, min(len(message), 4096), 4):
        for place in (offset, offset + 1):
            if place < len(message):
                original = message[place]
                for value in {*VALUES, (original - 1) & 255, (original + 1) & 255} - {original}:
                    changed[place] = value
                    yield bytes(changed)
                changed[place] = original


def main(which: str) -> None:
    guard = Guard()
    if which == "overread":
        ctypes.string_at(guard.end - 1, 2)
    started = time.perf_counter()
    counts = {"datagrams": 0, "messages": 0, "faults": 0, "ignored": 0}

    def decode(data: bytes) -> None:
        counts["datagrams"] += 1
        if which == "wire":
            decoded = wire.decode(guard.place(data))
            counts["messages"] += len(decoded.messages)
            counts["faults"] += decoded.faults
            counts["ignored"] += decoded.ignored
        else:
            found = details.decode_links(guard.place(data))
            counts["messages"] += len(found.items)
            counts["faults"] += found.faults
            counts["ignored"] += found.ignored

    whole, shapes = captures.messages(), captures.shapes()
    if which == "details":
        # What else it decodes goes through wire's functions, as wire does it.
        whole = tuple(message for message in whole if message[4] == messages.RTM_NEWLINK)
        shapes = tuple(message for message in shapes if message[4] == messages.RTM_NEWLINK)
        shapes += tuple(messages.of_our_kinds())
    for message in whole:
        decode(message)
        for prefix in prefixes(message):
            decode(said_whole(prefix))
    for message in shapes:
        for prefix in prefixes(message):
            decode(prefix)
            decode(said_whole(prefix))
        for data in mutated(message):
            decode(data)
    print(json.dumps(counts | {"seconds": round(time.perf_counter() - started, 1)}))


if __name__ == "__main__":
    main(sys.argv[1])
