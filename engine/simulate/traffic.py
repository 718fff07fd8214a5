"""Simulated traffic: a trace's rows assigned to tenants, tiers and adapters, and synthetic arrivals beside it.

All draws come from the seed. Each aspect has a generator of its own, so that changing one leaves the others as they
were: the requests of a quiet tenant are the same with a noisy one beside it. It must never look at the scheduler.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from engine.simulate.devices import BadInput
from engine.simulate.trace import REQUESTS_MAX, TraceRow

# A request of a trace may make this much and ends earlier, by a stop; others end by their length.
MAX_TOKENS = 2048
# What the only model is called; of several, the most popular is model-1.
MODEL = "model"


@dataclass(slots=True, frozen=True)
class SimulatedRequest:
    """One request before it is submitted."""

    at_s: float
    tier: str
    tenant: str
    adapter: str | None
    prompt_tokens: int
    new_tokens: int  # that it makes unless it is aborted
    by_stop: bool = False  # what ends it; otherwise max_tokens
    leaves_at_s: float | None = None  # when its client hangs up
    flood: int | None = None  # the flood that it belongs to
    model: str = MODEL


@dataclass(slots=True, frozen=True)
class Poisson:
    """Arrivals of equal requests at a mean rate, in one tier."""

    tier: str
    per_s: float
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True, frozen=True)
class Flood:
    """A tenant of its own that always has the same number of requests outstanding."""

    tier: str
    outstanding: int
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True, frozen=True)
class Burst:
    """Requests that all come at once."""

    at_s: float
    count: int
    tier: str
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True, frozen=True)
class Population:
    """Who there is. Each tenant has one tier, and adapters of its own."""

    mix: Mapping[str, float]  # tier → its weight in the trace
    tenants: int = 20  # in each tier
    tenant_zipf: float = 1.0  # the k-th of them asks k^-zipf as often as the first
    adapters: int = 4  # of each tenant
    adapter_zipf: float = 1.0
    base_share: float = 0.25  # of requests that use no adapter
    models: int = 1
    model_zipf: float = 1.0

    def names(self, tier: str) -> list[str]:
        """Most popular first."""
        return [self.name(tier, k) for k in range(1, self.tenants + 1)]

    def name(self, tier: str, rank: int) -> str:
        return f"{tier}-{rank}"

    def model_names(self) -> list[str]:
        """Most popular first."""
        return [MODEL] if self.models == 1 else [f"{MODEL}-{k}" for k in range(1, self.models + 1)]


@dataclass(slots=True, frozen=True)
class Noise:
    """One tenant that asks `factor` times as often as it otherwise would."""

    tenant: str
    factor: float


@dataclass(slots=True, frozen=True)
class Traffic:
    """All that is asked of the engine until `duration_s`."""

    population: Population
    duration_s: float
    rows: tuple[TraceRow, ...] = ()
    poissons: tuple[Poisson, ...] = ()
    floods: tuple[Flood, ...] = ()
    bursts: tuple[Burst, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # of tenants whose weight is not 1
    noise: Noise | None = None
    abort_rate: float = 0.0  # share of requests whose client hangs up …
    patience_s: float = 5.0  # … after so long on average


class Dealer:
    """Gives requests their tenant, their adapter and their model, each by a generator of its own."""

    def __init__(self, population: Population, seed: int, purpose: str) -> None:
        self._population = population
        self._tiers = random.Random(f"{seed}/{purpose}/tiers")
        self._tenants = random.Random(f"{seed}/{purpose}/tenants")
        self._adapters = random.Random(f"{seed}/{purpose}/adapters")
        self._mix = list(itertools.accumulate(population.mix.values()))
        self._ranks = range(1, population.tenants + 1)
        self._of_tenants = _zipf(population.tenants, population.tenant_zipf)
        self._of_adapters = _zipf(population.adapters, population.adapter_zipf)
        self._models = random.Random(f"{seed}/{purpose}/models")
        self._names = population.model_names()
        self._of_models = _zipf(population.models, population.model_zipf)

    def model(self) -> str:
        return self._models.choices(self._names, cum_weights=self._of_models)[0]

    def tier(self) -> str:
        return self._tiers.choices(list(self._population.mix), cum_weights=self._mix)[0]

    def tenant(self, tier: str) -> str:
        return self._population.name(tier, self._tenants.choices(self._ranks, cum_weights=self._of_tenants)[0])

    def adapter(self, tenant: str) -> str | None:
        """Two draws a request, whatever comes of them, so that all later ones stay as they are."""
        base = self._adapters.random() < self._population.base_share
        rank = self._adapters.random()
        if base or not self._of_adapters:
            return None
        return f"{tenant}/{1 + self._adapter_at(rank * self._of_adapters[-1])}"

    def _adapter_at(self, point: float) -> int:
        return next(k for k, weight in enumerate(self._of_adapters) if point <= weight)


def arrivals(traffic: Traffic, seed: int) -> list[SimulatedRequest]:
    """All requests but those of floods, in order of time. Raises BadInput when there are too many."""
    asked = list(itertools.chain(_traced(traffic, seed), _poissons(traffic, seed), _bursts(traffic, seed)))
    if traffic.noise:
        asked += _noise(traffic, traffic.noise, [own for own in asked if own.tenant == traffic.noise.tenant], seed)
    if len(asked) > REQUESTS_MAX:
        raise BadInput(f"{len(asked)} requests are asked for; the limit is {REQUESTS_MAX}")
    if traffic.abort_rate:
        leaving = random.Random(f"{seed}/leaving")
        asked = [_perhaps_leaving(one, leaving, traffic) for one in asked]
    return sorted(asked, key=lambda one: one.at_s)  # stable: of those at once, as they were made


def flood_name(flood: Flood, index: int) -> str:
    return f"{flood.tier}-flood-{index + 1}"


def flooded(traffic: Traffic, flood: int, number: int, now: float) -> SimulatedRequest:
    """The `number`-th request of a flood: its adapters are used in turn."""
    made = traffic.floods[flood]
    tenant = flood_name(made, flood)
    adapters = traffic.population.adapters
    adapter = f"{tenant}/{1 + number % adapters}" if adapters else None
    asked = SimulatedRequest(now, made.tier, tenant, adapter, made.prompt_tokens, made.new_tokens, flood=flood)
    models = traffic.population.model_names()
    return _on(asked, models[flood % len(models)])


def _on(asked: SimulatedRequest, model: str) -> SimulatedRequest:
    """Each model has its own adapters."""
    if model == MODEL:
        return asked
    return replace(asked, model=model, adapter=asked.adapter and f"{asked.adapter}/{model}")


def _traced(traffic: Traffic, seed: int) -> Iterator[SimulatedRequest]:
    dealer = Dealer(traffic.population, seed, "trace")
    for row in traffic.rows:
        if row.at_s >= traffic.duration_s:
            return
        tier = dealer.tier()
        tenant = dealer.tenant(tier)
        adapter = dealer.adapter(tenant)
        asked = SimulatedRequest(row.at_s, tier, tenant, adapter, row.prompt_tokens, row.new_tokens, by_stop=True)
        yield _on(asked, dealer.model())


def _poissons(traffic: Traffic, seed: int) -> Iterator[SimulatedRequest]:
    for index, made in enumerate(traffic.poissons):
        expected = made.per_s * traffic.duration_s
        if expected > REQUESTS_MAX:
            raise BadInput(f"--poisson: {expected:.0f} requests of tier {made.tier}; the limit is {REQUESTS_MAX}")
        dealer = Dealer(traffic.population, seed, f"poisson/{index}")
        gaps = random.Random(f"{seed}/poisson/{index}/gaps")
        at_s = gaps.expovariate(made.per_s)
        while at_s < traffic.duration_s:
            tenant = dealer.tenant(made.tier)
            asked = SimulatedRequest(
                at_s, made.tier, tenant, dealer.adapter(tenant), made.prompt_tokens, made.new_tokens
            )
            yield _on(asked, dealer.model())
            at_s += gaps.expovariate(made.per_s)


def _bursts(traffic: Traffic, seed: int) -> Iterator[SimulatedRequest]:
    for index, burst in enumerate(traffic.bursts):
        dealer = Dealer(traffic.population, seed, f"burst/{index}")
        for _ in range(burst.count):
            tenant = dealer.tenant(burst.tier)
            adapter = dealer.adapter(tenant)
            asked = SimulatedRequest(burst.at_s, burst.tier, tenant, adapter, burst.prompt_tokens, burst.new_tokens)
            yield _on(asked, dealer.model())


def _noise(traffic: Traffic, noise: Noise, own: list[SimulatedRequest], seed: int) -> list[SimulatedRequest]:
    """What the noisy tenant asks beyond its own requests: more of the same, at any time."""
    if not own:
        raise BadInput(f"--noisy: tenant {noise.tenant!r} asks for nothing")
    draws = random.Random(f"{seed}/noise")
    count = round((noise.factor - 1) * len(own))
    return [replace(own[draws.randrange(len(own))], at_s=draws.random() * traffic.duration_s) for _ in range(count)]


def _perhaps_leaving(one: SimulatedRequest, draws: random.Random, traffic: Traffic) -> SimulatedRequest:
    leaves, after_s = draws.random() < traffic.abort_rate, draws.expovariate(1 / traffic.patience_s)
    return replace(one, leaves_at_s=one.at_s + after_s) if leaves else one


def _zipf(count: int, power: float) -> list[float]:
    """Cumulative weights of ranks 1 to `count`."""
    return list(itertools.accumulate(k**-power for k in range(1, count + 1)))
