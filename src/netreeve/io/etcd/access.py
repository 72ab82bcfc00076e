"""Where etcd is and how to get in, as settings say it. Nothing is opened or read here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from netreeve.model.quote import quoted

__all__ = ["Access", "Login", "Tls", "endpoints"]

_ENDPOINT = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Login:
    """The password's file is read at each login, so that it may be changed."""

    user: str
    password_file: str


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files, read at each connection. `cert` and `key` are the client's, both or neither."""

    ca: str
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What all etcd URLs of one agent share. Without `tls` connections are in the clear."""

    login: Login | None = None
    tls: Tls | None = None


def endpoints(text: str) -> tuple[str, ...]:
    """The members in `HOST:PORT,HOST:PORT`, in order; ValueError says what is wrong.

    A host is a name, an IPv4 address, or an IPv6 address in brackets.
    """
    found = tuple(text.split(","))
    for endpoint in found:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError(f"{quoted(endpoint)} is no HOST:PORT")
        if found.count(endpoint) > 1:
            raise ValueError(f"{quoted(endpoint)} is there twice")
    return found
