"""From the order of an adapter's file to the order of its slab: the position of each tile, and the conversion of the
numbers while the file is read. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adapters.files.finite import MAGNITUDE, check_finite
from adapters.files.header import AdapterRefused, Tensor
from adapters.files.spec import AdapterSpec, BaseShape

# The values of kernels.lora_work, which would load torch; a test compares them.
TILE_RANK = 16
TILE_ALIGN_BYTES = 64
# dtype in the file → dtype in the slab.
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

Key = tuple[int, str]  # layer, module
Bits = npt.NDArray[Any]  # numbers as unsigned integers of their size: numpy has no bfloat16


class ReadStopped(Exception):
    """The read was cancelled."""


class TileSpan(NamedTuple):
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


def cuts_of(ranks: Mapping[Key, int], base: BaseShape, item_bytes: int) -> tuple[TileSpan, ...]:
    """The tiles of an adapter with these ranks of these modules of `base`: largest first, which packs best, without
    gaps."""
    cuts = []
    for (layer, module), rank in ranks.items():
        shape = base.modules[module]
        row = (shape.in_features + shape.out_features) * item_bytes
        for first in range(0, rank, TILE_RANK):
            rows = min(TILE_RANK, rank - first)
            size = -(-rows * row // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES
            cuts.append(TileSpan(size, layer, module, first, rows, 0, shape.in_features, shape.out_features))
    cuts.sort(key=lambda cut: (-cut.bytes, cut.layer, cut.module, cut.first))
    placed, start = [], 0
    for cut in cuts:
        placed.append(cut._replace(start=start))
        start += cut.bytes
    return tuple(placed)


def ranks_of(spec: AdapterSpec) -> dict[Key, int]:
    return {(module.layer, module.module): module.rank for module in spec.modules}


def slab_bytes(cuts: Sequence[TileSpan]) -> int:
    return cuts[-1].start + cuts[-1].bytes if cuts else 0


def pieces(
    raw: FileIO,
    spec: AdapterSpec,
    cuts: Sequence[TileSpan],
    dtype: str,
    *,
    check: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Bits]]:
    """(slab offset, numbers) of each A and each Bᵀ of each tile, in the order of the file, whose header was read. The
    numbers are valid until the next iteration. With `check`, numbers that are not finite are refused. Raises
    AdapterRefused, OSError, and ReadStopped soon after `stopped()`."""
    tiles: dict[Key, list[TileSpan]] = {}
    for cut in cuts:
        tiles.setdefault((cut.layer, cut.module), []).append(cut)
    tensors = [(m.a, (m.layer, m.module), False) for m in spec.modules]
    tensors += [(m.b, (m.layer, m.module), True) for m in spec.modules]
    tensors.sort(key=lambda part: part[0].start)
    scratch = memoryview(bytearray(max(tensor.stop - tensor.start for tensor, _, _ in tensors)))
    for tensor, key, is_b in tensors:
        if stopped():
            raise ReadStopped
        data = scratch[: tensor.stop - tensor.start]
        fill(raw, data)
        numbers = _converted(data, tensor, dtype, check=check).reshape(tensor.shape)
        for cut in tiles[key]:
            rows = slice(cut.first, cut.first + cut.rank)
            before = cut.rank * cut.in_features * numbers.itemsize if is_b else 0
            yield cut.start + before, numbers[:, rows].T if is_b else numbers[rows]


def read_past_header(raw: FileIO, spec: AdapterSpec) -> bytes:
    """Read up to the first number; returns the SHA-256 of those bytes. Raises AdapterRefused, OSError."""
    before = bytearray(min(min(module.a.start, module.b.start) for module in spec.modules))
    fill(raw, memoryview(before))
    return hashlib.sha256(before).digest()


def fill(raw: FileIO, data: memoryview) -> None:
    """Fill `data` from the file. Raises AdapterRefused if the file ends too soon."""
    at = 0
    while at < len(data):
        count = raw.readinto(data[at:])
        if not count:
            raise AdapterRefused(f"{Path(str(raw.name)).name}: it ends too soon: cut short since it was checked")
        at += count


def _converted(data: memoryview, tensor: Tensor, dtype: str, *, check: bool) -> Bits:
    """The bit patterns of a tensor's numbers in `dtype`, rounded to nearest even. With `check`, raises AdapterRefused
    for a number that is not finite."""
    if check:
        check_finite(data, tensor, 0, dtype)
    bits: Bits = np.frombuffer(data, MAGNITUDE[tensor.dtype][0])
    return bits if NAMES[tensor.dtype] == dtype else _from_float32(_to_float32(bits, tensor.dtype), dtype)


def _to_float32(bits: Bits, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32, copy=False)


def _from_float32(numbers: npt.NDArray[np.float32], dtype: str) -> Bits:
    if dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if dtype == "float16":
        with np.errstate(over="ignore"):  # check_finite finds infinity
            return numbers.astype(np.float16).view(np.uint16)
    return numbers.view(np.uint32)
