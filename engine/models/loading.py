"""Reads the weights of a model into a CPU's memory, in the layouts that its products multiply with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine.models.checkpoints import load_quantization
from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles, weight_files
from engine.models.linear import CpuProduct, Int8Linear, Linear, can_pack, multiplies_int8
from engine.models.matrices import MatrixFormat, QuantizedMatrix, dequantize_matrix, quantize_matrix
from engine.models.quantized import QUANTIZE_FORMATS, StackedMatrix, quantized_matrices
from engine.models.weights import Fused, Weights, assemble, fused_tensors, is_tied

# Models with larger files are not packed, since packing doubles their memory.
PACK_BYTES_MAX = 1024 * 1024 * 1024


class LoadStopped(Exception):
    """The load was cancelled."""


def check_weights(directory: Path, config: DecoderConfig, quantize: str = "none") -> dict[str, StackedMatrix]:
    """Check names and shapes, reading the headers only. Returns the quantised matrices by the name of the fused tensor.
    Raises ModelRefused naming the tensor, OSError."""
    with WeightFiles(directory) as files:
        matrices = quantized_matrices(config, files, load_quantization(directory), quantize)
        for fused in fused_tensors(config, tied=is_tied(config, files)):
            if fused.name not in matrices:
                for name, rows in fused.stacked:
                    files.find(name, (rows, *fused.shape[1:]))
        return matrices


def load_weights(
    directory: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    stopped: Callable[[], bool] = lambda: False,
    *,
    quantize: str = "none",
) -> Weights[CpuProduct]:
    """Read every tensor of the decoder into a CPU's memory. A matrix of int8 with row scales is multiplied as such
    where this CPU does that faster; every other quantised matrix is dequantised to `dtype`. Raises ModelRefused naming
    the tensor, OSError, and LoadStopped soon after `stopped()`."""
    with WeightFiles(directory) as files:
        tied = is_tied(config, files)
        known = {fused.name: fused for fused in fused_tensors(config, tied=tied)}
        matrices = quantized_matrices(config, files, load_quantization(directory), quantize)
        packed = packs(weight_files(directory)) and not matrices
        whole: dict[str, Tensor] = {}

        def read(name: str) -> Tensor:
            if stopped():
                raise LoadStopped
            if name in whole:  # the embedding, for a tied lm_head
                return whole[name]
            fused, row = known[name], 0
            tensor = torch.empty(fused.shape, dtype=dtype)
            for source, rows in fused.stacked:
                files.read(files.find(source, (rows, *fused.shape[1:])), tensor[row : row + rows])
                row += rows
            if name == "embedding" and tied:
                whole[name] = tensor
            return tensor

        def product(name: str, bias: Tensor | None) -> CpuProduct:
            if name in matrices:
                if stopped():
                    raise LoadStopped
                return quantized_product(matrices[name].read(files), matrices[name].format, known[name], dtype, bias)
            weight = read(name)
            if quantize == "int8" and multiplies_int8():
                format = QUANTIZE_FORMATS[quantize]
                return quantized_product(quantize_matrix(weight, format, name), format, known[name], dtype, None)
            return Linear(weight, bias, packed=packed)

        return assemble(config, read, product, tied=tied)


def quantized_product(
    matrix: QuantizedMatrix, format: MatrixFormat, fused: Fused, dtype: torch.dtype, bias: Tensor | None
) -> CpuProduct:
    """The product of a quantised matrix, as `load_weights` has it."""
    if _stays_int8(format):
        return Int8Linear(matrix.data.view(torch.int8), matrix.scales[:, 0], bias)
    return Linear(dequantize_matrix(matrix, format, fused.shape[1]).to(dtype), bias)


def packs(files: list[Path]) -> bool:
    """Whether a model of these files is small enough to be packed."""
    return sum(path.stat().st_size for path in files) <= PACK_BYTES_MAX


def cpu_bytes(
    config: DecoderConfig,
    dtype: torch.dtype,
    *,
    packed: bool,
    matrices: Mapping[str, StackedMatrix] | None = None,
    quantize: str = "none",
) -> int:
    """Memory that `load_weights` takes: each matrix once, twice if packed; the embedding beside lm_head, tied or not.
    (MKL pads a packed tiny matrix by up to 0.1 MB, which is not counted.)"""
    matrices = matrices or {}
    copies = 2 if packed and not matrices and can_pack(torch.empty(1, 1, dtype=dtype)) else 1

    def size(fused: Fused) -> int:
        if fused.name in matrices and _stays_int8(matrices[fused.name].format):
            return _int8_bytes(*fused.shape)
        is_vector_or_embedding = len(fused.shape) == 1 or fused.name == "embedding"
        return math.prod(fused.shape) * dtype.itemsize * (1 if is_vector_or_embedding else copies)

    head = math.prod((config.vocab, config.hidden)) * dtype.itemsize * copies
    if quantize == "int8" and multiplies_int8():
        head = _int8_bytes(config.vocab, config.hidden)
    return sum(size(fused) for fused in fused_tensors(config, tied=True)) + head


def _stays_int8(format: MatrixFormat) -> bool:
    return format.element == "int8" and format.group is None and multiplies_int8()


def _int8_bytes(rows: int, columns: int) -> int:
    return rows * columns + rows * torch.float32.itemsize
