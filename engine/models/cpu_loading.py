"""Reads the weights of a model into a CPU's memory, in the layouts that its products multiply with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from engine.models.checkpoints import load_quantization
from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles, weight_files
from engine.models.linear import CpuProduct, Int8Linear, Linear, can_pack, multiplies_int8
from engine.models.matrices import MatrixFormat, QuantizedMatrix, dequantize_matrix, quantize_matrix
from engine.models.matrix_readers import StackedMatrix
from engine.models.quantized import QUANTIZE_FORMATS, quantized_matrices
from engine.models.weights import Fused, Weights, assemble, fused_tensors, is_tied

# Models with larger files are not packed, since packing doubles their memory.
PACK_BYTES_MAX = 1024 * 1024 * 1024


class LoadStopped(Exception):
    """The load was cancelled."""


def check_weights(
    directory: Path, config: DecoderConfig, quantize: str = "none", kept: Collection[int] = ()
) -> dict[str, StackedMatrix]:
    """Check names and shapes, reading the headers only. Returns the quantised matrices by the name of the fused tensor.
    Raises ModelRefused naming the tensor, OSError."""
    with WeightFiles(directory) as files:
        matrices = quantized_matrices(config, files, load_quantization(directory), quantize, kept)
        for fused in fused_tensors(config, tied=is_tied(config, files)):
            if fused.name not in matrices:
                for name, rows in fused.stacked:
                    files.find(name, (rows, *fused.shape[1:]))
        return matrices


class CpuWeightReader:
    """Reads the tensors of a model into a CPU's memory, in `dtype`. A context manager: the files are open in it.

    A matrix of int8 with row scales is multiplied as such where this CPU does that faster; every other quantised matrix
    is dequantised."""

    def __init__(
        self,
        directory: Path,
        config: DecoderConfig,
        dtype: torch.dtype,
        *,
        quantize: str = "none",
        kept: Collection[int] = (),
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`quantize`, `kept`: as in `quantized_matrices`. Reads headers only. Raises ModelRefused, OSError."""
        self._files = WeightFiles(directory)
        try:
            self.tied = is_tied(config, self._files)
            self.matrices = quantized_matrices(config, self._files, load_quantization(directory), quantize, kept)
            self._packed = packs(weight_files(directory)) and not self.matrices
        except BaseException:
            self._files.close()
            raise
        self._known = {fused.name: fused for fused in fused_tensors(config, tied=self.tied)}
        self._dtype = dtype
        self._quantize = quantize
        self._stopped = stopped
        self._embedding: Tensor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._files.close()

    def read_tensor(self, name: str) -> Tensor:
        """A tensor that the files hold in a floating-point dtype. Raises OSError, LoadStopped."""
        self._check_stopped()
        if name == "embedding" and self._embedding is not None:
            return self._embedding
        fused, row = self._known[name], 0
        tensor = torch.empty(fused.shape, dtype=self._dtype)
        for source, rows in fused.stacked:
            self._files.read(self._files.find(source, (rows, *fused.shape[1:])), tensor[row : row + rows])
            row += rows
        if name == "embedding" and self.tied:
            self._embedding = tensor
        return tensor

    def read_product(self, name: str, bias: Tensor | None) -> CpuProduct:
        """The product of a matrix, in its format. Raises ModelRefused, OSError, LoadStopped."""
        self._check_stopped()
        if name in self.matrices:
            matrix = self.matrices[name].read(self._files)
            return quantized_product(matrix, self.matrices[name].format, self._known[name], self._dtype, bias)
        weight = self.read_tensor(name)
        format = None if self._known[name].is_linear else head_format(self._quantize)
        if format is None:
            return Linear(weight, bias, packed=self._packed)
        return quantized_product(quantize_matrix(weight, format, name), format, self._known[name], self._dtype, None)

    def read_reference(self, name: str, bias: Tensor | None) -> CpuProduct:
        """The product of the same matrix in `dtype`: of the files' unquantised matrix before it is quantised on
        loading, or of their quantised matrix, dequantised. Raises ModelRefused, OSError, LoadStopped."""
        self._check_stopped()
        if name in self.matrices and self._quantize == "none":
            matrix, format = self.matrices[name].read(self._files), self.matrices[name].format
            return Linear(dequantize_matrix(matrix, format, self._known[name].shape[1]).to(self._dtype), bias)
        return Linear(self.read_tensor(name), bias)

    def _check_stopped(self) -> None:
        if self._stopped():
            raise LoadStopped


def load_weights(
    directory: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    stopped: Callable[[], bool] = lambda: False,
    *,
    quantize: str = "none",
    kept: Collection[int] = (),
) -> Weights[CpuProduct]:
    """Read every tensor of the decoder into a CPU's memory. Raises ModelRefused naming the tensor, OSError, and
    LoadStopped soon after `stopped()`."""
    with CpuWeightReader(directory, config, dtype, quantize=quantize, kept=kept, stopped=stopped) as reader:
        return assemble(config, reader.read_tensor, reader.read_product, tied=reader.tied)


def quantized_product(
    matrix: QuantizedMatrix, format: MatrixFormat, fused: Fused, dtype: torch.dtype, bias: Tensor | None
) -> CpuProduct:
    """The product of a quantised matrix, as `load_weights` has it."""
    if _stays_int8(format):
        return Int8Linear(matrix.data.view(torch.int8), matrix.scales[:, 0], bias)
    return Linear(dequantize_matrix(matrix, format, fused.shape[1]).to(dtype), bias)


def head_format(quantize: str) -> MatrixFormat | None:
    """The format of lm_head, tied or not, of a model that is quantised on loading; None: it is not quantised."""
    return QUANTIZE_FORMATS[quantize] if quantize == "int8" and multiplies_int8() else None


def packs(files: list[Path]) -> bool:
    """Whether a model of these files is small enough to be packed."""
    return sum(path.stat().st_size for path in files) <= PACK_BYTES_MAX


def cpu_bytes(
    config: DecoderConfig,
    dtype: torch.dtype,
    *,
    packed: bool,
    formats: Mapping[str, MatrixFormat] | None = None,
    quantize: str = "none",
) -> int:
    """Memory that `load_weights` takes: each matrix once, twice if packed; the embedding beside lm_head, tied or not.
    `formats`: of the quantised matrices, by the name of the fused tensor. (MKL pads a packed tiny matrix by up to
    0.1 MB, which is not counted.)"""
    formats = formats or {}
    copies = 2 if packed and not formats and can_pack(torch.empty(1, 1, dtype=dtype)) else 1

    def size(fused: Fused) -> int:
        if fused.name in formats and _stays_int8(formats[fused.name]):
            return _int8_bytes(*fused.shape)
        is_vector_or_embedding = len(fused.shape) == 1 or fused.name == "embedding"
        return math.prod(fused.shape) * dtype.itemsize * (1 if is_vector_or_embedding else copies)

    head = math.prod((config.vocab, config.hidden)) * dtype.itemsize * copies
    if head_format(quantize) is not None:
        head = _int8_bytes(config.vocab, config.hidden)
    return sum(size(fused) for fused in fused_tensors(config, tied=True)) + head


def _stays_int8(format: MatrixFormat) -> bool:
    return format.element == "int8" and format.group is None and multiplies_int8()


def _int8_bytes(rows: int, columns: int) -> int:
    return rows * columns + rows * torch.float32.itemsize
