"""What a dump of links, or questions about single links, brought: kept apart until it counts."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc

from netreeve._ext.cursor cimport Span
from netreeve._ext.kernel cimport NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, RTM_NEWLINK
from netreeve._ext.wire cimport (
    FAULT_END,
    FAULT_IGNORED,
    FAULT_LENGTH,
    FAULT_NONE,
    AnswerRecord,
    Fault,
    LinkRecord,
    Message,
    decode_answer,
    decode_link,
    next_message,
)


@cython.final
cdef class Stage:
    """Links read by a dump or by single queries, kept apart until it is known that they count.

    `feed()` takes datagrams; the outcome is in `done` (an NLMSG_DONE of our request came),
    `errno` (the first error, 0 = none), `interrupted` (NLM_F_DUMP_INTR on any part), `faults`
    (messages that were malformed) and `gone` (ifindexes that the kernel doesn't know, noted by
    `mark_gone`).
    """

    def __cinit__(self):
        self.gone = set()

    def __dealloc__(self):
        free(self.entries)

    def __len__(self) -> int:
        return <Py_ssize_t>self.count

    @property
    def ifindexes(self) -> list[int]:
        """The ifindexes read, in the order of reading."""
        return [self.entries[i].ifindex for i in range(self.count)]

    @property
    def whole(self) -> bool:
        """Whether this is a dump that may be acted on."""
        return self.done and self.errno == 0 and self.faults == 0

    def mark_gone(self, int ifindex) -> None:
        """The kernel answered "no such device" for this ifindex."""
        self.gone.add(ifindex)

    def feed(self, const uint8_t[::1] datagram, unsigned int seq) -> None:
        """Reads one datagram of an answer to request `seq`; what is of others is left out."""
        cdef Span span
        cdef Message message
        cdef LinkRecord record
        cdef AnswerRecord answer
        cdef Fault fault
        if datagram.shape[0] == 0:
            return
        span.at = &datagram[0]
        span.left = <size_t>datagram.shape[0]
        while True:
            fault = next_message(&span, &message)
            if fault == FAULT_END:
                return
            if fault != FAULT_NONE:
                self.faults += 1
                if fault == FAULT_LENGTH:
                    return
                continue
            if message.seq != seq:
                continue
            if message.flags & NLM_F_DUMP_INTR:
                self.interrupted = True
            if message.type == RTM_NEWLINK:
                fault = decode_link(&message, &record)
                if fault == FAULT_NONE:
                    self.add(&record)
                elif fault != FAULT_IGNORED:
                    self.faults += 1
            elif message.type == NLMSG_DONE or message.type == NLMSG_ERROR:
                if decode_answer(&message, &answer) != FAULT_NONE:
                    self.faults += 1
                    continue
                if answer.errno and not self.errno:
                    self.errno = answer.errno
                if message.type == NLMSG_DONE:
                    self.done = True

    cdef int add(self, const LinkRecord* record) except -1:
        cdef LinkRecord* bigger
        cdef size_t room
        if self.count == self.room:
            room = 2 * self.room if self.room else 32
            bigger = <LinkRecord*>realloc(self.entries, room * sizeof(LinkRecord))
            if bigger is NULL:
                raise MemoryError
            self.entries = bigger
            self.room = room
        self.entries[self.count] = record[0]
        self.count += 1
        return 0
