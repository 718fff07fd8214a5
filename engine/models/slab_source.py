"""What fills a model's slab, a stretch at a time: its files, or random numbers in its shape.

Several threads may read from either at once. It must never know where the slab is.
"""

from __future__ import annotations

import bisect
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.dummy import STD, dummy_vector
from engine.models.files import WeightFiles, read_numbers, stamp
from engine.models.slab import SlabLayout, slab_layout, slab_stretches


class SlabSource(Protocol):
    layout: SlabLayout

    def fill(self, start: int, target: Tensor) -> None:
        """Write bytes start ≤ i < start + len(target) of the slab into `target` uint8, on the host. Both ends are
        multiples of the alignment. Raises OSError."""
        ...


class FileSource:
    """The safetensors of a directory. Numbers of another dtype are converted."""

    def __init__(self, directory: Path, config: DecoderConfig, dtype: torch.dtype) -> None:
        """Reads the headers only. Raises ModelRefused, OSError."""
        with WeightFiles(directory) as files:
            self.layout, self._stretches = slab_stretches(files, config, dtype)
            self._stamps = files.stamps()
        self._offsets = [stretch.offset for stretch in self._stretches]

    def fill(self, start: int, target: Tensor) -> None:
        stop = start + int(target.shape[0])
        item = self.layout.dtype.itemsize
        first = max(0, bisect.bisect_right(self._offsets, start) - 1)
        with ExitStack() as files:
            opened: dict[Path, int] = {}
            for stretch in self._stretches[first:]:
                if stretch.offset >= stop:
                    break
                begin, end = max(start, stretch.offset), min(stop, stretch.offset + stretch.count * item)
                if begin >= end:
                    continue
                if stretch.file not in opened:
                    opened[stretch.file] = self._open(stretch.file, files)
                numbers = target[begin - start : end - start].view(self.layout.dtype)
                at = stretch.start + (begin - stretch.offset) // item * stretch.dtype.itemsize
                read_numbers(opened[stretch.file], stretch.file, at, stretch.dtype, numbers)

    def _open(self, path: Path, files: ExitStack) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        files.callback(os.close, descriptor)
        if stamp(os.fstat(descriptor)) != self._stamps[path]:
            raise OSError(f"{path} has changed since the model was registered")
        return descriptor


class DummySource:
    """Random weights for benchmarks: matrices normal, norms 1, biases 0, as in `dummy.dummy_weights`. The same for
    one seed and the same calls of `fill`."""

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        """Numbers are drawn on `device`: a GPU draws in a second what takes a CPU minutes."""
        self.layout = slab_layout(config, dtype, tied=bool(config.tied))
        self._device = device
        self._seed = seed
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def fill(self, start: int, target: Tensor) -> None:
        numbers = target.view(self.layout.dtype)
        with torch.cuda.stream(self._stream):  # of None it does nothing
            generator = torch.Generator(self._device).manual_seed(self._seed * 1_000_003 + start)
            drawn = torch.empty(numbers.shape, dtype=numbers.dtype, device=self._device)
            numbers.copy_(drawn.normal_(0, STD, generator=generator))
        stop, item = start + int(target.shape[0]), self.layout.dtype.itemsize
        for name, part in self.layout.parts.items():
            begin, end = max(start, part.offset), min(stop, part.offset + part.shape[0] * item)
            if len(part.shape) == 1 and begin < end:
                numbers[(begin - start) // item : (end - start) // item] = dummy_vector(name)
