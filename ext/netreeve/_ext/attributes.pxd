"""Attributes of a message: which comes next, and its value where that has exactly its type's size.

Shared by the decoders. Nothing here reads but through cursor.take(), or by a size that it checked
against a Span on the line before.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from netreeve._ext cimport kernel
from netreeve._ext.cursor cimport Span, take, take_padded


cdef extern from "<string.h>" nogil:
    size_t strnlen(const char* text, size_t size)


cdef enum:
    IFINDEX_MAX = 0x7fffffff        # an ifindex is a positive int in the kernel


cdef enum Fault:
    FAULT_NONE = 0          # decoded
    FAULT_END = 1           # next_message: nothing is left
    FAULT_LENGTH = 2        # a length is shorter than its header or longer than what is left
    FAULT_SIZE = 3          # an attribute has not exactly the size of its type
    FAULT_VALUE = 4         # a value no kernel sends (ifindex <= 0, prefix longer than an address)
    FAULT_IGNORED = 5       # not for us: another type or family, or IFLA_WIRELESS


cdef struct Attribute:
    uint16_t type           # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
    Span value


cdef inline Fault next_attribute(Span* rest, Attribute* out) noexcept nogil:
    cdef kernel.nlattr header
    cdef const uint8_t* here
    cdef size_t size
    if rest.left == 0:
        return FAULT_END
    here = take(rest, sizeof(header))
    if here == NULL:
        return FAULT_LENGTH
    memcpy(&header, here, sizeof(header))
    if header.nla_len < sizeof(header):
        return FAULT_LENGTH
    size = header.nla_len - sizeof(header)
    here = take_padded(rest, size, kernel.NLA_ALIGNTO)
    if here == NULL:
        return FAULT_LENGTH
    out.type = <uint16_t>(header.nla_type & kernel.NLA_TYPE_MASK)
    out.value.at = here
    out.value.left = size
    return FAULT_NONE


cdef inline Fault read_u8(const Span* value, uint8_t* out) noexcept nogil:
    if value.left != sizeof(out[0]):
        return FAULT_SIZE
    out[0] = value.at[0]
    return FAULT_NONE


cdef inline Fault read_u32(const Span* value, uint32_t* out) noexcept nogil:
    if value.left != sizeof(out[0]):
        return FAULT_SIZE
    memcpy(out, value.at, sizeof(out[0]))
    return FAULT_NONE


cdef inline Fault read_ifindex(const Span* value, int32_t* out) noexcept nogil:
    """0 is allowed: in an attribute it means none."""
    cdef uint32_t number = 0
    cdef Fault fault = read_u32(value, &number)
    if fault != FAULT_NONE:
        return fault
    if number > <uint32_t>IFINDEX_MAX:
        return FAULT_VALUE
    out[0] = <int32_t>number        # checked on the line above
    return FAULT_NONE


cdef inline Fault read_name(const Span* value, uint8_t* name, uint8_t* length) noexcept nogil:
    """Up to 15 bytes, any; a NUL may end them, and nothing may follow it."""
    cdef size_t size = strnlen(<const char*>value.at, value.left)
    if size >= <size_t>kernel.IFNAMSIZ or value.left > size + 1:
        return FAULT_SIZE
    memset(name, 0, <size_t>kernel.IFNAMSIZ)
    memcpy(name, value.at, size)
    length[0] = <uint8_t>size       # under IFNAMSIZ
    return FAULT_NONE


cdef inline Fault read_address(const Span* value, size_t size, uint8_t* out) noexcept nogil:
    """`out` has 16 bytes, of which those behind `size` stay as they are."""
    if value.left != size:
        return FAULT_SIZE
    memcpy(out, value.at, size)
    return FAULT_NONE
