"""How the gateways of a simulated fleet choose an engine: the product's router, and simpler ways to compare it with."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Container, Sequence

from engine.protocol.frames import ModelInfo, PagesChanged
from engine.protocol.snapshot_parts import EngineLoad
from engine.routing.engine_state import Placement
from engine.routing.rendezvous import key_hash, rendezvous_weight
from engine.routing.router import EngineRouter, RoutableRequest
from engine.simulate.conversations import FleetText

# Engines that a gateway's ranking has at least.
RANKED = 4


class RoutingPolicy:
    """One gateway's choice. The base class knows which engines are there, and chooses the first."""

    def __init__(self, tiers: Sequence[str], models: dict[str, ModelInfo], draws: random.Random) -> None:
        self.engines: list[str] = []
        self._draws = draws

    def set_engine(self, name: str) -> None:
        self.engines.append(name)

    def remove_engine(self, name: str) -> None:
        self.engines.remove(name)

    def note_load(self, name: str, load: EngineLoad, unfinished: int, now: float) -> None:
        """A heartbeat. `unfinished`: requests that run or wait on the engine."""

    def note_pages(self, name: str, frame: PagesChanged) -> None:
        """A frame of page news."""

    def choose_engine(self, text: FleetText, now: float, exclude: Container[str]) -> str | None:
        """None: no engine is left. The text is then submitted to the engine."""
        left = [name for name in self.engines if name not in exclude]
        return self._choose(left, text) if left else None

    def note_first_output(self, name: str, text: FleetText) -> None:
        """The text's first token on this engine arrived."""

    def note_text_ended(self, name: str, text: FleetText) -> None:
        """The text left the engine: it is complete, was refused or is moved."""

    def _choose(self, left: list[str], text: FleetText) -> str:
        return left[0]


class RandomPolicy(RoutingPolicy):
    def _choose(self, left: list[str], text: FleetText) -> str:
        return self._draws.choice(left)


class RoundRobinPolicy(RoutingPolicy):
    _count = 0

    def _choose(self, left: list[str], text: FleetText) -> str:
        self._count += 1
        return left[self._count % len(left)]


class LeastQueuedPolicy(RoutingPolicy):
    """The fewest unfinished requests: of the last heartbeat, and of this gateway since."""

    def __init__(self, tiers: Sequence[str], models: dict[str, ModelInfo], draws: random.Random) -> None:
        super().__init__(tiers, models, draws)
        self._unfinished: Counter[str] = Counter()

    def note_load(self, name: str, load: EngineLoad, unfinished: int, now: float) -> None:
        self._unfinished[name] = unfinished

    def note_text_ended(self, name: str, text: FleetText) -> None:
        self._unfinished[name] -= 1

    def _choose(self, left: list[str], text: FleetText) -> str:
        least = min(self._unfinished[name] for name in left)
        name = self._draws.choice([name for name in left if self._unfinished[name] == least])
        self._unfinished[name] += 1
        return name


class StickyPolicy(RoutingPolicy):
    """Each conversation has its engine, by rendezvous hashing, whatever the load."""

    def _choose(self, left: list[str], text: FleetText) -> str:
        key = key_hash(text.key())
        return max(left, key=lambda name: rendezvous_weight(key_hash(name), key))


class PredictedPolicy(RoutingPolicy):
    """The product's router."""

    def __init__(self, tiers: Sequence[str], models: dict[str, ModelInfo], draws: random.Random) -> None:
        super().__init__(tiers, models, draws)
        self.router = EngineRouter(tiers)
        self._models = models
        self._placements: dict[int, Placement] = {}

    def set_engine(self, name: str) -> None:
        super().set_engine(name)
        self.router.set_engine(name, self._models)

    def remove_engine(self, name: str) -> None:
        super().remove_engine(name)
        self.router.remove_engine(name)

    def note_load(self, name: str, load: EngineLoad, unfinished: int, now: float) -> None:
        self.router.note_load(name, load, False, now)

    def note_pages(self, name: str, frame: PagesChanged) -> None:
        assert self.router.note_pages(name, frame), f"a frame before {frame.number} of {name} is missing"

    def choose_engine(self, text: FleetText, now: float, exclude: Container[str]) -> str | None:
        request = RoutableRequest(text.model, text.adapter, text.tenant, text.tier, text.all_ids(), text.key())
        ranked = self.router.rank_engines(request, now, exclude, RANKED)
        if not ranked:
            return None
        uncached = len(request.ids) - ranked[0].cached_tokens
        self._placements[text.number] = self.router.note_submitted(ranked[0].name, request, uncached, now)
        return ranked[0].name

    def note_first_output(self, name: str, text: FleetText) -> None:
        self.router.note_first_output(name, self._placements[text.number])

    def note_text_ended(self, name: str, text: FleetText) -> None:
        self.router.note_ended(name, self._placements.pop(text.number))


POLICIES: dict[str, Callable[[Sequence[str], dict[str, ModelInfo], random.Random], RoutingPolicy]] = {
    "predicted": PredictedPolicy,
    "random": RandomPolicy,
    "round-robin": RoundRobinPolicy,
    "least-queued": LeastQueuedPolicy,
    "sticky": StickyPolicy,
}
