"""The quality gate's model on a GPU, its kernels run by Triton's interpreter, beside the CPU's; and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

import engine.compute.quality
import engine.cpu.quality
import engine.gpu.quality
import engine.models.cpu_loading
from engine.compute.quality import QualityKey, QualityResult, gate_model, measure_quality
from engine.cpu.quality import CpuMeasuredModel
from engine.gpu.opening import open_model
from engine.gpu.products import check_products
from engine.gpu.quality import NO_MEMORY, GpuMeasuredModel
from engine.models.config import ModelRefused, load_config
from engine.models.slab import SlabLayout
from engine.models.slab_source import FileSource
from engine.protocol.config import ModelConfig, QualityLimits
from support import oracle
from support.engine.interpreted_models import CPU, interpreted
from support.engine.published_formats import PUBLISHED, quantize_directory

WINDOW, ERROR_WINDOWS, WINDOWS = 24, 1, 2
F16 = torch.float16
LOOSE = QualityLimits(mean_kl_max=100.0, top1_min=0.0, layer_error_max=100.0)
SHAPE = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
# Of every figure, relative to the CPU's: one computes in float16, and rows in fp8 on a GPU alone.
NEAR = 0.05


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows so short that the interpreter computes them in seconds, and a CPU that dequantises."""
    for module in (engine.compute.quality, engine.cpu.quality, engine.gpu.quality):
        monkeypatch.setattr(module, "WINDOW_TOKENS", WINDOW)
    for module in (engine.compute.quality, engine.gpu.quality):
        monkeypatch.setattr(module, "ERROR_WINDOWS", ERROR_WINDOWS)
    monkeypatch.setattr(engine.gpu.quality, "ROWS", ERROR_WINDOWS * WINDOW)
    monkeypatch.setattr(engine.models.cpu_loading, "multiplies_int8", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=4))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return oracle.save_tiny("llama", tmp_path_factory.mktemp("quality") / "model", initializer_range=0.06, **SHAPE)


def configured(directory: Path, quantize: str = "none", kv: str = "auto") -> ModelConfig:
    return ModelConfig(name="m", path=str(directory), dtype="float16", quantize=quantize, kv_dtype=kv)  # type: ignore[arg-type]


def measure(model: ModelConfig, limits: QualityLimits = LOOSE, *, on_cpu: bool = False) -> QualityResult:
    shape = load_config(Path(model.path), quantized=True)
    ids = torch.randint(1, oracle.TINY_VOCAB, (WINDOWS, WINDOW), generator=torch.Generator().manual_seed(1))
    if on_cpu:
        return measure_quality(CpuMeasuredModel(model, shape, torch.float32), ids, limits, "cpu")
    return measure_quality(GpuMeasuredModel(model, shape, F16, CPU), ids, limits, "gpu")


@interpreted
# Each takes half a minute in Triton's interpreter; `make long` runs all.
@pytest.mark.parametrize(
    ("quantize", "kv"),
    [("int4", "auto"), ("int8", "fp8"), ("none", "fp8")] if os.environ.get("LANEWAY_LONG") else [("int8", "fp8")],
)
def test_its_figures_are_the_cpu_s(quantize: str, kv: str, directory: Path) -> None:
    model = configured(directory, quantize, kv)
    found, expected = measure(model).quality, measure(model, on_cpu=True).quality
    print(
        f"\n{quantize}, kv {kv}: KL {found.mean_kl:.3g} and {expected.mean_kl:.3g}, "
        f"layer {found.worst_layer_error:.3g} and {expected.worst_layer_error:.3g}"
    )
    assert found.mean_kl == pytest.approx(expected.mean_kl, rel=0.15, abs=1e-6)
    assert found.worst_layer_error == pytest.approx(expected.worst_layer_error, rel=NEAR, abs=1e-3)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=0.01)
    assert found.reference_perplexity == pytest.approx(expected.reference_perplexity, rel=0.01)
    assert abs(found.top1 - expected.top1) < 0.1
    assert found.tokens == expected.tokens == WINDOWS * WINDOW


@interpreted
def test_rows_in_fp8_are_measured_too(directory: Path) -> None:
    """On a GPU fp8 weights are multiplied with rows in fp8; the CPU dequantises the weights, and its error is less."""
    model = configured(directory, "fp8")
    found, expected = measure(model).quality, measure(model, on_cpu=True).quality
    assert expected.mean_kl < found.mean_kl < 10 * expected.mean_kl
    assert expected.worst_layer_error < found.worst_layer_error < 3 * expected.worst_layer_error


@interpreted
def test_an_unquantised_model_is_its_own_reference(directory: Path) -> None:
    found = measure(configured(directory)).quality
    assert (found.mean_kl, found.top1, found.worst_layer_error) == (0.0, 1.0, 0.0)
    assert found.perplexity == found.reference_perplexity


@interpreted
def test_a_published_model_is_compared_with_its_own_numbers(directory: Path, tmp_path: Path) -> None:
    """There is no other reference: what remains is how the kernels compute them."""
    published = oracle.save_tiny("llama", tmp_path / "model", **SHAPE)
    quantize_directory(published, PUBLISHED["awq"])
    found = measure(configured(published)).quality
    assert found.mean_kl < 1e-4
    assert found.worst_layer_error < 0.01


@interpreted
@pytest.mark.long
def test_a_layer_over_the_limit_is_kept(directory: Path) -> None:
    model = configured(directory, "int4")
    all_quantised = measure(model).quality
    result = measure(model, msgspec.structs.replace(LOOSE, layer_error_max=all_quantised.worst_layer_error / 2))
    assert result.kept == (0,), "half of the layers at most"
    assert result.quality.kept_layers == 4
    assert result.quality.mean_kl < all_quantised.mean_kl


class ZeroedLayer(GpuMeasuredModel):
    """Serves zeros in place of a matrix of layer 1."""

    def _fill(self, source: FileSource, start: int, layout: SlabLayout) -> torch.Tensor:
        slab = super()._fill(source, start, layout)
        if source is self._source and "layers.1.down.scales" in layout.parts:
            layout.view(slab, "layers.1.down.scales").zero_()
        return slab


@interpreted
@pytest.mark.long
def test_a_zeroed_layer_is_refused(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shutil.copytree(directory, tmp_path / "model")  # results are written there
    model, shape = configured(directory, "int8"), load_config(directory)
    ids = torch.randint(1, oracle.TINY_VOCAB, (WINDOWS, WINDOW), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(engine.compute.quality, "held_out_ids", lambda *_: ids)
    key, limits = QualityKey("d", "int8", "float16", "float16", "cuda 9.0"), QualityLimits(layer_error_max=100.0)
    assert not gate_model(directory, key, limits, lambda: GpuMeasuredModel(model, shape, F16, CPU)).kept
    (directory / engine.compute.quality.RESULTS).unlink()
    with pytest.raises(ModelRefused, match=r"^quality: top1 is .* its limit is quality\.top1_min"):
        gate_model(directory, key, limits, lambda: ZeroedLayer(model, shape, F16, CPU))
    with pytest.raises(ModelRefused, match=r"^quality: top1 is"):  # known from now on, without a measurement
        gate_model(directory, key, limits, pytest.fail)
    (directory / engine.compute.quality.RESULTS).unlink()
    # Where its error is no more than a format's may be, the layer is served unquantised.
    assert gate_model(directory, key, QualityLimits(), lambda: ZeroedLayer(model, shape, F16, CPU)).kept == (1,)


def test_too_little_memory_refuses_the_model(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def run_out(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(GpuMeasuredModel, "load_layer", run_out)
    with pytest.raises(ModelRefused) as refused:
        open_model(configured(directory, "int8"), F16, CPU, QualityLimits())
    assert str(refused.value) == NO_MEMORY
    assert not (directory / engine.compute.quality.RESULTS).exists()


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
def test_fp8_weights_are_refused_by_name_on_an_older_gpu(
    capability: tuple[int, int], directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    published = oracle.save_tiny("llama", tmp_path / "model", **SHAPE)
    quantize_directory(published, PUBLISHED["fp8-small-block"])
    reason = rf"^fp8 weights need a GPU of compute capability 8\.9 or newer; this one has 8\.{capability[1]}$"
    for model in (configured(directory, "fp8"), configured(published)):
        with pytest.raises(ModelRefused, match=reason):
            open_model(model, F16, CPU, LOOSE)
    config = load_config(directory)
    for quantize in ("none", "int8", "int4"):
        check_products(FileSource(directory, config, F16, quantize).layout, CPU)
