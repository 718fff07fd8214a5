"""The quantised matrices of a model: published quantised, or quantised while they are loaded.

A matrix of the decoder stacks modules of the checkpoint (q, k and v). Its rows are the modules' rows in turn, so all
modules must be in one format.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.checkpoints import CheckpointFormat
from engine.models.config import DecoderConfig, ModelRefused
from engine.models.files import OpenFiles, StoredTensor, WeightFiles, read_numbers
from engine.models.matrices import MatrixFormat, Part, quantize_matrix
from engine.models.matrix_readers import MatrixReader, StackedMatrix
from engine.models.weights import Fused, fused_tensors, is_tied

# Formats that `quantize` of a model names. A group of int4 is small, because no calibration corrects its errors.
QUANTIZE_FORMATS = {
    "fp8": MatrixFormat("fp8", None, torch.float32),
    "int8": MatrixFormat("int8", None, torch.float32),
    "int4": MatrixFormat("int4", 64, torch.float16),
}
# Part of the digest of a model that is quantised on loading: raised when `quantize_matrix` or QUANTIZE_FORMATS gives
# other numbers.
QUANTIZE_VERSION = 1
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class LoadedReader(MatrixReader):
    """A module stored in a floating-point dtype, quantised when its rows are read.

    Row scales are remembered, so that the scales, which follow the numbers in a slab, need no second read."""

    stored: StoredTensor
    scales: Tensor  # [out, groups], NaN where they were not read yet

    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        name = self.module + WEIGHT
        known = self.scales[start:stop]
        if part == "scales" and not torch.isnan(known).any():
            return name, known.clone()
        rows = torch.empty((stop - start, self.in_features), dtype=self.stored.dtype)
        at = self.stored.start + start * self.in_features * self.stored.dtype.itemsize
        read_numbers(files.descriptor(self.stored.file), self.stored.file, at, self.stored.dtype, rows)
        matrix = quantize_matrix(rows, self.format, name)
        known.copy_(matrix.scales)
        return name, matrix.scales if part == "scales" else matrix.data


@dataclass(frozen=True, slots=True)
class WideScales(MatrixReader):
    """A matrix whose row scales are widened to float32, which products of fp8 rows read."""

    stored: MatrixReader

    def fill_part(self, files: OpenFiles, part: Part, start: int, target: Tensor) -> None:
        if part == "data":
            self.stored.fill_part(files, part, start, target)
        else:
            super(WideScales, self).fill_part(files, part, start, target)

    def _read_named(self, files: OpenFiles, part: Part, start: int, stop: int) -> tuple[str, Tensor]:
        return self.module, self.stored.read_part(files, part, start, stop).to(self.format.part_dtype(part))


def quantized_matrices(
    config: DecoderConfig,
    files: WeightFiles,
    checkpoint: CheckpointFormat | None,
    quantize: str,
    kept: Collection[int] = (),
) -> dict[str, StackedMatrix]:
    """The matrices, by the name of the fused tensor, that are quantised in the files, or are to be quantised as
    `quantize` ("none" or one of QUANTIZE_FORMATS) says. `kept`: layers that are not quantised on loading. Reads headers
    only. Raises ModelRefused naming the module."""
    if checkpoint is not None and quantize != "none":
        raise ModelRefused(f"quantize: {quantize}, but the checkpoint is quantised already ({checkpoint.method})")
    if checkpoint is None and quantize == "none":
        return {}
    found: dict[str, StackedMatrix] = {}
    formats = formats_on_loading(config, quantize, kept)
    for fused in fused_tensors(config, tied=is_tied(config, files)):
        if not fused.is_linear:
            continue
        if fused.name in formats:
            found[fused.name] = _on_loading(files, fused, formats[fused.name])
        elif checkpoint is not None:
            readers = list(_published(files, fused, checkpoint))
            if readers:
                found[fused.name] = StackedMatrix([_widened(reader) for reader in readers])
    return found


def formats_on_loading(config: DecoderConfig, quantize: str, kept: Collection[int] = ()) -> dict[str, MatrixFormat]:
    """The formats of a model's matrices that are quantised on loading, by the name of the fused tensor. `kept`: layers
    that are not quantised."""
    if quantize == "none":
        return {}
    left = {f"layers.{index}" for index in kept}
    matrices = [
        fused
        for fused in fused_tensors(config, tied=True)
        if fused.is_linear and fused.name.rpartition(".")[0] not in left
    ]
    return {fused.name: _fitting(QUANTIZE_FORMATS[quantize], fused.shape[1]) for fused in matrices}


def quantized_digest(digest: str, quantize: str, kept: Collection[int] = ()) -> str:
    """The digest of a model of this digest that is quantised on loading, all but the layers `kept`: other numbers, so
    another content."""
    if quantize == "none":
        return digest
    text = f"{digest} quantize={quantize} version={QUANTIZE_VERSION} kept={sorted(kept)}"
    return hashlib.sha256(text.encode()).hexdigest()


def format_name(matrices: Mapping[str, StackedMatrix], checkpoint: CheckpointFormat | None, dtype: str) -> str:
    """The name of the weights' format for operators: `bfloat16`, `fp8`, or `int4 g128 (awq)` for a published
    checkpoint. A group is named where every row has several scales."""
    if not matrices:
        return dtype
    names = {
        matrix.format.element + ("" if matrix.format.group is None else f" g{matrix.format.group}")
        for matrix in matrices.values()
    }
    return ", ".join(sorted(names)) + ("" if checkpoint is None else f" ({checkpoint.method})")


def _fitting(format: MatrixFormat, columns: int) -> MatrixFormat:
    """A group that is as wide as the row is one scale a row."""
    return dataclasses.replace(format, group=None) if (format.group or 0) >= columns else format


def _on_loading(files: WeightFiles, fused: Fused, format: MatrixFormat) -> StackedMatrix:
    columns = fused.shape[1]
    readers: list[MatrixReader] = []
    for name, rows in fused.stacked:
        scales = torch.full((rows, format.groups(columns)), torch.nan, dtype=format.scale_dtype)
        stored = files.find(name, (rows, columns))
        readers.append(LoadedReader(name.removesuffix(WEIGHT), rows, columns, format, stored, scales))
    return StackedMatrix(readers)


def _published(files: WeightFiles, fused: Fused, checkpoint: CheckpointFormat) -> Iterator[MatrixReader]:
    """The readers of the stacked modules; none if all are stored in a floating-point dtype."""
    modules = [name.removesuffix(WEIGHT) for name, _ in fused.stacked]
    readers = [
        checkpoint.reader(files, module, rows, fused.shape[1])
        for module, (_, rows) in zip(modules, fused.stacked, strict=True)
    ]
    plain = [module for module, reader in zip(modules, readers, strict=True) if reader is None]
    if plain and len(plain) < len(modules):
        raise ModelRefused(f"{plain[0]} is not quantised, and others of {', '.join(modules)} are")
    return (reader for reader in readers if reader is not None)


def _widened(reader: MatrixReader) -> MatrixReader:
    if reader.format.group is not None:
        return reader
    format = dataclasses.replace(reader.format, scale_dtype=torch.float32)
    return WideScales(reader.module, reader.out_features, reader.in_features, format, reader)
