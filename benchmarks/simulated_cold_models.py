"""Ten models over a device that holds three, on the simulator: keeping by use against plain LRU. Appends rows to
benchmarks/results/simulated_cold_models.csv. `python -m benchmarks.simulated_cold_models`; a minute or two, no GPU.

Models of 8B at rates at which few are in use at once, and of 1B up to a rate at which nearly all are, as
benchmarks.serving.many_models asks a GPU. A run of 20 seconds has 4 to 8 requests beyond its p99: hence several seeds.

One run of it by hand: `laneway simulate --models 10 --models-resident 3 --keep lru --poisson standard:1:512:64
--duration 600 --adapters 0`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.rows import append_rows
from engine.memory.eviction import EVICTION_VALUES
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.simulate.devices import DEVICES, Device
from engine.simulate.report import make_report
from engine.simulate.traffic import Poisson, Population, Traffic
from engine.simulate.world import World

MODELS, RESIDENT = 10, 3
SEEDS = range(5)
# One H200 with Llama-3.2-1B's shape in bfloat16: a step of 32 decodes takes 1.43 ms (results/cold_model.csv), a copy of
# 2,357 MiB at 37.7 GB/s beside the steps 66 ms (same place); what prefill and KV take is scaled from 8B's by the sizes.
ONE_B = replace(
    DEVICES["h200-8b"], base_s=1.3e-3, prefill_token_s=4e-6, sequence_s=4e-6, kv_token_s=8e-9, pages=8192,
    step_tokens_max=512, prefill_tokens_min=64, sequences_max=64, weights_bytes=2_471_645_608, weights_load_s=0.066,
)  # fmt: skip
# No request is refused, whatever wait is predicted.
TIER = replace(next(tier for tier in SHIPPED_TIERS if tier.name == "standard"), queue_target_ms=None, queue_max=100_000)


@dataclass(frozen=True)
class Asked:
    machine: str
    device: Device
    per_s: float
    prompt: int
    new: int
    seconds: float


WORKLOADS = (
    Asked("simulated h200-8b", DEVICES["h200-8b"], 0.5, 512, 64, 300.0),
    Asked("simulated h200-8b", DEVICES["h200-8b"], 1.0, 512, 64, 300.0),
    Asked("simulated H200, 1B", ONE_B, 5.0, 128, 32, 40.0),
    Asked("simulated H200, 1B", ONE_B, 20.0, 128, 32, 20.0),
    Asked("simulated H200, 1B", ONE_B, 40.0, 128, 32, 20.0),
)


def main() -> None:
    for asked in WORKLOADS:
        for keep in EVICTION_VALUES:
            found = [_run(asked, keep, seed, TIER) for seed in SEEDS]
            append_rows(
                "simulated_cold_models",
                {f"{keep}_{name}": statistics.mean(run[name] for run in found) for name in found[0]},
                asked.machine,
                f"{MODELS} models by Zipf 1.0, {RESIDENT} fit, {asked.per_s:g} requests a second of {asked.prompt} and "
                f"{asked.new} tokens",
                f"keep={keep}; load {asked.device.weights_load_s:g} s; mean of {len(SEEDS)} times {asked.seconds:g} s",
            )


def _run(asked: Asked, keep: str, seed: int, tier: Tier) -> dict[str, float]:
    population = Population({tier.name: 1.0}, adapters=0, models=MODELS)
    poisson = Poisson(tier.name, asked.per_s, asked.prompt, asked.new)
    traffic = Traffic(population, asked.seconds, poissons=(poisson,))
    world = World((tier,), asked.device, traffic, models_resident=RESIDENT, keep=keep, seed=seed)
    world.run()
    weights = make_report(world, {}).weights
    assert weights is not None
    first_s = [ending.ttft_s for ending in world.measure.endings if ending.ttft_s is not None]
    return {
        "hit_rate": weights.hit_rate or 0.0,
        "loads_per_s": weights.loads / asked.seconds,
        "ttft_mean_ms": 1000 * statistics.mean(first_s),
        "ttft_p50_ms": weights.ttft_ms.p50 or 0.0,
        "ttft_p95_ms": weights.ttft_ms.p95 or 0.0,
        "ttft_p99_ms": weights.ttft_ms.p99 or 0.0,
    }


if __name__ == "__main__":
    main()
