"""How many pages each tier may take: every tier has a floor of the arena, and may borrow what others do not use.

A tier leaves alone the unused floors of tiers that could not preempt it to get them back. It counts pages; it must
never know requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.arena import Arena
from engine.tiers import Tier


class Floors:
    """Tiers by rank, 0 first. The arena's holders are the tiers' names."""

    def __init__(self, tiers: Sequence[Tier], arena: Arena) -> None:
        self._arena = arena
        self._names = [tier.name for tier in tiers]
        self._preemptible = [tier.preemptible for tier in tiers]
        self._floors = [int(tier.floor * arena.pages) for tier in tiers]

    def capacity(self, tier: int) -> int:
        """Pages that it could have if nobody else had any."""
        others = (other for other in range(len(self._floors)) if other != tier and self._yields(tier, other))
        return self._arena.pages - sum(self._floors[other] for other in others)

    def over(self, tier: int) -> int:
        """Pages that it holds beyond its floor; negative: that its floor still owes it."""
        return self._arena.held(self._names[tier]) - self._floors[tier]

    def borrows(self, tier: int) -> bool:
        """It may be preempted for pages now."""
        return self._preemptible[tier] and self.over(tier) > 0

    def spare(self, tier: int, reclaim: bool = False) -> int:
        """Pages that it may take now; with `reclaim`, after preempting all that lower tiers borrow."""
        pages = self._arena.available()
        surplus = 0  # borrowed by tiers that the ones still to come could preempt instead
        for other in range(len(self._floors) - 1, -1, -1):
            if other == tier:
                continue
            over = self.over(other)
            if over < 0:
                if self._yields(tier, other):
                    pages -= max(0, -over - surplus)
                    surplus = max(0, surplus + over)
            elif self._preemptible[other]:
                if reclaim and other > tier:
                    pages += over
                else:
                    surplus += over
        return pages

    def _yields(self, tier: int, other: int) -> bool:
        """`tier` leaves `other` the rest of its floor, as `other` could not get it back by preempting."""
        return other > tier or not self._preemptible[tier]
