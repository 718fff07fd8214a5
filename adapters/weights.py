"""An adapter in host memory: one contiguous slab, tile after tile as the arena wants them, so that a copy moves whole
runs of tiles; and how it comes there from a file.

It must never know about pages, devices or requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from adapters.config import CONFIG_BYTES_MAX, parse_config
from adapters.finite import MAGNITUDE, check_finite
from adapters.header import AdapterRefused, Tensor, read_header
from adapters.spec import AdapterSpec, BaseShape, validate
from adapters.store import CONFIG_FILE, WEIGHTS_FILE
from kernels.lora_work import TILE_ALIGN_BYTES, TILE_RANK

Key = tuple[int, str]  # layer, module
# dtype of a file's tensor → of the same numbers in torch.
TORCH_DTYPE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class ReadStopped(Exception):
    """Nobody waits for it any more."""


class Cut(NamedTuple):
    """One tile: rank rows `first ≤ i < first + rank` of a module. From byte `start` of the slab on: A [rank, in], then
    Bᵀ [rank, out]. `bytes` is rounded up to the alignment."""

    bytes: int
    layer: int
    module: str
    first: int
    rank: int
    start: int
    in_features: int
    out_features: int


@dataclass(slots=True, frozen=True)
class Layout:
    """Where an adapter's tiles lie in its slab: largest first, which packs best, without gaps."""

    cuts: tuple[Cut, ...]
    scales: Mapping[Key, float]
    dtype: torch.dtype
    bytes: int
    rank_max: int


def layout_of(ranks: Mapping[Key, int], scales: Mapping[Key, float], base: BaseShape, dtype: torch.dtype) -> Layout:
    """For an adapter with these ranks of these modules of `base`."""
    cuts = []
    for (layer, module), rank in ranks.items():
        shape = base.modules[module]
        row = (shape.in_features + shape.out_features) * dtype.itemsize
        for first in range(0, rank, TILE_RANK):
            rows = min(TILE_RANK, rank - first)
            size = -(-rows * row // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES
            cuts.append(Cut(size, layer, module, first, rows, 0, shape.in_features, shape.out_features))
    cuts.sort(key=lambda cut: (-cut.bytes, cut.layer, cut.module, cut.first))
    placed, start = [], 0
    for cut in cuts:
        placed.append(cut._replace(start=start))
        start += cut.bytes
    return Layout(tuple(placed), dict(scales), dtype, start, max(ranks.values(), default=0))


@dataclass(slots=True, frozen=True)
class HostAdapter:
    """All of an adapter that arithmetic needs. A (layer, module) that is absent has rank 0."""

    layout: Layout
    slab: torch.Tensor  # uint8 [layout.bytes]


@dataclass(slots=True, frozen=True)
class ModuleWeights:
    """One (layer, module): y += scale · (x · aᵀ) · b."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [rank, out]: peft's B, transposed
    scale: float


def pack(modules: Mapping[Key, ModuleWeights], base: BaseShape, *, pinned: bool = False) -> HostAdapter:
    """Modules of one dtype and device, in memory of their own."""
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


def tile(data: torch.Tensor, cut: Cut, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and Bᵀ [rank, out] in the bytes of a tile, wherever these lie."""
    a_count = cut.rank * cut.in_features
    numbers = data[: (a_count + cut.rank * cut.out_features) * dtype.itemsize].view(dtype)
    return numbers[:a_count].view(cut.rank, -1), numbers[a_count:].view(cut.rank, -1)


@dataclass(slots=True)
class Source:
    """An adapter's file, all of which but its numbers was checked."""

    file: Path
    spec: AdapterSpec
    layout: Layout
    header: bytes  # SHA-256 of what comes before the numbers
    finite: bool = False  # its numbers were looked at, too


def open_source(directory: Path, base: BaseShape, dtype: torch.dtype) -> Source:
    """Check a directory of the store, all but its numbers. Raises AdapterRefused, OSError."""
    with (directory / CONFIG_FILE).open("rb") as file:
        config = parse_config(file.read(CONFIG_BYTES_MAX + 1))
    weights = directory / WEIGHTS_FILE
    spec = validate(config, read_header(weights), base)
    with weights.open("rb", buffering=0) as raw:
        header = _skip_header(raw, spec)
    ranks = {(module.layer, module.module): module.rank for module in spec.modules}
    scales = {(module.layer, module.module): module.scale for module in spec.modules}
    return Source(weights, spec, layout_of(ranks, scales, base, dtype), header)


def read_weights(source: Source, slab: torch.Tensor, stopped: Callable[[], bool]) -> None:
    """Read the numbers into a slab, uint8 [layout.bytes], from the file's first byte to its last. It holds the
    interpreter's lock for moments only, and never maps the file: one that is cut short meanwhile is an error, not the
    end of the process. Raises AdapterRefused, OSError, and ReadStopped soon after `stopped()`."""
    spec, layout = source.spec, source.layout
    cuts: dict[Key, list[Cut]] = {}
    for cut in layout.cuts:
        cuts.setdefault((cut.layer, cut.module), []).append(cut)
    parts = [(m.a, (m.layer, m.module), 0) for m in spec.modules] + [
        (m.b, (m.layer, m.module), 1) for m in spec.modules
    ]
    parts.sort(key=lambda part: part[0].start)
    scratch = memoryview(bytearray(max(tensor.stop - tensor.start for tensor, _, _ in parts)))
    with source.file.open("rb", buffering=0) as raw:
        if _skip_header(raw, spec) != source.header:
            raise AdapterRefused(f"{source.file.name}: it is not the file that was checked")
        for tensor, key, side in parts:
            if stopped():
                raise ReadStopped
            data = scratch[: tensor.stop - tensor.start]
            _fill(raw, data)
            bits = _converted(data, tensor, layout.dtype, check=not source.finite)
            numbers = bits.reshape(tensor.shape)
            for cut in cuts[key]:
                target = tile(slab[cut.start : cut.start + cut.bytes], cut, layout.dtype)[side]
                rows = slice(cut.first, cut.first + cut.rank)
                own = numbers[:, rows].T if side else numbers[rows]
                np.copyto(target.view(_INTEGER[layout.dtype.itemsize]).numpy().view(own.dtype), own)
    source.finite = True


_INTEGER = {2: torch.int16, 4: torch.int32}


def _skip_header(raw: FileIO, spec: AdapterSpec) -> bytes:
    """Read up to the first number; SHA-256 of that."""
    before = bytearray(
        min(module.a.start if module.a.start < module.b.start else module.b.start for module in spec.modules)
    )
    _fill(raw, memoryview(before))
    return hashlib.sha256(before).digest()


def _fill(raw: FileIO, data: memoryview) -> None:
    at = 0
    while at < len(data):
        count = raw.readinto(data[at:])
        if not count:
            raise AdapterRefused(f"{Path(str(raw.name)).name}: it ends too soon: cut short since it was checked")
        at += count


def _converted(data: memoryview, tensor: Tensor, dtype: torch.dtype, *, check: bool) -> npt.NDArray[Any]:
    """The bit patterns of a tensor's numbers in `dtype`, rounded to nearest even. With `check` they are finite, or
    AdapterRefused says which is not."""
    if check:
        check_finite(data, tensor, 0, str(dtype).removeprefix("torch."))
    bits: npt.NDArray[Any] = np.frombuffer(data, MAGNITUDE[tensor.dtype][0])
    return bits if TORCH_DTYPE[tensor.dtype] == dtype else _from_float32(_to_float32(bits, tensor.dtype), dtype)


def _to_float32(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":  # numpy has none
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32, copy=False)


def _from_float32(numbers: npt.NDArray[np.float32], dtype: torch.dtype) -> npt.NDArray[Any]:
    if dtype == torch.bfloat16:
        bits = numbers.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if dtype == torch.float16:
        with np.errstate(over="ignore"):  # an infinity is found afterwards
            return numbers.astype(np.float16).view(np.uint16)
    return numbers.view(np.uint32)
