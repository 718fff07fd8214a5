"""An adapter in host memory: one contiguous slab with its tiles in the arena's order, so that a copy moves whole runs
of tiles; and the reading of a slab from a file."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from adapters.files.check import WEIGHTS_FILE, read_stored
from adapters.files.header import AdapterRefused
from adapters.files.resolved import RESOLVED_FILE, ModulesUnresolved
from adapters.files.slab_file import SlabUnusable, read_slab, slab_key
from adapters.files.slab_names import slab_name
from adapters.files.slab_order import (
    Key,
    TileSpan,
    cuts_of,
    pieces,
    ranks_of,
    read_past_header,
    slab_bytes,
)
from adapters.files.spec import AdapterSpec, BaseShape

# Files read at once. A read that waits for a slow disk occupies its slot; further reads are queued.
READS_MAX = 4
# Threads of one read of a slab: several copy faster from the page cache, and keep a disk's queue full. All reads
# together use at most three quarters of the cores.
READ_THREADS_MAX = 3

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class AdapterLayout:
    """The tiles of an adapter in its slab."""

    cuts: tuple[TileSpan, ...]
    scales: Mapping[Key, float]
    dtype: torch.dtype
    bytes: int
    rank_max: int


def layout_of(
    ranks: Mapping[Key, int], scales: Mapping[Key, float], base: BaseShape, dtype: torch.dtype
) -> AdapterLayout:
    """The layout of an adapter with these ranks by (layer, module) of `base`."""
    cuts = cuts_of(ranks, base, dtype.itemsize)
    return AdapterLayout(cuts, dict(scales), dtype, slab_bytes(cuts), max(ranks.values(), default=0))


@dataclass(slots=True, frozen=True)
class HostAdapter:
    """The layout and the numbers of an adapter. An absent (layer, module) has rank 0."""

    layout: AdapterLayout
    slab: torch.Tensor  # uint8 [layout.bytes]


@dataclass(slots=True, frozen=True)
class ModuleWeights:
    """One (layer, module): y += scale · (x · aᵀ) · b."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [rank, out]: peft's B, transposed
    scale: float


def pack_adapter(modules: Mapping[Key, ModuleWeights], base: BaseShape, *, pinned: bool = False) -> HostAdapter:
    """An adapter of these modules, of one dtype and device, in new memory. `pinned`: page-locked."""
    some = next(iter(modules.values())).a
    ranks = {key: weights.a.shape[0] for key, weights in modules.items()}
    layout = layout_of(ranks, {key: weights.scale for key, weights in modules.items()}, base, some.dtype)
    slab = torch.empty(layout.bytes, dtype=torch.uint8, device=some.device, pin_memory=pinned)
    for cut in layout.cuts:
        weights = modules[cut.layer, cut.module]
        a, b = tile(slab[cut.start : cut.start + cut.bytes], cut, layout.dtype)
        a.copy_(weights.a[cut.first : cut.first + cut.rank])
        b.copy_(weights.b[cut.first : cut.first + cut.rank])
    return HostAdapter(layout, slab)


def tile(data: torch.Tensor, cut: TileSpan, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of A [rank, in] and Bᵀ [rank, out] in the bytes of a tile."""
    a_count = cut.rank * cut.in_features
    numbers = data[: (a_count + cut.rank * cut.out_features) * dtype.itemsize].view(dtype)
    return numbers[:a_count].view(cut.rank, -1), numbers[a_count:].view(cut.rank, -1)


@dataclass(slots=True)
class Source:
    """An adapter's file, checked except for its numbers."""

    file: Path
    spec: AdapterSpec
    layout: AdapterLayout
    header: bytes  # SHA-256 of the bytes before the numbers
    dtype: str  # of the slab
    slab_key: bytes
    finite: bool = False  # its numbers are checked too


def open_source(directory: Path, base: BaseShape, dtype: torch.dtype) -> Source:
    """Check a directory of the store, without its numbers. It must never read the configuration: evaluating a tenant's
    patterns would hold the interpreter's lock. Raises AdapterRefused, OSError."""
    try:
        spec = read_stored(directory, base)
    except ModulesUnresolved as error:
        _log.warning("adapter.unresolved", extra={"fields": {"directory": str(directory), "reason": str(error)}})
        with contextlib.suppress(OSError):  # the gateway writes it again
            (directory / RESOLVED_FILE).unlink(missing_ok=True)
        raise
    weights = directory / WEIGHTS_FILE
    with weights.open("rb", buffering=0) as raw:
        header = read_past_header(raw, spec)
    scales = {(module.layer, module.module): module.scale for module in spec.modules}
    layout, name = layout_of(ranks_of(spec), scales, base, dtype), str(dtype).removeprefix("torch.")
    return Source(weights, spec, layout, header, name, slab_key(directory.name, header, layout.cuts, name))


def read_numbers(source: Source, slab: torch.Tensor, stopped: Callable[[], bool]) -> None:
    """Read the numbers into `slab`, uint8 [layout.bytes]: from the slab file, or without an undamaged one from the
    adapter's file. Raises AdapterRefused, OSError, and ReadStopped soon after `stopped()`."""
    path = source.file.with_name(slab_name(source.dtype))
    try:
        read_slab(path, source.slab_key, slab.numpy().data, stopped, _read_threads())
        return
    except FileNotFoundError:
        pass
    except (SlabUnusable, OSError) as error:
        _log.warning("adapter.slab_unusable", extra={"fields": {"directory": str(path.parent), "reason": str(error)}})
        if isinstance(error, SlabUnusable):
            with contextlib.suppress(OSError):  # so that the gateway makes another
                path.unlink()
    read_weights(source, slab, stopped)


def _read_threads() -> int:
    cores = len(os.sched_getaffinity(0))
    return max(1, min(READ_THREADS_MAX, 3 * cores // (4 * READS_MAX)))


def read_weights(source: Source, slab: torch.Tensor, stopped: Callable[[], bool]) -> None:
    """As `read_numbers`, from the file's first byte to its last. It never maps the file: a file truncated
    meanwhile is an error and does not end the process."""
    target = slab.numpy()
    with source.file.open("rb", buffering=0) as raw:
        if read_past_header(raw, source.spec) != source.header:
            raise AdapterRefused(f"{source.file.name}: it is not the file that was checked")
        for start, numbers in pieces(
            raw, source.spec, source.layout.cuts, source.dtype, check=not source.finite, stopped=stopped
        ):
            own = target[start : start + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
            np.copyto(own, numbers)
    source.finite = True
