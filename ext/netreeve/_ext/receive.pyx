"""Events from a subscribed netlink socket: recvmmsg into a ring without the GIL, then straight on.

Link messages go into a LinkTable; of addresses and routes only what concerns us becomes an object:
addresses that others changed, and routes of our protocol or in a watched prefix. A datagram whose
sender isn't the kernel is dropped unread (any process with CAP_NET_ADMIN can fake one; the header's
nlmsg_pid proves nothing, the sockaddr's nl_pid does). A datagram that was cut is never parsed.
"""

cimport cython
from libc.errno cimport EAGAIN, EINTR, ENOBUFS, errno
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, malloc
from posix.uio cimport iovec

from netreeve._ext.cursor cimport Span
from netreeve._ext.index cimport LinkTable
from netreeve._ext.kernel cimport (
    AF_INET,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    sockaddr_nl,
)
from netreeve._ext.wire cimport (
    FAULT_END,
    FAULT_IGNORED,
    FAULT_LENGTH,
    FAULT_NONE,
    AddrRecord,
    Fault,
    LinkRecord,
    Message,
    RouteRecord,
    addr_message,
    decode_addr,
    decode_link,
    decode_route,
    next_message,
    route_message,
)


cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        void* msg_name
        unsigned int msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        int msg_flags

    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len

    int MSG_DONTWAIT
    int MSG_TRUNC
    int recvmmsg(int fd, mmsghdr* messages, unsigned int count, int flags, void* timeout)


cdef enum:
    # The largest message a kernel was seen to send is 67,228 bytes (496 alternative names). Only
    # the pages that a datagram really fills become resident.
    SLOT_BYTES = 128 * 1024
    SLOTS = 32


@cython.final
cdef class EventReader:
    """Drains one subscribed socket.

    `links`: the table that RTM_NEWLINK and RTM_DELLINK go into, None to leave links out.
    `protocol`: the route protocol that is ours, 0 to leave routes and addresses out. `own_port`:
    the port of our request socket, whose echoes are left out. `watched`: the prefixes
    `(family, dst, prefix_len)` whose routes of any protocol are wanted.

    Counters, ever growing: `datagrams`, `messages`, `faults` (malformed), `ignored` (well formed,
    not for us), `spoofed` (sender not the kernel), `truncated`, `overruns`.
    """

    cdef mmsghdr* headers
    cdef iovec* vectors
    cdef sockaddr_nl* senders
    cdef uint8_t* ring
    cdef readonly LinkTable links
    cdef readonly int protocol
    cdef public unsigned int own_port
    cdef public object watched
    cdef list found
    cdef readonly unsigned long long datagrams, messages, faults, ignored, spoofed, truncated
    cdef readonly unsigned long long overruns

    def __cinit__(self, LinkTable links, int protocol=0):
        cdef int i
        self.links = links
        self.protocol = protocol
        self.watched = frozenset()
        self.found = []
        self.headers = <mmsghdr*>calloc(SLOTS, sizeof(mmsghdr))
        self.vectors = <iovec*>calloc(SLOTS, sizeof(iovec))
        self.senders = <sockaddr_nl*>calloc(SLOTS, sizeof(sockaddr_nl))
        self.ring = <uint8_t*>malloc(<size_t>SLOTS * SLOT_BYTES)
        if (
            self.headers is NULL or self.vectors is NULL
            or self.senders is NULL or self.ring is NULL
        ):
            raise MemoryError
        for i in range(SLOTS):
            self.vectors[i].iov_base = self.ring + <size_t>i * SLOT_BYTES
            self.vectors[i].iov_len = SLOT_BYTES
            self.headers[i].msg_hdr.msg_iov = &self.vectors[i]
            self.headers[i].msg_hdr.msg_iovlen = 1
            self.headers[i].msg_hdr.msg_name = &self.senders[i]

    def __dealloc__(self):
        free(self.headers)
        free(self.vectors)
        free(self.senders)
        free(self.ring)

    def take_found(self) -> list:
        """AddrMessage and RouteMessage objects since the last call, in order."""
        cdef list found = self.found
        if found:
            self.found = []
        return found

    def drain(self, int fd, int limit=4096) -> tuple[bool, bool]:
        """Reads until the socket is empty or at least `limit` datagrams were handled.

        Returns (empty, lost). `empty`: the queue was seen empty, which also ends the kernel's
        congested state. `lost`: from here on the table may miss something: an overrun (ENOBUFS),
        a truncated or a malformed datagram. Reading goes on after each of these.
        Raises OSError for any other error of the socket, which is then to be opened anew.
        """
        cdef int count, i, error, handled = 0
        cdef bint lost = False
        while handled < limit:
            for i in range(SLOTS):
                self.headers[i].msg_hdr.msg_namelen = sizeof(sockaddr_nl)
            with nogil:
                count = recvmmsg(fd, self.headers, SLOTS, MSG_DONTWAIT, NULL)
                error = errno
            if count < 0:
                if error == EAGAIN:
                    return (True, lost)
                if error == EINTR:
                    continue
                if error == ENOBUFS:
                    self.overruns += 1
                    lost = True
                    continue
                raise OSError(error, "reading netlink events")
            for i in range(count):
                if self._datagram(&self.headers[i], i):
                    lost = True
            handled += count
        return (False, lost)

    cdef bint _datagram(self, const mmsghdr* header, int slot) except -1:
        """Handles one datagram; whether something was lost with it."""
        cdef Span span
        cdef Message message
        cdef Fault fault
        cdef bint lost = False
        self.datagrams += 1
        if (
            header.msg_hdr.msg_namelen != sizeof(sockaddr_nl) or self.senders[slot].nl_pid != 0
        ):
            self.spoofed += 1
            return False
        if header.msg_hdr.msg_flags & MSG_TRUNC or header.msg_len > SLOT_BYTES:
            self.truncated += 1
            return True
        span.at = self.ring + <size_t>slot * SLOT_BYTES
        span.left = header.msg_len
        while True:
            fault = next_message(&span, &message)
            if fault == FAULT_END:
                return lost
            self.messages += 1
            if fault == FAULT_NONE:
                fault = self._message(&message)
            elif fault == FAULT_LENGTH:
                self.faults += 1
                return True
            if fault == FAULT_IGNORED:
                self.ignored += 1
            elif fault != FAULT_NONE:
                self.faults += 1
                lost = True

    cdef Fault _message(self, const Message* message) except *:
        cdef LinkRecord link
        cdef AddrRecord addr
        cdef RouteRecord route
        cdef Fault fault
        if message.type == RTM_NEWLINK or message.type == RTM_DELLINK:
            if self.links is None:
                return FAULT_IGNORED
            fault = decode_link(message, &link)
            if fault == FAULT_NONE:
                self.links.event(&link, message.type == RTM_DELLINK)
            return fault
        if self.protocol == 0:
            return FAULT_IGNORED
        if message.type == RTM_NEWROUTE or message.type == RTM_DELROUTE:
            fault = decode_route(message, &route)
            if fault != FAULT_NONE:
                return fault
            if message.portid == self.own_port and self.own_port != 0:
                return FAULT_NONE
            if route.protocol == self.protocol or (self.watched and self._watches(&route)):
                self.found.append(
                    route_message(&route, message.type == RTM_DELROUTE, message.portid)
                )
            return FAULT_NONE
        if message.type == RTM_NEWADDR or message.type == RTM_DELADDR:
            fault = decode_addr(message, &addr)
            if fault == FAULT_NONE and (message.portid != self.own_port or self.own_port == 0):
                self.found.append(
                    addr_message(&addr, message.type == RTM_DELADDR, message.portid)
                )
            return fault
        return FAULT_IGNORED

    cdef bint _watches(self, const RouteRecord* route) except -1:
        cdef Py_ssize_t size = 4 if route.family == AF_INET else 16
        cdef bytes dst = route.dst[:size]
        return (route.family, dst, route.dst_len) in self.watched
