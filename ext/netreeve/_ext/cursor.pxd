"""The only code that moves a pointer through bytes from the kernel.

A Span is what is left to read. `take()` hands out the next `size` bytes and moves on, or hands
out nothing and moves nothing. Everything in wire.pyx reads through it, so a wrong length in a
message can cost that message, never a read past its end.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t


cdef struct Span:
    const uint8_t* at       # next byte; not dereferenced while left is 0
    size_t left             # bytes from `at` to the end


cdef inline const uint8_t* take(Span* span, size_t size) noexcept nogil:
    """The next `size` bytes, or NULL (and nothing moved) if fewer are left."""
    cdef const uint8_t* here = span.at
    if size > span.left:
        return NULL
    span.at = here + size
    span.left -= size
    return here


cdef inline const uint8_t* take_padded(Span* span, size_t size, size_t alignment) noexcept nogil:
    """take(), and on past the padding up to the next multiple of `alignment`, a power of two.

    The padding of the last one may be missing. The usual case comes first and by itself: in a
    message with forty attributes this is what decoding waits for.
    """
    cdef const uint8_t* here
    cdef size_t padded
    if size > span.left:
        return NULL
    padded = (size + alignment - 1) & ~(alignment - 1)      # `size` fits in memory: no overflow
    if padded <= span.left:
        return take(span, padded)
    here = span.at
    take(span, span.left)
    return here
