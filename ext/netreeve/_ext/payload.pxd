"""What follows the header of one request, while it is put together: the only code that writes.

Lengths are computed here and nowhere else. A Payload lies on the stack of the method that fills
it, and gets into the batch whole or not at all.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from netreeve._ext cimport kernel


cdef enum:
    ROOM_BYTES = 512        # the longest request, a token_remove, has under 300


cdef struct Payload:
    size_t used
    uint8_t bytes[ROOM_BYTES]


cdef inline int put(Payload* payload, const void* data, size_t size) except -1:
    """The bytes, and zeros up to the next multiple of four.

    No request comes near the end; it is checked all the same, for behind it is the stack.
    """
    cdef size_t padded = (size + kernel.NLA_ALIGNTO - 1) & ~<size_t>(kernel.NLA_ALIGNTO - 1)
    if padded > sizeof(payload.bytes) - payload.used:
        raise ValueError(f"a request would be longer than {ROOM_BYTES} bytes")
    memset(payload.bytes + payload.used, 0, padded)
    memcpy(payload.bytes + payload.used, data, size)
    payload.used += padded
    return 0


cdef inline int put_attribute(
    Payload* payload, uint16_t type, const void* data, size_t size
) except -1:
    cdef kernel.nlattr header
    header.nla_len = <uint16_t>(sizeof(header) + size)      # put() refuses more than ROOM_BYTES
    header.nla_type = type
    put(payload, &header, sizeof(header))
    put(payload, data, size)
    return 0


cdef inline int put_u8(Payload* payload, uint16_t type, uint8_t number) except -1:
    return put_attribute(payload, type, &number, sizeof(number))


cdef inline int put_u32(Payload* payload, uint16_t type, uint32_t number) except -1:
    return put_attribute(payload, type, &number, sizeof(number))


cdef inline int put_bytes(Payload* payload, uint16_t type, bytes data) except -1:
    cdef const char* at = data
    return put_attribute(payload, type, at, <size_t>len(data))


cdef inline size_t open_nested(Payload* payload, uint16_t type) except 0:
    """Where the attribute starts that those put from now on are in, until close_nested()."""
    cdef kernel.nlattr header
    cdef size_t start = payload.used            # behind the header of the message, so not 0
    header.nla_len = sizeof(header)
    header.nla_type = <uint16_t>(type | kernel.NLA_F_NESTED)
    put(payload, &header, sizeof(header))
    return start


cdef inline void close_nested(Payload* payload, size_t start) noexcept:
    cdef kernel.nlattr header
    memcpy(&header, payload.bytes + start, sizeof(header))
    header.nla_len = <uint16_t>(payload.used - start)       # at most ROOM_BYTES
    memcpy(payload.bytes + start, &header, sizeof(header))
