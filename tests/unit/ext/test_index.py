"""The examples of the design, rule by rule; random histories are in tests/properties."""

from __future__ import annotations

import pytest

from netreeve._ext.index import (
    LinkAdded,
    LinkChanged,
    LinkRemoved,
    LinkTable,
    NameAmbiguous,
)
from netreeve._ext.stage import Stage
from tests.support import messages


def told(table: LinkTable, *datagrams: bytes) -> list[object]:
    for datagram in datagrams:
        assert table.observe(datagram) == 0
    return [event for event in table.take_told() if not isinstance(event, NameAmbiguous)]


def new(ifindex: int, name: str = "eth0", *, up: bool = True, **more: object) -> bytes:
    return messages.link(ifindex, name, up=up, **more)  # type: ignore[arg-type]


def gone(ifindex: int, name: str = "eth0") -> bytes:
    return messages.link(ifindex, name, deleted=True)


def dump(*entries: bytes, absent: tuple[int, ...] = ()) -> Stage:
    stage = Stage()
    for entry in entries:
        stage.feed(entry, 0)
    stage.feed(messages.done(), 0)
    for ifindex in absent:
        stage.mark_gone(ifindex)
    return stage


@pytest.fixture
def table() -> LinkTable:
    return LinkTable()


def test_rebuilt_link_is_seen_before_the_end_of_the_old_one(table: LinkTable) -> None:
    assert told(table, new(10)) == [LinkAdded("eth0", 10, up=True)]
    assert told(table, new(20)) == []
    assert table.ambiguous == {"eth0": (10, 20)}
    assert told(table, gone(10)) == [LinkRemoved("eth0", 10), LinkAdded("eth0", 20, up=True)]
    assert table.ambiguous == {}


def test_a_newcomer_that_goes_again_was_never_there(table: LinkTable) -> None:
    assert told(table, new(10)) == [LinkAdded("eth0", 10, up=True)]
    assert told(table, new(20), gone(20)) == []


def test_flaps_of_the_told_link_wait_while_the_name_is_ambiguous(table: LinkTable) -> None:
    told(table, new(10), new(20, up=False))
    assert told(table, new(10, up=False), new(10)) == []
    assert told(table, gone(20)) == [
        LinkChanged("eth0", 10, up=False),
        LinkChanged("eth0", 10, up=True),
    ]


def test_swapped_names_found_by_a_dump(table: LinkTable) -> None:
    told(table, new(10, "a"), new(20, "b"))
    table.resync_begin()
    table.accept(dump(new(10, "b"), new(20, "a")))
    assert told(table) == [
        LinkRemoved("a", 10),
        LinkRemoved("b", 20),
        LinkAdded("b", 10, up=True),
        LinkAdded("a", 20, up=True),
    ]


def test_rename(table: LinkTable) -> None:
    told(table, new(10, "a"))
    assert told(table, new(10, "b")) == [LinkRemoved("a", 10), LinkAdded("b", 10, up=True)]


def test_three_holders_and_the_told_one_goes(table: LinkTable) -> None:
    told(table, new(10), new(20), new(30))
    assert told(table, gone(10)) == [LinkRemoved("eth0", 10)]
    assert told(table, gone(20)) == [LinkAdded("eth0", 30, up=True)]


def test_flaps_in_one_batch_are_never_merged(table: LinkTable) -> None:
    told(table, new(10))
    flaps = [new(10, up=up) for up in (False, True) * 3]
    assert told(table, *flaps) == [LinkChanged("eth0", 10, up=up) for up in (False, True) * 3]


def test_flaps_that_the_kernel_merged_are_inferred_from_the_counters(table: LinkTable) -> None:
    told(table, new(10, counts=(3, 2)))
    assert told(table, new(10, counts=(8, 7))) == [
        LinkChanged("eth0", 10, up=False, inferred=True, flaps=5),
        LinkChanged("eth0", 10, up=True, inferred=True),
    ]


def test_a_merged_flap_of_a_link_that_is_down_goes_up_first(table: LinkTable) -> None:
    no_carrier = messages.IFF_UP
    told(table, messages.link(10, "eth0", flags=no_carrier, counts=(1, 1)))
    assert told(table, messages.link(10, "eth0", flags=no_carrier, counts=(2, 2))) == [
        LinkChanged("eth0", 10, up=True, inferred=True),
        LinkChanged("eth0", 10, up=False, inferred=True, flaps=1),
    ]


def test_merged_flaps_behind_a_real_change_are_inferred_too(table: LinkTable) -> None:
    told(table, new(10, counts=(1, 1)))
    fallen = messages.link(10, "eth0", flags=messages.IFF_UP, counts=(3, 4))
    assert told(table, fallen) == [
        LinkChanged("eth0", 10, up=False),
        LinkChanged("eth0", 10, up=True, inferred=True),
        LinkChanged("eth0", 10, up=False, inferred=True, flaps=2),
    ]
    assert told(table, new(10, counts=(6, 6))) == [
        LinkChanged("eth0", 10, up=True),
        LinkChanged("eth0", 10, up=False, inferred=True, flaps=2),
        LinkChanged("eth0", 10, up=True, inferred=True),
    ]


def test_admin_flaps_quicker_than_linkwatch_are_inferred(table: LinkTable) -> None:
    """A veth set down and up and down in one batch never says RUNNING in between."""
    told(table, new(10, counts=(1, 0)))
    rising = messages.IFF_UP | messages.IFF_LOWER_UP
    assert told(
        table,
        messages.link(10, "eth0", flags=0, counts=(1, 1)),
        messages.link(10, "eth0", flags=rising, counts=(2, 1)),
        messages.link(10, "eth0", flags=0, counts=(2, 2)),
    ) == [
        LinkChanged("eth0", 10, up=False),
        LinkChanged("eth0", 10, up=True, inferred=True),
        LinkChanged("eth0", 10, up=False, inferred=True, flaps=1),
    ]


def test_a_veth_made_up_before_its_peer_is_not_up(table: LinkTable) -> None:
    """Its first message says RUNNING, as operstate is UNKNOWN until linkwatch has come round."""
    first = messages.IFF_UP | messages.IFF_RUNNING
    assert told(table, messages.link(10, "eth0", flags=first)) == [LinkAdded("eth0", 10, up=False)]
    assert told(table, messages.link(10, "eth0", flags=messages.IFF_UP)) == []


def test_a_carrier_that_comes_and_goes_while_admin_down_is_nobodys_flap(table: LinkTable) -> None:
    told(table, messages.link(10, "tap1", flags=0, counts=(1, 1)))
    assert told(table, messages.link(10, "tap1", flags=0, counts=(3, 3))) == []


def test_a_counter_that_runs_ahead_of_linkwatch_is_no_flap(table: LinkTable) -> None:
    """A tap whose holder dies first says RUNNING without LOWER_UP, then no carrier."""
    told(table, new(10, counts=(1, 0)))
    ahead = messages.IFF_UP | messages.IFF_RUNNING
    assert told(table, messages.link(10, "eth0", flags=ahead, counts=(1, 1))) == [
        LinkChanged("eth0", 10, up=False)
    ]
    assert told(table, messages.link(10, "eth0", flags=messages.IFF_UP, counts=(1, 1))) == []
    assert told(table, new(10, counts=(2, 1))) == [LinkChanged("eth0", 10, up=True)]


@pytest.mark.parametrize(
    "second",
    [
        messages.link(10, "eth0", up=True, kind="bridge", counts=(3, 2)),
        messages.link(10, "eth0", up=True, counts=(1, 2)),
        messages.link(10, "eth0", up=True, counts=(3, 0)),
    ],
    ids=["other kind", "up counter ran backwards", "down counter ran backwards"],
)
def test_another_link_on_the_same_ifindex(table: LinkTable, second: bytes) -> None:
    told(table, new(10, counts=(3, 2)))
    assert told(table, second) == [LinkRemoved("eth0", 10), LinkAdded("eth0", 10, up=True)]
    assert 10 in table.take_flushed()


def test_a_reborn_link_in_an_ambiguous_name_is_removed_and_no_more(table: LinkTable) -> None:
    told(table, new(10, counts=(3, 2)), new(20))
    assert told(table, new(10, kind="bridge", counts=(3, 2))) == [LinkRemoved("eth0", 10)]
    assert told(table, gone(20)) == [LinkAdded("eth0", 10, up=True)]


def test_bridge_family_never_ends_a_link(table: LinkTable) -> None:
    told(table, new(10))
    assert told(table, messages.link(10, "eth0", up=True, deleted=True, family=7)) == []
    assert told(table, messages.link(10, "eth0", up=False, family=7)) == []
    assert 10 in table


def test_admin_state_that_fell_is_flushed_even_if_ambiguous(table: LinkTable) -> None:
    told(table, new(10), new(20))
    told(table, new(10, up=False), new(10))
    assert table.take_flushed() == [10]
    told(table, gone(20))
    assert table.take_flushed() == [20]
    assert table.take_flushed() == []


def test_carrier_loss_flushes_nothing(table: LinkTable) -> None:
    told(table, new(10))
    assert told(table, messages.link(10, "eth0", flags=messages.IFF_UP)) == [
        LinkChanged("eth0", 10, up=False)
    ]
    assert table.take_flushed() == []


def test_an_event_beats_a_dump_entry_whichever_came_first(table: LinkTable) -> None:
    told(table, new(10, "a"), new(20, "b"), new(30, "c"))
    table.resync_begin()
    told(table, gone(10, "a"), new(20, "b2"), new(40, "d"))
    stage = dump(new(10, "a"), new(20, "b"), new(30, "c2"), new(40, "old"))
    assert table.absent(stage) == []
    table.accept(stage)
    assert told(table) == [LinkRemoved("c", 30), LinkAdded("c2", 30, up=True)]
    assert sorted(link.ifindex for link in table) == [20, 30, 40]
    assert table[40].name == "d"


def test_absence_in_a_dump_is_only_a_question(table: LinkTable) -> None:
    told(table, new(10, "a"), new(20, "b"), new(30, "c"))
    table.resync_begin()
    stage = dump(new(10, "a"))
    assert table.absent(stage) == [20, 30]
    stage.feed(new(20, "b", up=False), 0)  # the answer: it is still there
    stage.mark_gone(30)
    table.accept(stage)
    assert told(table) == [LinkRemoved("c", 30), LinkChanged("b", 20, up=False)]


def test_a_dump_that_is_not_whole_says_so() -> None:
    stage = Stage()
    stage.feed(new(10), 0)
    assert not stage.whole
    stage.feed(messages.done(errno=16), 0)
    assert stage.done
    assert stage.errno == 16
    assert not stage.whole
    flagged = Stage()
    flagged.feed(new(10, message_flags=0x10) + new(20) + messages.done(), 0)
    assert flagged.interrupted
    assert flagged.whole
    assert flagged.ifindexes == [10, 20]


def test_messages_of_another_request_stay_out_of_a_stage() -> None:
    stage = Stage()
    stage.feed(new(10, seq=7) + new(20, seq=8) + messages.done(7), 8)
    assert stage.ifindexes == [20]
    assert not stage.done


def test_answers_settle_an_ambiguous_name_unless_an_event_was_quicker(table: LinkTable) -> None:
    told(table, new(10), new(20))
    asked = table.version
    stage = Stage()
    stage.mark_gone(10)
    stage.feed(new(20), 0)
    table.settle_answers(stage, asked)
    assert told(table) == [LinkRemoved("eth0", 10), LinkAdded("eth0", 20, up=True)]

    told(table, new(30))
    asked = table.version
    told(table, new(20, "other"), gone(30))
    stage = Stage()
    stage.feed(new(20), 0)
    stage.feed(new(30), 0)
    table.settle_answers(stage, asked)
    assert told(table) == []
    assert table.holders("eth0") == ()


def test_names_are_any_bytes(table: LinkTable) -> None:
    raw = b"cali\xff\xfe1"
    assert told(table, messages.link(10, raw, up=True)) == [
        LinkAdded("cali\udcff\udcfe1", 10, up=True)
    ]
    assert table.by_name(raw) == table.by_name("cali\udcff\udcfe1") == table[10]
    assert table.told(raw) == (10, True)
    assert table.by_name("a name that is far too long") is None


def test_ifindexes_of_any_size(table: LinkTable) -> None:
    told(table, new(2147483647, "a"), new(1, "b"))
    assert table[2147483647].name == "a"
    assert 2**31 not in table
    assert "a" not in table
    with pytest.raises(KeyError):
        table[2]


def test_ambiguity_is_said_once_for_each_set_of_holders(table: LinkTable) -> None:
    for datagram in (new(10), new(20), new(20, up=False), new(30)):
        table.observe(datagram)
    assert [e for e in table.take_told() if isinstance(e, NameAmbiguous)] == [
        NameAmbiguous("eth0", (10, 20)),
        NameAmbiguous("eth0", (10, 20, 30)),
    ]


def test_a_malformed_message_costs_itself_only(table: LinkTable) -> None:
    bad = bytearray(new(20, "bad"))
    bad[32:34] = (2).to_bytes(2, "little")  # nla_len below its header
    assert table.observe(new(10, "a") + bytes(bad) + new(30, "c")) == 1
    assert sorted(link.ifindex for link in table) == [10, 30]
    assert table.observe(new(40, "d")[:20]) == 1
    assert table.observe(b"") == 0


def test_values_compare_and_print() -> None:
    event = LinkChanged("eth0", 10, up=True, inferred=True, flaps=2)
    assert event == LinkChanged("eth0", 10, True, True, 2)
    assert event != LinkChanged("eth0", 10, True)
    assert event != ("eth0", 10)
    assert len({event, LinkChanged("eth0", 10, True, True, 2)}) == 1
    assert repr(event) == ("LinkChanged(name='eth0', ifindex=10, up=True, inferred=True, flaps=2)")
    match event:
        case LinkChanged(name, ifindex, up):
            assert (name, ifindex, up) == ("eth0", 10, True)


def test_a_hundred_thousand_links_come_and_go(table: LinkTable) -> None:
    count = 100_000
    for i in range(1, count + 1):
        table.observe(new(i, f"v{i}"))
    assert len(table) == count
    assert len(table.take_told()) == count
    for i in range(1, count + 1, 2):
        table.observe(gone(i, f"v{i}"))
    assert len(table) == count // 2
    assert all(table.by_name(f"v{i}") is not None for i in range(2, count + 1, 2))
    assert all(table.by_name(f"v{i}") is None for i in range(1, count + 1, 2))


def test_watched_names_are_reported_whatever_changes(table: LinkTable) -> None:
    table.watch(("-vrf", "-bri"))
    told(table, new(10, "red-bri"), new(20, "eth0"), new(30, "-bri"))
    assert table.take_touched() == [("red-bri", 10, True)]
    # A repeat too: an altname or a VXLAN's ttl is not in the record.
    told(table, new(10, "red-bri"), new(10, "red-bri", counts=(1, 0)), new(20, "eth0", up=False))
    assert table.take_touched() == [("red-bri", 10, True)] * 2
    told(table, new(10, "red-vrf"), new(20, "blue-bri"), gone(10, "red-vrf"))
    assert table.take_touched() == [
        ("red-bri", 10, False),
        ("red-vrf", 10, True),
        ("blue-bri", 20, True),
        ("red-vrf", 10, False),
    ]
    assert table.take_touched() == []
