"""Finds the shares that crowd a tier: shares that were recently served far more than its other shares.

The counters of fairness (queues.py) order the waiting requests. A pause lifts them, so where queues are short they do
not tell shares apart. This module knows no requests, and not how a crowding share is limited. Decision 0005 has
measurements.
"""

from __future__ import annotations

# Half-life of served tokens.
HALF_LIFE_S = 30.0
# A share crowds its tier if it was served over FACTOR times the mean of the tier's shares …
FACTOR = 2.0
# … or over this part of the total, where so few shares have requests that none can have FACTOR times the mean.
PART_MAX = 0.9
# A share with a request counts with at least REQUEST_TOKENS, even if it was never served. So it is known for one
# half-life after its last request.
REQUEST_TOKENS = 1.0
# A share crowds heavily if it also crowds when only shares with at least this part of the total are counted.
PART_MIN = 0.01
# A share with fewer tokens left is forgotten.
TOKENS_KEPT = 0.5
# Seconds between counts: EVERY_S, or NEW_SHARE_S after a request of a share that was not known at the last count.
EVERY_S = 1.0
NEW_SHARE_S = 0.05
NO_SHARES: frozenset[str] = frozenset()


class Crowding:
    def __init__(self, tokens_min: float = 0.0) -> None:
        """`tokens_min`: a share that was recently served fewer weighted tokens crowds only if it crowds heavily."""
        self._tokens_min = tokens_min
        self._recent: dict[str, float] = {}  # share → weighted tokens served, as of `_as_of`
        self._as_of = 0.0
        self._new = False  # a share that was not known at `_as_of` had a request
        self._shares = NO_SHARES
        self._heavy = NO_SHARES

    def note_request(self, share: str) -> None:
        """A request of the share was queued."""
        self._new |= share not in self._recent
        self._recent[share] = max(self._recent.get(share, 0.0), REQUEST_TOKENS)

    def note_served(self, share: str, tokens: float) -> None:
        self._recent[share] = self._recent.get(share, 0.0) + tokens

    def known_shares(self) -> list[str]:
        return list(self._recent)

    def due(self, now: float) -> bool:
        """The next call of `shares` counts again: call `note_served` with all tokens served until `now` first."""
        early = self._new and max(self._recent.values()) >= self._tokens_min
        return now - self._as_of >= (NEW_SHARE_S if early else EVERY_S)

    def shares(self, now: float) -> frozenset[str]:
        """The shares that crowd. Returns the same object while they are unchanged."""
        if self.due(now):
            self._count_shares(now)
        return self._shares

    def heavy(self, now: float) -> frozenset[str]:
        """The shares that crowd heavily, a subset of `shares`."""
        if self.due(now):
            self._count_shares(now)
        return self._heavy

    def _count_shares(self, now: float) -> None:
        fading = 0.5 ** ((now - self._as_of) / HALF_LIFE_S)
        self._recent = {share: left for share, had in self._recent.items() if (left := had * fading) >= TOKENS_KEPT}
        self._as_of, self._new = now, False
        total = sum(self._recent.values())
        sizeable = sum(tokens > REQUEST_TOKENS and tokens >= PART_MIN * total for tokens in self._recent.values())
        heavy_limit = FACTOR * total / max(1, sizeable)
        limit = total * min(FACTOR / max(1, len(self._recent)), PART_MAX)
        if len(self._recent) > 1:
            limit = min(heavy_limit, max(limit, self._tokens_min))
            shares = frozenset(share for share, tokens in self._recent.items() if tokens > limit)
        else:
            shares = NO_SHARES
        if shares != self._shares:
            self._shares = shares
        self._heavy = frozenset(share for share in shares if self._recent[share] > heavy_limit)
