"""A weights slab: the offset of each tensor in it, and the stretch of a file that fills each part.

Computed from the files' headers, which checks names and shapes; no weight is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles
from engine.models.weights import Weights, assemble, fused_tensors, is_tied

# Every tensor begins at a multiple of this, which GPU products read fastest.
ALIGN_BYTES = 256


@dataclass(frozen=True, slots=True)
class SlabPart:
    """One tensor of the slab. `stacked`: as in `weights.Fused`."""

    offset: int
    shape: tuple[int, ...]
    stacked: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """The slab of one model in one dtype. A tied lm_head is the embedding and has no part of its own."""

    dtype: torch.dtype
    parts: dict[str, SlabPart]
    bytes: int

    def view(self, slab: Tensor, name: str) -> Tensor:
        part = self.parts[name]
        size = math.prod(part.shape) * self.dtype.itemsize
        return slab[part.offset : part.offset + size].view(self.dtype).view(part.shape)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` numbers that are contiguous in a file, from byte `start`, and in the slab, from byte `offset`."""

    offset: int
    count: int
    file: Path
    start: int
    dtype: torch.dtype


def slab_layout(config: DecoderConfig, dtype: torch.dtype, *, tied: bool) -> SlabLayout:
    parts: dict[str, SlabPart] = {}
    position = 0
    for name, shape, stacked in fused_tensors(config, tied=tied):
        parts[name] = SlabPart(position, shape, stacked)
        size = math.prod(shape) * dtype.itemsize
        position += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return SlabLayout(dtype, parts, position)


def slab_weights(slab: Tensor, layout: SlabLayout, config: DecoderConfig) -> Weights:
    """The tensors as views of `slab` uint8 [bytes], whatever its contents. On a CPU, `Linear` makes copies."""
    return assemble(config, lambda name: layout.view(slab, name), tied="lm_head" not in layout.parts)


def slab_stretches(
    files: WeightFiles, config: DecoderConfig, dtype: torch.dtype
) -> tuple[SlabLayout, tuple[Stretch, ...]]:
    """The slab's layout, and the stretches of a directory's files that fill it, in slab order. Raises ModelRefused
    naming the tensor."""
    layout = slab_layout(config, dtype, tied=is_tied(config, files))
    stretches = []
    for part in layout.parts.values():
        offset = part.offset
        for name, rows in part.stacked:
            stored = files.find(name, (rows, *part.shape[1:]))
            count = math.prod(stored.shape)
            stretches.append(Stretch(offset, count, stored.file, stored.start, stored.dtype))
            offset += count * dtype.itemsize
    return layout, tuple(stretches)
