"""Pooled vectors are transformers' with the same pooling: alone, beside generation, with adapters, over chunk borders,
beside prefix hits, and through preemption. A token is pooled once."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from engine.cpu.runner import build_runner
from engine.fake.runner import FakeRunner, fake_model
from engine.memory.arena import Arena
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.results import unit_vector
from engine.scheduler.scheduler import Scheduler
from engine.step import NO_VECTOR, Chunk, Runner, Sequence, Step, StepOutcome, run_step
from support import oracle
from support.engine.scheduled import run_sequences

TOLERANCE = 1e-4
MODEL = "smol"
TIERS = [tier.name for tier in SHIPPED_TIERS]
Pooling = Literal["last", "mean"]
POOLINGS: tuple[Pooling, ...] = ("last", "mean")


def sequence(
    handle: int,
    prompt: list[int],
    pooling: Pooling | None = "last",
    *,
    tier: str = "standard",
    adapter: str | None = None,
    max_tokens: int = 0,
) -> Sequence:
    return Sequence(
        handle, 0, f"r{handle}", MODEL, adapter, "n", tier, f"s{handle}", prompt, max_tokens, Sampling(temperature=0.0),
        frozenset(), 0.0, pooling=pooling,
    )  # fmt: skip


def tokens(length: int, seed: int) -> list[int]:
    return [300 + (seed * 7919 + place * 104729) % 30000 for place in range(length)]


def run(
    runner: Runner, sequences: list[Sequence], arena: Arena, later: list[Sequence] | None = None, **limits: Any
) -> tuple[Scheduler, dict[Sequence, list[float]], list[Step]]:
    """Run all to their end; the vector of each pooled request, which it gets once."""
    found: dict[Sequence, list[float]] = {}

    def take(outcome: StepOutcome) -> None:
        for own, values in outcome.vectors:
            assert own not in found, "a second vector"
            found[own] = list(array("f", values))

    scheduler, steps = run_sequences(runner, sequences, arena, take, later, **limits)
    pooling = [own for own in [*sequences, *(later or [])] if own.pooling is not None]
    assert found.keys() == set(pooling)
    for vector in found.values():
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-6)
    return scheduler, found, steps


# ---- through the scheduler, with the fake runner


def fake_runner(**settings: Any) -> FakeRunner:
    config = FakeConfig(step_ms=0, prefill_ms_per_1k_tokens=0, pages=64, tokens_per_page=16, **settings)
    return FakeRunner([fake_model(ModelConfig(name=MODEL, path=""), config)], config, sleep=lambda _: None)


def alone(own: Sequence) -> list[float]:
    """The vector of the same prompt, computed as one chunk."""
    twin = sequence(99, own.prompt_ids, own.pooling, adapter=own.adapter)
    twin.pages = list(range(64))
    count = len(twin.prompt_ids)
    chunk = Chunk(twin, 0, count, False, pool_from=0 if own.pooling == "mean" else count - 1)
    vector = run_step(fake_runner(), Step(1, MODEL, [chunk])).vectors[0]
    return list(array("f", unit_vector(vector)))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_each_token_is_pooled_once_through_preemption(steps_ahead: int, pooling: Pooling) -> None:
    """An arena for two of the prompts: higher tiers arrive later and preempt; pages are recomputed, sums are not."""
    runner = fake_runner(steps_ahead=steps_ahead)
    first = [sequence(i, tokens(400 + 37 * i, i), pooling, tier=TIERS[-1]) for i in range(4)]
    first.append(sequence(8, tokens(90, 8), None, max_tokens=5, tier=TIERS[-1]))
    later = [sequence(9 + i, tokens(350 + i, 9 + i), pooling, tier=TIERS[0]) for i in range(3)]
    scheduler, found, _ = run(
        runner, first, Arena(64, 1), later, step_tokens_max=96, prefill_tokens_min=64, sequences_max=16
    )
    assert scheduler.preemptions > 0
    assert sum(own.recomputed_tokens for own in found) > 0
    for own, vector in found.items():
        assert vector == pytest.approx(alone(own), abs=1e-5)


def test_the_mean_hits_no_page_and_the_last_token_all_but_its_own() -> None:
    prompt = tokens(200, 3)
    sequences = [sequence(0, prompt, "mean"), sequence(1, prompt, "mean"), sequence(2, prompt), sequence(3, prompt)]
    scheduler, found, steps = run(fake_runner(), sequences, Arena(64, 1), sequences_max=1)
    assert [own.cached_tokens for own in sequences] == [0, 0, 192, 192]
    assert scheduler.prefix.queries == 400
    assert found[sequences[0]] == found[sequences[1]]
    assert found[sequences[2]] == found[sequences[3]] != found[sequences[0]]
    assert scheduler.results.tokens_made == 0
    assert sum(len(chunk.pooled()) for step in steps for chunk in step.chunks) == 402


@pytest.mark.parametrize("pooling", POOLINGS)
def test_prompts_of_one_token_and_of_the_whole_context(pooling: Pooling) -> None:
    sequences = [sequence(i, tokens(length, i), pooling) for i, length in enumerate((1, 2, 16, 17, 64))]
    _, found, _ = run(
        fake_runner(steps_ahead=1, context_tokens=64), sequences, Arena(64, 1), step_tokens_max=48,
        prefill_tokens_min=16, sequences_max=8,
    )  # fmt: skip
    for own, vector in found.items():
        assert vector == pytest.approx(alone(own), abs=1e-5)


def test_a_vector_of_zeros_stays_as_it_is() -> None:
    assert unit_vector(np.zeros(4, np.float32)) == bytes(16)
    assert list(array("f", unit_vector(np.array([3, 4], np.float32)))) == pytest.approx([0.6, 0.8])


# ---- of SmolLM2 and small random models, beside transformers


def smol_runner(model_dir: Path) -> Any:
    model = ModelConfig(name=MODEL, path=str(model_dir))
    return build_runner(EngineConfig(models=(model,), arena_bytes=256 * 1024 * 1024, threads=1))


def differences(reference: Any, found: dict[Sequence, list[float]]) -> list[float]:
    """The largest difference of each vector to transformers'."""
    return [
        float((torch.tensor(vector) - oracle.embedding(reference, own.prompt_ids, str(own.pooling))).abs().max())
        for own, vector in found.items()
    ]


@pytest.mark.model
def test_vectors_are_transformers(model_dir: Path) -> None:
    """Alone and in chunks of other sizes than pages, one prompt twice beside generation, and premium requests that
    preempt the batch tier."""
    runner, text = smol_runner(model_dir), tokens(330, 5)
    first = [
        sequence(0, text, "mean", tier=TIERS[-1]),
        sequence(1, text[:290], "last", tier=TIERS[-1]),
        sequence(2, text[:70], None, max_tokens=6, tier=TIERS[-1]),
    ]
    later = [
        sequence(3, text, "last", tier=TIERS[0]),
        sequence(4, text[:200], "mean", tier=TIERS[0]),
        sequence(5, tokens(60, 6), "mean", tier=TIERS[0]),
        sequence(6, tokens(1, 7), "last", tier=TIERS[0]),
    ]
    scheduler, found, steps = run(
        runner, first, Arena(40, runner.page_bytes), later, step_tokens_max=120, prefill_tokens_min=50
    )
    assert scheduler.preemptions > 0
    assert any(chunk.sample and len(step.chunks) > 1 for step in steps for chunk in step.chunks), "a mixed step"
    assert max(differences(oracle.load(model_dir), found)) < TOLERANCE


@pytest.mark.model
def test_generation_beside_pooling_draws_the_same_ids(model_dir: Path) -> None:
    runner, prompt = smol_runner(model_dir), tokens(40, 2)
    plain, beside = (sequence(handle, prompt, None, max_tokens=8) for handle in (0, 1))
    run(runner, [plain], Arena(40, runner.page_bytes))
    run(runner, [beside, sequence(2, tokens(150, 3), "mean")], Arena(40, runner.page_bytes), step_tokens_max=128)
    assert plain.output_ids == beside.output_ids


@pytest.mark.parametrize("family", ["tied", "qwen3"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_with_an_adapter_are_peft_s(family: str, pooling: Pooling, tmp_path: Path) -> None:
    base = oracle.save_tiny(family, tmp_path / "model")
    adapter = oracle.save_tiny_adapter(oracle.load(base), tmp_path / "adapter", r=4, target_modules="all-linear")
    runner = build_runner(EngineConfig(models=(ModelConfig(name=MODEL, path=str(base)),), arena_bytes=2**24, threads=1))
    runner.load_adapter("a" * 64, MODEL, str(adapter))
    prompts = [[1 + (7 * i + 3 * place) % 300 for place in range(length)] for i, length in enumerate((5, 33, 90))]
    plain = [sequence(i, prompt, pooling) for i, prompt in enumerate(prompts)]
    adapted = [sequence(10 + i, prompt, pooling, adapter="a" * 64) for i, prompt in enumerate(prompts)]
    _, found, _ = run(
        runner, [*plain, *adapted], Arena(200, runner.page_bytes), step_tokens_max=64, prefill_tokens_min=40,
        sequences_max=8,
    )  # fmt: skip
    assert max(differences(oracle.load(base), {own: found[own] for own in plain})) < TOLERANCE
    assert max(differences(oracle.load(base, adapter), {own: found[own] for own in adapted})) < TOLERANCE


def test_hidden_states_that_are_no_numbers_end_their_request_alone(tmp_path: Path) -> None:
    base = oracle.save_tiny("tied", tmp_path / "model")
    runner = build_runner(EngineConfig(models=(ModelConfig(name=MODEL, path=str(base)),), arena_bytes=2**24, threads=1))
    good, bad = sequence(0, [5, 6, 7]), sequence(1, [8, 9])
    good.pages, bad.pages = [0], [1]
    runner.weights.decoder(MODEL)._weights.embedding[9] = math.nan
    chunks = [Chunk(good, 0, 3, False, pool_from=2), Chunk(bad, 0, 2, False, pool_from=1)]
    result = run_step(runner, Step(1, MODEL, chunks))
    assert result.errors == {1: NO_VECTOR}
    assert result.vectors.keys() == {0}
