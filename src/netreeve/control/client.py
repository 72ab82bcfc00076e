"""What a command asks the running agent, over its control socket."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from netreeve.errors import NetreeveError, NotPermitted

__all__ = ["NoAgent", "get", "post"]

TIMEOUT_S = 5.0
REMEDY = (
    "start it with `netreeve run`, or set NETREEVE_CONTROL_SOCKET to the path that it was given"
)


class _Connection(http.client.HTTPConnection):
    """HTTP over the Unix socket `path`. Each single wait for the agent is bounded by `timeout`."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


class NoAgent(NetreeveError):
    """There is no control socket, or nobody listens on it."""


def get(
    path: str | None,
    resource: str,
    timeout_s: float = TIMEOUT_S,
    query: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON object that the agent on the socket `path` gives for `resource` ("/v1/status").

    `path` is the setting CONTROL_SOCKET; None means that there is none. Raises NotPermitted where
    the socket isn't ours to use, NoAgent where no agent answers, NetreeveError where it doesn't
    answer as expected; the text says what to do.
    """
    if query:
        resource = f"{resource}?{urlencode(query, errors='surrogateescape')}"
    return _request(path, "GET", resource, None, timeout_s)


def post(
    path: str | None, resource: str, order: Mapping[str, Any], timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """The same for an order, with a JSON object of what is wanted."""
    return _request(path, "POST", resource, json.dumps(dict(order)).encode(), timeout_s)


def _request(
    path: str | None, method: str, resource: str, body: bytes | None, timeout_s: float
) -> dict[str, Any]:
    if path is None:
        raise NoAgent(
            "NETREEVE_CONTROL_SOCKET is empty, so there is no control socket to ask the agent on"
        )
    connection = _Connection(path, timeout_s)
    try:
        connection.request(method, resource, body)
        response = connection.getresponse()
        body = response.read()
    except (FileNotFoundError, NotADirectoryError):
        raise NoAgent(f"no agent: there is no control socket {path}; {REMEDY}") from None
    except ConnectionRefusedError:
        raise NoAgent(f"no agent answers on the control socket {path}; {REMEDY}") from None
    except PermissionError:
        raise _denied(path) from None
    except TimeoutError:
        raise NetreeveError(
            f"the agent on {path} did not answer within {timeout_s:g} seconds: it is stopped or"
            " overloaded"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise NetreeveError(f"the control socket {path} failed: {error!r}") from error
    finally:
        connection.close()
    if response.status == http.client.FORBIDDEN:
        raise _denied(path)
    if response.status != http.client.OK:
        raise NetreeveError(
            f"the agent on {path} answered {response.status} {response.reason} to {resource}"
        )
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NetreeveError(f"the agent on {path} gave no JSON object for {resource}")
    return answer


def _denied(path: str) -> NotPermitted:
    return NotPermitted(
        f"no permission to use the control socket {path}: run this as root, or as the user that"
        " runs the agent"
    )
