"""`netreeve monitor` from outside."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.agent import veth
from tests.support.netns import Namespace

pytestmark = pytest.mark.kernel

COMMAND = [sys.executable, "-m", "netreeve", "monitor"]


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.stderr.read() if process.stderr else ""
    return text.rstrip("\n")


def obj(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line(process))
    return found


def test_json_lines_of_the_links_that_match(namespace: Namespace) -> None:
    # Without any capability: it needs none.
    bare = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *COMMAND]
    monitor = namespace.popen([*bare, "--json", "--name", "cali[0-9]"])
    assert obj(monitor) == {"event": "in-sync", "links": 1}
    namespace.ip_batch(veth("cali1", "eth1"))
    index = namespace.ifindex("cali1")
    link = {"name": "cali1", "ifindex": index, "kind": "veth", "inferred": False}
    assert obj(monitor) == {"event": "link-added", "up": False} | link
    assert obj(monitor) == {"event": "link-changed", "up": True} | link
    namespace.ip("link set cali1 down")
    assert obj(monitor) == {"event": "link-changed", "up": False} | link
    namespace.ip("link set cali1 name caliold")
    assert obj(monitor) == {"event": "link-removed", "up": False} | link
    monitor.send_signal(signal.SIGINT)
    assert monitor.wait(5) == 0


def test_lines_for_people(namespace: Namespace) -> None:
    monitor = namespace.popen(COMMAND)
    assert re.search(r"\+ lo +1  down", line(monitor))
    assert line(monitor).endswith("= in sync, 1 links")
    namespace.ip("link add name br0 up type bridge")
    assert re.search(r"\+ br0 +\d+  up +bridge$", line(monitor))
    namespace.ip("link del br0")
    gone = line(monitor)
    while "gone" not in gone:  # a bridge goes down first, if it may
        gone = line(monitor)
    assert re.search(r"- br0 +\d+  gone +bridge$", gone)


def test_a_reader_that_leaves_ends_it_quietly(namespace: Namespace) -> None:
    monitor = namespace.popen(COMMAND)
    line(monitor)
    line(monitor)
    assert monitor.stdout is not None
    monitor.stdout.close()
    namespace.ip("link add name br0 up type bridge")
    assert monitor.wait(5) == 128 + signal.SIGPIPE
    assert monitor.stderr is not None
    assert monitor.stderr.read() == ""
