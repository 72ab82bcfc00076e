"""Links of ours in a real kernel, beside the plan that wants them.

`wrong(ns, document)` is the judge: it reads a plan document and `ip -d -j` for itself, with nothing
of the project's own between the two.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.agent import AgentProcess
from tests.support.netns import Namespace
from tests.support.watch import blocking_until

__all__ = [
    "Document",
    "LinkAgent",
    "agent_of",
    "document",
    "names",
    "plan",
    "tap",
    "tokens",
    "vpc",
    "wait_equal",
    "wrong",
]

LOCAL = "192.0.2.1"
KINDS = {"bri": "bridge", "vtp": "vxlan", "tap": "tun"}
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Document = dict[str, list[dict[str, Any]]]


def vpc(name: str, vni: int, **more: Any) -> dict[str, Any]:
    """An entry of `vpcs`; `port`, `ttl`, `local` are those of its VTEP."""
    vtep = {"local": more.pop("local", LOCAL)}
    vtep |= {key: more.pop(key) for key in ("port", "ttl") if key in more}
    return {"name": name, "vni": vni, "vtep": vtep, **more}


def tap(name: str, **more: Any) -> dict[str, Any]:
    """An entry of `taps`."""
    return {"name": name, **more}


def document(*entries: Mapping[str, Any]) -> Document:
    """A plan document of these VPCs and taps."""
    vpcs = [dict(entry) for entry in entries if "vni" in entry]
    taps = [dict(entry) for entry in entries if "vni" not in entry]
    return {"vpcs": vpcs, "taps": taps, "endpoints": []}


def plan(agent: AgentProcess, *entries: Mapping[str, Any], wait: bool = True) -> Document:
    """Write it; with `wait`, it is in force on return (the agent runs, and the plan differs)."""
    made = document(*entries)
    before = agent.status()["plan"]["in_force_since"] if wait else None
    agent.write_document("links.json", json.dumps(made))
    if wait:
        agent.wait_status("the plan in force", lambda s: s["plan"]["in_force_since"] != before)
    return made


def names(wanted: Document) -> set[str]:
    """Of the links that the document wants."""
    found = {f"{entry['name']}-{kind}" for entry in wanted["vpcs"] for kind in ("bri", "vtp")}
    return found | {f"{entry['name']}-tap" for entry in wanted["taps"]}


def tokens(link: Mapping[str, Any]) -> list[str]:
    return [name for name in link.get("altnames", ()) if name.startswith("netreeve.")]


def wrong(
    ns: Namespace, wanted: Document, *, without: Collection[str] = (), keep: Collection[str] = ()
) -> list[str]:
    """What isn't as the document wants it, a line each.

    Links `without` aren't looked at. `keep` are of our names and kinds, unplanned, and may stay.
    """
    shown = {link["ifname"]: link for link in json.loads(ns.ip("-d -j addr show"))}
    lines: list[str] = []
    for entry in wanted["vpcs"]:
        lines += _vpc(shown, entry, without)
    for entry in wanted["taps"]:
        name = f"{entry['name']}-tap"
        if name not in without:
            lines += _link(shown, name, entry, master=entry.get("controller"))
    planned = names(wanted)
    for name, link in shown.items():
        base, _, suffix = name.rpartition("-")
        info = link.get("linkinfo", {})
        tun = info.get("info_data", {}).get("type") == "tun"
        ours = PLAIN.fullmatch(base) and info.get("info_kind") == KINDS.get(suffix, "") and not tun
        if ours and name not in planned and name not in {*without, *keep}:
            lines.append(f"{name} is there, and nobody wants it")
    return lines


def wait_equal(
    ns: Namespace, wanted: Document, timeout_s: float = 10.0, **options: Collection[str]
) -> None:
    """Until nothing is wrong."""
    try:
        blocking_until(lambda: not wrong(ns, wanted, **options), "links as planned", timeout_s)
    except AssertionError as error:
        raise AssertionError("\n".join(wrong(ns, wanted, **options)) or str(error)) from error


def _vpc(
    shown: Mapping[str, Any], entry: Mapping[str, Any], without: Collection[str]
) -> Iterable[str]:
    bridge, vtep = f"{entry['name']}-bri", f"{entry['name']}-vtp"
    if bridge not in without:
        yield from _link(shown, bridge, entry, master=None)
        link = shown.get(bridge, {})
        have = {f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", ())}
        for address in entry.get("addresses", ()):
            if address not in have:
                yield f"{bridge} lacks {address}, has {have}"
    if vtep not in without:
        yield from _link(shown, vtep, entry, master=bridge)
        data = shown.get(vtep, {}).get("linkinfo", {}).get("info_data", {})
        asked = {"port": 4789, "ttl": 64} | entry["vtep"]
        local = data.get("local", data.get("local6"))
        asked["id"] = entry["vni"]
        shows = {key: data.get(key) for key in ("id", "port", "ttl")} | {"local": local}
        if shows != asked:
            yield f"{vtep}: {shows}, wanted {asked}"


def _link(
    shown: Mapping[str, Any], name: str, entry: Mapping[str, Any], master: str | None
) -> Iterable[str]:
    link = shown.get(name)
    if link is None:
        yield f"{name} isn't there"
        return
    kind = link.get("linkinfo", {}).get("info_kind")
    if kind != KINDS[name.rpartition("-")[2]]:
        yield f"{name} is a {kind}"
    if len(tokens(link)) != 1 or not tokens(link)[0].endswith(f".{name}"):
        yield f"{name}: no token: {link.get('altnames')}"
    if "UP" not in link["flags"]:
        yield f"{name} is down"
    if link.get("master") != master:
        yield f"{name} is in {link.get('master')}, wanted {master}"
    for key, shown_as in (("mtu", "mtu"), ("mac", "address")):
        if key in entry and link[shown_as] != entry[key]:
            yield f"{name}: {key} {link[shown_as]}, wanted {entry[key]}"


class LinkAgent(AgentProcess):
    """An agent that is there for links of ours."""

    def signal_reread(self) -> None:
        """SIGHUP, and until everything was compared anew."""
        before = self.status()["resyncs"]
        self.signal(signal.SIGHUP)
        self.wait_status("a full comparison", lambda s: s["resyncs"] > before and s["in_sync"])


def agent_of(ns: Namespace, path: Path, **env: str) -> LinkAgent:
    return LinkAgent(ns, path, plan=None, sentinel=False, env=env)
