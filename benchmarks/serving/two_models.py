"""Two models in one engine against two engines that share the GPU, and the cost of a switch between models.

    python -m benchmarks.serving.two_models [--cpu] [--seconds 40] [--setups one,two] [--note TEXT]

"one": an engine process with two models of Llama-3.1-8B's shape, random weights in bfloat16. "two": an engine process
for each, with half of the arena and half of the sequences, at the same time on the same GPU. All are `python -m engine`
behind their sockets, and receive the same seeded traffic over both models: premium and standard at Poisson times, as
many batch requests outstanding as fill the arena. Then 64 decodes of the first model alone, and beside 64 of the
second: the cost of a switch is the time of a step after the other model's step, over a step of one model alone. TTFT
counts from when a request was due. `--cpu`: a small model, as a test of the program.

Beside the tokens a second stands the bound: each model's weights read once for the rows that the arena holds, their KV
read, at this device's copy speed, and the prompts' products at its product speed. Appends rows to
benchmarks/results/serving_two_models.csv as each set-up is done, so a failure does not lose the other set-up's rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append_rows, cpu_name
from benchmarks.serving import ceilings, shapes
from benchmarks.serving.gateway import Measured, Phase, Request, Traffic
from benchmarks.serving.processes import NotStarted, SocketLine, measure, settings_of, started
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.tiers import Tier

MODELS = ("a", "b")
SETUPS = ("one", "two")
QUEUE_MAX = 100_000
TOK_S_RATIO_MIN = 1.05  # one engine over two


@dataclass(frozen=True)
class Sizes:
    """Rates and outstanding requests are each model's; arena and sequences are of both together."""

    shape: dict[str, Any]
    dtype: str
    arena_bytes: int
    sequences: int
    step_tokens: int
    ttft_ms: tuple[float, float]  # targets of premium and standard
    inter_token_ms: tuple[float, float]
    rate: float  # of either tier
    prompt: int
    new: tuple[int, int, int]  # premium, standard, batch
    outstanding: int
    lead_s: float
    seconds: float
    switch_rows: int
    switch_prompt: int
    switch_new: int
    switch_s: float

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def arena_tokens(self) -> int:
        return self.arena_bytes // (shapes.kv_elements(self.shape) * self.itemsize)


def gpu_sizes() -> Sizes:
    return Sizes(
        shapes.llama_8b(), "bfloat16", 32 << 30, 384, 2048, (50.0, 200.0), (40.0, 60.0),
        2.0, 512, (64, 128, 512), 256, 10.0, 40.0, 64, 32, 512, 6.0,
    )  # fmt: skip


def cpu_sizes() -> Sizes:
    return Sizes(
        shapes.SMALL, "float32", 32 << 20, 32, 256, (1000.0, 2000.0), (500.0, 1000.0),
        2.0, 48, (8, 16, 48), 24, 1.5, 5.0, 4, 16, 64, 2.0,
    )  # fmt: skip


def tiers(sizes: Sizes) -> tuple[Tier, ...]:
    premium, standard = (
        Tier(
            name=name,
            service_tier=service,  # type: ignore[arg-type]
            floor=floor,
            ttft_base_ms=sizes.ttft_ms[index],
            ttft_per_1k_prompt_tokens_ms=2 * sizes.ttft_ms[index],
            inter_token_ms=sizes.inter_token_ms[index],
            preemptible=bool(index),
            queue_max=QUEUE_MAX,
        )
        for index, (name, service, floor) in enumerate((("premium", "priority", 0.3), ("standard", "default", 0.1)))
    )
    batch = Tier(
        name="batch",
        service_tier="flex",
        floor=0.05,
        ttft_base_ms=3_600_000.0,
        inter_token_ms=25 * sizes.inter_token_ms[0],
        queue_max=QUEUE_MAX,
        crowd_part=1.0,
    )
    return premium, standard, batch


def engine_settings(setup: str, sizes: Sizes, models: Sequence[ModelConfig], device: str) -> dict[str, dict[str, Any]]:
    """Settings by the engine's name: one engine with all models, or an engine for each model with half of the arena and
    sequences."""
    served = [tuple(models)] if setup == "one" else [(model,) for model in models]
    found = {}
    for own in served:
        part = len(served)
        config = EngineConfig(
            models=own,
            tiers=tiers(sizes),
            arena_bytes=sizes.arena_bytes // part,
            step_tokens_max=sizes.step_tokens,
            sequences_max=sizes.sequences // part,
            device=device,  # type: ignore[arg-type]
            adapters_max=sizes.sequences,
            adapter_rank_max=16,
            adapter_host_bytes=16 << 20,
            adapter_staging_bytes=16 << 20,
            threads=0 if device == "cuda" else max(1, (os.cpu_count() or 1) // part),
        )
        found[f"{setup}-{'-'.join(model.name for model in own)}"] = settings_of(config)
    return found


def phases(sizes: Sizes) -> list[Phase]:
    def traffic(tier: str, new: int, model: str, **more: Any) -> Traffic:
        return Traffic(tier, tier, sizes.prompt, new, share=f"{tier}-{model}", models=(model,), **more)

    def decodes(model: str) -> Traffic:
        return Traffic(
            "decode", "batch", sizes.switch_prompt, sizes.switch_new, outstanding=sizes.switch_rows, share=model,
            models=(model,),
        )  # fmt: skip

    first, second = MODELS
    premium, standard, batch = sizes.new
    mixed = [traffic("premium", premium, model, rate=sizes.rate) for model in MODELS]
    mixed += [traffic("standard", standard, model, rate=sizes.rate) for model in MODELS]
    mixed += [traffic("batch", batch, model, outstanding=sizes.outstanding) for model in MODELS]
    warm = [traffic("premium", premium, model, outstanding=4) for model in MODELS]
    return [
        Phase("warm", tuple(warm), seconds=sizes.switch_s / 3),
        Phase("mixed", tuple(mixed), lead_s=sizes.lead_s, seconds=sizes.seconds, watch_s=1.0),
        Phase("alone", (decodes(first),), lead_s=sizes.switch_s / 3, seconds=sizes.switch_s),
        Phase("beside", (decodes(first), decodes(second)), lead_s=sizes.switch_s / 3, seconds=sizes.switch_s),
    ]


# ---- figures


def percentile(values: Sequence[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


def target_ms(request: Request, sizes: Sizes) -> float:
    tier = next(tier for tier in tiers(sizes) if tier.name == request.traffic.tier)
    return tier.ttft_base_ms + tier.ttft_per_1k_prompt_tokens_ms * request.traffic.prompt_tokens / 1000


def mixed_figures(mixed: Measured, sizes: Sizes) -> dict[str, float]:
    found = {"tok_s": mixed.tokens_per_s(), "batch_tok_s": mixed.tokens_per_s("batch")}
    for tier in ("premium", "standard"):
        due = [
            request
            for request in mixed.requests
            if request.traffic.name == tier and mixed.began_s <= request.due_s <= mixed.ended_s
        ]
        own = mixed.of(tier)
        ttft = [request.ttft_ms for request in own]
        found[f"{tier}_ttft_p50_ms"], found[f"{tier}_ttft_p99_ms"] = percentile(ttft, 50), percentile(ttft, 99)
        kept = sum(request.ttft_ms <= target_ms(request, sizes) for request in own)
        found[f"{tier}_ttft_target_ms"] = target_ms(due[0], sizes) if due else float("nan")
        found[f"{tier}_ttft_in_target"] = kept / max(1, len(due))  # a request without an answer missed it
        found[f"{tier}_unanswered"] = float(len(due) - len(own))
    for tier in ("premium", "standard", "batch"):
        gaps = [gap for request in mixed.of(tier) for gap in request.gaps_ms()]
        found[f"{tier}_itl_p99_ms"] = percentile(gaps, 99)
    found["preemptions"] = float(sum(request.usage.preemptions for request in mixed.requests))
    found["failed"] = float(mixed.failures().total())
    return found


def switch_figures(alone: Measured, beside: Measured) -> dict[str, float]:
    """Figures of switches in one engine. With two engines no step follows another model's, and the gaps show how they
    share the device."""
    before = [1000 * step.seconds for step in alone.steps]
    after = [1000 * step.seconds for step in beside.steps if step.switched]
    found = {"step_alone_p50_ms": percentile(before, 50), "step_alone_p99_ms": percentile(before, 99)}
    if after:
        found["step_switched_p50_ms"], found["step_switched_p99_ms"] = percentile(after, 50), percentile(after, 99)
        found["steps_switched"] = len(after) / len(beside.steps)
        found["switch_costs_ms"] = statistics.median(after) - statistics.median(before)
    for half in (alone, beside):
        gaps = [gap for request in half.of("decode", MODELS[0]) for gap in request.gaps_ms()]
        found[f"itl_{half.phase.name}_p50_ms"] = percentile(gaps, 50)
        found[f"tok_s_{half.phase.name}"] = half.tokens_per_s()
    return found


def bound_tok_s(sizes: Sizes, device: ceilings.Device) -> float:
    """The bound of batch alone: full steps of as many rows as the arena holds halfway through their answers."""
    prompt, new = sizes.prompt, sizes.new[2]
    context = prompt + new / 2
    rows = min(sizes.sequences, sizes.arena_tokens / context)
    weights = len(MODELS) * shapes.parameters(sizes.shape) * sizes.itemsize
    kv = rows * context * shapes.kv_elements(sizes.shape) * sizes.itemsize
    prefill_flops = 2 * shapes.parameters(sizes.shape) * rows * prompt / new
    # The device's copy speed counts bytes read and written: reads alone are not faster.
    return rows / ((weights + kv) / device.copy_bytes_per_s + prefill_flops / device.product_flops_per_s)


def bound_step_ms(sizes: Sizes, device: ceilings.Device) -> float:
    """The bound of a step of `switch_rows` decodes, without their KV."""
    return 1000 * shapes.parameters(sizes.shape) * sizes.itemsize / device.copy_bytes_per_s


def report(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Print the table, and the ratios that need both set-ups."""
    ratios: dict[str, float] = {}
    names = list(dict.fromkeys(name for own in found.values() for name in own))
    print(f"{'':28}" + "".join(f"{setup:>12}" for setup in found))
    for name in names:
        print(f"{name:28}" + "".join(f"{own.get(name, float('nan')):12.2f}" for own in found.values()))
    if all("tok_s" in found.get(setup, {}) for setup in SETUPS):
        ratio = ratios["one_over_two_tok_s"] = found["one"]["tok_s"] / found["two"]["tok_s"]
        kept = "kept" if ratio >= TOK_S_RATIO_MIN else "NOT KEPT"
        print(f"one engine makes {ratio:.3f} times what two make; aim at least {TOK_S_RATIO_MIN:g}: {kept}")
        for name in ("premium_ttft_p99_ms", "standard_ttft_p99_ms", "premium_itl_p99_ms"):
            ratios[f"one_over_two_{name.removesuffix('_ms')}"] = found["one"][name] / found["two"][name]
    one = found.get("one", {})
    if "switch_costs_ms" in one:
        costs, step = one["switch_costs_ms"], one["step_alone_p50_ms"]
        kept = "kept" if costs <= step else "NOT KEPT"
        print(f"a switch costs {costs:.2f} ms, a step alone {step:.2f}; aim at most one step: {kept}")
    return ratios


# ---- runs


def run(setup: str, sizes: Sizes, device: str, seed: int) -> dict[str, float]:
    """The measurements of this set-up; partial if it failed."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        models = [shapes.dummy(directory, name, sizes.shape, sizes.dtype) for name in MODELS]
        began = time.monotonic()
        try:
            with started(directory, engine_settings(setup, sizes, models, device)) as lines:
                found["start_s"] = time.monotonic() - began
                found |= figures(lines, sizes, seed)
        except (NotStarted, OSError) as error:
            print(f"FAILED: {setup}: {error}", flush=True)
    print(f"{setup}: {time.monotonic() - began:.0f} s with its start", flush=True)
    return found


def figures(lines: Sequence[SocketLine], sizes: Sizes, seed: int) -> dict[str, float]:
    done, failed = measure(lines, phases(sizes), seed)
    by_name = {measured.phase.name: measured for measured in done}
    found = {"phases_failed": float(bool(failed))}
    if "mixed" in by_name:
        found |= mixed_figures(by_name["mixed"], sizes)
    if "beside" in by_name:
        found |= switch_figures(by_name["alone"], by_name["beside"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="a small model on this CPU: appends no rows without --note")
    parser.add_argument("--seconds", type=float, help="of mixed traffic that are measured")
    parser.add_argument("--arena-gib", type=float, help="of both models together")
    parser.add_argument("--setups", default=",".join(SETUPS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    changed: dict[str, Any] = {"seconds": arguments.seconds} if arguments.seconds else {}
    if arguments.arena_gib:
        changed["arena_bytes"] = int(arguments.arena_gib * 2**30)
    sizes = replace(cpu_sizes() if arguments.cpu else gpu_sizes(), **changed)
    device = None if arguments.cpu else ceilings.ask()
    if device is None and not arguments.cpu:
        print("--cpu runs it on the CPU", file=sys.stderr)
        return 2
    machine = device.name if device else f"{cpu_name()}, {os.cpu_count()} cores"
    workload = (
        f"two of {shapes.parameters(sizes.shape) / 1e9:.2g}B, arena {sizes.arena_bytes / 2**30:.3g} GiB; each: premium "
        f"and standard {sizes.rate:g}/s, {sizes.outstanding} batch outstanding, {sizes.prompt} in, "
        f"{'/'.join(map(str, sizes.new))} out; {sizes.seconds:g} s"
    )
    found: dict[str, dict[str, float]] = {}
    bounds: dict[str, float] = {}
    if device:
        bounds = {"bound_tok_s": bound_tok_s(sizes, device), "bound_step_ms": bound_step_ms(sizes, device)}
        print(f"{machine}: copy {device.copy_bytes_per_s / 1e12:.2f} TB/s; {bounds}", flush=True)
    keeps = not arguments.cpu or arguments.note
    for setup in arguments.setups.split(","):
        own = run(setup, sizes, "cpu" if arguments.cpu else "cuda", arguments.seed)
        if own:
            found[setup] = own
            if keeps:
                rows = {f"{setup}_{name}": value for name, value in own.items() if np.isfinite(value)}
                append_rows("serving_two_models", rows, machine, workload, arguments.note)
    ratios = report(found)
    if keeps:
        append_rows("serving_two_models", bounds | ratios, machine, workload, arguments.note)
    return 0 if set(found) == set(arguments.setups.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
