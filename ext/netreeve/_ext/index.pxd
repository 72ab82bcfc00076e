"""The link table and the name machine: layouts that receive.pyx works on."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from netreeve._ext.map cimport Map
from netreeve._ext.stage cimport Stage
from netreeve._ext.wire cimport LinkRecord


cdef struct Deferred:           # a transition that waits until its name is unambiguous
    bint up
    bint inferred
    uint32_t flaps


cdef struct NameRow:
    uint64_t hash
    LinkRow* holders            # links whose last observed name this is
    size_t holder_count
    int32_t told_ifindex        # what downstream was last told; 0 = nothing
    bint told_up
    uint8_t size
    uint8_t text[16]
    Deferred* deferred
    size_t deferred_count
    size_t deferred_room


cdef struct LinkRow:
    uint64_t hash
    uint64_t version            # number of its last event; dump entries don't count
    uint64_t mark               # number of the last dump that held it
    NameRow* name
    LinkRow* next_holder
    bint watched                # its name has a suffix that somebody asked for
    uint32_t base_down          # down counter up to which carrier changes have been accounted for
    LinkRecord record


cdef class LinkTable:
    cdef Map links, names
    cdef uint64_t seed
    cdef readonly unsigned long long version
    cdef unsigned long long dump_number, dump_version
    cdef set dump_deleted       # ifindexes that an event removed since resync_begin(), or None
    cdef list told_events, flushed, touched
    cdef tuple suffixes
    cdef dict ambiguous_names
    cdef LinkRow* link_row(self, int32_t ifindex) noexcept nogil
    cdef NameRow* name_row(self, const uint8_t* text, uint8_t size) noexcept nogil
    cdef NameRow* find_name(self, object name) except? NULL
    cdef tuple holders_of(self, const NameRow* name)
    cdef int event(self, const LinkRecord* record, bint deleted) except -1
    cdef int replace(self, const LinkRecord* record, uint64_t version, bint event) except -1
    cdef int remove(self, LinkRow* row) except -1
    cdef int hold(self, LinkRow* row) except -1
    cdef void release(self, LinkRow* row) noexcept
    cdef int transition(self, NameRow* name, bint up, uint32_t flaps) except -1
    cdef int defer(self, NameRow* name, bint up, bint inferred, uint32_t flaps) except -1
    cdef int settle(self, NameRow* name) except -1
    cdef int forget(self, NameRow* name) except -1
    cdef int note_ambiguity(self, NameRow* name) except -1
    cdef int note_touched(self, const LinkRow* row, bint present) except -1
    cdef int remove_gone(self, Stage stage, uint64_t asked) except -1
    cdef int apply(self, const LinkRecord* record, uint64_t asked, set deleted) except -1
