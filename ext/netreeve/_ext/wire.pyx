"""rtnetlink messages, decoded.

Two layers. The first is C: bytes to records, each function returns a Fault, none allocates, raises
or needs the GIL; index and receive use it. The second makes Python objects of the records, for
tools, tests and whatever isn't hot.

What is relied on, from <linux/netlink.h> and the kernel's behaviour: lengths count the header but
not the padding; messages and attributes start at multiples of four, the padding of the last one
may be missing; attributes come in any order, unknown ones are skipped, the last of equal ones
wins. What is not relied on: that a length is true. All reading goes through cursor.take().
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from netreeve._ext cimport kernel
from netreeve._ext.attributes cimport (
    IFINDEX_MAX,
    Attribute,
    next_attribute,
    read_address,
    read_ifindex,
    read_name,
    read_u8,
    read_u32,
    strnlen,
)
from netreeve._ext.cursor cimport Span, take, take_padded
from netreeve._ext.prefix cimport address_size, has_host_bits


# ---- C layer ------------------------------------------------------------------------------------

cdef enum:
    ERRNO_MAX = 4095                # MAX_ERRNO of the kernel's <linux/err.h>, which is not exported


cdef Fault next_message(Span* datagram, Message* out) noexcept nogil:
    """The next message. FAULT_LENGTH drops the rest: after a wrong length nothing has a place."""
    cdef kernel.nlmsghdr header
    cdef const uint8_t* here
    cdef size_t size
    if datagram.left == 0:
        return FAULT_END
    here = take(datagram, sizeof(header))
    if here == NULL:
        take(datagram, datagram.left)
        return FAULT_LENGTH
    memcpy(&header, here, sizeof(header))
    if header.nlmsg_len < sizeof(header) or header.nlmsg_len - sizeof(header) > datagram.left:
        take(datagram, datagram.left)
        return FAULT_LENGTH
    size = header.nlmsg_len - sizeof(header)
    out.type = header.nlmsg_type
    out.flags = header.nlmsg_flags
    out.seq = header.nlmsg_seq
    out.portid = header.nlmsg_pid
    out.payload.at = take_padded(datagram, size, kernel.NLMSG_ALIGNTO)
    out.payload.left = size
    return FAULT_NONE


cdef inline Fault read_kind(Span info, LinkRecord* out) noexcept nogil:
    """IFLA_INFO_KIND out of an IFLA_LINKINFO; the kind's own data is left alone."""
    cdef Attribute attribute
    cdef Fault fault
    cdef size_t size
    memset(out.kind, 0, sizeof(out.kind))
    out.kind_len = 0
    while True:
        fault = next_attribute(&info, &attribute)
        if fault != FAULT_NONE:
            return FAULT_NONE if fault == FAULT_END else fault
        if attribute.type == kernel.IFLA_INFO_KIND:
            size = strnlen(<const char*>attribute.value.at, attribute.value.left)
            if size > sizeof(out.kind) - 1:
                size = sizeof(out.kind) - 1
            memset(out.kind, 0, sizeof(out.kind))
            memcpy(out.kind, attribute.value.at, size)
            out.kind_len = <uint8_t>size        # under 16


cdef inline void clear_link(LinkRecord* out) noexcept nogil:
    """In pieces: gcc makes `rep stos` of one memset over all, a tenth of the whole decoding."""
    out.ifindex = out.controller = 0
    out.flags = out.mtu = out.up_count = out.down_count = 0
    out.has_counts = out.operstate = out.moved = 0
    out.name_len = out.kind_len = out.mac_len = 0
    memset(out.name, 0, sizeof(out.name))
    memset(out.kind, 0, sizeof(out.kind))
    memset(out.mac, 0, sizeof(out.mac))


cdef Fault decode_link(const Message* message, LinkRecord* out) noexcept nogil:
    """RTM_NEWLINK or RTM_DELLINK of family AF_UNSPEC: the whole state, what is absent is not set.

    FAULT_IGNORED: other types; other families (an AF_BRIDGE DELLINK means "left its bridge", never
    "deleted"); IFLA_WIRELESS, which drivers send with hardly anything else in it.
    FAULT_VALUE also for an RTM_NEWLINK without a name. IFLA_AF_SPEC and the statistics, two thirds
    of the bytes, are stepped over.
    """
    cdef Span rest = message.payload
    cdef kernel.ifinfomsg header
    cdef const uint8_t* here
    cdef Attribute attribute
    cdef Fault fault
    cdef uint16_t type
    cdef uint32_t number = 0
    cdef bint has_up_count = False
    cdef bint has_down_count = False
    if message.type != kernel.RTM_NEWLINK and message.type != kernel.RTM_DELLINK:
        return FAULT_IGNORED
    here = take(&rest, sizeof(header))
    if here == NULL:
        return FAULT_LENGTH
    memcpy(&header, here, sizeof(header))
    if header.ifi_family != kernel.AF_UNSPEC:
        return FAULT_IGNORED
    if header.ifi_index <= 0:
        return FAULT_VALUE
    clear_link(out)
    out.ifindex = header.ifi_index
    out.flags = header.ifi_flags
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            break
        type = attribute.type
        if type == kernel.IFLA_IFNAME:
            fault = read_name(&attribute.value, out.name, &out.name_len)
        elif type == kernel.IFLA_MTU:
            fault = read_u32(&attribute.value, &out.mtu)
        elif type == kernel.IFLA_MASTER:
            fault = read_ifindex(&attribute.value, &out.controller)
        elif type == kernel.IFLA_OPERSTATE:
            fault = read_u8(&attribute.value, &out.operstate)
        elif type == kernel.IFLA_CARRIER_UP_COUNT:
            fault = read_u32(&attribute.value, &out.up_count)
            has_up_count = True
        elif type == kernel.IFLA_CARRIER_DOWN_COUNT:
            fault = read_u32(&attribute.value, &out.down_count)
            has_down_count = True
        elif type == kernel.IFLA_ADDRESS:
            if attribute.value.left > sizeof(out.mac):
                return FAULT_SIZE
            memset(out.mac, 0, sizeof(out.mac))
            memcpy(out.mac, attribute.value.at, attribute.value.left)
            out.mac_len = <uint8_t>attribute.value.left         # at most 32
        elif type == kernel.IFLA_LINKINFO:
            fault = read_kind(attribute.value, out)
        elif type == kernel.IFLA_NEW_NETNSID or type == kernel.IFLA_NEW_IFINDEX:
            fault = read_u32(&attribute.value, &number)
            out.moved = 1
        elif type == kernel.IFLA_WIRELESS:
            return FAULT_IGNORED
        if fault != FAULT_NONE:
            return fault
    if fault != FAULT_END:
        return fault
    if out.name_len == 0 and message.type == kernel.RTM_NEWLINK:
        return FAULT_VALUE
    out.has_counts = 1 if has_up_count and has_down_count else 0
    return FAULT_NONE


cdef Fault decode_addr(const Message* message, AddrRecord* out) noexcept nogil:
    """RTM_NEWADDR or RTM_DELADDR of IPv4 or IPv6; FAULT_IGNORED for all others.

    The kernel leaves an address of 0.0.0.0 out: absent reads as zeros.
    """
    cdef Span rest = message.payload
    cdef kernel.ifaddrmsg header
    cdef const uint8_t* here
    cdef Attribute attribute
    cdef Fault fault
    cdef uint16_t type
    cdef size_t size
    cdef uint8_t local[16]
    if message.type != kernel.RTM_NEWADDR and message.type != kernel.RTM_DELADDR:
        return FAULT_IGNORED
    here = take(&rest, sizeof(header))
    if here == NULL:
        return FAULT_LENGTH
    memcpy(&header, here, sizeof(header))
    size = address_size(header.ifa_family)
    if size == 0:
        return FAULT_IGNORED
    if header.ifa_index == 0 or header.ifa_index > <uint32_t>IFINDEX_MAX:
        return FAULT_VALUE
    if header.ifa_prefixlen > 8 * size:
        return FAULT_VALUE
    memset(out, 0, sizeof(out[0]))
    memset(local, 0, sizeof(local))
    out.ifindex = <int32_t>header.ifa_index         # checked above
    out.flags = header.ifa_flags
    out.family = header.ifa_family
    out.prefix_len = header.ifa_prefixlen
    out.scope = header.ifa_scope
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            break
        type = attribute.type
        if type == kernel.IFA_ADDRESS:
            fault = read_address(&attribute.value, size, out.addr)
        elif type == kernel.IFA_LOCAL:
            fault = read_address(&attribute.value, size, local)
            out.has_local = 1
        elif type == kernel.IFA_FLAGS:
            fault = read_u32(&attribute.value, &out.flags)
        elif type == kernel.IFA_PROTO:
            fault = read_u8(&attribute.value, &out.proto)
        if fault != FAULT_NONE:
            return fault
    if fault != FAULT_END:
        return fault
    if out.has_local:
        memcpy(out.addr, local, sizeof(out.addr))
    return FAULT_NONE


cdef Fault count_nexthops(Span rest, uint32_t* count) noexcept nogil:
    """Entries of an RTA_MULTIPATH, each of which carries a length of its own."""
    cdef kernel.rtnexthop header
    cdef const uint8_t* here
    cdef size_t size
    count[0] = 0
    while rest.left != 0:
        here = take(&rest, sizeof(header))
        if here == NULL:
            return FAULT_LENGTH
        memcpy(&header, here, sizeof(header))
        if header.rtnh_len < sizeof(header):
            return FAULT_LENGTH
        size = header.rtnh_len - sizeof(header)
        if take_padded(&rest, size, kernel.RTNH_ALIGNTO) == NULL:
            return FAULT_LENGTH
        count[0] += 1
    return FAULT_NONE


cdef Fault decode_route(const Message* message, RouteRecord* out) noexcept nogil:
    """RTM_NEWROUTE or RTM_DELROUTE of IPv4 or IPv6; FAULT_IGNORED for all others.

    FAULT_VALUE for a prefix longer than its address, absent, or with host bits set: `dst` and
    `dst_len` of what is decoded are a FIB key as they stand.
    """
    cdef Span rest = message.payload
    cdef kernel.rtmsg header
    cdef const uint8_t* here
    cdef Attribute attribute
    cdef Fault fault
    cdef uint16_t type
    cdef size_t size
    cdef bint has_dst = False
    if message.type != kernel.RTM_NEWROUTE and message.type != kernel.RTM_DELROUTE:
        return FAULT_IGNORED
    here = take(&rest, sizeof(header))
    if here == NULL:
        return FAULT_LENGTH
    memcpy(&header, here, sizeof(header))
    size = address_size(header.rtm_family)
    if size == 0:
        return FAULT_IGNORED
    if header.rtm_dst_len > 8 * size:
        return FAULT_VALUE
    memset(out, 0, sizeof(out[0]))
    out.flags = header.rtm_flags
    out.table = header.rtm_table
    out.family = header.rtm_family
    out.dst_len = header.rtm_dst_len
    out.tos = header.rtm_tos
    out.protocol = header.rtm_protocol
    out.scope = header.rtm_scope
    out.type = header.rtm_type
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            break
        type = attribute.type
        if type == kernel.RTA_DST:
            fault = read_address(&attribute.value, size, out.dst)
            has_dst = True
        elif type == kernel.RTA_OIF:
            fault = read_ifindex(&attribute.value, &out.oif)
        elif type == kernel.RTA_PRIORITY:
            fault = read_u32(&attribute.value, &out.metric)
        elif type == kernel.RTA_TABLE:
            fault = read_u32(&attribute.value, &out.table)
        elif type == kernel.RTA_GATEWAY:
            if attribute.value.left != size:
                return FAULT_SIZE
            out.has_gateway = 1
        elif type == kernel.RTA_VIA:
            # A gateway of any family: its size depends on a family that we need not know.
            if attribute.value.left < sizeof(kernel.rtvia):
                return FAULT_SIZE
            out.has_gateway = 1
        elif type == kernel.RTA_MULTIPATH:
            fault = count_nexthops(attribute.value, &out.nexthops)
        if fault != FAULT_NONE:
            return fault
    if fault != FAULT_END:
        return fault
    if out.dst_len != 0 and not has_dst:
        return FAULT_VALUE
    if has_host_bits(out.dst, size, out.dst_len):
        return FAULT_VALUE
    return FAULT_NONE


cdef Fault decode_answer(const Message* message, AnswerRecord* out) noexcept nogil:
    """NLMSG_ERROR (an error, or with errno 0 an acknowledgement) or NLMSG_DONE.

    A strict dump that is refused says so in its NLMSG_DONE. The extended acknowledgement follows
    the errno in NLMSG_DONE; in NLMSG_ERROR it follows the request's header (NLM_F_CAPPED) or the
    whole request (without).
    """
    cdef Span rest = message.payload
    cdef kernel.nlmsghdr request
    cdef const uint8_t* here
    cdef Attribute attribute
    cdef Fault fault
    cdef int32_t error
    cdef size_t size
    if message.type != kernel.NLMSG_ERROR and message.type != kernel.NLMSG_DONE:
        return FAULT_IGNORED
    here = take(&rest, sizeof(error))
    if here == NULL:
        return FAULT_LENGTH
    memcpy(&error, here, sizeof(error))
    if error > 0 or error < -ERRNO_MAX:
        return FAULT_VALUE
    memset(out, 0, sizeof(out[0]))
    out.errno = -error
    out.seq = message.seq
    if message.type == kernel.NLMSG_ERROR:
        here = take(&rest, sizeof(request))
        if here == NULL:
            return FAULT_LENGTH
        memcpy(&request, here, sizeof(request))
        if not message.flags & kernel.NLM_F_CAPPED:
            if request.nlmsg_len < sizeof(request):
                return FAULT_LENGTH
            size = request.nlmsg_len - sizeof(request)
            if take_padded(&rest, size, kernel.NLMSG_ALIGNTO) == NULL:
                return FAULT_LENGTH
    if not message.flags & kernel.NLM_F_ACK_TLVS:
        return FAULT_NONE
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            return FAULT_NONE if fault == FAULT_END else fault
        if attribute.type == kernel.NLMSGERR_ATTR_MSG:
            out.text = attribute.value.at
            # An attribute's length has 16 bits.
            out.text_len = <uint32_t>strnlen(
                <const char*>attribute.value.at, attribute.value.left
            )
        elif attribute.type == kernel.NLMSGERR_ATTR_OFFS:
            fault = read_u32(&attribute.value, &out.bad_offset)
            if fault != FAULT_NONE:
                return fault


# ---- Python layer -------------------------------------------------------------------------------

cdef str text_of(const uint8_t* at, Py_ssize_t size):
    """Names are bytes; above the compiled modules they are str with surrogate escapes."""
    return (<const char*>at)[:size].decode("utf-8", "surrogateescape")


cdef dict FIELDS = {}       # class -> names of its members, which equality, hash and repr go by


cdef object declare(type cls, tuple fields):
    FIELDS[cls] = fields


cdef class _Value:
    """Frozen, made by decoding only, compared by value."""

    def __init__(self):
        raise TypeError(f"{type(self).__name__} is made by decoding, it has no constructor")

    def __eq__(self, other):
        if type(other) is not type(self):
            return NotImplemented
        return all([getattr(self, field) == getattr(other, field) for field in FIELDS[type(self)]])

    def __hash__(self):
        return hash(tuple([getattr(self, field) for field in FIELDS[type(self)]]))

    def __repr__(self):
        shown = [f"{field}={getattr(self, field)!r}" for field in FIELDS[type(self)]]
        return f"{type(self).__name__}({', '.join(shown)})"


@cython.final
cdef class LinkMessage(_Value):
    """RTM_NEWLINK or RTM_DELLINK; the members are those of LinkRecord in wire.pxd."""

    cdef readonly bint deleted
    cdef readonly int ifindex, controller, operstate
    cdef readonly unsigned int flags, mtu, up_count, down_count
    cdef readonly bint has_counts, moved
    cdef readonly str name, kind
    cdef readonly bytes mac


@cython.final
cdef class AddrMessage(_Value):
    """RTM_NEWADDR or RTM_DELADDR; `address` is IFA_LOCAL where there, else IFA_ADDRESS.

    `portid` is as of RouteMessage.
    """


@cython.final
cdef class RouteMessage(_Value):
    """RTM_NEWROUTE or RTM_DELROUTE.

    `portid` is that of the request that caused it, 0 for the kernel itself; it is told by whoever
    sent the message and proves nothing.
    """


@cython.final
cdef class Answer(_Value):
    """The end of a request or of a dump: `errno` 0 is done; `text` is the kernel's words or ""."""


@cython.final
cdef class Decoded(_Value):
    """What one datagram held, in its order; see decode()."""

    cdef readonly list messages
    cdef readonly int faults, ignored
    cdef readonly bint interrupted


declare(LinkMessage, (
    "deleted", "ifindex", "name", "kind", "flags", "mtu", "controller", "operstate", "mac",
    "has_counts", "up_count", "down_count", "moved",
))
declare(AddrMessage, (
    "deleted", "family", "ifindex", "address", "prefix_len", "scope", "flags", "proto",
    "portid",
))
declare(RouteMessage, (
    "deleted", "family", "dst", "prefix_len", "table", "metric", "tos", "protocol", "scope",
    "type", "flags", "oif", "nexthops", "has_gateway", "portid",
))
declare(Answer, ("seq", "errno", "text"))
declare(Decoded, ("messages", "faults", "ignored", "interrupted"))


cdef LinkMessage link_message(const LinkRecord* record, bint deleted):
    cdef LinkMessage self = LinkMessage.__new__(LinkMessage)
    self.deleted = deleted
    self.ifindex = record.ifindex
    self.name = text_of(record.name, record.name_len)
    self.kind = text_of(record.kind, record.kind_len)
    self.flags = record.flags
    self.mtu = record.mtu
    self.controller = record.controller
    self.operstate = record.operstate
    self.mac = (<const char*>record.mac)[:record.mac_len]
    self.has_counts = record.has_counts
    self.up_count = record.up_count
    self.down_count = record.down_count
    self.moved = record.moved
    return self


cdef AddrMessage addr_message(const AddrRecord* record, bint deleted, unsigned int portid):
    cdef AddrMessage self = AddrMessage.__new__(AddrMessage)
    self.deleted = deleted
    self.family = record.family
    self.ifindex = record.ifindex
    self.address = (<const char*>record.addr)[:<Py_ssize_t>address_size(record.family)]
    self.prefix_len = record.prefix_len
    self.scope = record.scope
    self.flags = record.flags
    self.proto = record.proto
    self.portid = portid
    return self


cdef RouteMessage route_message(const RouteRecord* record, bint deleted, unsigned int portid):
    cdef RouteMessage self = RouteMessage.__new__(RouteMessage)
    self.deleted = deleted
    self.family = record.family
    self.dst = (<const char*>record.dst)[:<Py_ssize_t>address_size(record.family)]
    self.prefix_len = record.dst_len
    self.table = record.table
    self.metric = record.metric
    self.tos = record.tos
    self.protocol = record.protocol
    self.scope = record.scope
    self.type = record.type
    self.flags = record.flags
    self.oif = record.oif
    self.nexthops = record.nexthops
    self.has_gateway = record.has_gateway
    self.portid = portid
    return self


cdef Answer answer(const AnswerRecord* record):
    cdef Answer self = Answer.__new__(Answer)
    self.seq = record.seq
    self.errno = record.errno
    self.text = (<const char*>record.text)[:record.text_len].decode("utf-8", "replace")
    return self


cdef object decode_message(const Message* message, Fault* fault):
    """The message's object, or None and why in `fault`."""
    cdef LinkRecord link
    cdef AddrRecord addr
    cdef RouteRecord route
    cdef AnswerRecord record
    if message.type == kernel.RTM_NEWLINK or message.type == kernel.RTM_DELLINK:
        fault[0] = decode_link(message, &link)
        if fault[0] == FAULT_NONE:
            return link_message(&link, message.type == kernel.RTM_DELLINK)
    elif message.type == kernel.RTM_NEWADDR or message.type == kernel.RTM_DELADDR:
        fault[0] = decode_addr(message, &addr)
        if fault[0] == FAULT_NONE:
            return addr_message(&addr, message.type == kernel.RTM_DELADDR, message.portid)
    elif message.type == kernel.RTM_NEWROUTE or message.type == kernel.RTM_DELROUTE:
        fault[0] = decode_route(message, &route)
        if fault[0] == FAULT_NONE:
            return route_message(&route, message.type == kernel.RTM_DELROUTE, message.portid)
    else:
        fault[0] = decode_answer(message, &record)
        if fault[0] == FAULT_NONE:
            return answer(&record)
    return None


def decode(const uint8_t[::1] data not None):
    """Decode a whole datagram; never raises, whatever its bytes.

    `messages` holds LinkMessage, AddrMessage, RouteMessage and Answer objects in the order of the
    datagram. `faults` counts malformed messages; after one whose nlmsg_len can't be true the rest
    of the datagram is that fault too. `ignored` counts well-formed ones of other types and
    families. `interrupted` is true if any message bore NLM_F_DUMP_INTR: repeat the dump.
    """
    cdef Decoded decoded = Decoded.__new__(Decoded)
    cdef Span rest
    cdef Message message
    cdef Fault fault = FAULT_NONE
    decoded.messages = []
    rest.left = <size_t>data.shape[0]       # a length, so not negative
    rest.at = &data[0] if rest.left != 0 else NULL
    while True:
        fault = next_message(&rest, &message)
        if fault == FAULT_END:
            return decoded
        if fault == FAULT_NONE:
            if message.flags & kernel.NLM_F_DUMP_INTR:
                decoded.interrupted = True
            found = decode_message(&message, &fault)
            if found is not None:
                decoded.messages.append(found)
        if fault == FAULT_IGNORED:
            decoded.ignored += 1
        elif fault != FAULT_NONE:
            decoded.faults += 1
