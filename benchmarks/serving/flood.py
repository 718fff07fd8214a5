"""Premium TTFT under a flood of batch: the reference workload on one GPU, or a small one on a CPU, in one run.

    python -m benchmarks.serving.flood [--quick] [--premium 500] [--cpu] [--models 2] [--noisy] [--points FILE]
        [--quantize fp8] [--kv fp8]
    python -m benchmarks.serving.flood --plot FILE [--image FILE]

Llama-3.1-8B's shape with random weights in bfloat16, 32 adapters of rank 16 on all seven linear modules, 8,192 pages of
16 tokens for KV, at most 256 sequences and 2,048 tokens a step. Premium: Poisson, 4 a second, 512 tokens in, 64 out.
Batch: 512 always outstanding, 512 in, 512 out. First premium alone, then under the flood; the real loop, scheduler and
runner, without a socket (benchmarks/serving/gateway.py). TTFT counts from when a request was due. `--cpu`: SmolLM2-135M
with loads that a CPU can serve. `--models 2`: premium on one model and batch on another, in one arena, each with half
of the adapters. `--noisy`, on the CPU: ten tenants of one tier, one of them at ten times its share.

Appends a row to benchmarks/results/serving_flood.csv (`--models`: serving_flood_models.csv, `--noisy`:
serving_noisy.csv), but not with `--quick`, and writes each request's TTFT to `--points`, which `--plot` draws.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.rows import REPO, RESULTS, append_rows, append_table, cpu_name
from benchmarks.serving.formats import add_format_options, format_columns
from benchmarks.serving.gateway import Measured, Phase, Request, Traffic, drive
from engine.__main__ import ServedRunner
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.tiers import Tier

ADAPTERS, RANK, KV_PAGES = 32, 16, 8192
CPU_PAGES, CPU_NOISY_PAGES = 56, 192  # too few for batch without premium's pages; enough for ten prefixes
ARENA_GIB = 20.0  # KV_PAGES, the adapters, and some pages that stay unused
REQUESTS, QUICK = 500, 60
DEMO_MODEL = REPO / ".laneway" / "models" / "smollm2-135m-instruct"
# The warm-up before the measurement: every adapter is placed, and every kernel has run.
WARM_RATE, WARM_REQUESTS = 8.0, 2 * ADAPTERS
QUEUE_MAX = 100_000
# vLLM 0.24.0 with its `priority` policy on one H200 (2026-10): alone and under the flood, in the order of `figures`.
VLLM = {
    "premium_ttft_alone_p50_ms": 47.0,
    "premium_ttft_alone_p99_ms": 118.0,
    "premium_ttft_flood_p50_ms": 183.0,
    "premium_ttft_flood_p99_ms": 3887.0,
    "premium_itl_alone_p99_ms": 40.0,
    "premium_itl_flood_p99_ms": 95.0,
    "batch_out_tok_s": 3785.0,
}
# On an H200: figure → (at most or at least, aim).
AIMS = {
    "premium_ttft_flood_p99_ms": ("<=", 177.0),
    "premium_itl_flood_p99_ms": ("<=", 60.0),
    "batch_out_tok_s": (">=", 3785.0),
}
COUNTS = ("batch_out_tok_s", "preemptions")  # whole numbers in the row
WATCH_S = 1.0  # seconds between snapshots with several models; one has the last 256 preemptions
CPU_TTFT_TIMES_MAX = 2.0  # p95 under the flood over p95 alone
NOISY_TTFT_MOVED_MAX, NOISY_HITS_LOST_MAX = 0.20, 0.02
NOISY_TIMES, TENANTS = 10.0, 10


@dataclass(frozen=True)
class Bench:
    """An engine and its load."""

    config: EngineConfig
    runner: ServedRunner
    adapters: Mapping[str, list[str]]  # by model
    machine: str
    premium: Traffic
    batch: Traffic
    lead_s: float
    watch_s: float = 0.0


def tiers(arguments: argparse.Namespace) -> tuple[Tier, Tier]:
    """The tiers premium and batch. A missing target is set to a value that the machine meets."""
    ttft_ms, ttft_per_1k_ms, itl_ms = (1000.0, 1000.0, 500.0) if arguments.cpu else (50.0, 100.0, 40.0)
    premium = Tier(
        name="premium",
        service_tier="priority",
        floor=arguments.premium_floor,
        ttft_base_ms=arguments.ttft_base_ms or ttft_ms,
        ttft_per_1k_prompt_tokens_ms=arguments.ttft_per_1k_ms or ttft_per_1k_ms,
        inter_token_ms=arguments.inter_token_ms or itl_ms,
        preemptible=False,
        queue_max=QUEUE_MAX,
    )
    batch = Tier(
        name="batch",
        service_tier="flex",
        floor=arguments.batch_floor,
        ttft_base_ms=3_600_000.0,
        inter_token_ms=arguments.batch_inter_token_ms or 25 * itl_ms,
        queue_max=QUEUE_MAX,
    )
    return premium, batch


def add_tier_options(parser: argparse.ArgumentParser) -> None:
    """The options that `tiers` reads. A target of 0 is set to a value that the machine meets."""
    parser.add_argument("--premium-floor", type=float, default=0.30)
    parser.add_argument("--ttft-base-ms", type=float, default=0.0, help="premium's target")
    parser.add_argument("--ttft-per-1k-ms", type=float, default=0.0, help="premium's target")
    parser.add_argument("--inter-token-ms", type=float, default=0.0, help="premium's target")
    parser.add_argument("--batch-floor", type=float, default=0.05)
    parser.add_argument("--batch-inter-token-ms", type=float, default=0.0)


def limit_kv(runner: ServedRunner, adapters: Sequence[str], kv_pages: int) -> int:
    """Give the scheduler `kv_pages` beside the pages that all adapters take together; the rest of the arena stays
    unused. Returns the adapters' pages."""
    taken = 0
    for digest in adapters:
        needed = runner.adapters.pages_needed(digest)
        runner.adapters.place_adapter(digest, list(range(taken, taken + needed)))
        taken += needed
    for digest in adapters:
        runner.adapters.evict_adapter(digest)
    assert kv_pages + taken <= runner.pages, f"{kv_pages} + {taken} pages are wanted of {runner.pages}"
    runner.pages = kv_pages + taken
    return taken


def gpu_bench(arguments: argparse.Namespace) -> Bench:
    import torch

    from benchmarks.serving import llama

    config = llama.gpu_config(
        tiers(arguments), ARENA_GIB, RANK, step_tokens=2048, sequences=256, models=arguments.models,
        quantize=arguments.quantize, kv=arguments.kv,
    )  # fmt: skip
    config = msgspec.structs.replace(config, host_pool_bytes=int(arguments.host_pool_gib * 2**30))
    began = time.monotonic()
    runner = llama.build(config)
    print(f"built and captured in {time.monotonic() - began:.1f} s", flush=True)
    names, each = [model.name for model in config.models], ADAPTERS // arguments.models
    adapters = {
        name: llama.add_adapters(runner.adapters, llama.base(), each, [RANK], model=name, first=index * each)
        for index, name in enumerate(names)
    }
    taken = limit_kv(runner, [digest for own in adapters.values() for digest in own], arguments.kv_pages)
    machine = torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}: {KV_PAGES} pages for KV, {taken} for {ADAPTERS} adapters")
    premium = Traffic("premium", "premium", prompt_tokens=512, new_tokens=64, rate=4.0, models=(names[0],))
    batch = Traffic("batch", "batch", prompt_tokens=512, new_tokens=512, outstanding=512, models=(names[-1],))
    return bench_of(config, runner, adapters, machine, premium, batch, arguments.lead_s or 20.0)


def bench_of(
    config: EngineConfig,
    runner: ServedRunner,
    adapters: Mapping[str, list[str]],
    machine: str,
    premium: Traffic,
    batch: Traffic,
    lead_s: float,
) -> Bench:
    watch_s = WATCH_S if len(config.models) > 1 else 0.0
    return Bench(config, runner, adapters, machine, premium, batch, lead_s, watch_s)


def cpu_bench(arguments: argparse.Namespace) -> Bench:
    """Eight sequences, and KV for somewhat less than eight whole batch requests."""
    # Before torch: waiting threads must sleep when another thread needs the core, as in `python -m engine`.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from benchmarks import example_adapters
    from engine.cpu.runner import build_runner

    names = ["demo", "second"][: arguments.models]
    # The same directory with a different digest is another model: the two share nothing.
    paths = [arguments.model, arguments.second or arguments.model]
    digests = [None, "2" * 64]
    config = EngineConfig(
        models=tuple(
            ModelConfig(name=name, path=str(path), digest=digest, quantize=arguments.quantize, kv_dtype=arguments.kv)
            for name, path, digest in zip(names, paths, digests, strict=False)
        ),
        tiers=tiers(arguments),
        host_pool_bytes=int(arguments.host_pool_gib * 2**30),
        step_tokens_max=128,
        prefill_tokens_min=64,
        sequences_max=8,
    )
    runner = build_runner(config)
    adapters = {"demo": example_adapters.load(runner, "demo", arguments.model)}
    if arguments.second:
        adapters["second"] = example_adapters.load(runner, "second", arguments.second)
    known = [digest for own in adapters.values() for digest in own]
    pages = CPU_NOISY_PAGES if arguments.noisy else CPU_PAGES
    limit_kv(runner, known, pages)
    machine = f"{cpu_name()}, {os.cpu_count()} cores"
    print(f"{machine}, torch {torch.__version__}: {pages} pages for KV, {len(known)} adapters")
    premium = Traffic("premium", "premium", prompt_tokens=64, new_tokens=8, rate=0.5, models=(names[0],))
    batch = Traffic("batch", "batch", prompt_tokens=64, new_tokens=64, outstanding=16, models=(names[-1],))
    return bench_of(config, runner, adapters, machine, premium, batch, arguments.lead_s or 10.0)


def flood_phases(bench: Bench, requests: int) -> list[Phase]:
    models = dict.fromkeys((bench.premium.models, bench.batch.models))
    known = sum(map(len, bench.adapters.values()))
    warm = [Traffic("warm", "premium", bench.premium.prompt_tokens, 4, rate=WARM_RATE, models=own) for own in models]
    return [
        *(Phase("warm", (traffic,), max(2, min(WARM_REQUESTS, 2 * known) // len(warm))) for traffic in warm),
        Phase("alone", (bench.premium,), requests, watch_s=bench.watch_s),
        Phase("flood", (bench.premium, bench.batch), requests, bench.lead_s, watch_s=bench.watch_s),
    ]


def percentile(values: Sequence[float], q: float) -> float:
    return float(np.percentile(values, q))


def figures(alone: Measured, flood: Measured) -> dict[str, float]:
    """The figures of the row; milliseconds, tokens a second."""
    found = {}
    for half in (alone, flood):
        ttft = [request.ttft_ms for request in half.of("premium")]
        found[f"premium_ttft_{half.phase.name}_p50_ms"] = percentile(ttft, 50)
        found[f"premium_ttft_{half.phase.name}_p99_ms"] = percentile(ttft, 99)
    for half in (alone, flood):
        gaps = [gap for request in half.of("premium") for gap in request.gaps_ms()]
        found[f"premium_itl_{half.phase.name}_p99_ms"] = percentile(gaps, 99)
    found["batch_out_tok_s"] = flood.tokens_per_s("batch")
    found["preemptions"] = sum(request.usage.preemptions for request in flood.requests)
    return found


def preempted_by(measured: Measured) -> dict[tuple[str, str, str], int]:
    """(tier, tier that caused it, outcome of the KV) → how often it was seen, including the lead time."""
    seen = {
        (snapshot.epoch, one.number): (one.tier, one.caused_by, one.kind)
        for at, snapshot in measured.watched
        for one in snapshot.preemptions
        if at - one.age_s >= measured.began_s - measured.phase.lead_s
    }
    return dict(Counter(seen.values()))


def check(halves: Sequence[Measured], name: str, *, refusals: bool) -> None:
    """Raises SystemExit when the phase cannot be compared: a request of traffic `name` made too few ids, or a request
    was refused although `refusals` is False."""
    awaited = {id(half.phase.traffic[0]) for half in halves}
    for request in (request for half in halves for request in half.requests):
        made, asked = len(request.token_s), request.traffic.new_tokens
        if request.refused and not refusals:
            sys.exit(f"a {request.traffic.name} request was refused: {request.refused}")
        if request.traffic.name == name and id(request.traffic) in awaited and made != asked:
            sys.exit(f"a {name} request made {made} of {asked} ids: {request.refused or 'it failed'}")


def report(found: dict[str, float], halves: Sequence[Measured], machine: str) -> None:
    is_h200 = "H200" in machine
    for name, value in found.items():
        theirs = f"   vLLM 0.24.0, one H200, 2026-10: {VLLM[name]:8.0f}" if is_h200 and name in VLLM else ""
        print(f"{name:28} {value:9.1f}{theirs}")
        if is_h200 and name in AIMS:
            relation, aim = AIMS[name]
            kept = value <= aim if relation == "<=" else value >= aim
            print(f"{'':28} aim {relation} {aim:g}: {'kept' if kept else 'NOT KEPT'}")
    for half in halves:
        own = half.of("premium")
        ttft = [request.ttft_ms for request in own]
        gaps = [gap for request in own for gap in request.gaps_ms()]
        print(
            f"{half.phase.name}: {len(own)} premium; TTFT p50/p95/p99/max {spread(ttft)}; "
            f"queue {spread([1000 * request.usage.queue_s for request in own])}; inter-token {spread(gaps)} ms"
        )
        worst = sorted(own, key=lambda request: -request.ttft_ms)[:5]
        print("  worst: " + "; ".join(_described(request, half) for request in worst))
    flood = halves[-1]
    batch = [request for request in flood.requests if request.traffic.name == "batch"]
    print(
        f"batch: {len(batch)} begun, recomputed {sum(request.usage.recomputed_tokens for request in batch)} tokens, "
        f"swapped {sum(request.usage.swapped_tokens for request in batch)}, preempted at most "
        f"{max(request.usage.preemptions for request in batch)} times; TTFT "
        f"{spread([request.ttft_ms for request in flood.of('batch')])}; "
        f"steps {spread([1000 * seconds for seconds in flood.step_s])} ms"
    )
    times = [percentile([request.ttft_ms for request in half.of("premium")], 95) for half in halves]
    aim = "" if is_h200 else f", aim at most {CPU_TTFT_TIMES_MAX:g}"
    print(f"premium TTFT p95 under flood over alone: {times[1] / times[0]:.2f}{aim}")


def spread(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return " / ".join(f"{value:.1f}" for value in (*np.percentile(values, [50, 95, 99]), max(values)))


def _described(request: Request, half: Measured) -> str:
    return (
        f"{request.ttft_ms:.0f} ms at {request.due_s - half.began_s:.1f} s "
        f"(queue {1000 * request.usage.queue_s:.0f}, preempted {request.usage.preemptions})"
    )


def write_points(halves: Sequence[Measured], file: Path) -> None:
    """Write CSV: half, tier, due time in seconds after the window began, TTFT."""
    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["half", "tier", "due_s", "ttft_ms"])
        for half in halves:
            for name in ("premium", "batch"):
                for request in half.of(name):
                    due_s = request.due_s - half.began_s
                    writer.writerow([half.phase.name, name, f"{due_s:.2f}", f"{request.ttft_ms:.1f}"])


def measure_flood(bench: Bench, arguments: argparse.Namespace) -> None:
    phases = flood_phases(bench, arguments.premium)
    halves = drive(bench.config, bench.runner, bench.adapters, phases, arguments.seed)[-2:]
    check(halves, "premium", refusals=False)
    found = figures(*halves)
    report(found, halves, bench.machine)
    if arguments.points:
        write_points(halves, arguments.points)
    if arguments.models > 1:
        report_models(found, halves, bench, arguments)
    elif not arguments.quick:
        shown = {name: f"{value:.0f}" if name in COUNTS else f"{value:.1f}" for name, value in found.items()}
        formats = format_columns(arguments.quantize, arguments.kv, "float32" if arguments.cpu else "bf16")
        row = {"gpu": bench.machine, "engine": "laneway"} | shown | formats
        append_table([row], RESULTS / "serving_flood.csv")


def report_models(
    found: dict[str, float], halves: Sequence[Measured], bench: Bench, arguments: argparse.Namespace
) -> None:
    """Print the figures, p95, and which tier preempted which."""
    flood = halves[-1]
    for half in halves:
        ttft = [request.ttft_ms for request in half.of("premium")]
        found[f"premium_ttft_{half.phase.name}_p95_ms"] = percentile(ttft, 95)
    found["premium_ttft_p99_flood_over_alone"] = found["premium_ttft_flood_p99_ms"] / found["premium_ttft_alone_p99_ms"]
    for (tier, cause, kind), count in sorted(preempted_by(flood).items()):
        found[f"{tier}_preempted_by_{cause}_{kind}"] = float(count)
    for model in bench.config.models:
        found[f"steps_{model.name}"] = float(sum(step.model == model.name for step in flood.steps))
    premium, batch = bench.premium, bench.batch
    workload = (
        f"premium on {premium.models[0]} ({premium.prompt_tokens}+{premium.new_tokens}, {premium.rate:g}/s), batch on "
        f"{batch.models[0]} ({batch.prompt_tokens}+{batch.new_tokens}, {batch.outstanding} outstanding), "
        f"{arguments.premium} premium a half{_formats(arguments)}"
    )
    if arguments.quick:
        print(workload + ": " + "; ".join(f"{name} {value:.4g}" for name, value in found.items()))
    else:
        append_rows("serving_flood_models", found, bench.machine, workload, arguments.note)


def _formats(arguments: argparse.Namespace) -> str:
    """Formats in the workload's name that differ from the model's dtype."""
    chosen = {"weights": arguments.quantize, "KV": arguments.kv}
    return "".join(f", {name} in {format}" for name, format in chosen.items() if format not in ("none", "auto"))


def noisy_phases(bench: Bench, requests: int, rate: float) -> list[Phase]:
    """Ten tenants share `rate` equally; then one of them sends ten times as many requests, nearly as many as all ten
    before. The nine others are measured without it, with it at its share, and at ten times its share."""
    share = rate / TENANTS
    one = Traffic("quiet", "premium", 96, 8, rate=share, prefix_tokens=64)
    quiet = tuple(replace(one, share=f"quiet-{index}") for index in range(TENANTS - 1))
    fair = replace(one, name="noisy", share="noisy")
    noisy = replace(fair, rate=NOISY_TIMES * share)
    each = max(1, requests // len(quiet))  # a phase counts requests of its first traffic
    return [
        Phase("warm", quiet, 2),
        Phase("alone", quiet, each),
        Phase("fair", (*quiet, fair), each, bench.lead_s),
        Phase("noisy", (*quiet, noisy), each, bench.lead_s),
    ]


def noisy_figures(halves: Sequence[Measured]) -> dict[str, float]:
    """Figures of the quiet tenants alone, beside a neighbour at its share, and at ten times its share."""
    found = {}
    for half in halves:
        own = half.of("quiet")
        ttft = [request.ttft_ms for request in own]
        found[f"quiet_ttft_{half.phase.name}_p50_ms"] = percentile(ttft, 50)
        found[f"quiet_ttft_{half.phase.name}_p95_ms"] = percentile(ttft, 95)
        cached = sum(request.usage.cached_tokens for request in own)
        found[f"quiet_hit_rate_{half.phase.name}"] = cached / sum(request.usage.prompt_tokens for request in own)
    found["noisy_tok_s"] = halves[-1].tokens_per_s("noisy")
    return found


def measure_noisy(bench: Bench, arguments: argparse.Namespace) -> None:
    phases = noisy_phases(bench, arguments.premium, arguments.rate)
    halves = drive(bench.config, bench.runner, {}, phases, arguments.seed)[1:]
    check(halves, "quiet", refusals=True)
    found = noisy_figures(halves)
    moved = found["quiet_ttft_noisy_p95_ms"] / found["quiet_ttft_fair_p95_ms"] - 1
    lost = found["quiet_hit_rate_fair"] - found["quiet_hit_rate_noisy"]
    print(
        f"a neighbour at {NOISY_TIMES:g} times its share, against one at its share: quiet TTFT p95 moved by "
        f"{moved:+.1%}, aim at most {NOISY_TTFT_MOVED_MAX:.0%}; prefix hits lost {100 * lost:.1f} points, aim at most "
        f"{100 * NOISY_HITS_LOST_MAX:g}"
    )
    workload = (
        f"SmolLM2-135M, 96 in of which 64 shared, 8 out; {TENANTS - 1} quiet tenants at {arguments.rate / TENANTS:g}/s "
        f"each, one at that and at {NOISY_TIMES * arguments.rate / TENANTS:g}/s"
        f"{_formats(arguments)}"
    )
    if arguments.quick:
        print("; ".join(f"{name} {value:.4g}" for name, value in found.items()))
    else:
        append_rows("serving_noisy", found, bench.machine, workload, arguments.note)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--premium", type=int, help=f"requests in each half; {REQUESTS}, with --quick {QUICK}")
    parser.add_argument("--quick", action="store_true", help="appends no row: for tuning")
    parser.add_argument("--lead-s", type=float, default=0.0, help="seconds of flood before premium begins")
    parser.add_argument("--host-pool-gib", type=float, default=0.0, help="host memory for pages of the preempted")
    parser.add_argument("--kv-pages", type=int, default=KV_PAGES, help="on a GPU: pages that requests may have")
    parser.add_argument("--seed", type=int, default=1)
    add_tier_options(parser)
    parser.add_argument("--cpu", action="store_true", help="the demo model on this CPU")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="its directory")
    parser.add_argument("--models", type=int, default=1, choices=(1, 2), help="2: batch has a model of its own")
    parser.add_argument("--second", type=Path, help="with --cpu --models 2: its directory; --model's again without it")
    parser.add_argument("--noisy", action="store_true", help="ten tenants in one tier, on this CPU")
    parser.add_argument("--rate", type=float, default=3.0, help="with --noisy: requests a second of all ten together")
    add_format_options(parser)
    parser.add_argument("--points", type=Path, help="write each request's TTFT there")
    parser.add_argument("--plot", type=Path, help="draw such a file, and measure nothing")
    parser.add_argument("--image", type=Path, default=REPO / "docs" / "img" / "flood_ttft.png")
    parser.add_argument("--note", default="", help="with --noisy and --models: stands in the rows")
    arguments = parser.parse_args(argv)
    arguments.cpu |= arguments.noisy
    arguments.premium = arguments.premium or (QUICK if arguments.quick else REQUESTS)
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.plot:
        from benchmarks.serving.flood_plot import draw

        draw(arguments.plot, arguments.image)
        return 0
    if not arguments.cpu and not _has_cuda():
        print("this needs a CUDA device; --cpu runs it on the CPU", file=sys.stderr)
        return 2
    bench = cpu_bench(arguments) if arguments.cpu else gpu_bench(arguments)
    for tier in bench.config.tiers:
        print(tier)
    measure = measure_noisy if arguments.noisy else measure_flood
    measure(bench, arguments)
    return 0


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
