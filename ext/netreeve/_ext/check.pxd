"""What a request may hold. Each gives its value back in the form of the kernel, or ValueError."""

from libc.stdint cimport uint8_t, uint32_t

from netreeve._ext cimport kernel
from netreeve._ext.prefix cimport address_size


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef extern from "<stdint.h>":
    const uint32_t UINT32_MAX       # no member of an enum: those are int, and it would be -1


cdef enum:
    UINT8_MAX = 0xff
    UINT16_MAX = 0xffff
    VNI_MAX = 0xffffff
    IFINDEX_MAX = 0x7fffffff        # an ifindex is a positive int in the kernel
    MAC_BYTES = 6


cdef inline long long bounded(
    object number, long long lowest, long long highest, str what
) except -1:
    """`number`, if 0 <= lowest <= number <= highest; callers narrow it to what `highest` fits."""
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow != 0 or value < lowest or value > highest:
        raise ValueError(f"{what} is {number}, allowed are {lowest} to {highest}")
    return value


cdef inline uint32_t ifindex_number(object ifindex, str what="ifindex") except 0:
    return <uint32_t>bounded(ifindex, 1, IFINDEX_MAX, what)


cdef inline uint8_t inet_family(object family) except 0:
    if family != kernel.AF_INET and family != kernel.AF_INET6:
        raise ValueError(f"family is {family}, allowed are AF_INET and AF_INET6")
    return <uint8_t>family


cdef inline bytes inet_address(uint8_t family, bytes address, str what):
    if address is None or <size_t>len(address) != address_size(family):
        raise ValueError(
            f"{what} is {address!r}, an address of this family has {address_size(family)} bytes"
        )
    return address


cdef inline bytes mac_address(bytes mac):
    if len(mac) != MAC_BYTES:
        raise ValueError(f"mac is {mac!r}, it has {MAC_BYTES} bytes")
    return mac


cdef inline bytes raw_name(str name, str what, size_t room):
    """Without a NUL at its end: the attribute's length says where that is."""
    cdef bytes raw
    if name is None:
        raise ValueError(f"{what} is None")
    raw = name.encode("utf-8", "surrogateescape")
    if not raw or <size_t>len(raw) >= room or b"\0" in raw:
        raise ValueError(f"{what} is {name!r}, allowed are 1 to {room - 1} bytes without a NUL")
    return raw


cdef inline bytes link_name(str name):
    """What dev_valid_name lets pass, and no `%`, a template.

    That is no white space, to which 0xa0 belongs in the kernel, no `/` and no `:`.
    """
    cdef bytes raw = raw_name(name, "name", kernel.IFNAMSIZ)
    cdef const uint8_t* at = raw
    cdef Py_ssize_t index
    for index in range(len(raw)):
        if 0x09 <= at[index] <= 0x0d or at[index] in (0x20, 0x25, 0x2f, 0x3a, 0xa0):
            raise ValueError(f"name is {name!r}, a link's name has no byte {at[index]:#04x}")
    if raw == b"." or raw == b"..":
        raise ValueError(f"name is {name!r}, which is no link's")
    return raw


cdef inline bytes token_name(str token):
    """An alternative name of ours.

    The kernel looks a token up among the names too, and a name can be anything up to 15 bytes;
    so only what is longer says whose link it is.
    """
    cdef bytes raw = raw_name(token, "token", kernel.ALTIFNAMSIZ)
    cdef const uint8_t* at = raw
    cdef Py_ssize_t index
    if not raw.startswith(b"netreeve.") or <size_t>len(raw) < <size_t>kernel.IFNAMSIZ:
        raise ValueError(
            f"token is {token!r}, it begins with netreeve. and has {kernel.IFNAMSIZ} bytes or more"
        )
    for index in range(len(raw)):       # visible ASCII but `/`
        if at[index] <= 0x20 or at[index] >= 0x7f or at[index] == 0x2f:
            raise ValueError(f"token is {token!r}, it has no byte {at[index]:#04x}")
    return raw
