"""The safetensors of a model directory: which files are the model's, which tensors they hold, and their numbers read
into memory.

Files are read and must never be mapped: a file that is truncated or replaced meanwhile is then an error and does not
end the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, NamedTuple, Protocol, Self

import msgspec
import torch
from torch import Tensor

from engine.contents.manifests import INDEX, weight_names
from engine.models.config import ModelRefused

# Of weights that are not quantised. The readers of quantised matrices name their dtypes.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LENGTH_BYTES = 8
# Of one file. The header of a model of LAYERS_MAX layers has 6 MB.
HEADER_BYTES_MAX = 8 * 1024 * 1024

_Offset = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """One tensor in a header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[_Offset, _Offset]


class StoredTensor(NamedTuple):
    """A tensor of a file, from byte `start` on."""

    file: Path
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class OpenFiles(Protocol):
    """Files that are open while weights are read: `WeightFiles`, or `StampedFiles`."""

    def descriptor(self, path: Path) -> int:
        """A file descriptor to read `path` with `read_numbers`. Raises OSError."""
        ...


class StampedFiles:
    """Files opened one by one when they are read, and refused if they changed since their stamps were taken. A context
    manager, for one thread."""

    def __init__(self, stamps: Mapping[Path, tuple[int, int]]) -> None:
        """`stamps`: as `WeightFiles.stamps` gave them."""
        self._stamps = stamps
        self._descriptors: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def descriptor(self, path: Path) -> int:
        """Raises OSError, also for a file that changed."""
        if path not in self._descriptors:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if stamp(os.fstat(descriptor)) != self._stamps[path]:
                os.close(descriptor)
                raise OSError(f"{path} has changed since the model was registered")
            self._descriptors[path] = descriptor
        return self._descriptors[path]


class WeightFiles:
    """The open *.safetensors of a directory; a context manager."""

    def __init__(self, directory: Path) -> None:
        """Reads the headers only. Raises ModelRefused, OSError."""
        self._directory = directory
        self._descriptors: dict[Path, int] = {}
        self._entries: dict[str, tuple[Path, int, _Entry]] = {}  # by tensor: file, data start, header entry
        try:
            for path in weight_files(directory):
                descriptor = self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                entries, start = _read_header(descriptor, path)
                for name, entry in entries.items():
                    if name in self._entries:
                        other = self._entries[name][0].name
                        raise ModelRefused(
                            f"{directory}: {name} is in both {other} and {path.name}; {INDEX} is missing"
                        )
                    self._entries[name] = path, start, entry
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def descriptor(self, path: Path) -> int:
        return self._descriptors[path]

    def stored_shape(self, name: str) -> tuple[int, ...]:
        """Raises ModelRefused, naming the tensor, if it is missing."""
        return tuple(self._entry(name)[2].shape)

    def stored_dtype(self, name: str) -> str:
        """The dtype as the header names it, such as `BF16`. Raises ModelRefused, naming the tensor, if it is
        missing."""
        return self._entry(name)[2].dtype

    def _entry(self, name: str) -> tuple[Path, int, _Entry]:
        if name not in self._entries:
            raise ModelRefused(f"{self._directory}: {name} is missing")
        return self._entries[name]

    def find(self, name: str, shape: tuple[int, ...], dtypes: Mapping[str, torch.dtype] = DTYPES) -> StoredTensor:
        """`dtypes`: the supported ones, by their names in the header. Raises ModelRefused, naming the tensor, if it is
        missing or has another shape or an unsupported dtype."""
        path, start, entry = self._entry(name)
        found, (begin, end) = tuple(entry.shape), entry.data_offsets
        if found != shape:
            raise ModelRefused(f"{self._directory}: {name} has shape {found}, the config says {shape}")
        if entry.dtype not in dtypes:
            known = ", ".join(dtypes)
            raise ModelRefused(f"{self._directory}: {name} is of dtype {entry.dtype}, not of {known}")
        dtype = dtypes[entry.dtype]
        if end - begin != math.prod(shape) * dtype.itemsize:
            raise ModelRefused(f"{path}: {name} has {end - begin} bytes, which is not what its shape and dtype take")
        return StoredTensor(path, start + begin, shape, dtype)

    def read(self, stored: StoredTensor, target: Tensor) -> None:
        """Read a tensor into `target`, contiguous on the host, of the same number of elements. Raises OSError."""
        read_numbers(self._descriptors[stored.file], stored.file, stored.start, stored.dtype, target)

    def stamps(self) -> dict[Path, tuple[int, int]]:
        """The size and modification time of each file when it was opened."""
        return {path: stamp(os.fstat(descriptor)) for path, descriptor in self._descriptors.items()}


def weight_files(directory: Path) -> list[Path]:
    """The model's weight files, sorted by name (`weight_names`). Raises ModelRefused if the directory has no weight
    file, or if its index is invalid or names a missing file."""
    try:
        return [directory / name for name in weight_names(directory)]
    except ValueError as error:
        raise ModelRefused(str(error)) from error


def stamp(stat: os.stat_result) -> tuple[int, int]:
    """Size and modification time in ns, which differ for a changed file."""
    return stat.st_size, stat.st_mtime_ns


def stamps(files: list[Path]) -> tuple[tuple[str, int, int], ...]:
    """Name, size and modification time of each file."""
    return tuple((path.name, *stamp(path.stat())) for path in files)


def read_numbers(descriptor: int, path: Path, start: int, dtype: torch.dtype, target: Tensor) -> None:
    """Fill `target`, contiguous and on the host, from byte `start` on; numbers of another dtype are converted. Raises
    OSError; the contents of `target` are undefined then."""
    if dtype == target.dtype:
        _read(descriptor, path, start, target)
        return
    raw = torch.empty(target.shape, dtype=dtype)
    _read(descriptor, path, start, raw)
    target.copy_(raw)


def _read(descriptor: int, path: Path, start: int, target: Tensor) -> None:
    memory = memoryview(target.view(-1).view(torch.uint8).numpy().data)
    position = 0
    while position < len(memory):
        count = os.preadv(descriptor, [memory[position:]], start + position)
        if not count:
            raise OSError(f"{path} ends at byte {start + position}")
        position += count


def _read_header(descriptor: int, path: Path) -> tuple[dict[str, _Entry], int]:
    """Entries by tensor, and the start of the data section. The tensors must fill it without gaps. Raises
    ModelRefused."""
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
    if length > HEADER_BYTES_MAX:
        raise ModelRefused(f"{path}: its header would have {length} bytes, more than {HEADER_BYTES_MAX}")
    start = LENGTH_BYTES + length
    try:
        raw = msgspec.json.decode(os.pread(descriptor, length, LENGTH_BYTES), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(f"{path}: not a safetensors header: {error}") from error
    position = 0
    for begin, end in sorted(entry.data_offsets for entry in entries.values()):
        if begin != position or end < begin:
            raise ModelRefused(f"{path}: byte {position} of its data is of no tensor, or of two")
        position = end
    if start + position != size:
        raise ModelRefused(f"{path}: its tensors end at byte {start + position}, the file has {size}")
    return entries, start
