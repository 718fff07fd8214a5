"""A quantised matrix: its three tensors, their layout, and the arithmetic between them and floating-point numbers.

All published checkpoints (`engine.models.checkpoints`) are read into this layout, and models are quantised into it.
W[n, k] = (q[n, k] - zero[n, k // group]) · scale[n, k // group], computed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelRefused

Element = Literal["fp8", "int8", "int4"]
Part = Literal["data", "scales", "zeros"]
PARTS: tuple[Part, ...] = ("data", "scales", "zeros")

# The width of a group is a multiple of this, so that a tile of a kernel has few groups.
GROUP_MULTIPLE = 32
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8_MAX = 448.0  # of torch.float8_e4m3fn
FLOAT16_SMALLEST = 2.0**-24  # a subnormal: scales of small weights are
FP8_NAN = 0x7F  # with or without the sign bit
INT8_MAX = 127.0
# The nibble that is zero where a matrix has no zeros.
INT4_ZERO = 8
# Scales that `quantize_matrix` tries for a group of int4: parts of the scale that clips nothing.
CLIP_FACTORS = tuple(1.0 - 0.2 * index / 19 for index in range(20))
# Numbers that are quantised at once: temporary memory is a few times as large.
BLOCK_NUMBERS = 1 << 22


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """How a matrix [out, in] is stored. `group`: consecutive columns of a row that share a scale, None for one scale a
    row; the last group of a row may be shorter. `has_zeros`: int4 only; without, every zero is INT4_ZERO."""

    element: Element
    group: int | None
    scale_dtype: torch.dtype
    has_zeros: bool = False

    def __post_init__(self) -> None:
        if self.group is not None and (self.group < 1 or self.group % GROUP_MULTIPLE):
            raise ModelRefused(f"group: {self.group} is not a positive multiple of {GROUP_MULTIPLE}")
        if self.scale_dtype not in SCALE_DTYPES:
            raise ModelRefused(f"scales of {self.scale_dtype} are not supported")
        if self.has_zeros and self.element != "int4":
            raise ModelRefused(f"{self.element}: zeros are supported for int4 only")

    @property
    def parts(self) -> tuple[Part, ...]:
        """Which tensors a matrix of this format has."""
        return PARTS if self.has_zeros else PARTS[:2]

    def groups(self, in_features: int) -> int:
        """Scales of a row."""
        return 1 if self.group is None else -(-in_features // self.group)

    def row_bytes(self, in_features: int) -> int:
        """Bytes of a row of `data`. Raises ModelRefused for an odd number of int4 columns."""
        if self.element != "int4":
            return in_features
        if in_features % 2:
            raise ModelRefused(f"int4: a row of {in_features} numbers does not fill its bytes")
        return in_features // 2

    def part_shape(self, part: Part, rows: int, in_features: int) -> tuple[int, int]:
        """The shape of one of the three tensors, for `rows` rows."""
        return rows, self.row_bytes(in_features) if part == "data" else self.groups(in_features)

    def part_dtype(self, part: Part) -> torch.dtype:
        return self.scale_dtype if part == "scales" else torch.uint8


class QuantizedMatrix(NamedTuple):
    """Rows of a matrix. `data` uint8: for fp8 [rows, in], the bits of torch.float8_e4m3fn; for int8 [rows, in], two's
    complement; for int4 [rows, in / 2], column 2j in the low nibble of byte j and 2j + 1 in the high one. `scales`
    [rows, groups], of the format's dtype. `zeros` uint8 [rows, groups], 0 to 15, or None."""

    data: Tensor
    scales: Tensor
    zeros: Tensor | None


def dequantize_matrix(matrix: QuantizedMatrix, format: MatrixFormat, in_features: int) -> Tensor:
    """The numbers [rows, in] in float32, on the matrix's device."""
    scales = matrix.scales.float()
    if format.element == "fp8":
        numbers = matrix.data.view(torch.float8_e4m3fn).float()
    elif format.element == "int8":
        numbers = matrix.data.view(torch.int8).float()
    else:
        nibbles = torch.stack((matrix.data & 15, matrix.data >> 4), dim=-1).flatten(1).float()
        zeros = torch.full_like(scales, INT4_ZERO) if matrix.zeros is None else matrix.zeros.float()
        numbers = nibbles - _per_column(zeros, format, in_features)
    return numbers * _per_column(scales, format, in_features)


def _per_column(values: Tensor, format: MatrixFormat, in_features: int) -> Tensor:
    """[rows, groups] → [rows, in], or [rows, 1] that broadcasts."""
    return values if format.group is None else values.repeat_interleave(format.group, dim=1)[:, :in_features]


def quantize_matrix(weight: Tensor, format: MatrixFormat, name: str = "weight") -> QuantizedMatrix:
    """Quantise `weight` [rows, in], of any floating-point dtype, on its device. Each row is independent of the others:
    a range of rows gives that range of the whole, bit for bit.

    The scale of a group is its largest magnitude divided by 448 (fp8) or 127 (int8); for int4, whose zero is 8, by 7
    and times the factor of CLIP_FACTORS with the least squared error, as in AWQ's search of clipping thresholds
    (arXiv:2306.00978). A group of zeros has scale 1. The scale is rounded to its dtype before it is used. Raises
    ModelRefused, with `name`, for numbers or scales that are not finite."""
    if format.has_zeros:
        raise ModelRefused(f"{name}: a matrix is quantised symmetrically, without zeros")
    rows, in_features = weight.shape
    data_shape = format.part_shape("data", rows, in_features)
    data = torch.empty(data_shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty((rows, format.groups(in_features)), dtype=format.scale_dtype, device=weight.device)
    step = max(1, BLOCK_NUMBERS // in_features)
    for start in range(0, rows, step):
        block = weight[start : start + step].float()
        numbers, found = _quantize_block(_grouped(block, format), format, name)
        numbers = numbers.flatten(1)[:, :in_features]
        if format.element == "int4":
            data[start : start + step] = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
        else:
            data[start : start + step] = numbers
        scales[start : start + step] = found
    return QuantizedMatrix(data, scales, None)


def _grouped(block: Tensor, format: MatrixFormat) -> Tensor:
    """[rows, in] → [rows, groups, group], the last group filled with zeros."""
    rows, in_features = block.shape
    groups = format.groups(in_features)
    width = groups * (format.group or in_features)
    return torch.nn.functional.pad(block, (0, width - in_features)).view(rows, groups, -1)


def _quantize_block(numbers: Tensor, format: MatrixFormat, name: str) -> tuple[Tensor, Tensor]:
    """The bytes (for int4, the nibbles) uint8 of `numbers` [rows, groups, group], and the scales [rows, groups]."""
    largest = numbers.abs().amax(-1)
    if not torch.isfinite(largest).all():
        raise ModelRefused(f"{name}: it has numbers that are not finite")
    if format.element == "fp8":
        scales = _rounded_scales(largest, FP8_MAX, format, name)
        bits = (numbers / scales.float()[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return bits.view(torch.uint8), scales
    if format.element == "int8":
        scales = _rounded_scales(largest, INT8_MAX, format, name)
        whole = (numbers / scales.float()[..., None]).round_().clamp_(-INT8_MAX, INT8_MAX)
        return whole.to(torch.int8).view(torch.uint8), scales
    scales = _rounded_scales(largest, 7.0, format, name)
    best = _squared_error(numbers, scales)
    for factor in CLIP_FACTORS[1:]:
        tried = _rounded_scales(largest * factor, 7.0, format, name)
        error = _squared_error(numbers, tried)
        scales = torch.where(error < best, tried, scales)
        best = torch.minimum(error, best)
    return (_nibbles(numbers, scales) + INT4_ZERO).to(torch.uint8), scales


def _rounded_scales(largest: Tensor, divisor: float, format: MatrixFormat, name: str) -> Tensor:
    """`largest` / `divisor` in the format's dtype: never 0, and 1 for groups of zeros."""
    dtype = format.scale_dtype
    smallest = FLOAT16_SMALLEST if dtype == torch.float16 else torch.finfo(dtype).tiny
    scales = torch.where(largest > 0, (largest / divisor).clamp(min=smallest), 1.0).to(dtype)
    if not torch.isfinite(scales).all():
        raise ModelRefused(f"{name}: a scale is too large for {dtype}")
    return scales


def _nibbles(numbers: Tensor, scales: Tensor) -> Tensor:
    """Whole numbers from -8 to 7, in float32."""
    return (numbers / scales.float()[..., None]).round_().clamp_(-8, 7)


def _squared_error(numbers: Tensor, scales: Tensor) -> Tensor:
    """[rows, groups]. Summed in halves: `Tensor.sum` adds in an order that depends on the number of rows."""
    error = _nibbles(numbers, scales).mul_(scales.float()[..., None]).sub_(numbers).square_()
    while error.shape[-1] > 1:
        if error.shape[-1] % 2:
            error = torch.nn.functional.pad(error, (0, 1))
        half = error.shape[-1] // 2
        error = error[..., :half] + error[..., half:]
    return error[..., 0]


def check_matrix(name: str, matrix: QuantizedMatrix, format: MatrixFormat) -> None:
    """Raises ModelRefused, with `name`, for scales that are NaN, infinite or negative, for fp8 numbers that are NaN,
    and for zeros above 15. A scale of 0 is allowed: it makes a group of zeros, which float16 scales of nearly empty
    groups are rounded to in published checkpoints."""
    for part, tensor in zip(PARTS, matrix, strict=True):
        if tensor is not None:
            check_part(name, part, tensor, format)


def check_part(name: str, part: Part, tensor: Tensor, format: MatrixFormat) -> None:
    """`check_matrix` for one of its three tensors."""
    if part == "scales":
        wrong = ~(torch.isfinite(tensor) & (tensor >= 0))
        if wrong.any():
            row, group = (int(index) for index in wrong.nonzero()[0])
            raise ModelRefused(f"{name}: the scale {float(tensor[row, group])} (row {row}, group {group}) is not valid")
    elif part == "zeros":
        if (tensor > 15).any():
            raise ModelRefused(f"{name}: a zero is above 15")
    elif format.element == "fp8" and has_fp8_nan(tensor):
        raise ModelRefused(f"{name}: it has numbers that are NaN")


def has_fp8_nan(data: Tensor) -> bool:
    """Whether bytes of torch.float8_e4m3fn, uint8, have a NaN: the largest unsigned and the largest signed byte. Two
    such reductions take a tenth of the time of reading the bytes."""
    if not data.numel():
        return False
    return bool(data.max() == FP8_NAN | 0x80) or bool(data.view(torch.int8).max() == FP8_NAN)
