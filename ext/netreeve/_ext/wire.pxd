"""rtnetlink messages as C records: bytes in, numbers out, no Python object on the way."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.stddef cimport size_t

from netreeve._ext.attributes cimport (
    FAULT_END,
    FAULT_IGNORED,
    FAULT_LENGTH,
    FAULT_NONE,
    FAULT_SIZE,
    FAULT_VALUE,
    Fault,
)
from netreeve._ext.cursor cimport Span


cdef struct Message:        # one nlmsghdr and what follows it
    uint16_t type
    uint16_t flags
    uint32_t seq
    uint32_t portid         # of the header; proves nothing, the sockaddr's does
    Span payload            # after the nlmsghdr, without padding


cdef struct LinkRecord:     # RTM_NEWLINK, RTM_DELLINK of AF_UNSPEC
    int32_t ifindex         # 1 to 2**31-1
    uint32_t flags          # IFF_*
    uint32_t mtu
    int32_t controller      # IFLA_MASTER, 0 = none
    uint32_t up_count       # IFLA_CARRIER_UP_COUNT
    uint32_t down_count     # IFLA_CARRIER_DOWN_COUNT
    uint8_t has_counts      # both counters were there
    uint8_t operstate       # IF_OPER_*
    uint8_t moved           # IFLA_NEW_NETNSID or IFLA_NEW_IFINDEX was there (DELLINK of a move)
    uint8_t name_len        # 0 to 15
    uint8_t kind_len        # 0 to 15; a longer IFLA_INFO_KIND is cut (none exists)
    uint8_t mac_len         # 0 to 32
    uint8_t name[16]        # IFLA_IFNAME, any bytes, zero padded
    uint8_t kind[16]        # IFLA_INFO_KIND, zero padded
    uint8_t mac[32]         # IFLA_ADDRESS, zero padded


cdef struct AddrRecord:     # RTM_NEWADDR, RTM_DELADDR
    int32_t ifindex
    uint32_t flags          # IFA_FLAGS, or ifa_flags where absent
    uint8_t family          # AF_INET or AF_INET6
    uint8_t prefix_len
    uint8_t scope
    uint8_t has_local
    uint8_t proto           # IFA_PROTO, 0 = none
    uint8_t addr[16]        # IFA_LOCAL where there, else IFA_ADDRESS; zero padded


cdef struct RouteRecord:    # RTM_NEWROUTE, RTM_DELROUTE
    uint32_t flags          # rtm_flags: RTNH_F_*, RTM_F_*
    uint32_t table          # RTA_TABLE, or rtm_table where absent
    uint32_t metric         # RTA_PRIORITY, 0 = none
    int32_t oif             # RTA_OIF, 0 = none (multipath, blackhole, ...)
    uint32_t nexthops       # entries of RTA_MULTIPATH, 0 = none
    uint8_t family          # AF_INET or AF_INET6
    uint8_t dst_len         # prefix length, 0 to 32 or 128
    uint8_t tos
    uint8_t protocol        # RTPROT_*
    uint8_t scope
    uint8_t type            # RTN_*
    uint8_t has_gateway     # RTA_GATEWAY or RTA_VIA
    uint8_t dst[16]         # zero padded; zeros for a default route


cdef struct AnswerRecord:   # NLMSG_ERROR, NLMSG_DONE
    int32_t errno "errno_"  # 0 = done, else a positive errno (in C, `errno` alone is a macro)
    uint32_t seq            # of the message itself
    uint32_t text_len       # NLMSGERR_ATTR_MSG without its NUL, 0 = none
    const uint8_t* text     # points into the datagram; valid as long as that is
    uint32_t bad_offset     # NLMSGERR_ATTR_OFFS, 0 = none


# Each leaves `out` undefined unless it returns FAULT_NONE; none of them allocates or raises.
cdef Fault next_message(Span* datagram, Message* out) noexcept nogil
cdef Fault decode_link(const Message* message, LinkRecord* out) noexcept nogil
cdef Fault decode_addr(const Message* message, AddrRecord* out) noexcept nogil
cdef Fault decode_route(const Message* message, RouteRecord* out) noexcept nogil
cdef Fault decode_answer(const Message* message, AnswerRecord* out) noexcept nogil


cdef class _Value:         # frozen; equality, hash and repr by the members that were declared
    pass


cdef object declare(type cls, tuple fields)


cdef class AddrMessage(_Value):
    cdef readonly bint deleted
    cdef readonly int family, ifindex, prefix_len, scope, proto
    cdef readonly unsigned int flags, portid
    cdef readonly bytes address         # 4 or 16 bytes


cdef class RouteMessage(_Value):
    cdef readonly bint deleted
    cdef readonly int family, prefix_len, tos, protocol, scope, type, oif
    cdef readonly unsigned int table, metric, flags, nexthops, portid
    cdef readonly bint has_gateway
    cdef readonly bytes dst             # 4 or 16 bytes


cdef class Answer(_Value):
    cdef readonly unsigned int seq
    cdef readonly int errno "errno_"    # 0 = done
    cdef readonly str text              # the kernel's words, "" where it said nothing


cdef AddrMessage addr_message(const AddrRecord* record, bint deleted, unsigned int portid)
cdef RouteMessage route_message(const RouteRecord* record, bint deleted, unsigned int portid)
cdef Answer answer(const AnswerRecord* record)
cdef str text_of(const uint8_t* at, Py_ssize_t size)
