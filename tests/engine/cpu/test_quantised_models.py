"""Quantised models of a CPU's runner: every published format, every format on loading, fp8 KV, and adapters."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import engine.cpu.weights
import engine.models.cpu_loading
from adapters.device.layer import LoraBatch
from engine.cpu.batch import pack_step
from engine.cpu.runner import TorchRunner, build_runner
from engine.models.config import ModelRefused
from engine.models.linear import CpuProduct, Int8Linear
from engine.models.matrices import dequantize_matrix, quantize_matrix
from engine.models.quantized import QUANTIZE_FORMATS
from engine.models.shape import GATE_UP, QKV
from engine.protocol.config import EngineConfig, ModelConfig
from engine.protocol.frames import Sampling
from engine.step import Chunk, Sequence
from support import oracle
from support.engine.in_process import MODEL, Drive
from support.engine.poisoned_arena import run_among_traps, tiny_model
from support.engine.published_formats import PROJECTIONS, PUBLISHED, quantize_directory
from support.engine.quality import ANY_QUALITY, measure_few_windows
from support.engine.same_ids import Case, run_cases

# Columns that every published format can have.
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
FAMILIES = ("llama", "qwen2", "qwen3", "tied")
QUANTIZE = ("fp8", "int8", "int4")


@pytest.fixture(autouse=True)
def short_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_few_windows(monkeypatch)


def force(monkeypatch: pytest.MonkeyPatch, *, vnni: bool) -> None:
    """Make the engine believe that this CPU multiplies int8 faster (`vnni`) or slower than float32."""
    for module in (engine.models.cpu_loading, engine.cpu.weights):
        monkeypatch.setattr(module, "multiplies_int8", lambda: vnni)


def build(models: dict[str, tuple[Path, dict[str, Any]]], **engine_config: Any) -> TorchRunner:
    configs = tuple(ModelConfig(name=name, path=str(path), **own) for name, (path, own) in models.items())
    config = EngineConfig(models=configs, arena_bytes=16 << 20, threads=1, quality=ANY_QUALITY, **engine_config)
    return build_runner(config)


def random_ids(count: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(10, oracle.TINY_VOCAB) for _ in range(count)]


def save_dequantised(directory: Path, published: Path, numbers: dict[str, torch.Tensor]) -> Path:
    """A plain model of the same numbers."""
    directory.mkdir()
    config = json.loads((published / "config.json").read_bytes())
    config.pop("quantization_config", None)
    (directory / "config.json").write_text(json.dumps(config))
    kept = {
        name: tensor
        for name, tensor in load_file(published / "model.safetensors").items()
        if not any(f"{module}." in name for module in PROJECTIONS) or name.endswith("_proj.bias")
    }
    save_file(kept | numbers, directory / "model.safetensors")
    return directory


def quantised_numbers(directory: Path, quantize: str) -> dict[str, torch.Tensor]:
    """The projections of a plain model as they are after quantising, by the tensor's name."""
    format, found = QUANTIZE_FORMATS[quantize], {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        if name.removesuffix(".weight").endswith(PROJECTIONS):
            found[name] = dequantize_matrix(quantize_matrix(tensor, format, name), format, tensor.shape[1])
    return found


# ---- the same ids as of the dequantised weights


def mixed_cases(model: str, count: int = 5) -> list[Case]:
    """Prompts that are chunked, decodes beside them, and a prefix that two of them share."""
    shared = random_ids(70, 99)
    tiers = ("batch", "standard", "premium")
    return [
        Case(model, (shared if index % 2 else []) + random_ids(3 + 17 * index, index), tiers[index % 3], new=16)
        for index in range(count)
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_says_what_its_dequantised_weights_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[list(PUBLISHED).index(name) % len(FAMILIES)]
    directory = oracle.save_tiny(family, tmp_path / "m", num_hidden_layers=2, **SHAPE)
    numbers = quantize_directory(directory, PUBLISHED[name])
    plain = save_dequantised(tmp_path / "plain", directory, numbers)
    force(monkeypatch, vnni=True)  # int8 with row scales is multiplied in 8 bits, as on a CPU that a server has
    runner = build({"quantised": (directory, {}), "plain": (plain, {})})
    info = runner.models["quantised"]
    method = PUBLISHED[name].config["quant_method"]
    assert info.weights_format.endswith(f" ({method})")
    assert runner.models["plain"].weights_format == "float32"
    assert info.quality is not None
    assert info.quality.mean_kl < 1e-6, "the reference of a published checkpoint is what it holds"
    is_int8 = isinstance(runner.weights.decoder("quantised")._weights.layers[0].down, Int8Linear)
    assert is_int8 == (name in ("int-channel", "int-tensor"))
    cases = mixed_cases("plain")
    run_cases(runner, cases)
    assert len({tuple(case.expected) for case in cases}) == len(cases)
    run_cases(runner, [Case("quantised", case.prompt, case.tier, new=16, expected=case.expected) for case in cases])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantize", QUANTIZE)
def test_a_model_quantised_on_loading_says_what_its_dequantised_weights_say(
    quantize: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, vnni=False)
    directory = oracle.save_tiny(family, tmp_path / "m", num_hidden_layers=2)
    plain = save_dequantised(tmp_path / "plain", directory, quantised_numbers(directory, quantize))
    models = {"plain": (plain, {}), "whole": (directory, {}), "quantised": (directory, {"quantize": quantize})}
    runner = build(models)
    assert len({info.digest for info in runner.models.values()}) == 3
    assert runner.models["quantised"].weights_format.startswith(quantize)
    numerics = {name: info.numerics for name, info in runner.models.items()}
    assert numerics["plain"] == numerics["whole"] != numerics["quantised"]
    cases = mixed_cases("plain")
    run_cases(runner, cases)
    run_cases(runner, [Case("quantised", case.prompt, case.tier, new=16, expected=case.expected) for case in cases])
    whole = mixed_cases("whole")
    run_cases(runner, whole)
    if quantize != "int8":  # which may be so near that all ids are the same
        assert [case.expected for case in whole] != [case.expected for case in cases]


# ---- alone, in any batch and after preemption


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A model and adapters of different ranks and targets."""
    directory = oracle.save_tiny("qwen3", tmp_path_factory.mktemp("model"), num_hidden_layers=2, head_dim=32)
    base, root = oracle.load(directory), tmp_path_factory.mktemp("adapters")
    kinds: list[dict[str, Any]] = [
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"r": 20, "lora_alpha": 10, "target_modules": "all-linear", "use_rslora": True},
        {"r": 3, "lora_alpha": 6, "target_modules": ["k_proj", "o_proj", "up_proj", "down_proj"]},
    ]
    adapters = [oracle.save_tiny_adapter(base, root / str(i), seed=i, **kind) for i, kind in enumerate(kinds)]
    return directory, adapters


def load_adapters(runner: TorchRunner, model: str, adapters: list[Path]) -> list[str]:
    """Known to the runner for this model; not yet in the arena."""
    digests = [f"{model}-{path.name}".encode().hex().rjust(64, "0") for path in adapters]
    for digest, path in zip(digests, adapters, strict=True):
        runner.load_adapter(digest, model, str(path))
    return digests


@pytest.mark.parametrize(
    ("quantize", "vnni"), [("none", False), ("fp8", False), ("int8", False), ("int8", True), ("int4", False)]
)
def test_a_row_says_the_same_alone_in_any_batch_and_after_preemption(
    quantize: str, vnni: bool, tiny: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With KV in float32 and in fp8, with and without adapters."""
    force(monkeypatch, vnni=vnni)
    directory, adapters = tiny
    runner = build(
        {"wide": (directory, {"quantize": quantize}), "narrow": (directory, {"quantize": quantize, "kv_dtype": "fp8"})}
    )
    assert isinstance(runner.weights.decoder("wide")._weights.lm_head, Int8Linear) == vnni
    shared, tiers, cases = random_ids(130, 9), ("batch", "standard", "premium"), list[Case]()
    digests = {model: [None, *load_adapters(runner, model, adapters[1:])] for model in runner.models}
    for index in range(8):
        prompt = shared[: 130 if index % 4 else 0] + random_ids(5 + 12 * index, index)
        cases += [Case(model, prompt, tiers[index // 3], own[index % 3], new=16) for model, own in digests.items()]
    for case in cases:
        run_cases(runner, [case])
    assert len({tuple(case.expected) for case in cases if case.model == "narrow"}) > 5
    assert run_cases(runner, cases, sequences_max=24, step_tokens_max=512).scheduler.preemptions == 0
    run_cases(runner, cases[::-1], sequences_max=5)
    found = run_cases(runner, cases, pages=34, sequences_max=8)
    assert found.scheduler.preemptions > 0
    assert all(found.scheduler.prefix.hits_of_model[model] > 0 for model in runner.models)
    assert any(not any(chunk.sample for chunk in step.chunks) for step in found.steps), "a step that draws nothing"


# ---- adapters on a quantised base


class Recorder:
    """Stands between the decoder and an adapter: what every product had computed before the adapter was added, and its
    input."""

    def __init__(self, lora: LoraBatch) -> None:
        self._lora = lora
        self.calls: list[tuple[int, tuple[str, ...], torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def apply(self, layer: int, module: str, x: torch.Tensor, y: torch.Tensor) -> None:
        self.apply_stacked(layer, (module,), x, y)

    def apply_stacked(self, layer: int, modules: tuple[str, ...], x: torch.Tensor, y: torch.Tensor) -> None:
        before = y.clone()
        self._lora.apply_stacked(layer, modules, x, y)
        self.calls.append((layer, modules, x.clone(), before, y.clone()))


@contextmanager
def placed_adapter(runner: TorchRunner, model: str, path: Path, page: int) -> Iterator[str]:
    """In the pages from `page` on."""
    (digest,) = load_adapters(runner, model, [path])
    runner.adapters.bring(digest)
    pages = list(range(page, page + runner.adapters.pages_needed(digest)))
    runner.adapters.place_adapter(digest, pages)
    yield digest
    runner.adapters.evict_adapter(digest)


@torch.inference_mode()
def record(runner: TorchRunner, model: str, digest: str, ids: list[int]) -> Recorder:
    """A prompt of the adapter, through the model's decoder."""
    decoder, info = runner.weights.decoder(model), runner.models[model]
    own = Sequence(0, 0, "r", model, digest, "n", "t", "s", ids, 9, Sampling(), frozenset(), 0.0)
    own.pages = list(range(-(-len(ids) // info.tokens_per_page)))
    batch = pack_step([Chunk(own, 0, len(ids), True)], info.tokens_per_page, torch.device("cpu"), decoder.dtype)
    recorder = Recorder(LoraBatch(runner.adapters, [(digest, len(ids))]))
    decoder.forward(batch, recorder)
    return recorder


def product_of(runner: TorchRunner, model: str, layer: int, modules: tuple[str, ...]) -> CpuProduct:
    weights = runner.weights.decoder(model)._weights.layers[layer]
    return {QKV: weights.qkv, ("o_proj",): weights.o, GATE_UP: weights.gate_up, ("down_proj",): weights.down}[modules]


@pytest.mark.parametrize("vnni", [False, True])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("quantize", QUANTIZE)
def test_an_adapters_delta_is_that_on_the_plain_base(
    quantize: str, kv_dtype: str, vnni: bool, tiny: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every product of every layer, with the rows that the quantised model has there: y_q(adapter) − y_q(base)
    against y(adapter) − y(base), and against the adapter's own product in float64."""
    force(monkeypatch, vnni=vnni)
    directory, adapters = tiny
    own = {"quantize": quantize, "kv_dtype": kv_dtype}
    runner = build({"quantised": (directory, own), "plain": (directory, {})})
    ids, adapter = random_ids(90, 4), adapters[1]
    factors = load_file(adapter / "adapter_model.safetensors")
    with (
        placed_adapter(runner, "quantised", adapter, 40) as digest,
        placed_adapter(runner, "plain", adapter, 200) as other,
    ):
        quantised, plain = record(runner, "quantised", digest, ids), record(runner, "plain", other, ids)
        alone = LoraBatch(runner.adapters, [(other, len(ids))])
        assert len(quantised.calls) == len(plain.calls) == 2 * 4
        for layer, modules, x, before, after in quantised.calls:
            # The adapter reads the rows that the base's product reads, before anything of them is quantised.
            product = product_of(runner, "quantised", layer, modules)
            if modules in (QKV, GATE_UP):
                assert torch.equal(product(x, torch.empty_like(before)), before)
            y = product_of(runner, "plain", layer, modules)(x, torch.empty_like(before))
            adapted = y.clone()
            alone.apply_stacked(layer, modules, x, adapted)
            delta, wanted = (after - before).double(), (adapted - y).double()
            assert float((delta - wanted).norm()) <= 2.0**-8 * float(wanted.norm())
            assert float((delta - wanted).norm()) <= 2.0**-18 * float(y.double().norm() + before.double().norm())
            exact = exact_delta(factors, layer, modules, x, scale=10 / 20**0.5)
            assert float((delta - exact).norm()) <= 2.0**-16 * float(before.double().norm() + exact.norm())
        # The first product of both models has the same rows, and so exactly the same delta.
        (_, modules, x, before, _), (_, _, other_x, _, _) = quantised.calls[0], plain.calls[0]
        assert torch.equal(x, other_x)
        deltas = [torch.zeros_like(before), torch.zeros_like(before)]
        LoraBatch(runner.adapters, [(digest, len(ids))]).apply_stacked(0, modules, x, deltas[0])
        alone.apply_stacked(0, modules, other_x, deltas[1])
        assert torch.equal(*deltas)
        assert deltas[0].any()
        assert not torch.equal(before, plain.calls[0][3]), "the base's product is of quantised weights"


def exact_delta(
    factors: dict[str, torch.Tensor], layer: int, modules: tuple[str, ...], x: torch.Tensor, scale: float
) -> torch.Tensor:
    """scale · (x · Aᵀ) · Bᵀ in float64, of stacked modules."""
    block, parts = ("mlp" if modules[0].startswith(("gate", "down")) else "self_attn"), []
    for module in modules:
        a, b = (
            factors[f"base_model.model.model.layers.{layer}.{block}.{module}.lora_{side}.weight"].double()
            for side in "AB"
        )
        parts.append(x.double() @ a.t() @ b.t() * scale)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_an_adapter_on_a_quantised_base_says_what_it_says_on_the_dequantised_one(
    quantize: str, tiny: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of peft and transformers, over the same numbers."""
    force(monkeypatch, vnni=False)
    directory, adapters = tiny
    plain = save_dequantised(tmp_path / "plain", directory, quantised_numbers(directory, quantize))
    runner = build({"m": (directory, {"quantize": quantize})})
    digests = load_adapters(runner, "m", adapters)
    prompts = [random_ids(20 + 13 * index, index) for index in range(3)]
    cases = [
        Case("m", prompt, adapter=digest, new=16, expected=oracle.greedy(oracle.load(plain, path), [prompt], 16)[0])
        for prompt in prompts
        for digest, path in zip(digests, adapters, strict=True)
    ]
    run_cases(runner, cases)
    assert len({tuple(case.expected) for case in cases}) == len(cases)


# ---- one arena for all


def test_float32_int8_and_int4_with_fp8_kv_share_an_arena_full_of_traps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters on each, all tiers, host memory for preempted requests: nobody reads or writes another's pages."""
    force(monkeypatch, vnni=True)
    model, adapters = tiny_model(tmp_path, seed=1)
    models: dict[str, tuple[Path, dict[str, Any]]] = {
        MODEL: (model, {}),
        "int8": (model, {"quantize": "int8"}),
        "int4": (model, {"quantize": "int4", "kv_dtype": "fp8"}),
    }
    runner = build(models, host_pool_bytes=1 << 20, step_tokens_max=96, sequences_max=16)
    assert isinstance(runner.weights.decoder("int8")._weights.lm_head, Int8Linear)
    assert len({info.digest for info in runner.models.values()}) == 3
    engine = Drive(runner, model, step_tokens_max=96, sequences_max=16)
    print(run_among_traps(engine, adapters, tmp_path / "store", seed=1, steps=150))
    assert {step.model for step in engine.steps if any(c.sequence.adapter for c in step.chunks)} == set(models)


def test_three_formats_in_one_arena_say_what_each_says_alone(
    tiny: tuple[Path, list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted, with prefixes found again, two tiers, adapters that are evicted for one another; the same prompts and
    the same directory for all three, so that only their digests keep their pages apart."""
    force(monkeypatch, vnni=True)
    directory, adapters = tiny
    models: dict[str, tuple[Path, dict[str, Any]]] = {
        "plain": (directory, {}),
        "int8": (directory, {"quantize": "int8"}),
        "int4": (directory, {"quantize": "int4", "kv_dtype": "fp8"}),
    }
    shared = random_ids(150, 5)
    cases: list[Case] = []
    runner = build(models)
    for model in models:
        digests = [None, *load_adapters(runner, model, adapters)]
        for index, digest in enumerate(digests * 3):
            tier = ("batch", "batch", "premium")[index // 4]
            cases.append(Case(model, shared + random_ids(4 + index, index), tier, digest, new=12))
    for case in cases:
        run_cases(runner, [case])
    said = {model: [case.expected for case in cases if case.model == model] for model in models}
    assert len({json.dumps(rows) for rows in said.values()}) == 3
    cases.sort(key=lambda case: case.tier)  # batch first: premium preempts
    found = run_cases(runner, cases, pages=38, sequences_max=6)
    assert found.scheduler.preemptions > 0
    assert all(found.scheduler.prefix.hits_of_model[model] > 0 for model in models)
    for step in found.steps:
        assert {chunk.sequence.model for chunk in step.chunks} == {step.model}


# ---- refusals


def change_tensor(suffix: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        file = directory / "model.safetensors"
        tensors = load_file(file)
        name = next(name for name in sorted(tensors) if f"layers.1.mlp.down_proj{suffix}" in name)
        save_file(tensors | {name: change(tensors[name])}, file)

    return damage


def change_config(**changes: Any) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_bytes())
        config["quantization_config"] |= changes
        (directory / "config.json").write_text(json.dumps(config))

    return damage


def set_first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def set_nan_byte(tensor: torch.Tensor) -> torch.Tensor:
    raw = tensor.view(torch.uint8).clone()
    raw[3, 5] = 0xFF
    return raw.view(tensor.dtype)


def find_tensor(file: Path, name: str) -> tuple[int, int]:
    """The first byte and the number of bytes of a tensor."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    return 8 + length + begin, end - begin


def cut_short(directory: Path) -> None:
    file = directory / "model.safetensors"
    os.truncate(file, file.stat().st_size - 64)


DOWN = "model.layers.1.mlp.down_proj"
DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "NaN scale": ("float-channel", change_tensor(".weight_scale", set_first(torch.nan)), f"{DOWN}.*the scale nan"),
    "negative scale": ("int-channel", change_tensor(".weight_scale", set_first(-0.5)), f"{DOWN}.*the scale -0.5"),
    "infinite scale": ("gptq", change_tensor(".scales", set_first(torch.inf)), f"{DOWN}.*the scale inf"),
    "NaN number": ("fp8-block", change_tensor(".weight", set_nan_byte), f"{DOWN}.weight: it has numbers that are NaN"),
    "group size": ("awq", change_config(group_size=64), r"qzeros.*shape|scales has shape"),
    "odd group size": ("gptq", change_config(group_size=33), "group_size"),
    "truncated": ("pack-group", cut_short, "model.safetensors: its tensors end"),
    "method": ("fp8-tensor", change_config(quant_method="hqq"), "quant_method 'hqq' is not supported"),
    "bits": ("awq", change_config(bits=3), "bits: 3 is not supported"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_nothing_of_it_stays(
    damage: str, tiny: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    """At the start beside a good model, and over `load_model` while another is served."""
    name, spoil, why = DAMAGES[damage]
    directory = oracle.save_tiny("llama", tmp_path / "bad", num_hidden_layers=2, **SHAPE)
    quantize_directory(directory, PUBLISHED[name])
    spoil(directory)
    good = (tiny[0], {"quantize": "int8"})
    runner = build({"good": good, "bad": (directory, {})})
    alone = build({"good": good})
    assert (runner.page_bytes, list(runner.models)) == (alone.page_bytes, ["good"])
    assert_refusal(runner.refused.pop("bad"), why)
    assert not runner.refused
    case = Case("good", random_ids(40, 1))
    run_cases(runner, [case])
    before = served_state(runner)
    with pytest.raises(ModelRefused) as refused:
        runner.load_model(ModelConfig(name="bad", path=str(directory)))
    assert_refusal(str(refused.value), why)
    assert served_state(runner) == before
    with pytest.raises(ValueError, match="'bad' is not served"):
        runner.load_adapter("0" * 64, "bad", str(tiny[1][0]))
    run_cases(runner, [case])
    with pytest.raises(ModelRefused) as refused:
        build({"bad": (directory, {})})
    assert_refusal(str(refused.value), why)


def assert_refusal(message: str, why: str) -> None:
    assert re.search(why, message), message


def served_state(runner: TorchRunner) -> tuple[Any, ...]:
    """All that a refused model could have left."""
    weights = runner.weights
    known = (sorted(weights._known), sorted(weights._decoders), sorted(weights._loading))
    return sorted(runner.models), dict(runner.page_waste), known, weights.free_bytes(), sorted(runner.adapters._bases)


@pytest.mark.parametrize("quantize", QUANTIZE)
def test_a_number_that_is_not_finite_is_not_quantised(
    quantize: str, tiny: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    directory = oracle.save_tiny("llama", tmp_path / "bad", num_hidden_layers=2, **SHAPE)
    change_tensor(".weight", set_first(torch.nan))(directory)
    runner = build({"good": (tiny[0], {}), "bad": (directory, {"quantize": quantize})})
    assert_refusal(runner.refused["bad"], f"^{DOWN}.weight: it has numbers that are not finite$")
    assert list(runner.models) == ["good"]


def test_what_is_damaged_after_it_was_measured_is_refused_when_it_is_loaded(
    tiny: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    """The file has its size and its time still, so its digest and its measured quality are known. Nothing of it is
    resident afterwards, and its bytes are free."""
    directory = oracle.save_tiny("llama", tmp_path / "m", num_hidden_layers=2, **SHAPE)
    quantize_directory(directory, PUBLISHED["float-channel"])
    good = build({"good": (tiny[0], {}), "bad": (directory, {})}).weights
    sizes = {name: good.weights_bytes(name) for name in ("good", "bad")}
    runner = build({"good": (tiny[0], {}), "bad": (directory, {})}, weights_bytes=max(sizes.values()))
    weights = runner.weights
    assert [weights.weights_location(name) for name in sizes] == ["device", "disk"]
    file = directory / "model.safetensors"
    stat, (at, count) = file.stat(), find_tensor(file, f"{DOWN}.weight_scale")
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + b"\xff" * count + whole[at + count :])
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    weights.evict_weights("good")
    wait_until(lambda: weights.free_bytes() == weights.bytes_max)
    for _ in range(2):
        weights.begin_load("bad")
        (move,) = wait_until(lambda: list(weights.poll_weights()))
        assert_refusal(move.error, f"{DOWN}.weight_scale: the scale nan")
        assert weights.weights_location("bad") == "disk"
        assert weights.free_bytes() == weights.bytes_max
        weights.check_integrity()
    weights.begin_load("good")
    (move,) = wait_until(lambda: list(weights.poll_weights()))
    assert move.error == ""
    run_cases(runner, [Case("good", random_ids(20, 2))])


def wait_until(done: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30.0
    while not (found := done()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)
    return found
