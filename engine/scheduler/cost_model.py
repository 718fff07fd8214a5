"""How long a step takes by what is in it, fitted while running; and what of a step's time each of its chunks has.

It must never look at a clock: the caller measures. The scheduler asks it how much prefill a target leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Ordered

from engine.scheduler.costs import Costs, StepLoad
from engine.step import Chunk

# The weight of all earlier steps against the newest: about 200 steps are remembered.
MEMORY = 0.995
# Steps between two fits; the first ones are fitted at once.
FIT_EVERY = 16
# A step that took so many times what was expected says something of the machine, not of what was in it.
OUTLIER = 4.0
# How far the last fit holds where the steps since tell nothing: as a share of what they weigh.
RIDGE = 1e-4
TERMS = 5
# A step by which models are compared.
TYPICAL = StepLoad(prefill_tokens=256, sequences=8, kv_tokens=4096, adapters=0)


class CostModel:
    """Least squares over exponentially fading steps, no term below 0, drawn to the last fit where steps are alike."""

    def __init__(self, guess: Costs | None = None) -> None:
        """`guess`: what it is drawn to before any fit."""
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
        """The most tokens of prefill, at most `tokens_max`, that a step may have beside `load` and still take at most
        `seconds`; `tokens_max` while that is unknown."""
        each = self.costs.prefill_token_s + self.costs.kv_token_s
        if not self.costs.prefill_token_s:
            return tokens_max
        return int(max(0.0, min(tokens_max, (seconds - self.costs.step_seconds(load)) / each)))

    def split(self, chunks: Ordered[Chunk], adapters: int, seconds: float) -> list[float]:
        """What of a step's `seconds` each of its chunks has: its own terms, an even part of what it shares, scaled so
        that all together are the whole. By tokens while nothing is known. `adapters`: how many distinct ones."""
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
        """Without the terms that would be below 0, worst first."""
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
        """Of these terms alone, by elimination, each scaled to its own weight."""
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
    """One for each base model, fitted alone. One of which no step was seen yet is taken to be like the slowest that is
    known: were nothing known of it, its first prefill could be as long as a step may be, and keep the streams of others
    waiting; too short a step costs it little, and corrects the guess."""

    def __init__(self) -> None:
        self._fitted: dict[str, CostModel] = {}

    def of(self, model: str) -> CostModel:
        """Not to be told of steps: `observe` is."""
        return self._fitted.get(model) or CostModel(self._guess())

    def observe(self, model: str, load: StepLoad, seconds: float) -> None:
        if model not in self._fitted:
            self._fitted[model] = CostModel(self._guess())
        self._fitted[model].observe(load, seconds)

    def forget_costs(self, model: str) -> None:
        self._fitted.pop(model, None)

    def _guess(self) -> Costs | None:
        return max((fitted.costs for fitted in self._fitted.values()), key=_slowness, default=None)


def _slowness(costs: Costs) -> float:
    return costs.step_seconds(TYPICAL)
