"""Plan documents: what they mean, and every error with its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from socket import AF_INET, AF_INET6

import pytest

from netreeve.errors import PlanError
from netreeve.model.ids import EndpointId
from netreeve.model.ownership import Scheme
from netreeve.model.prefix import LinkAddress, Prefix
from netreeve.plan.document import MAX_DEPTH, MAX_DOCUMENT_BYTES, Document
from netreeve.plan.loading import load as load_plan
from netreeve.plan.model import Endpoint, Plan, Tap, Vpc, Vtep

EXAMPLE = """\
vpcs:
  - name: red
    table: 1001
    vni: 1001
    vtep: {local: 192.0.2.1, port: 4789, ttl: 64}
    mac: "02:00:00:00:10:01"
    mtu: 1450
    addresses: [10.1.0.1/24]
taps:
  - {name: eth0, mtu: 1500, controller: red-bri}
endpoints:
  - id: openstack/vm-1/port-1
    interface: tap1a2b3c4d
    addresses: [10.65.0.2, "fd00:65::2"]
    uid: 6f1c
    admin: up
    vpc: red
"""

PLAN = Plan(
    {
        "red": Vpc(
            name="red",
            table=1001,
            vni=1001,
            vtep=Vtep((AF_INET, bytes([192, 0, 2, 1])), 4789, 64),
            mac="02:00:00:00:10:01",
            mtu=1450,
            addresses=(LinkAddress.parse("10.1.0.1/24"),),
        )
    },
    {"eth0": Tap("eth0", 1500, "red-bri")},
    {
        EndpointId("openstack", "vm-1", "port-1"): Endpoint(
            EndpointId("openstack", "vm-1", "port-1"),
            "tap1a2b3c4d",
            (Prefix.parse("10.65.0.2"), Prefix.parse("fd00:65::2")),
            "6f1c",
            True,
            "red",
        )
    },
)


def load(*texts: str | bytes, suffix: str = "yaml", whole: bool = True) -> Plan:
    documents = [
        Document(f"{name}.{suffix}", text.encode() if isinstance(text, str) else text)
        for name, text in zip("abcdef", texts, strict=False)
    ]
    return load_plan(documents, Scheme(), whole=whole)


def problems(*texts: str | bytes, suffix: str = "yaml", whole: bool = True) -> list[str]:
    with pytest.raises(PlanError) as caught:
        load(*texts, suffix=suffix, whole=whole)
    assert list(caught.value.problems) == sorted(caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def test_the_example_of_the_reference() -> None:
    assert load(EXAMPLE) == PLAN
    page = Path(__file__).parents[3] / "docs/reference/plan-documents.md"
    assert EXAMPLE in page.read_text()


def test_json_means_the_same() -> None:
    import yaml

    raw = yaml.safe_load(EXAMPLE)
    assert load(json.dumps(raw), suffix="json") == PLAN
    assert load(json.dumps(raw, indent=2), suffix="yaml") == PLAN


def test_many_files_and_many_documents_make_one_plan() -> None:
    head, _, tail = EXAMPLE.partition("taps:")
    assert load(head, "taps:" + tail) == PLAN
    assert load(f"{head}\n---\n# nothing\n---\ntaps:{tail}") == PLAN


def test_defaults() -> None:
    made = load(
        "vpcs: [{name: a, table: 1, vni: 2, vtep: {local: '::1'}}]\n"
        "taps: [{name: t}]\nendpoints: [{id: a/b/c, interface: cali1}]"
    )
    assert made.vpcs["a"] == Vpc("a", 1, 2, Vtep((AF_INET6, bytes(15) + b"\1"), 4789, 64))
    assert made.taps["t"] == Tap("t", None, None)
    (endpoint,) = made.endpoints.values()
    assert endpoint == Endpoint(EndpointId("a", "b", "c"), "cali1", (), None, True, None)


def test_what_is_empty() -> None:
    assert load("{}").empty
    assert load().empty
    assert load("vpcs: []\nendpoints: []").empty
    assert not load(EXAMPLE).empty


def test_the_table_of_an_endpoint() -> None:
    made = load(EXAMPLE)
    (endpoint,) = made.endpoints.values()
    assert made.route_table(endpoint, 254) == 1001
    assert made.route_table(Endpoint(endpoint.id, "cali1"), 254) == 254


def test_anchors_aliases_and_merge_keys() -> None:
    made = load(
        "endpoints:\n"
        "  - &one {id: a/b/c, interface: cali1, addresses: &list [10.0.0.1], admin: down}\n"
        "  - {<<: *one, id: a/b/d, interface: cali2, addresses: [10.0.0.2]}\n"
    )
    assert [e.admin_up for e in made.endpoints.values()] == [False, False]


def test_yaml_scalars_follow_yaml_1_2() -> None:
    made = load(
        "vpcs: [{name: on, table: 1, vni: 2, vtep: {local: 192.0.2.1}, mac: 12:00:00:00:10:01}]\n"
        "endpoints: [{id: a/b/c, interface: cali1, uid: 2024-01-01, addresses: [fd00:65::2]}]"
    )
    assert made.vpcs["on"].mac == "12:00:00:00:10:01"
    assert [e.uid for e in made.endpoints.values()] == ["2024-01-01"]


def test_a_byte_order_mark_is_no_column() -> None:
    assert load(b"\xef\xbb\xbf" + EXAMPLE.encode()) == PLAN
    assert problems(b"\xef\xbb\xbfx: 1")[0].startswith("a.yaml:1:1: ")
    assert problems(b'\xef\xbb\xbf{"x": 1}', suffix="json")[0].startswith("a.json:1:2: ")


def test_an_address_in_another_endpoints_wider_prefix_is_legal() -> None:
    load(
        "endpoints:\n- {id: a/b/c, interface: cali1, addresses: [10.0.0.0/24]}\n"
        "- {id: a/b/d, interface: cali2, addresses: [10.0.0.1]}"
    )


def test_one_address_in_two_tables_is_legal() -> None:
    load(
        "vpcs: [{name: a, table: 1, vni: 2, vtep: {local: 192.0.2.1}}]\n"
        "endpoints:\n- {id: a/b/c, interface: cali1, addresses: [10.0.0.1]}\n"
        "- {id: a/b/d, interface: cali2, addresses: [10.0.0.1], vpc: a}"
    )


VPC = "vpcs: [{{name: a, table: 1, vni: 2, vtep: {{local: 192.0.2.1}}, {}}}]"
ENDPOINT = "endpoints: [{{id: a/b/c, interface: cali1, {}}}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Keys.
        ("endpoint: []", "1:1: a plan document has no key 'endpoint'; did you mean `endpoints`?"),
        ("vpcs: []\nvpcs: []", "2:1: the key 'vpcs' is there twice"),
        (ENDPOINT.format("adresses: []"), "1:43: an endpoint has no key 'adresses'; did you"),
        (ENDPOINT.format("id: a/b/d"), "1:43: the key 'id' is there twice"),
        (ENDPOINT.format("zzz: 1"), "1:43: an endpoint has no key 'zzz' (id, interface,"),
        ("endpoints: [{id: a/b/c}]", "1:13: an endpoint has no `interface`, which it must have"),
        ("endpoints: [{[a]: 1}]", "1:14: a key must be text"),
        # Types.
        ("[]", "1:1: a plan document is a mapping with the keys vpcs, taps, endpoints; here is a"),
        ("endpoints:", "1:11: `endpoints` is a list ([] for none); here is no value: give one"),
        ("endpoints: {}", "1:12: `endpoints` is a list ([] for none); here is a mapping"),
        ("endpoints: [x]", "1:13: an endpoint is a mapping with the keys id, interface"),
        (ENDPOINT.format("uid: 12345"), '1:48: `uid` is text; here is 12345: quote it, "12345"'),
        (ENDPOINT.format("uid: 007"), '1:48: `uid` is text; here is 007: quote it, "007"'),
        (ENDPOINT.format("uid: true"), '1:48: `uid` is text; here is true: quote it, "true"'),
        (ENDPOINT.format("uid: ~"), "1:48: `uid` is text; here is no value: give one, or leave"),
        (ENDPOINT.format("admin: true"), '1:50: `admin` is text; here is true: quote it, "true"'),
        (ENDPOINT.format("addresses: 10.0.0.1"), "1:54: `addresses` is a list ([] for none); here"),
        (ENDPOINT.format("addresses: [7]"), '1:55: an address is text; here is 7: quote it, "7"'),
        (VPC.format("mtu: '1500'"), "1:67: `mtu` is a whole number; here is the text '1500': wri"),
        (VPC.format("mtu: 1500.0"), "1:67: `mtu` is a whole number; here is 1500.0"),
        (VPC.format("mtu: 0x5dc"), "1:67: `mtu` is a whole number; here is 0x5dc"),
        (VPC.format("mtu: true"), "1:67: `mtu` is a whole number; here is true"),
        # Values.
        (ENDPOINT.format("admin: on"), "1:50: `admin` is up or down, not 'on'"),
        (ENDPOINT.format("uid: ''"), "1:48: `uid` is 1 to 256 printable characters, not ''"),
        (ENDPOINT.format("vpc: red"), "1:48: `vpc` 'red' is not in the plan"),
        (ENDPOINT.format("addresses: [10.0.0.1/24]"), "1:55: '10.0.0.1/24' has bits set beyond"),
        (ENDPOINT.format("addresses: [10.0.0.0/64]"), "1:55: '10.0.0.0/64' is IPv4: its length"),
        (ENDPOINT.format("addresses: ['::ffff:10.0.0.1']"), "1:55: '::ffff:10.0.0.1' is an IPv4"),
        (ENDPOINT.format("addresses: [127.0.0.1]"), "1:55: '127.0.0.1' is a loopback address"),
        (ENDPOINT.format("addresses: [ff02::1]"), "1:55: 'ff02::1' is a multicast address"),
        (ENDPOINT.format("addresses: [0.0.0.0/0]"), "1:55: '0.0.0.0/0' would take the node's own"),
        (ENDPOINT.format("addresses: [10.0.0.1, 10.0.0.1/32]"), "1:65: 10.0.0.1/32 is an endpoint"),
        ("endpoints: [{id: a/b, interface: cali1}]", "1:18: 'a/b' has 2 parts, not three"),
        ("endpoints: [{id: a/b/c, interface: eth0}]", "1:36: 'eth0' doesn't begin with an end"),
        ("endpoints: [{id: a/b/c, interface: tap1-tap}]", "1:36: 'tap1-tap' reads as a tap of"),
        (VPC.format("mac: 03:00:00:00:00:01"), "1:67: `mac` 03:00:00:00:00:01 has the multicast"),
        (VPC.format("mac: 00:00:00:00:00:00"), "1:67: `mac` is all zero"),
        (VPC.format("mac: 2:0:0:0:0:1"), "1:67: `mac` is six hexadecimal bytes"),
        (VPC.format("mtu: 67"), "1:67: `mtu` is 68 to 65535, not 67"),
        (VPC.format("mtu: 1279, addresses: [fd00::1/64]"), "1:85: IPv6 needs an `mtu` of 1280"),
        (VPC.format("addresses: [10.0.0.1/24, 10.0.0.1/24]"), "1:87: 10.0.0.1/24 is there twice"),
        ("taps: [{name: a234567890b2}]", "1:15: 'a234567890b2-tap' has 16 bytes; a link's name"),
        ("taps: [{name: a, controller: a/b}]", "1:30: 'a/b' holds the byte b'/'"),
        ("taps: [{name: a, controller: x-vtp}]", "1:30: `controller` is a bridge or a VRF; 'x-v"),
        ("taps: [{name: a, controller: x-bri}]", "1:30: `controller` 'x-bri' would be of a VPC"),
        # Syntax.
        ("endpoints: [", "1:13: "),
        (
            "endpoints:\n\t- a",
            "2:1: found character that cannot start any token (while scanning for the next tok",
        ),
        ("a: [::1]", "1:5: "),
        ("a: &a [*a]", "1:8: the alias *a stands inside its own anchor"),
        ("a: *b", "1:4: the alias *b has no anchor before it"),
        ("a: !foo b", "1:4: the tag '!foo' means nothing here"),
        ("a: {<<: 1}", "1:9: `<<` takes a mapping or a list of mappings"),
        ("a: b\0", "1:5: the character '\\x00' is not allowed in YAML"),
        ("# only this\n", "1:1: the file holds nothing; a plan that wants nothing is {}"),
        ("", "1:1: the file holds nothing"),
    ],
)
def test_yaml_errors(text: str, expected: str) -> None:
    found = problems(text)
    assert [problem for problem in found if problem.startswith(f"a.yaml:{expected}")], found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("table", 0),
        ("table", 253),
        ("table", 254),
        ("table", 255),
        ("table", 2**32),
        ("vni", 0),
        ("vni", 2**24),
        ("port", 0),
        ("port", 65536),
        ("ttl", 0),
        ("ttl", 256),
        ("mtu", 65536),
    ],
)
def test_numbers_out_of_range(field: str, value: int) -> None:
    fields = {"table": 1, "vni": 2, "mtu": 1500}
    vtep = {"local": '"192.0.2.1"', "port": 4789, "ttl": 64}
    (fields if field in fields else vtep)[field] = value
    text = "\n".join(
        ["vpcs:", "- name: a"]
        + [f"  {name}: {number}" for name, number in fields.items()]
        + ["  vtep:"]
        + [f"    {name}: {number}" for name, number in vtep.items()]
    )
    line = next(i for i, row in enumerate(text.split("\n"), 1) if f"{field}: " in row)
    column = text.split("\n")[line - 1].index(str(value)) + 1
    (found,) = problems(text)
    assert found.startswith(f"a.yaml:{line}:{column}: `{field}` ")


@pytest.mark.parametrize("local", ["224.0.0.1", "0.0.0.0", "192.0.2.1/24", "::ffff:1.2.3.4", "x"])
def test_local_addresses_that_no_vtep_has(local: str) -> None:
    (found,) = problems(f"vpcs: [{{name: a, table: 1, vni: 2, vtep: {{local: '{local}'}}}}]")
    assert found.startswith("a.yaml:1:50: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"endpoint": []}', "1:2: a plan document has no key 'endpoint'; did you mean"),
        ('{"vpcs": [],\n "vpcs": []}', "2:2: the key 'vpcs' is there twice"),
        ('{"vpcs": [],\n "\\u0076pcs": []}', "2:2: the key 'vpcs' is there twice"),
        ('{"endpoints": [{"id": "a/b/c", "interface": 5}]}', "1:45: `interface` is text; here i"),
        ('{"endpoints": null}', "1:15: `endpoints` is a list ([] for none); here is no value"),
        ('{"taps": [{"name": "a", "mtu": 1500.0}]}', "1:32: `mtu` is a whole number; here is 15"),
        ('{"taps": [{"name": "a", "mtu": 1e3}]}', "1:32: `mtu` is a whole number; here is 1e3"),
        ('{"taps": [{"name": "a", "mtu": ' + "9" * 5000 + "}]}", "1:32: `mtu` is a whole number"),
        ('{"taps": [{"name": "\\ud800"}]}', "1:20: '\\ud800' has other characters"),
        ("[]", "1:1: a plan document is a mapping"),
        ("{", "1:2: expected a key in double quotes, not the end"),
        ('{"a": NaN}', "1:7: expected a JSON value, found 'N'"),
        ('{"a": 1,}', "1:9: expected a key in double quotes, found '}'"),
        ('{"a" 1}', "1:6: expected `:` after a key, found '1'"),
        ("[1 2]", "1:4: expected `,` or `]`, found '2'"),
        ('["é\n"]', "1:4: in a string: invalid control character"),
        ('["abc', "1:2: in a string: unterminated string"),
        ('["\\x"]', "1:3: in a string: invalid \\escape"),
        ("{} {}", "1:4: there is more behind the end of the JSON value"),
        ("{}\0", "1:3: there is more behind the end"),
        ("", "1:1: expected a JSON value, not the end"),
        ("null", "1:1: the file holds nothing"),
        ("[" * 100_000, f"1:{MAX_DEPTH + 2}: nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_json_errors(text: str, expected: str) -> None:
    (found,) = problems(text, suffix="json")
    assert found.startswith(f"a.json:{expected}")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("vpcs: [{name: red, table: 2, vni: 2, vtep: {local: 1.1.1.1}}]",
         "1:15: a VPC is called 'red' already: see a.yaml:2"),
        ("vpcs: [{name: a, table: 1001, vni: 2, vtep: {local: 1.1.1.1}}]",
         "1:25: `table` 1001 is another VPC's: see a.yaml:3"),
        ("vpcs: [{name: a, table: 2, vni: 1001, vtep: {local: 1.1.1.1}}]",
         "1:33: `vni` 1001 with `port` 4789 is another VPC's: see a.yaml:4"),
        ("taps: [{name: eth0}]", "1:15: a tap is called 'eth0' already: see a.yaml:10"),
        ("endpoints: [{id: openstack/vm-1/port-1, interface: cali1}]",
         "1:18: the endpoint 'openstack/vm-1/port-1' is there already: see a.yaml:12"),
        ("endpoints: [{id: a/b/c, interface: tap1a2b3c4d}]",
         "1:36: 'tap1a2b3c4d' is another endpoint's `interface` already: see a.yaml:13"),
        ("endpoints: [{id: a/b/c, interface: cali1, vpc: red, addresses: [10.65.0.2/32]}]",
         "1:65: 10.65.0.2/32 is an endpoint's address already, in the same table: see a.yaml:14"),
    ],
)  # fmt: skip
def test_two_entries_want_one_thing(other: str, expected: str) -> None:
    assert problems(EXAMPLE, other) == [f"b.yaml:{expected}"]


def test_vnis_may_repeat_on_another_port() -> None:
    load(EXAMPLE, "vpcs: [{name: a, table: 2, vni: 1001, vtep: {local: 1.1.1.1, port: 4790}}]")


def test_all_problems_of_all_files_at_once_even_within_one_entry() -> None:
    found = problems(
        "endpoints:\n- {id: a/b, interface: eth0, uid: 5, admin: on, typo: 1, vpc: b}\n",
        "vpcs: [{name: a, table: 0, mtu: x, vtep: {local: 1, ttl: 300}}]\n",
        "endpoints: [",
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "a.yaml:2:8",
        "a.yaml:2:24",
        "a.yaml:2:35",
        "a.yaml:2:45",
        "a.yaml:2:49",
        "b.yaml:1:8",
        "b.yaml:1:25",
        "b.yaml:1:33",
        "b.yaml:1:50",
        "b.yaml:1:58",
        "c.yaml:1:13",
    ]


def test_a_vpc_with_a_flaw_is_there_nevertheless() -> None:
    (found,) = problems(
        "vpcs: [{name: a, table: 0, vni: 2, vtep: {local: 1.1.1.1}}]\n"
        "endpoints: [{id: a/b/c, interface: cali1, vpc: a}]"
    )
    assert found.startswith("a.yaml:1:25: ")


def test_what_may_be_in_a_missing_document_is_no_mistake() -> None:
    text = "endpoints: [{id: a/b/c, interface: cali1, vpc: a}]"
    assert len(problems(text)) == 1
    assert problems(text, "x: [") == problems("{}", "x: [")
    load("taps: [{name: a, controller: x-bri}]", whole=False)


def test_bytes_that_are_no_text() -> None:
    (found,) = problems(b"a: \xc3\xa9\xff")
    assert found == "a.yaml:1:5: the byte 0xff is not UTF-8"
    (found,) = problems("endpoints: []".encode("utf-16"))
    assert found == "a.yaml:1:1: the byte 0xff is not UTF-8 (it looks like UTF-16)"


def test_bounds() -> None:
    (found,) = problems(b" " * (MAX_DOCUMENT_BYTES + 1))
    assert "spread the plan over several files" in found
    (found,) = problems("a: " + "[" * (MAX_DEPTH + 2))
    assert f"nested deeper than {MAX_DEPTH}" in found
    (found,) = problems("[" * 100_000)
    assert found.startswith("a.yaml:1:")
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    (found,) = problems("\n".join(["l0: &l0 [x]", *levels]))
    assert found.startswith("a.yaml:7:")
    assert "aliases counted in full" in found
    merges = [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}" for i in range(1, 10)]
    (found,) = problems("\n".join(["m0: &m0 {a: b}", *merges]))
    assert "aliases counted in full" in found


def test_another_suffix_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        load_plan([Document("a.txt", b"{}")], Scheme())
    assert str(caught.value) == "a.txt: a plan document is called *.yaml, *.yml, *.json"


def test_long_texts_are_cut_short_in_messages() -> None:
    (found,) = problems(f"endpoints: [{{id: a/b/c, interface: {'x' * 10_000}}}]")
    assert len(found) < 300


def test_a_vpc_without_a_table() -> None:
    made = load(
        "vpcs: [{name: a, vni: 2, vtep: {local: 192.0.2.1}, vlan_filtering: true}]\n"
        "endpoints: [{id: a/b/c, interface: cali1, vpc: a, addresses: [10.0.0.1]}]"
    )
    vpc = made.vpcs["a"]
    assert (vpc.table, vpc.vlan_filtering, vpc.mac_bytes) == (None, True, None)
    (endpoint,) = made.endpoints.values()
    assert made.route_table(endpoint, 254) == 254


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("taps: [{name: t, controller: a-vrf}]", "has no `table`, so there is no VRF"),
        (
            "endpoints: [{id: a/b/c, interface: cali1, vpc: a, addresses: [0.0.0.0/0]}]",
            "only an endpoint of a VPC with a `table` can have it",
        ),
        (
            "endpoints: [{id: a/b/c, interface: cali1, vpc: a, addresses: [10.0.0.1]},\n"
            "{id: a/b/d, interface: cali2, addresses: [10.0.0.1]}]",
            "10.0.0.1/32 is an endpoint's address already, in the same table",
        ),
        ("vpcs: [{name: b, vni: 3, vtep: {local: 192.0.2.1}, vlan_filtering: 1}]", "true or false"),
    ],
)
def test_what_needs_a_table(text: str, words: str) -> None:
    vpc = "vpcs: [{name: a, vni: 2, vtep: {local: 192.0.2.1}}]"
    with pytest.raises(PlanError, match=re.escape(words)):
        load(vpc, text)
