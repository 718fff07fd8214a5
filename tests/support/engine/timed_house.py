"""The auditor's simulated engine with several models; a cost model gives the duration of each step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from engine.scheduler.costs import Costs, load_of
from engine.step import Sequence, Step
from support.engine.scheduler_auditor import House

# As a CPU's: a decode 10 ms and more, a thousand tokens of prefill a second.
COSTS = Costs(base_s=8e-3, prefill_token_s=1e-3, sequence_s=1e-3)


class Timed:
    """Drives a house whose steps take their costs; notes when each request got each of its tokens."""

    def __init__(self, house: House, costs: dict[str, Costs] | None = None) -> None:
        self.house = house
        self.tokens: dict[int, list[float]] = {}  # handle → times of its tokens
        self.steps: list[Step] = []
        self.device_s: Counter[str] = Counter()  # by model
        self._costs = costs or {}

    def run(self, until: Callable[[], bool] = lambda: False, seconds: float = 1000.0) -> None:
        """Run until all requests have ended, until `until` holds, or for the given time."""
        house, end = self.house, self.house.clock.now + seconds
        while not until() and house.clock.now < end:
            while len(house.flights) <= house.steps_ahead and house.schedule():
                pass
            if house.flights:
                self._complete()
            elif house.scheduler.has_blocked_requests:
                house.idle(0.001)
            else:
                return

    def _complete(self) -> None:
        step = self.house.flights[0].step
        taken_s = self._costs.get(step.model, COSTS).step_seconds(load_of(step))
        outcome = self.house.complete(taken_s)
        self.steps.append(step)
        self.device_s[step.model] += taken_s  # type: ignore[assignment]
        for sequence, _ in outcome.tokens:
            self.tokens.setdefault(sequence.handle, []).append(self.house.clock.now)

    def gaps(self, sequence: Sequence) -> list[float]:
        times = self.tokens[sequence.handle]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def ttft(self, sequence: Sequence) -> float:
        return self.tokens[sequence.handle][0] - sequence.arrived_at


def large(**changes: object) -> House:
    sizes = {"pages": 400, "sequences_max": 32, "step_tokens_max": 512, "prefill_tokens_min": 16, "page_tokens": 16}
    return House(**({"models": ("base", "other")} | sizes | changes))  # type: ignore[arg-type]


def budget(count: int = 1, models: int = 2, **changes: object) -> House:
    """`models` models over a device that holds `count`."""
    names = tuple("abcdefghijkl"[:models])
    house = large(models=names, weights=dict.fromkeys(names, 1), weights_max=count, **changes)
    assert house.vault
    return house


def here(house: House) -> str:
    assert house.vault
    return "".join(sorted(house.vault.there))


def loads(house: House) -> str:
    assert house.vault
    return "".join(model for _, model in house.vault.loads)
