"""Ten models over a device that holds three, on the simulator: keeping by use against plain LRU. Appends rows to
benchmarks/results/simulated_cold_models.csv. `python -m benchmarks.simulated_cold_models`; half a minute, no GPU.

One run of it by hand: `laneway simulate --models 10 --models-resident 3 --keep lru --poisson standard:1:512:64
--duration 600 --adapters 0`.
"""

from __future__ import annotations

import statistics

from benchmarks.rows import append_rows
from engine.simulate.devices import DEVICES
from engine.simulate.report import make_report
from engine.simulate.traffic import Poisson, Population, Traffic
from engine.simulate.world import World
from engine.tiers import SHIPPED_TIERS
from engine.weights_policy import KEEPS

MODELS, RESIDENT = 10, 3
SEEDS = range(3)
DURATION_S = 600.0
RATES_PER_S = (0.5, 1.0)


def main() -> None:
    population = Population({"standard": 1.0}, adapters=0, models=MODELS)
    device = DEVICES["h200-8b"]
    for per_s in RATES_PER_S:
        traffic = Traffic(population, DURATION_S, poissons=(Poisson("standard", per_s, 512, 64),))
        for keep in KEEPS:
            found = [_run(traffic, keep, seed) for seed in SEEDS]
            append_rows(
                "simulated_cold_models",
                {name: statistics.mean(run[name] for run in found) for name in found[0]},
                "simulated h200-8b",
                f"{MODELS} models by Zipf 1.0, {RESIDENT} fit, {per_s:g} requests a second of 512 and 64 tokens",
                f"keep={keep}; load {device.weights_load_s:g} s; mean of {len(SEEDS)} seeds of {DURATION_S:g} s",
            )


def _run(traffic: Traffic, keep: str, seed: int) -> dict[str, float]:
    world = World(SHIPPED_TIERS, DEVICES["h200-8b"], traffic, models_resident=RESIDENT, keep=keep, seed=seed)
    world.run()
    report = make_report(world, {})
    weights = report.weights
    assert weights is not None
    first_s = [ending.ttft_s for ending in world.measure.endings if ending.ttft_s is not None]
    return {
        f"{keep}_hit_rate": weights.hit_rate or 0.0,
        f"{keep}_loads": weights.loads,
        f"{keep}_ttft_mean_ms": 1000 * statistics.mean(first_s),
        f"{keep}_ttft_p50_ms": weights.ttft_ms.p50 or 0.0,
        f"{keep}_ttft_p95_ms": weights.ttft_ms.p95 or 0.0,
    }


if __name__ == "__main__":
    main()
