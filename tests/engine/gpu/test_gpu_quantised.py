"""Quantised models on the GPU's decoder, their kernels run by Triton's interpreter.

Logits are those of the dequantised model on the CPU, adapters' deltas are the plain model's, step memory is shared with
models of other formats, and the warm-up leaves no kernel to be compiled by a step.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from triton.runtime.interpreter import InterpretedFunction

import engine.gpu.decoder
import engine.models.cpu_loading
import kernels.quantize
from adapters.device.layer import LoraBatch
from adapters.device.pool import TilePool
from adapters.files.spec import BaseShape
from engine.compute.shared import page_size
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder, PagedKv
from engine.gpu.draw_state import DrawState
from engine.gpu.lora import LoraDeltas
from engine.gpu.model import WARM_ROWS, WARM_SENDS, GpuModel
from engine.gpu.packing import Packer
from engine.gpu.products import DequantizedProduct, Fp8Product, GpuProduct, PlainProduct, ProductMemory
from engine.gpu.step_memory import StepMemories, StepSizes, form_bytes, step_form
from engine.models.config import load_config
from engine.models.cpu_loading import load_weights
from engine.models.matrices import dequantize_matrix
from engine.models.slab_source import FileSource
from engine.step import Chunk, Sequence
from kernels import reference_quantized
from kernels.lora_work import TileTable
from kernels.quantize import QuantizedRows
from support import oracle
from support.engine.interpreted_models import (
    CPU,
    PAGES,
    PROCESSORS,
    SEQUENCES,
    Recorder,
    Served,
    TinyModel,
    graphs_of,
    interpreted,
    request,
    without_streams,
)
from support.engine.published_formats import PUBLISHED, quantize_directory

pytestmark = interpreted
F16 = torch.float16
# Widths that are multiples of every group, and of SCALED_MULTIPLE.
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "head_dim": 16,
    "initializer_range": 0.06,
}
# More than FEW_ROWS and FP8_FEW_ROWS.
MANY = 66
# Of a row, relative to its norm. A product's: float16 beside float32, from the same rows. Logits': rows in fp8 have 4
# bits, and two computations of a number that differ in float16's last bit may become neighbours in fp8; the same model
# on the CPU with its rows in fp8 moves as far (0.05) when these are rounded to float16 first.
NEAR_PRODUCT = 2**-10
NEAR = 0.005
NEAR_FP8_ROWS = 0.1
# Of logits in bfloat16, whose rows in fp8 differ where one of two computations rounds a product once less.
NEAR_BFLOAT16 = 0.05
# Layers that stay unquantised; a published format, or `quantize`; the product of the matrices.
FORMATS: dict[str, tuple[str, str, tuple[int, ...], type]] = {
    "plain": ("", "none", (), PlainProduct),
    "fp8": ("", "fp8", (), Fp8Product),
    "fp8 channels": ("float-channel", "none", (), Fp8Product),
    "fp8 blocks": ("fp8-small-block", "none", (), DequantizedProduct),
    "int8": ("", "int8", (), DequantizedProduct),
    "int4": ("", "int4", (), DequantizedProduct),
    "int4 zeros": ("awq", "none", (), DequantizedProduct),
    "int4 row zeros": ("pack-channel-zeros", "none", (), DequantizedProduct),
    "fp8, layer 1 kept": ("", "fp8", (1,), Fp8Product),
    "int4, layer 0 kept": ("", "int4", (0,), DequantizedProduct),
}
# Of each kind of product one; `make long` runs all formats, which take minutes in Triton's interpreter.
LONG = bool(os.environ.get("LANEWAY_LONG"))
IN_CI = ("fp8", "fp8 blocks", "int4 zeros")


def make_model(directory: Path, name: str) -> TinyModel:
    published, quantize, kept, _ = FORMATS[name]
    oracle.save_tiny("llama", directory, num_hidden_layers=2 if kept else 1, **SHAPE)
    if published:
        quantize_directory(directory, PUBLISHED[published])
    return TinyModel(directory, quantize=quantize, kept=kept)


def served_of(models: list[TinyModel]) -> Served:
    return Served(models, graphs_of(Recorder(), 0), dtype=F16, rows=96)


class CheckedProduct:
    """A product of a GpuDecoder that is compared with float32 each time, and that its rows in fp8 are those of x."""

    def __init__(self, product: GpuProduct, matrix: torch.Tensor, worst: list[float]) -> None:
        """`matrix` float32 [out, in]; the relative errors of the rows are added to `worst`."""
        self.reads_fp8, self.outs, self.variant = product.reads_fp8, product.outs, product.variant
        self._product, self._matrix, self._worst = product, matrix, worst

    def __call__(
        self, x: torch.Tensor, quantized: QuantizedRows | None, out: torch.Tensor, memory: ProductMemory
    ) -> None:
        self._product(x, quantized, out, memory)
        rows = x.float()
        assert (quantized is not None) == self.reads_fp8
        if quantized is not None:
            expected = QuantizedRows(torch.empty_like(quantized.numbers), torch.empty_like(quantized.scales))
            reference_quantized.quantize_rows(x, expected)
            assert torch.equal(quantized.numbers.view(torch.uint8), expected.numbers.view(torch.uint8))
            assert torch.equal(quantized.scales, expected.scales)
            rows = expected.numbers.float() * expected.scales[:, None]
        wanted = rows @ self._matrix.T
        self._worst.append(float(((out.float() - wanted).norm(dim=1) / wanted.norm(dim=1)).max()))

    def warm_up_product(self, dtype: torch.dtype, rows_max: int, memory: ProductMemory) -> None:
        self._product.warm_up_product(dtype, rows_max, memory)


def check_products(model: GpuModel, tiny: TinyModel) -> list[float]:
    """Checks every product of a model's layers from now on. Returns the list of their errors."""
    decoder, worst = model._decoder, list[float]()
    source = FileSource(tiny.directory, decoder.config, F16, tiny.quantize, tiny.kept)
    slab = torch.zeros(source.layout.bytes, dtype=torch.uint8)
    source.fill(0, slab)
    layers = []
    for index, layer in enumerate(decoder._weights.layers):
        checked = {}
        for name in ("qkv", "o", "gate_up", "down"):
            own = f"layers.{index}.{name}"
            if own in source.layout.formats:
                format, columns = source.layout.formats[own], source.layout.parts[own].fused.shape[1]
                matrix = dequantize_matrix(source.layout.view_matrix(slab, own), format, columns)
            else:
                matrix = source.layout.view(slab, own).float()
            checked[name] = CheckedProduct(getattr(layer, name), matrix, worst)
        layers.append(dataclasses.replace(layer, **checked))  # type: ignore[arg-type]
    decoder._weights = dataclasses.replace(decoder._weights, layers=tuple(layers))
    return worst


class Dequantised:
    """The model on the CPU in float32, every matrix dequantised, with a pool of adapters."""

    def __init__(self, model: TinyModel) -> None:
        self.config = load_config(model.directory, quantized=True)
        layout = self.config.kv_layout("float32")
        self._arena = torch.full((24, page_size([(self.config, layout)], torch.float32)), 0xFF, dtype=torch.uint8)
        weights = load_weights(model.directory, self.config, torch.float32, quantize=model.quantize, kept=model.kept)
        self.decoder = Decoder(self.config, weights, PagedKv.of(self._arena, layout))
        self.pool = TilePool(self._arena, torch.float32, {"m": BaseShape.from_directory(model.directory)})

    def add_adapter(self, digest: str, directory: Path, pages: list[int]) -> None:
        self.pool.register_adapter(digest, "m", directory)
        self.pool.place_adapter(digest, pages[: self.pool.pages_needed(digest)])

    @torch.inference_mode()
    def logits(self, chunk: Chunk) -> torch.Tensor:
        batch = pack_step([chunk], self.decoder.kv.tokens_per_page, CPU, torch.float32)
        lora = LoraBatch(self.pool, [(chunk.sequence.adapter, chunk.count)], CPU)
        return self.decoder.forward(batch, lora if lora else None)[0]


@pytest.fixture(autouse=True)
def dequantised_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU multiplies no matrix in int8 itself, the head least of all, which a GPU leaves in 16 bits."""
    monkeypatch.setattr(engine.models.cpu_loading, "multiplies_int8", lambda: False)


@pytest.fixture(scope="module", autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def random_ids(count: int, seed: int) -> list[int]:
    return torch.randint(1, oracle.TINY_VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def steps_of(sequences: list[Sequence]) -> Iterator[list[Chunk]]:
    """A prompt of few rows, a step of many with a decode in it, decodes, and a mixed step of few rows."""
    short, long, late = sequences
    sizes = [[(short, 7)], [(short, 1), (long, MANY)], [(short, 1), (long, 1)], [(late, 20), (short, 1)], [(late, 1)]]
    for step in sizes:
        chunks = [Chunk(own, own.computed, count, True) for own, count in step]
        yield chunks
        for own, count in step:
            own.computed += count
            if own.computed == own.token_count():
                own.output_ids.append(5 + own.computed % 7)


def new_requests(adapters: tuple[str | None, ...] = (None, None, None)) -> list[Sequence]:
    prompts = [random_ids(7, 1), random_ids(MANY, 2), random_ids(21, 3)]
    pages = [[0, 1], list(range(2, 9)), [9, 10, 11]]
    return [request(*own) for own in zip(prompts, pages, adapters, strict=True)]


@pytest.mark.parametrize("name", FORMATS if LONG else IN_CI)
def test_logits_are_near_the_dequantised_model_s(name: str, tmp_path: Path) -> None:
    tiny, kind = make_model(tmp_path / "model", name), FORMATS[name][3]
    served, expected = served_of([tiny]), Dequantised(tiny)
    (model,) = served.models
    assert {type(product) for product in model._decoder._products} == {kind} | ({PlainProduct} if tiny.kept else set())
    errors, gaps = check_products(model, tiny), []
    for chunks in steps_of(new_requests()):
        found = served.logits(model, chunks)
        gaps += [gap(found[chunk.sequence], expected.logits(chunk)) for chunk in chunks]
    print(f"\n{name}: products {max(errors):.5f}, logits {max(gaps):.4f}")
    assert len(errors) == 5 * 4 * model._decoder.config.layers
    assert max(errors) < NEAR_PRODUCT
    assert max(gaps) < (NEAR_FP8_ROWS if kind is Fp8Product else NEAR)


def test_products_without_their_scales_give_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 the norms apply the scales of larger products of fp8; without that the products do."""
    tiny = make_model(tmp_path / "model", "fp8, layer 1 kept")
    unscaled, found = Fp8Product.multiply_unscaled, {}
    for kind in ("unscaled", "scaled"):
        served = Served([tiny], graphs_of(Recorder(), 0), dtype=torch.bfloat16, rows=96)
        calls: list[int] = []

        def multiply(own: Fp8Product, quantized: QuantizedRows, out: torch.Tensor) -> Any:
            scales = unscaled(own, quantized, out) if kind == "unscaled" else None  # noqa: B023
            calls.append(scales is not None)  # noqa: B023
            return scales

        monkeypatch.setattr(Fp8Product, "multiply_unscaled", multiply)
        own = new_requests()[1]
        found[kind] = served.logits(served.models[0], [Chunk(own, 0, MANY, True)])[own].float()
        assert calls == [kind == "unscaled"] * 2, "o and down of layer 0"
    distance = gap(found["unscaled"], found["scaled"])
    print(f"\nscales applied by the norm: logits {distance:.4f}")
    assert 0 < distance < NEAR_BFLOAT16


# ---- adapters

STACKS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
DELTA_NEAR = 2**-8


def delta_matrix(adapter: Path, layer: int, stack: str) -> torch.Tensor:
    """scale · B · A of the stacked modules in float32, from peft's files."""
    tensors, config = (
        load_file(adapter / "adapter_model.safetensors"),
        json.loads((adapter / "adapter_config.json").read_bytes()),
    )
    parts = []
    for module in STACKS[stack]:
        a, b = (tensors[f"base_model.model.model.layers.{layer}.{module}.lora_{side}.weight"].float() for side in "AB")
        parts.append(config["lora_alpha"] / config["r"] * (b @ a))
    return torch.cat(parts)


class RecordedDeltas:
    """Every delta that steps compute, in order: the rows x, and the delta of the adapted ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[torch.Tensor, torch.Tensor]] = []
        join = LoraDeltas.join

        def join_recorded(own: LoraDeltas, work: Any, layer: int, stack: Any, x: torch.Tensor) -> torch.Tensor:
            delta = join(own, work, layer, stack, x)
            self.found.append((x.clone(), delta.clone()))
            return delta

        monkeypatch.setattr(LoraDeltas, "join", join_recorded)


@pytest.mark.parametrize("name", ["fp8", "fp8 blocks", "int8", "int4 zeros"] if LONG else ["fp8"])
def test_an_adapter_s_delta_is_the_plain_base_s(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of few rows and one of many, each of one adapted request: the delta of every module is computed from the
    unquantised rows, and where both bases have the same rows it is the plain base's."""
    without_streams(monkeypatch)
    tiny = make_model(tmp_path / "model", name)
    plain = make_model(tmp_path / "plain", "plain")
    adapter = tmp_path / "adapter"
    oracle.save_tiny_adapter(oracle.load(plain.directory), adapter, r=4, target_modules="all-linear")
    recorded, deltas, gaps = RecordedDeltas(monkeypatch), {}, []
    expected = Dequantised(tiny)
    expected.add_adapter("a", adapter, list(range(12, 24)))
    for model in (tiny, plain):
        served = served_of([model])
        served.add_adapter("a", 0, adapter, list(range(12, 24)))
        few, many, _ = new_requests(("a", "a", None))
        for own in (few, many):
            chunk = Chunk(own, 0, len(own.prompt_ids), True)
            found = served.logits(served.models[0], [chunk])[own]
            if model is tiny:
                gaps.append(gap(found, expected.logits(chunk)))
        deltas[model.directory] = recorded.found
        recorded.found = []
    worst = 0.0
    for index, (x, delta) in enumerate(deltas[tiny.directory]):
        wanted = x.float() @ delta_matrix(adapter, 0, list(STACKS)[index % 4]).T
        worst = max(worst, float(((delta.float() - wanted).norm(dim=1) / wanted.norm(dim=1)).max()))
    assert len(deltas[tiny.directory]) == len(deltas[plain.directory]) == 8
    for place in (0, 4):  # q, k and v of the first layer: the rows do not depend on any matrix
        (x, delta), (plain_x, plain_delta) = (deltas[model.directory][place] for model in (tiny, plain))
        assert torch.equal(x, plain_x)
        assert torch.equal(delta, plain_delta)
    print(f"\n{name}: deltas {worst:.5f}, logits {max(gaps):.4f}")
    assert worst < DELTA_NEAR
    assert max(gaps) < (NEAR_FP8_ROWS if name == "fp8" else NEAR)


# ---- the memory of steps


def run_steps(served: Served, number: int, first_page: int, *, poison: bool) -> list[torch.Tensor]:
    """The logits of a prompt of few rows, one of many, and a decode. `poison`: before each step, all of the memory that
    models share holds what others may leave there."""
    few, many = request(random_ids(9, 5), [first_page, first_page + 1]), request(random_ids(MANY, 6), [])
    many.pages = list(range(first_page + 2, first_page + 7))
    found = []
    for own, count in ((few, 9), (many, MANY), (few, 1)):
        if poison:
            served.memories._stretches[0].fill_(0xA5)
        found.append(served.logits(served.models[number], [Chunk(own, own.computed, count, True)])[own])
        own.computed += count
        own.output_ids.append(3)
    return found


@pytest.mark.long
def test_models_of_two_formats_leave_nothing_to_each_other(tmp_path: Path) -> None:
    """The counters of products are zero when a step begins, whatever is in their place before."""
    models = [make_model(tmp_path / name, name) for name in ("fp8", "int4 zeros")]
    alone = [run_steps(served_of([model]), 0, 0, poison=False) for model in models]
    served = served_of(models)
    for number, expected in enumerate(alone):
        scratch = served.models[number].memory.products.scratch
        assert scratch.arrivals.numel() > 0
        found = run_steps(served, number, 10 * number, poison=True)
        assert all(torch.equal(own, other) for own, other in zip(found, expected, strict=True))
        assert not scratch.arrivals.any()


def test_a_plain_model_s_steps_need_no_memory_for_products(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path / "model")
    config = load_config(directory)
    table = TileTable(torch.empty(0, dtype=F16), torch.zeros(4, 4, 7, 2, dtype=torch.int64))
    sizes = StepSizes(words=1000, rows=96, sequences=8, plan=8)
    plain, fp8, int4 = (
        step_form(config, F16, table, sizes, 4, FileSource(directory, config, F16, quantize).layout)
        for quantize in ("none", "fp8", "int4")
    )
    numbers = ("x_numbers", "x_scales", "attended_numbers", "attended_scales", "activated_numbers", "activated_scales")
    assert all(getattr(plain.work, name).nbytes == 0 for name in numbers)
    nothing = dataclasses.replace(plain, products=())  # type: ignore[arg-type]
    assert form_bytes(plain) == form_bytes(nothing)
    assert form_bytes(fp8) > form_bytes(dataclasses.replace(fp8, products=())) > form_bytes(plain)  # type: ignore[arg-type]
    assert form_bytes(dataclasses.replace(int4, products=())) == form_bytes(plain)  # type: ignore[arg-type]
    assert int4.products.dequantized.shape == (2 * 80 * 48,)


# ---- the warm-up


@dataclass(frozen=True)
class Launch:
    """What Triton compiles a kernel for: constants, dtypes, alignment, and whether a number is 1 or a multiple of
    16."""

    kernel: str
    arguments: tuple[object, ...]


def launch_of(kernel: InterpretedFunction[Any], arguments: dict[str, object]) -> Launch:
    free = kernel.kwargs.get("do_not_specialize") or ()
    annotations = kernel.fn.__annotations__
    found: list[object] = []
    for name, value in sorted(arguments.items()):
        kind: object = value
        if isinstance(value, torch.Tensor):
            kind = (value.dtype, value.data_ptr() % 16 == 0)
        elif "constexpr" in str(annotations.get(name, "")) or name not in kernel.arg_names:
            kind = value
        elif isinstance(value, int):
            kind = "int" if name in free else (value == 1, value % 16 == 0)
        elif isinstance(value, float):
            kind = "float"
        found.append((name, kind))
    return Launch(kernel.fn.__name__, tuple(found))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> set[Launch]:
    """Fills while kernels are launched."""
    seen: set[Launch] = set()
    run = InterpretedFunction.run

    def run_recorded(own: InterpretedFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> object:
        seen.add(launch_of(own, dict(zip(own.arg_names, args, strict=False)) | kwargs))
        return run(own, *args, grid=grid, warmup=warmup, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", run_recorded)
    return seen


def warm_up_beside(served: Served, tiny: TinyModel) -> None:
    """In memory of few rows, as a GpuRunner does for a model that is added beside the steps of others."""
    (model,) = served.models
    words, decoder = model.warm_words(), model._decoder
    source = FileSource(tiny.directory, decoder.config, F16, tiny.quantize, tiny.kept)
    assert served.adapters.rows is not None
    sizes = StepSizes(words, WARM_ROWS, WARM_ROWS, SEQUENCES)
    form = step_form(decoder.config, F16, served.adapters.rows.table, sizes, PROCESSORS, source.layout)
    packer, drawn = Packer(words, WARM_SENDS, pinned=False), torch.zeros(WARM_ROWS, dtype=torch.int32)
    common = dataclasses.replace(served.common, packer=packer, drawn=drawn, draws=DrawState(CPU, 1))
    model.beside(StepMemories(CPU).place(form), common).warm_up()


@pytest.mark.long
@pytest.mark.parametrize("name", ["fp8", "int4 zeros"])
def test_no_step_needs_a_kernel_that_the_warm_up_did_not_launch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launches: set[Launch]
) -> None:
    """Steps of every bucket of rows, with an adapter and without."""
    without_streams(monkeypatch)
    # So that a step has many rows soon, and a row then needs several blocks.
    monkeypatch.setattr(kernels.quantize, "MANY_ROWS", MANY)
    monkeypatch.setattr(engine.gpu.decoder, "MANY_ROWS", MANY)
    monkeypatch.setattr(kernels.quantize, "MANY_ROWS_BLOCK", 32)
    tiny = make_model(tmp_path / "model", name)
    served = served_of([tiny])
    base, adapter = oracle.load(make_model(tmp_path / "plain", "plain").directory), tmp_path / "adapter"
    oracle.save_tiny_adapter(base, adapter, r=4, target_modules="all-linear")
    served.add_adapter("a", 0, adapter, list(range(PAGES - 6, PAGES)))
    warm_up_beside(served, tiny)
    warmed, products = frozenset(launches), {own for own in launches if own.kernel == "_product_kernel"}
    launches.clear()
    for adapter_digest in (None, "a"):
        for rows in (1, 5, 17, 33, MANY):
            own = request(random_ids(rows, rows), list(range(18)), adapter_digest)
            served.logits(served.models[0], [Chunk(own, 0, rows, True)])
    assert launches <= warmed, sorted(map(str, launches - warmed))
    assert {own for own in launches if own.kernel == "_product_kernel"} == products, "some are never used"
