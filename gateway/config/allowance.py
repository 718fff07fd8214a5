"""How much one key or one tenant may do: requests and tokens a minute, and requests at once."""

from __future__ import annotations

import msgspec

LIMIT_MAX = 2**31  # of each of the three


class Allowance(msgspec.Struct, frozen=True):
    """What one key or tenant may do."""

    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int

    def divided(self, gateways: int) -> Allowance:
        """One gateway's part, at least 1 of each, when it cannot know what the others allow."""
        if gateways <= 1:
            return self
        return Allowance(*(max(1, limit // gateways) for limit in msgspec.structs.astuple(self)))
