"""What the request socket answers about links: all that a link of ours is compared by.

wire's LinkMessage is what events are about, and of a link's kind it knows the name only. Here is
the rest, for links that were asked for: group, alternative names, and the properties of the four
kinds that we make. One reader serves the whole socket: addresses and answers come as wire's own
objects, in their order.

The two layers, and what is relied on, are those of wire.pyx. A property that the kernel didn't
tell is None: it leaves out an address that is all zeros, and what it was built without.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memset

from netreeve._ext cimport kernel
from netreeve._ext.attributes cimport (
    Attribute,
    next_attribute,
    read_address,
    read_ifindex,
    read_u8,
    read_u32,
    strnlen,
)
from netreeve._ext.cursor cimport Span, take
from netreeve._ext.prefix cimport address_size
from netreeve._ext.wire cimport (
    FAULT_END,
    FAULT_IGNORED,
    FAULT_NONE,
    FAULT_SIZE,
    AddrRecord,
    AnswerRecord,
    Fault,
    LinkRecord,
    Message,
    _Value,
    addr_message,
    answer,
    declare,
    decode_addr,
    decode_answer,
    decode_link,
    next_message,
    text_of,
)


# ---- C layer ------------------------------------------------------------------------------------

cdef enum Has:              # which properties the kernel told; the rest of Properties is zeros
    HAS_TABLE = 1
    HAS_VLAN_FILTERING = 2
    HAS_VNI = 4
    HAS_PORT = 8
    HAS_TTL = 16
    HAS_LEARNING = 32
    HAS_EXTERNAL = 64
    HAS_TUN_TYPE = 128
    HAS_PERSIST = 256


cdef struct Properties:     # IFLA_INFO_DATA of a kind of ours
    uint32_t has            # Has
    uint32_t table          # vrf
    uint32_t vni            # vxlan, as all down to `external`
    uint16_t port
    uint8_t local_family    # AF_INET or AF_INET6, 0 = none
    uint8_t local[16]
    uint8_t ttl
    uint8_t learning
    uint8_t external
    uint8_t vlan_filtering  # bridge
    uint8_t tun_type        # tun: IFF_TUN or IFF_TAP
    uint8_t persist


cdef struct DetailsRecord:
    LinkRecord link
    Properties properties
    uint32_t group          # IFLA_GROUP
    int32_t lower           # IFLA_LINK, 0 = none
    uint8_t remote_lower    # IFLA_LINK_NETNSID: `lower` is an ifindex of another namespace
    Span altnames           # of IFLA_PROP_LIST, already read through once; empty = none


cdef Fault read_altname(const Span* value, size_t* length) noexcept nogil:
    """Up to 127 bytes, any, also none; a NUL may end them, and nothing may follow it."""
    cdef size_t size = strnlen(<const char*>value.at, value.left)
    if size >= <size_t>kernel.ALTIFNAMSIZ or value.left > size + 1:
        return FAULT_SIZE
    length[0] = size
    return FAULT_NONE


cdef Fault check_altnames(Span rest) noexcept nogil:
    """Whether a later reading of this IFLA_PROP_LIST will meet no fault."""
    cdef Attribute attribute
    cdef Fault fault
    cdef size_t length = 0
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            return FAULT_NONE if fault == FAULT_END else fault
        if attribute.type == kernel.IFLA_ALT_IFNAME:
            fault = read_altname(&attribute.value, &length)
            if fault != FAULT_NONE:
                return fault


cdef Fault read_vrf(const Attribute* attribute, Properties* out) noexcept nogil:
    if attribute.type == kernel.IFLA_VRF_TABLE:
        out.has |= HAS_TABLE
        return read_u32(&attribute.value, &out.table)
    return FAULT_NONE


cdef Fault read_bridge(const Attribute* attribute, Properties* out) noexcept nogil:
    if attribute.type == kernel.IFLA_BR_VLAN_FILTERING:
        out.has |= HAS_VLAN_FILTERING
        return read_u8(&attribute.value, &out.vlan_filtering)
    return FAULT_NONE


cdef Fault read_local(const Attribute* attribute, uint8_t family, Properties* out) noexcept nogil:
    out.local_family = family
    memset(out.local, 0, sizeof(out.local))
    return read_address(&attribute.value, address_size(family), out.local)


cdef Fault read_port(const Span* value, uint16_t* out) noexcept nogil:
    """In network byte order, as hardly anything else of rtnetlink is."""
    if value.left != sizeof(out[0]):
        return FAULT_SIZE
    out[0] = <uint16_t>(value.at[0] << 8 | value.at[1])     # two bytes fit
    return FAULT_NONE


cdef Fault read_vxlan(const Attribute* attribute, Properties* out) noexcept nogil:
    cdef uint16_t type = attribute.type
    if type == kernel.IFLA_VXLAN_ID:
        out.has |= HAS_VNI
        return read_u32(&attribute.value, &out.vni)
    if type == kernel.IFLA_VXLAN_PORT:
        out.has |= HAS_PORT
        return read_port(&attribute.value, &out.port)
    if type == kernel.IFLA_VXLAN_LOCAL:
        return read_local(attribute, kernel.AF_INET, out)
    if type == kernel.IFLA_VXLAN_LOCAL6:
        return read_local(attribute, kernel.AF_INET6, out)
    if type == kernel.IFLA_VXLAN_TTL:
        out.has |= HAS_TTL
        return read_u8(&attribute.value, &out.ttl)
    if type == kernel.IFLA_VXLAN_LEARNING:
        out.has |= HAS_LEARNING
        return read_u8(&attribute.value, &out.learning)
    if type == kernel.IFLA_VXLAN_COLLECT_METADATA:
        out.has |= HAS_EXTERNAL
        return read_u8(&attribute.value, &out.external)
    return FAULT_NONE


cdef Fault read_tun(const Attribute* attribute, Properties* out) noexcept nogil:
    if attribute.type == kernel.IFLA_TUN_TYPE:
        out.has |= HAS_TUN_TYPE
        return read_u8(&attribute.value, &out.tun_type)
    if attribute.type == kernel.IFLA_TUN_PERSIST:
        out.has |= HAS_PERSIST
        return read_u8(&attribute.value, &out.persist)
    return FAULT_NONE


ctypedef Fault (*Reader)(const Attribute* attribute, Properties* out) noexcept nogil


cdef struct KindReader:
    const char* kind
    size_t size
    Reader read


cdef KindReader[4] KIND_READERS
KIND_READERS[0] = KindReader(b"vrf", 3, &read_vrf)
KIND_READERS[1] = KindReader(b"bridge", 6, &read_bridge)
KIND_READERS[2] = KindReader(b"vxlan", 5, &read_vxlan)
KIND_READERS[3] = KindReader(b"tun", 3, &read_tun)


cdef Reader reader_of(const LinkRecord* link) noexcept nogil:
    """NULL for a kind that isn't ours."""
    cdef size_t at
    for at in range(4):
        if (
            link.kind_len == KIND_READERS[at].size
            and memcmp(link.kind, KIND_READERS[at].kind, link.kind_len) == 0
        ):
            return KIND_READERS[at].read
    return NULL


cdef Fault read_properties(Span info, Reader read, Properties* out) noexcept nogil:
    """Out of an IFLA_LINKINFO, whose IFLA_INFO_KIND is known already."""
    cdef Attribute attribute, inner
    cdef Fault fault
    memset(out, 0, sizeof(out[0]))
    while True:
        fault = next_attribute(&info, &attribute)
        if fault != FAULT_NONE:
            return FAULT_NONE if fault == FAULT_END else fault
        if attribute.type == kernel.IFLA_INFO_DATA:
            memset(out, 0, sizeof(out[0]))
            while True:
                fault = next_attribute(&attribute.value, &inner)
                if fault == FAULT_END:
                    break
                if fault == FAULT_NONE:
                    fault = read(&inner, out)
                if fault != FAULT_NONE:
                    return fault


cdef Fault decode_details(const Message* message, DetailsRecord* out) noexcept nogil:
    """RTM_NEWLINK, by the rules of decode_link; RTM_DELLINK has no properties and is ignored."""
    cdef Span rest = message.payload
    cdef Attribute attribute
    cdef Fault fault
    cdef uint16_t type
    cdef uint32_t number = 0
    cdef Reader read
    if message.type != kernel.RTM_NEWLINK:
        return FAULT_IGNORED
    fault = decode_link(message, &out.link)
    if fault != FAULT_NONE:
        return fault
    read = reader_of(&out.link)
    memset(&out.properties, 0, sizeof(out.properties))
    out.group = 0
    out.lower = 0
    out.remote_lower = 0
    out.altnames.at = NULL
    out.altnames.left = 0
    take(&rest, sizeof(kernel.ifinfomsg))       # decode_link saw that it is there
    while True:
        fault = next_attribute(&rest, &attribute)
        if fault != FAULT_NONE:
            return FAULT_NONE if fault == FAULT_END else fault
        type = attribute.type
        if type == kernel.IFLA_GROUP:
            fault = read_u32(&attribute.value, &out.group)
        elif type == kernel.IFLA_LINK:
            fault = read_ifindex(&attribute.value, &out.lower)
        elif type == kernel.IFLA_LINK_NETNSID:
            fault = read_u32(&attribute.value, &number)
            out.remote_lower = 1
        elif type == kernel.IFLA_PROP_LIST:
            fault = check_altnames(attribute.value)
            out.altnames = attribute.value
        elif type == kernel.IFLA_LINKINFO and read != NULL:
            fault = read_properties(attribute.value, read, &out.properties)
        if fault != FAULT_NONE:
            return fault


# ---- Python layer -------------------------------------------------------------------------------

@cython.final
cdef class LinkDetails(_Value):
    """A link, as RTM_NEWLINK tells it in full.

    `mac` is IFLA_ADDRESS, `controller` IFLA_MASTER (0 = none), `lower` IFLA_LINK (0 = none), which
    is an ifindex of another namespace where `remote_lower` is true. `altnames` are in the kernel's
    order. None where absent: `table` (vrf); `vlan_filtering` (bridge); `vni`, `port`, `local` (a
    family and 4 or 16 bytes), `ttl`, `learning`, `external` (vxlan; the last is collect metadata);
    `tap` (tun: whether it is one) and `persist`.

    `seq` and `portid` are those of the message, not of the link: equality, hash and repr leave
    them out. A link that a create with NLM_F_ECHO made has the `seq` of that request.
    """

    cdef readonly int ifindex, controller, lower
    cdef readonly unsigned int flags, mtu, group, seq, portid
    cdef readonly bint admin_up, remote_lower
    cdef readonly str name, kind
    cdef readonly bytes mac
    cdef readonly tuple altnames
    cdef readonly object table, vlan_filtering
    cdef readonly object vni, port, local, ttl, learning, external
    cdef readonly object tap, persist


@cython.final
cdef class Details(_Value):
    """What one datagram held, in its order; see decode_links()."""

    cdef readonly list items
    cdef readonly int faults, ignored
    cdef readonly bint interrupted


declare(LinkDetails, (
    "ifindex", "name", "kind", "flags", "admin_up", "mtu", "mac", "controller", "group",
    "altnames", "lower", "remote_lower", "table", "vlan_filtering", "vni", "port", "local", "ttl",
    "learning", "external", "tap", "persist",
))
declare(Details, ("items", "faults", "ignored", "interrupted"))


cdef tuple altnames_of(Span rest):
    """`rest` has passed check_altnames: the only end there is here is the right one."""
    cdef Attribute attribute
    cdef size_t length = 0
    cdef list names = []
    while next_attribute(&rest, &attribute) == FAULT_NONE:
        if attribute.type == kernel.IFLA_ALT_IFNAME:
            read_altname(&attribute.value, &length)
            names.append(text_of(attribute.value.at, <Py_ssize_t>length))       # at most 127
    return tuple(names)


cdef object number(const Properties* told, Has which, uint32_t value):
    return value if told.has & <uint32_t>which else None


cdef object truth(const Properties* told, Has which, bint value):
    return value if told.has & <uint32_t>which else None


cdef LinkDetails link_details(const DetailsRecord* record, const Message* message):
    cdef LinkDetails self = LinkDetails.__new__(LinkDetails)
    cdef const LinkRecord* link = &record.link
    cdef const Properties* told = &record.properties
    self.ifindex = link.ifindex
    self.name = text_of(link.name, link.name_len)
    self.kind = text_of(link.kind, link.kind_len)
    self.flags = link.flags
    self.admin_up = (link.flags & <uint32_t>kernel.IFF_UP) != 0
    self.mtu = link.mtu
    self.mac = (<const char*>link.mac)[:link.mac_len]
    self.controller = link.controller
    self.group = record.group
    self.altnames = altnames_of(record.altnames)
    self.lower = record.lower
    self.remote_lower = record.remote_lower
    self.table = number(told, HAS_TABLE, told.table)
    self.vlan_filtering = truth(told, HAS_VLAN_FILTERING, told.vlan_filtering)
    self.vni = number(told, HAS_VNI, told.vni)
    self.port = number(told, HAS_PORT, told.port)
    if told.local_family != 0:
        local = (<const char*>told.local)[:<Py_ssize_t>address_size(told.local_family)]
        self.local = (told.local_family, local)
    self.ttl = number(told, HAS_TTL, told.ttl)
    self.learning = truth(told, HAS_LEARNING, told.learning)
    self.external = truth(told, HAS_EXTERNAL, told.external)
    self.tap = truth(told, HAS_TUN_TYPE, told.tun_type == kernel.IFF_TAP)
    self.persist = truth(told, HAS_PERSIST, told.persist)
    self.seq = message.seq
    self.portid = message.portid
    return self


cdef object decode_item(const Message* message, Fault* fault):
    """The message's object, or None and why in `fault`."""
    cdef DetailsRecord details
    cdef AddrRecord addr
    cdef AnswerRecord record
    if message.type == kernel.RTM_NEWLINK:
        fault[0] = decode_details(message, &details)
        if fault[0] == FAULT_NONE:
            return link_details(&details, message)
    elif message.type == kernel.RTM_NEWADDR or message.type == kernel.RTM_DELADDR:
        fault[0] = decode_addr(message, &addr)
        if fault[0] == FAULT_NONE:
            return addr_message(&addr, message.type == kernel.RTM_DELADDR, message.portid)
    else:
        fault[0] = decode_answer(message, &record)
        if fault[0] == FAULT_NONE:
            return answer(&record)
    return None


def decode_links(const uint8_t[::1] data not None):
    """Decode a whole datagram; never raises, whatever its bytes.

    `items` holds LinkDetails, and wire's AddrMessage and Answer, in the order of the datagram.
    `faults`, `ignored` and `interrupted` are as wire.decode() has them.
    """
    cdef Details decoded = Details.__new__(Details)
    cdef Span rest
    cdef Message message
    cdef Fault fault = FAULT_NONE
    decoded.items = []
    rest.left = <size_t>data.shape[0]       # a length, so not negative
    rest.at = &data[0] if rest.left != 0 else NULL
    while True:
        fault = next_message(&rest, &message)
        if fault == FAULT_END:
            return decoded
        if fault == FAULT_NONE:
            if message.flags & kernel.NLM_F_DUMP_INTR:
                decoded.interrupted = True
            found = decode_item(&message, &fault)
            if found is not None:
                decoded.items.append(found)
        if fault == FAULT_IGNORED:
            decoded.ignored += 1
        elif fault != FAULT_NONE:
            decoded.faults += 1
