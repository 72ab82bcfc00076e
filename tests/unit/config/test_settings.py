"""Every setting: its default, what it refuses, and that all refusals come at once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netreeve.config import settings
from netreeve.errors import SettingsError
from netreeve.io.etcd.access import Access, Login, Tls


def problems(**variables: str) -> tuple[str, ...]:
    """What `load` objects to in NETREEVE_<name>=<value>, given without the prefix."""
    with pytest.raises(SettingsError) as caught:
        settings.load({f"NETREEVE_{name}": value for name, value in variables.items()})
    return caught.value.problems


def test_the_defaults_are_those_of_the_product() -> None:
    found = settings.load({})
    assert found.node_name == os.uname().nodename
    assert found.warnings == ()
    assert set(found.origins.values()) == {"default"}
    assert {
        s.variable.removeprefix("NETREEVE_"): settings.show(getattr(found, s.field))
        for s in settings.SCHEMA
        if s.field not in ("node_name", "owned_base")
    } == {
        "PLAN": "dir:/etc/netreeve/plan.d",
        "STATUS": "jsonl:/var/lib/netreeve/status.jsonl",
        "STATE_DIR": "/var/lib/netreeve",
        "ENDPOINT_PREFIXES": "cali,tap,veth",
        "OWNERSHIP": "name",
        "SUFFIX_VRF": "-vrf",
        "SUFFIX_BRIDGE": "-bri",
        "SUFFIX_VTEP": "-vtp",
        "SUFFIX_TAP": "-tap",
        "ROUTE_PROTOCOL": "98",
        "ROUTE_TABLE": "254",
        "ROUTE_METRIC": "1024",
        "RESYNC_INTERVAL_S": "90",
        "BATCH_OPS": "128",
        "BATCH_DELAY_MS": "1",
        "RCVBUF_BYTES": "8388608",
        "RETRY_MIN_MS": "100",
        "RETRY_MAX_MS": "30000",
        "ALLOW_EMPTY_PLAN": "false",
        "DELETE_BRAKE": "0.5",
        "JOURNAL_MAX_BYTES": "1073741824",
        "JOURNAL_RETENTION_S": "86400",
        "ETCD_USER": "",
        "ETCD_PASSWORD_FILE": "",
        "ETCD_CA_FILE": "",
        "ETCD_CERT_FILE": "",
        "ETCD_KEY_FILE": "",
        "CONTROL_SOCKET": "/run/netreeve/control.sock",
        "LOG_LEVEL": "info",
        "LOG_FORMAT": "auto",
        "EVENT_LOOP": "uvloop",
    }


def test_the_defaults_can_be_given_too() -> None:
    found = settings.load({})
    given_all = {s.variable: settings.show(getattr(found, s.field)) for s in settings.SCHEMA}
    again = settings.load(given_all)
    assert set(again.origins.values()) == {"environment"}
    assert dataclasses.replace(again, origins=found.origins) == found


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PLAN", ""),
        ("PLAN", "/etc/netreeve/plan.d"),
        ("PLAN", "zookeeper://x"),
        ("STATUS", ""),
        ("STATUS", "/var/lib/status"),
        ("STATUS", "csv:/x"),
        ("STATE_DIR", "relative"),
        ("STATE_DIR", "/"),
        ("STATE_DIR", "/" + "x" * 4095),
        ("NODE_NAME", ""),
        ("NODE_NAME", "a b"),
        ("NODE_NAME", "a/b"),
        ("NODE_NAME", "é"),
        ("NODE_NAME", "n" * 254),
        ("ENDPOINT_PREFIXES", ""),
        ("ENDPOINT_PREFIXES", "cali,,tap"),
        ("ENDPOINT_PREFIXES", "cali,calico"),
        ("ENDPOINT_PREFIXES", "tap,tap"),
        ("ENDPOINT_PREFIXES", "a/b"),
        ("ENDPOINT_PREFIXES", "p" * 15),
        ("OWNED_BASE", ""),
        ("OWNED_BASE", "("),
        ("SUFFIX_VRF", ""),
        ("SUFFIX_BRIDGE", "/b"),
        ("SUFFIX_VTEP", "s" * 15),
        ("SUFFIX_TAP", "x-vrf"),
        ("ROUTE_PROTOCOL", "0"),
        ("ROUTE_PROTOCOL", "2"),
        ("ROUTE_PROTOCOL", "4"),
        ("ROUTE_PROTOCOL", "186"),
        ("ROUTE_PROTOCOL", "256"),
        ("ROUTE_TABLE", "0"),
        ("ROUTE_TABLE", "255"),
        ("ROUTE_TABLE", "4294967296"),
        ("ROUTE_METRIC", "0"),
        ("RESYNC_INTERVAL_S", "-1"),
        ("RESYNC_INTERVAL_S", "90s"),
        ("RESYNC_INTERVAL_S", "1.5"),
        ("BATCH_OPS", "0"),
        ("BATCH_OPS", "1025"),
        ("BATCH_DELAY_MS", "1001"),
        ("RCVBUF_BYTES", "8M"),
        ("RCVBUF_BYTES", "1_000_000"),
        ("RETRY_MIN_MS", "0"),
        ("RETRY_MAX_MS", " 5"),
        ("RETRY_MAX_MS", "٣٠٠"),  # digits, but not ours
        ("ALLOW_EMPTY_PLAN", "yes"),
        ("ALLOW_EMPTY_PLAN", ""),
        ("JOURNAL_MAX_BYTES", "1"),
        ("JOURNAL_RETENTION_S", "9" * 5000),
        ("CONTROL_SOCKET", "run/x"),
        ("CONTROL_SOCKET", "/" + "x" * 107),
        ("LOG_LEVEL", "INFO"),
        ("LOG_FORMAT", "xml"),
        ("EVENT_LOOP", "trio"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(variable: str, value: str) -> None:
    (problem,) = problems(**{variable: value})
    assert f"NETREEVE_{variable}" in problem
    assert len(problem) < 700


def test_the_sentence_holds_variable_value_reason_and_what_is_allowed() -> None:
    assert problems(RETRY_MAX_MS="soon") == (
        "NETREEVE_RETRY_MAX_MS='soon': allowed is a whole number of milliseconds from 1 to 3600000",
    )
    assert problems(ROUTE_PROTOCOL="12") == (
        "NETREEVE_ROUTE_PROTOCOL='12': 12 is the protocol of others' routes (bird), which would be"
        " taken for ours and deleted; allowed is a whole number from 5 to 255, except 8, 9, 10, 11,"
        " 12, 13, 14, 15, 16, 17, 18, 42, 84, 99, 186, 187, 188, 189, 192",
    )
    assert problems(LOG_LEVEL="a\x1bb") == (
        r"NETREEVE_LOG_LEVEL='a\x1bb': allowed is debug or info or warning or error",
    )


def test_all_wrong_values_come_at_once() -> None:
    found = problems(
        PLAN="nowhere:/x",
        STATUS="nobody:/x",
        ENDPOINT_PREFIXES="a,ab",
        OWNED_BASE="[",
        SUFFIX_TAP="-vrf",
        BATCH_OPS="many",
        EVENT_LOOP="none",
        RETRY_MIN_MS="5000",
        RETRY_MAX_MS="10",
    )
    for variable in (
        "PLAN",
        "STATUS",
        "ENDPOINT_PREFIXES",
        "OWNED_BASE",
        "SUFFIX_VRF, NETREEVE_SUFFIX_BRIDGE",
        "BATCH_OPS",
        "EVENT_LOOP",
        "RETRY_MIN_MS",
    ):
        assert sum(f"NETREEVE_{variable}" in problem.split(":")[0] for problem in found) == 1, found
    assert len(found) == 8


def test_what_is_wrong_only_together_is_about_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(names: Mapping[str, object]) -> None:
        if names["owned_base"] == "x" and names["suffix_vrf"] == "-x":
            raise ValueError("these two don't go together")

    monkeypatch.setattr(settings, "_scheme", judge)
    (problem,) = problems(OWNED_BASE="x", SUFFIX_VRF="-x")
    assert "NETREEVE_OWNED_BASE, NETREEVE_SUFFIX_VRF" in problem
    assert problem.endswith(": these two don't go together")


def test_values_arrive_typed_with_their_origin() -> None:
    found = settings.load(
        {
            "NETREEVE_ENDPOINT_PREFIXES": "cali, qvo",
            "NETREEVE_RESYNC_INTERVAL_S": "0",
            "NETREEVE_ALLOW_EMPTY_PLAN": "True",
            "NETREEVE_STATE_DIR": "",
            "NETREEVE_CONTROL_SOCKET": "",
            "NETREEVE_PLAN": "dir:/a,file:/b,c.yaml",
        }
    )
    assert found.endpoint_prefixes == ("cali", "qvo")
    assert found.resync_interval_s == 0
    assert found.allow_empty_plan is True
    assert found.state_dir is None
    assert found.control_socket is None
    assert found.plan == "dir:/a,file:/b,c.yaml"
    assert found.origins["NETREEVE_PLAN"] == "environment"
    assert found.origins["NETREEVE_STATUS"] == "default"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.plan = "dir:/x"  # type: ignore[misc]


def test_state_dir_loses_its_trailing_slash() -> None:
    assert settings.load({"NETREEVE_STATE_DIR": "/srv/n//"}).state_dir == "/srv/n"


@pytest.mark.parametrize(
    ("variable", "warning"),
    [
        (
            "NETREEVE_RETRY_MAX",
            "NETREEVE_RETRY_MAX is set, but is no setting of netreeve; the nearest is"
            " NETREEVE_RETRY_MAX_MS",
        ),
        ("NETREEVE_", "NETREEVE_ is set, but is no setting of netreeve"),
        (
            "NETREEVE_METRICS_LISTEN",
            "NETREEVE_METRICS_LISTEN is set, but this version does not use it: it has no effect",
        ),
    ],
)
def test_an_unknown_variable_is_a_warning(variable: str, warning: str) -> None:
    (found,) = settings.load({variable: "x", "PATH": "/bin", "XNETREEVE_A": ""}).warnings
    assert found.startswith(warning)


@pytest.mark.parametrize(
    "variable",
    [
        "NETREEVE_SERVICE_HOST",
        "NETREEVE_SERVICE_PORT",
        "NETREEVE_SERVICE_PORT_METRICS",
        "NETREEVE_PORT",
        "NETREEVE_PORT_9179_TCP",
        "NETREEVE_PORT_9179_TCP_ADDR",
    ],
)
def test_what_kubernetes_injects_is_no_mistake(variable: str) -> None:
    assert settings.load({variable: "tcp://10.0.0.1:9179"}).warnings == ()


@given(st.sampled_from(settings.SCHEMA), st.text(st.characters(exclude_characters="\0")))
def test_no_value_raises_anything_else(setting: settings.Setting, value: str) -> None:
    refused: tuple[str, ...] = ()
    try:
        found = settings.load({setting.variable: value})
    except SettingsError as error:
        refused = error.problems
    else:
        again = settings.load({setting.variable: settings.show(getattr(found, setting.field))})
        assert getattr(again, setting.field) == getattr(found, setting.field)
    assert all(problem.isprintable() for problem in refused)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        (["USER"], "USER is of no use without NETREEVE_ETCD_PASSWORD_FILE"),
        (["PASSWORD_FILE"], "PASSWORD_FILE is of no use without NETREEVE_ETCD_USER"),
        (["CA_FILE", "CERT_FILE"], "CERT_FILE is of no use without NETREEVE_ETCD_KEY_FILE"),
        (["CA_FILE", "KEY_FILE"], "KEY_FILE is of no use without NETREEVE_ETCD_CERT_FILE"),
        (["CERT_FILE", "KEY_FILE"], "CERT_FILE is of no use without NETREEVE_ETCD_CA_FILE"),
    ],
)
def test_what_etcd_needs_together(given: list[str], lacks: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.load({f"NETREEVE_ETCD_{name}": "/a" for name in given})
    assert caught.value.problems == (f"NETREEVE_ETCD_{lacks}",)


def test_the_way_into_etcd() -> None:
    assert settings.load({}).etcd_access() == Access()
    names = ("USER", "PASSWORD_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE")
    found = settings.load({f"NETREEVE_ETCD_{name}": f"/{name}" for name in names})
    login, tls = Login("/USER", "/PASSWORD_FILE"), Tls("/CA_FILE", "/CERT_FILE", "/KEY_FILE")
    assert found.etcd_access() == Access(login, tls)
    with pytest.raises(SettingsError, match="no blank, or empty"):
        settings.load({"NETREEVE_ETCD_USER": "a b", "NETREEVE_ETCD_PASSWORD_FILE": "/a"})
