"""How much of a shared resource, pages or sequence slots, each tier may take. Every tier has a floor, and may borrow
units that other tiers do not use.

A tier does not borrow the unused floor of a tier that could not preempt it to get the units back. This module counts;
it knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.protocol.tiers import Tier


class Floors:
    """Tiers by rank, 0 first, over `total` units. `held(rank)`: units that a tier holds; `available()`: units that no
    tier holds."""

    def __init__(
        self, tiers: Sequence[Tier], total: int, held: Callable[[int], int], available: Callable[[], int]
    ) -> None:
        self._total = total
        self._held = held
        self._available = available
        self._preemptible = [tier.preemptible for tier in tiers]
        self._floors = [int(tier.floor * total) for tier in tiers]
        self._capacity = [total - self._yielded(rank) for rank in range(len(tiers))]

    def floor(self, tier: int) -> int:
        return self._floors[tier]

    def capacity(self, tier: int) -> int:
        """Units that the tier could hold if no other tier held any."""
        return self._capacity[tier]

    def below_capacity(self, tier: int) -> int:
        """Units that the tier may take within its capacity. This matters where tiers hold units in common: `spare`
        counts a common unit in the other tier's floor, but once the other tier releases it, its floor needs another
        unit."""
        return self._capacity[tier] - self._held(tier)

    def over(self, tier: int) -> int:
        """Units held beyond the floor; negative: units that the floor still guarantees."""
        return self._held(tier) - self._floors[tier]

    def borrows(self, tier: int) -> bool:
        """The tier's requests may be preempted for these units now."""
        return self._preemptible[tier] and self.over(tier) > 0

    def spare(self, tier: int, reclaim: bool = False) -> int:
        """Units that the tier may take now; with `reclaim`: after preempting all that lower tiers borrow."""
        units = self._available()
        surplus = 0  # borrowed units that the remaining, higher tiers could preempt instead
        for other in range(len(self._floors) - 1, -1, -1):
            if other == tier:
                continue
            over = self.over(other)
            if over < 0:
                if self._yields(tier, other):
                    units -= max(0, -over - surplus)
                    surplus = max(0, surplus + over)
            elif self._preemptible[other]:
                if reclaim and other > tier:
                    units += over
                else:
                    surplus += over
        return units

    def unpromised(self) -> int:
        """Free units beyond the units that all floors still guarantee: they can be allocated permanently."""
        return self._available() - sum(max(0, -self.over(tier)) for tier in range(len(self._floors)))

    def _yielded(self, tier: int) -> int:
        others = (other for other in range(len(self._floors)) if other != tier and self._yields(tier, other))
        return sum(self._floors[other] for other in others)

    def _yields(self, tier: int, other: int) -> bool:
        """`tier` leaves `other` the rest of its floor, as `other` could not preempt `tier` to get it back."""
        return other > tier or not self._preemptible[tier]
