"""The demo model and every example adapter say exactly what transformers and peft say, however a step is put together.

Greedy, float32, on the CPU: 20 prompts x {base, each adapter}, alone, all in one mixed batch, and through the real
scheduler with chunked prefill, prefix hits, preemption and adapters that push each other out of the arena.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
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
from engine.step import Chunk, Sequence, Step, run_step
from engine.text.tokenizer import Tokenizer
from support import oracle
from support.adapters.directories import add_directory

# Under load the greedy runs of the whole table take minutes.
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "smollm2-135m-instruct"
ARENA_BYTES = 768 * 1024 * 1024  # room for all sequences at once
# One at a time is slow, and the first ids of each prompt, by the base and by one adapter, show as much. All of them, of
# all adapters: LANEWAY_ORACLE_TOKENS=16, a few minutes.
PROMPTS_STEP = 1 if os.environ.get("LANEWAY_LONG") else 3
ALONE_TOKENS = int(os.environ.get("LANEWAY_ORACLE_TOKENS", "2"))
NAMES = [oracle.BASE, *oracle.example_adapters()]


@dataclass
class Demo:
    """The runner, and what it must say: `expected[name][i]` for prompt i with adapter `name`."""

    runner: TorchRunner
    prompts: list[list[int]]
    new_tokens: int
    stop_ids: frozenset[int]
    digests: dict[str, str]
    expected: dict[str, list[list[int]]]

    def cases(self) -> list[tuple[str, int]]:
        """(adapter, prompt): neighbours differ in their adapter."""
        return [(name, prompt) for prompt in range(0, len(self.prompts), PROMPTS_STEP) for name in NAMES]

    def sequence(self, handle: int, name: str, prompt: int, tier: str = "standard") -> Sequence:
        return Sequence(
            handle=handle,
            gateway=0,
            request_id=f"{name or 'base'}/{prompt}",
            model=MODEL,
            adapter=self.digests[name] if name else None,
            namespace="tenant",
            tier=tier,
            share=name,
            prompt_ids=self.prompts[prompt],
            max_tokens=self.new_tokens,
            sampling=Sampling(temperature=0.0),
            stop_ids=self.stop_ids,
            arrived_at=0.0,
        )

    def differing(self, sequences: list[Sequence]) -> list[str]:
        wrong = []
        for sequence, (name, prompt) in zip(sequences, self.cases(), strict=True):
            if sequence.output_ids != self.expected[name][prompt]:
                wrong.append(f"{sequence.request_id}: {sequence.output_ids} is not {self.expected[name][prompt]}")
        return wrong


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oracle.COMMITTED.read_text())
    return found


@pytest.fixture(scope="module")
def demo(model_dir: Path, committed: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Demo:
    tokenizer = Tokenizer.load(model_dir)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in committed["prompts"]]
    model = ModelConfig(name=MODEL, path=str(model_dir))
    runner = build_runner(EngineConfig(models=(model,), arena_bytes=ARENA_BYTES))
    shape = BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
    store = AdapterStore(tmp_path_factory.mktemp("store"))
    digests = {}
    for name in NAMES[1:]:
        stored = add_directory(store, oracle.EXAMPLES / name, shape)
        runner.load_adapter(stored.digest, MODEL, str(stored.path))
        runner.adapters.bring(stored.digest)
        digests[name] = stored.digest
    return Demo(runner, prompts, committed["new_tokens"], tokenizer.eos_ids, digests, committed["ids"])


def run(demo: Demo, sequences: list[Sequence], **limits: Any) -> tuple[Scheduler, list[Step]]:
    """All of them through a scheduler of its own, until none is left. `pages` limits the arena."""
    runner = demo.runner
    for digest in runner.adapters.resident():
        runner.adapters.evict_adapter(digest)
    arena = Arena(limits.pop("pages", runner.pages), runner.page_bytes)
    info = runner.models[MODEL]
    models = {MODEL: ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)}
    scheduler = Scheduler(SHIPPED_TIERS, models, arena, runner.adapters, lambda: 0.0, **limits)
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
    assert not scheduler.has_work()
    scheduler.check_integrity()
    runner.adapters.check_integrity()
    return scheduler, steps


def test_the_committed_ids_are_of_this_model_and_these_adapters(model_dir: Path, committed: dict[str, Any]) -> None:
    assert len(committed["prompts"]) == 20
    assert len(NAMES) >= 4
    assert committed["digests"] == oracle.identities(model_dir), "run: python tests/programs/write_oracle.py MODEL_DIR"
    for name in NAMES[1:]:
        assert committed["ids"][name] != committed["ids"][oracle.BASE]


@pytest.mark.parametrize("name", NAMES)
def test_transformers_and_peft_still_say_so(model_dir: Path, demo: Demo, name: str) -> None:
    """A sample: the rest of the committed ids come from the same function."""
    model = oracle.load(model_dir, oracle.EXAMPLES / name if name else None)
    prompts = demo.prompts[:1]
    assert oracle.greedy(model, prompts, ALONE_TOKENS, demo.stop_ids) == [
        ids[:ALONE_TOKENS] for ids in demo.expected[name][:1]
    ]


def test_each_alone(demo: Demo) -> None:
    runner, wrong = demo.runner, []
    free = list(range(runner.pages))
    for name in NAMES[1:]:
        digest = demo.digests[name]
        count = runner.adapters.pages_needed(digest)
        runner.adapters.place_adapter(digest, free[:count])
        free = free[count:]
    for name, prompt in demo.cases():
        if ALONE_TOKENS <= 2 and name not in (oracle.BASE, NAMES[1 + prompt % len(NAMES[1:])]):
            continue
        sequence = demo.sequence(0, name, prompt)
        sequence.pages = free[:20]
        expected = demo.expected[name][prompt][:ALONE_TOKENS]
        while len(sequence.output_ids) < len(expected):
            start, stop = sequence.computed, sequence.token_count()
            result = run_step(runner, Step(1, MODEL, [Chunk(sequence, start, stop - start, True)]))
            assert result.ids[0] is not None
            sequence.output_ids.append(result.ids[0])
            sequence.computed = stop
        if sequence.output_ids != expected:
            wrong.append(f"{sequence.request_id}: {sequence.output_ids} is not {expected}")
    assert not wrong


def test_all_in_one_mixed_batch(demo: Demo) -> None:
    sequences = [demo.sequence(i, *case) for i, case in enumerate(demo.cases())]
    scheduler, steps = run(demo, sequences, sequences_max=128, step_tokens_max=8192)
    assert not demo.differing(sequences)
    # The five adapters have 36 MB in float32, more than PLACE_BYTES_MAX: the last of them is placed after a step.
    assert len(steps[0].chunks) >= len(sequences) - len(sequences) // len(NAMES)
    assert len(steps[1].chunks) == len(sequences)
    assert scheduler.preemptions == 0


def test_chunked_preempted_and_with_prefix_hits(demo: Demo) -> None:
    """A small arena, small steps, and the lower tiers first: premium arrives last and preempts."""
    tiers = ["batch", "standard", "premium"]
    cases = demo.cases()
    sequences = [demo.sequence(i, *case, tier=tiers[i * 3 // len(cases)]) for i, case in enumerate(cases)]
    scheduler, steps = run(demo, sequences, pages=60, sequences_max=16, step_tokens_max=48, prefill_tokens_min=16)
    assert not demo.differing(sequences)
    assert scheduler.preemptions > 0
    assert scheduler.prefix.hits > 0
    assert sum(sequence.recomputed_tokens for sequence in sequences) > 0
    assert any(chunk.start > 0 and chunk.count > 1 and not chunk.sample for step in steps for chunk in step.chunks)
    assert any(len({c.sequence.adapter for c in step.chunks}) > 2 for step in steps)


def test_the_same_again_comes_from_the_cache(demo: Demo) -> None:
    twice = [case for case in demo.cases() if case[1] == 16]
    first, second = ([demo.sequence(i, *case) for case in twice] for i in (0, 1))
    for i, sequence in enumerate([*first, *second]):
        sequence.handle = i
    run(demo, [s for pair in zip(first, second, strict=True) for s in pair], sequences_max=1, step_tokens_max=128)
    assert [s.output_ids for s in second] == [s.output_ids for s in first]
    assert [s.output_ids for s in second] == [demo.expected[name][16] for name, _ in twice]
    assert all(s.cached_tokens >= 96 for s in second)
