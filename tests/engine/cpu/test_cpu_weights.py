"""A CPU's weights: counted as they are, read and let go on a thread, and gone when they are said to be."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import save_file

from engine.cpu.decoder import Decoder
from engine.cpu.runner import TorchRunner, build_runner
from engine.cpu.weights import FIRST_BYTES_PER_S, CpuModel, CpuWeights
from engine.memory.arena import Arena
from engine.models.config import ModelRefused, load_config
from engine.models.cpu_loading import cpu_bytes
from engine.models.linear import Linear
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.served import ModelLimits
from engine.step import Sequence, run_step
from support import oracle

ARENA_BYTES = 16 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "one": oracle.save_tiny("llama", root / "one"),
        "two": oracle.save_tiny("qwen3", root / "two", seed=1, num_key_value_heads=3, vocab_size=352),
    }


def build(tiny: dict[str, Path], room: int | None = None, **changes: Any) -> TorchRunner:
    """With room for `room` models' weights, all alike."""
    models = tuple(ModelConfig(name=name, path=str(path)) for name, path in tiny.items())
    weights = 0 if room is None else room * max(size_of(path) for path in tiny.values())
    return build_runner(
        EngineConfig(models=models, arena_bytes=ARENA_BYTES, threads=1, weights_bytes=weights, **changes)
    )


def size_of(directory: Path, *, packed: bool = True) -> int:
    return cpu_bytes(load_config(directory), torch.float32, packed=packed)


def until(done: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := done()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)
    return found


def come(weights: CpuWeights, name: str) -> Any:
    weights.begin_load(name)
    (move,) = until(lambda: list(weights.poll_weights()))
    assert move.model == name
    return move


def tensors(decoder: Decoder) -> Iterator[torch.Tensor]:
    """All that it multiplies with."""
    owners: list[Any] = [decoder._weights, *decoder._weights.layers]
    for owner in owners:
        for value in (getattr(owner, field.name) for field in dataclasses.fields(owner)):
            found = (value._plain, value._packed, value._bias) if isinstance(value, Linear) else (value,)
            yield from (tensor for tensor in found if isinstance(tensor, torch.Tensor))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_model_takes_is_told_by_its_shape(
    family: str, dtype: Literal["float32", "bfloat16"], tmp_path: Path
) -> None:
    directory = oracle.save_tiny(family, tmp_path / "m")
    models = (ModelConfig(name="m", path=str(directory), dtype=dtype),)
    runner = build_runner(EngineConfig(models=models, arena_bytes=ARENA_BYTES, threads=1))
    found = list(tensors(runner.weights.decoder("m")))
    # Nobody can see inside of what MKL has packed: it is as large as the plain matrix.
    packed = [tensor for tensor in found if tensor.is_mkldnn]
    plain = [tensor for tensor in found if not tensor.is_mkldnn]
    copied = sum(tensor.nbytes for tensor in plain if tensor.dim() == 2) - found[0].nbytes if packed else 0
    assert runner.weights.weights_bytes("m") == sum(tensor.nbytes for tensor in plain) + copied
    assert bool(packed) == (dtype == "float32" and torch.backends.mkl.is_available())


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_of_what_is_dropped_goes_back_to_the_system(tmp_path: Path) -> None:
    """Matrices of a few MB, which glibc would keep for what comes next."""
    directory = oracle.save_tiny(
        "llama", tmp_path / "m", hidden_size=512, intermediate_size=1536, num_attention_heads=8, head_dim=64,
        num_hidden_layers=4,
    )  # fmt: skip
    runner = build({"m": directory}, room=1)
    weights = runner.weights
    size = weights.weights_bytes("m")
    assert size > 60_000_000
    with_it = rss()
    seen = [weakref.ref(tensor) for tensor in tensors(weights.decoder("m")) if tensor is not None]
    weights.evict_weights("m")
    assert weights.weights_location("m") == "disk"
    until(lambda: not list(weights.poll_weights()) and not weights.is_reclaiming)
    assert weights.free_bytes() == weights.bytes_max
    assert not any(tensor() is not None for tensor in seen)
    assert with_it - rss() > 0.9 * size
    without = rss()
    move = come(weights, "m")
    assert (move.source, move.error) == ("disk", "")
    assert weights.weights_location("m") == "device"
    assert rss() - without == pytest.approx(size, rel=0.2)
    assert weights.free_bytes() == 0


def test_loads_are_predicted_by_those_before(tiny: dict[str, Path]) -> None:
    weights = build(tiny, room=1).weights
    assert [weights.weights_location(name) for name in tiny] == ["device", "disk"], "in the order of the configuration"
    first = weights.load_seconds("two")
    weights._loads.clear()
    assert weights.load_seconds("two") == pytest.approx(
        sum(path.stat().st_size for path in tiny["two"].glob("*.safetensors")) / FIRST_BYTES_PER_S
    )
    weights._loads.append((1000, 2.0))
    slow = weights.load_seconds("two")
    assert slow > 1.0 > first
    weights.evict_weights("one")
    until(lambda: weights.free_bytes() >= weights.weights_bytes("two"))
    weights.begin_load("two")
    assert slow - 1.0 < weights.load_seconds("two") <= slow, "what is left"
    (move,) = until(lambda: list(weights.poll_weights()))
    assert weights.load_seconds("two") == 0.0
    assert weights.load_seconds("one") < slow, "that was one of those by which it is told"
    assert move.seconds > 0


def test_what_nobody_waits_for_any_more_does_not_come(tiny: dict[str, Path]) -> None:
    """Be it in the queue, half read, or there and not yet taken in."""
    weights = build(tiny, room=2).weights
    for delay_s in (0.0, 0.001, 0.003, 0.2):
        weights.evict_weights("one")
        until(lambda: weights.free_bytes() >= weights.weights_bytes("one"))
        weights.begin_load("one")
        time.sleep(delay_s)
        weights.evict_weights("one")
        assert weights.weights_location("one") == "disk"
        assert weights.bytes_max is not None
        free = weights.bytes_max - weights.weights_bytes("two")
        until(lambda: (not list(weights.poll_weights())) and weights.free_bytes() == free)  # noqa: B023
        assert come(weights, "one").error == ""
        weights.check_integrity()
    # Dropped and begun again at once: the first is not taken for the second.
    weights.evict_weights("one")
    until(lambda: weights.free_bytes() >= weights.weights_bytes("one"))
    weights.begin_load("one")
    weights.evict_weights("one")
    until(lambda: weights.free_bytes() >= weights.weights_bytes("one"))
    assert come(weights, "one").error == ""


def test_files_that_are_others_than_those_that_were_checked_do_not_come(tiny: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(tiny["two"], tmp_path / "two")
    runner = build({"one": tiny["one"], "two": directory}, room=1)
    weights = runner.weights
    weights.evict_weights("one")
    until(lambda: weights.free_bytes() >= weights.weights_bytes("two"))
    save_file({"x": torch.zeros(3)}, directory / "model.safetensors")
    move = come(weights, "two")
    assert move.error == f"{directory}: its files are not those that were checked"
    assert weights.weights_location("two") == "disk"
    assert weights.free_bytes() == weights.bytes_max
    shutil.rmtree(directory)
    assert "no *.safetensors" in come(weights, "two").error
    weights.check_integrity()
    assert come(weights, "one").error == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), r"model\.safetensors ends at byte \d+$"),
        (lambda file: os.utime(file, ns=(1, 1)), "its files are not those that were checked$"),
        (lambda file: file.write_bytes(bytes(file.stat().st_size)), "its files are not those that were checked$"),
    ],
    ids=["cut short", "touched", "written over"],
)
def test_a_file_that_changes_while_it_is_read_is_refused(
    change: Callable[[Path], None], why: str, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """It once was mapped: the first of these ended the process."""
    directory = shutil.copytree(tiny["one"], tmp_path / "one")
    model = CpuModel.from_config(ModelConfig(name="one", path=str(directory)), torch.float32)
    arena = torch.zeros(4, 1 << 16, dtype=torch.uint8)
    asked = 0

    def stopped() -> bool:  # asked before each tensor
        nonlocal asked
        asked += 1
        if asked == 5:
            change(directory / "model.safetensors")
        return False

    with pytest.raises((OSError, ModelRefused), match=why):
        model.build_decoder(arena, stopped)


def test_pinned_models_are_there_first(tiny: dict[str, Path]) -> None:
    size = max(size_of(path) for path in tiny.values())
    models = tuple(ModelConfig(name=name, path=str(path), pinned=name == "two") for name, path in tiny.items())
    config = EngineConfig(models=models, arena_bytes=ARENA_BYTES, threads=1, weights_bytes=size)
    weights = build_runner(config).weights
    assert [weights.weights_location(name) for name in tiny] == ["disk", "device"]
    endless = build(tiny).weights
    assert [endless.weights_location(name) for name in tiny] == ["device", "device"]
    assert endless.bytes_max is None


def test_what_cannot_be_served_is_refused_and_the_others_are(tiny: dict[str, Path], tmp_path: Path) -> None:
    """Also what turns out to be broken when its numbers are read."""
    broken = shutil.copytree(tiny["two"], tmp_path / "two")
    (broken / "model.safetensors").unlink()
    runner = build({**tiny, "broken": broken, "gone": tmp_path / "gone"})
    assert list(runner.models) == ["one", "two"]
    assert runner.refused["broken"] == f"{broken}: no *.safetensors"
    assert "config.json" in runner.refused["gone"]
    assert "model 'broken' is not served" in str(_raised(lambda: runner.load_adapter("0" * 64, "broken", "/x")))
    with pytest.raises(ModelRefused, match=r"^broken: .*; gone: "):
        build({"broken": broken, "gone": tmp_path / "gone"})
    models = (ModelConfig(name="one", path=str(tiny["one"])),)
    with pytest.raises(ModelRefused, match=r"; weights_bytes is 1$"):
        build_runner(EngineConfig(models=models, arena_bytes=ARENA_BYTES, weights_bytes=1))


def test_what_cannot_be_served_shapes_no_page(tiny: dict[str, Path], tmp_path: Path) -> None:
    """A token of either takes more than a page: one lacks its weights, for those of the other there is no room."""
    broken = shutil.copytree(tiny["one"], tmp_path / "broken")
    shape = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(shape | {"head_dim": 1 << 24}))
    large = oracle.save_tiny("llama", tmp_path / "large", head_dim=256, num_hidden_layers=16)
    alone = build({"one": tiny["one"]})
    runner = build({"broken": broken, "one": tiny["one"]})
    assert runner.page_bytes == alone.page_bytes
    assert "q_proj.weight has shape" in runner.refused["broken"]
    models = tuple(ModelConfig(name=path.name, path=str(path)) for path in (large, tiny["one"]))
    size = size_of(tiny["one"])
    runner = build_runner(EngineConfig(models=models, arena_bytes=ARENA_BYTES, threads=1, weights_bytes=size))
    assert runner.page_bytes == alone.page_bytes
    assert runner.refused["large"] == f"its weights take {size_of(large)} bytes; weights_bytes is {size}"


def test_models_of_random_weights_share_no_cached_page(tiny: dict[str, Path]) -> None:
    models = tuple(ModelConfig(name=name, path=str(tiny["one"]), dummy=True) for name in ("a", "b"))
    runner = build_runner(EngineConfig(models=models, arena_bytes=ARENA_BYTES, threads=1))
    assert len({info.digest for info in runner.models.values()}) == 2
    for name in runner.models:
        weights = runner.weights.decoder(name)._weights
        down = weights.layers[0].down
        assert isinstance(down, Linear)
        assert 0.015 < down._plain.std() < 0.025
        assert torch.all(weights.layers[0].post_norm == 1)


def _raised(function: Callable[[], Any]) -> Exception:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at it
        function()
    return caught.value


def test_the_context_is_no_longer_than_configured(tiny: dict[str, Path]) -> None:
    runner = build(tiny)
    for asked, found in ((100, 100), (10_000, 512), (None, 512)):
        info = runner.load_model(ModelConfig(name="more", path=str(tiny["one"]), context_tokens=asked))
        assert info.context_tokens == found
        runner.unload_model("more")
    assert list(runner.models) == ["one", "two"]
    assert runner.page_waste == {"one": 0, "two": runner.page_waste["two"]}


class Engine:
    """The scheduler over the runner, on real time."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            SHIPPED_TIERS,
            {},
            Arena(runner.pages, runner.page_bytes),
            runner.adapters,
            time.monotonic,
            sequences_max=8,
            weights=runner.weights,
            weights_residence_s=0.0,
        )
        for name in runner.models:
            self.add(name)
        self.steps: list[str] = []  # models

    def add(self, name: str) -> None:
        info = self.runner.models[name]
        limits = ModelLimits(info.context_tokens, info.tokens_per_page, info.digest, info.vocab_size)
        assert self.scheduler.add_model(name, limits, pinned=False) == ""

    def submit(self, handle: int, model: str, prompt: list[int], new: int) -> Sequence:
        tier, greedy = SHIPPED_TIERS[handle % 3].name, Sampling(temperature=0.0)
        now = time.monotonic()
        sequence = Sequence(handle, 0, "r", model, None, "n", tier, "s", prompt, new, greedy, frozenset(), now)
        assert self.scheduler.submit(sequence) is None
        return sequence

    def run(self) -> None:
        while self.scheduler.has_work():
            step = self.scheduler.schedule()
            assert not self.scheduler.take_failed()
            if step is None:
                assert self.scheduler.has_blocked_requests
                time.sleep(0.0005)
                continue
            self.steps.append(step.model)
            began = time.monotonic()
            outcome = self.scheduler.complete(step, run_step(self.runner, step), time.monotonic() - began)
            assert all(ended.reason == "length" for ended in outcome.ended)
        self.check()

    def check(self) -> None:
        self.scheduler.check_integrity()
        self.runner.weights.check_integrity()
        self.runner.adapters.check_integrity()


@pytest.mark.parametrize("room", [1, 2, None])
def test_two_families_in_one_engine_say_what_transformers_says(tiny: dict[str, Path], room: int | None) -> None:
    """With room for the weights of one they take turns, and what was preempted for that goes on as if nothing had
    been. A third comes and goes meanwhile."""
    runner = build(tiny, room)
    engine = Engine(runner)
    models = {name: oracle.load(path) for name, path in tiny.items()}
    dice = torch.Generator().manual_seed(5)
    wanted: dict[int, tuple[str, list[int]]] = {}
    for handle in range(16):
        prompt = torch.randint(10, oracle.TINY_VOCAB, (5 + 4 * handle,), generator=dice).tolist()
        wanted[handle] = list(tiny)[handle // 2 % 2], prompt
    expected = {h: oracle.greedy(models[name], [prompt], 16)[0] for h, (name, prompt) in wanted.items()}
    sequences = {h: engine.submit(h, name, prompt, 16) for h, (name, prompt) in wanted.items()}
    third = runner.load_model(ModelConfig(name="third", path=str(tiny["one"]), context_tokens=200))
    engine.add("third")
    also = engine.submit(99, "third", wanted[0][1], 16)
    engine.run()
    assert {h: sequence.output_ids for h, sequence in sequences.items()} == expected
    assert also.output_ids == expected[0]
    assert third.context_tokens == 200
    engine.scheduler.retire_model("third")
    assert not engine.scheduler.uses_model("third")
    engine.scheduler.forget_model("third")
    runner.unload_model("third")
    engine.check()
    turns = sum(one != other for one, other in zip(engine.steps, engine.steps[1:], strict=False))
    assert turns >= 2
    if room == 1:
        assert sum(hosted.loads for hosted in engine.scheduler.weight_residency.models.values()) >= 1
        assert runner.weights.weights_location("one") != runner.weights.weights_location("two")
