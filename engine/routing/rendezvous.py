"""Rendezvous hashing: each key ranks all engines in an order of its own, which every gateway computes alike. An engine
that leaves moves only the keys that had it first.

The weights need to be spread evenly, not to withstand an attack: an engine's 64-bit hash is mixed with the key's.
"""

from __future__ import annotations

import hashlib

_WORD = (1 << 64) - 1
_MULTIPLIER = 0xD6E8FEB86659FD93  # odd, of a published 64-bit mixer (rrmxmx)


def key_hash(key: str | bytes) -> int:
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def rendezvous_weight(engine: int, key: int) -> int:
    """The engine with the greatest weight is the key's first. Both arguments are hashes of `key_hash`."""
    mixed = ((engine ^ key) * _MULTIPLIER) & _WORD
    return ((mixed ^ (mixed >> 32)) * _MULTIPLIER) & _WORD
