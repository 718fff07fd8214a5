"""How long a step takes by its tokens, fitted while running: what prefill the strictest inter-token target leaves.

A straight line over recent steps. It must never look at a clock: the caller measures.
"""

from __future__ import annotations

# The weight of all earlier steps against the newest.
MEMORY = 0.95


class Pace:
    """seconds ≈ base + per_token · tokens, by least squares over exponentially fading steps."""

    def __init__(self) -> None:
        self.base_s = 0.0
        self.per_token_s = 0.0  # 0: nothing is known yet
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` took `seconds`."""
        self._weight = MEMORY * self._weight + 1
        self._x = MEMORY * self._x + tokens
        self._y = MEMORY * self._y + seconds
        self._xx = MEMORY * self._xx + tokens * tokens
        self._xy = MEMORY * self._xy + tokens * seconds
        x, y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - x * x
        # Steps that are all alike say nothing of the slope: the last one known stands.
        if spread > 0.01 * x * x:
            self.per_token_s = max(0.0, self._xy / self._weight - x * y) / spread
        self.base_s = max(0.0, y - self.per_token_s * x)

    def tokens_within(self, seconds: float, tokens_max: int) -> int:
        """The most tokens of a step that should take at most `seconds`; `tokens_max` while that is unknown."""
        if not self.per_token_s:
            return tokens_max
        return max(0, min(tokens_max, int((seconds - self.base_s) / self.per_token_s)))
