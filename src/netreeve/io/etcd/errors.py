"""What a call to etcd can end with, besides an answer.

There are two classes, because callers must do one of two things.
"""

from __future__ import annotations

from netreeve.errors import NetreeveError

__all__ = ["EtcdError", "EtcdRefused", "EtcdTooLarge", "EtcdTooManyOps", "EtcdUnavailable"]


class EtcdError(NetreeveError):
    """A call failed; the text names the member and what it said."""


class EtcdUnavailable(EtcdError):
    """No answer, or none that settles anything.

    A request that changes something may or may not have been, or may yet be, carried out. The
    connection is of no more use: connect again, which tries the next member.
    """


class EtcdRefused(EtcdError):
    """etcd has looked at this request and won't do it, now or later. Nothing was done."""


class EtcdTooManyOps(EtcdRefused):
    """More operations than this etcd takes in a transaction (--max-txn-ops)."""


class EtcdTooLarge(EtcdRefused):
    """More bytes than this etcd takes in a request (--max-request-bytes)."""
