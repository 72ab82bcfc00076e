"""What `plan`, `apply` and `cleanup` print of changes, for people and for programs."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from netreeve.cli import terminal
from netreeve.model.text import safe

if TYPE_CHECKING:
    from netreeve.dataplane import Wrong
    from netreeve.model.route import Conflict
    from netreeve.oneshot import Preview, RouteChange

__all__ = ["as_json", "as_text", "ask", "deletes", "is_interactive", "value", "wrong_lines"]

INDENT = 14

SIGNS: dict[str, tuple[str, terminal.Colour | None]] = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "recreate": ("-/+", "yellow"),
    "adopt": ("=", None),
    "delete": ("-", "red"),
    "add": ("+", "green"),
    "move": ("~", "yellow"),
    "conflict": ("!", "red"),
    "held back": (".", "yellow"),
}


def as_json(preview: Preview) -> dict[str, Any]:
    """`plan --json` (product.md, and docs/reference/commands.md for `routes`)."""
    return {
        "changes": [dataclasses.asdict(each) for each in preview.changes],
        "routes": [_route(each) for each in preview.routes],
        "conflicts": [
            *(dataclasses.asdict(each) for each in preview.conflicts),
            *map(_route_conflict, preview.route_conflicts),
        ],
        "foreign": [dataclasses.asdict(each) for each in preview.foreign],
        "held_back": [dataclasses.asdict(each) for each in preview.held_back],
    }


def as_text(preview: Preview, screen: terminal.Terminal) -> Iterator[str]:
    """The same for people: changes first, a line of numbers last."""
    for change in preview.changes:
        about = change.object if " " in change.object else f"a {change.object} of ours, not planned"
        number = f" ({change.ifindex})" if change.ifindex else ""
        yield _line(change.action, change.action, f"{change.name}{number}", about, screen)
        for name, field in change.fields.items():
            yield _field(name, field)
    for each in preview.routes:
        way = each.interface or f"ifindex {each.ifindex}"
        text = f"{each.key} dev {way} table {each.key.table}"
        about = f"endpoint {each.endpoint}" if each.endpoint else "a route of ours, not planned"
        yield _line(each.action, "route", text, about, screen)
    conflicts = as_json(preview)["conflicts"]
    for conflict in conflicts:
        about = f"{conflict['object']}: {conflict['reason']}"
        yield _line("conflict", "conflict", conflict["name"], about, screen)
    for held in preview.held_back:
        yield _line("held back", "held back", held.name, held.reason, screen)
    names = ", ".join(safe(link.name) for link in preview.foreign)
    if names:
        yield f"foreign, left alone: {len(preview.foreign)} ({names})"
    yield _summary(preview, len(conflicts))


def deletes(preview: Preview) -> list[str]:
    """The names of links that would be deleted, or made anew."""
    return [each.name for each in preview.changes if each.action in ("delete", "recreate")]


def wrong_lines(wrong: Iterable[Wrong | Mapping[str, Any]]) -> Iterator[str]:
    """What isn't right, one a line."""
    for each in wrong:
        found = each if isinstance(each, Mapping) else dataclasses.asdict(each)
        name, about = safe(str(found["name"])), safe(str(found["object"]))
        yield f"{name} ({about}): {found['state']}: {safe(str(found['reason']))}"


def ask(question: str) -> bool:
    """Ask on the terminal; anything but a yes is a no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def is_interactive() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _line(action: str, word: str, what: str, about: str, screen: terminal.Terminal) -> str:
    sign, colour = SIGNS[action]
    head = screen.paint(f"{sign:>3} {word:<9}", colour)
    return f"{head} {safe(what)}  {screen.wrap(safe(about), INDENT)}"


def _field(name: str, field: Mapping[str, Any]) -> str:
    observed, wanted = value(field["observed"]), value(field["wanted"])
    before = f"{observed} → " if field["observed"] not in (None, []) else ""
    return f"{'':{INDENT}}{name}: {before}{wanted}"


def value(given: object) -> str:
    """A value of a field as people write it."""
    if given is None:
        return "none"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, list):
        return ", ".join(map(value, given)) or "none"
    if isinstance(given, Mapping) and "address" in given:
        return f"{given['address']}{' (ours)' if given['ours'] else ''}"
    return safe(str(given))


def _route(each: RouteChange) -> dict[str, Any]:
    return {
        "action": each.action,
        "endpoint": each.endpoint,
        "prefix": str(each.key),
        "table": each.key.table,
        "metric": each.key.metric,
        "interface": each.interface or None,
        "ifindex": each.ifindex,
    }


def _route_conflict(each: Conflict) -> dict[str, Any]:
    from netreeve.model.route import protocol_text

    return {
        "object": f"endpoint {each.endpoint}",
        "name": str(each.key),
        "holder": f"protocol {protocol_text(each.protocol)}",
        "reason": each.reason,
    }


def _routes(count: int) -> str:
    return f"{count} route" if count == 1 else f"{count} routes"


def _summary(preview: Preview, conflicts: int) -> str:
    counts: Counter[str] = Counter(each.action for each in preview.changes)
    parts = [f"{counts[action]} to {action}" for action in SIGNS if counts[action]]
    routes = Counter(each.action for each in preview.routes)
    parts += [f"{_routes(routes[action])} to {action}" for action in SIGNS if routes[action]]
    if conflicts:
        parts.append(f"{conflicts} in conflict")
    if preview.held_back:
        parts.append(f"{len(preview.held_back)} held back")
    if preview.empty:
        parts.insert(0, "nothing to do")
    return ", ".join(parts)
