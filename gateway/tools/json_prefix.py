"""The whole members of a JSON object that was cut."""

from __future__ import annotations

import json
import re
from typing import Any

_CLOSES = {"{": "}", "[": "]"}
_MARK = re.compile(r'["\\{}\[\],]')


def complete_object(text: str) -> dict[str, Any]:
    """The object that `text` begins, without its last member where that is not whole; {} if there is none."""
    for cut, closing in reversed(_cuts(text)):
        try:
            value = json.loads(text[:cut] + closing)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _cuts(text: str) -> list[tuple[int, str]]:
    """Positions at which a value may be whole, each with the brackets that close it: behind a bracket and before a
    comma, outside of strings. Only the last 64 positions."""
    opened: list[str] = []
    cuts: list[tuple[int, str]] = []
    in_string = escaped_until = 0
    for match in _MARK.finditer(text):
        at, char = match.start(), match.group()
        if at < escaped_until:
            continue
        if in_string:
            if char == "\\":
                escaped_until = at + 2
            elif char == '"':
                in_string = 0
            continue
        if char == '"':
            in_string = 1
        elif char in "{[":
            opened.append(_CLOSES[char])
            cuts.append((at + 1, "".join(reversed(opened))))
        elif char in "}]":
            if not opened:
                break
            opened.pop()
            cuts.append((at + 1, "".join(reversed(opened))))
        elif char == ",":
            cuts.append((at, "".join(reversed(opened))))
        if len(cuts) > 64:
            del cuts[:-64]
    return cuts
