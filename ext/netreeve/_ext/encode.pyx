"""Requests to rtnetlink: many in one buffer, for one sendmsg.

A wrong nlmsg_len makes the kernel drop the rest of a batch without a word, and a request whose
selector is too wide hits other people's routes. So lengths are computed in one place, and a
dangerous shape is refused here, whoever asks: ValueError, and the batch is as it was before.

The kernel answers every error, so only the last request asks for an acknowledgement: when that
(or its error) has come, all requests before it are done, and those that weren't answered went
well. A request that is answered with data (link_get) is answered besides. A dump is ended by
NLMSG_DONE, asks for no acknowledgement, and stands alone: a socket has one dump at a time.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from netreeve._ext cimport kernel
from netreeve._ext.prefix cimport address_size, has_host_bits


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef enum:
    U8_MAX = 0xff
    IFINDEX_MAX = 0x7fffffff        # an ifindex is a positive int in the kernel
    LINK_PAYLOAD = sizeof(kernel.ifinfomsg) + sizeof(kernel.nlattr) + sizeof(uint32_t)


# No member of the enum above: those are int, and 0xffffffff as an int is -1.
cdef long long U32_MAX = 0xffffffff


cdef long long bounded(
    object number, long long lowest, long long highest, str what
) except -1:
    """`number`, if 0 <= lowest <= number <= highest; callers narrow it to what `highest` fits."""
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow != 0 or value < lowest or value > highest:
        raise ValueError(f"{what} is {number}, allowed are {lowest} to {highest}")
    return value


cdef uint32_t after(uint32_t seq) noexcept:
    """The sequence number that follows; 0 is what events bear, so no request does."""
    if seq == <uint32_t>U32_MAX:
        return 1
    return seq + 1


cdef uint8_t inet_family(object family) except 0:
    if family != kernel.AF_INET and family != kernel.AF_INET6:
        raise ValueError(f"family is {family}, allowed are AF_INET and AF_INET6")
    return <uint8_t>family


@cython.final
cdef class Batch:
    """Requests with consecutive sequence numbers, of at most `max_bytes` together.

    `first_seq` is 1 to 2**32-1; after the last comes 1. Each method adds one request and returns
    its sequence number. A netlink socket takes at most its SO_SNDBUF in one sendmsg.
    """

    cdef uint8_t* _buffer
    cdef size_t _capacity
    cdef size_t _used
    cdef size_t _last           # where the last request starts
    cdef Py_ssize_t _count
    cdef uint32_t _first_seq
    cdef uint32_t _next_seq
    cdef bint _is_dump

    def __cinit__(self, first_seq, max_bytes=65536):
        self._first_seq = self._next_seq = <uint32_t>bounded(first_seq, 1, U32_MAX, "first_seq")
        self._capacity = <size_t>bounded(max_bytes, 1, IFINDEX_MAX, "max_bytes")
        self._buffer = <uint8_t*>PyMem_Malloc(self._capacity)
        if self._buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._buffer)

    def __len__(self):
        return self._count

    def __repr__(self):
        return f"Batch({self._count} from {self._first_seq}, {self._used} bytes)"

    @property
    def first_seq(self):
        """Of the first request, also while there is none."""
        return self._first_seq

    @property
    def last_seq(self):
        """Of the last request; ValueError while there is none."""
        if self._count == 0:
            raise ValueError("the batch is empty")
        # Going back from 1 skips 0, as after() does.
        if self._next_seq == 1:
            return U32_MAX
        return self._next_seq - 1

    @property
    def next_seq(self):
        """The `first_seq` of the batch that follows this one on the same socket."""
        return self._next_seq

    # The next ones write; nothing is added but through _begin(), which is the last to refuse.

    cdef int _begin(self, uint16_t type, uint16_t flags, size_t payload_size) except -1:
        """Open a request with room for exactly `payload_size` bytes, zeroed, after its header."""
        cdef kernel.nlmsghdr header
        cdef size_t size = sizeof(header) + payload_size
        if self._is_dump:
            raise ValueError("a dump stands alone in its batch")
        if size > self._capacity - self._used:
            raise ValueError(f"the batch would be longer than {self._capacity} bytes")
        memset(&header, 0, sizeof(header))
        header.nlmsg_len = <uint32_t>size       # at most _capacity, below 2**31
        header.nlmsg_type = type
        header.nlmsg_flags = flags | <uint16_t>kernel.NLM_F_REQUEST
        header.nlmsg_seq = self._next_seq
        self._last = self._used
        memset(self._buffer + self._used, 0, size)
        self._put(&header, sizeof(header))
        return 0

    cdef void _put(self, const void* data, size_t size) noexcept:
        memcpy(self._buffer + self._used, data, size)
        self._used += size

    cdef void _attribute(self, uint16_t type, const void* data, size_t size) noexcept:
        """All attributes here are of 4 or 16 bytes, so nothing ever needs padding."""
        cdef kernel.nlattr header
        header.nla_len = <uint16_t>(sizeof(header) + size)      # at most 20
        header.nla_type = type
        self._put(&header, sizeof(header))
        self._put(data, size)

    cdef object _end(self):
        seq = self._next_seq
        self._next_seq = after(self._next_seq)
        self._count += 1
        return seq

    cdef int _begin_dump(self, uint16_t type, size_t payload_size) except -1:
        if self._count != 0:
            raise ValueError("a dump stands alone in its batch")
        self._begin(type, kernel.NLM_F_DUMP, payload_size)
        self._is_dump = True
        return 0

    cdef object _end_link(self, int32_t ifindex):
        cdef kernel.ifinfomsg link
        cdef uint32_t mask = kernel.RTEXT_FILTER_SKIP_STATS
        memset(&link, 0, sizeof(link))
        link.ifi_family = kernel.AF_UNSPEC
        link.ifi_index = ifindex
        self._put(&link, sizeof(link))
        self._attribute(kernel.IFLA_EXT_MASK, &mask, sizeof(mask))
        return self._end()

    def link_get(self, ifindex):
        """Ask for one link: RTM_NEWLINK, or ENODEV."""
        cdef uint32_t number = <uint32_t>bounded(ifindex, 1, IFINDEX_MAX, "ifindex")
        self._begin(kernel.RTM_GETLINK, 0, LINK_PAYLOAD)
        return self._end_link(<int32_t>number)      # at most IFINDEX_MAX

    def link_dump(self):
        """Ask for all links.

        IFLA_EXT_MASK isn't there to save bytes: without one the kernel ends a dump early, and as if
        all were well, at the first link whose message doesn't fit the chunk.
        """
        self._begin_dump(kernel.RTM_GETLINK, LINK_PAYLOAD)
        return self._end_link(0)

    def route_dump(self, family, table=0, protocol=0):
        """Ask for the routes of a family, of a table (0 = all) and a protocol (0 = all).

        The filters are honoured on a socket with NETLINK_GET_STRICT_CHK only; elsewhere they are
        ignored silently. Strict means too that all other fields are zero.
        """
        cdef kernel.rtmsg route
        cdef uint32_t number = <uint32_t>bounded(table, 0, U32_MAX, "table")
        cdef size_t payload_size = sizeof(route)
        memset(&route, 0, sizeof(route))
        route.rtm_family = inet_family(family)
        route.rtm_protocol = <uint8_t>bounded(protocol, 0, U8_MAX, "protocol")
        if number != 0:
            payload_size += sizeof(kernel.nlattr) + sizeof(number)
        self._begin_dump(kernel.RTM_GETROUTE, payload_size)
        self._put(&route, sizeof(route))
        if number != 0:
            self._attribute(kernel.RTA_TABLE, &number, sizeof(number))
        return self._end()

    cdef object _route(
        self,
        uint16_t type,
        uint16_t flags,
        object family,
        bytes dst,
        object prefix_len,
        object table,
        object tos,
        object metric,
        object protocol,
        object oif,
    ):
        cdef kernel.rtmsg route
        cdef size_t size = address_size(inet_family(family))
        cdef uint32_t table_number = <uint32_t>bounded(table, 1, U32_MAX, "table")
        cdef uint32_t metric_number = <uint32_t>bounded(metric, 1, U32_MAX, "metric")
        cdef uint32_t oif_number = <uint32_t>bounded(oif, 1, IFINDEX_MAX, "oif")
        cdef const uint8_t* address
        if dst is None or <size_t>len(dst) != size:
            raise ValueError(f"dst is {dst!r}, an address of this family has {size} bytes")
        address = dst
        memset(&route, 0, sizeof(route))
        route.rtm_family = family
        route.rtm_dst_len = <uint8_t>bounded(prefix_len, 0, <long long>(8 * size), "prefix_len")
        if has_host_bits(address, size, route.rtm_dst_len):
            raise ValueError(f"dst is {dst!r}, it has bits behind its /{prefix_len}")
        route.rtm_tos = <uint8_t>bounded(tos, 0, U8_MAX, "tos")
        route.rtm_protocol = <uint8_t>bounded(protocol, 1, U8_MAX, "protocol")
        # IPv4 compares the scope on delete: a route through a gateway, which has another, is not
        # hit. IPv6 has no scopes.
        if size == 4:
            route.rtm_scope = kernel.RT_SCOPE_LINK
        else:
            route.rtm_scope = kernel.RT_SCOPE_UNIVERSE
        route.rtm_type = kernel.RTN_UNICAST
        self._begin(
            type,
            flags,
            sizeof(route) + 4 * sizeof(kernel.nlattr) + size + 3 * sizeof(uint32_t),
        )
        self._put(&route, sizeof(route))
        self._attribute(kernel.RTA_DST, address, size)
        self._attribute(kernel.RTA_TABLE, &table_number, sizeof(table_number))
        self._attribute(kernel.RTA_PRIORITY, &metric_number, sizeof(metric_number))
        self._attribute(kernel.RTA_OIF, &oif_number, sizeof(oif_number))
        return self._end()

    def route_add(
        self, family, bytes dst, prefix_len, table, tos, metric, protocol, oif
    ):
        """Add a unicast route straight to a link; EEXIST if anybody's has this FIB key."""
        return self._route(
            kernel.RTM_NEWROUTE, kernel.NLM_F_CREATE | kernel.NLM_F_EXCL,
            family, dst, prefix_len, table, tos, metric, protocol, oif,
        )

    def route_replace(
        self, family, bytes dst, prefix_len, table, tos, metric, protocol, oif
    ):
        """Put this route in the place of the one that has its FIB key; ENOENT if none has.

        The kernel replaces whosever it is: only for a slot that is known to be ours.
        """
        return self._route(
            kernel.RTM_NEWROUTE, kernel.NLM_F_REPLACE,
            family, dst, prefix_len, table, tos, metric, protocol, oif,
        )

    def route_delete(
        self, family, bytes dst, prefix_len, table, tos, metric, protocol, oif
    ):
        """Delete exactly this route; ESRCH if there is none that agrees in all."""
        return self._route(
            kernel.RTM_DELROUTE, 0,
            family, dst, prefix_len, table, tos, metric, protocol, oif,
        )

    def finish(self):
        """The bytes to send; the last request asks for an acknowledgement unless it is a dump.

        The batch stays as it is. ValueError if it is empty: nothing would ever be answered.
        """
        cdef bytes data
        cdef kernel.nlmsghdr header
        if self._count == 0:
            raise ValueError("the batch is empty")
        data = PyBytes_FromStringAndSize(<const char*>self._buffer, <Py_ssize_t>self._used)
        if not self._is_dump:
            memcpy(&header, self._buffer + self._last, sizeof(header))
            header.nlmsg_flags |= <uint16_t>kernel.NLM_F_ACK
            # Nobody else has seen these bytes yet.
            memcpy(PyBytes_AS_STRING(data) + self._last, &header, sizeof(header))
        return data
