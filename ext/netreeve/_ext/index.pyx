"""Links by ifindex and by name, and the machine that decides what may be told of them.

A link is its ifindex; a name is a property that moves. Two links can seem to bear one name for a
while: a pod is rebuilt and the new link is seen before the old one is known to be gone, events were
lost, names were swapped. Whoever then says "eth0 is gone" for the old one deletes the routes of the
living one (Calico #11016). So presence is told per name, for one ifindex at a time:

* `holders`: the links whose last observed name it is; several = ambiguous, nothing is told;
* `told`: what downstream was told last; only exactly that is ever taken back;
* `deferred`: transitions of the told link while the name was ambiguous, told once it no longer is.

Every observation updates the links first, then settles each name it touched, old name first.
The rules are those of ARCHITECTURE.md, "Link names"; tests/support/slow_index.py says the same,
slowly.

Names are bytes here. At the door they become `str` (UTF-8 with surrogateescape, which loses
nothing).
"""

cimport cython
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from netreeve._ext.cursor cimport Span
from netreeve._ext.kernel cimport (
    IFF_LOWER_UP,
    IFF_RUNNING,
    IFF_UP,
    RTM_DELLINK,
    RTM_NEWLINK,
)
from netreeve._ext.map cimport Keyed, Map, home, map_put, map_remove
from netreeve._ext.stage cimport Stage
from netreeve._ext.wire cimport (
    FAULT_END,
    FAULT_IGNORED,
    FAULT_LENGTH,
    FAULT_NONE,
    Fault,
    LinkRecord,
    Message,
    decode_link,
    next_message,
)

# ---------------------------------------------------------------------------------------------
# C layer: hashes, and what a record says


cdef inline uint64_t hash_ifindex(int32_t ifindex, uint64_t seed) noexcept nogil:
    return (<uint64_t><uint32_t>ifindex ^ seed) * <uint64_t>0x9E3779B97F4A7C15


cdef inline uint64_t hash_name(const uint8_t* text, uint64_t seed) noexcept nogil:
    """`text` holds 16 bytes, zero padded."""
    cdef uint64_t low, high
    memcpy(&low, text, 8)
    memcpy(&high, text + 8, 8)
    low = (low ^ seed) * <uint64_t>0x9E3779B97F4A7C15
    return ((low ^ (low >> 29)) ^ high) * <uint64_t>0xBF58476D1CE4E5B9


cdef inline bint is_up(const LinkRecord* record) noexcept nogil:
    """Operational: IFF_UP, IFF_RUNNING and IFF_LOWER_UP.

    RUNNING alone holds for operstate UNKNOWN too. A bridge, a VXLAN or a tap is usable like that,
    and has LOWER_UP; a veth that was made up has not, until its peer is, and still says RUNNING in
    its first message. After a loss of carrier it is LOWER_UP that goes first.
    """
    cdef uint32_t all_of = IFF_UP | IFF_RUNNING | IFF_LOWER_UP
    return (record.flags & all_of) == all_of


cdef inline bint is_steady(const LinkRecord* record) noexcept nogil:
    """Whether linkwatch has caught up: the counters move with the carrier, RUNNING follows later.

    A message in between (LOWER_UP there, RUNNING not yet) has counted changes whose own messages
    are yet to come.
    """
    if not record.flags & IFF_UP:
        return True
    return ((record.flags & IFF_RUNNING) != 0) == ((record.flags & IFF_LOWER_UP) != 0)


cdef inline uint32_t hidden_flaps(LinkRow* row, const LinkRecord* record, bint fell) noexcept nogil:
    """How often the link went down with no message of its own; accounts for all that is known.

    The kernel merges carrier changes that follow each other within its link-watch delay, but its
    down counter moves with each. `fell`: this record itself tells one of them. A carrier that comes
    and goes while the link is administratively down (a tap's holder) is nobody's flap.
    """
    cdef uint32_t counted = record.down_count - row.base_down
    if fell and counted:
        row.base_down += 1
        counted -= 1
    if not is_steady(record):
        return 0
    row.base_down = record.down_count
    return counted if (row.record.flags | record.flags) & IFF_UP else 0


cdef inline bint is_reborn(const LinkRecord* old, const LinkRecord* new) noexcept nogil:
    """Whether one ifindex shows another link than before, with no DELLINK seen between."""
    if old.kind_len != new.kind_len or memcmp(old.kind, new.kind, sizeof(old.kind)) != 0:
        return True
    if old.has_counts and new.has_counts:
        return new.up_count < old.up_count or new.down_count < old.down_count
    return False


# ---------------------------------------------------------------------------------------------
# Python layer: values


cdef inline str text_of(const uint8_t* text, uint8_t size):
    return PyUnicode_DecodeUTF8(<const char*>text, size, "surrogateescape")


cdef bytes name_bytes(object name):
    if isinstance(name, bytes):
        return <bytes>name
    return (<str?>name).encode("utf-8", "surrogateescape")


cdef class _Event:
    """What the name machine tells. Frozen; equal by value."""

    cdef tuple _values(self):
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == (<_Event>other)._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        fields = zip(type(self).__match_args__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"


@cython.final
cdef class LinkAdded(_Event):
    """A link bears this name from now on, and is up (IFF_UP, IFF_RUNNING, IFF_LOWER_UP) or not."""

    __match_args__ = ("name", "ifindex", "up")
    cdef readonly str name
    cdef readonly int ifindex
    cdef readonly bint up

    def __init__(self, str name not None, int ifindex, bint up):
        self.name = name
        self.ifindex = ifindex
        self.up = up

    cdef tuple _values(self):
        return (self.name, self.ifindex, self.up)


@cython.final
cdef class LinkChanged(_Event):
    """The link of this name went up or down.

    `inferred`: no message said so, the kernel's carrier counters did; `flaps` is then, on the
    event that says down, how often it went down (the kernel merged them); else 0.
    """

    __match_args__ = ("name", "ifindex", "up", "inferred", "flaps")
    cdef readonly str name
    cdef readonly int ifindex
    cdef readonly bint up
    cdef readonly bint inferred
    cdef readonly unsigned int flaps

    def __init__(
        self, str name not None, int ifindex, bint up, bint inferred=False, unsigned int flaps=0
    ):
        self.name = name
        self.ifindex = ifindex
        self.up = up
        self.inferred = inferred
        self.flaps = flaps

    cdef tuple _values(self):
        return (self.name, self.ifindex, self.up, self.inferred, self.flaps)


@cython.final
cdef class LinkRemoved(_Event):
    """The link of this ifindex bears this name no longer: deleted, renamed or moved away."""

    __match_args__ = ("name", "ifindex")
    cdef readonly str name
    cdef readonly int ifindex

    def __init__(self, str name not None, int ifindex):
        self.name = name
        self.ifindex = ifindex

    cdef tuple _values(self):
        return (self.name, self.ifindex)


@cython.final
cdef class NameAmbiguous(_Event):
    """Several links seem to bear this name; nothing is told of it until the kernel was asked."""

    __match_args__ = ("name", "ifindexes")
    cdef readonly str name
    cdef readonly tuple ifindexes

    def __init__(self, str name not None, tuple ifindexes not None):
        self.name = name
        self.ifindexes = ifindexes

    cdef tuple _values(self):
        return (self.name, self.ifindexes)


@cython.final
cdef class Link(_Event):
    """One link as last observed: a snapshot that does not change with the table."""

    __match_args__ = (
        "name", "ifindex", "kind", "admin_up", "up", "carrier", "operstate", "mtu", "controller",
        "mac", "carrier_up_count", "carrier_down_count",
    )
    cdef readonly str name
    cdef readonly int ifindex
    cdef readonly str kind
    cdef readonly bint admin_up
    cdef readonly bint up
    cdef readonly bint carrier
    cdef readonly int operstate
    cdef readonly unsigned int mtu
    cdef readonly int controller
    cdef readonly bytes mac
    cdef readonly unsigned int carrier_up_count
    cdef readonly unsigned int carrier_down_count

    cdef tuple _values(self):
        return (
            self.name, self.ifindex, self.kind, self.admin_up, self.up, self.carrier,
            self.operstate, self.mtu, self.controller, self.mac, self.carrier_up_count,
            self.carrier_down_count,
        )


cdef Link link_of(const LinkRecord* record):
    cdef Link link = Link.__new__(Link)
    link.name = text_of(record.name, record.name_len)
    link.ifindex = record.ifindex
    link.kind = text_of(record.kind, record.kind_len)
    link.admin_up = bool(record.flags & IFF_UP)
    link.up = is_up(record)
    link.carrier = bool(record.flags & IFF_LOWER_UP)
    link.operstate = record.operstate
    link.mtu = record.mtu
    link.controller = record.controller
    link.mac = record.mac[:record.mac_len]
    link.carrier_up_count = record.up_count
    link.carrier_down_count = record.down_count
    return link


# ---------------------------------------------------------------------------------------------


@cython.final
cdef class LinkTable:
    """All links of one network namespace as observed, and what was told of them.

    Observations come in through an EventReader (live), `observe()` (one datagram of events),
    `accept()` (a dump) and `settle_answers()` (single queries); what is to be told goes out
    through `take_told()`, in order. Not safe for use from two threads.
    """

    def __cinit__(self):
        memset(&self.links, 0, sizeof(Map))
        memset(&self.names, 0, sizeof(Map))
        # Python's own per-process secret: names are chosen by others, chains must not be.
        self.seed = <uint64_t><Py_ssize_t>hash("netreeve")
        self.told_events = []
        self.flushed = []
        self.touched = []
        self.suffixes = ()
        self.ambiguous_names = {}

    def __dealloc__(self):
        cdef size_t i
        cdef NameRow* name
        if self.links.slots is not NULL:
            for i in range(self.links.mask + 1):
                free(self.links.slots[i])
            free(self.links.slots)
        if self.names.slots is not NULL:
            for i in range(self.names.mask + 1):
                name = <NameRow*>self.names.slots[i]
                if name is not NULL:
                    free(name.deferred)
                    free(name)
            free(self.names.slots)

    # -- looking things up

    def __len__(self) -> int:
        return <Py_ssize_t>self.links.used

    def __contains__(self, object ifindex) -> bool:
        return isinstance(ifindex, int) and 0 < ifindex < 2**31 and (
            self.link_row(<int32_t>ifindex) is not NULL
        )

    def __getitem__(self, object ifindex) -> Link:
        if ifindex not in self:
            raise KeyError(ifindex)
        return link_of(&self.link_row(<int32_t>ifindex).record)

    def __iter__(self):
        """Every link, as of now, in no order."""
        cdef size_t i
        cdef list links = []
        if self.links.slots is not NULL:
            for i in range(self.links.mask + 1):
                if self.links.slots[i] is not NULL:
                    links.append(link_of(&(<LinkRow*>self.links.slots[i]).record))
        return iter(links)

    def by_name(self, object name) -> Link | None:
        """The one link that bears this name; None if there is none, or (for now) several."""
        cdef NameRow* row = self.find_name(name)
        if row is NULL or row.holder_count != 1:
            return None
        return link_of(&row.holders.record)

    def told(self, object name) -> tuple[int, bool] | None:
        """What was last told of this name: (ifindex, up), or None for nothing."""
        cdef NameRow* row = self.find_name(name)
        if row is NULL or row.told_ifindex == 0:
            return None
        return (row.told_ifindex, bool(row.told_up))

    def holders(self, object name) -> tuple[int, ...]:
        """The ifindexes that seem to bear this name, ascending."""
        cdef NameRow* row = self.find_name(name)
        return () if row is NULL else self.holders_of(row)

    @property
    def ambiguous(self) -> dict[str, tuple[int, ...]]:
        """Names that several links seem to bear, each with their ifindexes."""
        return dict(self.ambiguous_names)

    cdef tuple holders_of(self, const NameRow* name):
        cdef list found = []
        cdef const LinkRow* row = name.holders
        while row is not NULL:
            found.append(row.record.ifindex)
            row = row.next_holder
        return tuple(sorted(found))

    cdef NameRow* find_name(self, object name) except? NULL:
        cdef uint8_t padded[16]
        cdef bytes raw = name_bytes(name)
        cdef Py_ssize_t size = len(raw)
        if size > 15:
            return NULL
        memset(padded, 0, sizeof(padded))
        memcpy(padded, <const char*>raw, <size_t>size)
        return self.name_row(padded, <uint8_t>size)

    cdef LinkRow* link_row(self, int32_t ifindex) noexcept nogil:
        cdef uint64_t hash = hash_ifindex(ifindex, self.seed)
        cdef size_t at
        cdef LinkRow* row
        if self.links.slots is NULL:
            return NULL
        at = home(&self.links, hash)
        while True:
            row = <LinkRow*>self.links.slots[at]
            if row is NULL or row.record.ifindex == ifindex:
                return row
            at = (at + 1) & self.links.mask

    cdef NameRow* name_row(self, const uint8_t* text, uint8_t size) noexcept nogil:
        """`text` holds 16 bytes, zero padded."""
        cdef uint64_t hash = hash_name(text, self.seed)
        cdef size_t at
        cdef NameRow* row
        if self.names.slots is NULL:
            return NULL
        at = home(&self.names, hash)
        while True:
            row = <NameRow*>self.names.slots[at]
            if row is NULL or (
                row.hash == hash and row.size == size and memcmp(row.text, text, 16) == 0
            ):
                return row
            at = (at + 1) & self.names.mask

    # -- what is to be told

    def take_told(self) -> list:
        """What has to be told since the last call, in order; the caller's to keep."""
        cdef list told = self.told_events
        if told:
            self.told_events = []
        return told

    def take_flushed(self) -> list[int]:
        """Ifindexes whose admin state fell, or that went away, since the last call.

        The kernel has silently removed the IPv4 routes there; whether the name is ambiguous
        makes no difference. An ifindex may stand several times.
        """
        cdef list flushed = self.flushed
        if flushed:
            self.flushed = []
        return flushed

    def watch(self, tuple suffixes not None) -> None:
        """Names that end with one of these (and are longer) are reported by `take_touched()`.

        To be called before the first observation; `str`, decoded as names are.
        """
        self.suffixes = tuple([name_bytes(suffix) for suffix in suffixes])

    def take_touched(self) -> list[tuple[str, int, bool]]:
        """Watched links that may have changed since the last call: (name, ifindex, present).

        Not `present`: the link of this ifindex bears the name no longer. Any event counts, also one
        that repeats the record: what that doesn't hold (altnames, VNI, ttl) is what changed then.
        """
        cdef list touched = self.touched
        if touched:
            self.touched = []
        return touched

    # -- observations

    def observe(self, const uint8_t[::1] datagram) -> int:
        """Applies the link messages of one datagram of events; returns how many were malformed.

        For tests and replays: the live path is EventReader, which also checks the sender.
        """
        cdef Span span
        cdef Message message
        cdef LinkRecord record
        cdef Fault fault
        cdef int faults = 0
        if datagram.shape[0] == 0:
            return 0
        span.at = &datagram[0]
        span.left = <size_t>datagram.shape[0]
        while True:
            fault = next_message(&span, &message)
            if fault == FAULT_END:
                return faults
            if fault != FAULT_NONE:
                faults += 1
                if fault == FAULT_LENGTH:
                    return faults
                continue
            if message.type != RTM_NEWLINK and message.type != RTM_DELLINK:
                continue
            fault = decode_link(&message, &record)
            if fault == FAULT_NONE:
                self.event(&record, message.type == RTM_DELLINK)
            elif fault != FAULT_IGNORED:
                faults += 1

    cdef int event(self, const LinkRecord* record, bint deleted) except -1:
        """One message of the event socket: RTM_NEWLINK replaces the record, RTM_DELLINK ends it."""
        cdef LinkRow* row
        self.version += 1
        if not deleted:
            return self.replace(record, self.version, True)
        if self.dump_deleted is not None:
            self.dump_deleted.add(record.ifindex)
        row = self.link_row(record.ifindex)
        if row is not NULL:
            self.remove(row)
        return 0

    cdef int replace(self, const LinkRecord* record, uint64_t version, bint event) except -1:
        cdef LinkRow* row = self.link_row(record.ifindex)
        cdef NameRow* old
        cdef bint was_up, now_up, reborn
        cdef uint32_t flaps = 0
        if row is NULL:
            row = <LinkRow*>calloc(1, sizeof(LinkRow))
            if row is NULL:
                raise MemoryError
            row.record = record[0]
            row.hash = hash_ifindex(record.ifindex, self.seed)
            row.version = version
            row.base_down = record.down_count
            if map_put(&self.links, <Keyed*>row) < 0:
                free(row)
                raise MemoryError
            self.hold(row)
            self.note_touched(row, True)
            return self.settle(row.name)
        row.version = version
        if memcmp(&row.record, record, sizeof(LinkRecord)) == 0:
            # Half of all messages; nothing is allocated for them, but where the link is watched.
            return self.note_touched(row, True) if event else 0

        old = row.name
        was_up = is_up(&row.record)
        now_up = is_up(record)
        reborn = is_reborn(&row.record, record)
        if row.record.flags & IFF_UP and (reborn or not record.flags & IFF_UP):
            self.flushed.append(record.ifindex)
        if reborn:
            if old.told_ifindex == record.ifindex:
                self.told_events.append(LinkRemoved(text_of(old.text, old.size), record.ifindex))
                self.forget(old)
            row.base_down = record.down_count
        elif record.has_counts:
            flaps = hidden_flaps(row, record, was_up and not now_up)

        if row.record.name_len == record.name_len and (
            memcmp(row.record.name, record.name, sizeof(record.name)) == 0
        ):
            row.record = record[0]
            self.note_touched(row, True)
            if old.told_ifindex == record.ifindex:
                self.transition(old, now_up, flaps)
            return self.settle(old)
        self.note_touched(row, False)
        self.release(row)
        row.record = record[0]
        self.settle(old)                    # may free `old`
        self.hold(row)
        self.note_touched(row, True)
        return self.settle(row.name)

    cdef int transition(self, NameRow* name, bint up, uint32_t flaps) except -1:
        """Queues what the told link did; settle() tells it when the name has one holder."""
        cdef bint before = name.told_up
        if name.deferred_count:
            before = name.deferred[name.deferred_count - 1].up
        if before != up:
            self.defer(name, up, False, 0)
        if flaps:
            self.defer(name, not up, True, flaps if up else 0)
            self.defer(name, up, True, 0 if up else flaps)
        return 0

    cdef int defer(self, NameRow* name, bint up, bint inferred, uint32_t flaps) except -1:
        cdef Deferred* bigger
        cdef size_t room
        if name.deferred_count == name.deferred_room:
            room = 2 * name.deferred_room if name.deferred_room else 4
            bigger = <Deferred*>realloc(name.deferred, room * sizeof(Deferred))
            if bigger is NULL:
                raise MemoryError
            name.deferred = bigger
            name.deferred_room = room
        name.deferred[name.deferred_count] = Deferred(up, inferred, flaps)
        name.deferred_count += 1
        return 0

    cdef int remove(self, LinkRow* row) except -1:
        cdef NameRow* name = row.name
        self.flushed.append(row.record.ifindex)
        self.note_touched(row, False)
        self.release(row)
        map_remove(&self.links, <Keyed*>row)
        free(row)
        return self.settle(name)

    cdef int settle(self, NameRow* name) except -1:
        """Tells what can be told of a name whose holders or whose told link changed."""
        cdef LinkRow* row = name.holders
        cdef Deferred* deferred
        cdef size_t i
        cdef str text
        if name.told_ifindex:
            while row is not NULL and row.record.ifindex != name.told_ifindex:
                row = row.next_holder
            if row is NULL:
                text = text_of(name.text, name.size)
                self.told_events.append(LinkRemoved(text, name.told_ifindex))
                self.forget(name)
        if name.holder_count == 1:
            row = name.holders
            if name.told_ifindex == 0:
                name.told_ifindex = row.record.ifindex
                name.told_up = is_up(&row.record)
                self.told_events.append(
                    LinkAdded(text_of(name.text, name.size), name.told_ifindex, name.told_up)
                )
            elif name.deferred_count:
                text = text_of(name.text, name.size)
                for i in range(name.deferred_count):
                    deferred = &name.deferred[i]
                    self.told_events.append(LinkChanged(
                        text, name.told_ifindex, deferred.up, deferred.inferred, deferred.flaps
                    ))
                    name.told_up = deferred.up
                name.deferred_count = 0
        self.note_ambiguity(name)
        if name.holder_count == 0:
            map_remove(&self.names, <Keyed*>name)
            free(name.deferred)
            free(name)
        return 0

    cdef int note_touched(self, const LinkRow* row, bint present) except -1:
        if row.watched:
            self.touched.append((
                text_of(row.record.name, row.record.name_len), row.record.ifindex, bool(present)
            ))
        return 0

    cdef int note_ambiguity(self, NameRow* name) except -1:
        cdef str text
        cdef tuple holders
        if name.holder_count < 2 and not self.ambiguous_names:
            return 0
        text = text_of(name.text, name.size)
        if name.holder_count < 2:
            self.ambiguous_names.pop(text, None)
            return 0
        holders = self.holders_of(name)
        if self.ambiguous_names.get(text) != holders:
            self.ambiguous_names[text] = holders
            self.told_events.append(NameAmbiguous(text, holders))
        return 0

    cdef int forget(self, NameRow* name) except -1:
        name.told_ifindex = 0
        name.told_up = False
        name.deferred_count = 0
        return 0

    cdef int hold(self, LinkRow* row) except -1:
        """Makes the row a holder of the name in its record."""
        cdef size_t size
        cdef NameRow* name = self.name_row(row.record.name, row.record.name_len)
        if name is NULL:
            name = <NameRow*>calloc(1, sizeof(NameRow))
            if name is NULL:
                raise MemoryError
            name.size = row.record.name_len
            memcpy(name.text, row.record.name, sizeof(name.text))
            name.hash = hash_name(name.text, self.seed)
            if map_put(&self.names, <Keyed*>name) < 0:
                free(name)
                raise MemoryError
        row.watched = False
        for suffix in self.suffixes:
            size = <size_t>len(<bytes>suffix)
            if size < name.size and (
                memcmp(name.text + name.size - size, <const char*><bytes>suffix, size) == 0
            ):
                row.watched = True
        row.name = name
        row.next_holder = name.holders
        name.holders = row
        name.holder_count += 1
        return 0

    cdef void release(self, LinkRow* row) noexcept:
        """Ends being a holder; the name is to be settled next."""
        cdef NameRow* name = row.name
        cdef LinkRow** link = &name.holders
        while link[0] is not row:
            link = &link[0].next_holder
        link[0] = row.next_holder
        row.next_holder = NULL
        row.name = NULL
        name.holder_count -= 1

    # -- dumps and queries

    def resync_begin(self) -> None:
        """From now on it is noted which ifindexes events speak of: they beat the dump's entries."""
        self.dump_number += 1
        self.dump_version = self.version
        self.dump_deleted = set()

    def resync_abandon(self) -> None:
        """The dump wasn't whole, or events were lost meanwhile: nothing of it counts."""
        self.dump_deleted = None

    def absent(self, Stage stage not None) -> list[int]:
        """Links of the table that a whole dump doesn't hold and no event spoke of, ascending.

        That is weak evidence (a dump can end early): ask for each before accept().
        """
        cdef size_t i
        cdef LinkRow* row
        cdef list missing = []
        for i in range(stage.count):
            row = self.link_row(stage.entries[i].ifindex)
            if row is not NULL:
                row.mark = self.dump_number
        if self.links.slots is not NULL:
            for i in range(self.links.mask + 1):
                row = <LinkRow*>self.links.slots[i]
                if row is not NULL and row.mark != self.dump_number and (
                    row.version <= self.dump_version
                ):
                    missing.append(row.record.ifindex)
        missing.sort()
        return missing

    def accept(self, Stage stage not None) -> None:
        """Applies a dump: links in `stage.gone` go first, then entries no event has overtaken."""
        cdef size_t i
        cdef set deleted = self.dump_deleted
        if deleted is None:
            raise RuntimeError("accept() without resync_begin()")
        self.dump_deleted = None
        self.remove_gone(stage, self.dump_version)
        for i in range(stage.count):
            self.apply(&stage.entries[i], self.dump_version, deleted)

    def settle_answers(self, Stage stage not None, unsigned long long asked) -> None:
        """Applies answers to single queries; an event after version `asked` wins over them."""
        cdef size_t i
        self.remove_gone(stage, asked)
        for i in range(stage.count):
            # A link that isn't there any more was removed by an event after the question.
            if self.link_row(stage.entries[i].ifindex) is not NULL:
                self.apply(&stage.entries[i], asked, None)

    cdef int remove_gone(self, Stage stage, uint64_t asked) except -1:
        cdef LinkRow* row
        for ifindex in sorted(stage.gone):
            row = self.link_row(ifindex)
            if row is not NULL and row.version <= asked:
                self.remove(row)
        return 0

    cdef int apply(self, const LinkRecord* record, uint64_t asked, set deleted) except -1:
        cdef LinkRow* row = self.link_row(record.ifindex)
        if row is not NULL:
            if row.version > asked:
                return 0
            return self.replace(record, row.version, False)
        if deleted is not None and record.ifindex in deleted:
            return 0
        return self.replace(record, asked, False)
