"""The state of each model's weights, the demands for absent models, and the rules that order idle models for eviction.

Plain data: it knows no request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Half-life of a use.
USES_HALF_S = 60.0


@dataclass(slots=True)
class ModelWeights:
    """A model and its weights. Only WeightResidency changes it; its states are explained there."""

    name: str
    number: int  # order of `add_weights`
    bytes: int
    pinned: bool
    on_device: bool
    loading: bool = False
    load_expected_s: float = 0.0  # predicted seconds of the load when it began
    leaving: bool = False  # on the device, to be evicted: no request joins
    load_failed: bool = False  # its load failed, and no request has been queued since
    resident_since: float = 0.0
    used_at: float = 0.0
    load_s: float = 0.0  # seconds of its last load, from host memory if possible; 0: unknown
    loads: int = 0
    cancelled_loads: int = 0  # loads cancelled for higher tiers since the model was last resident
    waiting_since: dict[int, float] = field(default_factory=dict)  # tier → since when its requests wait for the load
    busy_since: dict[int, float] = field(default_factory=dict)  # tier → since when it has had requests without a pause
    _uses: float = 0.0
    _counted_at: float = 0.0

    def note_use(self, now: float) -> None:
        """A request of the model was queued."""
        self._uses = self.recent_uses(now) + 1
        self._counted_at = self.used_at = now

    def recent_uses(self, now: float) -> float:
        """Requests so far; a request counts half after USES_HALF_S, a quarter after twice that, and so on."""
        return float(self._uses * 0.5 ** ((now - self._counted_at) / USES_HALF_S))


@dataclass(slots=True, frozen=True)
class WeightWait:
    """Seconds until a model's load begins, and seconds that the load takes."""

    until_load_s: float = 0.0
    load_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.until_load_s + self.load_s


@dataclass(slots=True)
class Eviction:
    """The models chosen to be evicted for a demand of tier `rank` for `model`."""

    model: str
    rank: int
    victims: list[str]
    began_at: float


@dataclass(slots=True, frozen=True, order=True)
class WeightDemand:
    """An absent model to be loaded. Sorts by urgency."""

    rank: int  # highest tier that waits for it
    waiting_since: float
    number: int
    model: str = field(compare=False)


# Value of keeping an idle model, by model and time: the lowest value is evicted first, among equals the least recently
# used.
EvictionValue = Callable[[ModelWeights, float], float]


def by_use(weights: ModelWeights, now: float) -> float:
    """Seconds of loading that each byte on the device is likely to save."""
    return weights.recent_uses(now) * (weights.load_s / max(1, weights.bytes) or 1.0)


def least_recently_used(weights: ModelWeights, now: float) -> float:
    return weights.used_at


EVICTION_VALUES: dict[str, EvictionValue] = {"use": by_use, "lru": least_recently_used}
