"""Links read by a dump or by queries, before it is known that they count."""

from libc.stddef cimport size_t

from netreeve._ext.wire cimport LinkRecord


cdef class Stage:
    cdef LinkRecord* entries
    cdef size_t count, room
    cdef readonly bint done, interrupted
    cdef readonly int errno "errno_"    # in C, `errno` alone is a macro
    cdef readonly size_t faults
    cdef readonly set gone
    cdef int add(self, const LinkRecord* record) except -1
