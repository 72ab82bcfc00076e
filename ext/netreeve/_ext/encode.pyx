"""Requests to rtnetlink: many in one buffer, for one sendmsg.

A wrong nlmsg_len makes the kernel drop the rest of a batch without a word, and a request whose
selector is too wide hits other people's routes. So lengths are computed in one place, and a
dangerous shape is refused here, whoever asks: ValueError, and the batch is as it was before.

The kernel answers every error, so only the last request asks for an acknowledgement: when that
(or its error) has come, all requests before it are done, and those that weren't answered went
well. A request that is answered with data (link_get) is answered besides. A dump is ended by
NLMSG_DONE, asks for no acknowledgement, and stands alone: a socket has one dump at a time.

Changes and deletes of links name them by their token, an alternative name, with ifindex 0: the
kernel looks it up and acts under one lock, or says ENODEV. By ifindex it would act on whatever
bears the number by then, and a name beside it would be no check but a new name. By ifindex are
only reads, token_add, and what the kernel has no other way for: the link of an address or a
route, and the controller of a link.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from netreeve._ext cimport kernel
from netreeve._ext.check cimport (
    IFINDEX_MAX,
    UINT8_MAX,
    UINT16_MAX,
    UINT32_MAX,
    VNI_MAX,
    bounded,
    ifindex_number,
    inet_address,
    inet_family,
    link_name,
    mac_address,
    raw_name,
    token_name,
)
from netreeve._ext.payload cimport (
    Payload,
    close_nested,
    open_nested,
    put,
    put_attribute,
    put_bytes,
    put_u8,
    put_u32,
)
from netreeve._ext.prefix cimport address_size, has_host_bits


cdef uint32_t after(uint32_t seq) noexcept:
    """The sequence number that follows; 0 is what events bear, so no request does."""
    if seq == UINT32_MAX:
        return 1
    return seq + 1


# Of each kind that we make: what a create must say, what it may say, and what can be changed while
# the link is there. The kernel ignores what it doesn't know of a kind; here it is refused.
cdef dict REQUIRED = {"bridge": (), "vrf": ("table",), "vxlan": ("vni", "port")}
cdef dict CREATABLE = {
    "bridge": ("vlan_filtering",),
    "vrf": ("table",),
    "vxlan": ("vni", "port", "local", "ttl", "learning"),
}
cdef dict CHANGEABLE = {"bridge": ("vlan_filtering",), "vxlan": ("local", "ttl", "learning")}


cdef dict checked(str kind, dict told, dict allowed):
    """Those properties that aren't None, all of which `kind` has."""
    if kind not in allowed:
        raise ValueError(f"kind is {kind!r}, allowed are {', '.join(allowed)}")
    given = {name: value for name, value in told.items() if value is not None}
    for name in given:
        if name not in allowed[kind]:
            raise ValueError(f"{name} is no property of a {kind} that can be set here")
    return given


cdef int put_local(Payload* payload, object local) except -1:
    family, address = local
    if inet_family(family) == kernel.AF_INET:
        put_bytes(payload, kernel.IFLA_VXLAN_LOCAL, inet_address(family, address, "local"))
    else:
        put_bytes(payload, kernel.IFLA_VXLAN_LOCAL6, inet_address(family, address, "local"))
    return 0


cdef int put_info(Payload* payload, str kind, dict given) except -1:
    """IFLA_LINKINFO; `given` as checked() gives it."""
    cdef size_t info, data
    cdef uint16_t port
    cdef uint8_t[2] network_order
    info = open_nested(payload, kernel.IFLA_LINKINFO)
    put_bytes(payload, kernel.IFLA_INFO_KIND, kind.encode())
    data = open_nested(payload, kernel.IFLA_INFO_DATA)
    for name, value in given.items():
        if name == "table":
            put_u32(payload, kernel.IFLA_VRF_TABLE, <uint32_t>bounded(value, 1, UINT32_MAX, name))
        elif name == "vlan_filtering":
            put_u8(payload, kernel.IFLA_BR_VLAN_FILTERING, 1 if value else 0)
        elif name == "vni":
            put_u32(payload, kernel.IFLA_VXLAN_ID, <uint32_t>bounded(value, 1, VNI_MAX, name))
        elif name == "port":
            port = <uint16_t>bounded(value, 1, UINT16_MAX, name)
            network_order[0] = <uint8_t>(port >> 8)
            network_order[1] = <uint8_t>(port & UINT8_MAX)
            put_attribute(payload, kernel.IFLA_VXLAN_PORT, network_order, sizeof(network_order))
        elif name == "local":
            put_local(payload, value)
        elif name == "ttl":
            put_u8(payload, kernel.IFLA_VXLAN_TTL, <uint8_t>bounded(value, 0, UINT8_MAX, name))
        elif name == "learning":
            put_u8(payload, kernel.IFLA_VXLAN_LEARNING, 1 if value else 0)
    close_nested(payload, data)
    close_nested(payload, info)
    return 0


cdef int begin_link(
    Payload* payload, uint32_t ifindex=0, uint32_t flags=0, uint32_t mask=0
) except -1:
    """The header of every message about links; `mask` says which of `flags` are meant."""
    cdef kernel.ifinfomsg link
    payload.used = 0
    memset(&link, 0, sizeof(link))
    link.ifi_family = kernel.AF_UNSPEC
    link.ifi_index = <int32_t>ifindex           # callers: at most IFINDEX_MAX
    link.ifi_flags = flags
    link.ifi_change = mask
    return put(payload, &link, sizeof(link))


cdef int put_settings(Payload* payload, object mtu, object mac, object controller) except -1:
    """What create and set have in common; None is not sent."""
    if mtu is not None:
        put_u32(payload, kernel.IFLA_MTU, <uint32_t>bounded(mtu, 1, IFINDEX_MAX, "mtu"))
    if mac is not None:
        put_bytes(payload, kernel.IFLA_ADDRESS, mac_address(mac))
    if controller is not None:
        put_u32(
            payload,
            kernel.IFLA_MASTER,
            <uint32_t>bounded(controller, 0, IFINDEX_MAX, "controller"),
        )
    return 0


cdef int begin_addr(
    Payload* payload, object ifindex, object family, bytes address, object prefix_len
) except -1:
    """What adding and deleting an address have in common."""
    cdef kernel.ifaddrmsg header
    cdef uint8_t inet = inet_family(family)
    cdef long long bits = <long long>(8 * address_size(inet))
    cdef bytes packed = inet_address(inet, address, "address")
    payload.used = 0
    memset(&header, 0, sizeof(header))
    header.ifa_family = inet
    # An address of /0 would take the place of the default route.
    header.ifa_prefixlen = <uint8_t>bounded(prefix_len, 1, bits, "prefix_len")
    header.ifa_index = ifindex_number(ifindex)
    if inet == kernel.AF_INET6:
        # Nodes share the addresses of a bridge, so each would find the other's; and without a port
        # the bridge has no carrier, and its address would be tentative until it has.
        header.ifa_flags = kernel.IFA_F_NODAD
    put(payload, &header, sizeof(header))
    put_bytes(payload, kernel.IFA_LOCAL, packed)
    put_bytes(payload, kernel.IFA_ADDRESS, packed)
    return 0


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
        self._first_seq = self._next_seq = <uint32_t>bounded(first_seq, 1, UINT32_MAX, "first_seq")
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
            return UINT32_MAX
        return self._next_seq - 1

    @property
    def next_seq(self):
        """The `first_seq` of the batch that follows this one on the same socket."""
        return self._next_seq

    cdef object _add(self, uint16_t type, uint16_t flags, const Payload* payload):
        """The one place where a batch grows, and the last to refuse."""
        cdef kernel.nlmsghdr header
        cdef size_t size = sizeof(header) + payload.used
        if self._is_dump:
            raise ValueError("a dump stands alone in its batch")
        if size > self._capacity - self._used:
            raise ValueError(f"the batch would be longer than {self._capacity} bytes")
        memset(&header, 0, sizeof(header))
        header.nlmsg_len = <uint32_t>size       # at most _capacity, below 2**31
        header.nlmsg_type = type
        header.nlmsg_flags = flags | <uint16_t>kernel.NLM_F_REQUEST
        header.nlmsg_seq = self._next_seq
        memcpy(self._buffer + self._used, &header, sizeof(header))
        memcpy(self._buffer + self._used + sizeof(header), payload.bytes, payload.used)
        self._last = self._used
        self._used += size
        self._count += 1
        self._next_seq = after(self._next_seq)
        return header.nlmsg_seq

    cdef object _add_dump(self, uint16_t type, const Payload* payload):
        if self._count != 0:
            raise ValueError("a dump stands alone in its batch")
        seq = self._add(type, kernel.NLM_F_DUMP, payload)
        self._is_dump = True
        return seq

    # Reads.

    cdef object _link_get(self, Payload* payload):
        """IFLA_EXT_MASK as in a dump, so that an answer and a dump entry tell the same."""
        put_u32(payload, kernel.IFLA_EXT_MASK, kernel.RTEXT_FILTER_SKIP_STATS)
        return self._add(kernel.RTM_GETLINK, 0, payload)

    def link_get(self, ifindex):
        """Ask for one link: RTM_NEWLINK, or ENODEV."""
        cdef Payload payload
        begin_link(&payload, ifindex_number(ifindex))
        return self._link_get(&payload)

    def link_get_by_name(self, str name):
        """Ask for the link that has this name, or as the kernel does it, alternative name."""
        cdef Payload payload
        begin_link(&payload)
        put_bytes(&payload, kernel.IFLA_IFNAME, link_name(name))
        return self._link_get(&payload)

    def link_get_by_altname(self, str altname):
        """Ask for the link that has this alternative name, or as the kernel does it, name."""
        cdef Payload payload
        begin_link(&payload)
        put_bytes(
            &payload, kernel.IFLA_ALT_IFNAME, raw_name(altname, "altname", kernel.ALTIFNAMSIZ)
        )
        return self._link_get(&payload)

    def link_dump(self, str kind=None):
        """Ask for all links, or for those of a kind.

        The kind is a hint: a kernel that doesn't know it gives all links. IFLA_EXT_MASK isn't there
        to save bytes: without one the kernel ends a dump early, and as if all were well, at the
        first link whose message doesn't fit the chunk.
        """
        cdef Payload payload
        cdef size_t info
        begin_link(&payload)
        put_u32(&payload, kernel.IFLA_EXT_MASK, kernel.RTEXT_FILTER_SKIP_STATS)
        if kind is not None:
            info = open_nested(&payload, kernel.IFLA_LINKINFO)
            put_bytes(&payload, kernel.IFLA_INFO_KIND, raw_name(kind, "kind", kernel.IFNAMSIZ))
            close_nested(&payload, info)
        return self._add_dump(kernel.RTM_GETLINK, &payload)

    def addr_dump(self, family, ifindex=0):
        """Ask for the addresses of a family, of one link (0 = all).

        As with route_dump, the filter is honoured on a strict socket only; there a link that isn't
        there is ENODEV.
        """
        cdef kernel.ifaddrmsg header
        cdef Payload payload
        payload.used = 0
        memset(&header, 0, sizeof(header))
        header.ifa_family = inet_family(family)
        header.ifa_index = <uint32_t>bounded(ifindex, 0, IFINDEX_MAX, "ifindex")
        put(&payload, &header, sizeof(header))
        return self._add_dump(kernel.RTM_GETADDR, &payload)

    def route_dump(self, family, table=0, protocol=0):
        """Ask for the routes of a family, of a table (0 = all) and a protocol (0 = all).

        The filters are honoured on a socket with NETLINK_GET_STRICT_CHK only; elsewhere they are
        ignored silently. Strict means too that all other fields are zero.
        """
        cdef kernel.rtmsg route
        cdef Payload payload
        cdef uint32_t number = <uint32_t>bounded(table, 0, UINT32_MAX, "table")
        payload.used = 0
        memset(&route, 0, sizeof(route))
        route.rtm_family = inet_family(family)
        route.rtm_protocol = <uint8_t>bounded(protocol, 0, UINT8_MAX, "protocol")
        put(&payload, &route, sizeof(route))
        if number != 0:
            put_u32(&payload, kernel.RTA_TABLE, number)
        return self._add_dump(kernel.RTM_GETROUTE, &payload)

    # Links.

    def link_create(
        self,
        str kind,
        str name,
        *,
        up=False,
        echo=False,
        mtu=None,
        bytes mac=None,
        controller=0,
        table=None,
        vlan_filtering=None,
        vni=None,
        port=None,
        local=None,
        ttl=None,
        learning=None,
    ):
        """Make a link of kind vrf, bridge or vxlan; EEXIST if anybody has its name.

        A property that is None isn't sent, and a property of another kind is ValueError. `table`
        (vrf), `vni` (1 to 2**24-1) and `port` (vxlan) must be given. `local` is a family and 4 or
        16 bytes; `ttl` 0 leaves it to the kernel. EEXIST with a text says that another VXLAN has
        this VNI, port and family. With `up`, EADDRINUSE says that a socket or an `external` VXLAN
        has the port, and nothing is made. With `echo`, RTM_NEWLINK of the new link, as yet without
        its controller, precedes the answer; kernels before 6.2 send none. A token can't be given
        here: the kernel would ignore it silently.
        """
        cdef Payload payload
        cdef uint16_t flags = kernel.NLM_F_CREATE | kernel.NLM_F_EXCL
        cdef dict told = {
            "table": table, "vlan_filtering": vlan_filtering, "vni": vni, "port": port,
            "local": local, "ttl": ttl, "learning": learning,
        }
        given = checked(kind, told, CREATABLE)
        for needed in REQUIRED[kind]:
            if needed not in given:
                raise ValueError(f"{needed} is missing, a {kind} isn't made without")
        if echo:
            flags |= <uint16_t>kernel.NLM_F_ECHO
        if up:
            begin_link(&payload, 0, kernel.IFF_UP, kernel.IFF_UP)
        else:
            begin_link(&payload)
        put_bytes(&payload, kernel.IFLA_IFNAME, link_name(name))
        put_settings(&payload, mtu, mac, controller if controller != 0 else None)
        put_info(&payload, kind, given)
        return self._add(kernel.RTM_NEWLINK, flags, &payload)

    def link_set(
        self, str token, *, up=None, mtu=None, bytes mac=None, controller=None, group=None
    ):
        """Set what every link has; ENODEV if none has the token.

        `controller` 0 releases it. Several settings in one request are no transaction: the kernel
        stops at the first that fails, and what came before stays.
        """
        cdef Payload payload
        if up is None and mtu is None and mac is None and controller is None and group is None:
            raise ValueError("there is nothing to set")
        if up is None:
            begin_link(&payload)
        else:
            begin_link(&payload, 0, kernel.IFF_UP if up else 0, kernel.IFF_UP)
        put_bytes(&payload, kernel.IFLA_ALT_IFNAME, token_name(token))
        put_settings(&payload, mtu, mac, controller)
        if group is not None:
            put_u32(
                &payload, kernel.IFLA_GROUP, <uint32_t>bounded(group, 0, UINT32_MAX, "group")
            )
        return self._add(kernel.RTM_SETLINK, 0, &payload)

    def link_change(
        self, str token, str kind, *, vlan_filtering=None, local=None, ttl=None, learning=None
    ):
        """Change properties of a bridge or vxlan; ENODEV if no link has the token.

        EOPNOTSUPP if the link is of another kind. The rest (VNI, port, table) the kernel changes
        never: delete and create.
        """
        cdef Payload payload
        cdef dict told = {
            "vlan_filtering": vlan_filtering, "local": local, "ttl": ttl, "learning": learning
        }
        given = checked(kind, told, CHANGEABLE)
        if not given:
            # Without data the kernel doesn't look at the kind.
            raise ValueError("there is nothing to change")
        begin_link(&payload)
        put_bytes(&payload, kernel.IFLA_ALT_IFNAME, token_name(token))
        put_info(&payload, kind, given)
        return self._add(kernel.RTM_NEWLINK, 0, &payload)

    def link_delete(self, str token):
        """Delete the link that has the token; ENODEV if none has."""
        cdef Payload payload
        begin_link(&payload)
        put_bytes(&payload, kernel.IFLA_ALT_IFNAME, token_name(token))
        return self._add(kernel.RTM_DELLINK, 0, &payload)

    def link_delete_group(self, group):
        """Delete all links of a group: one that was made up for this, filled and read back.

        ENODEV if it is empty; EOPNOTSUPP, and nothing deleted, if a member can't be deleted.
        """
        cdef Payload payload
        cdef uint32_t number = <uint32_t>bounded(group, 1, UINT32_MAX, "group")
        begin_link(&payload)
        put_u32(&payload, kernel.IFLA_GROUP, number)
        return self._add(kernel.RTM_DELLINK, 0, &payload)

    cdef object _token(self, uint16_t type, Payload* payload, bytes token):
        cdef size_t properties = open_nested(payload, kernel.IFLA_PROP_LIST)
        put_bytes(payload, kernel.IFLA_ALT_IFNAME, token)
        close_nested(payload, properties)
        return self._add(type, 0, payload)

    def token_add(self, ifindex, str token):
        """Give a token to a link, just made or to be adopted; EEXIST if any link has it.

        The one change of a link by ifindex: read the link back by the token before trusting it.
        """
        cdef Payload payload
        begin_link(&payload, ifindex_number(ifindex))
        return self._token(kernel.RTM_NEWLINKPROP, &payload, token_name(token))

    def token_remove(self, str token):
        """Take a token off the link that has it; ENODEV if none has."""
        cdef Payload payload
        cdef bytes raw = token_name(token)
        begin_link(&payload)
        put_bytes(&payload, kernel.IFLA_ALT_IFNAME, raw)
        return self._token(kernel.RTM_DELLINKPROP, &payload, raw)

    # Addresses.

    def addr_add(self, ifindex, family, bytes address, prefix_len, proto):
        """Add an address, without duplicate address detection; EEXIST if the link has it.

        `proto` (1 to 255) is IFA_PROTO, kept by kernels since 5.18.
        """
        cdef Payload payload
        begin_addr(&payload, ifindex, family, address, prefix_len)
        put_u8(&payload, kernel.IFA_PROTO, <uint8_t>bounded(proto, 1, UINT8_MAX, "proto"))
        return self._add(
            kernel.RTM_NEWADDR, kernel.NLM_F_CREATE | kernel.NLM_F_EXCL, &payload
        )

    def addr_delete(self, ifindex, str name, family, bytes address, prefix_len):
        """Delete an address; EADDRNOTAVAIL if the link hasn't got it.

        `name` is that of the link. IPv4 compares it with the address's label, which follows the
        name: if another link has the ifindex by now, nothing happens. IPv6 has no such guard.
        """
        cdef Payload payload
        cdef bytes label = link_name(name)
        begin_addr(&payload, ifindex, family, address, prefix_len)
        if family == kernel.AF_INET:
            put_bytes(&payload, kernel.IFA_LABEL, label)
        return self._add(kernel.RTM_DELADDR, 0, &payload)

    # Routes.

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
        cdef Payload payload
        cdef size_t size = address_size(inet_family(family))
        cdef uint32_t table_number = <uint32_t>bounded(table, 1, UINT32_MAX, "table")
        cdef uint32_t metric_number = <uint32_t>bounded(metric, 1, UINT32_MAX, "metric")
        cdef uint32_t oif_number = ifindex_number(oif, "oif")
        cdef bytes packed = inet_address(family, dst, "dst")
        cdef const uint8_t* address = packed
        memset(&route, 0, sizeof(route))
        route.rtm_family = family
        route.rtm_dst_len = <uint8_t>bounded(prefix_len, 0, <long long>(8 * size), "prefix_len")
        if has_host_bits(address, size, route.rtm_dst_len):
            raise ValueError(f"dst is {dst!r}, it has bits behind its /{prefix_len}")
        route.rtm_tos = <uint8_t>bounded(tos, 0, UINT8_MAX, "tos")
        route.rtm_protocol = <uint8_t>bounded(protocol, 1, UINT8_MAX, "protocol")
        # IPv4 compares the scope on delete: a route through a gateway, which has another, is not
        # hit. IPv6 has no scopes.
        if size == 4:
            route.rtm_scope = kernel.RT_SCOPE_LINK
        else:
            route.rtm_scope = kernel.RT_SCOPE_UNIVERSE
        route.rtm_type = kernel.RTN_UNICAST
        payload.used = 0
        put(&payload, &route, sizeof(route))
        put_attribute(&payload, kernel.RTA_DST, address, size)
        put_u32(&payload, kernel.RTA_TABLE, table_number)
        put_u32(&payload, kernel.RTA_PRIORITY, metric_number)
        put_u32(&payload, kernel.RTA_OIF, oif_number)
        return self._add(type, flags, &payload)

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
