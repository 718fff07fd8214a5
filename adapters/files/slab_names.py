"""The names of slab files in an adapter's directory."""

from __future__ import annotations

# Raise it with whatever changes the meaning of a slab's bytes, and all are made anew.
SLAB_FORMAT = 1


def slab_name(dtype: str) -> str:
    """The name of the slab file in an adapter's directory for an engine of that dtype."""
    return f"slab-{SLAB_FORMAT}.{dtype}"
