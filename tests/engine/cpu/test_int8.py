"""Products in int8 on a CPU: near those in float64, the same bits in any batch, and models with and without them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import engine.cpu.weights
import engine.models.cpu_loading
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder
from engine.cpu.runner import TorchRunner, build_runner
from engine.cpu.weights import CpuModel
from engine.models.linear import INT16_LARGEST, Int8Linear, Linear
from engine.models.matrices import dequantize_matrix, quantize_matrix
from engine.models.quantized import QUANTIZE_FORMATS
from engine.protocol.config import EngineConfig, ModelConfig, QualityLimits
from engine.protocol.frames import Sampling
from engine.step import Chunk, Sequence
from support import oracle
from support.engine.published_formats import PUBLISHED, quantize_directory
from support.engine.quality import ANY_QUALITY, measure_few_windows

CPU = torch.device("cpu")
SHAPES = [(80, 48), (300, 64), (33, 127), (5, 1), (96, 1024)]


def force(monkeypatch: pytest.MonkeyPatch, *, vnni: bool) -> None:
    """Make the engine take this CPU for one with or without VNNI, and shorten the gate."""
    measure_few_windows(monkeypatch)
    for module in (engine.models.cpu_loading, engine.cpu.weights):
        monkeypatch.setattr(module, "multiplies_int8", lambda: vnni)


def make_product(out: int, columns: int, *, bias: bool = False) -> tuple[Int8Linear, torch.Tensor, torch.Tensor | None]:
    """A product, its weight in float64, and its bias."""
    torch.manual_seed(out)
    format = QUANTIZE_FORMATS["int8"]
    matrix = quantize_matrix(torch.randn(out, columns) * torch.rand(out, 1), format)
    offset = torch.randn(out) if bias else None
    product = Int8Linear(matrix.data.view(torch.int8), matrix.scales[:, 0], offset)
    return product, dequantize_matrix(matrix, format, columns).double(), offset


def error_bound(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of y [rows, out]: half of a step of x in 16 bits for every column, and the roundings of a few float32."""
    half_step = x.double().abs().amax(1, keepdim=True) / INT16_LARGEST / 2
    steps = half_step * weight.abs().sum(1)
    return steps * 1.001 + x.double().abs() @ weight.abs().t() * 2.0**-21


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 8, 9, 40])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_product_in_float64(shape: tuple[int, int], rows: int, bias: bool) -> None:
    product, weight, offset = make_product(*shape, bias=bias)
    # Rows of very different sizes, which need not be contiguous.
    x = (torch.randn(rows, shape[1] + 7) * 10.0 ** torch.randint(-6, 6, (rows, 1)))[:, : shape[1]]
    out = torch.full((rows, shape[0]), torch.nan)
    assert product(x, out) is out
    wanted = x.double() @ weight.t() + (0 if offset is None else offset.double())
    bound = error_bound(x, weight) + 2.0**-22 * wanted.abs()
    assert bool(((out.double() - wanted).abs() <= bound).all())
    if not bias:
        y = torch.randn(rows, shape[0])
        wanted = wanted + y.double()
        product.add_to(y, x)
        assert bool(((y.double() - wanted).abs() <= bound + 2.0**-22 * wanted.abs()).all())


def test_products_in_bfloat16_are_rounded_once() -> None:
    product, weight, _ = make_product(300, 64)
    x = torch.randn(6, 64, dtype=torch.bfloat16)
    out = product(x, torch.empty(6, 300, dtype=torch.bfloat16))
    wanted = x.double() @ weight.t()
    assert bool(((out.double() - wanted).abs() <= error_bound(x, weight) + 2.0**-8 * wanted.abs()).all())


def test_the_largest_numbers_do_not_overflow_or_saturate() -> None:
    """Every number at its largest, in a row of 2,048 columns: on a CPU without VNNI, pairs of products in 16 bits
    would saturate."""
    for sign in (1, -1):
        weight = torch.full((16, 2048), 127 * sign, dtype=torch.int8)
        product = Int8Linear(weight, torch.ones(16), None)
        for rows in (1, 5):
            x = torch.full((rows, 2048), 3.0)
            assert torch.equal(product(x, torch.empty(rows, 16)), torch.full((rows, 16), 127.0 * sign * 3.0 * 2048))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_batch(shape: tuple[int, int]) -> None:
    product, _, _ = make_product(*shape)
    biased, _, _ = make_product(*shape, bias=True)
    x = torch.randn(21, shape[1]) * 10.0 ** torch.randint(-4, 4, (21, 1))
    y = torch.randn(21, shape[0])

    def run(rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        added = y[rows].clone()
        product.add_to(added, x[rows])
        empty = torch.empty(len(rows), shape[0])
        return product(x[rows], empty), biased(x[rows], torch.empty_like(empty)), added

    alone = [torch.cat(parts) for parts in zip(*(run([row]) for row in range(21)), strict=True)]
    dice = random.Random(1)
    for size in (2, 3, 7, 8, 9, 16, 21):
        rows = dice.sample(range(21), size)
        for found, wanted in zip(run(rows), alone, strict=True):
            assert torch.equal(found, wanted[rows])


def test_rows_of_zeros_give_zeros_and_rows_without_numbers_fail_alone() -> None:
    product, _, _ = make_product(96, 64)
    x = torch.randn(6, 64)
    x[1] = 0.0
    x[2, 63], x[3, 0], x[4, 5] = torch.nan, torch.inf, -torch.inf
    good = torch.tensor([0, 5])
    expected = product(x[good], torch.empty(2, 96))
    out = product(x, torch.full((6, 96), 7.0))
    assert torch.equal(out[good], expected)
    assert not out[1].any()
    assert not out[2:5].isfinite().any()
    for row in range(1, 5):
        alone = product(x[row : row + 1], torch.full((1, 96), 7.0))
        assert torch.equal(alone[0].isfinite(), out[row].isfinite())
    y = torch.ones(6, 96)
    product.add_to(y, x)
    assert torch.equal(y[1], torch.ones(96))
    assert torch.equal(y[good], expected + 1)
    assert not y[2:5].isfinite().any()


def test_the_smallest_numbers_are_not_lost() -> None:
    product, weight, _ = make_product(96, 64)
    x = torch.randn(2, 64) * 1e-24
    out = product(x, torch.empty(2, 96))
    assert bool(((out.double() - x.double() @ weight.t()).abs() <= error_bound(x, weight)).all())
    assert out.any()


# ---- models


def tensors(decoder: Decoder) -> Iterator[torch.Tensor]:
    """All that it multiplies with."""
    owners: list[Any] = [decoder._weights, *decoder._weights.layers]
    for owner in owners:
        for value in (getattr(owner, field.name) for field in dataclasses.fields(owner)):
            found: tuple[Any, ...] = (value,)
            if isinstance(value, Linear):
                found = (value._plain, value._packed, value._bias)
            elif isinstance(value, Int8Linear):
                found = (value._weight, value._scales, value._bias)
            yield from (tensor for tensor in found if isinstance(tensor, torch.Tensor))


def build(directory: Path, **model: Any) -> TorchRunner:
    models = (ModelConfig(name="m", path=str(directory), **model),)
    return build_runner(EngineConfig(models=models, arena_bytes=16 << 20, threads=1, quality=ANY_QUALITY))


@pytest.mark.parametrize("vnni", [False, True])
@pytest.mark.parametrize("dummy", [False, True])
@pytest.mark.parametrize("quantize", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "tied"])
def test_what_a_quantised_model_takes_is_told_before_it_is_loaded(
    family: str, quantize: str, dummy: bool, vnni: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, vnni=vnni)
    directory = oracle.save_tiny(family, tmp_path, num_hidden_layers=2)
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if family == "qwen3" else "float32"
    runner = build(directory, quantize=quantize, dummy=dummy, dtype=dtype)
    decoder = runner.weights.decoder("m")
    held = {tensor.data_ptr(): tensor for tensor in tensors(decoder)}
    assert runner.weights.weights_bytes("m") == sum(tensor.nbytes for tensor in held.values())
    is_int8 = vnni and quantize == "int8"
    assert isinstance(decoder._weights.layers[1].down, Int8Linear) == is_int8
    assert isinstance(decoder._weights.lm_head, Int8Linear) == is_int8


@pytest.mark.parametrize("vnni", [False, True])
def test_what_a_model_with_a_kept_layer_takes(vnni: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, vnni=vnni)
    directory = oracle.save_tiny("qwen2", tmp_path, num_hidden_layers=2)
    config = ModelConfig(name="m", path=str(directory), quantize="int8")
    whole = CpuModel.from_config(config, torch.float32, ANY_QUALITY).quality
    assert whole is not None
    limit = whole.quality.worst_layer_error * 0.9999
    limits = QualityLimits(mean_kl_max=100, top1_min=0, layer_error_max=limit)
    model = CpuModel.from_config(config, torch.float32, limits)
    assert model.quality is not None
    assert model.quality.kept == (whole.quality.worst_layer,)
    decoder = model.build_decoder(torch.zeros(4, 1 << 16, dtype=torch.uint8))
    kinds = [isinstance(layer.o, Int8Linear) for layer in decoder._weights.layers]
    assert kinds == [vnni and index != whole.quality.worst_layer for index in range(2)]
    assert model.bytes == sum(tensor.nbytes for tensor in tensors(decoder))


@torch.inference_mode()
def all_logits(runner: TorchRunner, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab] of a prompt."""
    decoder, info = runner.weights.decoder("m"), runner.models["m"]
    own = Sequence(0, 0, "r", "m", None, "n", "t", "s", ids, 9, Sampling(), frozenset(), 0.0)
    own.pages = list(range(-(-len(ids) // info.tokens_per_page)))
    batch = pack_step([Chunk(own, 0, len(ids), True)], info.tokens_per_page, CPU, decoder.dtype)
    return decoder.logits(decoder.run_layers(decoder.embed(batch), batch, None), torch.arange(len(ids)))


@pytest.mark.parametrize("published", [None, "int-channel", "int-tensor"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "tied"])
def test_models_with_and_without_int8_products_say_the_same_but_for_near_ties(
    family: str, published: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = oracle.save_tiny(family, tmp_path, num_hidden_layers=3)
    if published is not None:
        quantize_directory(directory, PUBLISHED[published])
    ids, found = [random.Random(3).randrange(oracle.TINY_VOCAB) for _ in range(300)], []
    for vnni in (False, True):
        force(monkeypatch, vnni=vnni)
        runner = build(directory, quantize="none" if published else "int8")
        assert isinstance(runner.weights.decoder("m")._weights.layers[0].qkv, Int8Linear) == vnni
        found.append(all_logits(runner, ids).double())
    plain, narrow = found
    # A published head is in float32 in both; on loading it is in int8 only where int8 is multiplied.
    near = 0.03 if published is None else 1e-3
    spread = plain.std(dim=1)
    assert bool(((narrow - plain).norm(dim=1) <= near * plain.norm(dim=1)).all())
    best = plain.topk(2).values
    differs = plain.argmax(1) != narrow.argmax(1)
    assert bool(((best[:, 0] - best[:, 1])[differs] < 4 * near * spread[differs]).all())
    assert differs.float().mean() < near
    assert not torch.equal(plain, narrow)
