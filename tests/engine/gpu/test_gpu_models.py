"""Several models on one GPU within a budget for one: tokens are the oracle's however often a model was away, with
graphs and without, from host memory and from files; and nobody's bytes change while a step reads them."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.__main__ import build_scheduler
from engine.gpu.build import build_gpu_runner
from engine.gpu.memory import ChunkedSpace
from engine.gpu.runner import GpuRunner
from engine.models.config import ModelRefused
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.step import PENDING_ID, Chunk, Pending, Sequence, Step
from support import oracle
from support.engine.gpu import GpuEngine  # first: it skips where there is no GPU
from support.engine.gpu_oracle import compare, load_oracle
from support.engine.in_process import TIERS

pytestmark = pytest.mark.gpu
assert GpuEngine is not None
NEW = 24
VOCAB = 8192
MIB = 1 << 20
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "vocab_size": VOCAB, "head_dim": 32}
NEAR_TIE = 0.05


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of other shapes: chunks of either are behind parts of the other's that begin elsewhere."""
    scratch = tmp_path_factory.mktemp("models")
    return {
        "one": oracle.save_tiny("llama", scratch / "one", num_hidden_layers=4, initializer_range=0.08, **WIDE),
        "two": oracle.save_tiny("qwen3", scratch / "two", num_hidden_layers=2, initializer_range=0.08, seed=1, **WIDE),
    }


def configured(directories: dict[str, Path], **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {
        "models": tuple(ModelConfig(name=name, path=str(path), dtype="float16") for name, path in directories.items()),
        "arena_bytes": 64 * MIB,
        "step_tokens_max": 128,
        "sequences_max": 8,
        "prefill_tokens_min": 16,
        "adapters_max": 8,
        "adapter_rank_max": 16,
        "adapter_host_bytes": 4 * MIB,
        "adapter_staging_bytes": 4 * MIB,
        "weights_bytes": 20 * MIB,
        "weights_host_bytes": 64 * MIB,
        "device": "cuda",
    }
    return EngineConfig(**(settings | changes))


def build(directories: dict[str, Path], **changes: Any) -> GpuRunner:
    return build_gpu_runner(configured(directories, **changes))


class Asked:
    """Requests of one model, all of the same lengths, each with pages of its own."""

    def __init__(self, runner: GpuRunner, model: str, first_page: int, seed: int = 0, count: int = 3) -> None:
        self.runner, self.model = runner, model
        dice = torch.Generator().manual_seed(seed)
        per_page = runner.models[model].tokens_per_page
        each = -(-(40 + NEW) // per_page)
        self.sequences = []
        for index in range(count):
            prompt = torch.randint(1, VOCAB, (9 + 11 * index,), generator=dice).tolist()
            pages = list(range(first_page + index * each, first_page + (index + 1) * each))
            assert pages[-1] < runner.pages
            self.sequences.append(
                Sequence(
                    index, 0, "r", model, None, "n", "t", "s", prompt, NEW, Sampling(temperature=0.0), frozenset(), 0.0,
                    [], pages,
                )
            )  # fmt: skip

    def begin(self) -> tuple[Step, Pending]:
        """Prompts first, then an id each."""
        chunks = []
        for sequence in self.sequences:
            made = len(sequence.output_ids)
            start = len(sequence.prompt_ids) + made - 1 if made else 0
            chunks.append(Chunk(sequence, start, 1 if made else len(sequence.prompt_ids), True))
        step = Step(0, self.model, chunks)
        pending = self.runner.begin_step(step)
        for sequence in self.sequences:
            sequence.output_ids.append(PENDING_ID)
        return step, pending

    def begin_alone(self) -> tuple[Step, Pending]:
        """With no other step in flight: the draw follows at once."""
        step, pending = self.begin()
        pending.draw(None)
        return step, pending

    def left(self) -> int:
        return NEW - len(self.sequences[0].output_ids)


def take(step: Step, pending: Pending) -> None:
    result = pending.result()
    assert not result.errors, result.errors
    for chunk, found in zip(step.chunks, result.ids, strict=True):
        made = chunk.sequence.output_ids
        assert found is not None
        made[made.index(PENDING_ID)] = found


def talk(*asked: Asked) -> None:
    """Steps of each in turn, one ahead of the result."""
    flights: deque[tuple[Step, Pending]] = deque()
    while any(own.left() for own in asked):
        for own in asked:
            if own.left():
                flights.append(own.begin())
                if len(flights) == 1:
                    flights[0][1].draw(None)
            if len(flights) > 1:
                take(*flights.popleft())
                flights[0][1].draw(None)
    while flights:
        take(*flights.popleft())


def until(runner: GpuRunner, condition: Any) -> list[tuple[str, str]]:
    moved, stop = [], time.monotonic() + 20
    while not condition():
        assert time.monotonic() < stop, "it never came"
        for move in runner.weights.poll_weights():
            assert not move.error, move.error
            moved.append((move.model, move.source))
        time.sleep(0.001)
    return moved


def bring(runner: GpuRunner, name: str) -> list[tuple[str, str]]:
    """In place of all others."""
    weights = runner.weights
    if weights.weights_location(name) == "device":
        return []
    for other in list(runner.models):
        if other != name:
            weights.evict_weights(other)
    moved = until(runner, lambda: weights.free_bytes() >= weights.weights_bytes(name))
    weights.begin_load(name)
    return moved + until(runner, lambda: weights.weights_location(name) == "device")


def worst(directory: Path, asked: list[Asked]) -> float:
    model = load_oracle(directory, torch.float32)
    sequences = [sequence for own in asked for sequence in own.sequences]
    return max(compare(model, sequence.prompt_ids, sequence.output_ids).gap for sequence in sequences)


@pytest.mark.parametrize("graph_bytes", [1 << 30, 0])
@pytest.mark.parametrize("host_bytes", [64 * MIB, 0])
def test_who_was_away_says_what_the_oracle_says(
    host_bytes: int, graph_bytes: int, directories: dict[str, Path]
) -> None:
    runner = build(directories, weights_host_bytes=host_bytes, graph_bytes=graph_bytes)
    weights, graphs = runner.weights, runner._common.graphs
    assert isinstance(weights.room, ChunkedSpace)
    assert weights.weights_bytes("one") + weights.weights_bytes("two") > 20 * MIB
    assert weights.weights_bytes("two") > 2 * MIB, "of several chunks"
    assert weights.weights_location("one") == "device"
    until(runner, lambda: not weights._busy)
    assert weights.weights_location("two") == ("host" if host_bytes else "disk")
    addresses = {name: known.slab.data_ptr() for name, known in weights._known.items()}
    asked: dict[str, list[Asked]] = {"one": [], "two": []}
    captures = []
    for turn in range(4):
        for name in ("two", "one"):
            assert bring(runner, name) == [(name, "host" if host_bytes else "disk")]
            weights.room.check_mapped(weights._known[name].allocation)  # type: ignore[arg-type]
            weights.check_integrity()
            asked[name].append(Asked(runner, name, 0, seed=turn % 2))
            talk(asked[name][-1])
        captures.append(graphs.captures)
    assert {name: known.slab.data_ptr() for name, known in weights._known.items()} == addresses
    assert bool(len(graphs)) == bool(graph_bytes)
    assert captures[-1] == captures[-2], "graphs of before it went still serve"
    for name, directory in directories.items():
        gap = worst(directory, asked[name])
        print(f"\n{name}, host {host_bytes >> 20} MiB, graphs {len(graphs)}: widest gap {gap:.4f}")
        assert gap <= NEAR_TIE


def test_two_resident_models_step_in_turns_in_one_memory(directories: dict[str, Path]) -> None:
    """With adapters' tables, work space and graphs shared: a step of one between two of the other."""
    runner = build(directories, weights_bytes=0)
    assert runner.weights.bytes_max is None
    both = []
    for seed in range(3):
        own = [Asked(runner, "one", 0, seed), Asked(runner, "two", runner.pages // 2, seed)]
        talk(*own)
        both.append(own)
    assert len(runner._common.graphs) >= 2
    for index, directory in enumerate(directories.values()):
        assert worst(directory, [own[index] for own in both]) <= NEAR_TIE


def test_the_scheduler_brings_whoever_is_asked_for(directories: dict[str, Path]) -> None:
    """Requests of both at once, in the room of one: they take turns, and say what the oracle says."""
    config = configured(directories, tiers=TIERS, weights_residence_s=0.0)
    runner = build_gpu_runner(config)
    scheduler = build_scheduler(config, runner)
    dice = torch.Generator().manual_seed(5)
    asked: dict[str, list[Sequence]] = {name: [] for name in directories}
    flights: deque[tuple[Step, Pending]] = deque()
    ended = 0
    stop = time.monotonic() + 60
    while ended < 24:
        assert time.monotonic() < stop
        submitted = sum(map(len, asked.values()))
        if submitted < 24 and submitted <= ended + 8:
            name = list(directories)[submitted % 2]
            prompt = torch.randint(1, VOCAB, (5 + submitted,), generator=dice).tolist()
            asked[name].append(
                Sequence(
                    submitted, 0, f"r{submitted}", name, None, "n", "standard", "s", prompt, NEW,
                    Sampling(temperature=0.0), frozenset(), time.monotonic(),
                )
            )  # fmt: skip
            assert scheduler.submit(asked[name][-1]) is None
        while len(flights) <= runner.steps_ahead and (step := scheduler.schedule()) is not None:
            flights.append((step, runner.begin_step(step)))
            if len(flights) == 1:
                flights[0][1].draw(None)
        if not flights:
            time.sleep(0.0005)
            continue
        step, pending = flights.popleft()
        outcome = scheduler.complete(step, pending.result(), 0.001)
        if flights:
            flights[0][1].draw(None)
        assert all(end.reason == "length" for end in outcome.ended), outcome.ended
        ended += len(outcome.ended)
    scheduler.check_integrity()
    runner.weights.check_integrity()
    loads = sum(hosted.loads for hosted in scheduler.weight_residency.models.values())
    print(f"\n{loads} loads for {ended} requests of two models in the room of one")
    assert loads >= 2
    for name, directory in directories.items():
        model = load_oracle(directory, torch.float32)
        assert max(compare(model, own.prompt_ids, own.output_ids).gap for own in asked[name]) <= NEAR_TIE


def test_bytes_of_a_dropped_model_are_its_own_until_its_steps_are_done(directories: dict[str, Path]) -> None:
    runner = build(directories, graph_bytes=0)  # the same step in two ways may round in two ways
    weights = runner.weights
    until(runner, lambda: not weights._busy)
    expected = Asked(runner, "one", 0)
    talk(expected)
    asked = Asked(runner, "one", 0)
    for _ in range(4):
        flight = asked.begin_alone()
        take(*flight)
    torch.cuda._sleep(400_000_000)  # a fifth of a second, before the step
    flight = asked.begin_alone()
    weights.evict_weights("one")
    free = weights.free_bytes()
    assert free < weights.weights_bytes("two")
    time.sleep(0.02)
    list(weights.poll_weights())
    assert weights.free_bytes() == free, "the step in flight still reads"
    until(runner, lambda: weights.free_bytes() >= weights.weights_bytes("two"))
    weights.begin_load("two")
    take(*flight)
    until(runner, lambda: weights.weights_location("two") == "device")
    assert [s.output_ids for s in asked.sequences] == [s.output_ids[:5] for s in expected.sequences]
    # And dropped on its way, for the other.
    weights.evict_weights("two")
    until(runner, lambda: weights.free_bytes() >= weights.weights_bytes("two"))
    weights.begin_load("two")
    weights.evict_weights("two")
    assert bring(runner, "one") == [("one", "host")]
    while asked.left():
        take(*asked.begin_alone())
    assert [s.output_ids for s in asked.sequences] == [s.output_ids for s in expected.sequences]
    weights.check_integrity()


def test_a_model_is_added_beside_the_steps_and_forgotten(directories: dict[str, Path]) -> None:
    runner = build({"one": directories["one"]}, weights_bytes=40 * MIB)
    config = ModelConfig(name="two", path=str(directories["two"]), dtype="float16")
    for _ in range(5):  # until all of it is captured
        before = Asked(runner, "one", 0)
        talk(before)
    for turn in range(2):
        thread = threading.Thread(target=runner.load_model, args=(config,))
        thread.start()
        steps, longest = 0, 0.0
        while thread.is_alive():
            meanwhile = Asked(runner, "one", 0)
            while meanwhile.left():
                began = time.monotonic()
                take(*meanwhile.begin_alone())
                longest = max(longest, time.monotonic() - began)
                steps += 1
            assert [s.output_ids for s in meanwhile.sequences] == [s.output_ids for s in before.sequences]
        thread.join()
        print(f"\nadded beside {steps} steps, the longest {1000 * longest:.1f} ms")
        assert runner.weights.weights_location("two") == "disk"
        runner.weights.begin_load("two")
        until(runner, lambda: runner.weights.weights_location("two") == "device")
        asked = Asked(runner, "two", runner.pages // 2, seed=turn)
        talk(asked)
        talk(Asked(runner, "one", 0), Asked(runner, "two", runner.pages // 2))
        assert worst(directories["two"], [asked]) <= NEAR_TIE
        runner.weights.evict_weights("two")
        runner.unload_model("two")
        assert list(runner.models) == ["one"]
        until(runner, lambda: not runner.weights._busy)
        runner.weights.check_integrity()
    again = Asked(runner, "one", 0)
    talk(again)
    assert [s.output_ids for s in again.sequences] == [s.output_ids for s in before.sequences]


def test_what_cannot_be_served_is_refused_and_the_others_serve(directories: dict[str, Path], tmp_path: Path) -> None:
    none = tmp_path / "none"
    none.mkdir()
    runner = build({"one": directories["one"], "none": none})
    assert list(runner.models) == ["one"]
    assert "config.json" in runner.refused["none"]
    runner = build(directories, weights_bytes=12 * MIB)
    assert list(runner.models) == ["two"]
    assert "weights_bytes is 12582912" in runner.refused["one"]
    with pytest.raises(ModelRefused, match=r"weights_bytes: 4398046511104: the device has \d+ bytes"):
        build(directories, weights_bytes=1 << 42)
