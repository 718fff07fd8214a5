"""What is known of each model and its weights, of who asks for them, and the rules by which idle ones compare.

Plain data. It must never know a request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# A use counts half after so long.
USES_HALF_S = 60.0


@dataclass(slots=True)
class ModelWeights:
    """A model and its weights. For watchers; only Hosting changes it."""

    name: str
    number: int  # in the order in which they were added
    bytes: int
    pinned: bool
    on_device: bool
    coming: bool = False
    coming_s: float = 0.0  # what it was to take when it began to come
    leaving: bool = False  # it makes room for another: nobody joins
    failed: bool = False  # it could not come, and nobody has asked since
    came_at: float = 0.0
    used_at: float = 0.0
    load_s: float = 0.0  # what it takes to come again; 0: unknown
    loads: int = 0
    given_up: int = 0  # loads, for higher tiers, since it was last there
    since: dict[int, float] = field(default_factory=dict)  # by tier, since when requests wait for it to come
    busy: dict[int, float] = field(default_factory=dict)  # by tier, since when it has had requests without a pause
    _uses: float = 0.0
    _counted_at: float = 0.0

    def use(self, now: float) -> None:
        """A request asks for it."""
        self._uses = self.uses(now) + 1
        self._counted_at = self.used_at = now

    def uses(self, now: float) -> float:
        """Requests, those of long ago counting less."""
        return float(self._uses * 0.5 ** ((now - self._counted_at) / USES_HALF_S))


@dataclass(slots=True, frozen=True)
class WeightWait:
    """Until a model's weights could be on the device: until they begin to come, and while they do."""

    before_s: float = 0.0
    load_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.before_s + self.load_s


@dataclass(slots=True)
class Eviction:
    """What is made for a model, by a request of `rank`: who goes, decided once."""

    model: str
    rank: int
    victims: list[str]
    since: float


@dataclass(slots=True, frozen=True, order=True)
class WeightDemand:
    """A model that is wanted on the device; sorted, who comes first."""

    rank: int  # of the best tier that waits for it
    since: float
    number: int
    model: str = field(compare=False)


# What an idle model is worth now: who is worth least goes first, of equals who was used longest ago.
EvictionValue = Callable[[ModelWeights, float], float]


def by_use(hosted: ModelWeights, now: float) -> float:
    """Seconds of loading that each of its bytes is likely to save."""
    return hosted.uses(now) * (hosted.load_s / max(1, hosted.bytes) or 1.0)


def least_recently_used(hosted: ModelWeights, now: float) -> float:
    return hosted.used_at


EVICTION_VALUES: dict[str, EvictionValue] = {"use": by_use, "lru": least_recently_used}
