"""The rate limits of one key or tenant: requests and tokens per minute, and concurrent requests."""

from __future__ import annotations

import msgspec

LIMIT_MAX = 2**31  # the largest value of each limit


class Allowance(msgspec.Struct, frozen=True):
    requests_per_minute: int
    tokens_per_minute: int
    concurrency: int

    def divided(self, gateways: int) -> Allowance:
        """The part that each of `gateways` gateways enforces when they do not share limits through Redis; each limit is
        at least 1."""
        if gateways <= 1:
            return self
        return Allowance(*(max(1, limit // gateways) for limit in msgspec.structs.astuple(self)))
