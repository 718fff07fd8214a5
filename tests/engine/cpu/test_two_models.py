"""laneway-tiny says exactly what transformers and peft say, alone and beside SmolLM2 in one engine, adapters on both.

Greedy, float32, on the CPU, through the real scheduler: one arena, whose pages hold 16 tokens of the one and 144 of the
other, small steps and preemption. Everything that both share is found whole afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from adapters.files.spec import BaseShape
from adapters.files.store import AdapterStore
from engine.cpu.runner import TorchRunner, build_runner
from engine.memory.arena import Arena
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import Sequence, Step, run_step
from engine.text.tokenizer import Tokenizer
from support import oracle
from support.adapters.directories import add_directory

pytestmark = pytest.mark.model

TIERS = ("batch", "standard", "premium")
# Of SmolLM2, whose every token takes a hundred times the work; test_oracle.py has all of it, but alone.
SMOLLM2_PROMPTS, SMOLLM2_TOKENS, SMOLLM2_ADAPTERS = 3, 6, 2


@dataclass(frozen=True)
class Case:
    """A request, and what it must say."""

    model: str
    adapter: str
    digest: str | None
    prompt_ids: list[int]
    stop_ids: frozenset[int]
    expected: list[int]

    def sequence(self, handle: int, tier: str) -> Sequence:
        return Sequence(
            handle=handle,
            gateway=0,
            request_id=f"{self.model}/{self.adapter or 'base'}/{handle}",
            model=self.model,
            adapter=self.digest,
            namespace="tenant",  # the same for both models: only their digests keep their prefixes apart
            tier=tier,
            share=self.model,
            prompt_ids=self.prompt_ids,
            max_tokens=len(self.expected),
            sampling=Sampling(temperature=0.0),
            stop_ids=self.stop_ids,
            arrived_at=0.0,
        )


@dataclass
class Engine:
    runner: TorchRunner
    cases: dict[str, list[Case]]

    def run(self, cases: list[Case], tiers: tuple[str, ...], **limits: Any) -> tuple[Scheduler, list[Step]]:
        """All through a scheduler of its own; what they said is compared. `pages` limits the arena."""
        runner = self.runner
        for digest in runner.adapters.resident():
            runner.adapters.evict_adapter(digest)
        arena = Arena(limits.pop("pages", runner.pages), runner.page_bytes)
        models = {
            name: ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)
            for name, info in runner.models.items()
        }
        scheduler = Scheduler(SHIPPED_TIERS, models, arena, runner.adapters, lambda: 0.0, **limits)
        sequences = [case.sequence(i, tiers[i * len(tiers) // len(cases)]) for i, case in enumerate(cases)]
        for sequence in sequences:
            assert scheduler.submit(sequence) is None
        steps = []
        while scheduler.has_work():
            step = scheduler.schedule()
            if step is None:  # an adapter comes
                time.sleep(0.0002)
                continue
            for ended in scheduler.complete(step, run_step(runner, step), 0.01).ended:
                assert ended.reason in ("stop", "length"), ended.message
            steps.append(step)
            arena.check_integrity()
        assert {s.request_id: s.output_ids for s in sequences} == {
            s.request_id: case.expected for s, case in zip(sequences, cases, strict=True)
        }
        scheduler.check_integrity()
        arena.check_integrity()
        runner.adapters.check_integrity()
        return scheduler, steps


def committed(base: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oracle.COMMITTED_OF[base].read_text())
    return found


def engine_of(directories: Mapping[str, Path], scratch: Path) -> Engine:
    models = tuple(ModelConfig(name=name, path=str(path)) for name, path in directories.items())
    runner = build_runner(EngineConfig(models=models, arena_bytes=128 * 1024 * 1024))
    store, cases = AdapterStore(scratch), {}
    for base, directory in directories.items():
        table, tokenizer = committed(base), Tokenizer.load(directory)
        shape = BaseShape.from_config(json.loads((directory / "config.json").read_bytes()))
        digests: dict[str, str | None] = {oracle.BASE: None}
        prompts, tokens, names = table["prompts"], table["new_tokens"], oracle.example_adapters(base)
        if base == oracle.SMOLLM2:
            prompts, tokens, names = prompts[:SMOLLM2_PROMPTS], SMOLLM2_TOKENS, names[:SMOLLM2_ADAPTERS]
        for name in names:
            stored = add_directory(store, oracle.EXAMPLES / name, shape)
            runner.load_adapter(stored.digest, base, str(stored.path))
            runner.adapters.bring(stored.digest)
            digests[name] = stored.digest
        encoded = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in prompts]
        cases[base] = [
            Case(base, name, digest, ids, tokenizer.eos_ids, table["ids"][name][index][:tokens])
            for index, ids in enumerate(encoded)
            for name, digest in digests.items()
        ]
    return Engine(runner, cases)


@pytest.fixture(scope="module")
def alone(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_of({oracle.TINY: tiny_dir}, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def both(model_dir: Path, tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_of({oracle.SMOLLM2: model_dir, oracle.TINY: tiny_dir}, tmp_path_factory.mktemp("both"))


def interleaved(engine: Engine) -> list[Case]:
    """Neighbours differ in their model wherever there is one of the other left, and in their adapter."""
    smollm2, tiny = engine.cases[oracle.SMOLLM2], engine.cases[oracle.TINY]
    shared = [case for pair in zip(smollm2, tiny, strict=False) for case in pair]
    return [*shared, *tiny[len(smollm2) :]]


def test_the_committed_ids_are_of_this_model_and_these_adapters(tiny_dir: Path) -> None:
    table = committed(oracle.TINY)
    assert table["digests"] == oracle.identities(tiny_dir, oracle.TINY), (
        "run: python tests/programs/write_oracle.py MODEL_DIR"
    )
    assert set(table["ids"]) == {oracle.BASE, *oracle.example_adapters(oracle.TINY)}
    assert len(oracle.example_adapters(oracle.TINY)) == 2
    said = [json.dumps(rows) for rows in table["ids"].values()]
    assert len(set(said)) == 3, "each adapter changes what is said"


@pytest.mark.parametrize("name", [oracle.BASE, *oracle.example_adapters(oracle.TINY)])
def test_transformers_and_peft_still_say_so(tiny_dir: Path, name: str) -> None:
    table, tokenizer = committed(oracle.TINY), Tokenizer.load(tiny_dir)
    model = oracle.load(tiny_dir, oracle.EXAMPLES / name if name else None)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in table["prompts"]]
    assert oracle.greedy(model, prompts, table["new_tokens"], tokenizer.eos_ids) == table["ids"][name]


def test_tiny_alone_in_one_mixed_batch(alone: Engine) -> None:
    assert alone.runner.models[oracle.TINY].tokens_per_page == 16
    cases = alone.cases[oracle.TINY]
    scheduler, steps = alone.run(cases, TIERS, sequences_max=64, step_tokens_max=4096)
    assert len(steps[0].chunks) == len(cases)
    assert scheduler.preemptions == 0


def test_tiny_alone_chunked_preempted_and_with_prefix_hits(alone: Engine) -> None:
    """The lower tiers first: premium arrives last and preempts. Each twice: the second has prefixes to find."""
    cases = alone.cases[oracle.TINY] * 2
    scheduler, steps = alone.run(cases, TIERS, pages=60, sequences_max=16, step_tokens_max=48, prefill_tokens_min=16)
    assert scheduler.preemptions > 0
    assert scheduler.prefix.hits > 0
    assert any(chunk.start > 0 and chunk.count > 1 and not chunk.sample for step in steps for chunk in step.chunks)


def test_both_in_one_engine(both: Engine) -> None:
    """Room for all: while one model's requests run, so do the other's."""
    cases = interleaved(both)
    scheduler, steps = both.run(cases, ("standard",), sequences_max=64, step_tokens_max=512)
    assert scheduler.preemptions == 0
    order = [step.model for step in steps]
    turns = sum(before != after for before, after in pairwise(order))
    assert turns >= 2 * SMOLLM2_TOKENS - 2, f"they take turns: {order}"
    for model in both.cases:
        mixed = [{chunk.sequence.adapter for chunk in step.chunks} for step in steps if step.model == model]
        assert max(map(len, mixed)) == 3, "base and both adapters in one step"


def test_both_in_an_arena_that_is_too_small_for_them(both: Engine) -> None:
    """Pages of one model's preempted requests become the other's, and adapters of both push each other out."""
    cases = interleaved(both)
    scheduler, steps = both.run(cases, TIERS, pages=48, sequences_max=8, step_tokens_max=64, prefill_tokens_min=16)
    assert scheduler.preemptions > 0
    assert {step.model for step in steps} == {oracle.SMOLLM2, oracle.TINY}
