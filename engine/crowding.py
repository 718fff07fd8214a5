"""Which shares of a tier were served far more than others lately, whatever their counters say: those that crowd it.

The counters of fairness (queues.py) say who is next among those that wait; a pause lifts them, so that where nobody
waits for long they tell no share from another. It must never know requests, nor what is done about a share that crowds.
"""

from __future__ import annotations

# What was served so long ago counts half.
HALF_LIFE_S = 30.0
# Over so many times what shares have on average, a share crowds …
FACTOR = 2.0
# … where a share counts that has at least this part of what all have.
PART_MIN = 0.01
# How often that is found out; shares of which less than a token is left are forgotten then.
EVERY_S = 1.0


class Crowding:
    def __init__(self) -> None:
        self._recent: dict[str, float] = {}  # share → tokens of prefill, as of `_as_of`
        self._as_of = 0.0
        self._shares: frozenset[str] = frozenset()

    def serve(self, share: str, tokens: float) -> None:
        self._recent[share] = self._recent.get(share, 0.0) + tokens

    def shares(self, now: float) -> frozenset[str]:
        """Those that crowd; the same object as before while they are the same."""
        if now - self._as_of >= EVERY_S:
            fading = 0.5 ** ((now - self._as_of) / HALF_LIFE_S)
            self._recent = {share: left for share, had in self._recent.items() if (left := had * fading) >= 1}
            self._as_of = now
            total = sum(self._recent.values())
            active = sum(tokens >= PART_MIN * total for tokens in self._recent.values())
            limit = FACTOR * total / max(1, active)
            found = frozenset(share for share, tokens in self._recent.items() if tokens > limit)
            if found != self._shares:
                self._shares = found
        return self._shares
