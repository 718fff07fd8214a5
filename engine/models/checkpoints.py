"""The published formats of quantised checkpoints: what config.json says of them, and a reader for each matrix.

Supported are compressed-tensors (float-quantized, int-quantized, naive-quantized, pack-quantized), fp8 as DeepSeek,
Qwen and vLLM publish it, AWQ (gemm) and GPTQ. A config's settings of activations and of the KV cache
(`input_activations`, `activation_scheme`, `kv_cache_scheme`, and the scales that belong to them) are ignored: the
engine chooses both itself. Everything else is refused by name.

A matrix that the files hold in a floating-point dtype is served as it is, whatever a list of exceptions says: loaders
read the lists of AWQ, GPTQ and fp8 differently. compressed-tensors defines how its list is read, so there a matrix that
is stored against it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from engine.models.checkpoint_fields import (
    FP8,
    SCALES,
    WORDS,
    check_block,
    check_group_size,
    check_order,
    convert_fields,
    find_scalar,
    find_tensor,
    is_plain,
    row_group,
)
from engine.models.compressed_tensors import parse_compressed_tensors
from engine.models.config import ModelRefused, read_config
from engine.models.files import WeightFiles
from engine.models.matrices import Element, MatrixFormat
from engine.models.matrix_readers import AwqReader, GptqReader, MatrixReader, RowReader

METHODS = ("compressed-tensors", "fp8", "awq", "gptq")


class CheckpointFormat(Protocol):
    """How the matrices of a model directory are stored."""

    @property
    def method(self) -> str:
        """One of METHODS."""
        ...

    def reader(self, files: WeightFiles, module: str, out_features: int, in_features: int) -> MatrixReader | None:
        """What reads the matrix [out_features, in_features] of a Hugging Face module, such as
        `model.layers.0.self_attn.q_proj`; None if `module.weight` is stored in a floating-point dtype. Reads the
        headers, and tensors of a few KB. Raises ModelRefused naming the tensor, OSError."""
        ...


def load_quantization(directory: Path) -> CheckpointFormat | None:
    """Read the format in `directory/config.json`; None if the model is not quantised. Raises ModelRefused."""
    return parse_quantization(read_config(directory))


def parse_quantization(data: Mapping[str, Any]) -> CheckpointFormat | None:
    """The format from `quantization_config` or `compression_config` of a config.json. Raises ModelRefused naming the
    key."""
    key = "quantization_config" if data.get("quantization_config") else "compression_config"
    found = data.get(key)
    if not found:
        return None
    if not isinstance(found, dict):
        raise ModelRefused(f"{key}: it is not a JSON object")
    method = found.get("quant_method", "compressed-tensors" if "config_groups" in found else None)
    if method == "compressed-tensors":
        return parse_compressed_tensors(key, found)
    if method == "fp8":
        return _parse_fp8(key, found)
    if method == "awq":
        return _parse_awq(key, found)
    if method == "gptq":
        return _parse_gptq(key, found)
    raise ModelRefused(f"{key}: quant_method {method!r} is not supported, only {', '.join(METHODS)}")


# ---- fp8


class _Fp8Config(msgspec.Struct):
    """Keys of transformers' FineGrainedFP8Config and vLLM's Fp8Config."""

    weight_block_size: list[int] | None = None
    fmt: str | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


@dataclass(frozen=True)
class Fp8Format:
    """fp8: `weight` with `weight_scale_inv` for each block, as DeepSeek and Qwen publish it, or without `block` with
    one `weight_scale` (or `weight_scale_inv`) of the whole matrix. Both are factors, despite the name."""

    block: tuple[int, int] | None
    method = "fp8"

    def reader(self, files: WeightFiles, module: str, out_features: int, in_features: int) -> MatrixReader | None:
        if is_plain(files, module):
            return None
        data = find_tensor(files, f"{module}.weight", (out_features, in_features), FP8)
        scale = f"{module}.weight_scale_inv"
        if self.block is None:
            if scale not in files:
                scale = f"{module}.weight_scale"
            group, block_rows, scales = None, out_features, find_scalar(files, scale)
        else:
            block_rows, group = self.block[0], row_group(self.block[1], in_features)
            blocks = -(-out_features // block_rows), -(-in_features // (group or in_features))
            scales = find_tensor(files, scale, blocks, SCALES)
        format = MatrixFormat("fp8", group, scales.stored.dtype)
        return RowReader(module, out_features, in_features, format, data, scales, block_rows)


def _parse_fp8(key: str, found: dict[str, Any]) -> Fp8Format:
    config = convert_fields(key, found, _Fp8Config)
    if config.fmt not in (None, "e4m3"):
        raise ModelRefused(f"{key}: fmt: {config.fmt!r} is not supported, only e4m3")
    block = config.weight_block_size
    return Fp8Format(None if block is None else check_block(f"{key}: weight_block_size", block))


# ---- AWQ


class _AwqConfig(msgspec.Struct):
    bits: int
    group_size: int
    zero_point: bool = True
    version: str | None = None
    format: str | None = None
    modules_to_not_convert: list[str] | None = None


@dataclass(frozen=True)
class AwqFormat:
    """AutoAWQ's `gemm`. `group` None: one scale a row."""

    group: int | None
    zero_point: bool
    method = "awq"

    def reader(self, files: WeightFiles, module: str, out_features: int, in_features: int) -> MatrixReader | None:
        if is_plain(files, module):
            return None
        group, name = row_group(self.group, in_features), f"{module}.qweight"
        _check_words(name, out_features, in_features)
        groups = -(-in_features // (group or in_features))
        qweight = find_tensor(files, name, (in_features, out_features // 8), WORDS)
        scales = find_tensor(files, f"{module}.scales", (groups, out_features), SCALES)
        qzeros = None
        if self.zero_point or f"{module}.qzeros" in files:  # AutoAWQ's own reader applies them in either case
            qzeros = find_tensor(files, f"{module}.qzeros", (groups, out_features // 8), WORDS)
        format = MatrixFormat("int4", group, scales.stored.dtype, has_zeros=qzeros is not None)
        return AwqReader(module, out_features, in_features, format, qweight, scales, qzeros)


def _check_words(name: str, out_features: int, in_features: int) -> None:
    for features in (out_features, in_features):
        if features % 8:
            raise ModelRefused(f"{name}: {features} numbers do not fill whole int32")


def _parse_awq(key: str, found: dict[str, Any]) -> AwqFormat:
    config = convert_fields(key, found, _AwqConfig)
    version = (config.version or config.format or "gemm").lower()
    if version != "gemm":
        raise ModelRefused(f"{key}: version: {version!r} is not supported for awq, only gemm")
    if config.bits != 4:
        raise ModelRefused(f"{key}: bits: {config.bits} is not supported for awq, only 4")
    return AwqFormat(check_group_size(key, config.group_size), config.zero_point)


# ---- GPTQ


class _GptqConfig(msgspec.Struct):
    """Keys of AutoGPTQ and GPTQModel. `dynamic`: other parameters, by pattern; `-:` patterns name unquantised
    modules."""

    bits: int
    group_size: int
    sym: bool | None = None
    desc_act: bool = False
    checkpoint_format: str | None = None
    format: str | None = None
    is_marlin_format: bool = False
    pack_dtype: str = "int32"
    dynamic: dict[str, Any] | bool | None = None
    adapter: Any = None


@dataclass(frozen=True)
class GptqFormat:
    """GPTQ of AutoGPTQ and GPTQModel. `group` None: one scale a row. `minus_one`: as in `GptqReader`."""

    bits: int
    group: int | None
    symmetric: bool
    is_reordered: bool
    minus_one: bool
    method = "gptq"

    def reader(self, files: WeightFiles, module: str, out_features: int, in_features: int) -> MatrixReader | None:
        if is_plain(files, module):
            return None
        group, name = row_group(self.group, in_features), f"{module}.qweight"
        _check_words(name, out_features, in_features)
        groups = -(-in_features // (group or in_features))
        per_word = 32 // self.bits
        qweight = find_tensor(files, name, (in_features // per_word, out_features), WORDS)
        scales = find_tensor(files, f"{module}.scales", (groups, out_features), SCALES)
        qzeros = find_tensor(files, f"{module}.qzeros", (groups, out_features // per_word), WORDS)
        check_order(files, f"{module}.g_idx", group, in_features, required=self.is_reordered)
        element: Element = "int4" if self.bits == 4 else "int8"
        format = MatrixFormat(element, group, scales.stored.dtype, has_zeros=not self.symmetric)
        return GptqReader(module, out_features, in_features, format, qweight, scales, qzeros, self.minus_one)


def _parse_gptq(key: str, found: dict[str, Any]) -> GptqFormat:
    config = convert_fields(key, found, _GptqConfig)
    format = config.checkpoint_format or config.format or "gptq"
    if format not in ("gptq", "gptq_v2") or config.is_marlin_format:
        raise ModelRefused(f"{key}: checkpoint_format: {format!r} is not supported for gptq, only gptq and gptq_v2")
    if config.bits not in (4, 8):
        raise ModelRefused(f"{key}: bits: {config.bits} is not supported for gptq, only 4 and 8")
    if config.bits == 8 and config.sym is False:
        raise ModelRefused(f"{key}: sym: false is not supported for 8 bits, only for 4")
    if config.pack_dtype != "int32":
        raise ModelRefused(f"{key}: pack_dtype: {config.pack_dtype!r} is not supported, only int32")
    if isinstance(config.dynamic, dict) and not all(pattern.startswith("-:") for pattern in config.dynamic):
        raise ModelRefused(f"{key}: dynamic: parameters of single modules are not supported")
    if config.adapter:
        raise ModelRefused(f"{key}: adapter: it is not supported")
    group = check_group_size(key, config.group_size)
    symmetric = config.sym is True or config.bits == 8  # GptqReader checks it
    return GptqFormat(config.bits, group, symmetric, config.desc_act, minus_one=format == "gptq")
