"""Simulated traffic: a trace's rows assigned to tenants, tiers and adapters, and synthetic arrivals.

All draws come from the seed. Each aspect has its own generator, so that changing one leaves the others as they
were: the requests of a quiet tenant are the same with and without a noisy tenant. It must never read the scheduler.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from engine.simulate.devices import BadInput
from engine.simulate.trace import REQUESTS_MAX, TraceRow

# max_tokens of a trace's requests, which end earlier by a stop token; other requests end by their length.
MAX_TOKENS = 2048
# The name of a single model. Several models are model-1, the most requested, model-2 and so on.
MODEL = "model"


@dataclass(slots=True, frozen=True)
class SimulatedRequest:
    """One request before it is submitted."""

    at_s: float
    tier: str
    tenant: str
    adapter: str | None
    prompt_tokens: int
    new_tokens: int  # tokens that it makes unless it is aborted
    by_stop: bool = False  # a stop token ends it; otherwise max_tokens does
    leaves_at_s: float | None = None  # when its client disconnects
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
    """An additional tenant that always has `outstanding` requests in flight."""

    tier: str
    outstanding: int
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True, frozen=True)
class Burst:
    """`count` requests that arrive at the same moment."""

    at_s: float
    count: int
    tier: str
    prompt_tokens: int
    new_tokens: int


@dataclass(slots=True, frozen=True)
class Population:
    """The tenants, adapters and models. Each tenant has one tier, and adapters that it alone calls."""

    mix: Mapping[str, float]  # tier → its weight in the trace
    tenants: int = 20  # in each tier
    tenant_zipf: float = 1.0  # the k-th tenant sends k^-zipf as many requests as the first
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
    """One tenant that sends `factor` times as many requests as it otherwise would."""

    tenant: str
    factor: float


@dataclass(slots=True, frozen=True)
class Traffic:
    """All requests to the engine until `duration_s`."""

    population: Population
    duration_s: float
    rows: tuple[TraceRow, ...] = ()
    poissons: tuple[Poisson, ...] = ()
    floods: tuple[Flood, ...] = ()
    bursts: tuple[Burst, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)  # of tenants whose weight is not 1
    noise: Noise | None = None
    abort_rate: float = 0.0  # part of the requests whose client disconnects …
    patience_s: float = 5.0  # … after this time on average, from arrival


class Dealer:
    """Draws the tier, tenant, adapter and model of requests, each with its own generator."""

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
        """Always makes two draws, so that the result of the first does not change later requests."""
        base = self._adapters.random() < self._population.base_share
        rank = self._adapters.random()
        if base or not self._of_adapters:
            return None
        return f"{tenant}/{1 + self._adapter_at(rank * self._of_adapters[-1])}"

    def _adapter_at(self, point: float) -> int:
        return next(k for k, weight in enumerate(self._of_adapters) if point <= weight)


def arrivals(traffic: Traffic, seed: int) -> list[SimulatedRequest]:
    """All requests except the floods', in order of time. Raises BadInput above REQUESTS_MAX."""
    requests = list(itertools.chain(_traced(traffic, seed), _poissons(traffic, seed), _bursts(traffic, seed)))
    if traffic.noise:
        requests += _noise(
            traffic, traffic.noise, [own for own in requests if own.tenant == traffic.noise.tenant], seed
        )
    if len(requests) > REQUESTS_MAX:
        raise BadInput(f"{len(requests)} requests would arrive; the limit is {REQUESTS_MAX}")
    if traffic.abort_rate:
        leaving = random.Random(f"{seed}/leaving")
        requests = [_perhaps_leaving(request, leaving, traffic) for request in requests]
    return sorted(requests, key=lambda request: request.at_s)  # stable: requests of one moment keep their order


def flood_name(flood: Flood, index: int) -> str:
    return f"{flood.tier}-flood-{index + 1}"


def flooded(traffic: Traffic, flood: int, number: int, now: float) -> SimulatedRequest:
    """The `number`-th request of a flood, which uses its adapters in turn."""
    made = traffic.floods[flood]
    tenant = flood_name(made, flood)
    adapters = traffic.population.adapters
    adapter = f"{tenant}/{1 + number % adapters}" if adapters else None
    request = SimulatedRequest(now, made.tier, tenant, adapter, made.prompt_tokens, made.new_tokens, flood=flood)
    models = traffic.population.model_names()
    return _on(request, models[flood % len(models)])


def _on(request: SimulatedRequest, model: str) -> SimulatedRequest:
    """The request, of this model. No two models share adapters."""
    if model == MODEL:
        return request
    return replace(request, model=model, adapter=request.adapter and f"{request.adapter}/{model}")


def _traced(traffic: Traffic, seed: int) -> Iterator[SimulatedRequest]:
    dealer = Dealer(traffic.population, seed, "trace")
    for row in traffic.rows:
        if row.at_s >= traffic.duration_s:
            return
        tier = dealer.tier()
        tenant = dealer.tenant(tier)
        adapter = dealer.adapter(tenant)
        request = SimulatedRequest(row.at_s, tier, tenant, adapter, row.prompt_tokens, row.new_tokens, by_stop=True)
        yield _on(request, dealer.model())


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
            request = SimulatedRequest(
                at_s, made.tier, tenant, dealer.adapter(tenant), made.prompt_tokens, made.new_tokens
            )
            yield _on(request, dealer.model())
            at_s += gaps.expovariate(made.per_s)


def _bursts(traffic: Traffic, seed: int) -> Iterator[SimulatedRequest]:
    for index, burst in enumerate(traffic.bursts):
        dealer = Dealer(traffic.population, seed, f"burst/{index}")
        for _ in range(burst.count):
            tenant = dealer.tenant(burst.tier)
            adapter = dealer.adapter(tenant)
            request = SimulatedRequest(burst.at_s, burst.tier, tenant, adapter, burst.prompt_tokens, burst.new_tokens)
            yield _on(request, dealer.model())


def _noise(traffic: Traffic, noise: Noise, own: list[SimulatedRequest], seed: int) -> list[SimulatedRequest]:
    """The noisy tenant's additional requests: copies of its own requests, at random times."""
    if not own:
        raise BadInput(f"--noisy: tenant {noise.tenant!r} has no requests")
    draws = random.Random(f"{seed}/noise")
    count = round((noise.factor - 1) * len(own))
    return [replace(own[draws.randrange(len(own))], at_s=draws.random() * traffic.duration_s) for _ in range(count)]


def _perhaps_leaving(request: SimulatedRequest, draws: random.Random, traffic: Traffic) -> SimulatedRequest:
    leaves, after_s = draws.random() < traffic.abort_rate, draws.expovariate(1 / traffic.patience_s)
    return replace(request, leaves_at_s=request.at_s + after_s) if leaves else request


def _zipf(count: int, power: float) -> list[float]:
    """Cumulative weights of ranks 1 to `count`."""
    return list(itertools.accumulate(k**-power for k in range(1, count + 1)))
