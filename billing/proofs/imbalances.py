"""The violation of an equality, as the proofs return it."""

from __future__ import annotations

import msgspec

FINDINGS_MAX = 100  # violations that a proof returns, and a result lists


class Imbalance(msgspec.Struct, frozen=True):
    """Two amounts that should be equal. `what` names the equality, and so their unit: tokens, requests, rows or picos.
    `where` names the row or group of rows."""

    what: str
    where: str
    expected: int
    found: int
