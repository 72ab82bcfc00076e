"""The steps that the link engine asks for: questions to the kernel, and changes of our links.

Each has `name`, the link that it is for ("" where it is for several), so that an answer finds its
object and a log line its subject; a request is never addressed by it, except where it says so.
What `LinkEngine.answer` takes as `result` stands beside each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from netreeve.model.link_spec import Value
from netreeve.model.prefix import LinkAddress

__all__ = [
    "AddrAdd",
    "AddrDelete",
    "AddrLook",
    "Create",
    "CreateTap",
    "Delete",
    "FindHolder",
    "GroupDelete",
    "GroupLook",
    "GroupSet",
    "Look",
    "LookIndex",
    "LookToken",
    "Properties",
    "Set",
    "Step",
    "Survey",
    "TokenAdd",
    "TokenRemove",
]

Properties: TypeAlias = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    reads: ClassVar[bool] = False  # changes nothing
    rank: ClassVar[int] = 0  # the order within a batch: what frees something goes first


@dataclass(frozen=True, slots=True)
class Look(_Step):
    """The link that answers to `name`, as its name or an alternative one. Result: LinkDetails,
    or None where there is none (errno 0 or ENODEV)."""

    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class LookToken(_Step):
    """The link that bears `token`. Result: as of `Look`."""

    token: str
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class LookIndex(_Step):
    """The link `ifindex`, which controls ours. Result: as of `Look`."""

    ifindex: int
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class FindHolder(_Step):
    """Who has these properties? Result: a list of LinkDetails, all links of IFLA_INFO_KIND
    `real_kind` for which each attribute equals; only those that aren't called `name`."""

    real_kind: str
    properties: Properties
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class AddrLook(_Step):
    """The addresses of the link `ifindex`, of both families; 0: of all links (`name` is "").
    Result: a list of AddrMessage. A dump that was interrupted is an error."""

    ifindex: int
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Survey(_Step):
    """All links of the namespace (`name` is ""). Result: a list of LinkDetails. A dump that was
    interrupted, or isn't whole, is an error."""

    number: int
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TokenRemove(_Step):
    """Take our token off whatever link bears it, by the token."""

    token: str
    rank: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Delete(_Step):
    """Delete the link that bears `token`."""

    token: str
    rank: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class GroupSet(_Step):
    """Put the link that bears `token` into the one-shot `group` of a bulk delete."""

    token: str
    group: int
    rank: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class GroupLook(_Step):
    """All links of the namespace, once more, to see who is in `group` (`name` is ""). Result and
    errors as of `Survey`."""

    group: int
    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GroupDelete(_Step):
    """Delete all links in `group`, which was just read back (`name` is "")."""

    group: int
    rank: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class TokenAdd(_Step):
    """Put `token` on the link `ifindex`; the one change by ifindex, and always looked at after."""

    ifindex: int
    token: str
    rank: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Set(_Step):
    """Change the link that bears `token`; None leaves a thing as it is, `controller` 0 releases it.

    Either `data` is given, the properties to change of a link of `real_kind`, or some of the rest.
    """

    token: str
    up: bool | None = None
    mtu: int | None = None
    mac: bytes | None = None
    controller: int | None = None
    real_kind: str = ""
    data: Properties = ()
    rank: ClassVar[int] = 5


@dataclass(frozen=True, slots=True)
class Create(_Step):
    """Make the link `name`, administratively up, CREATE|EXCL. Result: LinkDetails where the
    kernel echoed the new link, or None. `controller` is an ifindex, 0 = none."""

    real_kind: str
    properties: Properties
    mtu: int | None
    mac: bytes | None
    controller: int
    rank: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class CreateTap(_Step):
    """Make the persistent tap `name` through /dev/net/tun, exclusively (IFF_TUN_EXCL; where the
    kernel has no such flag, only if no link has the name). Result: None."""

    rank: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class AddrAdd(_Step):
    """Add `address` to the link `ifindex`, CREATE|EXCL, IFA_PROTO `protocol`."""

    ifindex: int
    address: LinkAddress
    protocol: int
    rank: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class AddrDelete(_Step):
    """Take `address` off the link `ifindex`."""

    ifindex: int
    address: LinkAddress
    rank: ClassVar[int] = 8


Step: TypeAlias = (
    Look
    | LookToken
    | LookIndex
    | FindHolder
    | AddrLook
    | Survey
    | TokenRemove
    | Delete
    | GroupSet
    | GroupLook
    | GroupDelete
    | TokenAdd
    | Set
    | Create
    | CreateTap
    | AddrAdd
    | AddrDelete
)
