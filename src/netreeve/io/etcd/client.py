"""Calls to etcd: one connection at a time, to one of several members.

Errors are those of `netreeve.io.etcd.errors`; OSError comes through for files that can't be read.
"""

from __future__ import annotations

import os

# Before grpcio is loaded: its fork handlers cost each fork of ours, and can hang it. What it has to
# say to a terminal comes back as errors too.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from netreeve.io.etcd import rpc_pb2 as rpc
from netreeve.io.etcd.access import Access, Tls
from netreeve.io.etcd.errors import (
    EtcdError,
    EtcdRefused,
    EtcdTooLarge,
    EtcdTooManyOps,
    EtcdUnavailable,
)
from netreeve.io.etcd.write import Write

__all__ = ["EtcdClient", "prefix_end"]

R = TypeVar("R", bound=Message)

CONNECT_S = 2.0
CALL_S = 5.0
_PAGE = 1_000
_MAX_ANSWER_BYTES = 64 << 20

_OPTIONS = (
    # Whether and when to connect again is for us to say; a channel that gRPC keeps in its own
    # backoff would fail the next one to the same member at once.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.client_idle_timeout_ms", 0x7FFFFFFF),
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", -1),
    # Environment variables meant for web traffic are no reason to send a node's status elsewhere.
    ("grpc.enable_http_proxy", 0),
)

_CODE = grpc.StatusCode


class EtcdUnauthenticated(EtcdUnavailable):
    """The token is unknown or old, as after 5 minutes or a restart, and a new one too."""


class EtcdClient:
    """`connect` first, and again after EtcdUnavailable. For one task at a time."""

    def __init__(self, endpoints: Sequence[str], access: Access) -> None:
        self._endpoints = tuple(endpoints)
        self._access = access
        self._next = 0
        self._member = self._endpoints[0]
        self._channel: grpc.aio.Channel | None = None
        self._token: str | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that hasn't been seen to break."""
        channel = self._channel
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY

    async def connect(self) -> None:
        """Connect to the first member that answers, beginning with the one after the last tried.

        Logs in where there is a user. Raises what the last one failed with: EtcdUnavailable,
        EtcdRefused (wrong password), or OSError for a file that can't be read.
        """
        error: EtcdUnavailable | None = None
        for _ in self._endpoints:
            await self.close()
            self._member = self._endpoints[self._next]
            self._next = (self._next + 1) % len(self._endpoints)
            try:
                self._channel = await _channel(self._member, self._access.tls)
                async with asyncio.timeout(CONNECT_S):
                    await self._channel.channel_ready()
                await self._log_in()
                return
            except TimeoutError:
                error = EtcdUnavailable(f"{self._member}: no connection within {CONNECT_S:.0f} s")
            except EtcdUnavailable as unavailable:
                error = unavailable
        await self.close()
        assert error is not None
        raise error

    async def close(self) -> None:
        """Drop the connection, with what is under way on it."""
        channel, self._channel, self._token = self._channel, None, None
        if channel is not None:
            await channel.close(None)

    async def write_if(self, key: bytes, holds: bytes | None, writes: Iterable[Write]) -> bool:
        """Carry out all `writes` in one revision if `key` holds this value, None: isn't there.

        False where it doesn't; then nothing was done. No key may be written twice.
        """
        request = rpc.TxnRequest(compare=[_compare(key, holds)])
        add = request.success.add
        for write in writes:
            if write.value is None:
                add().request_delete_range.key = write.key
            else:
                put = add().request_put
                put.key, put.value = write.key, write.value
                if write.lease:
                    put.lease = write.lease
        return (await self._call("KV/Txn", request, rpc.TxnResponse)).succeeded

    async def get(self, key: bytes) -> bytes | None:
        """What one key holds, linearizable; None where it isn't there."""
        answer = await self._call("KV/Range", rpc.RangeRequest(key=key), rpc.RangeResponse)
        return answer.kvs[0].value if answer.kvs else None

    async def pages(self, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        """Every key that begins with `prefix`, with its value, in order, as of one revision."""
        request = rpc.RangeRequest(key=prefix, range_end=prefix_end(prefix), limit=_PAGE)
        while True:
            answer = await self._call("KV/Range", request, rpc.RangeResponse)
            yield [(each.key, each.value) for each in answer.kvs]
            if not answer.more:
                return
            request.key = answer.kvs[-1].key + b"\0"
            request.revision = request.revision or answer.header.revision

    async def lease_grant(self, ttl_s: int) -> int:
        """A new lease's id."""
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        return (await self._call("Lease/LeaseGrant", request, rpc.LeaseGrantResponse)).ID

    async def lease_renew(self, lease: int) -> bool:
        """Whether the lease was still there."""
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        # A stream in etcd's definition; with one message each way it is a call like any other.
        return (
            await self._call("Lease/LeaseKeepAlive", request, rpc.LeaseKeepAliveResponse)
        ).TTL > 0

    async def _call(self, method: str, request: Message, answer: type[R]) -> R:
        try:
            return await self._call_once(method, request, answer)
        except EtcdUnauthenticated:
            # Said before it did anything, so that it can be asked again.
            await self._log_in()
            return await self._call_once(method, request, answer)

    async def _call_once(self, method: str, request: Message, answer: type[R]) -> R:
        if self._channel is None:
            raise EtcdUnavailable("not connected")
        call = self._channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            answered: R = await call(request, timeout=CALL_S, metadata=self._metadata())
        except grpc.aio.AioRpcError as error:
            raise _explained(self._member, error) from error
        return answered

    def _metadata(self) -> list[tuple[str, str]]:
        # Without it a member that lost its leader keeps a call until the deadline.
        metadata = [("hasleader", "true")]
        if self._token is not None:
            metadata.append(("token", self._token))
        return metadata

    async def _log_in(self) -> None:
        login = self._access.login
        if login is None:
            return
        self._token = None
        password = (await asyncio.to_thread(_read, login.password_file)).decode().rstrip("\r\n")
        request = rpc.AuthenticateRequest(name=login.user, password=password)
        try:
            answer = await self._call_once("Auth/Authenticate", request, rpc.AuthenticateResponse)
        except EtcdRefused as error:
            if "authentication is not enabled" in str(error):
                return
            raise
        self._token = answer.token


def prefix_end(prefix: bytes) -> bytes:
    """The `range_end` that makes a range of all keys with this prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def _compare(key: bytes, holds: bytes | None) -> rpc.Compare:
    if holds is None:
        return rpc.Compare(target=rpc.Compare.CREATE, key=key, create_revision=0)
    return rpc.Compare(target=rpc.Compare.VALUE, key=key, value=holds)


async def _channel(endpoint: str, tls: Tls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
    ca, key, cert = [
        None if path is None else await asyncio.to_thread(_read, path)
        for path in (tls.ca, tls.key, tls.cert)
    ]
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _is_unauthenticated(error: grpc.aio.AioRpcError) -> bool:
    # The second is what etcd says of a token that is older than its users.
    return error.code() is _CODE.UNAUTHENTICATED or (
        "revision of auth store is old" in (error.details() or "")
    )


# In this order: code, a part of the text, the class. Texts are those of etcd's rpctypes/error.go,
# and of grpc-go where a message is larger than what the server reads.
_CLASSES: tuple[tuple[grpc.StatusCode, str, type[EtcdError]], ...] = (
    (_CODE.INVALID_ARGUMENT, "too many operations", EtcdTooManyOps),
    (_CODE.INVALID_ARGUMENT, "request is too large", EtcdTooLarge),
    (_CODE.RESOURCE_EXHAUSTED, "larger than max", EtcdTooLarge),
    (_CODE.INVALID_ARGUMENT, "", EtcdRefused),
    (_CODE.PERMISSION_DENIED, "", EtcdRefused),
    (_CODE.FAILED_PRECONDITION, "authentication is not enabled", EtcdRefused),
    (_CODE.UNIMPLEMENTED, "", EtcdRefused),
)


def _explained(member: str, error: grpc.aio.AioRpcError) -> EtcdError:
    code, details = error.code(), error.details() or ""
    text = f"{member}: {details.removeprefix('etcdserver: ') or code.name}"
    if _is_unauthenticated(error):
        return EtcdUnauthenticated(text)
    for of, part, kind in _CLASSES:
        if code is of and part in details:
            return kind(text)
    return EtcdUnavailable(text)
