"""The checkpoints of compressed-tensors (llm-compressor): float-quantized, int-quantized, naive-quantized and
pack-quantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.models.checkpoint_fields import (
    FP8,
    INDICES,
    INT8,
    SCALES,
    WORDS,
    check_block,
    check_group_size,
    check_order,
    convert_fields,
    find_scalar,
    find_tensor,
    is_plain,
    read_tensor,
    row_group,
)
from engine.models.config import ModelRefused
from engine.models.files import DTYPES, WeightFiles
from engine.models.matrices import Element, MatrixFormat
from engine.models.matrix_readers import MatrixReader, NamedTensor, RowReader

PATTERNS_MAX = 1024  # of one list
PATTERN_BYTES_MAX = 1 << 20  # memory of one compiled pattern
# Of tensors of which only zeros are accepted.
ANY = DTYPES | FP8 | INT8 | INDICES

_Strategy = Literal["tensor", "channel", "group", "block"]


class _WeightArgs(msgspec.Struct):
    """`weights` of a scheme: compressed_tensors.quantization.QuantizationArgs."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: list[int] | str | None = None
    dynamic: bool | str | None = False
    actorder: bool | str | None = None


class _Scheme(msgspec.Struct):
    targets: list[str]
    weights: _WeightArgs | None = None
    format: str | None = None


class _CompressedTensorsConfig(msgspec.Struct):
    config_groups: dict[str, _Scheme]
    format: str
    ignore: list[str] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How compressed-tensors stores the matrices of one config group. `group`: columns of a group or block;
    `block_rows`: rows of a block. `packed`: numbers lie in int32 words. `is_reordered`: a `weight_g_idx` must exist."""

    element: Element
    strategy: _Strategy
    group: int | None
    block_rows: int
    packed: bool
    symmetric: bool
    is_reordered: bool


class _Names:
    """Names and `re:` patterns of modules, as `compressed_tensors.utils.match.match_name` reads them."""

    def __init__(self, key: str, targets: list[str]) -> None:
        self.exact = frozenset(target for target in targets if not target.startswith("re:"))
        patterns = [target.removeprefix("re:") for target in targets if target.startswith("re:")]
        if len(patterns) > PATTERNS_MAX:
            raise ModelRefused(f"{key}: {len(patterns)} patterns, more than {PATTERNS_MAX}")
        self._patterns = [_pattern(key, pattern) for pattern in patterns]

    def match_pattern(self, module: str) -> bool:
        return any(pattern.match(module) is not None for pattern in self._patterns)


def _pattern(key: str, pattern: str) -> Any:
    """An RE2 matcher: it takes linear time whatever the pattern. Raises ModelRefused."""
    import re2  # imported late: few configurations have patterns

    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeError) as error:
        raise ModelRefused(f"{key}: the pattern {pattern[:64]!r} is not supported") from error


class CompressedTensorsFormat:
    """compressed-tensors. The first config group whose targets name a module, match it or are `Linear`, in this order
    of precedence, has its scheme."""

    method = "compressed-tensors"

    def __init__(self, schemes: list[tuple[_Names, WeightScheme]], ignored: _Names) -> None:
        self._schemes = schemes
        self._ignored = ignored

    def reader(self, files: WeightFiles, module: str, out_features: int, in_features: int) -> MatrixReader | None:
        if is_plain(files, module):
            return None
        if module in self._ignored.exact or "Linear" in self._ignored.exact or self._ignored.match_pattern(module):
            raise ModelRefused(f"{module}: the config's `ignore` names it, but it is not stored in {', '.join(DTYPES)}")
        scheme = self._scheme(module)
        if scheme is None:
            raise ModelRefused(f"{module}: no target of the config_groups names it")
        return _compressed_reader(files, module, out_features, in_features, scheme)

    def _scheme(self, module: str) -> WeightScheme | None:
        precedence: tuple[Callable[[_Names], bool], ...] = (
            lambda names: module in names.exact,
            lambda names: names.match_pattern(module),
            lambda names: "Linear" in names.exact,
        )
        for matches in precedence:
            for names, scheme in self._schemes:
                if matches(names):
                    return scheme
        return None


def parse_compressed_tensors(key: str, found: dict[str, Any]) -> CompressedTensorsFormat:
    config = convert_fields(key, found, _CompressedTensorsConfig)
    if (config.sparsity_config or {}).get("format", "dense") != "dense":
        raise ModelRefused(f"{key}: sparsity_config: sparse weights are not supported")
    if config.transform_config and config.transform_config.get("config_groups", True):
        raise ModelRefused(f"{key}: transform_config: transformed weights are not supported")
    schemes = []
    for name, scheme in config.config_groups.items():
        where = f"{key}: config_groups.{name}"
        if scheme.weights is not None:
            parsed = _parse_scheme(where, scheme.format or config.format, scheme.weights)
            schemes.append((_Names(f"{where}.targets", scheme.targets), parsed))
    if not schemes:
        raise ModelRefused(f"{key}: config_groups: none has weights")
    return CompressedTensorsFormat(schemes, _Names(f"{key}: ignore", config.ignore or []))


def _parse_scheme(key: str, format: str, weights: _WeightArgs) -> WeightScheme:
    bits, kind = weights.num_bits, weights.type.lower()
    elements: dict[tuple[str, int, str], Element] = {
        ("float-quantized", 8, "float"): "fp8",
        ("naive-quantized", 8, "float"): "fp8",
        ("int-quantized", 8, "int"): "int8",
        ("naive-quantized", 8, "int"): "int8",
        ("pack-quantized", 8, "int"): "int8",
        ("pack-quantized", 4, "int"): "int4",
    }
    element = elements.get((format, bits, kind))
    if element is None:
        supported = "; ".join(f"{name} of {count} bits {number}" for name, count, number in elements)
        raise ModelRefused(f"{key}: format {format!r} of {bits} bits {kind!r} is not supported, only {supported}")
    if not weights.symmetric and element != "int4":
        raise ModelRefused(f"{key}: weights.symmetric: false is supported for 4 bits only")
    if weights.dynamic:
        raise ModelRefused(f"{key}: weights.dynamic: {weights.dynamic!r} is not supported")
    strategy, group, block_rows = _parse_strategy(key, weights)
    if element == "int4" and (strategy == "block" or (strategy == "tensor" and not weights.symmetric)):
        raise ModelRefused(f"{key}: weights.strategy: {strategy} is not supported for {format}")
    reordered = isinstance(weights.actorder, str) and weights.actorder.lower() in ("group", "dynamic")
    packed = format == "pack-quantized"
    return WeightScheme(
        element, strategy, group, block_rows, packed, weights.symmetric, weights.actorder is True or reordered
    )


def _parse_strategy(key: str, weights: _WeightArgs) -> tuple[_Strategy, int | None, int]:
    """Strategy, columns of a group, and rows of a block. Without `strategy`, `group_size` decides."""
    strategy = weights.strategy
    if strategy is None:
        strategy = "tensor" if weights.group_size is None else "channel" if weights.group_size == -1 else "group"
    strategy = strategy.lower()
    if strategy == "tensor":
        return "tensor", None, 1
    if strategy == "channel":
        return "channel", None, 1
    if strategy == "group" and weights.group_size is not None:
        group = check_group_size(f"{key}: weights", weights.group_size)
        return ("group", group, 1) if group is not None else ("channel", None, 1)
    if strategy == "block":
        rows, columns = check_block(f"{key}: weights.block_structure", weights.block_structure)
        return "block", columns, rows
    raise ModelRefused(
        f"{key}: weights.strategy: {strategy!r} with group_size {weights.group_size} is not supported, only tensor, "
        "channel, group and block"
    )


def _compressed_reader(
    files: WeightFiles, module: str, out_features: int, in_features: int, scheme: WeightScheme
) -> RowReader:
    group = row_group(scheme.group, in_features)
    if not scheme.packed:
        dtypes = FP8 if scheme.element == "fp8" else INT8
        data = find_tensor(files, f"{module}.weight", (out_features, in_features), dtypes)
    else:
        data = _find_packed(files, module, out_features, in_features, 4 if scheme.element == "int4" else 8)
    scale, block_rows = f"{module}.weight_scale", 1
    groups = -(-in_features // (group or in_features))
    if scheme.strategy == "tensor":
        scales, block_rows = find_scalar(files, scale), out_features
    else:
        block_rows = scheme.block_rows
        scales = find_tensor(files, scale, (-(-out_features // block_rows), groups), SCALES)
    check_order(files, f"{module}.weight_g_idx", group, in_features, required=scheme.is_reordered)
    zeros = None
    if not scheme.symmetric:
        zeros = find_tensor(files, f"{module}.weight_zero_point", (-(-out_features // 8), groups), WORDS)
    else:
        _check_no_zeros(files, f"{module}.weight_zero_point", scales.stored.shape)
    format = MatrixFormat(scheme.element, group, scales.stored.dtype, has_zeros=zeros is not None)
    unsigned = scheme.packed and scheme.element == "int8"
    return RowReader(module, out_features, in_features, format, data, scales, block_rows, zeros, unsigned)


def _find_packed(files: WeightFiles, module: str, out_features: int, in_features: int, bits: int) -> NamedTensor:
    name = f"{module}.weight_packed"
    if in_features * bits % 32:
        raise ModelRefused(f"{name}: {in_features} columns do not fill whole int32")
    data = find_tensor(files, name, (out_features, in_features * bits // 32), WORDS)
    if (shape := f"{module}.weight_shape") in files:
        found = read_tensor(files, find_tensor(files, shape, (2,), INDICES)).tolist()
        if found != [out_features, in_features]:
            raise ModelRefused(f"{shape}: it says {found}, the config says {[out_features, in_features]}")
    return data


def _check_no_zeros(files: WeightFiles, name: str, shape: tuple[int, ...]) -> None:
    """Old versions of compressed-tensors write zeros of 0 for symmetric weights. Raises ModelRefused for others."""
    if name in files and read_tensor(files, find_tensor(files, name, shape, ANY)).float().count_nonzero():
        raise ModelRefused(f"{name}: it is not 0, but the config says that weights are symmetric")
