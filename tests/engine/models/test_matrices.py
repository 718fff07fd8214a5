"""Quantised matrices: their layout read number by number, how matrices are quantised, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.config import ModelRefused
from engine.models.matrices import (
    BLOCK_NUMBERS,
    CLIP_FACTORS,
    Element,
    MatrixFormat,
    QuantizedMatrix,
    check_matrix,
    dequantize_matrix,
    has_fp8_nan,
    quantize_matrix,
)
from support.engine.published_formats import fp8_number

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ELEMENTS: tuple[tuple[Element, int | None], ...] = (
    ("fp8", None),
    ("fp8", 64),
    ("int8", None),
    ("int8", 32),
    ("int4", 32),
    ("int4", None),
)
FORMATS = [MatrixFormat(element, group, dtype) for element, group in ELEMENTS for dtype in (F32, F16, BF16)]


def by_hand(matrix: QuantizedMatrix, format: MatrixFormat, columns: int) -> torch.Tensor:
    """The definition, a number at a time, rounded to float32 once."""
    rows = []
    for n in range(len(matrix.data)):
        row = []
        for k in range(columns):
            group = 0 if format.group is None else k // format.group
            byte = int(matrix.data[n, k // 2 if format.element == "int4" else k])
            zero = 8 if matrix.zeros is None else int(matrix.zeros[n, group])
            number = {
                "fp8": lambda byte=byte: fp8_number(byte),
                "int8": lambda byte=byte: byte - 256 if byte > 127 else byte,
                "int4": lambda byte=byte, k=k, zero=zero: (byte >> 4 if k % 2 else byte & 15) - zero,
            }[format.element]()
            row.append(number * float(matrix.scales[n, group]))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).float()


def random_matrix(format: MatrixFormat, rows: int, columns: int) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(rows * columns)
    data = torch.randint(0, 256, (rows, format.row_bytes(columns)), generator=generator, dtype=torch.uint8)
    if format.element == "fp8":
        data[data & 0x7F == 0x7F] = 0x7E
    shape = (rows, format.groups(columns))
    scales = (torch.rand(shape, generator=generator) + 0.01).to(format.scale_dtype)
    zeros = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8) if format.has_zeros else None
    return QuantizedMatrix(data, scales, zeros)


@pytest.mark.parametrize("columns", [64, 96, 130])
@pytest.mark.parametrize(
    "format", [*FORMATS, MatrixFormat("int4", 64, F16, True), MatrixFormat("int4", None, F32, True)]
)
def test_dequantised_numbers_are_the_definitions(format: MatrixFormat, columns: int) -> None:
    matrix = random_matrix(format, 5, columns)
    check_matrix("m", matrix, format)
    found = dequantize_matrix(matrix, format, columns)
    assert found.dtype == F32
    assert torch.equal(found, by_hand(matrix, format, columns))


def test_every_bit_pattern_of_fp8_has_its_number() -> None:
    bits = [value for value in range(256) if value & 0x7F != 0x7F]
    matrix = QuantizedMatrix(torch.tensor([bits], dtype=torch.uint8), torch.ones(1, 1), None)
    found = dequantize_matrix(matrix, MatrixFormat("fp8", None, F32), len(bits))
    assert found[0].tolist() == [fp8_number(value) for value in bits]


# ---- quantising

STEPS: dict[Element, float] = {"int8": 127.0, "int4": 7.0}


@pytest.mark.parametrize("columns", [64, 160, 190])
@pytest.mark.parametrize("format", FORMATS)
def test_a_quantised_number_is_the_nearest_that_its_scale_has(format: MatrixFormat, columns: int) -> None:
    weight = torch.randn(33, columns, generator=torch.Generator().manual_seed(1)) * 0.05
    matrix = quantize_matrix(weight, format)
    check_matrix("m", matrix, format)
    assert (matrix.scales.dtype, matrix.zeros) == (format.scale_dtype, None)
    assert matrix.scales.shape == (33, format.groups(columns))
    found = dequantize_matrix(matrix, format, columns)
    wide = format.group or columns
    scales = matrix.scales.float().repeat_interleave(wide, 1)[:, :columns]
    error = (found - weight).abs()
    if format.element == "fp8":  # half of a step of the number's own exponent, or of the subnormals'
        steps = torch.maximum(weight.abs() * 2.0**-4, scales * 2.0**-10)
        clipped = weight.abs() > scales * 448
    else:
        steps = scales / 2
        clipped = (
            (weight.abs() > scales * STEPS[format.element])
            if format.element == "int8"
            else ((weight > scales * 7) | (weight < scales * -8))
        )
    assert bool((error[~clipped] <= steps[~clipped] * 1.0001).all())
    relative = float((found - weight).norm() / weight.norm())
    assert relative < {"fp8": 0.03, "int8": 0.02, "int4": 0.16}[format.element]


@pytest.mark.parametrize("format", FORMATS)
def test_scales_are_those_of_the_largest_magnitude(format: MatrixFormat) -> None:
    weight = torch.randn(7, 128, generator=torch.Generator().manual_seed(2))
    matrix = quantize_matrix(weight, format)
    largest = weight.view(7, -1, format.group or 128).abs().amax(-1)
    divisor = {"fp8": 448.0, "int8": 127.0, "int4": 7.0}[format.element]
    if format.element != "int4":
        assert torch.equal(matrix.scales, (largest / divisor).to(format.scale_dtype))
        return
    tried = torch.stack([(largest * factor / divisor).to(format.scale_dtype) for factor in CLIP_FACTORS])
    assert (tried == matrix.scales).any(0).all()
    assert (matrix.scales < tried[0]).any(), "no group was clipped: the search does nothing"


def test_the_search_of_int4_finds_the_least_squared_error() -> None:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(3), dtype=F32)
    format = MatrixFormat("int4", 32, F32)
    found = dequantize_matrix(quantize_matrix(weight, format), format, 64)
    for n in range(4):
        for start in (0, 32):
            group = weight[n, start : start + 32].tolist()
            largest = max(map(abs, group))
            errors = []
            for factor in CLIP_FACTORS:
                scale = float(torch.tensor(largest) * factor / 7.0)
                errors.append(sum((max(-8, min(7, round(x / scale))) * scale - x) ** 2 for x in group))
            error = float(
                (found[n, start : start + 32].double() - weight[n, start : start + 32].double()).square().sum()
            )
            assert error == pytest.approx(min(errors), rel=1e-4)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.float64])
@pytest.mark.parametrize("format", FORMATS)
def test_a_range_of_rows_is_quantised_as_in_the_whole(format: MatrixFormat, dtype: torch.dtype) -> None:
    weight = torch.randn(41, 96, generator=torch.Generator().manual_seed(4)).to(dtype)
    whole = quantize_matrix(weight, format)
    for start, stop in ((0, 1), (5, 6), (3, 40), (40, 41)):
        rows = quantize_matrix(weight[start:stop], format)
        assert torch.equal(rows.data, whole.data[start:stop])
        assert torch.equal(rows.scales, whole.scales[start:stop])


@pytest.mark.parametrize("element", ["fp8", "int8", "int4"])
def test_matrices_of_several_blocks(element: Element) -> None:
    columns = 1 << 20
    format = MatrixFormat(element, 128 if element == "int4" else None, F32)
    weight = torch.randn(1, columns, generator=torch.Generator().manual_seed(5)).expand(6, -1) * torch.ones(6, 1)
    assert weight.numel() > BLOCK_NUMBERS
    matrix = quantize_matrix(weight, format)
    assert torch.equal(matrix.data, matrix.data[:1].expand(6, -1))
    assert torch.equal(matrix.scales, matrix.scales[:1].expand(6, -1))


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_tiny_and_large_numbers(format: MatrixFormat) -> None:
    weight = torch.zeros(4, 64)
    weight[1] = 1e-7
    weight[2] = -3e4
    weight[3, 5] = 448.0
    matrix = quantize_matrix(weight, format)
    check_matrix("m", matrix, format)
    assert bool((matrix.scales[0] == 1).all())
    assert bool((matrix.scales > 0).all())
    found = dequantize_matrix(matrix, format, 64)
    assert not found[0].any()
    assert torch.allclose(found[2], weight[2], rtol=0.05)
    assert torch.allclose(found[3], weight[3], rtol=0.05)
    assert float((found[1] - weight[1]).abs().max()) <= 1e-7


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("format", FORMATS)
def test_numbers_that_are_not_finite_are_not_quantised(format: MatrixFormat, wrong: float) -> None:
    weight = torch.ones(40, 64)
    weight[39, 63] = wrong
    with pytest.raises(ModelRefused, match="layer: it has numbers that are not finite"):
        quantize_matrix(weight, format, "layer")


def test_scales_that_are_too_large_are_refused() -> None:
    with pytest.raises(ModelRefused, match=r"layer: a scale is too large for torch\.float16"):
        quantize_matrix(torch.full((1, 32), 1e30), MatrixFormat("fp8", None, F16), "layer")
    with pytest.raises(ModelRefused, match="not finite"):
        quantize_matrix(torch.full((1, 32), 1e300, dtype=torch.float64), MatrixFormat("fp8", None, F32))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    rows=st.integers(1, 9),
    columns=st.integers(1, 40).map(lambda half: 2 * half),
    format=st.sampled_from(FORMATS),
    size=st.floats(1e-6, 1e3),
)
def test_random_shapes_survive_a_second_quantisation(
    seed: int, rows: int, columns: int, format: MatrixFormat, size: float
) -> None:
    """int8 and fp8 numbers in float32 scales are quantised to themselves."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size
    matrix = quantize_matrix(weight, format)
    found = dequantize_matrix(matrix, format, columns)
    assert torch.equal(found, by_hand(matrix, format, columns))
    if format.element != "int4" and format.scale_dtype == F32:
        again = dequantize_matrix(quantize_matrix(found, format), format, columns)
        assert torch.allclose(again, found, rtol=1e-6, atol=0)


# ---- what is refused


@pytest.mark.parametrize(
    ("element", "group", "dtype", "zeros", "why"),
    [
        ("int4", 48, F32, False, "group: 48"),
        ("int4", -32, F32, False, "group: -32"),
        ("int4", 0, F32, False, "group: 0"),
        ("int8", None, torch.float64, False, r"scales of torch\.float64"),
        ("int8", None, F32, True, "int8: zeros"),
    ],
)
def test_formats_outside_the_layout(
    element: Element, group: int | None, dtype: torch.dtype, zeros: bool, why: str
) -> None:
    with pytest.raises(ModelRefused, match=why):
        MatrixFormat(element, group, dtype, zeros)


def test_shapes_of_the_parts() -> None:
    format = MatrixFormat("int4", 64, F16, has_zeros=True)
    assert [format.part_shape(part, 3, 160) for part in ("data", "scales", "zeros")] == [(3, 80), (3, 3), (3, 3)]
    assert MatrixFormat("fp8", None, F32).part_shape("scales", 3, 160) == (3, 1)
    with pytest.raises(ModelRefused, match="a row of 33 numbers"):
        format.row_bytes(33)
    with pytest.raises(ModelRefused, match="without zeros"):
        quantize_matrix(torch.ones(2, 64), format)


@pytest.mark.parametrize("format", [*FORMATS, MatrixFormat("int4", 32, F16, True)])
def test_scales_that_are_not_valid(format: MatrixFormat) -> None:
    for wrong in (math.nan, math.inf, -math.inf, -1.0):
        matrix = random_matrix(format, 4, 64)
        matrix.scales[3, -1] = wrong
        with pytest.raises(ModelRefused, match=rf"^q: the scale {wrong} \(row 3, group {matrix.scales.shape[1] - 1}\)"):
            check_matrix("q", matrix, format)
    matrix = random_matrix(format, 4, 64)
    matrix.scales[0] = 0.0  # a group of zeros
    check_matrix("q", matrix, format)


def test_numbers_and_zeros_that_are_not_valid() -> None:
    format = MatrixFormat("fp8", None, F32)
    for byte in (0x7F, 0xFF):
        matrix = random_matrix(format, 4, 64)
        matrix.data[3, 63] = byte
        with pytest.raises(ModelRefused, match=r"^q: it has numbers that are NaN"):
            check_matrix("q", matrix, format)
    format = MatrixFormat("int4", 32, F32, has_zeros=True)
    matrix = random_matrix(format, 4, 64)
    assert matrix.zeros is not None
    matrix.zeros[2, 1] = 16
    with pytest.raises(ModelRefused, match=r"^q: a zero is above 15"):
        check_matrix("q", matrix, format)


def test_a_nan_is_found_anywhere() -> None:
    data = torch.tensor([[bits for bits in range(256) if bits & 0x7F != 0x7F]] * 9, dtype=torch.uint8)
    assert not has_fp8_nan(data)
    for row, column in ((0, 0), (4, 77), (8, 253)):
        for byte in (0x7F, 0xFF):
            whole = data.clone()
            whole[row, column] = byte
            assert has_fp8_nan(whole)
    assert not has_fp8_nan(data[:0])
