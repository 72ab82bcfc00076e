"""The kernel's own words: structs and constants from its headers, nothing copied by hand.

All of it is in the headers of Debian 12 (linux-libc-dev 6.1). <linux/if.h> and <net/if.h> define
the same enum: whoever needs both includes <net/if.h> first, so no `.pyx` may cimport anything that
brings <net/if.h> in after this file.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t


cdef extern from "<sys/socket.h>" nogil:
    enum:
        AF_UNSPEC
        AF_INET
        AF_INET6
        AF_BRIDGE
        AF_NETLINK
        SOL_NETLINK


cdef extern from "<linux/netlink.h>" nogil:
    enum:
        NETLINK_ROUTE

        NLMSG_NOOP
        NLMSG_ERROR
        NLMSG_DONE
        NLMSG_OVERRUN

        NLM_F_REQUEST
        NLM_F_MULTI
        NLM_F_ACK
        NLM_F_ECHO
        NLM_F_DUMP_INTR
        NLM_F_DUMP_FILTERED
        NLM_F_DUMP
        NLM_F_REPLACE
        NLM_F_EXCL
        NLM_F_CREATE
        NLM_F_CAPPED
        NLM_F_ACK_TLVS

        NLMSGERR_ATTR_MSG
        NLMSGERR_ATTR_OFFS

        NLMSG_ALIGNTO
        NLA_ALIGNTO
        NLA_F_NESTED
        NLA_TYPE_MASK

        NETLINK_ADD_MEMBERSHIP
        NETLINK_EXT_ACK
        NETLINK_CAP_ACK
        NETLINK_GET_STRICT_CHK

    struct sockaddr_nl:
        uint16_t nl_family
        uint32_t nl_pid
        uint32_t nl_groups

    struct nlmsghdr:
        uint32_t nlmsg_len
        uint16_t nlmsg_type
        uint16_t nlmsg_flags
        uint32_t nlmsg_seq
        uint32_t nlmsg_pid

    struct nlmsgerr:
        int32_t error
        nlmsghdr msg

    struct nlattr:
        uint16_t nla_len
        uint16_t nla_type


cdef extern from "<linux/rtnetlink.h>" nogil:
    enum:
        RTM_NEWLINK
        RTM_DELLINK
        RTM_GETLINK
        RTM_SETLINK
        RTM_NEWLINKPROP
        RTM_DELLINKPROP
        RTM_NEWADDR
        RTM_DELADDR
        RTM_GETADDR
        RTM_NEWROUTE
        RTM_DELROUTE
        RTM_GETROUTE

        RTNLGRP_LINK
        RTNLGRP_IPV4_IFADDR
        RTNLGRP_IPV6_IFADDR
        RTNLGRP_IPV4_ROUTE
        RTNLGRP_IPV6_ROUTE

        RTEXT_FILTER_SKIP_STATS

        RTA_DST
        RTA_OIF
        RTA_GATEWAY
        RTA_PRIORITY
        RTA_MULTIPATH
        RTA_TABLE
        RTA_VIA

        RTN_UNICAST
        RT_SCOPE_UNIVERSE
        RT_SCOPE_LINK

        RTNH_ALIGNTO

    struct rtmsg:
        uint8_t rtm_family
        uint8_t rtm_dst_len
        uint8_t rtm_src_len
        uint8_t rtm_tos
        uint8_t rtm_table
        uint8_t rtm_protocol
        uint8_t rtm_scope
        uint8_t rtm_type
        uint32_t rtm_flags

    struct rtnexthop:
        uint16_t rtnh_len
        uint8_t rtnh_flags
        uint8_t rtnh_hops
        int32_t rtnh_ifindex

    struct rtvia:
        uint16_t rtvia_family

    struct ifinfomsg:
        uint8_t ifi_family
        uint16_t ifi_type
        int32_t ifi_index
        uint32_t ifi_flags
        uint32_t ifi_change


cdef extern from "<linux/if_link.h>" nogil:
    enum:
        IFLA_ADDRESS
        IFLA_IFNAME
        IFLA_MTU
        IFLA_LINK
        IFLA_MASTER
        IFLA_WIRELESS
        IFLA_OPERSTATE
        IFLA_LINKINFO
        IFLA_GROUP
        IFLA_EXT_MASK
        IFLA_LINK_NETNSID
        IFLA_NEW_NETNSID
        IFLA_CARRIER_UP_COUNT
        IFLA_CARRIER_DOWN_COUNT
        IFLA_NEW_IFINDEX
        IFLA_PROP_LIST
        IFLA_ALT_IFNAME

        IFLA_INFO_KIND
        IFLA_INFO_DATA

        IFLA_BR_VLAN_FILTERING

        IFLA_TUN_TYPE
        IFLA_TUN_PERSIST

        IFLA_VRF_TABLE

        IFLA_VXLAN_ID
        IFLA_VXLAN_LOCAL
        IFLA_VXLAN_LOCAL6
        IFLA_VXLAN_TTL
        IFLA_VXLAN_LEARNING
        IFLA_VXLAN_PORT
        IFLA_VXLAN_COLLECT_METADATA


cdef extern from "<linux/if.h>" nogil:
    enum:
        IFNAMSIZ
        ALTIFNAMSIZ

        IFF_UP
        IFF_RUNNING
        IFF_LOWER_UP

        IF_OPER_UNKNOWN
        IF_OPER_NOTPRESENT
        IF_OPER_DOWN
        IF_OPER_LOWERLAYERDOWN
        IF_OPER_TESTING
        IF_OPER_DORMANT
        IF_OPER_UP


cdef extern from "<linux/if_tun.h>" nogil:
    enum:
        IFF_TAP


cdef extern from "<linux/if_addr.h>" nogil:
    enum:
        IFA_ADDRESS
        IFA_LOCAL
        IFA_LABEL
        IFA_FLAGS
        IFA_PROTO               # since 5.18; older kernels neither keep nor tell it

        IFA_F_NODAD

    struct ifaddrmsg:
        uint8_t ifa_family
        uint8_t ifa_prefixlen
        uint8_t ifa_flags
        uint8_t ifa_scope
        uint32_t ifa_index
