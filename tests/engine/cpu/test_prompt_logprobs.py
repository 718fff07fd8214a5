"""Log probabilities of prompts are transformers', each prompt token's exactly once: over chunk borders, beside prefix
hits, and through preemption with recompute."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.cpu.runner import build_runner
from engine.fake.runner import FakeRunner, fake_model
from engine.memory.arena import Arena
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import PromptLogprobs, Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import Scheduler
from engine.step import PROMPT_LOGPROB_ROWS_MAX, Runner, Sequence, Step, StepOutcome
from support import oracle
from support.engine.scheduled import run_sequences

TOLERANCE = 1e-4
MODEL = "smol"
TIERS = [tier.name for tier in SHIPPED_TIERS]


@dataclass
class Reported:
    """What was reported of one prompt, from token 1 on."""

    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)  # their numbers of tokens

    def add(self, part: PromptLogprobs) -> None:
        assert part.position == 1 + len(self.ranks), "a gap, or a token for the second time"
        ids, values, ranks = array("i", part.ids), array("f", part.values), array("i", part.ranks)
        width = part.width
        assert len(ids) == len(values) == width * len(ranks) == width * part.tokens()
        for at in range(0, len(ids), width):
            self.alternatives.append(list(zip(ids[at : at + width], values[at : at + width], strict=True)))
        self.ranks += ranks
        self.parts.append(len(ranks))


def sequence(
    handle: int, prompt: list[int], *, most: int = 2, max_tokens: int = 2, tier: str = "standard", **changes: Any
) -> Sequence:
    sampling = Sampling(temperature=0.0, prompt_logprobs=most)
    return Sequence(
        handle, 0, f"r{handle}", MODEL, None, "n", tier, f"s{handle}", prompt, max_tokens, sampling, frozenset(), 0.0,
        **changes,
    )  # fmt: skip


def run(
    runner: Runner, sequences: list[Sequence], arena: Arena, later: list[Sequence] | None = None, **limits: Any
) -> tuple[Scheduler, dict[Sequence, Reported], list[Step]]:
    """Run all to their end; `later` arrive after the third step."""
    found = {own: Reported() for own in [*sequences, *(later or [])]}

    def take(outcome: StepOutcome) -> None:
        for own, part in outcome.prompts:
            found[own].add(part)

    scheduler, steps = run_sequences(runner, sequences, arena, take, later, **limits)
    for step in steps:
        assert sum(len(chunk.reported()) for chunk in step.chunks) <= PROMPT_LOGPROB_ROWS_MAX
    return scheduler, found, steps


def check_complete(found: dict[Sequence, Reported]) -> None:
    for own, reported in found.items():
        assert [alternatives[0][0] for alternatives in reported.alternatives] == own.prompt_ids[1:]
        assert len(own.output_ids) == own.max_tokens


# ---- through the scheduler, with the fake runner


def fake_runner(**settings: Any) -> FakeRunner:
    config = FakeConfig(step_ms=0, prefill_ms_per_1k_tokens=0, pages=64, tokens_per_page=16, **settings)
    return FakeRunner([fake_model(ModelConfig(name=MODEL, path=""), config)], config, sleep=lambda _: None)


def tokens(length: int, seed: int) -> list[int]:
    return [300 + (seed * 7919 + place * 104729) % 30000 for place in range(length)]


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_each_prompt_token_is_reported_once_through_preemption(steps_ahead: int, max_tokens: int) -> None:
    """An arena for two of the prompts: higher tiers arrive later and preempt; their pages are recomputed."""
    runner = fake_runner(steps_ahead=steps_ahead)
    first = [sequence(i, tokens(400 + 37 * i, i), max_tokens=max_tokens, tier=TIERS[-1]) for i in range(4)]
    later = [sequence(9 + i, tokens(350 + i, 9 + i), max_tokens=max_tokens, tier=TIERS[0]) for i in range(3)]
    scheduler, found, _ = run(
        runner, first, Arena(64, 1), later, step_tokens_max=96, prefill_tokens_min=64, sequences_max=16
    )
    check_complete(found)
    assert scheduler.preemptions > 0
    assert sum(own.recomputed_tokens for own in found) > 0


def test_a_step_reports_a_limited_number_of_rows() -> None:
    own, other = sequence(0, tokens(600, 1)), sequence(1, tokens(300, 2))
    _, found, steps = run(fake_runner(), [own, other], Arena(64, 1), step_tokens_max=512)
    check_complete(found)
    reported = [sum(len(chunk.reported()) for chunk in step.chunks) for step in steps]
    assert max(reported) == PROMPT_LOGPROB_ROWS_MAX
    assert sum(reported) == 599 + 299


def test_a_request_with_prompt_logprobs_hits_no_page_and_publishes_its_pages() -> None:
    prompt = tokens(200, 3)
    arena = Arena(64, 1)
    plain = Sampling(temperature=0.0)
    sequences = [sequence(0, prompt), sequence(1, prompt), sequence(2, prompt, most=0)]
    sequences[2].sampling = plain
    scheduler, found, _ = run(fake_runner(), sequences, arena, sequences_max=1)
    assert [own.cached_tokens for own in sequences] == [0, 0, 192]
    assert scheduler.prefix.hits > 0
    assert [len(found[own].ranks) for own in sequences] == [199, 199, 0]


def test_a_prompt_alone_ends_with_its_last_token() -> None:
    sequences = [sequence(i, tokens(length, i), max_tokens=0) for i, length in enumerate((1, 2, 16, 17, 64, 300))]
    scheduler, found, _ = run(
        fake_runner(steps_ahead=1), sequences, Arena(64, 1), step_tokens_max=64, prefill_tokens_min=32, sequences_max=16
    )
    check_complete(found)
    assert scheduler.results.tokens_made == 0


def test_a_prompt_that_fills_the_context_needs_no_page_for_an_answer() -> None:
    runner = fake_runner(context_tokens=64)
    _, found, _ = run(runner, [sequence(0, tokens(64, 1), max_tokens=0)], Arena(4, 1))
    check_complete(found)


# ---- of SmolLM2, beside transformers


def worst(model: Any, own: Sequence, reported: Reported) -> float:
    """The largest difference to transformers; checks ranks and the order of the likeliest too."""
    expected = oracle.logits(model, own.prompt_ids).log_softmax(-1)[:-1]
    for row, alternatives, rank, id_ in zip(
        expected, reported.alternatives, reported.ranks, own.prompt_ids[1:], strict=True
    ):
        lowest, highest = (int((row > row[id_] + change).sum()) + 1 for change in (TOLERANCE, -TOLERANCE))
        assert lowest <= rank <= highest
        assert len(alternatives) == 1 + own.sampling.prompt_logprobs
        values = [value for _, value in alternatives[1:]]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(row.topk(len(values)).values.tolist(), abs=TOLERANCE)
    return max(
        abs(value - float(row[id_]))
        for row, alternatives in zip(expected, reported.alternatives, strict=True)
        for id_, value in alternatives
    )


@pytest.mark.model
def test_prompt_logprobs_are_transformers(model_dir: Path) -> None:
    """Chunks of other sizes than pages, one prompt three times, and premium requests that preempt the batch tier."""
    model = ModelConfig(name=MODEL, path=str(model_dir))
    runner = build_runner(EngineConfig(models=(model,), arena_bytes=256 * 1024 * 1024, threads=1))
    text = tokens(330, 5)
    first = [sequence(0, text, tier=TIERS[-1]), sequence(1, text[:290], most=20, tier=TIERS[-1])]
    later = [sequence(2, text, max_tokens=0, tier=TIERS[0]), sequence(3, tokens(60, 6), most=0, tier=TIERS[0])]
    arena = Arena(40, runner.page_bytes)
    scheduler, found, _ = run(runner, first, arena, later, step_tokens_max=120, prefill_tokens_min=50)
    check_complete(found)
    reference = oracle.load(model_dir)
    for own, reported in found.items():
        assert worst(reference, own, reported) < TOLERANCE, own.request_id
    assert scheduler.preemptions > 0
    assert len(found[first[0]].parts) > 2
