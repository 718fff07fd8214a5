"""A bf16, an fp8 and an int4 model in one arena, with adapters and two tiers: are pages, books and targets respected?

    python -m benchmarks.serving.mixed_formats [--seconds 30] [--lead-s 10] [--kv-pages 2048] [--cpu]

Three models of Llama-3.1-8B's shape with random weights: bf16; fp8 with KV in fp8; int4. 64 adapters of rank 16 are
dealt over them. Premium: Poisson, 4 a second over all three, 512 tokens in, 64 out. Batch: always outstanding, 512 in,
256 out, in an arena too small for it. Premium's targets fit three models that share a device: 100 ms and 100 ms for
1,000 prompt tokens until the first token, 60 ms between tokens. The real loop, scheduler and runner, with prefix cache
and host pool. `--cpu`: small models in float32, appends no rows.

Each check prints a line, and the exit status is 1 when one fails (benchmarks/serving/audit.py describes the poisoned
pages): every request ends as planned; no logits are NaN; the guard is untouched; arena and prefix cache are whole;
tokens drawn are tokens delivered and discarded; all device seconds are charged; premium's p99 of TTFT and of the gaps
between tokens are within the tier's targets; batch advances in every model; batch was preempted. Appends a row for each
model to benchmarks/results/serving_mixed_formats.csv.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from adapters.device.pool import TilePool
from adapters.files.spec import BaseShape
from benchmarks.serving import flood, llama, shapes
from benchmarks.serving.audit import Audit, poison_removed_rows
from benchmarks.serving.formats import format_columns
from benchmarks.serving.gateway import Measured, Phase, Request, Traffic, drive
from engine.__main__ import ServedRunner
from engine.cpu.runner import build_runner
from engine.protocol.config import EngineConfig
from engine.scheduler.scheduler import Scheduler
from engine.step import NO_ID

FORMATS = (("none", "auto"), ("fp8", "fp8"), ("int4", "auto"))  # of weights and KV
CPU_FORMATS = (("none", "auto"), ("fp8", "fp8"), ("int4", "fp8"))
ADAPTERS, CPU_ADAPTERS, RANK = 64, 6, 16
ARENA_GIB, HOST_POOL_GIB = 11.0, 4.0
CPU_ARENA_BYTES, CPU_HOST_POOL_BYTES = 32 << 20, 4 << 20
SEQUENCES, STEP_TOKENS = 256, 2048
CPU_SEQUENCES, CPU_STEP_TOKENS = 8, 128
TTFT_BASE_MS, INTER_TOKEN_MS = 100.0, 60.0  # premium's targets
WARM_OUTSTANDING = 8  # of each model
NAMES_KEPT = 3  # faults that are shown of a failed check
# A step of it takes a busy CPU a few milliseconds.
CPU_SHAPE = shapes.SMALL | {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Load:
    """`rate` of premium and `outstanding` of batch are for all models together."""

    prompt: int
    premium_new: int
    batch_new: int
    prefix: int  # of batch's prompts, the same in all of a model
    rate: float
    outstanding: int
    warm_s: float


GPU_LOAD = Load(prompt=512, premium_new=64, batch_new=256, prefix=64, rate=4.0, outstanding=512, warm_s=5.0)
CPU_LOAD = Load(prompt=80, premium_new=8, batch_new=32, prefix=64, rate=3.0, outstanding=24, warm_s=0.5)


@dataclass(frozen=True)
class Served:
    config: EngineConfig
    runner: ServedRunner
    adapters: Mapping[str, list[str]]  # by model
    load: Load


@dataclass(frozen=True)
class Check:
    name: str
    faults: Sequence[str]  # empty: the check passed
    says: str = ""  # the line of a passed check


def gpu_served(arguments: argparse.Namespace) -> Served:
    config = llama.gpu_config(
        flood.tiers(arguments), ARENA_GIB, RANK, STEP_TOKENS, SEQUENCES, len(FORMATS), formats=FORMATS
    )
    config = msgspec.structs.replace(config, host_pool_bytes=int(HOST_POOL_GIB * 2**30))
    runner = llama.build(config)
    return _with_adapters(config, runner, llama.base(), GPU_LOAD, ADAPTERS, arguments.kv_pages)


def cpu_served(arguments: argparse.Namespace, directory: Path) -> Served:
    names = [f"small-{index}" for index in range(len(CPU_FORMATS))]
    models = [
        msgspec.structs.replace(
            shapes.dummy(directory, name, CPU_SHAPE, "float32"),
            quantize=quantize,
            kv_dtype=kv,
        )
        for name, (quantize, kv) in zip(names, CPU_FORMATS, strict=True)
    ]
    config = EngineConfig(
        models=tuple(models),
        tiers=flood.tiers(arguments),
        arena_bytes=CPU_ARENA_BYTES,
        host_pool_bytes=CPU_HOST_POOL_BYTES,
        step_tokens_max=CPU_STEP_TOKENS,
        prefill_tokens_min=16,
        sequences_max=CPU_SEQUENCES,
        threads=1,
    )
    base = BaseShape.from_config(CPU_SHAPE)
    return _with_adapters(config, build_runner(config), base, CPU_LOAD, CPU_ADAPTERS, arguments.kv_pages)


def _with_adapters(
    config: EngineConfig, runner: ServedRunner, base: BaseShape, load: Load, count: int, kv_pages: int
) -> Served:
    on_gpu, adapters, first = config.device == "cuda", dict[str, list[str]](), 0
    assert isinstance(runner.adapters, TilePool)
    for index, model in enumerate(config.models):
        own = count // len(config.models) + (index < count % len(config.models))
        adapters[model.name] = llama.add_adapters(
            runner.adapters, base, own, [RANK], model=model.name, first=first,
            dtype=torch.bfloat16 if on_gpu else torch.float32, device=config.device,
        )  # fmt: skip
        first += own
    taken = flood.limit_kv(runner, [digest for own in adapters.values() for digest in own], kv_pages)
    print(f"{kv_pages} pages of {runner.page_bytes} bytes for KV, {taken} for {count} adapters", flush=True)
    return Served(config, runner, adapters, load)


def phases(load: Load, models: Sequence[str], lead_s: float, seconds: float) -> list[Phase]:
    """Each model has its own part of the traffic, so that every model serves both tiers."""
    part = len(models)
    warm, mixed = list[Traffic](), list[Traffic]()
    for model in models:
        own = (model,)
        warm.append(Traffic("warm", "premium", load.prompt, 4, outstanding=WARM_OUTSTANDING, share=model, models=own))
        mixed.append(
            Traffic("premium", "premium", load.prompt, load.premium_new, load.rate / part, share=model, models=own)
        )
        mixed.append(
            Traffic(
                "batch", "batch", load.prompt, load.batch_new, outstanding=load.outstanding // part, share=model,
                prefix_tokens=load.prefix, models=own,
            )
        )  # fmt: skip
    mixed.sort(key=lambda traffic: traffic.outstanding)
    return [
        Phase("warm", tuple(warm), seconds=load.warm_s),
        Phase("mixed", tuple(mixed), lead_s=lead_s, seconds=seconds),
    ]


# ---- checks


def checks(audit: Audit, done: Sequence[Measured], served: Served) -> list[Check]:
    requests, mixed = [request for measured in done for request in measured.requests], done[-1]
    guards, arena = audit.written_guards(), audit.scheduler.arena
    nan = [f"{request.model}: {request.error}" for request in requests if NO_ID in request.error]
    still = [model.name for model in served.config.models if not _tok_s(mixed, model.name, "batch")]
    preemptions = audit.scheduler.preemptions
    return [
        Check(
            "endings", [why for request in requests if (why := ending_fault(request))], f"{len(requests)} as planned"
        ),
        Check("finite logits", nan, f"{audit.poisoned} released pages were poisoned in {audit.steps} steps"),
        Check("guard", [f"{guards} pages were written"] if guards else [], f"{len(audit.bytes) - arena.pages} pages"),
        Check("integrity", audit.faults, f"{audit.integrity_checks} times"),
        Check("books of tokens", audit.book_faults(requests), f"{audit.drawn.total()} drawn"),
        Check("books of seconds", audit.seconds_faults(requests), f"{sum(audit.step_s.values()):.3f} s"),
        *target_checks(mixed, served),
        Check("batch advances", [f"{model} made no batch token" for model in still], "in each model"),
        Check("preemptions", [] if preemptions else ["no request was preempted"], str(preemptions)),
    ]


def ending_fault(request: Request) -> str:
    """Why the request did not end as planned; "": it did. Requests of an `outstanding` traffic are aborted at the end
    of their phase."""
    made, asked = len(request.token_s), request.traffic.new_tokens
    if request.ending == "length" and made == asked:
        return ""
    if request.ending == "aborted" and request.traffic.outstanding:
        return ""
    why = request.failed or request.ending or "it never ended"
    return f"{request.model}: a {request.traffic.name} request made {made} of {asked} ids: {why}"


def target_checks(mixed: Measured, served: Served) -> list[Check]:
    tier = served.config.tiers[0]
    ttft_max = tier.ttft_base_ms + tier.ttft_per_1k_prompt_tokens_ms * served.load.prompt / 1000
    own = mixed.of("premium")
    found = []
    for name, values, target in (
        ("premium TTFT p99", [request.ttft_ms for request in own], ttft_max),
        ("premium inter-token p99", [gap for request in own for gap in request.gaps_ms()], tier.inter_token_ms),
    ):
        p99 = flood.percentile(values, 99) if values else float("inf")
        says = f"{p99:.1f} ms of {len(values)}, target {target:.1f} ms"
        found.append(Check(name, [] if p99 <= target else [says], says))
    return found


# ---- figures


def _tok_s(mixed: Measured, model: str, traffic: str = "") -> float:
    own = (r for r in mixed.requests if r.model == model and traffic in ("", r.traffic.name))
    tokens = sum(mixed.began_s <= at <= mixed.ended_s for request in own for at in request.token_s)
    return tokens / (mixed.ended_s - mixed.began_s)


def rows(mixed: Measured, served: Served, failed: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for model in served.config.models:
        requests = [request for request in mixed.requests if request.model == model.name]
        premium = mixed.of("premium", model.name)
        ttft = [request.ttft_ms for request in premium] or [float("nan")]
        gaps = [gap for request in premium for gap in request.gaps_ms()] or [float("nan")]
        columns = {
            "model": model.name,
            "adapters": len(served.adapters[model.name]),
            "requests": len(requests),
            "tok_s": f"{_tok_s(mixed, model.name):.0f}",
            "batch_tok_s": f"{_tok_s(mixed, model.name, 'batch'):.0f}",
            "premium_ttft_p50_ms": f"{flood.percentile(ttft, 50):.1f}",
            "premium_ttft_p99_ms": f"{flood.percentile(ttft, 99):.1f}",
            "premium_itl_p99_ms": f"{flood.percentile(gaps, 99):.1f}",
            "preemptions": sum(request.usage.preemptions for request in requests),
            "swapped_tokens": sum(request.usage.swapped_tokens for request in requests),
            "cached_tokens": sum(request.usage.cached_tokens for request in requests),
            "checks_failed": failed,
        }
        dtype = "bf16" if model.dtype == "bfloat16" else model.dtype
        found.append(columns | format_columns(model.quantize, model.kv_dtype, dtype))
    return found


def report(table: Sequence[Mapping[str, object]], found: Sequence[Check]) -> None:
    names = ["model", "weights", "kv", *(name for name in table[0] if name not in ("model", "weights", "kv"))]
    for name in names:
        print(f"{name:24}" + "".join(f"{row[name]!s:>18}" for row in table))
    for check in found:
        if check.faults:
            more = f" (and {len(check.faults) - NAMES_KEPT} more)" if len(check.faults) > NAMES_KEPT else ""
            print(f"FAILED {check.name}: {'; '.join(check.faults[:NAMES_KEPT])}{more}")
        else:
            print(f"holds  {check.name}: {check.says}")


def run(served: Served, arguments: argparse.Namespace, after_step: Callable[[Audit], None]) -> int:
    """Drive, check and report. Returns the exit status: 1 when a check failed."""
    audits: list[Audit] = []
    pool = served.runner.adapters
    assert isinstance(pool, TilePool)

    def prepare(scheduler: Scheduler) -> None:
        poison_removed_rows(pool.rows)
        audits.append(
            Audit(
                scheduler,
                pool._arena,
                poison_steps=arguments.poison_steps,
                check_steps=arguments.check_steps,
                after_step=after_step,
            )
        )

    models = [model.name for model in served.config.models]
    plan = phases(served.load, models, arguments.lead_s, arguments.seconds)
    try:
        done = drive(served.config, served.runner, served.adapters, plan, arguments.seed, prepare)
    except AssertionError as error:
        print(f"FAILED integrity: {error}")
        return 1
    audits[0].check_integrity()
    found = checks(audits[0], done, served)
    failed = sum(bool(check.faults) for check in found)
    table = rows(done[-1], served, failed)
    report(table, found)
    if not arguments.cpu:
        llama.append_rows(table, "serving_mixed_formats")
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="small float32 models on this CPU; appends no rows")
    parser.add_argument("--seconds", type=float, default=30.0, help="that are measured")
    parser.add_argument("--lead-s", type=float, default=10.0, help="of the same traffic before")
    parser.add_argument("--kv-pages", type=int, help="beside those of all adapters; 2,048, on the CPU 48")
    parser.add_argument("--poison-steps", type=int, default=1, help="steps between two poisonings of the free pages")
    parser.add_argument("--check-steps", type=int, default=200, help="steps between two checks of integrity")
    flood.add_tier_options(parser)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    arguments.kv_pages = arguments.kv_pages or (48 if arguments.cpu else 2048)
    if not arguments.cpu:
        arguments.ttft_base_ms = arguments.ttft_base_ms or TTFT_BASE_MS
        arguments.inter_token_ms = arguments.inter_token_ms or INTER_TOKEN_MS
    return arguments


def main(argv: Sequence[str] | None = None, after_step: Callable[[Audit], None] = lambda _: None) -> int:
    """`after_step`: called after each step; tests plant faults there."""
    arguments = parse(argv)
    if not arguments.cpu and not torch.cuda.is_available():
        print("this needs a CUDA device; --cpu runs it on the CPU", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        served = cpu_served(arguments, Path(scratch)) if arguments.cpu else gpu_served(arguments)
        return run(served, arguments, after_step)


if __name__ == "__main__":
    sys.exit(main())
