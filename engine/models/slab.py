"""A weights slab: the offset of each tensor in it, and what fills each part.

Computed from the files' headers, which checks names and shapes; no weight is read. A quantised matrix is two or three
parts: its numbers, its scales and its zeros.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles
from engine.models.matrices import MatrixFormat, Part, QuantizedMatrix
from engine.models.matrix_readers import StackedMatrix
from engine.models.weights import Fused, Product, Weights, assemble, fused_tensors, is_tied

# Every tensor begins at a multiple of this, which GPU products read fastest.
ALIGN_BYTES = 256


@dataclass(frozen=True, slots=True)
class SlabPart:
    """One tensor of the slab. `fused`: the tensor of the decoder to which it belongs. `part`: which tensor of a
    quantised matrix it is; None for a tensor that is not quantised."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    fused: Fused
    part: Part | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """The slab of one model, whose vectors and unquantised matrices have one dtype. A tied lm_head is the embedding and
    has no separate part. `formats`: of the quantised matrices, by the name of the fused tensor."""

    dtype: torch.dtype
    parts: dict[str, SlabPart]
    bytes: int
    formats: Mapping[str, MatrixFormat]

    def view(self, slab: Tensor, name: str) -> Tensor:
        """A part as a view of `slab`. `part_name` gives the names of a quantised matrix's parts."""
        part = self.parts[name]
        return slab[part.offset : part.offset + part.nbytes].view(part.dtype).view(part.shape)

    def view_matrix(self, slab: Tensor, name: str) -> QuantizedMatrix:
        """A quantised matrix as views of `slab`."""
        zeros = self.view(slab, part_name(name, "zeros")) if self.formats[name].has_zeros else None
        return QuantizedMatrix(
            self.view(slab, part_name(name, "data")), self.view(slab, part_name(name, "scales")), zeros
        )

    def section(self, prefix: str) -> tuple[int, SlabLayout]:
        """The consecutive parts whose names have this prefix, as a separate layout; and the offset at which it
        begins."""
        own = {name: part for name, part in self.parts.items() if name.startswith(prefix)}
        start = min(part.offset for part in own.values())
        last = max(own.values(), key=lambda part: part.offset)
        size = last.offset - start + -(-last.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        moved = {name: dataclasses.replace(part, offset=part.offset - start) for name, part in own.items()}
        return start, SlabLayout(self.dtype, moved, size, self.formats)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` numbers that are contiguous in a file, from byte `start`, and in the slab, from byte `offset`."""

    offset: int
    count: int
    file: Path
    start: int
    dtype: torch.dtype


def part_name(fused: str, part: Part) -> str:
    return fused if part == "data" else f"{fused}.{part}"


def slab_layout(
    config: DecoderConfig, dtype: torch.dtype, *, tied: bool, formats: Mapping[str, MatrixFormat] | None = None
) -> SlabLayout:
    """`formats`: of the matrices that are quantised, by the name of the fused tensor."""
    formats = formats or {}
    parts: dict[str, SlabPart] = {}
    position = 0

    def add_part(name: str, shape: tuple[int, ...], kind: torch.dtype, fused: Fused, part: Part | None) -> None:
        nonlocal position
        parts[name] = added = SlabPart(position, shape, kind, fused, part)
        position += -(-added.nbytes // ALIGN_BYTES) * ALIGN_BYTES

    for fused in fused_tensors(config, tied=tied):
        if fused.name not in formats:
            add_part(fused.name, fused.shape, dtype, fused, None)
            continue
        format, (rows, columns) = formats[fused.name], fused.shape
        for part in format.parts:
            shape = format.part_shape(part, rows, columns)
            add_part(part_name(fused.name, part), shape, format.part_dtype(part), fused, part)
    return SlabLayout(dtype, parts, position, formats)


def slab_weights(
    slab: Tensor,
    layout: SlabLayout,
    config: DecoderConfig,
    product: Callable[[Tensor | QuantizedMatrix, MatrixFormat | None, Tensor | None], Product],
) -> Weights[Product]:
    """The tensors as views of `slab` uint8 [bytes], whatever its contents. `product(matrix, format, bias)` makes what
    multiplies by a matrix."""
    make = section_product(slab, layout, product)
    return assemble(config, lambda name: layout.view(slab, name), make, tied="lm_head" not in layout.parts)


def section_product(
    slab: Tensor,
    layout: SlabLayout,
    product: Callable[[Tensor | QuantizedMatrix, MatrixFormat | None, Tensor | None], Product],
) -> Callable[[str, Tensor | None], Product]:
    """`product` by the name of a matrix of the slab, or of a section of it."""

    def make(name: str, bias: Tensor | None) -> Product:
        if name in layout.formats:
            return product(layout.view_matrix(slab, name), layout.formats[name], bias)
        return product(layout.view(slab, name), None, bias)

    return make


def slab_stretches(
    files: WeightFiles, config: DecoderConfig, dtype: torch.dtype, matrices: Mapping[str, StackedMatrix]
) -> tuple[SlabLayout, tuple[Stretch, ...]]:
    """The slab's layout, and the stretches of a directory's files that fill its unquantised tensors, in slab order.
    Raises ModelRefused naming the tensor."""
    formats = {name: matrix.format for name, matrix in matrices.items()}
    layout = slab_layout(config, dtype, tied=is_tied(config, files), formats=formats)
    stretches = []
    for part in layout.parts.values():
        if part.part is not None:
            continue
        offset = part.offset
        for name, rows in part.fused.stacked:
            stored = files.find(name, (rows, *part.shape[1:]))
            count = math.prod(stored.shape)
            stretches.append(Stretch(offset, count, stored.file, stored.start, stored.dtype))
            offset += count * dtype.itemsize
    return layout, tuple(stretches)
