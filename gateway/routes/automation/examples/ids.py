"""Ids, names and moments that the examples share, so that they describe one tenant and one month."""

from __future__ import annotations

_HEX = "0123456789abcdef0123456789abcdef"
TENANT, PROJECT, KEY, PERSON = f"ten_{_HEX}", f"prj_{_HEX}", f"key_{_HEX}", f"psn_{_HEX}"
BUDGET, PRICE, PERIOD, INVOICE, CORRECTION = f"bud_{_HEX}", f"prv_{_HEX}", f"per_{_HEX}", f"inv_{_HEX}", f"cor_{_HEX}"
ADAPTER, WEBHOOK, GATEWAY, REQUEST, BATCH = f"ada_{_HEX}", f"whk_{_HEX}", f"gw_{_HEX}", f"req_{_HEX}", f"batch_{_HEX}"
FILE, OUTPUT_FILE = f"file-{_HEX}", "file-fedcba9876543210fedcba9876543210"
MODEL = "my-model"
DIGEST = _HEX * 2
TRACE = _HEX

# Unix seconds. The month is January 2026 in Europe/Berlin.
MADE_AT = 1767225600  # 2026-01-01T00:00:00Z
MONTH_BEGIN, MONTH_END = 1767222000, 1769900400
CLOSED_AT = 1769904000
EURO = 1_000_000_000_000  # picos


def with_prefix(prefix: str) -> str:
    """An id of another kind of object."""
    return f"{prefix}_{_HEX}"
