"""Identifiers of rows: a prefix for the kind of row, and 128 random bits."""

from __future__ import annotations

import uuid


def new_id(prefix: str) -> str:
    """For example `ten_5f0c…`."""
    return f"{prefix}_{uuid.uuid4().hex}"
