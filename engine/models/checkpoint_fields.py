"""Shared by the published formats of quantised checkpoints: fields of their configs, and tensors that their
matrices consist of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import torch

from engine.models.config import SIZE_MAX, ModelRefused
from engine.models.files import DTYPES, WeightFiles
from engine.models.matrices import GROUP_MULTIPLE
from engine.models.matrix_readers import NamedTensor

FP8 = {"F8_E4M3": torch.float8_e4m3fn}
INT8 = {"I8": torch.int8}
WORDS = {"I32": torch.int32}
INDICES = {"I32": torch.int32, "I64": torch.int64}
SCALES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# The tensors of a quantised module beside its bias, in any of the formats.
QUANTIZED_SUFFIXES = (
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "qweight",
    "qzeros",
    "scales",
)

_T = TypeVar("_T")


def convert_fields(key: str, found: dict[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(found, type=kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise ModelRefused(f"{key}: {error}") from error


def check_group_size(key: str, group: int) -> int | None:
    """`group_size` as files have it: -1 is one scale a row. Raises ModelRefused."""
    if group == -1:
        return None
    if not 0 < group <= SIZE_MAX or group % GROUP_MULTIPLE:
        raise ModelRefused(f"{key}: group_size {group} is not supported, only -1 and multiples of {GROUP_MULTIPLE}")
    return group


def row_group(group: int | None, in_features: int) -> int | None:
    """One group a row is None, as MatrixFormat has it."""
    return None if group is None or group >= in_features else group


def find_tensor(
    files: WeightFiles, name: str, shape: tuple[int, ...], dtypes: Mapping[str, torch.dtype]
) -> NamedTensor:
    return NamedTensor(name, files.find(name, shape, dtypes))


def find_scalar(files: WeightFiles, name: str) -> NamedTensor:
    """A scale of the whole matrix, which is published with shape [], [1] or [1, 1]."""
    shape = files.stored_shape(name)
    return find_tensor(files, name, shape if shape in ((), (1, 1)) else (1,), SCALES)


def is_plain(files: WeightFiles, module: str) -> bool:
    """Whether the module is stored unquantised. Raises ModelRefused if it is stored both ways."""
    name = f"{module}.weight"
    if name not in files or files.stored_dtype(name) not in DTYPES:
        return False
    for suffix in QUANTIZED_SUFFIXES:
        if f"{module}.{suffix}" in files:
            raise ModelRefused(f"{name} is of dtype {files.stored_dtype(name)}, but {module}.{suffix} exists")
    return True


def read_tensor(files: WeightFiles, tensor: NamedTensor) -> torch.Tensor:
    """All numbers of a small tensor."""
    target = torch.empty(tensor.stored.shape, dtype=tensor.stored.dtype)
    files.read(tensor.stored, target)
    return target


def check_order(files: WeightFiles, name: str, group: int | None, in_features: int, *, required: bool) -> None:
    """Check that the groups of an optional `g_idx` are consecutive columns. Raises ModelRefused."""
    if name not in files:
        if required:
            raise ModelRefused(f"{name} is missing: the config says that columns are reordered")
        return
    found = read_tensor(files, find_tensor(files, name, (in_features,), INDICES))
    columns = torch.arange(in_features)
    if not torch.equal(found.long(), columns // (group or in_features)):
        raise ModelRefused(f"{name}: reordered columns (desc_act, actorder) are not supported")


def check_block(key: str, block: object) -> tuple[int, int]:
    """Rows and columns of a block. Raises ModelRefused."""
    if not (isinstance(block, list) and len(block) == 2 and all(0 < size <= SIZE_MAX for size in block)):
        raise ModelRefused(f"{key}: {block!r} is not two positive numbers")
    if block[1] % GROUP_MULTIPLE:
        raise ModelRefused(f"{key}: {block[1]} columns are not supported, only multiples of {GROUP_MULTIPLE}")
    return block[0], block[1]
