"""The control socket: where a running agent answers the commands of its own node.

HTTP on a Unix socket: `GET /v1/status` gives one JSON object, and so does all else that is asked
(GET, with a query) or ordered (POST, with a small JSON object). Two locks guard it, the file's mode
and the peer's user id, because a mode alone is lost as soon as somebody changes it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from aiohttp import web

from netreeve.errors import NetreeveError, NotPermitted
from netreeve.model.text import json_bytes

__all__ = ["ControlServer", "Handler", "Misunderstood"]

log = logging.getLogger(__name__)

MODE = 0o600
UCRED = struct.Struct("=iII")  # pid, uid, gid of struct ucred, <linux/socket.h>
LOCK_TRIES = 40
LOCK_PAUSE_S = 0.05
PROBE_TIMEOUT_S = 1.0
# The agent has five seconds from SIGTERM to its end; a client that dawdles gets one of them.
GOODBYE_S = 1.0
# Of the body of an order.
BODY_BYTES = 65536

Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Takes the members of the query or of the body. It must not trust them: Misunderstood."""


class Misunderstood(Exception):
    """A question or an order lacks a member, or one isn't as it should be: answered with 400."""


class ControlServer:
    """Serves `status()` on the Unix socket `path`, for root and for the agent's own user.

    `status` is called on the loop, for each request; it must not block. What it raises is logged
    and answered with 500. `questions` and `orders` are further handlers, by resource; what is no
    UTF-8 in a query arrives with surrogates.
    """

    def __init__(
        self,
        path: str,
        status: Callable[[], Mapping[str, Any]],
        *,
        questions: Mapping[str, Handler] | None = None,
        orders: Mapping[str, Handler] | None = None,
    ) -> None:
        self._path = path
        self._status = status
        self._questions = questions or {}
        self._orders = orders or {}
        self._runner: web.AppRunner | None = None
        self._server: asyncio.AbstractServer | None = None
        self._identity: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen. A socket that a dead agent left is replaced; directories are made as needed.

        Raises NotPermitted, or NetreeveError where a living agent has the socket, something else
        bears the name, or the path can't be used.
        """
        try:
            listener = await self._bind()
        except PermissionError as error:
            raise NotPermitted(f"{self._prefix()}: {error.strerror}") from error
        except OSError as error:
            raise NetreeveError(f"{self._prefix()}: {error}") from error
        app = web.Application(middlewares=[_own_user_only], client_max_size=BODY_BYTES)
        app.router.add_get("/v1/status", self._answer)
        for resource in self._questions:
            app.router.add_get(resource, self._ask)
        for resource in self._orders:
            app.router.add_post(resource, self._order)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=GOODBYE_S)
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None  # setup() made it
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(handler, sock=listener)
        log.info("control socket open", extra={"fields": {"path": self._path}})

    async def stop(self) -> None:
        """Close the connections and remove the socket, unless it is another's by now."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        with suppress(OSError):
            if self._identity is not None and _identity(self._path) == self._identity:
                os.unlink(self._path)
        self._identity = None

    def _prefix(self) -> str:
        return f"control socket {self._path} (NETREEVE_CONTROL_SOCKET)"

    async def _bind(self) -> socket.socket:
        directory = os.path.dirname(self._path)
        # Whoever may write to the directory can put another socket in the place of ours.
        os.makedirs(directory, mode=0o755, exist_ok=True)
        # Between "nobody lives here" and our own bind, a second agent may come to the same
        # conclusion and then remove the socket that we have just made. One at a time, then.
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            await self._lock(lock)
            self._clear()
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                # Linux makes the file with the socket's own mode, less the umask: it is never
                # wider than this, and the umask of the process, which is every thread's, stays.
                os.fchmod(listener.fileno(), MODE)
                listener.bind(self._path)
                self._identity = _identity(self._path)
                listener.listen()
            except BaseException:
                listener.close()
                raise
            return listener
        finally:
            os.close(lock)

    async def _lock(self, descriptor: int) -> None:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(LOCK_PAUSE_S)
            else:
                return
        raise NetreeveError(f"{self._prefix()}: another process holds a lock on its directory")

    def _clear(self) -> None:
        """Remove what a dead agent left at the path; refuse whatever else is there."""
        try:
            mode = os.lstat(self._path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise NetreeveError(
                f"{self._prefix()}: something that is no socket is there; remove it, or set the"
                " variable to another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            refused = probe.connect_ex(self._path)
        if refused == errno.ECONNREFUSED:
            os.unlink(self._path)
            log.info(
                "control socket of a dead agent removed", extra={"fields": {"path": self._path}}
            )
        elif refused in (errno.EACCES, errno.EPERM):
            raise PermissionError(refused, "it is there, and another user's")
        else:
            # Also EAGAIN: the backlog of one that is stopped is full, but it lives.
            raise NetreeveError(
                f"{self._prefix()}: an agent that runs already has it; stop that one, or set the"
                " variable to another path"
            )

    async def _answer(self, request: web.Request) -> web.Response:
        return _json(self._status())

    async def _ask(self, request: web.Request) -> web.Response:
        query = request.rel_url.raw_query_string
        given = dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))
        return await _handled(self._questions[request.path], given)

    async def _order(self, request: web.Request) -> web.Response:
        try:
            given = json.loads(await request.read())
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise web.HTTPBadRequest(text="the body is no JSON object")
        return await _handled(self._orders[request.path], given)


async def _handled(handler: Handler, given: Mapping[str, Any]) -> web.Response:
    try:
        return _json(await handler(given))
    except Misunderstood as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _json(answer: Mapping[str, Any]) -> web.Response:
    return web.Response(body=json_bytes(answer), content_type="application/json")


@web.middleware
async def _own_user_only(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer 403 to peers that are neither root nor the agent's user (SO_PEERCRED, unix(7))."""
    transport = request.transport
    if transport is None:
        raise web.HTTPForbidden
    peer = transport.get_extra_info("socket")
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
    pid, uid, _gid = UCRED.unpack(credentials)
    if uid not in (0, os.geteuid()):
        log.warning("control request refused", extra={"fields": {"uid": uid, "pid": pid}})
        raise web.HTTPForbidden
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("control request failed", extra={"fields": {"path": request.path}})
        raise web.HTTPInternalServerError from None


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
