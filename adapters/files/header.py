"""The header of a safetensors file, checked whole before a byte of data is trusted.

Python integers throughout: no arithmetic here can overflow. It must never know the meaning of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ITEM_BYTES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
HEADER_BYTES_MAX = 4 * 1024 * 1024
TENSORS_MAX = 16_384
NAME_CHARS_MAX = 512
SIZE_MAX = (
    2**64 - 1
)  # of a tensor in one dimension, and its end: the format's integers, short enough for an error message
REASON_CHARS_MAX = 480
FILE_BYTES_MAX = 4 * 1024**3
LENGTH_BYTES = 8
# How a zip archive and a pickle begin. A header of 640 bytes begins alike: this changes a refusal's message, and
# refuses nothing.
FOREIGN = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class AdapterRefused(ValueError):
    """These files are not an adapter that Laneway serves. `reason` names the tensor or the key, and why."""

    def __init__(self, reason: str) -> None:
        reason = reason if len(reason) <= REASON_CHARS_MAX else reason[: REASON_CHARS_MAX - 1] + "…"
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, frozen=True)
class Tensor:
    """One entry: its bytes are `start ≤ i < stop` of the file."""

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    start: int
    stop: int


Header = Mapping[str, Tensor]


def read_header(path: Path) -> Header:
    """Tensors by name, sorted by name. Raises AdapterRefused, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > FILE_BYTES_MAX:
            raise AdapterRefused(f"{path.name}: {size} bytes, more than {FILE_BYTES_MAX}")
        entries, data_start = _read_json(file, size)
    entries.pop("__metadata__", None)
    if len(entries) > TENSORS_MAX:
        raise AdapterRefused(f"header: {len(entries)} tensors, more than {TENSORS_MAX}")
    tensors = [_tensor(name, entry, data_start) for name, entry in entries.items()]
    _check_contiguous(tensors, data_start, size)
    return {tensor.name: tensor for tensor in sorted(tensors, key=lambda tensor: tensor.name)}


def header_digest(path: Path) -> str:
    """SHA-256, lowercase hex, of the bytes before the first tensor data, of a valid file. Raises OSError."""
    with path.open("rb") as file:
        first = file.read(LENGTH_BYTES)
        return hashlib.sha256(first + file.read(min(int.from_bytes(first, "little"), HEADER_BYTES_MAX))).hexdigest()


def strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` that refuses a key named twice: two readers would each take another."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise AdapterRefused(f"{_shown(name)}: named twice")
            seen.add(name)
    return found


def load_json(data: bytes, what: str) -> Any:
    """Strict JSON: no NaN, no key twice, no bottomless nesting. Raises AdapterRefused."""
    try:
        return json.loads(data.decode(), object_pairs_hook=strict_object, parse_constant=_no_constant)
    except AdapterRefused as error:
        raise AdapterRefused(f"{what}: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{what}: not valid JSON: {error}") from error


def _no_constant(name: str) -> None:
    raise AdapterRefused(f"{name} is not JSON")


def _shown(name: str) -> str:
    """A name from the file, cut so that an error message remains readable."""
    return name if len(name) <= 128 else name[:128] + "…"


def _read_json(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The header's object, and where the data begins."""
    first = file.read(LENGTH_BYTES)
    if len(first) < LENGTH_BYTES:
        raise AdapterRefused(f"header: the file has {size} bytes, too few for a safetensors header")
    length = int.from_bytes(first, "little")
    hint = " (a zip archive or a pickle is not a safetensors file)" if first[:2] in FOREIGN else ""
    if length > HEADER_BYTES_MAX:
        raise AdapterRefused(f"header: its length field says {length} bytes, more than {HEADER_BYTES_MAX}{hint}")
    if LENGTH_BYTES + length > size:
        raise AdapterRefused(f"header: its length field says {length} bytes, the file has {size}: truncated?{hint}")
    text = file.read(length)
    if not text.startswith(b"{"):
        raise AdapterRefused(f"header: does not begin with '{{'{hint}")
    entries = load_json(text, "header")
    if not isinstance(entries, dict):
        raise AdapterRefused("header: not a JSON object")
    return entries, LENGTH_BYTES + length


def _tensor(name: str, entry: Any, data_start: int) -> Tensor:
    shown = _shown(name)
    if len(name) > NAME_CHARS_MAX:
        raise AdapterRefused(f"{shown}: a name of {len(name)} characters, more than {NAME_CHARS_MAX}")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterRefused(f"{shown}: its header entry must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise AdapterRefused(f"{shown}: dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    if not _sizes(shape) or len(shape) > 8:
        raise AdapterRefused(f"{shown}: its shape is not a list of sizes")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise AdapterRefused(f"{shown}: its data_offsets are not [begin, end]")
    taken, needed = offsets[1] - offsets[0], math.prod(shape) * ITEM_BYTES[dtype]
    if taken != needed:
        raise AdapterRefused(f"{shown}: shape {shape} of {dtype} takes {needed} bytes, data_offsets span {taken}")
    return Tensor(name, dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _sizes(value: Any) -> bool:
    """Whether this is a list of non-negative integers; JSON's true is no integer."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= SIZE_MAX for item in value)


def _check_contiguous(tensors: list[Tensor], data_start: int, size: int) -> None:
    """The data section is the tensors, end to end: no gap, no overlap, nothing after them."""
    position = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != position:
            what = "overlaps the tensor before it" if tensor.start < position else "leaves a gap before it"
            raise AdapterRefused(f"{_shown(tensor.name)}: its data {what}")
        position = tensor.stop
    if position > size:
        raise AdapterRefused(f"the tensors end at byte {position}, the file has {size}: truncated")
    if position < size:
        raise AdapterRefused(f"{size - position} bytes after the last tensor belong to none")
