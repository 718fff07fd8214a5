"""Rendezvous hashing: each key ranks all engines in its own order, which every gateway computes alike. The removal of
an engine moves only the keys that ranked it first.

The weights need to be spread evenly, not to withstand an attack: two hashes are multiplied, modulo 2⁶⁴.
"""

from __future__ import annotations

import hashlib

WORD = (1 << 64) - 1


def key_hash(key: str | bytes) -> int:
    """64 bits, of which the last is set, for `rendezvous_weight`."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") | 1


def rendezvous_weight(engine: int, key: int) -> int:
    """The engine with the greatest weight is the key's first. Both arguments are hashes of `key_hash`."""
    return engine * key & WORD
