"""What a view of all links says that a look at one can't."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netreeve.reconcile.subject import Holder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from netreeve._ext.details import LinkDetails
    from netreeve.reconcile.subject import Subject

__all__ = ["blast"]


def blast(
    condemned: Iterable[Subject],
    links: Iterable[LinkDetails],
    is_owned: Callable[[LinkDetails], bool],
) -> dict[int, Holder]:
    """By ifindex of the condemned: somebody else's link that would go with it, or be cut off.

    A link on top of one (a macvlan) is deleted with it; a port of a bridge or a VRF loses its
    controller. Those of ours don't count: the plan says what becomes of them.
    """
    indexes = {subject.seen.ifindex for subject in condemned if subject.seen is not None}
    found: dict[int, Holder] = {}
    for link in links:
        if link.controller in indexes and not is_owned(link):
            reason = f"{link.name} ({link.kind or 'no kind'}), which isn't ours, is a member of it"
            found.setdefault(link.controller, Holder(link.ifindex, link.name, reason))
        if link.lower in indexes and not link.remote_lower and not is_owned(link):
            reason = f"{link.name} ({link.kind or 'no kind'}), which isn't ours, would go with it"
            found[link.lower] = Holder(link.ifindex, link.name, reason)
    return found
