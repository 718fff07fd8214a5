"""The changes that applying a state file makes, as a readable diff."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Fields = dict[str, Any]


class StateChange(msgspec.Struct, frozen=True):
    """One object that is made (`add`), changed or ended (`remove`). `fields`: each changed field before and after;
    for a new object, each field that is set."""

    action: Literal["add", "change", "remove"]
    kind: str
    name: str
    fields: dict[str, tuple[Any, Any]]


class NewSecret(msgspec.Struct, frozen=True):
    """A key that was made, with its secret."""

    tenant: str
    name: str
    key_id: str
    key: str


_MARKS = {"add": "+", "change": "~", "remove": "-"}


def difference(before: Fields, after: Fields) -> dict[str, tuple[Any, Any]]:
    """The fields of `after` whose values differ from `before`."""
    return {name: (before.get(name), value) for name, value in after.items() if before.get(name) != value}


def lines_of(change: StateChange) -> list[str]:
    """The lines of one change, such as `~ tenant acme` and `    tier: batch → premium`."""
    lines = [f"{_MARKS[change.action]} {change.kind} {change.name}"]
    for name, (before, after) in change.fields.items():
        was = "" if change.action == "add" else f"{_text(before)} → "
        lines.append(f"    {name}: {was}{_text(after)}")
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
