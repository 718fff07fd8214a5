"""Products of few rows with a quantised W against float32: odd shapes, every element, poison around every operand."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from kernels import reference_quantized
from kernels.quantize import QuantizedRows, quantize_rows
from kernels.quantized_product import (
    PRODUCT_TILES,
    ProductScratch,
    ProductTile,
    allocate_product_scratch,
    quantized_product,
)
from support.kernels.operands import DEVICE, GPU, TOLERANCE, normal, poisoned, sampled
from support.kernels.quantized import DTYPES, ELEMENTS, FP8_NAN, QuantizedMatrix, guarded, matrix, poisoned_rows

SHAPES = [(1, 64), (24, 96), (40, 160), (100, 288), (130, 160), (40, 64)]  # (outs, ins)
GROUPS = [32, 64, 128, 0]  # 0: as many as columns
ROWS = [1, 2, 3, 16, 17, 33, 64]
SCALES = [torch.float32, torch.float16, torch.bfloat16]
# Small, so that a small W has several tiles and parts; and what a launch without a tile takes, on a GPU.
SMALL = ProductTile(16, 32, 64, 2, 4, 3)
TILES = [SMALL, SMALL._replace(rows=32, ins=32), SMALL._replace(outs=64, swapped=True), None]
WHOLE = [
    (rows, *shape, group, element, zeros, scales, dtype, tile)
    for rows, shape, group, (element, zeros), scales, dtype, tile in itertools.product(
        ROWS, SHAPES, GROUPS, [("fp8", 0), ("int8", 0), ("int4", 0), ("int4", 1)], SCALES, DTYPES, TILES
    )
]
FP8_ROWS = list(itertools.product(ROWS, SHAPES, GROUPS, DTYPES, [False, True]))
# On a GPU almost every case is another kernel to compile.
CASES = random.Random(22).sample(WHOLE, 90)


def scratch_for(rows: int, outs: int) -> ProductScratch:
    scratch = allocate_product_scratch(rows, outs, torch.device(DEVICE))
    scratch.partials.fill_(torch.nan)
    return scratch


def assert_near(got: torch.Tensor, wanted: torch.Tensor, x: torch.Tensor, w: QuantizedMatrix) -> None:
    """To two units in the last place of the result, and 2^-18 of the sum of the products' magnitudes: float32 sums in
    another order, of which a tensor core keeps two digits less."""
    ins = x.shape[1]
    dequantized = torch.empty(got.shape[1], ins, device=DEVICE)
    reference_quantized.dequantize(w.data, w.scales, w.zeros, dequantized, element=w.element, group=w.group)
    bound = x.float().abs() @ dequantized.abs().T * 2**-18 + wanted.float().abs() * TOLERANCE[got.dtype]
    assert got.isfinite().all()
    assert ((got.float() - wanted.float()).abs() <= bound).all()


def multiply(x: torch.Tensor | QuantizedRows, w: QuantizedMatrix, dtype: torch.dtype, **options: Any) -> torch.Tensor:
    """The product, twice, into rows between others that must stay as they are."""
    rows = (x.numbers if isinstance(x, QuantizedRows) else x).shape[0]
    outs = w.data.shape[0]
    scratch = options.pop("scratch", None) or scratch_for(rows, outs)
    whole = poisoned(rows + 2, outs + 8, dtype=dtype)
    out = whole[1:-1, :outs]
    quantized_product(x, *w[:3], out, scratch, element=w.element, group=w.group, **options)
    assert not scratch.arrivals.any()
    assert whole[[0, -1]].isnan().all()
    assert whole[:, outs:].isnan().all()
    first = out.clone()
    out.fill_(torch.nan)
    quantized_product(x, *w[:3], out, scratch, element=w.element, group=w.group, **options)
    assert torch.equal(first, out), "the same product gave other bits"
    return first


@pytest.mark.parametrize(
    ("rows", "outs", "ins", "group", "element", "zeros", "scales", "dtype", "tile"),
    sampled("quantized_product", CASES, 28),
    ids=str,
)
def test_the_matrix(
    rows: int,
    outs: int,
    ins: int,
    group: int,
    element: str,
    zeros: int,
    scales: torch.dtype,
    dtype: torch.dtype,
    tile: ProductTile | None,
) -> None:
    w = matrix(outs, ins, group or ins, element, with_zeros=bool(zeros), scales_dtype=scales, seed=rows + outs + ins)
    x = guarded(normal(rows, ins, dtype=dtype, seed=rows), torch.nan)
    got, wanted = multiply(x, w, dtype, tile=tile), poisoned(rows, outs, dtype=dtype)
    reference_quantized.quantized_product(x, *w[:3], wanted, element=element, group=w.group)
    assert_near(got, wanted, x, w)


@pytest.mark.parametrize(
    ("rows", "shape", "group", "dtype", "swapped"),
    sampled("fp8 rows", random.Random(23).sample(FP8_ROWS, 40), 6),
)
def test_rows_in_fp8(rows: int, shape: tuple[int, int], group: int, dtype: torch.dtype, swapped: bool) -> None:
    """To 2^-10 of the products' magnitudes: Hopper adds an iteration's products of fp8 with 14 bits."""
    outs, ins = shape
    w = matrix(outs, ins, group or ins, "fp8", with_zeros=False, scales_dtype=torch.float32, seed=rows + ins)
    plain = normal(rows, ins, dtype=dtype, seed=rows)
    x = poisoned_rows(rows, ins)
    quantize_rows(plain, x)
    x = QuantizedRows(
        guarded(x.numbers.view(torch.uint8), FP8_NAN).view(torch.float8_e4m3fn), guarded(x.scales, torch.nan)
    )
    tile = SMALL._replace(outs=64, swapped=True) if swapped else SMALL
    got, wanted = multiply(x, w, dtype, tile=tile), poisoned(rows, outs, dtype=dtype)
    reference_quantized.quantized_product(x, *w[:3], wanted, element="fp8", group=w.group)
    dequantized = torch.empty(outs, ins, device=DEVICE)
    reference_quantized.dequantize(*w[:3], dequantized, element="fp8", group=w.group)
    bound = plain.float().abs() @ dequantized.abs().T * 2**-10 + wanted.float().abs() * TOLERANCE[dtype]
    assert ((got.float() - wanted.float()).abs() <= bound).all()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("swapped", [False, True])
def test_every_number_of_an_element_is_exact(element: str, swapped: bool) -> None:
    """One column of x is 1 at a time, W holds every number there is: the output is the number itself."""
    numbers = 16 if element == "int4" else 256
    ins = 64
    every = torch.arange(numbers, dtype=torch.uint8)
    if element == "fp8":
        every[(every & 0x7F) == FP8_NAN] = 0
    stored = every[:, None].expand(numbers, ins).contiguous()
    data = (reference_quantized.pack_int4(stored) if element == "int4" else stored).to(DEVICE)
    x = torch.zeros(16, ins, dtype=torch.float16, device=DEVICE)
    x[torch.arange(16), torch.arange(16) * 4 + torch.arange(16) % 4] = 1
    scales = torch.ones(numbers, 1, device=DEVICE)
    zeros = torch.full((numbers, 1), 3, dtype=torch.uint8, device=DEVICE) if element == "int4" else None
    w = QuantizedMatrix(data, scales, zeros, element, ins)
    values = {
        "fp8": every.view(torch.float8_e4m3fn).float(),
        "int8": every.view(torch.int8).float(),
        "int4": every.float() - 3,
    }[element].to(DEVICE)
    tile = SMALL._replace(outs=64, swapped=swapped)
    for dtype in DTYPES:
        got = multiply(x.to(dtype), w, dtype, tile=tile)
        assert torch.equal(got.float(), values.expand(16, numbers))


def test_rows_of_nan_stay_in_their_rows() -> None:
    w = matrix(40, 96, 96, "fp8", with_zeros=False, scales_dtype=torch.float32, seed=2)
    x = normal(3, 96, dtype=torch.float16, seed=3).clone()
    clean = multiply(x, w, torch.float16, tile=SMALL)
    x[1, 7] = torch.nan
    fp8_rows = poisoned_rows(3, 96)
    quantize_rows(x, fp8_rows)
    for operand in (x, fp8_rows):
        out = poisoned(3, 40, dtype=torch.float16)
        quantized_product(operand, *w[:3], out, scratch_for(3, 40), element="fp8", group=96, tile=SMALL)
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()
        if operand is x:
            assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_a_small_scratch_and_many_parts_give_the_same_product() -> None:
    """A scratch that holds no parts: W is not split; programs for every block: it is split as far as it goes."""
    w = matrix(100, 288, 32, "int4", with_zeros=True, scales_dtype=torch.float16, seed=4)
    x = normal(3, 288, dtype=torch.float16, seed=5)
    none = ProductScratch(torch.zeros(0, dtype=torch.int32, device=DEVICE), torch.zeros(0, device=DEVICE))
    whole = multiply(x, w, torch.float16, tile=SMALL, scratch=none)
    parts = multiply(x, w, torch.float16, tile=SMALL._replace(programs_per_sm=50))
    assert_near(parts, whole, x, w)


def test_a_scratch_of_the_meta_device_has_the_same_form() -> None:
    real, form = (
        allocate_product_scratch(33, 130, torch.device(DEVICE)),
        allocate_product_scratch(33, 130, torch.device("meta")),
    )
    for tensor, other in zip(real, form, strict=True):
        assert (tensor.shape, tensor.dtype) == (other.shape, other.dtype)
    assert not real.arrivals.any()


def test_every_element_has_its_tiles() -> None:
    assert set(PRODUCT_TILES) == {(name, rows) for name in [*ELEMENTS, "fp8 rows"] for rows in (16, 32, 64)}
    assert all(tile.rows == rows for (_, rows), tile in PRODUCT_TILES.items())


def test_no_rows() -> None:
    w = matrix(24, 64, 64, "int8", with_zeros=False, scales_dtype=torch.float32, seed=6)
    out = poisoned(0, 24, dtype=torch.float16)
    quantized_product(
        normal(0, 64, dtype=torch.float16, seed=1), *w[:3], out, scratch_for(1, 24), element="int8", group=64
    )


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_product_right_after_the_kernel_that_writes_x_gives_the_same_bits_each_time(element: str) -> None:
    """On a GPU parts end in any order and launches start early: a hundred replays of a graph, of a large model's shape.
    The interpreter repeats launches of a small shape over one scratch."""
    rows, outs, ins = (33, 6144, 4096) if GPU else (17, 130, 256)
    w = matrix(outs, ins, 128, element, with_zeros=True, scales_dtype=torch.float16, seed=8)
    source, x = normal(rows, ins, dtype=torch.bfloat16, seed=9).contiguous(), poisoned(rows, ins, dtype=torch.bfloat16)
    out, wanted, scratch = poisoned(rows, outs, dtype=torch.bfloat16), poisoned(rows, outs, dtype=torch.bfloat16), None
    scratch = scratch_for(rows, outs)
    fp8_rows = poisoned_rows(rows, ins)

    def launch() -> None:
        x.copy_(source)
        quantize_rows(x, fp8_rows)
        quantized_product(x, *w[:3], out, scratch, element=element, group=128)

    launch()
    reference_quantized.quantized_product(source, *w[:3], wanted, element=element, group=128)
    assert_near(out, wanted, source, w)
    first, again, times = out.clone(), launch, 3
    if GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        again, times = graph.replay, 100
    for _ in range(times):
        out.fill_(torch.nan)
        again()
        assert torch.equal(out, first)
