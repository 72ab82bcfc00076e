"""A hash map of pointers to C structs that begin with their hash.

Open addressing with linear probing; removing moves entries up, so there are no tombstones and a
table under endless churn never degrades. Looking up is the owner's loop from `home()` on, as only
the owner can compare keys.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free


cdef struct Keyed:              # what every entry begins with
    uint64_t hash


cdef struct Map:                # all zeros = empty
    Keyed** slots
    size_t mask                 # capacity - 1, a power of two less one
    size_t used


cdef inline size_t home(const Map* map, uint64_t hash) noexcept nogil:
    return <size_t>(hash >> 32) & map.mask


cdef inline int map_put(Map* map, Keyed* entry) noexcept nogil:
    """Adds an entry that isn't there yet. -1: no memory, nothing changed."""
    cdef Keyed** bigger
    cdef Keyed** slots = map.slots
    cdef size_t at, i, capacity = map.mask + 1 if slots is not NULL else 0
    if 4 * (map.used + 1) > 3 * capacity:
        bigger = <Keyed**>calloc(2 * capacity if capacity else 16, sizeof(Keyed*))
        if bigger is NULL:
            return -1
        map.slots = bigger
        map.mask = (2 * capacity if capacity else 16) - 1
        for i in range(capacity):
            if slots[i] is not NULL:
                at = home(map, slots[i].hash)
                while bigger[at] is not NULL:
                    at = (at + 1) & map.mask
                bigger[at] = slots[i]
        free(slots)
    at = home(map, entry.hash)
    while map.slots[at] is not NULL:
        at = (at + 1) & map.mask
    map.slots[at] = entry
    map.used += 1
    return 0


cdef inline void map_remove(Map* map, const Keyed* entry) noexcept nogil:
    """Takes out an entry that is there; those behind it in its run move up."""
    cdef size_t hole = home(map, entry.hash), at
    while map.slots[hole] is not entry:
        hole = (hole + 1) & map.mask
    at = hole
    while True:
        at = (at + 1) & map.mask
        if map.slots[at] is NULL:
            break
        # An entry may fill the hole unless its home lies behind the hole, up to where it is now.
        if ((at - home(map, map.slots[at].hash)) & map.mask) >= ((at - hole) & map.mask):
            map.slots[hole] = map.slots[at]
            hole = at
    map.slots[hole] = NULL
    map.used -= 1
