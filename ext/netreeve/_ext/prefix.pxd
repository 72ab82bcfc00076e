"""Addresses and prefixes as rtnetlink carries them: a family, its bytes, and a length in bits."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from netreeve._ext cimport kernel


cdef inline size_t address_size(uint8_t family) noexcept nogil:
    """Bytes of an address, 0 for a family that is not for us."""
    if family == kernel.AF_INET:
        return 4
    if family == kernel.AF_INET6:
        return 16
    return 0


cdef inline bint has_host_bits(
    const uint8_t* address, size_t size, uint8_t prefix_len
) noexcept nogil:
    """Whether any bit behind the prefix is set; `prefix_len` is at most 8 * size."""
    cdef size_t index = prefix_len >> 3
    cdef uint8_t partial = prefix_len & 7
    if partial != 0:
        if address[index] & (0xff >> partial):
            return True
        index += 1
    while index < size:
        if address[index] != 0:
            return True
        index += 1
    return False
