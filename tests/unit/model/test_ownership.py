"""Whose a link is, by its name: doubt means foreign."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.model import ownership
from netreeve.model.ownership import KINDS, REAL_KIND, Scheme, Suffixes
from tests.support.netns import Namespace

SCHEME = Scheme()
names = st.text(st.sampled_from("ab-._/: %1\u00e0\udcff"), max_size=18) | st.builds(
    lambda base, kind: base + SCHEME.suffixes.of(kind),
    st.text(st.sampled_from("ab-._A9 "), max_size=13),
    st.sampled_from(KINDS),
)


def test_names_of_a_vpc_and_a_tap() -> None:
    assert [SCHEME.make(kind, "red") for kind in KINDS] == [
        "red-vrf", "red-bri", "red-vtp", "red-tap",
    ]  # fmt: skip


@given(names, st.sampled_from(KINDS))
def test_what_is_made_is_recognised_as_its_kind_only(base: str, kind: ownership.Kind) -> None:
    try:
        name = SCHEME.make(kind, base)
    except ValueError:
        return
    assert SCHEME.kind_of(name) == kind
    assert SCHEME.base_of(name, kind) == base
    verdicts = {k: SCHEME.recognise(name, REAL_KIND[k], tap_mode=True).verdict for k in KINDS}
    assert verdicts == {k: "owned" if k == kind else "foreign" for k in KINDS}


@given(names)
def test_what_is_owned_could_have_been_made(name: str) -> None:
    for kind in KINDS:
        if SCHEME.recognise(name, REAL_KIND[kind], tap_mode=True).verdict == "owned":
            assert SCHEME.make(kind, SCHEME.base_of(name, kind)) == name


@pytest.mark.parametrize(
    ("name", "kind", "verdict", "words"),
    [
        ("red-vrf", "vrf", "owned", "and it is one"),
        ("store-vrf", "bridge", "foreign", "it is a bridge, not a vrf"),
        ("store-vrf", None, "foreign", "of no kind"),
        ("red-vtp", "vxlan", "owned", "and it is one"),
        ("red-tap", "tun", "foreign", "not known to be a tap"),
        ("-vrf", "vrf", "foreign", "empty before its suffix"),
        ("--vrf", "vrf", "foreign", "doesn't begin with a letter"),
        ("r\u00e9d-vrf", "vrf", "foreign", "other characters"),
        ("abcdefghijkl-vrf", "vrf", "foreign", "16 bytes"),
        ("red-VRF", "vrf", "foreign", "no suffix of ours"),
        ("cali1", "veth", "tracked-name", "'cali'"),
        ("cali", "veth", "foreign", "no suffix of ours"),
        ("tap1-tap", "veth", "foreign", "it is a veth"),
        ("eth0", None, "foreign", "no suffix of ours"),
    ],
)
def test_verdicts(name: str, kind: str | None, verdict: str, words: str) -> None:
    found = SCHEME.recognise(name, kind)
    assert found.verdict == verdict
    assert words in found.reason


def test_a_tap_that_is_known_to_be_one_is_owned() -> None:
    assert SCHEME.recognise("red-tap", "tun", tap_mode=True).verdict == "owned"


def test_the_pattern_narrows_and_never_widens() -> None:
    narrow = Scheme(base=r"vpc[0-9]+")
    assert narrow.recognise("vpc12-vrf", "vrf").verdict == "owned"
    assert "NETREEVE_OWNED_BASE" in narrow.recognise("red-vrf", "vrf").reason
    anything = Scheme(base=r".*")
    assert anything.recognise("-x-vrf", "vrf").verdict == "foreign"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"suffixes": Suffixes(vrf="")}, "is empty"),
        ({"suffixes": Suffixes(vrf="-v/f")}, "other characters"),
        ({"suffixes": Suffixes(vrf="-abcdefghijklmn")}, "no room for a base"),
        ({"suffixes": Suffixes(tap="-bri")}, "could be read in two ways"),
        ({"suffixes": Suffixes(tap="x-bri")}, "could be read in two ways"),
        ({"base": "("}, "not a regular expression"),
        ({"endpoint_prefixes": ()}, "no endpoint prefix"),
        ({"endpoint_prefixes": ("",)}, "is empty"),
        ({"endpoint_prefixes": ("a b",)}, "can't begin a name"),
        ({"endpoint_prefixes": ("abcdefghijklmno",)}, "no room"),
        ({"endpoint_prefixes": ("cali", "ca")}, "overlap"),
        ({"endpoint_prefixes": ("cali", "cali")}, "overlap"),
    ],
)
def test_a_scheme_that_could_be_ambiguous_is_refused(
    arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Scheme(**arguments)  # type: ignore[arg-type]  # wrong on purpose
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eth0", "doesn't begin with an endpoint prefix"),
        ("cali", "doesn't begin with an endpoint prefix"),
        ("tap1-tap", "reads as a tap of netreeve's own"),
        ("veth-vrf", "reads as a vrf"),
        ("cali1234567890123", "17 bytes"),
        ("cali/1", "holds the byte b'/'"),
        ("cali%d", "holds the byte b'%'"),
        ("cali\u00e0", "holds the byte b'\\xa0'"),
        ("", "not empty"),
        ("..", "no name of a link"),
    ],
)
def test_names_that_no_endpoint_has(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        SCHEME.check_endpoint(name)
    assert words in str(caught.value)


def test_an_endpoint_name_that_is_no_utf_8_is_legal() -> None:
    SCHEME.check_endpoint("cali\udcff")


def test_the_kernel_agrees_on_names(namespace: Namespace) -> None:
    for raw in (b"cali\xc3\xa0", b"cali 1", b"cali:1", b"ca\x0bli", b".", b"cali\x1b", b"\xff\xfe"):
        name = raw.decode("utf-8", "surrogateescape")
        command = [b"ip", b"-n", namespace.name.encode(), b"link", b"add", b"name", raw]
        done = subprocess.run([*command, b"type", b"bridge"], capture_output=True, check=False)
        try:
            ownership.check_name(name)
        except ValueError:
            assert done.returncode, f"{raw!r} is refused, but the kernel takes it"
        else:
            assert not done.returncode, f"{raw!r} is taken, but the kernel says {done.stderr!r}"


def test_the_scheme_of_the_settings() -> None:
    made = ownership.scheme(
        ("cali", "tap", "veth"), ownership.DEFAULT_BASE, "-vrf", "-bri", "-vtp", "-tap"
    )
    assert made == SCHEME


def test_a_token_can_be_no_name_and_tells_its_link() -> None:
    made = ownership.token("0123456789ab", "red-bri")
    assert made == "netreeve.0123456789ab.red-bri"
    assert len(ownership.token("12345678", "")) > ownership.MAX_NAME_BYTES
    assert ownership.token_object("0123456789ab", made) == "red-bri"
    assert ownership.token_object("another00install", made) is None
    assert ownership.token_object("0123456789ab", "netreeve.0123456789ab.") is None
    assert ownership.token_object("0123456789ab", "red-bri") is None


@pytest.mark.parametrize("instance", ["", "short", "with.a.dot", "x" * 65, "12345678\n"])
def test_what_is_no_instance_id(instance: str) -> None:
    with pytest.raises(ValueError, match="an instance id is"):
        ownership.token(instance, "red-bri")
