"""The duration of a step as a function of its load, fitted while running, and the part of it that each chunk accounts
for.

It reads no clock: the caller measures. The planner asks it how much prefill fits into a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Ordered

from engine.scheduler.costs import Costs, StepLoad
from engine.step import Chunk

# Weight of all earlier steps against the newest: about 200 steps count.
MEMORY = 0.995
# Steps between two fits; the first steps are fitted at once.
FIT_EVERY = 16
# A step counts with at most OUTLIER × its expected duration: a longer step was delayed by the machine, not by its load.
OUTLIER = 4.0
# Strength of the pull towards the last fit, as a part of the steps' weight.
RIDGE = 1e-4
TERMS = 5
# The load at which models are compared.
TYPICAL = StepLoad(prefill_tokens=256, sequences=8, kv_tokens=4096, adapters=0)


class CostModel:
    """Least squares over exponentially fading steps: no term below 0, ridge regression towards the last fit."""

    def __init__(self, guess: Costs | None = None) -> None:
        """`guess`: the terms before the first fit."""
        self.costs = guess or Costs()
        self._known = _terms(self.costs)
        self._products = [[0.0] * TERMS for _ in range(TERMS)]  # Σ x xᵀ; below the diagonal unused
        self._moments = [0.0] * TERMS  # Σ x · seconds
        self._steps = 0

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step of `load` took `seconds`."""
        if self._steps >= FIT_EVERY:
            seconds = min(seconds, OUTLIER * self.costs.step_seconds(load))
        x = (1.0, load.prefill_tokens, load.sequences, load.kv_tokens, load.adapters)
        for i, row in enumerate(self._products):
            self._moments[i] = MEMORY * self._moments[i] + x[i] * seconds
            for j in range(i, TERMS):
                row[j] = MEMORY * row[j] + x[i] * x[j]
        self._steps += 1
        if self._steps < FIT_EVERY or not self._steps % FIT_EVERY:
            self._fit()

    def prefill_within(self, seconds: float, load: StepLoad, tokens_max: int) -> int:
        """The most prefill tokens, up to `tokens_max`, that a step may have beside `load` within `seconds`;
        `tokens_max` while the costs are unknown."""
        each = self.costs.prefill_token_s + self.costs.kv_token_s
        if not self.costs.prefill_token_s:
            return tokens_max
        return int(max(0.0, min(tokens_max, (seconds - self.costs.step_seconds(load)) / each)))

    def split(self, chunks: Ordered[Chunk], adapters: int, seconds: float) -> list[float]:
        """The seconds of each chunk: its own terms and an even part of the step's shared terms, scaled so that they add
        up to `seconds`. In proportion to tokens while the costs are unknown. `adapters`: distinct adapters of the
        step."""
        costs = self.costs
        users = Counter(chunk.sequence.adapter for chunk in chunks) if adapters and costs.adapter_s else None
        even = costs.base_s / len(chunks) + costs.sequence_s
        parts = []
        for chunk in chunks:
            part = even + costs.kv_token_s * (chunk.start + chunk.count)
            if chunk.count > 1:
                part += costs.prefill_token_s * chunk.count
            if users and chunk.sequence.adapter is not None:
                part += costs.adapter_s / users[chunk.sequence.adapter]
            parts.append(part)
        total = sum(parts)
        if total <= 0:
            parts = [float(chunk.count) for chunk in chunks]
            total = sum(parts)
        return [part * seconds / total for part in parts]

    def _fit(self) -> None:
        """Drop terms that would be below 0, the lowest first."""
        kept = [i for i in range(TERMS) if self._products[i][i] > 0]
        while True:
            found = self._solve(kept)
            lowest = min(range(len(kept)), key=found.__getitem__)
            if found[lowest] >= 0:
                break
            del kept[lowest]
        terms = [0.0] * TERMS
        for i, value in zip(kept, found, strict=True):
            terms[i] = value
        self._known = tuple(terms)
        self.costs = Costs(*terms)

    def _solve(self, kept: list[int]) -> list[float]:
        """Solve for these terms by Gaussian elimination, each scaled to its own weight."""
        scale = [self._products[i][i] ** 0.5 for i in kept]
        rows = []
        for a, i in enumerate(kept):
            row = [self._products[min(i, j)][max(i, j)] / (scale[a] * scale[b]) for b, j in enumerate(kept)]
            row[a] += RIDGE
            rows.append([*row, self._moments[i] / scale[a] + RIDGE * self._known[i] * scale[a]])
        size = len(kept)
        for a in range(size):
            for b in range(a + 1, size):
                factor = rows[b][a] / rows[a][a]
                rows[b] = [value - factor * pivot for value, pivot in zip(rows[b], rows[a], strict=True)]
        found = [0.0] * size
        for a in reversed(range(size)):
            known = sum(rows[a][b] * found[b] for b in range(a + 1, size))
            found[a] = (rows[a][size] - known) / rows[a][a]
        return [value / scale[a] for a, value in enumerate(found)]


def _terms(costs: Costs) -> tuple[float, ...]:
    return costs.base_s, costs.prefill_token_s, costs.sequence_s, costs.kv_token_s, costs.adapter_s


class CostModels:
    """A cost model for each base model. A model without a measured step is assumed to be like the slowest known one:
    without an assumption its first prefill could be as long as a step may be, and delay other models' streams. A step
    that is too short costs little, and corrects the assumption."""

    def __init__(self) -> None:
        self._fitted: dict[str, CostModel] = {}

    def of(self, model: str) -> CostModel:
        """The model's costs. Steps are reported to `observe`, not to the returned object."""
        return self._fitted.get(model) or CostModel(self._guess())

    def observe(self, model: str, load: StepLoad, seconds: float) -> None:
        if model not in self._fitted:
            self._fitted[model] = CostModel(self._guess())
        self._fitted[model].observe(load, seconds)

    def prefill_token_s(self, models: Iterable[str]) -> dict[str, float]:
        """By model: seconds of one more prompt token in a step; 0 while nothing was measured."""
        found = ((model, self.of(model).costs) for model in models)
        return {model: costs.prefill_token_s + costs.kv_token_s for model, costs in found}

    def forget_costs(self, model: str) -> None:
        self._fitted.pop(model, None)

    def _guess(self) -> Costs | None:
        return max((fitted.costs for fitted in self._fitted.values()), key=_slowness, default=None)


def _slowness(costs: Costs) -> float:
    return costs.step_seconds(TYPICAL)
