"""An adapter in host memory: one contiguous slab of numbers, and where each module's A and B lie in it.

It must never know about pages, devices or requests.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from adapters.header import Tensor
from adapters.spec import AdapterRefused, BaseShape
from adapters.store import read_adapter

TORCH_DTYPE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(slots=True, frozen=True)
class ModuleWeights:
    """One (layer, module): y += scale · (x · aᵀ) · b."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [rank, out]: peft's B, transposed
    scale: float


@dataclass(slots=True, frozen=True)
class HostAdapter:
    """All of an adapter that arithmetic needs. A (layer, module) that is absent has rank 0."""

    modules: Mapping[tuple[int, str], ModuleWeights]
    slab: torch.Tensor  # [parameters]; every a and b is a view of it

    @property
    def dtype(self) -> torch.dtype:
        return self.slab.dtype


def load(path: Path, base: BaseShape, dtype: torch.dtype, *, pinned: bool = False) -> HostAdapter:
    """Read a directory of the store, with every check again. Raises AdapterRefused, OSError. `pinned`: into memory that
    a GPU copies from while the host goes on."""
    spec = read_adapter(path, base)
    slab = torch.empty(spec.parameters, dtype=dtype, pin_memory=pinned)
    modules = {}
    position = 0
    with (path / "adapter_model.safetensors").open("rb") as file, _mapped(file.fileno()) as data:
        for module in spec.modules:
            a = slab[position : position + module.rank * module.a.shape[1]].view(module.rank, -1)
            position += a.numel()
            b = slab[position : position + module.rank * module.b.shape[0]].view(module.rank, -1)
            position += b.numel()
            a.copy_(_view(data, module.a))
            b.copy_(_view(data, module.b).t())
            modules[module.layer, module.module] = ModuleWeights(a, b, module.scale)
    # The file's numbers are finite, read_adapter saw to that; float16 alone has less range than some of them.
    if dtype == torch.float16 and not bool(torch.isfinite(slab).all()):
        raise AdapterRefused(f"{path.name}: it has a number too large for {dtype}")
    return HostAdapter(modules, slab)


def _mapped(fileno: int) -> mmap.mmap:
    # Copy on write: torch refuses, loudly, to view memory that it may not write.
    return mmap.mmap(fileno, 0, access=mmap.ACCESS_COPY)


def _view(data: mmap.mmap, tensor: Tensor) -> torch.Tensor:
    dtype = TORCH_DTYPE[tensor.dtype]
    count = (tensor.stop - tensor.start) // dtype.itemsize
    return torch.frombuffer(data, dtype=dtype, count=count, offset=tensor.start).view(tensor.shape)
