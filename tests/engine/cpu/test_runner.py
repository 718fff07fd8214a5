"""The runner: steps of many sequences, adapters and models in one arena; a bad request fails alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import engine.cpu.runner
from adapters.files.spec import AdapterRefused
from engine.compute.penalties import Draw
from engine.compute.shared import PAGE_TOKENS, check_page
from engine.cpu.runner import TorchRunner, build_runner
from engine.cpu.sampler import sample
from engine.memory.arena import Arena
from engine.models.config import ModelRefused
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Logprobs, Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import ModelLimits, Scheduler
from engine.step import NO_ID, Chunk, Masks, Sequence, Step, run_step
from kernels.kv_layout import KvLayout
from support import oracle

ARENA_BYTES = 16 * 1024 * 1024
POISON_ID = 7  # its embedding is NaN
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oracle.save_tiny("llama", tmp_path_factory.mktemp("tiny"), intermediate_size=40)


@pytest.fixture
def poisoned_runner(tiny: Path, tmp_path: Path) -> TorchRunner:
    """Of a model in which one id poisons whatever it touches."""
    tensors = load_file(tiny / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON_ID] = float("nan")
    shutil.copy(tiny / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    return build(tiny=tmp_path)


@pytest.fixture
def runner(tiny: Path) -> TorchRunner:
    return build(tiny=tiny)


def build(arena_bytes: int = ARENA_BYTES, dtype: Any = "float32", **paths: Path) -> TorchRunner:
    models = tuple(ModelConfig(name=name, path=str(path), dtype=dtype) for name, path in paths.items())
    return build_runner(EngineConfig(models=models, arena_bytes=arena_bytes, threads=1))


class Books:
    """Hands out pages and keeps sequences going, as a scheduler would, step by step and without any policy."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.free = list(range(runner.pages))
        self.steps = 0

    def sequence(
        self,
        ids: list[int],
        sampling: Sampling = GREEDY,
        adapter: str | None = None,
        model: str = "tiny",
        room: int = 64,
    ) -> Sequence:
        """Pages for all of `ids` and `room` more tokens."""
        tokens_per_page = self.runner.models[model].tokens_per_page
        count = -(-(len(ids) + room) // tokens_per_page)
        pages, self.free = self.free[:count], self.free[count:]
        return Sequence(0, 0, "r", model, adapter, "n", "t", "s", ids, 99, sampling, frozenset(), 0.0, pages=pages)

    def step(self, *counts: tuple[Sequence, int]) -> dict[int, str]:
        """One step of the next `count` tokens of each; errors by index."""
        self.steps += 1
        chunks = []
        for sequence, count in counts:
            stop = sequence.computed + count
            chunks.append(Chunk(sequence, sequence.computed, count, stop == sequence.token_count()))
        result = run_step(self.runner, Step(self.steps, counts[0][0].model, chunks))
        assert len(result.ids) == len(chunks)
        for index, chunk in enumerate(chunks):
            drawn = result.ids[index]
            if index not in result.errors:
                assert (drawn is not None) == chunk.sample
                chunk.sequence.computed += chunk.count
                if drawn is not None:
                    chunk.sequence.output_ids.append(drawn)
        return result.errors

    def generate(self, sequences: list[Sequence], new_tokens: int, chunk: int = 1000) -> list[list[int]]:
        """Run all together until each has made `new_tokens`."""
        while live := [s for s in sequences if len(s.output_ids) < new_tokens]:
            assert not self.step(*[(s, min(chunk, s.token_count() - s.computed)) for s in live])
        return [s.output_ids for s in sequences]


def random_ids(count: int, seed: int) -> list[int]:
    ids = torch.randint(10, oracle.TINY_VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [int(i) for i in ids]


# ---- what a step computes


def test_greedy_ids_are_transformers_ids_alone_together_and_in_chunks(tiny: Path, runner: TorchRunner) -> None:
    prompts = [random_ids(n, seed=n) for n in (1, 5, 16, 33, 70)]
    model = oracle.load(tiny)
    expected = [oracle.greedy(model, [prompt], 20)[0] for prompt in prompts]
    books = Books(runner)
    assert [books.generate([books.sequence(prompt)], 20)[0] for prompt in prompts] == expected
    assert books.generate([books.sequence(prompt) for prompt in prompts], 20) == expected
    assert books.generate([books.sequence(prompt) for prompt in prompts], 20, chunk=6) == expected


def test_neighbours_never_change_what_a_seed_draws(runner: TorchRunner) -> None:
    books = Books(runner)
    kinds = [Sampling(0.9, seed=1), Sampling(1.5, top_p=0.9, seed=2), Sampling(1.1, top_k=20, seed=3), GREEDY]
    prompts = [random_ids(10 + 7 * i, seed=i) for i in range(4)]
    pairs = list(zip(prompts, kinds, strict=True))
    alone = [books.generate([books.sequence(*pair)], 24)[0] for pair in pairs]
    together = books.generate([books.sequence(*pair) for pair in pairs], 24)
    backwards = books.generate([books.sequence(*pair) for pair in pairs[::-1]], 24, chunk=4)[::-1]
    assert alone == together == backwards
    again = Sampling(0.9, seed=4)
    assert books.generate([books.sequence(prompts[0], again)], 24)[0] != alone[0]


PENALIZED = Sampling(
    1.0, 0.9, seed=9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.8, logit_bias={17: 2.0}
)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=9), PENALIZED], ids=["greedy", "plain", "penalized"])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(runner: TorchRunner, sampling: Sampling) -> None:
    books = Books(runner)
    prompt = random_ids(40, seed=8)
    (expected,) = books.generate([books.sequence(prompt, sampling)], 30)
    victim = books.sequence(prompt, sampling)
    books.generate([victim], 13)
    victim.pages, victim.computed = books.sequence(prompt).pages, 0
    assert books.generate([victim], 30) == [expected]


def test_penalties_and_logprobs_survive_the_scheduler_s_preemption(runner: TorchRunner) -> None:
    """An arena too small for all: they throw each other out, and say what they say alone."""
    info = runner.models["tiny"]

    def run(handles: list[int], pages: int) -> tuple[Scheduler, dict[int, list[int]], dict[int, list[Logprobs]]]:
        models = {"tiny": ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)}
        arena = Arena(pages, runner.page_bytes)
        scheduler = Scheduler(SHIPPED_TIERS, models, arena, runner.adapters, lambda: 0.0, sequences_max=8)
        for handle in handles:
            own = msgspec.structs.replace(PENALIZED, seed=handle, logprobs=2, min_tokens=handle)
            tier = SHIPPED_TIERS[-1 - handle % 3].name
            ids = random_ids(20 + handle, seed=handle)
            refused = scheduler.submit(
                Sequence(handle, 0, "r", "tiny", None, f"{handle}", tier, "s", ids, 60, own, frozenset({30, 31}), 0.0)
            )
            assert refused is None
        found: dict[int, list[Logprobs]] = {handle: [] for handle in handles}
        said: dict[int, list[int]] = {handle: [] for handle in handles}
        while (step := scheduler.schedule()) is not None:
            outcome = scheduler.complete(step, run_step(runner, step), 0.01)
            for sequence, token in outcome.tokens:
                said[sequence.handle].append(token)
                found[sequence.handle].append(outcome.logprobs[sequence])
        return scheduler, said, found

    alone = [run([handle], pages=400) for handle in range(6)]
    scheduler, said, found = run(list(range(6)), pages=20)
    assert scheduler.preemptions > 0
    for handle in range(6):
        _, expected, expected_found = alone[handle]
        assert said[handle] == expected[handle]
        assert [own[0][0] for own in found[handle]] == said[handle]
        for own, other in zip(found[handle], expected_found[handle], strict=True):
            assert [value for _, value in own] == pytest.approx([value for _, value in other], abs=1e-4)


def masked_row(allowed: list[int], vocab: int = oracle.TINY_VOCAB) -> list[int]:
    """int32 words of one row."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[allowed] = 1
    return [int(word) for word in np.packbits(bits, bitorder="little").view(np.int32)]


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(1.5, seed=3), Sampling(1.5, seed=3, top_k=5, top_p=0.9), PENALIZED],
    ids=["greedy", "plain", "filtered", "penalized"],
)
def test_a_masked_row_draws_allowed_ids_and_its_neighbours_what_they_draw_anyway(
    runner: TorchRunner, sampling: Sampling
) -> None:
    """Row 0 is masked, and in row order of the batch neither first nor alone."""
    allowed = [5, 31, 32, 63, 64, 90, oracle.TINY_VOCAB - 1]
    words = np.array([masked_row(allowed), [-1] * len(masked_row([]))], np.int32)

    def run(masks: Masks | None) -> list[list[int]]:
        books = Books(runner)
        # The masked prompt is longer: the batch has its decodes in another order than the step.
        both = [books.sequence(random_ids(n, seed=n), sampling) for n in (450, 9)]
        for start in range(12):
            counts = [s.token_count() - s.computed for s in both]
            chunks = [Chunk(s, s.computed, count, True) for s, count in zip(both, counts, strict=True)]
            result = run_step(runner, Step(start, "tiny", chunks), masks)
            assert not result.errors
            for own, token in zip(both, result.ids, strict=True):
                assert token is not None
                own.computed = own.token_count()
                own.output_ids.append(token)
        return [own.output_ids for own in both]

    masked, plain, ones = run(Masks(words)), run(None), run(Masks(np.full_like(words, -1)))
    assert set(masked[0]) <= set(allowed)
    assert masked[1] == plain[1]
    assert ones == plain
    assert not set(plain[0]) <= set(allowed)


def test_a_skipped_row_draws_nothing_and_one_without_an_allowed_id_fails_alone(runner: TorchRunner) -> None:
    books = Books(runner)
    three = [books.sequence(random_ids(8, seed=n), Sampling(temperature=0.0, logprobs=1)) for n in range(3)]
    (expected,) = books.generate([books.sequence(random_ids(8, seed=1))], 1)
    words = np.array([masked_row([]), masked_row([]), masked_row(expected)], np.int32)
    chunks = [Chunk(s, 0, 8, True) for s in three]
    result = run_step(runner, Step(1, "tiny", chunks), Masks(words, frozenset([0])))
    assert result.ids == [None, None, expected[0]]
    assert (result.errors, result.skipped, list(result.logprobs)) == ({1: NO_ID}, frozenset([0]), [2])
    again = run_step(runner, Step(2, "tiny", [Chunk(three[0], 7, 1, True), Chunk(three[1], 7, 1, True)]))
    assert again.ids[1] == expected[0], "the last token was computed again"
    pending = runner.begin_step(Step(3, "tiny", chunks))
    with pytest.raises(ValueError, match="expected int32"):
        pending.draw(Masks(words[:2]))


def test_pages_of_a_common_prefix_serve_both(runner: TorchRunner) -> None:
    books = Books(runner)
    prefix, own = random_ids(48, seed=1), random_ids(5, seed=2)
    (expected,) = books.generate([books.sequence(prefix + own)], 10)
    first = books.sequence(prefix)
    books.generate([first], 1)
    second = books.sequence(prefix + own)
    second.pages[:3], second.computed = first.pages[:3], 48
    assert books.generate([second], 10) == [expected]


# ---- adapters


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    model = oracle.load(tiny)
    every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    kinds: list[dict[str, Any]] = [
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"r": 20, "lora_alpha": 10, "target_modules": every, "use_rslora": True},
        {"r": 3, "lora_alpha": 6, "target_modules": ["k_proj", "o_proj", "up_proj"], "rank_pattern": {"up_proj": 9}},
    ]
    return [oracle.save_tiny_adapter(model, root / str(i), seed=i, **kind) for i, kind in enumerate(kinds)]


def install(runner: TorchRunner, books: Books, path: Path) -> str:
    """Load an adapter, and place it in the arena as the scheduler would."""
    digest = path.name.rjust(64, "0")
    runner.load_adapter(digest, "tiny", str(path))
    assert runner.adapters.is_known(digest, "tiny")
    count = runner.adapters.pages_needed(digest)
    runner.adapters.place_adapter(digest, books.free[:count])
    books.free = books.free[count:]
    return digest


def test_adapters_and_base_share_a_step(tiny: Path, runner: TorchRunner, adapters: list[Path]) -> None:
    books = Books(runner)
    digests: list[str | None] = [install(runner, books, path) for path in adapters]
    prompts = [random_ids(12 + n, seed=n) for n in range(8)]
    wanted = [
        (prompt, digest, path)
        for prompt in prompts
        for digest, path in zip([None, *digests], [None, *adapters], strict=True)
    ]
    models = {path: oracle.load(tiny, path) for path in [None, *adapters]}
    expected = [oracle.greedy(models[path], [prompt], 8)[0] for prompt, _, path in wanted]
    assert len({tuple(ids) for ids in expected[:4]}) == 4  # the adapters say something else
    sequences = [books.sequence(prompt, adapter=digest, room=16) for prompt, digest, _ in wanted]
    assert books.generate(sequences, 8) == expected
    sequences = [books.sequence(prompt, adapter=digest, room=16) for prompt, digest, _ in wanted]
    assert books.generate(sequences, 8, chunk=5) == expected
    runner.adapters.check_integrity()


def test_an_adapter_that_does_not_fit_is_refused(runner: TorchRunner, adapters: list[Path], tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match="other"):
        runner.load_adapter("0" * 64, "other", str(adapters[0]))
    with pytest.raises((AdapterRefused, OSError)):
        runner.load_adapter("0" * 64, "tiny", str(tmp_path))
    assert not runner.adapters.is_known("0" * 64, "tiny")


def test_an_adapter_unloaded_is_unknown(runner: TorchRunner, adapters: list[Path]) -> None:
    books = Books(runner)
    digest = install(runner, books, adapters[0])
    assert runner.adapters.evict_adapter(digest)
    runner.unload_adapter(digest)
    assert not runner.adapters.is_known(digest, "tiny")


# ---- faults


@pytest.mark.parametrize("bad", [-1, oracle.TINY_VOCAB, 2**62])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(top_p=0.9)], ids=str)
def test_an_id_that_is_no_id_fails_alone(runner: TorchRunner, bad: int, sampling: Sampling) -> None:
    books = Books(runner)
    (expected,) = books.generate([books.sequence(random_ids(9, 1), sampling)], 1)
    good, poisoned = books.sequence(random_ids(9, 1), sampling), books.sequence([11, bad, 12], sampling)
    errors = books.step((poisoned, 3), (good, 9))
    assert list(errors) == [0]
    assert "vocabulary" in errors[0]
    assert good.output_ids == expected
    assert books.step((poisoned, 2)) == {0: errors[0]}  # a step of nothing else


@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(seed=5), Sampling(top_p=0.9, seed=5), Sampling(top_k=3, seed=5)], ids=str
)
def test_logits_that_are_no_numbers_fail_alone_and_leave_nothing_behind(
    poisoned_runner: TorchRunner, sampling: Sampling
) -> None:
    books = Books(poisoned_runner)
    prompt = random_ids(20, 3)
    (expected,) = books.generate([books.sequence(prompt, sampling)], 20)
    good, poisoned = books.sequence(prompt, sampling), books.sequence([POISON_ID] * 40, sampling)
    books.step((poisoned, 16), (good, 20))  # not sampled yet: nobody knows
    errors = books.step((good, 1), (poisoned, 24))
    assert list(errors) == [1]
    assert "finite" in errors[1]
    heir = books.sequence(prompt, sampling)
    heir.pages = poisoned.pages  # full of NaN
    assert books.generate([heir, good], 20) == [expected, expected]


def test_a_row_that_cannot_be_drawn_fails_alone(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For every error of one row, and every way to draw its neighbours."""
    books = Books(runner)
    kinds = [GREEDY, Sampling(seed=5, logprobs=2), Sampling(top_p=0.9, seed=5, presence_penalty=1.0)]
    expected = [books.generate([books.sequence(random_ids(9, n), kind)], 3)[0] for n, kind in enumerate(kinds)]

    def strict(logits: torch.Tensor, draws: list[Draw]) -> list[int | None]:
        if any(draw.sampling.top_k > 2**31 for draw in draws):
            raise OverflowError("Python int too large to convert to C long")
        return sample(logits, draws)

    monkeypatch.setattr(engine.cpu.runner, "sample", strict)
    good = [books.sequence(random_ids(9, n), kind) for n, kind in enumerate(kinds)]
    bad = books.sequence(random_ids(9, 4), Sampling(top_k=2**40))
    errors = books.step((good[0], 9), (bad, 9), (good[1], 9), (good[2], 9))
    assert errors == {1: "its sampling could not be prepared: OverflowError: Python int too large to convert to C long"}
    assert [record.message for record in caplog.records] == ["draw.failed"]
    assert books.generate(good, 3) == expected
    bad.computed = 0
    assert list(books.step((bad, 9))) == [0], "a step of nothing else"


def test_a_token_beyond_the_context_fails_alone(runner: TorchRunner) -> None:
    books = Books(runner)
    long, good = books.sequence(random_ids(600, 1)), books.sequence(random_ids(9, 1))
    errors = books.step((long, 512), (good, 9))
    assert errors == {}
    errors = books.step((good, 1), (long, 88))
    assert list(errors) == [1]
    assert "512" in errors[1]


# ---- the arena, and several models in it


def test_two_models_share_the_arena(tiny: Path, tmp_path: Path) -> None:
    small = oracle.save_tiny("qwen3", tmp_path / "small", num_hidden_layers=1, head_dim=10)
    runner = build(tiny=tiny, small=small)
    assert runner.models["tiny"].tokens_per_page == PAGE_TOKENS
    assert runner.page_bytes == PAGE_TOKENS * 3 * 2 * 2 * 8 * 4
    assert runner.models["small"].tokens_per_page == runner.page_bytes // (2 * 2 * 10 * 4)
    assert runner.pages == runner.models["small"].pages == ARENA_BYTES // runner.page_bytes
    assert runner.models["tiny"].digest != runner.models["small"].digest
    books = Books(runner)
    prompt = random_ids(60, 1)
    wanted = {"tiny": tiny, "small": small}
    expected = {name: oracle.greedy(oracle.load(path), [prompt], 12) for name, path in wanted.items()}
    sequences = {name: books.sequence(prompt, model=name) for name in wanted}
    for _ in range(12):
        for own in sequences.values():
            assert not books.step((own, own.token_count() - own.computed))
    assert {name: [own.output_ids] for name, own in sequences.items()} == expected


def test_a_page_too_small_for_a_model_is_refused(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = KvLayout(layers=3, kv_heads=2, head_dim=8, dtype="float32")
    token_bytes = layout.token_bytes
    with caplog.at_level("INFO", logger="engine"):
        check_page("tiny", layout, page_bytes=9 * token_bytes + 5, pages=10)
    assert caplog.records[0].__dict__["fields"]["tokens_per_page"] == 9
    assert caplog.records[0].__dict__["fields"]["waste_bytes"] == 5
    with pytest.raises(ModelRefused, match="holds 7 tokens"):
        check_page("tiny", layout, page_bytes=8 * token_bytes - 1, pages=10)
    with pytest.raises(ModelRefused, match="arena_bytes"):
        check_page("tiny", layout, page_bytes=16 * token_bytes, pages=1)


def test_a_model_of_another_dtype_is_refused(tiny: Path) -> None:
    models = tuple(ModelConfig(name=name, path=str(tiny), dtype=name) for name in ("float32", "bfloat16"))
    runner = build_runner(EngineConfig(models=models, arena_bytes=ARENA_BYTES))
    assert runner.refused == {"bfloat16": "dtype: the models of one engine share one, here float32"}
    assert list(runner.models) == ["float32"]


def test_bfloat16_runs(tmp_path: Path) -> None:
    runner = build(dtype="bfloat16", tiny=oracle.save_tiny("qwen2", tmp_path))
    books = Books(runner)
    assert len(books.generate([books.sequence(random_ids(30, 1)), books.sequence(random_ids(9, 2))], 5)[1]) == 5


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"config\.json"):
        build(tiny=tmp_path)
