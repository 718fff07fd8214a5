"""The requests of a run, in order: tenant, tier, model, prompt and lengths of every request, all from one seed.

The same settings give the same schedule, byte for byte. It must never know a clock or a connection.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load.arrivals import TraceRow, poisson
from benchmarks.load.settings import REQUESTS_MAX, Popularity, Settings
from benchmarks.load.words import Prompts


@dataclass(slots=True, frozen=True)
class Planned:
    """One planned request. `at_s`: seconds after the start; None in a closed loop, which sends when a request ends."""

    index: int
    at_s: float | None
    tenant: str
    tier: str | None
    model: str
    prompt: str
    max_tokens: int


class Chooser:
    """Draws indices below `n` by a popularity; index 0 is the most popular."""

    def __init__(self, popularity: Popularity, n: int, rng: random.Random) -> None:
        assert n > 0
        self._shape, self._n, self._rng = popularity.shape, n, rng
        self._turn = itertools.cycle(range(n))
        weights = [(rank + 1) ** -popularity.s for rank in range(n)] if popularity.shape == "zipf" else [1.0] * n
        self._cumulative = list(itertools.accumulate(weights))

    def draw(self) -> int:
        if self._shape == "identical":
            return 0
        if self._shape == "distinct":
            return next(self._turn)
        return weighted(self._cumulative, self._rng)


def weighted(cumulative: Sequence[float], rng: random.Random) -> int:
    """An index, drawn in proportion to the weights whose running sums are given."""
    return min(bisect.bisect_right(cumulative, rng.random() * cumulative[-1]), len(cumulative) - 1)


class Workload:
    """The requests of one run. `models`: for each tenant, the models that it may call, most popular first.

    Every aspect draws from a separate generator, so that a change of one does not change the others.
    """

    def __init__(self, settings: Settings, models: dict[str, Sequence[str]], trace: Sequence[TraceRow] = ()) -> None:
        assert (settings.trace is None) == (not trace)
        self._settings = settings
        self._models = models
        self._trace = trace

    def warmup(self) -> Iterator[Planned]:
        """The requests before the measured ones: the same mix, other draws."""
        for planned in itertools.islice(self._requests("warmup"), self._settings.warmup):
            yield Planned(-1, None, planned.tenant, planned.tier, planned.model, planned.prompt, planned.max_tokens)

    def measured(self) -> Iterator[Planned]:
        """Requests in order of arrival, until the number, the time (open loop) or the trace ends."""
        settings = self._settings
        for planned in itertools.islice(self._requests("measured"), settings.requests or REQUESTS_MAX):
            if settings.duration_s is not None and planned.at_s is not None and planned.at_s >= settings.duration_s:
                return
            yield planned

    def _requests(self, phase: str) -> Iterator[Planned]:
        settings = self._settings
        names = [tenant.name for tenant in settings.tenants]
        tenants = Chooser(settings.tenant_popularity, len(names), self._rng(phase, "tenant"))
        models = {
            name: Chooser(settings.model_popularity, len(self._models[name]), self._rng(phase, f"model/{name}"))
            for name in names
        }
        if settings.models:  # one list for all tenants, dealt over all requests
            shared = Chooser(settings.model_popularity, len(settings.models), self._rng(phase, "model"))
            models = dict.fromkeys(names, shared)
        tier_sums = list(itertools.accumulate(weight for _, weight in settings.tiers))
        tier_rng = self._rng(phase, "tier")
        # The shared prefix is the run's, not the phase's.
        prompts = Prompts(self._rng("run", "words"), self._rng(phase, "prompt"), settings.shared_prefix)
        for index, (at_s, prompt_tokens, max_tokens) in enumerate(self._arrivals(phase)):
            tenant = names[tenants.draw()]
            yield Planned(
                index=index,
                at_s=at_s,
                tenant=tenant,
                tier=settings.tiers[weighted(tier_sums, tier_rng)][0] if settings.tiers else None,
                model=self._models[tenant][models[tenant].draw()],
                prompt=prompts.make(prompt_tokens),
                max_tokens=max_tokens,
            )

    def _arrivals(self, phase: str) -> Iterator[tuple[float | None, int, int]]:
        """Arrival time, prompt tokens and max_tokens of each request."""
        settings = self._settings
        if settings.trace is not None:
            for row in self._trace:
                prompt = round(row.prompt_tokens * settings.prompt_scale)
                output = round(row.output_tokens * settings.output_scale)
                yield (
                    row.at_s / settings.speed,
                    min(max(1, prompt), settings.prompt_cap),
                    min(max(1, output), settings.output_cap),
                )
            return
        times: Iterator[float | None] = itertools.repeat(None)
        if settings.rate is not None:
            times = poisson(settings.rate, self._rng(phase, "arrivals"))
        for at_s in times:
            yield at_s, settings.prompt_tokens, settings.max_tokens

    def _rng(self, phase: str, aspect: str) -> random.Random:
        return random.Random(f"{self._settings.seed}/{phase}/{aspect}")
