"""The committed modules are what protoc makes of rpc.proto, and nobody else pays for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from netreeve.io.etcd import access

SRC = Path(__file__).parents[3] / "src"
PROTO = "netreeve/io/etcd/rpc.proto"


def test_what_is_committed_is_up_to_date(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}",
               f"--pyi_out={tmp_path}", PROTO]  # fmt: skip
    subprocess.run(command, cwd=SRC, check=True)
    for made in tmp_path.rglob("rpc_pb2*"):
        committed = SRC / made.relative_to(tmp_path)
        assert committed.read_bytes() == made.read_bytes(), f"{committed.name} is old: make proto"


def test_a_setting_with_etcd_loads_neither_grpcio_nor_an_event_loop() -> None:
    program = (
        "import sys\nfrom netreeve import sinks\n"
        "sinks.parse('etcd://h:2379,i:2379?layout=calico')\n"
        "print(sorted({'grpc', 'google.protobuf', 'asyncio'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_endpoints() -> None:
    assert access.endpoints("h:2379") == ("h:2379",)
    found = "etcd-0.etcd:2379,10.0.0.1:1,[fd00::1]:65535"
    assert access.endpoints(found) == tuple(found.split(","))


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":1", "h:0", "h:65536", "h:1,", "h:1,h:1", "fd00::1:2379", "u@h:1", "h:1/p"],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match=r"no HOST:PORT|is there twice"):
        access.endpoints(text)
