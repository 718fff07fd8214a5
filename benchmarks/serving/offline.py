"""Multi-LoRA throughput on one GPU: exactly the reference workload, through the real scheduler and runner.

    python -m benchmarks.serving.offline [--adapters 0,1,8,16,64,256] [--repeats 2] [--quantize fp8] [--kv fp8]

Llama-3.1-8B's shape with random weights in bfloat16, adapters of rank 16 on all seven linear modules, 512 requests at
once of 128 random prompt tokens and 128 greedy output tokens (no stop ids), at most 256 sequences and 8,192
tokens a step, adapters warm and dealt round-robin. Beside every figure stands the bound: a step of ours without LoRA,
and each distinct adapter of its batch read once, and each adapted output read and written once more, at this device's
copy speed. Appends rows to benchmarks/results/serving_offline.csv.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass

import torch
import triton

from adapters.files.spec import BaseShape
from benchmarks.serving import llama
from benchmarks.serving.formats import add_format_options, format_columns
from engine.gpu.runner import GpuRunner
from engine.memory.arena import Arena
from engine.protocol.config import EngineConfig
from engine.protocol.frames import Sampling
from engine.protocol.tiers import Tier
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Pending, Sequence, Step

REQUESTS, PROMPT_TOKENS, NEW_TOKENS, SEQUENCES, STEP_TOKENS, RANK = 512, 128, 128, 256, 8192, 16
# Adapter counts; 0 is base traffic on an engine whose arena holds the largest requested number of adapters.
NO_ADAPTERS = -1
# vLLM 0.24.0 on one H200 (2026-10), the better of its two settings, output tokens per second by distinct adapters.
VLLM_TOK_S = {NO_ADAPTERS: 15491, 0: 15418, 1: 11942, 8: 10734, 16: 9347, 64: 5192, 256: 1860}
# No floors reserve capacity: the workload has no targets.
PATIENT_MS = 3_600_000.0
TIER = Tier(
    name="throughput",
    service_tier="default",
    inter_token_ms=PATIENT_MS,
    ttft_base_ms=PATIENT_MS,
    queue_max=1_000_000,
)


@dataclass(frozen=True)
class Run:
    seconds: float
    tokens: int
    steps: int
    adapter_reads: int  # distinct adapters, summed over steps
    adapted_rows: int  # tokens of requests with an adapter
    step_ms: float  # median of full decode steps
    host_ms: float  # median time of the host a step: schedule, begin, complete

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def config(arena_gib: float, ranks: list[int], quantize: str = "none", kv: str = "auto") -> EngineConfig:
    return llama.gpu_config((TIER,), arena_gib, max(ranks), STEP_TOKENS, SEQUENCES, quantize=quantize, kv=kv)


def sequences(digests: list[str], requests: int, seed: int, prompt: int, new: int) -> list[Sequence]:
    dice = random.Random(seed)
    return [
        Sequence(
            handle=index,
            gateway=0,
            request_id=f"r{index}",
            model=llama.MODEL,
            adapter=digests[index % len(digests)] if digests else None,
            namespace="",
            tier=TIER.name,
            share="",
            prompt_ids=[dice.randrange(1000, 120_000) for _ in range(prompt)],
            max_tokens=new,
            sampling=Sampling(temperature=0.0),
            stop_ids=frozenset(),
            arrived_at=0.0,
        )
        for index in range(requests)
    ]


def drive(runner: GpuRunner, scheduler: Scheduler, requests: list[Sequence]) -> Run:
    """Submit all at once and run until the last has ended: the engine's loop without its sockets."""
    for sequence in requests:
        refusal = scheduler.submit(sequence)
        assert refusal is None, refusal
    flight: deque[tuple[Step, Pending]] = deque()
    tokens = steps = adapter_reads = adapted_rows = ended = 0
    decode_s: list[float] = []
    host_s: list[float] = []
    torch.cuda.synchronize()
    started = last = time.perf_counter()
    while True:
        host_began = time.perf_counter()
        while len(flight) < 1 + runner.steps_ahead:
            step = scheduler.schedule()
            if step is None:
                break
            flight.append((step, runner.begin_step(step)))
            if len(flight) == 1:
                flight[0][1].draw(None)
        host_end = time.perf_counter()
        if not flight:
            if scheduler.has_blocked_requests:  # no adapter is in the arena yet
                continue
            break
        step, pending = flight.popleft()
        result = pending.result()
        now = time.perf_counter()
        outcome = scheduler.complete(step, result, now - last)
        if flight:
            flight[0][1].draw(None)
        host_s.append(host_end - host_began + time.perf_counter() - now)
        rows = sum(chunk.count for chunk in step.chunks)
        if rows == len(step.chunks) == SEQUENCES:
            decode_s.append(now - last)
        last = now
        steps += 1
        tokens += len(outcome.tokens)
        ended += len(outcome.ended)
        adapters = {chunk.sequence.adapter for chunk in step.chunks} - {None}
        adapter_reads += len(adapters)
        adapted_rows += sum(chunk.count for chunk in step.chunks if chunk.sequence.adapter is not None)
        bad = [own for own in outcome.ended if own.reason != "length"]
        assert not bad, bad[:1]
    seconds = time.perf_counter() - started
    assert ended == len(requests)
    step_ms = 1000 * statistics.median(decode_s) if decode_s else 0.0
    return Run(seconds, tokens, steps, adapter_reads, adapted_rows, step_ms, 1000 * statistics.median(host_s))


def new_scheduler(runner: GpuRunner) -> Scheduler:
    info = runner.models[llama.MODEL]
    limits = {llama.MODEL: ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)}
    return Scheduler(
        (TIER,),
        limits,
        Arena(runner.pages, runner.page_bytes),
        runner.adapters,
        time.monotonic,
        step_tokens_max=STEP_TOKENS,
        sequences_max=SEQUENCES,
        steps_ahead=runner.steps_ahead,
    )


def bound_seconds(base: Run, run: Run, adapter_bytes: float, output_bytes: int, ceilings: llama.Ceilings) -> float:
    """The bound: the base's time, every distinct adapter of a step read once, every adapted output read and written
    once more."""
    moved = run.adapter_reads * adapter_bytes + run.adapted_rows * 2 * output_bytes
    return base.seconds + moved / ceilings.copy_bytes_per_s


def output_bytes(base: BaseShape) -> int:
    """Bytes of all adapted outputs of one token."""
    return 2 * base.layers * sum(shape.out_features for shape in base.modules.values())


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    counts = [int(count) for count in arguments.adapters.split(",")]
    ranks = [int(rank) for rank in arguments.ranks.split(",")]
    ceilings = llama.measure_ceilings()
    gpu = torch.cuda.get_device_name()
    print(
        f"{gpu}: copy {ceilings.copy_bytes_per_s / 1e12:.2f} TB/s, bf16 product "
        f"{ceilings.product_flops_per_s / 1e12:.0f} TFLOP/s; torch {torch.__version__}, triton {triton.__version__}"
    )
    began = time.perf_counter()
    runner = llama.build(config(arguments.arena_gib, ranks, arguments.quantize, arguments.kv))
    base = llama.base()
    digests = llama.add_adapters(runner.adapters, base, max(counts), ranks)
    print(f"built and captured in {time.perf_counter() - began:.1f} s")
    adapter_bytes = (
        2.0
        * base.layers
        * statistics.mean(ranks)
        * sum(shape.in_features + shape.out_features for shape in base.modules.values())
    )
    rows: list[dict[str, object]] = []
    reference = best_run(runner, [], [], arguments.repeats)
    for count in [NO_ADAPTERS, *counts]:
        best = reference
        if count != NO_ADAPTERS:
            # A batch without adapters has the largest number of adapters in the arena too.
            best = best_run(runner, digests[:count] or digests, digests[:count], arguments.repeats)
        bound = bound_seconds(reference, best, adapter_bytes, output_bytes(base), ceilings)
        share, bound_share = best.tok_s / reference.tok_s, reference.seconds / bound
        times = best.tok_s / VLLM_TOK_S[count] if "H200" in gpu and ranks == [16] and count in VLLM_TOK_S else None
        print(
            f"{count:4d} adapters: {best.tok_s:8.0f} tok/s  share of base {share:.3f}  bound {bound_share:.3f}  "
            f"{100 * share / bound_share:5.1f} % of bound  {f'{times:.2f} x vLLM' if times else '':12}"
            f"decode step {best.step_ms:.2f} ms, host {best.host_ms:.2f} ms, {best.steps} steps",
            flush=True,
        )
        rows.append(
            {
                "rank": "/".join(map(str, ranks)),
                "distinct_adapters": count,
                "out_tok_s": f"{best.tok_s:.0f}",
                "share_of_base": f"{share:.4f}",
                "bound_share": f"{bound_share:.4f}",
                "times_vllm": f"{times:.3f}" if times else "",
                **format_columns(arguments.quantize, arguments.kv),
            }
        )
    return rows


def best_run(runner: GpuRunner, resident: list[str], dealt: list[str], repeats: int) -> Run:
    """The best of `repeats` runs, after a warm-up run that makes the adapters resident."""
    best: Run | None = None
    scheduler = new_scheduler(runner)
    for digest in runner.adapters.resident():
        runner.adapters.evict_adapter(digest)
    drive(runner, scheduler, sequences(resident, max(SEQUENCES, len(resident)), 0, PROMPT_TOKENS, 4))
    for repeat in range(repeats):
        run = drive(runner, scheduler, sequences(dealt, REQUESTS, 1 + repeat, PROMPT_TOKENS, NEW_TOKENS))
        best = run if best is None or run.seconds < best.seconds else best
    assert best is not None
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapters", default="0,1,8,16,64,256", help="numbers of distinct adapters")
    parser.add_argument("--ranks", default="16", help="dealt over the adapters in turn, as 8,16,32,64")
    parser.add_argument("--repeats", type=int, default=2)
    add_format_options(parser)
    parser.add_argument("--arena-gib", type=float, default=48.0)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a CUDA device", file=sys.stderr)
        return 2
    llama.append_rows(measure(arguments), "serving_offline")
    return 0


if __name__ == "__main__":
    sys.exit(main())
