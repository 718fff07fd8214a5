"""Two models of different shapes that work in one memory, their kernels run by Triton's interpreter: ids are the
oracle's, whether a step runs eagerly, before its capture, or from it. And which graphs stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import engine.gpu.draws
import engine.gpu.runner
from engine.compute.masks import mask_words
from engine.compute.penalties import Draw, penalize
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder, PagedKv
from engine.gpu.draw_state import DrawState
from engine.gpu.draws import draw_fields, mode_of, undrawable
from engine.gpu.graphs import RUNS_BEFORE, GraphKind, Graphs, Run, _end_capture
from engine.gpu.model import SharedStepState
from engine.gpu.packing import Packer
from engine.gpu.products import check_fp8
from engine.gpu.runner import GpuRunner, PendingStep
from engine.gpu.step_memory import StepMemories, StepSizes, step_form
from engine.models.config import ModelRefused, load_config
from engine.models.cpu_loading import load_weights
from engine.models.slab import slab_layout
from engine.protocol.frames import Sampling
from engine.step import PENDING_ID, Chunk, Masks, Sequence, Step
from kernels import reference_sample
from kernels.kv_layout import FP8
from kernels.sample import Mode
from support import oracle
from support.engine.interpreted_models import (
    Again,
    Recorder,
    Served,
    TinyModel,
    graphs_of,
    interpreted,
    request,
)

CPU = torch.device("cpu")
NEW = 6


def models_of(directories: list[Path]) -> list[TinyModel]:
    return [TinyModel(directory) for directory in directories]


def test_a_row_that_the_packed_step_cannot_take_is_found_alone() -> None:
    """An engine refuses such values in its protocol; this is the safety net behind it."""
    vocab, good = 50, Draw(Sampling(temperature=0.7, top_k=4, seed=-1), 3, [1, 2], [3], frozenset())
    draws = [good, good._replace(sampling=Sampling(choice=2**40))]
    with pytest.raises(OverflowError):
        draw_fields(draws, vocab)
    found = undrawable(draws, vocab)
    assert list(found) == [1]
    assert "its sampling could not be prepared: OverflowError" in found[1]
    assert undrawable([good], vocab) == {}


@pytest.mark.parametrize("top_k", [50, 51, 2**31 - 1, 2**40])
def test_a_top_k_of_the_whole_vocabulary_is_none(top_k: int) -> None:
    draw = Draw(Sampling(top_k=top_k), 3)
    assert draw_fields([draw], 50)["top_ks"].tolist() == [0]
    assert mode_of([draw], 50) is Mode.PLAIN
    assert mode_of([Draw(Sampling(top_k=49), 3)], 50) is Mode.FILTERED
    assert draw_fields([Draw(Sampling(top_k=49), 3)], 50)["top_ks"].tolist() == [49]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    scratch = tmp_path_factory.mktemp("models")
    return [
        oracle.save_tiny("llama", scratch / "one", num_hidden_layers=2, head_dim=16),
        oracle.save_tiny("qwen3", scratch / "two", num_hidden_layers=1, hidden_size=32, vocab_size=200, seed=1),
    ]


@interpreted
def test_models_that_take_turns_in_one_memory_say_what_they_say_alone(directories: list[Path]) -> None:
    recorder = Recorder()
    served = Served(models_of(directories), graphs_of(recorder, 1000))
    dice = torch.Generator().manual_seed(3)
    prompts = [torch.randint(1, 190, (length,), generator=dice).tolist() for length in (7, 20)]
    expected, made = [], []
    for index, (model, directory) in enumerate(zip(served.models, directories, strict=True)):
        expected.append(oracle.greedy(oracle.load(directory), prompts, NEW))
        own = [request(prompt, [12 * index + 4 * place + i for i in range(4)]) for place, prompt in enumerate(prompts)]
        made.append(own)
        for sequence in own:
            (found,) = served.step(model, [Chunk(sequence, 0, len(sequence.prompt_ids), True)]).values()
            sequence.output_ids.append(found)
    for _ in range(NEW - 1):
        for model, own in zip(served.models, made, strict=True):
            chunks = [Chunk(s, len(s.prompt_ids) + len(s.output_ids) - 1, 1, True) for s in own]
            for sequence, found in served.step(model, chunks).items():
                sequence.output_ids.append(found)
    assert [[sequence.output_ids for sequence in own] for own in made] == expected
    # Decodes of two rows, of each model; the two prefills were too few.
    assert [graph.replays for graph in recorder.graphs] == [NEW - 1 - RUNS_BEFORE] * 2


@interpreted
def test_decodes_beside_prefill_say_what_they_say_alone(directories: list[Path]) -> None:
    """A mixed step: the rows of decodes, of a prompt's last token and of prompts of other lengths, in any order."""
    served = Served(models_of(directories[:1]), graphs_of(Recorder(), 0))
    (model,) = served.models
    dice = torch.Generator().manual_seed(8)
    lengths = (9, 30, 17, 1)
    prompts = [torch.randint(1, 190, (length,), generator=dice).tolist() for length in lengths]
    expected = oracle.greedy(oracle.load(directories[0]), prompts, 3)
    first, late, split, single = (request(p, [5 * place + i for i in range(5)]) for place, p in enumerate(prompts))
    # All that a prompt but its last token has, then that token as a row of its own.
    steps = [
        [(first, 9, True), (split, 16, False)],
        [(late, 11, False), (first, 1, True), (split, 1, True), (single, 1, True)],
        [(single, 1, True), (split, 1, True), (late, 19, True), (first, 1, True)],
        [(late, 1, True), (single, 1, True), (split, 1, True)],
        [(late, 1, True)],
    ]
    for step in steps:
        found = served.step(model, [Chunk(own, own.computed, count, sample) for own, count, sample in step])
        for own, count, _ in step:
            own.computed += count
        for own, token in found.items():
            if own.computed >= len(own.prompt_ids):
                own.output_ids.append(token)
    assert [own.output_ids for own in (first, late, split, single)] == expected


@torch.inference_mode()
def greedy_on_the_cpu(directory: Path, prompt: list[int], new: int, kv: str) -> list[int]:
    """One request alone, K and V in `kv`."""
    config = load_config(directory)
    layout = config.kv_layout(kv)
    arena = torch.full((8, config.layers * layout.run_bytes(16)), 0xFF, dtype=torch.uint8)
    decoder = Decoder(config, load_weights(directory, config, torch.float32), PagedKv.of(arena, layout))
    own = request(prompt, list(range(8)))
    while len(own.output_ids) < new:
        chunk = Chunk(own, own.computed, own.token_count() - own.computed, True)
        logits = decoder.forward(pack_step([chunk], decoder.kv.tokens_per_page, CPU, torch.float32), None)
        own.computed += chunk.count
        own.output_ids.append(int(logits[0].argmax()))
    return own.output_ids


@interpreted
def test_kv_in_fp8_beside_float32_says_what_the_cpu_says(directories: list[Path]) -> None:
    """Two models of one directory in one arena of NaN: prompts whole and in chunks, then mixed steps and decodes."""
    served = Served([TinyModel(directories[0]), TinyModel(directories[0], FP8)], graphs_of(Recorder(), 0))
    wide, narrow = served.models
    assert wide.info.tokens_per_page == 16
    assert narrow.info.tokens_per_page > 48
    dice = torch.Generator().manual_seed(4)
    prompts = [torch.randint(1, 190, (length,), generator=dice).tolist() for length in (37, 5)]
    for model, kv, first_page in ((narrow, FP8, 0), (wide, "float32", 8)):
        long = request(prompts[0], list(range(first_page, first_page + 5)))
        short = request(prompts[1], [first_page + 5, first_page + 6])
        steps = [[(long, 20)], [(long, 17), (short, 5)], *[[(long, 1), (short, 1)]] * 2]
        for step in steps:
            chunks = [Chunk(own, own.computed, count, own.computed + count == own.token_count()) for own, count in step]
            found = served.step(model, chunks)
            for own, count in step:
                own.computed += count
            for own, token in found.items():
                if own.computed == own.token_count():
                    own.output_ids.append(token)
        made = [long.output_ids, short.output_ids]
        assert made == [greedy_on_the_cpu(directories[0], prompt, 3, kv) for prompt in prompts]


def test_fp8_is_refused_by_name_on_an_older_gpu() -> None:
    for capability in ((8, 9), (9, 0), (10, 0), (12, 1)):
        check_fp8("kv_dtype: fp8 needs", capability)
    with pytest.raises(ModelRefused, match=r"^kv_dtype: fp8 needs a GPU of compute capability 8\.9 or newer; .* 8\.6$"):
        check_fp8("kv_dtype: fp8 needs", (8, 6))


class Reached:
    """Stands for an event of a device that computes at once."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def runner_of(served: Served, monkeypatch: pytest.MonkeyPatch) -> GpuRunner:
    """A GpuRunner over these models, without its start, which needs a device."""
    monkeypatch.setattr(engine.gpu.runner, "to_host", lambda tensor: tensor.clone())
    monkeypatch.setattr(torch.cuda, "Event", Reached)
    runner = object.__new__(GpuRunner)
    runner._common, runner._drawn, runner._places = served.common, served.common.drawn, {}
    runner._served = {str(model.number): model for model in served.models}
    served.common.draws.reserve(max(model.info.vocab_size for model in served.models))
    return runner


def ids_in_plain_torch(directory: Path, sequence: Sequence, count: int, allowed: list[int] | None) -> list[int]:
    """Of the oracle's logits, in float32."""
    model, made = oracle.load(directory), list[int]()
    for _ in range(count):
        ids = [*sequence.prompt_ids, *made]
        logits = model(torch.tensor([ids])).logits[0, -1:].float()
        row = None if allowed is None else mask_of(allowed, logits.shape[1])
        draw = Draw(sequence.sampling, len(ids), sequence.prompt_ids, made, sequence.stop_ids, row)
        own, found = draw.sampling, torch.empty(1, dtype=torch.int64)
        numbers = (own.temperature, own.seed, own.choice, draw.position, own.top_k, own.top_p, own.min_p)
        reference_sample.sample(penalize(logits, [draw]), *(torch.tensor([number]) for number in numbers), out=found)
        made.append(int(found))
    return made


def mask_of(allowed: list[int], vocab: int) -> Any:
    bits = np.zeros(mask_words(vocab) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@interpreted
@torch.inference_mode()
def test_prompt_logprobs_of_a_mixed_step_are_the_oracles(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts in chunks beside one without prompt logprobs; one prompt's beginning was reported before."""
    served = Served(models_of(directories[:1]), graphs_of(Recorder(), 1000))
    runner, model = runner_of(served, monkeypatch), oracle.load(directories[0])
    monkeypatch.setattr(engine.gpu.draws, "to_host", lambda tensor: tensor.clone())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    dice = torch.Generator().manual_seed(9)
    own, again, plain = (
        Sequence(
            i, 0, "r", "m", None, "n", "t", "s", torch.randint(1, 190, (length,), generator=dice).tolist(), 99,
            Sampling(0.0, prompt_logprobs=most), frozenset(), 0.0, [], list(range(5 * i, 5 * i + 5)),
        )
        for i, (length, most) in enumerate(((30, 3), (21, 0), (12, -1)))
    )  # fmt: skip
    steps = [
        [Chunk(plain, 0, 12, True), Chunk(own, 0, 17, False, 0)],
        [Chunk(own, 17, 13, True, 17), Chunk(again, 0, 20, False, 9)],
        [Chunk(again, 20, 1, True, 20)],
    ]
    values: dict[Sequence, list[float]] = {own: [], again: []}
    for number, chunks in enumerate(steps):
        pending = runner.begin_step(Step(number, "0", chunks))
        pending.draw(None)
        result = pending.result()
        assert not result.errors
        assert set(result.prompts) == {index for index, chunk in enumerate(chunks) if chunk.reported()}
        for index, part in result.prompts.items():
            sequence, rows = chunks[index].sequence, chunks[index].reported()
            assert (part.position, part.tokens()) == (rows.start + 1, len(rows))
            assert part.width == 1 + sequence.sampling.prompt_logprobs
            ids = np.frombuffer(part.ids, "<i4").reshape(-1, part.width)
            found = np.frombuffer(part.values, "<f4").reshape(-1, part.width)
            expected = oracle.logits(model, sequence.prompt_ids).log_softmax(-1)[rows.start : rows.stop]
            assert ids[:, 0].tolist() == sequence.prompt_ids[rows.start + 1 : rows.stop + 1]
            assert found == pytest.approx(expected.gather(1, torch.from_numpy(ids.copy()).long()).numpy(), abs=1e-4)
            assert found[:, 1:] == pytest.approx(expected.topk(part.width - 1).values.numpy(), abs=1e-4)
            above = expected > expected.gather(1, torch.tensor(ids[:, :1].tolist()))
            assert np.frombuffer(part.ranks, "<i4").tolist() == (above.sum(-1) + 1).tolist()
            values[sequence] += found[:, 0].tolist()
    assert [len(values[own]), len(values[again])] == [29, 20 - 9]


@interpreted
@torch.inference_mode()
def test_penalties_and_masks_one_step_ahead_on_the_runner(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step begins before the ids of the one before are known to the host, and is drawn after; one draw is skipped."""
    served = Served(models_of(directories[:1]), graphs_of(Recorder(), 1000))
    runner, vocab, new = runner_of(served, monkeypatch), served.models[0].info.vocab_size, 5
    asks = [
        Sampling(0.0, repetition_penalty=1.8, frequency_penalty=0.9),
        Sampling(0.9, seed=4, presence_penalty=1.5, logit_bias={5: 2.0, 9: 4.0}, min_tokens=3),
        Sampling(1.2, seed=5, top_k=20),
        Sampling(0.0),
    ]
    masked = {0: list(range(0, vocab, 3)), 2: [4, 31, 32, 64, vocab - 1]}
    dice = torch.Generator().manual_seed(6)
    requests = [
        Sequence(
            i, 0, "r", "m", None, "n", "t", "s", torch.randint(1, 190, (4 + 3 * i,), generator=dice).tolist(), 99, own,
            frozenset({7, 8}), 0.0, [], list(range(5 * i, 5 * i + 5)),
        )
        for i, own in enumerate(asks)
    ]  # fmt: skip
    words = np.stack([mask_of(masked.get(i, list(range(vocab))), vocab) for i in range(4)])
    expected = [ids_in_plain_torch(directories[0], own, new, masked.get(i)) for i, own in enumerate(requests)]
    before: tuple[Step, PendingStep] | None = None
    done = skips = 0
    while done < new:
        step = Step(done, "0", [Chunk(s, s.computed, s.token_count() - s.computed, True) for s in requests])
        pending = runner.begin_step(step)
        if before is not None:
            take_ids(*before)
        # All wait for the one that is skipped, so that the next step is of them all again.
        skip = frozenset(range(4)) if done == 2 and not skips else frozenset()
        skips += bool(skip)
        pending.draw(Masks(words, skip))
        for own, chunk in zip(requests, step.chunks, strict=True):
            own.computed = chunk.start + chunk.count - bool(skip)
            own.output_ids += [] if skip else [PENDING_ID]
        before = step, pending
        done += not skip
    assert before is not None
    take_ids(*before)
    assert [own.output_ids for own in requests] == expected


def take_ids(step: Step, pending: PendingStep) -> None:
    result = pending.result()
    assert not result.errors
    for index, (chunk, found) in enumerate(zip(step.chunks, result.ids, strict=True)):
        made = chunk.sequence.output_ids
        assert (found is None) == (index in result.skipped)
        if found is not None:
            made[made.index(PENDING_ID)] = found


@interpreted
def test_a_model_that_works_elsewhere_compiles_and_says_nothing(directories: list[Path]) -> None:
    served = Served(models_of(directories), graphs_of(Recorder(), 1000))
    model, before = served.models[1], served.arena.clone()
    packer = Packer(model.warm_words(), 8, pinned=False)
    sizes = StepSizes(model.warm_words(), 49, 49, 49)
    shape, table = load_config(directories[1]), served.common.adapters.rows.table  # type: ignore[union-attr]
    layout = slab_layout(shape, torch.float32, tied=True)
    memory = StepMemories(CPU).place(step_form(shape, torch.float32, table, sizes, 4, layout))
    stream: Any = None
    common = SharedStepState(
        packer,
        torch.zeros(49, dtype=torch.int32),
        served.common.adapters,
        stream,
        served.common.graphs,
        DrawState(CPU, 1),
    )
    beside = model.beside(memory, common)
    ran: list[tuple[int, bool]] = []
    run = beside._run

    def without_lora(layout, samples, *, lora, decodes):
        if not lora:  # adapters take streams
            ran.append((layout.sizes.rows, decodes))
            run(layout, samples, lora=lora, decodes=decodes)

    beside._run = without_lora  # type: ignore[method-assign]
    beside.warm_up()
    assert ran == [(48, False), (49, False), (1, True), (2, True), (16, True)]
    assert torch.equal(served.arena, before)


# ---- which graphs there are


def kind(rows: int, model: int = 0) -> GraphKind:
    return GraphKind(model, True, rows, False)


def runs(graphs: Graphs, own: GraphKind, most: int = 10_000) -> int:
    """So many until it has a graph."""
    for count in range(1, most + 1):
        if graphs.get(own) is not None:
            return count - 1
        if graphs.is_due(own):
            graphs.capture(own, lambda: None)
    return most


def test_a_step_is_captured_when_it_ran_a_few_times() -> None:
    graphs = graphs_of(Recorder(), 1000)
    assert runs(graphs, kind(8)) == RUNS_BEFORE
    assert graphs.get(kind(16)) is None


def test_the_least_recently_used_graph_goes_and_comes_back_later_each_time() -> None:
    recorder = Recorder(size=100)
    graphs = graphs_of(recorder, 250)
    runs(graphs, kind(1))
    runs(graphs, kind(2, model=1))
    graphs.get(kind(1))
    runs(graphs, kind(4))
    assert graphs.bytes == 200
    assert graphs.get(kind(2, model=1)) is None
    assert graphs.get(kind(1)) is not None
    assert runs(graphs, kind(2, model=1)) == 2 * RUNS_BEFORE
    assert graphs.get(kind(4)) is None


def test_a_graph_that_left_is_kept_until_the_steps_before_are_done() -> None:
    recorder = Recorder()
    graphs = graphs_of(recorder, 100)
    runs(graphs, kind(1))
    runs(graphs, kind(2))
    assert len(graphs._leaving) == 1
    runs(graphs, kind(4))
    assert len(graphs._leaving) == 2
    for mark in recorder.marks:
        mark.reached = True
    runs(graphs, kind(8))
    assert len(graphs._leaving) == 1


def test_nothing_is_captured_while_another_thread_may_wait_for_the_device() -> None:
    recorder = Recorder()
    graphs = graphs_of(recorder, 1000)
    with graphs.paused():
        assert runs(graphs, kind(1), most=50) == 50
        graphs.capture(kind(2), lambda: None)  # it was due before
    assert recorder.graphs == []
    assert runs(graphs, kind(1)) == RUNS_BEFORE


def test_a_capture_that_fails_is_not_tried_again_at_once() -> None:
    class Full(Recorder):
        def record(self, run: Run) -> tuple[Again, int]:
            if not self.size:
                raise RuntimeError("out of memory")
            return super().record(run)

    recorder = Full(size=0)
    graphs = graphs_of(recorder, 1000)
    with pytest.raises(RuntimeError, match="out of memory"):
        runs(graphs, kind(8))
    assert graphs.get(kind(8)) is None
    assert not graphs.bytes
    assert not graphs.is_due(kind(8)), "each step of its kind would fail"
    recorder.size = 100
    assert runs(graphs, kind(8)) == 2 * RUNS_BEFORE - 1


def test_a_graph_that_the_device_has_no_room_for_is_done_without() -> None:
    class Full(Recorder):
        def record(self, run: Run) -> tuple[Again, int]:
            if not self.size:
                raise MemoryError("CUDA error: out of memory")
            return super().record(run)

    recorder = Full(size=0)
    graphs = graphs_of(recorder, 1000)
    assert not graphs.capture(kind(4), lambda: None), "at the start"
    assert runs(graphs, kind(8), most=RUNS_BEFORE + 1) == RUNS_BEFORE + 1
    assert (graphs.get(kind(8)), graphs.bytes, graphs.captures) == (None, 0, 0)
    recorder.size = 100
    assert runs(graphs, kind(8)) == 2 * RUNS_BEFORE - 1
    assert graphs.capture(kind(4), lambda: None)


class Capture:
    """Of torch, as far as its end: what it raises then, and whether torch holds the capture to be over."""

    def __init__(self, error: BaseException | None = None, *, over: bool = True) -> None:
        self._error, self._over = error, over

    def capture_end(self) -> None:
        if self._error is not None:
            raise self._error

    def pool(self) -> tuple[int, int]:
        if not self._over:
            raise RuntimeError("Called CUDAGraph::pool without a preceding successful capture.")
        return 0, 1


def test_only_what_leaves_torch_as_it_was_is_taken_for_want_of_room() -> None:
    full = torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in ...")
    other = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    _end_capture(Capture())  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="out of memory"):
        _end_capture(Capture(full))  # type: ignore[arg-type]
    for capture in (Capture(full, over=False), Capture(other)):
        with pytest.raises(torch.AcceleratorError):
            _end_capture(capture)  # type: ignore[arg-type]


def test_none_without_bytes_and_none_of_what_is_forgotten() -> None:
    assert runs(graphs_of(Recorder(), 0), kind(1), most=50) == 50
    graphs = graphs_of(Recorder(), 1000)
    for own in (kind(1), kind(2), kind(1, model=1)):
        runs(graphs, own)
    graphs.forget_graphs(0)
    assert not graphs._leaving, "what is needed next may need their memory"
    assert len(graphs) == 1
    assert graphs.bytes == 100
    assert graphs.get(kind(1, model=1)) is not None
