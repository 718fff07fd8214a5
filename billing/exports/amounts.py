"""Exact text of amounts and moments as exports have them, and cells that no spreadsheet computes."""

from __future__ import annotations

import functools
import re

from billing.clock import SECOND, to_datetime
from billing.prices import PICOS_PER_UNIT

# What makes a spreadsheet take a cell for a formula.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile(r'[",\r\n]')


def decimal_text(picos: int) -> str:
    """Picos as exact units of the currency: 12000000 is 0.000012."""
    whole, rest = divmod(abs(picos), PICOS_PER_UNIT)
    text = f"{whole}.{rest:012d}".rstrip("0").rstrip(".") if rest else str(whole)
    return f"-{text}" if picos < 0 else text


def moment_text(micros: int) -> str:
    """`2026-01-31T00:00:00Z`."""
    return to_datetime(micros).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_moment_text(micros: int) -> str:
    """`2026-01-31T00:00:00.000001Z`."""
    minute, rest = divmod(micros, 60 * SECOND)
    return f"{_minute_text(minute)}:{rest // SECOND:02d}.{rest % SECOND:06d}Z"


@functools.lru_cache(maxsize=4096)
def _minute_text(minute: int) -> str:
    """Moments come in order: most are of a minute that was just asked for, and making its text takes long."""
    return to_datetime(minute * 60 * SECOND).strftime("%Y-%m-%dT%H:%M")


def safe(text: str) -> str:
    """As it is, or behind an apostrophe where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_cell(text: str | None) -> str:
    """Quoted where it must be (RFC 4180); null is nothing at all, so an empty string is quoted."""
    if text is None:
        return ""
    cell = safe(text)
    if cell and not _SPECIAL.search(cell):
        return cell
    return '"' + cell.replace('"', '""') + '"'
