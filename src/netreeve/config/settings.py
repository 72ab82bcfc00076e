"""The one schema of settings, and how the environment becomes a value that can't be wrong.

Each field of `Settings` is a setting: its variable is NETREEVE_ and the field's name in upper case,
its kind parses and explains it, its default is written as a user would write it. Validation,
`netreeve config` and docs/reference/settings.md all come from these fields.

A variable that is set but empty is a value like any other: some settings give it a meaning, for the
rest it is wrong. None of them holds a secret: what is secret is in a file that a `*_FILE` names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

from netreeve.config import kinds
from netreeve.errors import SettingsError
from netreeve.io.etcd.access import Access, Login, Tls
from netreeve.model import ownership, route
from netreeve.model.ownership import Scheme

__all__ = ["SCHEMA", "Origin", "Setting", "Settings", "load", "show"]

T = TypeVar("T")
Origin = Literal["environment", "default"]

PREFIX = "NETREEVE_"
HOST_NAME = "the host's name"

# A route of our protocol that nobody wants is deleted (ARCHITECTURE.md, Whose is it). A number that
# another program writes by its own habit would put that program's routes in our hands.
TAKEN_PROTOCOLS = {0: "unspec", **route.PROTOCOLS}

# Promised for later versions: somebody who sets one of them has not mistyped it, but must know that
# nothing comes of it.
NOT_USED = frozenset({"NETREEVE_METRICS_LISTEN"})

# Kubernetes gives every container these for a Service called "netreeve" in its namespace.
KUBERNETES = re.compile(r"NETREEVE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)", re.DOTALL)

# A field that is set, and another that it is nothing without.
ETCD_NEEDS = (
    ("etcd_user", "etcd_password_file"),
    ("etcd_password_file", "etcd_user"),
    ("etcd_cert_file", "etcd_key_file"),
    ("etcd_key_file", "etcd_cert_file"),
    ("etcd_cert_file", "etcd_ca_file"),
)

# The fields that make the naming scheme; they are judged together.
SUFFIXES = ("suffix_vrf", "suffix_bridge", "suffix_vtep", "suffix_tap")
NAMING = ("endpoint_prefixes", "owned_base", *SUFFIXES)


@dataclass(frozen=True, slots=True)
class Setting:
    """What there is to say of one setting. `default` is HOST_NAME where the host decides."""

    variable: str
    field: str
    default: str
    kind: kinds.Kind[Any]
    meaning: str


def _setting(default: str, kind: kinds.Kind[T], meaning: str) -> T:
    """A field of `Settings`: typed as the value that its kind gives."""
    return cast(T, field(metadata={"default": default, "kind": kind, "meaning": meaning}))


def _suffix(kind: ownership.Kind, of: str) -> str:
    return _setting(
        ownership.DEFAULT_SUFFIXES.of(kind),
        kinds.Text(r"[A-Za-z0-9._-]{1,14}", "1 to 14 of the characters A-Z a-z 0-9 . _ -"),
        f"What the names of our {of} end with. No suffix may end another",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, typed and valid. `load` is the way to one.

    `plan` and `status` are texts that `sources.parse` and `sinks.parse` accept.
    """

    plan: str = _setting(
        "dir:/etc/netreeve/plan.d",
        kinds.Text(r".+", "one or more sources, each with its scheme, separated by commas"),
        "Where plan documents come from: `dir:PATH`, `file:PATH`, `cni:PATH`; a comma before a"
        " scheme separates several",
    )
    status: str = _setting(
        "jsonl:/var/lib/netreeve/status.jsonl",
        kinds.Text(r".+", "one or more sinks, each with its scheme, separated by commas"),
        "Where status transitions go: `jsonl:PATH`, or `jsonl:-` for standard output; `files:DIR`; `etcd://HOST:PORT,...`;"
        " a comma before a scheme separates several",
    )
    state_dir: str | None = _setting(
        "/var/lib/netreeve",
        kinds.AbsolutePath("no state directory: the journal is in memory and ends with the agent"),
        "Journal and instance id",
    )
    node_name: str = _setting(
        HOST_NAME,
        kinds.Text(r"[!-.0-~]{1,253}", "1 to 253 printable ASCII characters, no blank and no /"),
        "The name under which this node reports status",
    )
    endpoint_prefixes: tuple[str, ...] = _setting(
        ",".join(ownership.DEFAULT_ENDPOINT_PREFIXES),
        kinds.Names("beginnings of link names, 1 to 14 bytes each, separated by commas"),
        "Names that endpoint links may have begin with one of these. None may begin with another",
    )
    owned_base: str = _setting(
        ownership.DEFAULT_BASE,
        kinds.Text(r".+", "a regular expression"),
        "The part of our own links' names before the suffix must match this as a whole",
    )
    ownership: Literal["name", "token"] = _setting(
        "name",
        kinds.Choice(("name", "token")),
        "Which links of our names may be deleted: `name`, all whose kind agrees; `token`, only"
        " those that bear the token of this installation",
    )
    suffix_vrf: str = _suffix("vrf", "VRFs")
    suffix_bridge: str = _suffix("bridge", "bridges")
    suffix_vtep: str = _suffix("vtep", "VTEPs")
    suffix_tap: str = _suffix("tap", "taps")
    route_protocol: int = _setting(
        "98",
        kinds.Whole(
            5,
            255,
            refused={
                number: f"{number} is the protocol of others' routes ({name}), which would be"
                " taken for ours and deleted"
                for number, name in TAKEN_PROTOCOLS.items()
            },
        ),
        "The protocol number that marks our routes. It must be ours alone on this node: routes that"
        " bear it and that the plan doesn't want are deleted",
    )
    route_table: int = _setting(
        "254",
        kinds.Whole(
            1,
            4294967295,
            refused={255: "255 is the local table, which the kernel keeps itself"},
        ),
        "The table of routes of endpoints without a VPC; 254 is the main one",
    )
    route_metric: int = _setting("1024", kinds.Whole(1, 4294967295), "The metric of our routes")
    resync_interval_s: int = _setting(
        "90",
        kinds.Whole(1, 86400, "seconds", zero_means="off"),
        "How often everything is compared with the kernel, whatever events came",
    )
    batch_ops: int = _setting(
        "128", kinds.Whole(1, 1024), "The most changes that go to the kernel in one `sendmsg`"
    )
    batch_delay_ms: int = _setting(
        "1",
        kinds.Whole(0, 1000, "milliseconds"),
        "How long a first change waits for others to share its batch",
    )
    rcvbuf_bytes: int = _setting(
        "8388608",
        kinds.Whole(65536, 1073741823, "bytes"),
        "The receive buffer asked for on the event socket",
    )
    retry_min_ms: int = _setting(
        "100",
        kinds.Whole(1, 3600000, "milliseconds"),
        "The wait after a first failure; it doubles with each further one, with jitter, per object",
    )
    retry_max_ms: int = _setting(
        "30000", kinds.Whole(1, 3600000, "milliseconds"), "The longest wait after a failure"
    )
    allow_empty_plan: bool = _setting(
        "false",
        kinds.Switch(),
        "Whether a plan without any object is put in force. It means that nothing of ours is"
        " wanted",
    )
    delete_brake: float = _setting(
        "0.5",
        kinds.Share(),
        "Where a plan deletes more than this share of our links, and more than 10, none is deleted"
        " until `netreeve apply --yes` or another plan",
    )
    journal_max_bytes: int = _setting(
        "1073741824",
        kinds.Whole(1048576, 1099511627776, "bytes"),
        "The bound of the journal. When it is reached, recording stops and the gap is recorded"
        " afterwards",
    )
    journal_retention_s: int = _setting(
        "86400",
        kinds.Whole(0, 315360000, "seconds"),
        "How long transitions that every sink has passed are kept for `netreeve log`",
    )
    etcd_user: str | None = _setting(
        "",
        kinds.Optional(
            r"[!-~]{1,255}", "1 to 255 printable ASCII characters, no blank", "no login"
        ),
        "The user for etcd. Needs NETREEVE_ETCD_PASSWORD_FILE",
    )
    etcd_password_file: str | None = _setting(
        "",
        kinds.AbsolutePath("no login"),
        "The file with that user's password. It is read at each login, so it may change",
    )
    etcd_ca_file: str | None = _setting(
        "",
        kinds.AbsolutePath("connections in the clear"),
        "PEM file with the authorities that may vouch for etcd: connections are TLS. It and the"
        " next two are read at each connection",
    )
    etcd_cert_file: str | None = _setting(
        "",
        kinds.AbsolutePath("no client certificate"),
        "PEM file with our certificate for etcd. Needs the key, and NETREEVE_ETCD_CA_FILE",
    )
    etcd_key_file: str | None = _setting(
        "", kinds.AbsolutePath("no client certificate"), "PEM file with that certificate's key"
    )
    control_socket: str | None = _setting(
        "/run/netreeve/control.sock",
        # sun_path of <linux/un.h> has 108 bytes, one of which is the end.
        kinds.AbsolutePath("no control socket: `netreeve status` can't ask the agent", 107),
        "The Unix socket on which the agent answers `netreeve status`; mode 0600",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info",
        kinds.Choice(("debug", "info", "warning", "error")),
        "The least severe log lines that are written",
    )
    log_format: Literal["auto", "json", "text"] = _setting(
        "auto",
        kinds.Choice(("auto", "json", "text")),
        "How log lines are written; `auto` is `text` on a terminal and `json` elsewhere",
    )
    event_loop: Literal["uvloop", "asyncio"] = _setting(
        "uvloop", kinds.Choice(("uvloop", "asyncio")), "The event loop of the agent"
    )
    origins: Mapping[str, Origin]
    """Where each value came from, by variable."""
    warnings: tuple[str, ...]
    """What is odd about the environment but no error; each a sentence."""

    def scheme(self) -> Scheme:
        """How names are made and recognised."""
        return _scheme({name: getattr(self, name) for name in NAMING})

    def etcd_access(self) -> Access:
        """How to get into etcd."""
        login = tls = None
        if self.etcd_user is not None and self.etcd_password_file is not None:
            login = Login(self.etcd_user, self.etcd_password_file)
        if self.etcd_ca_file is not None:
            tls = Tls(self.etcd_ca_file, self.etcd_cert_file, self.etcd_key_file)
        return Access(login, tls)


SCHEMA: tuple[Setting, ...] = tuple(
    Setting(PREFIX + entry.name.upper(), entry.name, **entry.metadata)
    for entry in fields(Settings)
    if entry.metadata
)


def load(environ: Mapping[str, str]) -> Settings:
    """The settings that `environ` makes, or SettingsError with everything that is wrong in it."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in SCHEMA:
        default = os.uname().nodename if setting.default is HOST_NAME else setting.default
        text = environ.get(setting.variable, default)
        try:
            values[setting.field] = setting.kind.parse(text)
        except ValueError as error:
            problems.append(_problem(setting, text, str(error)))
    problems += _ends(environ, values)
    problems += _together(values)
    if problems:
        raise SettingsError(tuple(problems))
    origins: dict[str, Origin] = {
        setting.variable: "environment" if setting.variable in environ else "default"
        for setting in SCHEMA
    }
    return Settings(**values, origins=origins, warnings=tuple(_warnings(environ)))


def show(value: object) -> str:
    """A setting's value as one would write it into its variable."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _problem(setting: Setting, text: str, reason: str) -> str:
    shown = repr(text if len(text) <= 200 else text[:200] + "…")
    because = f"{reason}; allowed is " if reason else "allowed is "
    return f"{setting.variable}={shown}: {because}{setting.kind.allowed}"


def _ends(environ: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[str]:
    """What sources and sinks say of the URLs that `environ` gives them; `values` may lack some."""
    if "NETREEVE_PLAN" in environ and "plan" in values:
        from netreeve import sources  # with an event loop and parsers, which a mere default spares

        yield from _refused(("plan",), sources.parse, values["plan"])
    if "NETREEVE_STATUS" in environ and "status" in values:
        from netreeve import sinks

        yield from _refused(("status",), sinks.parse, values["status"])


def _together(values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with values that are each right by themselves; `values` may lack some."""
    if values.keys() >= {"retry_min_ms", "retry_max_ms"}:
        low, high = values["retry_min_ms"], values["retry_max_ms"]
        if low > high:
            yield (
                f"NETREEVE_RETRY_MIN_MS={low}, NETREEVE_RETRY_MAX_MS={high}: the first must not be"
                " more than the second"
            )
    for name, needed in ETCD_NEEDS:
        if values.get(name) is not None and values.get(needed, "") is None:
            yield f"{PREFIX}{name.upper()} is of no use without {PREFIX}{needed.upper()}"
    yield from _naming(values)


def _naming(values: Mapping[str, Any]) -> Iterator[str]:
    """The naming scheme's objections, each with the variables that it is about.

    The scheme names its first objection only. So each group of fields is judged among defaults as
    well; an objection that shows only with all of them is about all of them.
    """
    defaults = {s.field: s.kind.parse(s.default) for s in SCHEMA if s.field in NAMING}
    given = {**defaults, **{name: values[name] for name in NAMING if name in values}}
    whole = list(_refused(NAMING, _scheme, given))
    if not whole:
        return
    apart = [
        problem
        for group in (("endpoint_prefixes",), ("owned_base",), SUFFIXES)
        for problem in _refused(
            group, _scheme, {**defaults, **{name: given[name] for name in group}}
        )
    ]
    yield from apart or whole


def _scheme(names: Mapping[str, Any]) -> ownership.Scheme:
    return ownership.scheme(**names)


def _refused(
    names: tuple[str, ...], judge: Callable[[Any], object], value: object
) -> Iterator[str]:
    try:
        judge(value)
    except ValueError as error:
        about = ", ".join(PREFIX + name.upper() for name in names)
        yield f"{about}: {error}"


def _warnings(environ: Mapping[str, str]) -> Iterator[str]:
    known = {setting.variable for setting in SCHEMA}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in known or KUBERNETES.fullmatch(variable):
            continue
        if variable in NOT_USED:
            yield f"{variable} is set, but this version does not use it: it has no effect"
            continue
        import difflib  # 5 ms that only a mistyped variable needs

        near = difflib.get_close_matches(variable, sorted(known), 1)
        hint = f"; the nearest is {near[0]}" if near else ""
        shown = variable if variable.isprintable() else ascii(variable)
        yield f"{shown} is set, but is no setting of netreeve{hint}"
