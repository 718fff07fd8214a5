"""Rows of a quantised matrix, read from the tensors of a published checkpoint into the layout of `matrices`.

Readers hold only the data of the files' headers. They keep no file open and no numbers, so several threads may read
from one at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelRefused
from engine.models.files import OpenFiles, StoredTensor, read_numbers
from engine.models.matrices import INT4_ZERO, MatrixFormat, Part, QuantizedMatrix, check_part

# Of a file, when a few columns of a matrix are read from it.
READ_BYTES = 1 << 20
WORD_NIBBLES = 8  # of an int32
# AutoAWQ's order: nibble i of a word is the output AWQ_ORDER[i] of its eight.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The zero of 8 bit numbers that are stored unsigned.
INT8_ZERO = 0x80


class NamedTensor(NamedTuple):
    """A tensor of a file, and its name for refusals."""

    name: str
    stored: StoredTensor


@dataclass(frozen=True, slots=True)
class MatrixReader(ABC):
    """One matrix of a checkpoint: `module` is its name without `.weight`."""

    module: str
    out_features: int
    in_features: int
    format: MatrixFormat

    def read_rows(self, files: OpenFiles, start: int, stop: int) -> QuantizedMatrix:
        """Rows start ≤ row < stop of the three tensors, contiguous on the host. Raises OSError, and ModelRefused for
        numbers that `check_matrix` refuses."""
        zeros = self.read_part(files, "zeros", start, stop) if self.format.has_zeros else None
        data, scales = (self.read_part(files, part, start, stop) for part in ("data", "scales"))
        return QuantizedMatrix(data, scales, zeros)

    def read_part(self, files: OpenFiles, part: Part, start: int, stop: int) -> Tensor:
        """These rows of one of the three tensors. "zeros" only with `format.has_zeros`."""
        assert 0 <= start <= stop <= self.out_features, f"{self.module}: rows {start} to {stop}"
        name, rows = self._read_named(files, part, start, stop)
        shape = self.format.part_shape(part, stop - start, self.in_features)
        assert (rows.shape, rows.dtype) == (shape, self.format.part_dtype(part)), f"{name}: {rows.shape} {rows.dtype}"
        if rows.numel():
            check_part(name, part, rows, self.format)
        return rows

    def fill_part(self, files: OpenFiles, part: Part, start: int, target: Tensor) -> None:
        """Fill `target` uint8, contiguous on the host, with the bytes of one of the three tensors [out, ...] from its
        byte `start` on. Raises as `read_rows`."""
        width = self.part_bytes(part) // self.out_features
        first, last = start // width, -(-(start + target.shape[0]) // width)
        rows = self.read_part(files, part, first, last).view(torch.uint8).view(-1)
        target.copy_(rows[start - first * width : start - first * width + target.shape[0]])

    def part_bytes(self, part: Part) -> int:
        rows, columns = self.format.part_shape(part, self.out_features, self.in_features)
        return rows * columns * self.format.part_dtype(part).itemsize

    @abstractmethod
    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        """The tensor's name in the files, and its rows."""


@dataclass(frozen=True, slots=True)
class RowReader(MatrixReader):
    """Rows are contiguous in the file: fp8 and int8 numbers, and compressed-tensors' packed ones, whose int32 words are
    the layout's bytes on a little-endian machine. Only the bytes of these rows are read.

    `block_rows`: rows of the matrix that have one row of `scales` [blocks, groups] together; 1 for scales of each row,
    `out_features` for one scale of the whole matrix. `zeros`: int32 [out / 8, groups], row 8i + j in nibble j of row i.
    `unsigned`: 8 bit numbers are stored plus 128."""

    data: NamedTensor
    scales: NamedTensor
    block_rows: int
    zeros: NamedTensor | None = None
    unsigned: bool = False

    def fill_part(self, files: OpenFiles, part: Part, start: int, target: Tensor) -> None:
        if part != "data":
            super(RowReader, self).fill_part(files, part, start, target)
            return
        read_bytes(files, self.data.stored, start, target)
        if self.unsigned:
            target.bitwise_xor_(INT8_ZERO)
        if target.numel():
            check_part(self.data.name, part, target, self.format)

    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        if part == "data":
            width = self.format.row_bytes(self.in_features)
            data = torch.empty((stop - start, width), dtype=torch.uint8)
            read_bytes(files, self.data.stored, start * width, data)
            return self.data.name, data.bitwise_xor_(INT8_ZERO) if self.unsigned else data
        groups = self.format.groups(self.in_features)
        if part == "scales":
            return self.scales.name, _repeated_rows(files, self.scales.stored, self.block_rows, groups, start, stop)
        assert self.zeros is not None
        words = _repeated_rows(files, self.zeros.stored, WORD_NIBBLES, groups, start, stop)
        shifts = torch.arange(start, stop, dtype=torch.int32).remainder_(WORD_NIBBLES).mul_(4)
        return self.zeros.name, ((words >> shifts[:, None]) & 15).to(torch.uint8)


@dataclass(frozen=True, slots=True)
class GptqReader(MatrixReader):
    """GPTQ: `qweight` int32 [in / 8, out] (8 bit: [in / 4, out]), consecutive inputs from the lowest bits up; `scales`
    [groups, out]; `qzeros` int32 [groups, out / 8 or out / 4], consecutive outputs from the lowest bits up, and less by
    one with `minus_one`. Without `format.has_zeros`, every zero must be half of the range.

    With `minus_one`, words are added as GPTQModel does, with carries between their numbers: a zero of 0 was stored by
    subtracting whole words (gptqmodel/utils/model.py, convert_gptq_v1_to_v2_format_module)."""

    qweight: NamedTensor
    scales: NamedTensor
    qzeros: NamedTensor
    minus_one: bool

    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        if part == "data":
            words = read_columns(files, self.qweight.stored, start, stop)
            data = _transposed(words).view(torch.uint8)
            return self.qweight.name, data if self.format.element == "int4" else data.bitwise_xor_(INT8_ZERO)
        if part == "zeros":
            return self.qzeros.name, _transposed(self._zeros(files, start, stop))
        if not self.format.has_zeros:
            expected = INT4_ZERO if self.format.element == "int4" else INT8_ZERO
            if (self._zeros(files, start, stop) != expected).any():
                raise ModelRefused(f"{self.qzeros.name}: its zeros are not {expected}, as the config's `sym` says")
        return self.scales.name, _transposed(read_columns(files, self.scales.stored, start, stop))

    def _zeros(self, files: OpenFiles, start: int, stop: int) -> Tensor:
        """uint8 [groups, stop - start]"""
        is_int4 = self.format.element == "int4"
        per_word = WORD_NIBBLES if is_int4 else WORD_NIBBLES // 2
        first = start // per_word
        words = read_columns(files, self.qzeros.stored, first, -(-stop // per_word))
        if self.minus_one:
            words += 0x11111111 if is_int4 else 0x01010101
        zeros = words.view(torch.uint8)
        if is_int4:
            zeros = torch.stack((zeros & 15, zeros >> 4), dim=-1).flatten(1)
        return zeros[:, start - first * per_word : stop - first * per_word]


@dataclass(frozen=True, slots=True)
class AwqReader(MatrixReader):
    """AutoAWQ's `gemm`: `qweight` int32 [in, out / 8] and `qzeros` int32 [groups, out / 8], eight outputs a word in
    AWQ_ORDER; `scales` [groups, out]."""

    qweight: NamedTensor
    scales: NamedTensor
    qzeros: NamedTensor | None

    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        if part == "scales":
            return self.scales.name, _transposed(read_columns(files, self.scales.stored, start, stop))
        tensor = self.qweight if part == "data" else self.qzeros
        assert tensor is not None
        first, last = start // WORD_NIBBLES, -(-stop // WORD_NIBBLES)
        words = read_columns(files, tensor.stored, first, last)
        outputs = _awq_data(words) if part == "data" else _awq_zeros(words.view(torch.uint8))
        return tensor.name, outputs[start - first * WORD_NIBBLES : stop - first * WORD_NIBBLES]


class StackedMatrix:
    """Matrices of one format whose rows follow one another, such as q, k and v."""

    def __init__(self, readers: Sequence[MatrixReader]) -> None:
        """Raises ModelRefused if their formats or their columns differ."""
        first = readers[0]
        for reader in readers:
            if (reader.format, reader.in_features) != (first.format, first.in_features):
                raise ModelRefused(f"{reader.module} and {first.module} are stored in different formats")
        self.readers = tuple(readers)
        self.format = first.format
        self.out_features = sum(reader.out_features for reader in readers)
        self.in_features = first.in_features

    def read(self, files: OpenFiles) -> QuantizedMatrix:
        """The whole matrix, on the host. Raises as `MatrixReader.read_rows`."""
        found = [reader.read_rows(files, 0, reader.out_features) for reader in self.readers]
        if len(found) == 1:
            return found[0]
        data, scales = torch.cat([rows.data for rows in found]), torch.cat([rows.scales for rows in found])
        zeros = [rows.zeros for rows in found if rows.zeros is not None]
        return QuantizedMatrix(data, scales, torch.cat(zeros) if zeros else None)

    def part_bytes(self, part: Part) -> int:
        return sum(reader.part_bytes(part) for reader in self.readers)

    def fill_part(self, files: OpenFiles, part: Part, start: int, target: Tensor) -> None:
        """Like `MatrixReader.fill_part`, for the stacked tensors."""
        stop, offset = start + int(target.shape[0]), 0
        for reader in self.readers:
            size = reader.part_bytes(part)
            begin, end = max(start, offset), min(stop, offset + size)
            if begin < end:
                reader.fill_part(files, part, begin - offset, target[begin - start : end - start])
            offset += size


def _awq_data(words: Tensor) -> Tensor:
    """AWQ's words int32 [in, n] → uint8 [8n, in / 2] with column 2j in the low nibble. Each eight words of a column are
    a square of nibbles, which three rounds of exchanges transpose (H. S. Warren, Hacker's Delight, section 7-3)."""
    inputs, columns = words.shape
    squares = words.view(inputs // 8, 8, columns)
    for distance, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        pairs, shift = squares.view(inputs // (2 * distance), 2, distance, columns), 4 * distance
        upper, lower = pairs[:, 0], pairs[:, 1]
        moved = (upper >> shift).bitwise_xor_(lower).bitwise_and_(mask)
        lower.bitwise_xor_(moved)
        upper.bitwise_xor_(moved.bitwise_left_shift_(shift))
    outputs = _transposed(squares.view(inputs // 8, 8 * columns)).view(8, columns, inputs // 8)
    result = torch.empty((columns, WORD_NIBBLES, inputs // 8), dtype=torch.int32)
    for nibble, output in enumerate(AWQ_ORDER):
        result[:, output] = outputs[nibble]
    return result.view(8 * columns, inputs // 8).view(torch.uint8)


def _awq_zeros(words: Tensor) -> Tensor:
    """Bytes uint8 [groups, 4n] of AWQ's words → [8n, groups]."""
    nibbles = torch.stack((words & 15, words >> 4), dim=-1).view(words.shape[0], -1, WORD_NIBBLES)
    ordered = torch.empty_like(nibbles)
    ordered[..., list(AWQ_ORDER)] = nibbles
    return _transposed(ordered.flatten(1))


def _transposed(matrix: Tensor) -> Tensor:
    """Contiguous. `Tensor.contiguous` keeps the strides of a single row, which no other dtype can be viewed with."""
    return torch.empty(matrix.shape[::-1], dtype=matrix.dtype).copy_(matrix.t())


def read_bytes(files: OpenFiles, stored: StoredTensor, at: int, target: Tensor) -> None:
    """Fill `target`, contiguous on the host, with the bytes of a stored tensor from its byte `at` on. Raises OSError,
    also for a file that changed."""
    read_numbers(files.descriptor(stored.file), stored.file, stored.start + at, target.dtype, target)


def read_columns(files: OpenFiles, stored: StoredTensor, begin: int, end: int) -> Tensor:
    """Columns begin ≤ column < end of a stored matrix [rows, columns], contiguous on the host. Whole rows are read,
    READ_BYTES at once: most are in the system's page cache when the next columns are read, and a read for each row
    takes as long."""
    rows, columns = stored.shape
    if (begin, end) == (0, columns):
        whole = torch.empty((rows, columns), dtype=stored.dtype)
        read_bytes(files, stored, 0, whole)
        return whole
    result = torch.empty((rows, end - begin), dtype=stored.dtype)
    width = columns * stored.dtype.itemsize
    block = torch.empty((min(rows, max(1, READ_BYTES // width)), columns), dtype=stored.dtype)
    for row in range(0, rows, block.shape[0]):
        part = block[: rows - row]
        read_bytes(files, stored, row * width, part)
        result[row : row + part.shape[0]] = part[:, begin:end]
    return result


def _repeated_rows(
    files: OpenFiles, stored: StoredTensor, block_rows: int, columns: int, start: int, stop: int
) -> Tensor:
    """Row r // block_rows of a stored tensor of `columns` columns, for start ≤ r < stop."""
    first, last = start // block_rows, -(-stop // block_rows)
    rows = torch.empty((last - first, columns), dtype=stored.dtype)
    read_bytes(files, stored, first * columns * stored.dtype.itemsize, rows)
    if block_rows == 1:
        return rows
    return rows[torch.arange(start, stop) // block_rows - first]
