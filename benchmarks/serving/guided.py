"""The cost of grammars and penalties in an engine's steps: the same rows, one kind of request a run, kinds in turn.

    python -m benchmarks.serving.guided [--seconds 75] [--rows 256] [--tokens 256] [--text-chars 0]
    python -m benchmarks.serving.guided --host [--note TEXT]    the host's part alone: masks and compilations
    python -m benchmarks.serving.guided --cpu                   laneway-tiny at toy size; appends no rows

Llama-3.1-8B's shape with random weights and a tokenizer made for it (benchmarks/serving/guided_inputs.py). All requests
of a run are submitted at once, with 128 random prompt tokens. Kinds: plain; guided by one schema; by a schema for each
row; with all three penalties; half of the rows guided by different schemas; and half of the rows guided by hostile
schemas with slow masks, until the other half has ended. Every request of the other kinds makes the same number of ids:
no request has stop ids, and no schema has an instance with fewer ids. Grammars are compiled before a run begins.

A trained model ends strings by itself, and most schemas bound no string. Random weights draw an id that ends a string
once in 100,000 draws, so all kinds have a bias on these ids, which ends strings after some ten ids. With `--text-chars
N` there is no bias: each string ends at its maxLength N, where masks are the slowest.

The engine's own path without its sockets: GuidedRequests (compiler, matchers, masks), Scheduler and StepFlights. A
share is the median, over rounds, of the kind's tokens a second over plain's in the same round. `step_p99_ms` is the p99
of decode steps with all rows; of the kinds "half" and "hostile" it is the p99 of the gaps between two ids of their
unguided rows, which compares with the gaps of plain. Appends rows to benchmarks/results/serving_guided.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rows import RESULTS, append_table
from benchmarks.serving import shapes
from benchmarks.serving.guided_host import percentile, run_host
from benchmarks.serving.guided_inputs import closing_ids, hostile_schema_of, schema_of, write_model_directory
from engine.guided.requests import MASK_WAIT_S, GuidedRequests, GuideRefused, build_guided_requests
from engine.loop.flights import StepFlights
from engine.loop.interpreter import tune_interpreter
from engine.memory.arena import Arena
from engine.protocol.frames import Guide, Sampling
from engine.protocol.inbox import Inbox, LoopCall
from engine.protocol.tiers import Tier
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Runner, Sequence
from engine.text.json_schemas import json_schema_grammar

if TYPE_CHECKING:
    from engine.gpu.runner import GpuRunner

KINDS = ("plain", "one_schema", "many_schemas", "penalties", "half", "hostile")
# Every second row is unguided.
HALVES = ("half", "hostile")
PROMPT_TOKENS, STEP_TOKENS = 128, 8192
TINY = Path(__file__).resolve().parents[2] / "examples" / "models" / "laneway-tiny"
# The workload has no targets.
PATIENT_MS = 3_600_000.0
TIER = Tier(
    name="throughput", service_tier="default", inter_token_ms=PATIENT_MS, ttft_base_ms=PATIENT_MS, queue_max=1_000_000
)
COMPILE_WAIT_S = 60.0
ROUNDS_MIN = 1
# The bias of the about ten ids that may end a string, against some 100,000 that may continue it.
CLOSING_BIAS = 7.0


@dataclass(frozen=True)
class Bench:
    """`directory` has the tokenizer of `model`."""

    runner: Runner
    model: str
    directory: Path
    rows: int
    tokens: int
    prompt: int = PROMPT_TOKENS
    step_tokens: int = STEP_TOKENS
    text_chars: int = 0
    bias: dict[int, float] = field(default_factory=dict)  # of every row of every kind


@dataclass
class Run:
    seconds: float = 0.0
    tokens: int = 0
    step_s: list[float] = field(default_factory=list)  # of decode steps with all rows
    free_gap_s: list[float] = field(default_factory=list)  # between two ids of a row without a grammar
    skipped: int = 0  # skipped draws
    failed: int = 0  # requests that ended with an error because their masks were late
    mask_s: float = 0.0

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def grammar_of(kind: str, index: int, bench: Bench) -> str | None:
    """The grammar of a row."""
    if kind in ("plain", "penalties") or (kind in HALVES and index % 2):
        return None
    if kind == "hostile":
        return json_schema_grammar(hostile_schema_of(index // 2))
    number = 0 if kind == "one_schema" else index
    return json_schema_grammar(schema_of(number, bench.tokens, bench.text_chars))


def sampling_of(kind: str, index: int, bias: dict[int, float]) -> Sampling:
    if kind == "penalties":
        return Sampling(
            temperature=1.0, seed=index, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5,
            logit_bias=bias,
        )  # fmt: skip
    return Sampling(temperature=1.0, seed=index, logit_bias=bias)


def sequences_of(kind: str, bench: Bench, seed: int) -> list[Sequence]:
    vocab_size = bench.runner.models[bench.model].vocab_size
    return [
        Sequence(
            handle=index,
            gateway=0,
            request_id=f"r{index}",
            model=bench.model,
            adapter=None,
            namespace="",
            tier=TIER.name,
            share="",
            # New prompts in each run, so that the prefix cache has none of them.
            prompt_ids=[1 + (7919 * (seed * bench.rows + index) + 104_729 * at) % (vocab_size // 2)
                        for at in range(bench.prompt)],
            max_tokens=bench.tokens,
            sampling=sampling_of(kind, index, bench.bias),
            stop_ids=frozenset(),
            arrived_at=0.0,
        )
        for index in range(bench.rows)
    ]  # fmt: skip


def new_scheduler(bench: Bench) -> Scheduler:
    runner, info = bench.runner, bench.runner.models[bench.model]
    limits = {bench.model: ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)}
    return Scheduler(
        (TIER,), limits, Arena(runner.pages, runner.page_bytes), runner.adapters, time.monotonic,
        step_tokens_max=bench.step_tokens, sequences_max=bench.rows, steps_ahead=runner.steps_ahead,
    )  # fmt: skip


class Guided:
    """The engine's guided requests, and the loop's part of their compilation."""

    def __init__(self, bench: Bench) -> None:
        self._inbox = Inbox()
        self._ready: list[Sequence] = []
        vocab_size = bench.runner.models[bench.model].vocab_size
        self.requests: GuidedRequests = build_guided_requests(
            self._inbox, MASK_WAIT_S, lambda _: (bench.directory, vocab_size), self._ready.append, self._refuse
        )

    def add_all(self, sequences: list[Sequence], grammars: list[str | None]) -> set[Sequence]:
        """Wait until every grammar is compiled. Returns the sequences that have a grammar."""
        guided = {own: text for own, text in zip(sequences, grammars, strict=True) if text is not None}
        self._ready.clear()
        ready_at_once = 0
        for own, text in guided.items():
            while True:
                try:
                    ready_at_once += self.requests.add_request(own, Guide(text))
                    break
                except GuideRefused as refusal:
                    if refusal.code != "queue_full":
                        raise
                    self._take_commands()
        while ready_at_once + len(self._ready) < len(guided):
            self._take_commands()
        return set(guided)

    def _take_commands(self) -> None:
        commands = self._inbox.take_commands(COMPILE_WAIT_S)
        if not commands:
            raise SystemExit(f"no grammar was compiled within {COMPILE_WAIT_S:.0f} s")
        for command in commands:
            assert isinstance(command, LoopCall)
            command.function()

    def _refuse(self, sequence: Sequence, refusal: GuideRefused) -> None:
        raise SystemExit(f"{sequence.request_id}: {refusal}")


@contextmanager
def guided_requests(bench: Bench) -> Iterator[Guided]:
    guided = Guided(bench)
    try:
        yield guided
    finally:
        guided.requests.stop()


def drive(kind: str, bench: Bench, scheduler: Scheduler, guided: Guided, seed: int) -> Run:
    """Submit all rows and run until the last has ended, as `EngineLoop` does without sockets and frames."""
    sequences = sequences_of(kind, bench, seed)
    with_grammar = guided.add_all(sequences, [grammar_of(kind, index, bench) for index in range(bench.rows)])
    before = guided.requests.counts()
    flights = StepFlights(bench.runner, time.perf_counter, guided.requests)
    run, last_at, ended = Run(), dict.fromkeys(sequences, 0.0), 0
    free = set(sequences) - with_grammar
    started = completed_at = time.perf_counter()
    for sequence in sequences:
        refusal = scheduler.submit(sequence)
        assert refusal is None, refusal
    while ended < bench.rows:
        while flights.may_begin() and (step := scheduler.schedule(flights.skipped)) is not None:
            flights.begin_step(step)
        flight = flights.take_oldest()
        result = flight.result()
        guided.requests.name_errors(flight.step, result.errors)
        now = time.perf_counter()
        outcome = scheduler.complete(flight.step, result, now - max(flight.began, completed_at))
        flights.draw_oldest()
        if len(flight.step.chunks) == bench.rows == sum(chunk.count for chunk in flight.step.chunks):
            run.step_s.append(now - completed_at)
        completed_at = now
        for sequence, _ in outcome.tokens:
            if last_at[sequence] and sequence not in with_grammar:
                run.free_gap_s.append(now - last_at[sequence])
            last_at[sequence] = now
        run.tokens += len(outcome.tokens)
        for own in outcome.ended:
            if own.reason not in ("length", "error") and not (own.reason == "aborted" and kind == "hostile"):
                raise SystemExit(f"{kind}: a request ended with {own.reason}: {own.message}")
            if own.reason == "error" and not run.failed:
                print(f"{kind}: {own.message}", file=sys.stderr)
            run.failed += own.reason == "error"
            guided.requests.remove_text(own.sequence)
            ended += 1
            free.discard(own.sequence)
        if kind == "hostile" and not free:
            # A request in a step in flight is not returned here; it ends with that step.
            for own in scheduler.abort_gateway(0):
                guided.requests.remove_text(own.sequence)
                ended += 1
    while flights:  # steps of requests that have ended
        flight = flights.take_oldest()
        scheduler.complete(flight.step, flight.result(), 0.0)
        flights.draw_oldest()
    run.seconds = completed_at - started
    after = guided.requests.counts()
    run.skipped, run.mask_s = after.draws_skipped - before.draws_skipped, after.mask_wait_s - before.mask_wait_s
    return run


def measure(bench: Bench, seconds: float) -> dict[str, list[Run]]:
    """The runs of each round, by kind. A first round warms every kernel and does not count. Then rounds begin until
    `seconds` have passed, and at least ROUNDS_MIN rounds run. Every second round runs the kinds in reverse order."""
    found: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    scheduler = new_scheduler(bench)
    tune_interpreter()
    with guided_requests(bench) as guided:
        began, number, seed = time.monotonic(), 0, 0
        longest = 0.0
        while number <= ROUNDS_MIN or time.monotonic() + longest < began + seconds:
            round_began = time.monotonic()
            for kind in KINDS if number % 2 else reversed(KINDS):
                run = drive(kind, bench, scheduler, guided, seed)
                seed += 1
                if number:
                    found[kind].append(run)
            longest = max(longest, time.monotonic() - round_began) if number else 0.0
            number += 1
    return found


def rows_of(found: dict[str, list[Run]], bench: Bench, gpu: str) -> list[dict[str, object]]:
    """The row of each kind, printed too."""
    rows: list[dict[str, object]] = []
    schemas = {"one_schema": 1, "many_schemas": bench.rows, **dict.fromkeys(HALVES, (bench.rows + 1) // 2)}
    plain_gaps = 1000 * percentile([gap for run in found["plain"] for gap in run.free_gap_s], 0.99)
    for kind, runs in found.items():
        shares = [run.tok_s / plain.tok_s for run, plain in zip(runs, found["plain"], strict=True)]
        steps = [second for run in runs for second in (run.free_gap_s if kind in HALVES else run.step_s)]
        step_p99, count = 1000 * percentile(steps, 0.99), sum(len(run.step_s) for run in runs)
        row = {
            "gpu": gpu,
            "rows": bench.rows,
            "schemas": schemas.get(kind, 0),
            "kind": kind + (f"_{bench.text_chars}_chars" if bench.text_chars else ""),
            "out_tok_s": f"{statistics.median(run.tok_s for run in runs):.0f}",
            "share_of_plain": f"{statistics.median(shares):.4f}",
            "step_p99_ms": f"{step_p99:.3f}",
        }
        rows.append(row)
        print(
            f"{kind:12} {row['out_tok_s']:>8} tok/s  share of plain {row['share_of_plain']} (rounds "
            f"{min(shares):.4f} to {max(shares):.4f})  {'gap' if kind in HALVES else 'step'} p50 "
            f"{1000 * percentile(steps, 0.5):.2f} ms p99 {step_p99:.2f} ms  masks waited "
            f"{1000 * sum(run.mask_s for run in runs) / max(1, count):.2f} ms a step, "
            f"{sum(run.skipped for run in runs)} draws skipped, {sum(run.failed for run in runs)} requests failed"
            + (
                f"  plain rows' gap p99 {plain_gaps:.2f} ms, {step_p99 / plain_gaps:.4f} of it"
                if kind in HALVES
                else ""
            ),
            flush=True,
        )
    return rows


def gpu_bench(arguments: argparse.Namespace, scratch: Path) -> Bench:
    from benchmarks.serving import llama

    config = llama.gpu_config((TIER,), arguments.arena_gib, 16, STEP_TOKENS, arguments.rows)
    began = time.perf_counter()
    runner: GpuRunner = llama.build(config, with_lora=False)
    directory = write_model_directory(scratch / "model", shapes.llama_8b())
    print(f"built and captured in {time.perf_counter() - began:.1f} s", flush=True)
    bias = {} if arguments.text_chars else dict.fromkeys(closing_ids(shapes.llama_8b()["vocab_size"]), CLOSING_BIAS)
    return Bench(
        runner, llama.MODEL, directory, arguments.rows, arguments.tokens, text_chars=arguments.text_chars, bias=bias
    )


def cpu_bench() -> Bench:
    from engine.cpu.runner import build_runner
    from engine.protocol.config import EngineConfig, ModelConfig

    model = ModelConfig(name="laneway-tiny", path=str(TINY))
    runner = build_runner(EngineConfig(models=(model,), threads=1, arena_bytes=64 * 2**20))
    return Bench(runner, model.name, TINY, rows=8, tokens=16, prompt=8, step_tokens=256)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75.0, help="for which rounds begin")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256, help="output tokens of each request")
    parser.add_argument("--text-chars", type=int, default=0, help="maxLength of the schemas' strings; 0: none")
    parser.add_argument("--arena-gib", type=float, default=24.0)
    parser.add_argument("--host", action="store_true", help="masks and compilations alone, without a model")
    parser.add_argument("--cpu", action="store_true", help="laneway-tiny on the CPU, at toy size")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args(argv)
    if arguments.host:
        run_host(arguments.note)
        return 0
    if arguments.cpu:
        bench = cpu_bench()
        rows_of(measure(bench, 0.0), bench, "CPU")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("this needs a CUDA device, --host or --cpu", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        bench = gpu_bench(arguments, Path(scratch))
        rows = rows_of(measure(bench, arguments.seconds), bench, torch.cuda.get_device_name())
    append_table(rows, RESULTS / "serving_guided.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())
