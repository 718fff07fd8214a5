"""Checks texts of API callers that people later read in a terminal, a spreadsheet or a log.

A control character, a line end or a direction mark in a name could forge a row of a table, or control a terminal.
This module does not know which object a text names.
"""

from __future__ import annotations

from billing.errors import InvalidValue


def check_text(text: str, param: str, what: str, chars_max: int, *, chars_min: int = 1, lines: bool = False) -> None:
    """Check that `text` has `chars_min` to `chars_max` characters, all printable (`str.isprintable`: no control
    characters, direction marks, private use characters or lone surrogates). `lines` also allows line ends. `what`
    is the beginning of the error message ("a name is"). Raises InvalidValue."""
    shown = text.replace("\r\n", " ").replace("\n", " ") if lines else text
    if not chars_min <= len(text) <= chars_max or not shown.isprintable():
        count = f"{chars_min} to {chars_max}" if chars_min else f"at most {chars_max}"
        raise InvalidValue(f"{what} {count} printable characters{' and line ends' if lines else ''}", param)


def visible(text: str) -> str:
    """`text` with each character that is not printable written as an escape: \\x1b, \\n, \\u202e."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
