"""Multiplication by a weight matrix on a GPU, for each format of the matrix.

A product is launched alike eagerly and in a captured graph: which kernel runs depends on the number of rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.models.config import ModelRefused
from engine.models.matrices import MatrixFormat, QuantizedMatrix
from engine.models.slab import SlabLayout
from kernels.dequantize import dequantize
from kernels.norm import OutputScales
from kernels.quantize import QuantizedRows
from kernels.quantized_product import ProductScratch, allocate_product_scratch, quantized_product

# Largest number of rows that our own kernel multiplies, which reads a quantised matrix once. In larger steps cuBLAS or
# CUTLASS (torch._scaled_mm) multiplies fp8 rows, and matrices of other formats are dequantised first (docs/LOG.md).
FP8_FEW_ROWS = 16
FEW_ROWS = 64
# Rows and columns of torch._scaled_mm are multiples of this.
SCALED_MULTIPLE = 16
# Compute capability from which a GPU converts and multiplies fp8.
FP8_CAPABILITY = (8, 9)
META = torch.device("meta")
# Of each kernel for few rows: the most rows that it takes.
FEW_ROWS_KERNELS = (16, 32, 64)
# Kernels are compiled for numbers that are 1, a multiple of this, and others.
SPECIALIZED_MULTIPLE = 16


class ProductMemory(NamedTuple):
    """Memory of a model's quantised products, which one launch after another uses.

    `dequantized` [elements]: the largest matrix that is dequantised. `scratch`: of products of few rows."""

    dequantized: Tensor
    scratch: ProductScratch


class GpuProduct(Protocol):
    """y = x · Wᵀ (+ b)."""

    reads_fp8: bool
    """Whether the rows are read in fp8."""

    outs: int
    """Outputs of a row."""

    variant: Hashable
    """Equal in products that launch the same compiled kernels; None: no kernel of ours."""

    def __call__(self, x: Tensor, quantized: QuantizedRows | None, out: Tensor, memory: ProductMemory) -> None:
        """Write y [rows, out] into `out`. `x` [rows, in]; `quantized`: the same rows in fp8, for `reads_fp8`."""
        ...

    def warm_up_product(self, dtype: torch.dtype, rows_max: int, memory: ProductMemory) -> None:
        """Launch every kernel that products of up to `rows_max` rows use. `memory` has the scratch of such steps;
        nothing is dequantised into it."""
        ...


class PlainProduct:
    """W in the model's dtype."""

    reads_fp8 = False
    variant: Hashable = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight` [out, in]."""
        self.outs = weight.shape[0]
        self._transposed = weight.t()
        self._bias = bias

    def __call__(self, x: Tensor, quantized: QuantizedRows | None, out: Tensor, memory: ProductMemory) -> None:
        _multiply(x, self._transposed, self._bias, out)

    def warm_up_product(self, dtype: torch.dtype, rows_max: int, memory: ProductMemory) -> None:
        """No kernel of this project multiplies."""


class Fp8Product:
    """W and x in fp8, with a scale a row each: the tensor cores multiply fp8."""

    reads_fp8 = True

    def __init__(self, matrix: QuantizedMatrix, bias: Tensor | None) -> None:
        self._matrix = matrix
        self._transposed = matrix.data.view(torch.float8_e4m3fn).t()
        self._column_scales = matrix.scales.view(1, -1)
        self._one = torch.ones((), dtype=torch.float32, device=matrix.data.device)
        self._bias = bias
        self.outs = matrix.data.shape[0]
        self.variant: Hashable = (Fp8Product, *_shapes(matrix))

    def __call__(self, x: Tensor, quantized: QuantizedRows | None, out: Tensor, memory: ProductMemory) -> None:
        assert quantized is not None
        if x.shape[0] <= FP8_FEW_ROWS:
            data, scales, _ = self._matrix
            quantized_product(quantized, data, scales, None, out, memory.scratch, element="fp8", group=x.shape[1])
            if self._bias is not None:
                out.add_(self._bias)
            return
        torch._scaled_mm(
            quantized.numbers,
            self._transposed,
            scale_a=quantized.scales[:, None],
            scale_b=self._column_scales,
            bias=self._bias,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )

    def multiply_unscaled(self, quantized: QuantizedRows, out: Tensor) -> OutputScales | None:
        """Write y without its scales into `out` [rows, out] bfloat16, and return them: cuBLAS splits such a product
        over the inner size, which is a third faster for 256 rows and few outputs (docs/LOG.md). None, with nothing
        written, where that does not serve: few rows, a bias, or a dtype without the range of such sums."""
        rows = quantized.numbers.shape[0]
        if rows <= FP8_FEW_ROWS or self._bias is not None or out.dtype != torch.bfloat16:
            return None
        torch._scaled_mm(
            quantized.numbers,
            self._transposed,
            scale_a=self._one,
            scale_b=self._one,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )
        return OutputScales(quantized.scales, self._column_scales.view(-1))

    def warm_up_product(self, dtype: torch.dtype, rows_max: int, memory: ProductMemory) -> None:
        ins, device = self._matrix.data.shape[1], self._matrix.data.device
        for rows in _few_rows(min(rows_max, FP8_FEW_ROWS)):
            numbers = torch.zeros(rows, ins, dtype=torch.float8_e4m3fn, device=device)
            quantized = QuantizedRows(numbers, torch.zeros(rows, dtype=torch.float32, device=device))
            x, out = (torch.zeros(rows, width, dtype=dtype, device=device) for width in (ins, self.outs))
            self(x, quantized, out, memory)


class DequantizedProduct:
    """W in any format, x in the model's dtype: the numbers of W are converted, in registers for few rows."""

    reads_fp8 = False

    def __init__(self, matrix: QuantizedMatrix, format: MatrixFormat, bias: Tensor | None) -> None:
        self._matrix = matrix
        self._format = format
        self._bias = bias
        self.outs = matrix.data.shape[0]
        self.variant: Hashable = (DequantizedProduct, format, *_shapes(matrix))

    def __call__(self, x: Tensor, quantized: QuantizedRows | None, out: Tensor, memory: ProductMemory) -> None:
        (data, scales, zeros), columns = self._matrix, x.shape[1]
        element, group = self._format.element, self._format.group or columns
        if x.shape[0] <= FEW_ROWS:
            quantized_product(x, data, scales, zeros, out, memory.scratch, element=element, group=group)
            if self._bias is not None:
                out.add_(self._bias)
            return
        weight = memory.dequantized[: data.shape[0] * columns].view(data.shape[0], columns)
        dequantize(data, scales, zeros, weight, element=element, group=group)
        _multiply(x, weight.t(), self._bias, out)

    def warm_up_product(self, dtype: torch.dtype, rows_max: int, memory: ProductMemory) -> None:
        (data, scales, zeros), format = self._matrix, self._format
        columns = data.shape[1] * (2 if format.element == "int4" else 1)
        for rows in _few_rows(min(rows_max, FEW_ROWS)):
            x = torch.zeros(rows, columns, dtype=dtype, device=data.device)
            self(x, None, torch.empty(rows, self.outs, dtype=dtype, device=data.device), memory)
        if rows_max > FEW_ROWS:
            # A few rows of W, for which the same kernel is compiled: the whole matrix may not fit beside the arena.
            few = min(self.outs, SPECIALIZED_MULTIPLE + self.outs % SPECIALIZED_MULTIPLE)
            weight = torch.empty(few, columns, dtype=dtype, device=data.device)
            first = QuantizedMatrix(data[:few], scales[:few], None if zeros is None else zeros[:few])
            dequantize(*first, weight, element=format.element, group=format.group or columns)


def make_product(matrix: Tensor | QuantizedMatrix, format: MatrixFormat | None, bias: Tensor | None) -> GpuProduct:
    """The product for a matrix of the slab (`slab.slab_weights`)."""
    if isinstance(matrix, Tensor):
        return PlainProduct(matrix, bias)
    assert format is not None
    rows, row_bytes = matrix.data.shape  # for fp8, a byte is a column
    if multiplies_fp8(format, rows, row_bytes):
        return Fp8Product(matrix, bias)
    return DequantizedProduct(matrix, format, bias)


def multiplies_fp8(format: MatrixFormat, outs: int, columns: int) -> bool:
    """Whether a matrix [outs, columns] of this format is multiplied in fp8."""
    aligned = outs % SCALED_MULTIPLE == 0 and columns % SCALED_MULTIPLE == 0
    return format.element == "fp8" and format.group is None and format.scale_dtype == torch.float32 and aligned


def product_form(layout: SlabLayout, dtype: torch.dtype, rows_max: int) -> ProductMemory:
    """The memory that products of a model of this layout need, as tensors without storage; nothing for a model that is
    not quantised."""
    shapes = [layout.parts[name].fused.shape for name in layout.formats]
    dequantized = [
        math.prod(layout.parts[name].fused.shape)
        for name, format in layout.formats.items()
        if rows_max > FEW_ROWS and not multiplies_fp8(format, *layout.parts[name].fused.shape)
    ]
    scratch = (
        allocate_product_scratch(_scratch_rows(rows_max), max(shape[0] for shape in shapes), META)
        if shapes
        else ProductScratch(*(torch.empty(0, dtype=kind, device=META) for kind in (torch.int32, torch.float32)))
    )
    return ProductMemory(torch.empty(max(dequantized, default=0), dtype=dtype, device=META), scratch)


def warm_up_products(products: Iterable[GpuProduct], dtype: torch.dtype, device: torch.device, rows_max: int) -> None:
    """Compile every kernel that these products, all of one model, use in steps of up to `rows_max` rows, in memory that
    is freed afterwards."""
    different = {product.variant: product for product in products if product.variant is not None}
    if not different:
        return
    outs_max = max(product.outs for product in different.values())
    scratch = allocate_product_scratch(_scratch_rows(rows_max), outs_max, device)
    memory = ProductMemory(torch.empty(0, dtype=dtype, device=device), scratch)
    for product in different.values():
        product.warm_up_product(dtype, rows_max, memory)


def reads_fp8(layout: SlabLayout) -> bool:
    """Whether any product of a model of this layout reads its rows in fp8."""
    return any(multiplies_fp8(format, *layout.parts[name].fused.shape) for name, format in layout.formats.items())


def check_products(layout: SlabLayout, device: torch.device) -> None:
    """Raises ModelRefused for fp8 weights on a GPU without fp8."""
    if any(format.element == "fp8" for format in layout.formats.values()):
        check_fp8("fp8 weights need", torch.cuda.get_device_capability(device))


def check_fp8(subject: str, capability: tuple[int, int]) -> None:
    """Raises ModelRefused, beginning with `subject`, for a GPU whose compute capability has no fp8."""
    if capability < FP8_CAPABILITY:
        needed, found = (".".join(map(str, version)) for version in (FP8_CAPABILITY, capability))
        raise ModelRefused(f"{subject} a GPU of compute capability {needed} or newer; this one has {found}")


def _scratch_rows(rows_max: int) -> int:
    """Rows of the largest product of few rows."""
    return min(rows_max, max(FP8_FEW_ROWS, FEW_ROWS))


def _few_rows(rows_max: int) -> list[int]:
    """A number of rows for each kernel that products of up to `rows_max` rows use."""
    return sorted({min(rows, rows_max) for rows in FEW_ROWS_KERNELS})


def _shapes(matrix: QuantizedMatrix) -> tuple[Hashable, ...]:
    return tuple((part.shape, part.stride(), part.dtype) for part in matrix if part is not None)


def _multiply(x: Tensor, transposed: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, transposed, out=out)
    else:
        torch.addmm(bias, x, transposed, out=out)
