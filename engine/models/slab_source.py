"""The source of a model's slab, read a stretch at a time: its files, or random numbers in its shape.

Several threads may read from either at once. It must never know where the slab is.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.models.checkpoints import load_quantization
from engine.models.config import DecoderConfig
from engine.models.dummy import STD, dummy_vector
from engine.models.files import StampedFiles, WeightFiles, read_numbers
from engine.models.matrix_readers import StackedMatrix
from engine.models.quantized import format_name, formats_on_loading, quantized_matrices
from engine.models.slab import SlabLayout, SlabPart, Stretch, slab_layout, slab_stretches

# Clears the first bit of the exponent of fp8 bytes: none of them is a NaN, and the largest number is 1.875.
FP8_FINITE = 0xBF
# Standard deviations of uniformly random bytes: fp8 ones under FP8_FINITE, and the others.
DRAWN_STD = {"fp8": 0.60, "int8": 73.9, "int4": 4.6}


class SlabSource(Protocol):
    layout: SlabLayout
    weights_format: str
    """For people: `bfloat16`, `fp8`, `int4 g128 (awq)`."""

    def fill(self, start: int, target: Tensor) -> None:
        """Write bytes start ≤ i < start + len(target) of the slab into `target` uint8, on the host. Both ends are
        multiples of the alignment. Raises OSError, and ModelRefused for numbers that are not valid."""
        ...


class FileSource:
    """The safetensors of a directory. Numbers of another dtype are converted; matrices that are published quantised
    keep their numbers, and others are quantised as `quantize` says."""

    def __init__(
        self,
        directory: Path,
        config: DecoderConfig,
        dtype: torch.dtype,
        quantize: str = "none",
        kept: Collection[int] = (),
    ) -> None:
        """`kept`: layers that are not quantised on loading. Reads the headers only. Raises ModelRefused, OSError."""
        checkpoint = load_quantization(directory)
        with WeightFiles(directory) as files:
            self._matrices = quantized_matrices(config, files, checkpoint, quantize, kept)
            self.layout, stretches = slab_stretches(files, config, dtype, self._matrices)
            self._stamps = files.stamps()
        self.weights_format = format_name(self._matrices, checkpoint, str(dtype).removeprefix("torch."))
        quantized = [part for part in self.layout.parts.values() if part.part is not None]
        self._pieces: list[Stretch | SlabPart] = sorted([*stretches, *quantized], key=lambda piece: piece.offset)
        self._offsets = [piece.offset for piece in self._pieces]

    @property
    def matrices(self) -> dict[str, StackedMatrix]:
        """The quantised matrices, by the name of the fused tensor."""
        return self._matrices

    def open_files(self) -> StampedFiles:
        """The files, refused if they changed since the model was registered."""
        return StampedFiles(self._stamps)

    def fill(self, start: int, target: Tensor) -> None:
        stop = start + int(target.shape[0])
        first = max(0, bisect.bisect_right(self._offsets, start) - 1)
        with self.open_files() as files:
            for piece in self._pieces[first:]:
                if piece.offset >= stop:
                    break
                size = piece.nbytes if isinstance(piece, SlabPart) else piece.count * self.layout.dtype.itemsize
                begin, end = max(start, piece.offset), min(stop, piece.offset + size)
                if begin >= end:
                    continue
                into = target[begin - start : end - start]
                if isinstance(piece, SlabPart):
                    assert piece.part is not None
                    self._matrices[piece.fused.name].fill_part(files, piece.part, begin - piece.offset, into)
                else:
                    numbers = into.view(self.layout.dtype)
                    at = piece.start + (begin - piece.offset) // self.layout.dtype.itemsize * piece.dtype.itemsize
                    read_numbers(files.descriptor(piece.file), piece.file, at, piece.dtype, numbers)


class DummySource:
    """Random weights for benchmarks: matrices normal, norms 1, biases 0, as in `dummy.dummy_weights`; quantised
    matrices have random numbers and equal scales. The same for one seed and the same calls of `fill`."""

    def __init__(
        self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, seed: int = 0, quantize: str = "none"
    ) -> None:
        """Numbers are drawn on `device`: a GPU takes a second for a large model, a CPU minutes."""
        formats = formats_on_loading(config, quantize)
        self.layout = slab_layout(config, dtype, tied=bool(config.tied), formats=formats)
        self.weights_format = str(dtype).removeprefix("torch.") if quantize == "none" else quantize
        self._device = device
        self._seed = seed
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fill(self, start: int, target: Tensor) -> None:
        stop = start + int(target.shape[0])
        with torch.cuda.stream(self._stream):  # without a stream the context does nothing
            generator = torch.Generator(self._device).manual_seed(self._seed * 1_000_003 + start)
            for part in self.layout.parts.values():
                begin, end = max(start, part.offset), min(stop, part.offset + part.nbytes)
                if begin < end:
                    self._draw(part, target[begin - start : end - start], generator)

    def _draw(self, part: SlabPart, target: Tensor, generator: torch.Generator) -> None:
        numbers = target.view(part.dtype)
        if len(part.shape) == 1:
            numbers.fill_(dummy_vector(part.fused.name))
        elif part.part is None:
            drawn = torch.empty(numbers.shape, dtype=numbers.dtype, device=self._device)
            numbers.copy_(drawn.normal_(0, STD, generator=generator))
        elif part.part == "scales":
            numbers.fill_(STD / DRAWN_STD[self.layout.formats[part.fused.name].element])
        else:
            drawn = torch.empty(numbers.shape, dtype=torch.uint8, device=self._device)
            drawn.random_(0, 256, generator=generator)
            if self.layout.formats[part.fused.name].element == "fp8":
                drawn.bitwise_and_(FP8_FINITE)
            numbers.copy_(drawn)
