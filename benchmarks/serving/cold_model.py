"""Base models loaded and evicted on one GPU: how long a request for a cold model waits, and how a load slows steps.

    python -m benchmarks.serving.cold_model [--rounds 6] [--decodes 32] [--disk DIR] [--skip-switch] [--note TEXT]

Two models of Llama-3.1-8B's shape and one of about 1.2 billion parameters, random weights in bfloat16. The real runner,
its steps begun one ahead, without scheduler or socket. In this order:

- both 8B resident: the step of `--decodes` streams of one, and of both in turns;
- a budget for the pinned small model and one 8B, the other 8B in page-locked host memory: while the small model
decodes, each 8B in turn replaces the other. Measured are the times from the request to resident weights and to the
first token of a prompt of 128 ids, and the small model's steps meanwhile against before. `first`: the first load, when
memory is mapped;
- with --disk the same for a model that is written there once as a safetensors file (16 GB), is in the page cache, and
is added while the small model decodes.

Appends rows to benchmarks/results/cold_model.csv.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.rows import append_rows
from benchmarks.serving import llama
from engine.gpu.build import build_gpu_runner
from engine.gpu.runner import GpuRunner
from engine.models.config import load_config
from engine.models.slab import slab_layout
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.step import PENDING_ID, Chunk, Pending, Sequence, Step

SMALL_CHANGES = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL, ONE, TWO, DISK = "small", "one", "two", "disk"
BIG_BYTES, SMALL_BYTES = 16_060_522_496, 2_471_628_800
PROMPT, CONTEXT = 128, 500
QUIET_S = 2.0
SLACK = 3 << 26


@dataclass
class Streams:
    """`count` requests of one model that decode without end, from a context whose KV was not computed."""

    runner: GpuRunner
    model: str
    count: int
    first_page: int
    sequences: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        per_page = self.runner.models[self.model].tokens_per_page
        each = -(-2 * CONTEXT // per_page)
        self.last_page = self.first_page + self.count * each
        assert self.last_page <= self.runner.pages
        for index in range(self.count):
            first = self.first_page + index * each
            sequence = request(self.model, CONTEXT, list(range(first, first + each)))
            sequence.output_ids.append(1)
            self.sequences.append(sequence)

    def begin(self) -> tuple[Step, Pending]:
        chunks = []
        for sequence in self.sequences:
            if len(sequence.output_ids) >= CONTEXT:
                sequence.output_ids[:] = sequence.output_ids[-1:]
            chunks.append(Chunk(sequence, CONTEXT + len(sequence.output_ids) - 1, 1, True))
        step = Step(0, self.model, chunks)
        pending = self.runner.begin_step(step)
        for sequence in self.sequences:
            sequence.output_ids.append(PENDING_ID)
        return step, pending


def request(model: str, tokens: int, pages: list[int]) -> Sequence:
    return Sequence(
        0, 0, "r", model, None, "", "t", "", [10 + i % 1000 for i in range(tokens)], 10**6, Sampling(temperature=0.0),
        frozenset(), 0.0, [], pages,
    )  # fmt: skip


class Loop:
    """Runs steps of the streams in turn, one ahead; a requested first token is computed in between."""

    def __init__(self, runner: GpuRunner, *streams: Streams) -> None:
        self.runner = runner
        self.step_ms: list[float] = []  # between two results
        self._streams = streams
        self._flights: deque[tuple[Step, Pending]] = deque()
        self._turn = 0
        self._last = 0.0

    def turn(self, also: Step | None = None) -> None:
        """Take one result; `also` is begun next."""
        for _ in self.runner.weights.poll_weights():
            pass
        if also is not None:
            self._flights.append((also, self.runner.begin_step(also)))
            self._draw_only()
        while len(self._flights) < 2:
            # A pending id was drawn in the step before: with two models in turns all ids are known by then.
            self._flights.append(self._streams[self._turn % len(self._streams)].begin())
            self._draw_only()
            self._turn += 1
        self._take()

    def drain(self) -> None:
        while self._flights:
            self._take()
        self._last = 0.0

    def quiet(self, seconds: float) -> list[float]:
        """Milliseconds of steps without a load."""
        for _ in range(30):
            self.turn()
        self.step_ms.clear()
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            self.turn()
        return list(self.step_ms)

    def _take(self) -> None:
        step, pending = self._flights.popleft()
        ids = pending.result().ids
        now = time.perf_counter()
        if self._last:
            self.step_ms.append(1000 * (now - self._last))
        self._last = now
        for chunk, found in zip(step.chunks, ids, strict=True):
            made = chunk.sequence.output_ids
            # Logits of random weights may be anything.
            known = found if found is not None else 1
            if PENDING_ID in made:
                made[made.index(PENDING_ID)] = known
            else:
                made.append(known)
        self._draw_only()

    def _draw_only(self) -> None:
        """Draw the ids of the only step in flight."""
        if len(self._flights) == 1:
            self._flights[0][1].draw(None)


def config(scratch: Path, *, resident: bool, decodes: int) -> EngineConfig:
    shape = json.loads(llama.SHAPE.read_bytes())
    for name, changes in ((SMALL, SMALL_CHANGES), (ONE, {}), (TWO, {})):
        (scratch / name).mkdir(exist_ok=True)
        (scratch / name / "config.json").write_text(json.dumps(shape | changes))
    names = (ONE, TWO) if resident else (SMALL, ONE, TWO)
    models = tuple(
        ModelConfig(
            name=name, path=str(scratch / name), dtype="bfloat16", dummy=True, context_tokens=8192, pinned=name == SMALL
        )
        for name in names
    )
    return EngineConfig(
        models=models,
        arena_bytes=12 << 30,
        step_tokens_max=1024,
        sequences_max=max(64, decodes),
        device="cuda",
        adapters_max=max(64, decodes),
        adapter_rank_max=16,
        adapter_host_bytes=1 << 20,
        adapter_staging_bytes=1 << 20,
        weights_bytes=0 if resident else SMALL_BYTES + BIG_BYTES + SLACK,
        weights_host_bytes=2 * BIG_BYTES + SMALL_BYTES + SLACK,
    )


def p(values: list[float], q: float) -> float:
    return float(np.percentile(values, q)) if values else float("nan")


def switching(runner: GpuRunner, decodes: int) -> dict[str, float]:
    one = Streams(runner, ONE, decodes, 0)
    two = Streams(runner, TWO, decodes, one.last_page)
    found = {}
    for name, streams in (("alone", (one,)), ("in_turns", (one, two)), ("alone_again", (one,))):
        loop = Loop(runner, *streams)
        steps = loop.quiet(QUIET_S)
        loop.drain()
        found[f"switch_step_p50_ms_{name}"] = p(steps, 50)
        found[f"switch_step_p99_ms_{name}"] = p(steps, 99)
    return found


@dataclass
class Arrival:
    there_ms: float
    first_token_ms: float
    meanwhile: list[float]


def arrive(loop: Loop, runner: GpuRunner, model: str, instead: str, page: int) -> Arrival:
    """A request for a cold model arrives, and the other model is evicted: the best case of the scheduler."""
    weights = runner.weights
    for _ in range(30):
        loop.turn()
    loop.step_ms.clear()
    asked = time.perf_counter()
    weights.evict_weights(instead)
    while weights.free_bytes() < weights.weights_bytes(model):
        loop.turn()
    weights.begin_load(model)
    while weights.weights_location(model) != "device":
        assert weights._known[model].coming is not None, "it did not come"
        loop.turn()
    there = time.perf_counter()
    meanwhile = list(loop.step_ms)
    pages = -(-PROMPT // runner.models[model].tokens_per_page)
    prompt = request(model, PROMPT, list(range(page, page + pages)))
    loop.turn(Step(0, model, [Chunk(prompt, 0, PROMPT, True)]))
    while not prompt.output_ids:
        loop.turn()
    return Arrival(1000 * (there - asked), 1000 * (time.perf_counter() - asked), meanwhile)


def summary(name: str, arrivals: list[Arrival]) -> dict[str, float]:
    meanwhile = [step for arrival in arrivals for step in arrival.meanwhile]
    return {
        f"{name}_weights_p50_ms": statistics.median(arrival.there_ms for arrival in arrivals),
        f"{name}_weights_max_ms": max(arrival.there_ms for arrival in arrivals),
        f"{name}_first_token_p50_ms": statistics.median(arrival.first_token_ms for arrival in arrivals),
        f"{name}_first_token_max_ms": max(arrival.first_token_ms for arrival in arrivals),
        f"{name}_others_step_p50_ms": p(meanwhile, 50),
        f"{name}_others_step_p99_ms": p(meanwhile, 99),
        f"{name}_others_step_max_ms": max(meanwhile, default=float("nan")),
    }


def cold(runner: GpuRunner, decodes: int, rounds: int) -> dict[str, float]:
    weights = runner.weights
    small = Streams(runner, SMALL, decodes, 0)
    loop = Loop(runner, small)
    gc.collect()
    gc.freeze()  # as the engine does before it serves
    began = time.perf_counter()
    assert weights.weights_location(SMALL) == weights.weights_location(ONE) == "device", "the budget is for these"
    while weights.weights_location(TWO) != "host":
        assert weights.weights_location(TWO) == "disk", "the budget has room for all"
        weights.prefetch_weights(TWO)
        loop.turn()
    found = {"prefetch_s": time.perf_counter() - began, "rate_host_gb_s": weights.rates["host"] / 1e9}
    before = loop.quiet(QUIET_S)
    found |= {"before_step_p50_ms": p(before, 50), "before_step_p99_ms": p(before, 99)}
    found["before_step_max_ms"] = max(before)
    arrivals = []
    for index in range(rounds):
        model, instead = (TWO, ONE) if index % 2 == 0 else (ONE, TWO)
        arrivals.append(arrive(loop, runner, model, instead, small.last_page))
    # The first load goes into memory that the other model used, which must be mapped; its first step runs eagerly.
    found |= summary("first", arrivals[:1]) | summary("host", arrivals[1:])
    found["rate_host_gb_s_measured"] = weights.rates["host"] / 1e9
    after = loop.quiet(QUIET_S)
    found["after_step_p50_ms"] = p(after, 50)
    loop.drain()
    return found


def write_file(runner: GpuRunner, directory: Path, shape: Path) -> None:
    """Write a model in host memory as safetensors: its slab unchanged, because this shape leaves no gaps in it."""
    config = load_config(shape)
    layout = slab_layout(config, torch.bfloat16, tied=False)
    header, position = {}, 0
    for part in layout.parts.values():
        assert part.offset == position
        for name, rows in part.stacked:
            tail = list(part.shape[1:])
            size = rows * int(np.prod(tail)) * 2
            header[name] = {"dtype": "BF16", "shape": [rows, *tail], "data_offsets": [position, position + size]}
            position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    slab = runner.weights.host.get(runner.weights._known[ONE].key)
    assert slab is not None
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        left = position
        for piece in slab.pieces:
            file.write(piece[: min(left, len(piece))].numpy().data)
            left -= min(left, len(piece))
    (directory / "config.json").write_bytes((shape / "config.json").read_bytes())


def from_files(runner: GpuRunner, decodes: int, scratch: Path, where: Path, rounds: int) -> dict[str, float]:
    weights = runner.weights
    with tempfile.TemporaryDirectory(dir=where) as directory:
        began = time.perf_counter()
        write_file(runner, Path(directory), scratch / ONE)
        print(f"file written in {time.perf_counter() - began:.1f} s", flush=True)
        small = Streams(runner, SMALL, decodes, 0)
        loop = Loop(runner, small)
        loop.quiet(0.5)
        model = ModelConfig(name=DISK, path=directory, dtype="bfloat16", digest="d" * 64, context_tokens=8192)
        thread = threading.Thread(target=runner.load_model, args=(model,))
        began = time.perf_counter()
        loop.step_ms.clear()
        thread.start()
        while thread.is_alive():
            loop.turn()
        found = {"add_model_s": time.perf_counter() - began, "add_model_others_step_p99_ms": p(loop.step_ms, 99)}
        found["add_model_others_step_max_ms"] = max(loop.step_ms)
        arrivals = []
        for _ in range(rounds):
            weights.host.free_slab(weights._known[DISK].key)
            resident = next(name for name in (ONE, TWO) if weights.weights_location(name) == "device")
            weights._known[DISK].awaited = 0.0
            arrivals.append(arrive(loop, runner, DISK, resident, small.last_page))
            weights.evict_weights(DISK)
            while weights.free_bytes() < weights.weights_bytes(ONE):
                loop.turn()
            weights.begin_load(ONE)
            while weights.weights_location(ONE) != "device":
                loop.turn()
        loop.drain()
        return found | summary("disk", arrivals) | {"rate_disk_gb_s": weights.rates["disk"] / 1e9}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--decodes", type=int, default=32)
    parser.add_argument("--disk", type=Path, default=None, help="a directory with room for 16 GB")
    parser.add_argument("--skip-switch", action="store_true", help="leave out the two that are resident together")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        if not arguments.skip_switch:
            began = time.perf_counter()
            runner = build_gpu_runner(config(path, resident=True, decodes=arguments.decodes))
            print(f"two resident ones built in {time.perf_counter() - began:.1f} s", flush=True)
            found |= switching(runner, arguments.decodes)
            del runner
            gc.collect()
            torch.cuda.empty_cache()
        began = time.perf_counter()
        runner = build_gpu_runner(config(path, resident=False, decodes=arguments.decodes))
        found["build_s"] = time.perf_counter() - began
        print(f"three in a budget built in {found['build_s']:.1f} s, refused: {runner.refused}", flush=True)
        found |= cold(runner, arguments.decodes, arguments.rounds)
        if arguments.disk is not None:
            found |= from_files(runner, arguments.decodes, path, arguments.disk, 3)
        runner.weights.check_integrity()
    workload = f"2 llama-3.1-8b and one of 1.2B bf16, {arguments.decodes} streams of {CONTEXT}+, prompt {PROMPT}"
    append_rows("cold_model", found, torch.cuda.get_device_name(), workload, arguments.note)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
