"""Probes on a GPU, one step ahead and with graphs: they change no id of the requests that run beside them, load no
weights, and hold no page."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import pytest

from engine.__main__ import build_scheduler
from engine.gpu.build import build_gpu_runner
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.scheduler.token_probes import is_probe
from engine.step import Pending, Sequence, Step
from support import oracle
from support.engine.gpu import GpuEngine  # first: it skips where there is no GPU
from support.engine.in_process import TIERS

pytestmark = pytest.mark.gpu
assert GpuEngine is not None
MIB = 1 << 20
VOCAB = 8192
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": VOCAB, "head_dim": 32}
REQUESTS, NEW = 6, 200


def ids_with(directories: dict[str, Path], after_s: float) -> tuple[list[list[int]], int]:
    """The ids of requests of the one model, while the other is idle; and how many probes were made."""
    models = tuple(ModelConfig(name=name, path=str(path), dtype="float16") for name, path in directories.items())
    config = EngineConfig(
        models=models, tiers=TIERS, arena_bytes=64 * MIB, step_tokens_max=128, sequences_max=8, prefill_tokens_min=16,
        adapters_max=8, adapter_rank_max=16, adapter_host_bytes=4 * MIB, adapter_staging_bytes=4 * MIB,
        device="cuda", probe_after_s=after_s,
    )  # fmt: skip
    runner = build_gpu_runner(config)
    scheduler = build_scheduler(config, runner)
    sequences = [
        Sequence(
            number, 0, f"r{number}", "one", None, "n", "standard", "s", [*range(7 + number, 40 + 5 * number)], NEW,
            Sampling(temperature=0.0), frozenset(), time.monotonic(),
        )
        for number in range(REQUESTS)
    ]  # fmt: skip
    for sequence in sequences:
        assert scheduler.submit(sequence) is None
    flights: deque[tuple[Step, Pending]] = deque()
    ended, probed, stop = 0, set[str](), time.monotonic() + 60
    while ended < REQUESTS or (after_s and probed < set(directories)):
        assert time.monotonic() < stop, (ended, probed)
        while len(flights) <= runner.steps_ahead and (step := scheduler.schedule()) is not None:
            flights.append((step, runner.begin_step(step)))
            probed |= {step.model} if is_probe(step) else set()
            if len(flights) == 1:
                flights[0][1].draw(None)
        if flights:
            step, pending = flights.popleft()
            result = pending.result()
            assert not result.errors, result.errors
            outcome = scheduler.complete(step, result, 0.001)
            if flights:
                flights[0][1].draw(None)
            ended += len(outcome.ended)
    scheduler.check_integrity()
    loads = sum(weights.loads for weights in scheduler.weight_residency.models.values())
    assert loads <= len(directories), "each at the start, and none for a probe"
    assert scheduler.results.tokens_overrun - scheduler.probes.tokens <= REQUESTS
    return [sequence.output_ids for sequence in sequences], scheduler.probes.tokens


def test_requests_have_the_same_ids_beside_probes(tmp_path: Path) -> None:
    directories = {
        "one": oracle.save_tiny("llama", tmp_path / "one", num_hidden_layers=4, initializer_range=0.08, **WIDE),
        "two": oracle.save_tiny("qwen3", tmp_path / "two", num_hidden_layers=2, seed=1, **WIDE),
    }
    alone, none = ids_with(directories, 0.0)
    beside, probes = ids_with(directories, 0.02)
    assert none == 0
    assert probes >= 4
    assert beside == alone
