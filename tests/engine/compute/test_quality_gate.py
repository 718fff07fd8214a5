"""The quality gate: right measures, planted faults that are refused, results that are reused, and layers that stay
unquantised."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

import engine.compute.quality
import engine.cpu.decoder
import engine.cpu.weights
import engine.models.cpu_loading
import engine.models.quantized
from engine.compute.quality import (
    FAULT_ERROR,
    HELD_OUT_TEXT,
    RESULTS,
    WINDOW_TOKENS,
    WINDOWS,
    QualityKey,
    QualityResult,
    gate_model,
    held_out_ids,
    measure_quality,
    read_results,
)
from engine.contents.model_digests import model_digest
from engine.cpu.batch import pack_step
from engine.cpu.quality import CpuMeasuredModel
from engine.cpu.runner import TorchRunner, build_runner
from engine.cpu.weights import CpuModel
from engine.models.config import ModelRefused, load_config
from engine.models.matrices import MatrixFormat, QuantizedMatrix, quantize_matrix
from engine.models.quantized import quantized_digest
from engine.models.slab_source import FileSource
from engine.protocol.config import EngineConfig, ModelConfig, QualityLimits
from engine.protocol.frames import Sampling
from engine.protocol.quality import find_quality_fault
from engine.step import Chunk, Sequence
from kernels.reference_kv import quantise_heads
from programs.quality_table import rows
from support import oracle
from support.engine.quality import ANY_QUALITY, measure_few_windows
from support.engine.same_ids import Case, run_cases
from support.read_only import mounted_read_only

F32 = torch.float32
LIMITS = QualityLimits()
TEXT_SHA256 = "696b2c28d6ce6c025b51501095ea4e3f843f6f63114f1ed01d9bf64b53fd6414"
Quantize = Literal["none", "fp8", "int8", "int4"]
Kv = Literal["auto", "fp8"]


@pytest.fixture(scope="module")
def trained(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """laneway-tiny, without results."""
    target = tmp_path_factory.mktemp("trained") / "laneway-tiny"
    return Path(shutil.copytree(tiny_dir, target, ignore=shutil.ignore_patterns(".*")))


@pytest.fixture
def fresh(trained: Path, tmp_path: Path) -> Path:
    """The same for one test."""
    return Path(shutil.copytree(trained, tmp_path / "m", ignore=shutil.ignore_patterns(".*")))


def model_of(directory: Path, quantize: Quantize = "none", kv_dtype: Kv = "auto") -> CpuMeasuredModel:
    config = ModelConfig(name="m", path=str(directory), quantize=quantize, kv_dtype=kv_dtype)
    return CpuMeasuredModel(config, load_config(directory, quantized=True), F32)


def measure(
    directory: Path,
    quantize: Quantize = "none",
    kv_dtype: Kv = "auto",
    *,
    limits: QualityLimits = LIMITS,
    windows: int = 2,
) -> QualityResult:
    model = model_of(directory, quantize, kv_dtype)
    return measure_quality(model, held_out_ids(directory, model.vocab, windows), limits, directory.name)


# ---- the held-out text


def test_the_held_out_text_is_the_one_that_was_measured() -> None:
    assert hashlib.sha256(HELD_OUT_TEXT.read_bytes()).hexdigest() == TEXT_SHA256, (
        "another text is another measurement: measure the table of docs/LOG.md again"
    )


def test_laneway_tiny_has_enough_tokens_of_it(trained: Path) -> None:
    ids = held_out_ids(trained, 2048)
    assert ids.shape == (WINDOWS, WINDOW_TOKENS)
    assert ids.numel() == 20_480
    assert len(ids.unique()) > 1000, "a text, and not a few words"


@pytest.mark.model
def test_smollm2_has_enough_tokens_of_it(model_dir: Path) -> None:
    ids = held_out_ids(model_dir, 49_152)
    assert ids.numel() == 20_480
    assert len(ids.unique()) > 2000


def test_a_directory_without_a_tokenizer_has_the_bytes_of_the_text(tmp_path: Path) -> None:
    raw = list(HELD_OUT_TEXT.read_bytes()[: 3 * WINDOW_TOKENS])
    assert held_out_ids(tmp_path, 320, 3).flatten().tolist() == raw
    assert held_out_ids(tmp_path, 100, 3).flatten().tolist() == [byte % 100 for byte in raw]
    assert held_out_ids(tmp_path, 320).numel() == 20_480


def test_a_text_of_too_few_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.setattr(engine.compute.quality, "HELD_OUT_TEXT", tmp_path / "short.txt")
    with pytest.raises(ModelRefused, match="the held-out text has 5 tokens of this model, fewer than 20480"):
        held_out_ids(tmp_path, 320)


# ---- the measures


@torch.inference_mode()
def all_logits(directory: Path, quantize: Quantize, kv_dtype: Kv, ids: torch.Tensor) -> torch.Tensor:
    """[windows, tokens, vocab] of the whole model, as it is served."""
    config = ModelConfig(name="m", path=str(directory), quantize=quantize, kv_dtype=kv_dtype)
    runner = build_runner(EngineConfig(models=(config,), arena_bytes=32 << 20, threads=1, quality=ANY_QUALITY))
    decoder, info, found = runner.weights.decoder("m"), runner.models["m"], []
    for row in ids.tolist():
        own = Sequence(0, 0, "r", "m", None, "n", "t", "s", row, 9, Sampling(), frozenset(), 0.0)
        own.pages = list(range(-(-len(row) // info.tokens_per_page)))
        batch = pack_step([Chunk(own, 0, len(row), True)], info.tokens_per_page, torch.device("cpu"), F32)
        found.append(decoder.logits(decoder.run_layers(decoder.embed(batch), batch, None), torch.arange(len(row))))
    return torch.stack(found)


@pytest.mark.parametrize(("quantize", "kv_dtype"), [("none", "fp8"), ("fp8", "auto"), ("int4", "fp8")])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "tied"])
def test_the_measures_are_those_of_the_served_model_beside_transformers(
    family: str, quantize: Quantize, kv_dtype: Kv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate runs layer by layer, two windows at once; the served model runs whole, and the reference is that of
    transformers."""
    measure_few_windows(monkeypatch)
    directory = oracle.save_tiny(family, tmp_path, num_hidden_layers=2)
    ids = held_out_ids(directory, oracle.TINY_VOCAB, 2)
    found = measure(directory, quantize, kv_dtype, limits=ANY_QUALITY).quality
    served = torch.log_softmax(all_logits(directory, quantize, kv_dtype, ids).double(), -1)
    model = oracle.load(directory)
    plain = torch.log_softmax(torch.stack([oracle.logits(model, row) for row in ids.tolist()]).double(), -1)
    assert found.tokens == 2 * WINDOW_TOKENS
    assert found.mean_kl == pytest.approx(float((plain.exp() * (plain - served)).sum(-1).mean()), rel=0.01)
    assert found.top1 == pytest.approx(float((plain.argmax(-1) == served.argmax(-1)).double().mean()), abs=0.003)
    for perplexity, logs in ((found.perplexity, served), (found.reference_perplexity, plain)):
        losses = -logs[:, :-1].gather(-1, ids[:, 1:, None])
        assert perplexity == pytest.approx(float(losses.mean().exp()), rel=1e-3)
    assert found.mean_kl > 1e-4
    assert 0.001 < found.worst_layer_error < FAULT_ERROR


def test_an_unquantised_model_beside_itself_is_no_different(trained: Path) -> None:
    found = measure(trained).quality
    assert (found.mean_kl, found.top1, found.worst_layer_error, found.kept_layers) == (0.0, 1.0, 0.0, 0)
    assert found.perplexity == found.reference_perplexity


# What laneway-tiny gives over two windows: largest KL, smallest top-1, largest error of a layer.
UNFAULTED: dict[tuple[Quantize, Kv], tuple[float, float, float]] = {
    ("none", "fp8"): (0.012, 0.93, 0.03),
    ("int8", "auto"): (0.002, 0.97, 0.02),
    ("int8", "fp8"): (0.012, 0.93, 0.03),
    ("fp8", "auto"): (0.025, 0.91, 0.06),
    ("fp8", "fp8"): (0.035, 0.89, 0.06),
    ("int4", "auto"): (0.26, 0.74, 0.19),
}


@pytest.mark.parametrize("formats", UNFAULTED, ids="-".join)
def test_a_format_of_a_trained_model_passes_and_int4_of_so_small_a_one_does_not(
    formats: tuple[Quantize, Kv], trained: Path
) -> None:
    found, (kl, top1, error) = measure(trained, *formats).quality, UNFAULTED[formats]
    assert kl / 3 < found.mean_kl < kl
    assert top1 < found.top1 < 1
    assert error / 3 < found.worst_layer_error < error
    assert found.kept_layers == 0
    assert abs(found.perplexity / found.reference_perplexity - 1) < 0.1
    fault = find_quality_fault(found, LIMITS)
    if formats[0] == "int4":
        assert fault is not None
        assert fault.endswith(f"nats; its limit is quality.mean_kl_max, {LIMITS.mean_kl_max:g}")
    else:
        assert fault is None


# ---- planted faults

Plant = Callable[[pytest.MonkeyPatch, Path], None]


def plant_in_matrices(change: Callable[[QuantizedMatrix], QuantizedMatrix], module: str = "") -> Plant:
    """In what matrices of these modules are quantised to. The reference reads the files, which are not changed."""

    def plant(patch: pytest.MonkeyPatch, directory: Path) -> None:
        def quantize(weight: torch.Tensor, format: MatrixFormat, name: str = "weight") -> QuantizedMatrix:
            matrix = quantize_matrix(weight, format, name)
            return change(matrix) if module in name else matrix

        patch.setattr(engine.models.quantized, "quantize_matrix", quantize)

    return plant


def swap_groups(matrix: QuantizedMatrix) -> QuantizedMatrix:
    """Scales of neighbouring groups."""
    groups = matrix.scales.shape[1]
    order = [group ^ 1 if group ^ 1 < groups else group for group in range(groups)]
    return matrix._replace(scales=matrix.scales[:, order])


def swap_queries_and_keys(patch: pytest.MonkeyPatch, directory: Path) -> None:
    """Rows of q have the scales of k, and those of k the scales of q."""
    tensors = load_file(directory / "model.safetensors")

    def quantize(weight: torch.Tensor, format: MatrixFormat, name: str = "weight") -> QuantizedMatrix:
        matrix = quantize_matrix(weight, format, name)
        for own, other in ((".q_proj", ".k_proj"), (".k_proj", ".q_proj")):
            if own in name:
                scales = quantize_matrix(tensors[name.replace(own, other)], format).scales
                return matrix._replace(scales=scales[torch.arange(len(matrix.scales)) % len(scales)])
        return matrix

    patch.setattr(engine.models.quantized, "quantize_matrix", quantize)


def keep_scales_of_the_token_before(patch: pytest.MonkeyPatch, directory: Path) -> None:
    def write(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers, scales = quantise_heads(x)
        return numbers, scales.roll(1, 0)

    patch.setattr(engine.cpu.decoder, "quantise_heads", write)


FAULTS: dict[str, tuple[Quantize, Kv, Plant]] = {
    "wrong group order": ("int4", "auto", plant_in_matrices(swap_groups)),
    "a scale off by 2, fp8": (
        "fp8",
        "auto",
        plant_in_matrices(lambda m: m._replace(scales=m.scales * 2), "layers.2.mlp.up_proj"),
    ),
    "a scale off by 2, int8": (
        "int8",
        "auto",
        plant_in_matrices(lambda m: m._replace(scales=m.scales * 2), "layers.3.self_attn.v_proj"),
    ),
    "swapped q and k scales": ("fp8", "auto", swap_queries_and_keys),
    "a zeroed layer": (
        "fp8",
        "auto",
        plant_in_matrices(lambda m: m._replace(data=torch.zeros_like(m.data)), "layers.2."),
    ),
    "a stale KV scale": ("none", "fp8", keep_scales_of_the_token_before),
    "a stale KV scale beside int8": ("int8", "fp8", keep_scales_of_the_token_before),
}
# A measure, and the limit that it is over.
FAULT_MESSAGE = re.compile(
    rf"mean_kl is \d\S* nats; its limit is quality.mean_kl_max, {LIMITS.mean_kl_max:g}"
    rf"|top1 is \d\S*; its limit is quality.top1_min, {LIMITS.top1_min:g}"
    rf"|the error of layer \d is \d\S*; its limit is quality.layer_error_max, {LIMITS.layer_error_max:g}"
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_far_beyond_the_limits(fault: str, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize, kv_dtype, plant = FAULTS[fault]
    kl, top1, error = UNFAULTED[quantize, kv_dtype]
    plant(monkeypatch, trained)
    found = measure(trained, quantize, kv_dtype)
    message = find_quality_fault(found.quality, LIMITS)
    assert message is not None
    assert FAULT_MESSAGE.fullmatch(message), message
    # Also beyond limits that the format itself is within, where that is int4.
    assert find_quality_fault(found.quality, QualityLimits(mean_kl_max=kl, top1_min=top1, layer_error_max=error))
    assert found.quality.mean_kl > 2 * kl
    assert len(found.kept) <= 2


def test_a_layer_that_is_as_wrong_as_rounding_could_make_it_is_not_served_quantised(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix whose scales are halved: an error between `layer_error_max` and FAULT_ERROR. The layer stays
    unquantised, and so the model is as good as without it."""
    plant_in_matrices(lambda m: m._replace(scales=m.scales / 2), "layers.3.self_attn.v_proj")(monkeypatch, trained)
    found = measure(trained, "int8")
    assert (found.kept, found.quality.kept_layers) == ((3,), 4)
    assert find_quality_fault(found.quality, LIMITS) is None
    assert found.quality.mean_kl < UNFAULTED["int8", "auto"][0]
    monkeypatch.setattr(engine.compute.quality, "FAULT_ERROR", 0.25)
    assert measure(trained, "int8").quality.worst_layer_error > 0.25


def build(directory: Path, limits: QualityLimits = LIMITS, **model: Any) -> TorchRunner:
    models = (ModelConfig(name="m", path=str(directory), **model),)
    return build_runner(EngineConfig(models=models, arena_bytes=32 << 20, threads=1, quality=limits))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_with_a_planted_fault_is_not_served(
    fault: str, fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At the start, alone and beside another model, and over `load_model`."""
    measure_few_windows(monkeypatch, 2)
    quantize, kv_dtype, plant = FAULTS[fault]
    runner = build(fresh)
    plant(monkeypatch, fresh)
    with pytest.raises(ModelRefused) as refused:
        build(fresh, quantize=quantize, kv_dtype=kv_dtype)
    name, _, message = str(refused.value).partition(": quality: ")
    assert (name, bool(FAULT_MESSAGE.fullmatch(message))) == ("m", True), message
    bad = ModelConfig(name="bad", path=str(fresh), quantize=quantize, kv_dtype=kv_dtype)
    with pytest.raises(ModelRefused, match=f"^quality: {re.escape(message)}$"):
        runner.load_model(bad)
    assert list(runner.models) == ["m"]
    both = (ModelConfig(name="m", path=str(fresh)), bad)
    runner = build_runner(EngineConfig(models=both, arena_bytes=32 << 20, threads=1))
    assert runner.refused == {"bad": f"quality: {message}"}


def test_a_fault_is_not_kept_and_neither_is_most_of_a_model(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unquantised layers must not hide a fault: the model would answer well, at the size of an unquantised model."""
    limits = QualityLimits(layer_error_max=1e-4)
    found = measure(trained, "int8", limits=limits, windows=1)
    assert found.kept == (0, 1), "at most half of five layers"
    assert found.quality.kept_layers == 8
    assert found.quality.worst_layer in (2, 3, 4)
    fault = find_quality_fault(found.quality, limits)
    assert fault is not None
    assert fault.endswith("its limit is quality.layer_error_max, 0.0001")
    FAULTS["a zeroed layer"][2](monkeypatch, trained)
    found = measure(trained, "fp8", windows=1)
    assert (found.kept, found.quality.worst_layer) == ((), 2)
    assert found.quality.worst_layer_error == pytest.approx(1.0, abs=0.01)


# ---- results beside the model


class Gate:
    """The gate over a directory, and how often it measured."""

    def __init__(self, directory: Path, quantize: Quantize = "fp8", kv_dtype: Kv = "auto") -> None:
        self.directory = directory
        self.key = QualityKey(model_digest(directory), quantize, kv_dtype, "float32", "cpu")
        self.measured = 0
        self._formats: tuple[Quantize, Kv] = quantize, kv_dtype

    def run(self, limits: QualityLimits = LIMITS, key: QualityKey | None = None) -> QualityResult:
        return gate_model(self.directory, key or self.key, limits, self._open)

    def _open(self) -> CpuMeasuredModel:
        self.measured += 1
        return model_of(self.directory, *self._formats)


@pytest.fixture
def gate(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    measure_few_windows(monkeypatch)
    return Gate(fresh)


def test_a_result_is_measured_once_for_what_it_holds_for(gate: Gate) -> None:
    first = gate.run()
    assert gate.run() == first
    assert gate.measured == 1
    assert Gate(gate.directory).run() == first
    others = (
        replace(gate.key, digest="another"),
        replace(gate.key, weights="int8"),
        replace(gate.key, kv="fp8"),
        replace(gate.key, dtype="bfloat16"),
        replace(gate.key, device="cuda 9.0"),
    )
    for count, key in enumerate(others, 2):
        for _ in range(2):
            gate.run(key=key)
            assert gate.measured == count
    assert gate.run() == first, "the others are beside it"
    assert len(read_results(gate.directory)) == 6
    assert not list(gate.directory.glob("*.tmp"))


@pytest.mark.parametrize("version", ["MEASURE_VERSION", "QUANTIZE_VERSION", "KV_KERNELS_VERSION"])
def test_a_new_version_of_the_kernels_or_of_the_text_is_measured(
    version: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate.run()
    monkeypatch.setattr(engine.compute.quality, version, 99)
    gate.run()
    assert gate.measured == 2
    text = HELD_OUT_TEXT.read_text()
    (tmp_path / "text").write_text(text + ".")
    monkeypatch.setattr(engine.compute.quality, "HELD_OUT_TEXT", tmp_path / "text")
    gate.run()
    assert gate.measured == 3


def test_limits_judge_a_known_result_and_another_limit_of_layers_measures_again(gate: Gate) -> None:
    first = gate.run().quality
    with pytest.raises(ModelRefused, match=r"^quality: mean_kl is .*, 0\.0001$"):
        gate.run(QualityLimits(mean_kl_max=0.0001))
    with pytest.raises(ModelRefused, match=r"^quality: top1 is .*, 0\.999$"):
        gate.run(QualityLimits(top1_min=0.999))
    # Any limit that no layer is over would have kept the same layers: none.
    gate.run(QualityLimits(layer_error_max=first.worst_layer_error))
    gate.run(QualityLimits(layer_error_max=100))
    assert gate.measured == 1
    lower = QualityLimits(layer_error_max=first.worst_layer_error * 0.999)
    kept = gate.run(lower)
    assert (kept.kept, gate.measured) == ((first.worst_layer,), 2)
    assert gate.run(lower) == kept
    assert gate.measured == 2
    assert gate.run().kept == ()
    assert gate.measured == 3, "with the higher limit the layer need not stay unquantised"


def test_a_model_that_was_refused_is_not_measured_again(gate: Gate) -> None:
    strict = QualityLimits(mean_kl_max=0)
    for _ in range(2):
        with pytest.raises(ModelRefused, match=r"its limit is quality\.mean_kl_max, 0$"):
            gate.run(strict)
    assert gate.measured == 1


DAMAGED = {
    "empty": b"",
    "cut short": b'{"',
    "no JSON": b"\x00\x01",
    "no UTF-8": b'{"a\xff": 1}',
    "a list": b"[]",
    "another shape": b'{"%KEY%": {"quality": [1, 2]}}',
    "a NaN": b'{"%KEY%": {"quality": [1, null, 1, 1, 1, 0, 0, 0, 0], "kept": []}}',
    "deep": b"[" * 200_000,
    "large": b" " * (2 << 20),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_measured_again_and_replaced(damage: str, gate: Gate) -> None:
    first = gate.run()
    file = gate.directory / RESULTS
    file.write_bytes(DAMAGED[damage].replace(b"%KEY%", gate.key.text().encode()))
    again = gate.run()
    assert gate.measured == 2
    assert msgspec.structs.replace(again.quality, measured_at=0) == msgspec.structs.replace(
        first.quality, measured_at=0
    )
    gate.run()
    assert gate.measured == 2
    assert json.loads(file.read_bytes()).keys() == {gate.key.text()}


def test_what_is_no_file_is_measured_again(gate: Gate) -> None:
    (gate.directory / RESULTS).mkdir()
    for count in (1, 2):
        gate.run()
        assert gate.measured == count
    assert not list(gate.directory.glob("*.tmp"))


def test_a_read_only_directory_is_measured_at_every_start(gate: Gate) -> None:
    before = {path.name for path in gate.directory.iterdir()}
    with mounted_read_only(gate.directory):
        for count in (1, 2):
            gate.run()
            assert gate.measured == count
    assert {path.name for path in gate.directory.iterdir()} == before
    gate.run()
    assert gate.measured == 3
    with mounted_read_only(gate.directory):
        gate.run()
    assert gate.measured == 3, "a result that came with the files is read"


@pytest.mark.parametrize("change", ["NaN", "infinite"])
def test_what_is_not_finite_is_refused_or_judged_and_not_written(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm that is NaN makes every measure NaN; logits of thousands make the perplexity infinite, and no other."""
    measure_few_windows(monkeypatch)
    directory = oracle.save_tiny("llama", tmp_path / "m", num_hidden_layers=2)
    file, name = directory / "model.safetensors", "model.norm.weight"
    tensors = load_file(file)
    save_file(tensors | {name: tensors[name] * (torch.nan if change == "NaN" else 1e3)}, file)
    gate = Gate(directory, "none", "fp8")
    engine.compute.quality.write_results(directory, {"other": QualityResult(measure_fine(tmp_path).quality)})
    for count in (1, 2):
        if change == "NaN":
            with pytest.raises(ModelRefused, match=r"^quality: mean_kl is nan nats; its limit is quality\.mean_kl_max"):
                gate.run()
        else:
            found = gate.run(ANY_QUALITY).quality
            assert math.isfinite(found.mean_kl)
            assert found.perplexity == math.inf
        assert gate.measured == count
    text = (directory / RESULTS).read_text()
    assert "null" not in text
    assert read_results(directory).keys() == {"other"}


def measure_fine(tmp_path: Path) -> QualityResult:
    directory = oracle.save_tiny("llama", tmp_path / "fine", num_hidden_layers=1)
    return measure(directory, "int8", limits=ANY_QUALITY, windows=1)


def test_results_of_two_engines_at_once_are_both_kept(gate: Gate) -> None:
    """The second was measured while the first was."""
    other = Gate(gate.directory, "int8")

    def open_slowly() -> CpuMeasuredModel:
        other.run()
        return model_of(gate.directory, "fp8")

    gate_model(gate.directory, gate.key, LIMITS, open_slowly)
    assert read_results(gate.directory).keys() == {gate.key.text(), other.key.text()}


def test_progress_is_logged(gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(engine.compute.quality, "PROGRESS_S", 0.0)
    with caplog.at_level(logging.INFO, logger="engine"):
        found = gate.run()
    fields = [record.__dict__["fields"] for record in caplog.records if record.message == "quality.measuring"]
    assert [(field["model"], field["layer"], field["layers"]) for field in fields] == [("m", n, 5) for n in range(1, 6)]
    assert fields[-1]["remaining_s"] == 0
    (said,) = (record.__dict__["fields"] for record in caplog.records if record.message == "quality.measured")
    assert said["mean_kl"] == found.quality.mean_kl
    assert said["model"] == "m"


# ---- layers that stay unquantised


@pytest.mark.parametrize("vnni", [False, True])
@pytest.mark.parametrize("quantize", ["fp8", "int8"])
def test_a_layer_over_the_limit_stays_unquantised(
    quantize: Quantize, vnni: bool, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engine.models.cpu_loading, engine.cpu.weights):
        monkeypatch.setattr(module, "multiplies_int8", lambda: vnni)
    measure_few_windows(monkeypatch)
    config = ModelConfig(name="m", path=str(fresh), quantize=quantize)
    whole = CpuModel.from_config(config, F32)
    assert whole.quality is not None
    worst = whole.quality.quality.worst_layer
    limits = QualityLimits(layer_error_max=whole.quality.quality.worst_layer_error * 0.999)
    runner = build(fresh, limits, quantize=quantize)
    plain = build(fresh)
    info = runner.models["m"]
    assert info.quality is not None
    assert (info.quality.kept_layers, info.weights_format) == (4, quantize)
    assert 0 < info.quality.mean_kl < whole.quality.quality.mean_kl
    assert info.quality.worst_layer != worst
    assert info.digest == quantized_digest(model_digest(fresh), quantize, (worst,))
    assert info.digest != whole.digest == quantized_digest(model_digest(fresh), quantize)
    # The GPU's slab of the same layers.
    formats = FileSource(fresh, whole.shape, F32, quantize, (worst,)).layout.formats
    assert {name.split(".")[1] for name in formats} == {str(index) for index in range(5) if index != worst}
    layers = runner.weights.decoder("m")._weights.layers
    x = torch.randn(3, whole.shape.hidden)
    for index, (own, other) in enumerate(zip(layers, plain.weights.decoder("m")._weights.layers, strict=True)):
        found, expected = (layer.gate_up(x, torch.empty(3, 2 * whole.shape.intermediate)) for layer in (own, other))
        error = float((found - expected).norm() / expected.norm())
        assert (error < 1e-5) == (index == worst)
    ids = held_out_ids(fresh, whole.shape.vocab, 1)[0, :60].tolist()
    run_cases(runner, [Case("m", ids, new=8), Case("m", ids[:30], new=8)])


def test_a_published_checkpoint_has_no_layer_that_could_stay_unquantised(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(trained, "fp8")
    model.may_keep_layers = False
    found = measure_quality(model, held_out_ids(trained, 2048, 1), QualityLimits(layer_error_max=0.01), "m")
    assert found.kept == ()
    assert "its limit is quality.layer_error_max, 0.01" in str(
        find_quality_fault(found.quality, QualityLimits(layer_error_max=0.01))
    )


# ---- the whole measurement


@pytest.mark.slow
def test_laneway_tiny_passes_the_gate_on_the_whole_text(fresh: Path, caplog: pytest.LogCaptureFixture) -> None:
    """fp8 weights and fp8 KV together, as an engine measures them at its start."""
    runner = build(fresh, quantize="fp8", kv_dtype="fp8")
    quality = runner.models["m"].quality
    assert quality is not None
    assert quality.tokens == 20_480
    assert 0.01 < quality.mean_kl < 0.03
    assert 0.90 < quality.top1 < 0.95
    assert list(read_results(fresh).values()) == [QualityResult(quality, (), LIMITS.layer_error_max)]


@pytest.mark.slow
def test_the_table_of_formats_is_measured(trained: Path) -> None:
    """`make long` measures SmolLM2's on the whole text."""
    lines = list(rows(trained, 1))
    found = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in lines[2:]]
    kv = ("float32", "fp8")
    assert found == [
        ("bfloat16", "bfloat16"),
        ("float32", "fp8"),
        *((weights, own) for weights in ("fp8", "int8", "int4") for own in kv),
    ]
    assert ["passes" in line for line in lines[2:]] == [True] * 6 + [False] * 2
    floor, int8 = (float(lines[row].split("|")[3]) for row in (2, 6))
    assert 0 < floor < 0.003
    assert 0 < int8 < 0.003
    assert not (trained / RESULTS).exists()
