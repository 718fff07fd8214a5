"""Exact text of amounts and moments in exports, and CSV cells that spreadsheets do not read as formulas."""

from __future__ import annotations

import functools
import json
import re
import unicodedata

from billing.clock import DAY, SECOND, to_datetime

PLACES = 12  # a pico is 10⁻¹² of a unit
# First characters that make spreadsheets read a cell as a formula; some accept the full-width signs too.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
# A semicolon or a tab separates cells in spreadsheets of some locales (German, French).
_SPECIAL = re.compile(r'[",;\t\r\n]')


def decimal_text(picos: int) -> str:
    """Picos as a decimal number of currency units, exact: 12000000 is "0.000012"."""
    if picos < 0:
        return "-" + decimal_text(-picos)
    digits = "%013d" % picos  # noqa: UP031 - faster
    rest = digits[-PLACES:].rstrip("0")
    return f"{digits[:-PLACES]}.{rest}" if rest else digits[:-PLACES]


def pointed_text(picos: int) -> str:
    """`decimal_text` with a point in each number: readers that guess types take a column of "5" for integers."""
    text = decimal_text(picos)
    return text if "." in text else f"{text}.0"


def ascii_text(text: str) -> str:
    """`text` with \\uXXXX, as in JSON, for each character that is not ASCII. FOCUS's validator refuses them."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def moment_text(micros: int) -> str:
    """`2026-01-31T00:00:00Z`."""
    return to_datetime(micros).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_moment_text(micros: int) -> str:
    """`2026-01-31T00:00:00.000001Z`."""
    day, rest = divmod(micros, DAY)
    second, rest = divmod(rest, SECOND)
    minute, second = divmod(second, 60)
    return "%s%02d:%02d:%02d.%06dZ" % (_day_text(day), minute // 60, minute % 60, second, rest)  # noqa: UP031 - faster


@functools.lru_cache(maxsize=4096)
def _day_text(day: int) -> str:
    """Cached, because formatting is slow and an export has few days."""
    return to_datetime(day * DAY).strftime("%Y-%m-%dT")


def safe(text: str) -> str:
    """`text` without control characters, line ends and direction marks, and with an apostrophe before it if a
    spreadsheet would read it as a formula."""
    if not text.isprintable():
        text = "".join(char for char in text if not _is_control(char))
    return f"'{text}" if text.startswith(FORMULA) else text


def _is_control(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "C" or category in ("Zl", "Zp")


def csv_cell(text: str | None) -> str:
    """A cell, quoted where RFC 4180 requires it. Null is an empty cell, so an empty string is written as two quotes."""
    if text is None:
        return ""
    cell = safe(text)
    if cell and not _SPECIAL.search(cell):
        return cell
    return '"' + cell.replace('"', '""') + '"'
