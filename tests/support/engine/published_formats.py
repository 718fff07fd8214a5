"""Quantised matrices and tiny models in each published format, written number by number after the formats' definitions.

No code of the product writes them: expected values are computed with Python's numbers. The definitions:
- compressed-tensors: https://github.com/vllm-project/compressed-tensors, compressors/pack_quantized and naive_quantized
- fp8 in blocks: DeepSeek-V3's inference/kernel.py (weight_dequant) and transformers' FineGrainedFP8Config
- AWQ: https://github.com/casper-hansen/AutoAWQ, awq/modules/linear/gemm.py (WQLinear_GEMM.from_linear)
- GPTQ: https://github.com/ModelCloud/GPTQModel, nn_modules/qlinear (pack) and utils/model.py (v1 and v2)
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.checkpoints import load_quantization
from engine.models.config import load_config
from engine.models.files import WeightFiles
from engine.models.matrices import dequantize_matrix

Tensors = dict[str, Tensor]
Grid = list[list[int]]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def fp8_number(bits: int) -> float:
    """OCP 8-bit floating point, E4M3: bias 7, no infinities."""
    sign, exponent, mantissa = -1.0 if bits & 0x80 else 1.0, bits >> 3 & 15, bits & 7
    assert bits & 0x7F != 0x7F, "NaN"
    return sign * (2.0**-6 * mantissa / 8 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8))


def int32(nibbles: list[int], bits: int = 4) -> int:
    """A word with the first number in the lowest bits, as a signed number."""
    word = sum(number << bits * place for place, number in enumerate(nibbles))
    return word - (1 << 32) if word >= 1 << 31 else word


def words(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def random_scales(rows: int, columns: int, dtype: torch.dtype, draw: random.Random) -> Tensor:
    """About the size of a random model's weights."""
    scales = [[draw.uniform(0.5, 2.0) / 100 for _ in range(columns)] for _ in range(rows)]
    return torch.tensor(scales, dtype=torch.float64).to(dtype)


def truth(numbers: list[list[float]], scale: Callable[[int, int], Tensor]) -> Tensor:
    """numbers[n][k] · scale(n, k): exact in a double, and then rounded to float32 once."""
    rows = [[number * float(scale(n, k)) for k, number in enumerate(row)] for n, row in enumerate(numbers)]
    return torch.tensor(rows, dtype=torch.float64).float()


@dataclass(frozen=True)
class PublishedFormat:
    """`config`: the quantization_config. `write(module, out, in, draw)`: a random matrix's tensors in the files, and
    its numbers in float32."""

    name: str
    config: dict[str, Any]
    write: Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]


# ---- compressed-tensors


def compressed_config(format: str, **weights: Any) -> dict[str, Any]:
    scheme = {"dynamic": False, "observer": "minmax", "symmetric": True} | weights
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def eight_bits(
    element: str, strategy: str, dtype: torch.dtype, *, group: int = 0, block: tuple[int, int] = (128, 128)
) -> Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]:
    """`weight` in fp8 or int8, `weight_scale` by tensor, channel, group or block."""

    def write(module: str, rows: int, columns: int, draw: random.Random) -> tuple[Tensors, Tensor]:
        if element == "fp8":
            legal = [bits for bits in range(256) if bits & 0x7F != 0x7F and bits & 0x7F < 0x60]
            bits = [[draw.choice(legal) for _ in range(columns)] for _ in range(rows)]
            weight = torch.tensor(bits, dtype=torch.uint8).view(torch.float8_e4m3fn)
            numbers = [[fp8_number(value) for value in row] for row in bits]
        else:
            whole = [[draw.randint(-128, 127) for _ in range(columns)] for _ in range(rows)]
            weight, numbers = torch.tensor(whole, dtype=torch.int8), [[float(value) for value in row] for row in whole]
        high, wide = {
            "tensor": (rows, columns),
            "channel": (1, columns),
            "group": (1, group),
            "block": block,
        }[strategy]
        scales = random_scales(-(-rows // high), -(-columns // wide), dtype, draw) / (4 if element == "fp8" else 40)
        found = truth(numbers, lambda n, k: scales[n // high, k // wide])
        stored = scales.flatten() if strategy == "tensor" else scales
        return {f"{module}.weight": weight, f"{module}.weight_scale": stored}, found

    return write


def packed(
    bits: int, group: int | None, dtype: torch.dtype, *, symmetric: bool = True
) -> Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]:
    """pack-quantized: signed numbers plus half of the range, along the columns; zeros likewise, along the rows."""
    half = 1 << bits - 1

    def write(module: str, rows: int, columns: int, draw: random.Random) -> tuple[Tensors, Tensor]:
        wide, per_word = group or columns, 32 // bits
        groups = -(-columns // wide)
        numbers = [[draw.randrange(-half, half) for _ in range(columns)] for _ in range(rows)]
        zeros = [[0 if symmetric else draw.randrange(-half, half) for _ in range(groups)] for _ in range(rows)]
        scales = random_scales(rows, groups, dtype, draw) * (1 if bits == 4 else 0.06)
        scales = scales.to(dtype)
        stored = [
            [int32([number + half for number in row[at : at + per_word]], bits) for at in range(0, columns, per_word)]
            for row in numbers
        ]
        tensors = {
            f"{module}.weight_packed": words(stored),
            f"{module}.weight_scale": scales,
            f"{module}.weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            padded = zeros + [[-half] * groups] * (-rows % per_word)
            tensors[f"{module}.weight_zero_point"] = words(
                [
                    [int32([row[g] + half for row in padded[at : at + per_word]], bits) for g in range(groups)]
                    for at in range(0, rows, per_word)
                ]
            )
        shifted = [
            [float(number - zeros[n][k // wide]) for k, number in enumerate(row)] for n, row in enumerate(numbers)
        ]
        return tensors, truth(shifted, lambda n, k: scales[n, k // wide])

    return write


# ---- fp8 of DeepSeek, Qwen and vLLM


def fp8_config(block: list[int] | None) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": block,
        "modules_to_not_convert": ["lm_head"],
    }


def renamed(
    write: Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]],
) -> Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]:
    """The same tensors, with DeepSeek's name of the scales."""

    def write_renamed(module: str, rows: int, columns: int, draw: random.Random) -> tuple[Tensors, Tensor]:
        tensors, found = write(module, rows, columns, draw)
        return {name.replace("weight_scale", "weight_scale_inv"): value for name, value in tensors.items()}, found

    return write_renamed


# ---- AWQ


def awq_config(group: int, *, zero_point: bool) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": zero_point,
        "modules_to_not_convert": None,
    }


def awq(group: int | None, *, zero_point: bool) -> Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]:
    def write(module: str, rows: int, columns: int, draw: random.Random) -> tuple[Tensors, Tensor]:
        wide = group or columns
        groups = columns // wide
        numbers = [[draw.randrange(16) for _ in range(columns)] for _ in range(rows)]
        zeros = [[draw.randrange(16) if zero_point else 8 for _ in range(groups)] for _ in range(rows)]
        scales = random_scales(groups, rows, torch.float16, draw)

        def word(of: Grid, first: int, column: int) -> int:
            return int32([of[first + AWQ_ORDER[nibble]][column] for nibble in range(8)])

        tensors = {
            f"{module}.qweight": words([[word(numbers, n, k) for n in range(0, rows, 8)] for k in range(columns)]),
            f"{module}.scales": scales,
        }
        if zero_point:
            tensors[f"{module}.qzeros"] = words([[word(zeros, n, g) for n in range(0, rows, 8)] for g in range(groups)])
        shifted = [
            [float(number - zeros[n][k // wide]) for k, number in enumerate(row)] for n, row in enumerate(numbers)
        ]
        return tensors, truth(shifted, lambda n, k: scales[k // wide, n])

    return write


# ---- GPTQ


def gptq_config(bits: int, group: int, format: str, *, symmetric: bool) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": False,
        "checkpoint_format": format,
        "damp_percent": 0.01,
        "true_sequential": True,
        "lm_head": False,
    }


def gptq(
    bits: int, group: int | None, *, symmetric: bool, minus_one: bool
) -> Callable[[str, int, int, random.Random], tuple[Tensors, Tensor]]:
    """Zeros of v1 are whole words less by a one in each number, as GPTQModel writes them."""
    half, per_word = 1 << bits - 1, 32 // bits

    def write(module: str, rows: int, columns: int, draw: random.Random) -> tuple[Tensors, Tensor]:
        wide = group or columns
        groups = -(-columns // wide)
        numbers = [[draw.randrange(2 * half) for _ in range(columns)] for _ in range(rows)]
        zeros = [[half if symmetric else draw.randrange(2 * half) for _ in range(groups)] for _ in range(rows)]
        scales = random_scales(groups, rows, torch.float16, draw) * (1 if bits == 4 else 0.06)
        qweight = [
            [int32([numbers[n][k] for k in range(at, at + per_word)], bits) for n in range(rows)]
            for at in range(0, columns, per_word)
        ]
        ones = sum(1 << bits * place for place in range(per_word)) if minus_one else 0
        qzeros = [
            [
                (int32([zeros[n][g] for n in range(at, at + per_word)], bits) - ones + 2**31) % 2**32 - 2**31
                for at in range(0, rows, per_word)
            ]
            for g in range(groups)
        ]
        shifted = [
            [float(number - zeros[n][k // wide]) for k, number in enumerate(row)] for n, row in enumerate(numbers)
        ]
        tensors = {
            f"{module}.qweight": words(qweight),
            f"{module}.qzeros": words(qzeros),
            f"{module}.scales": scales,
            f"{module}.g_idx": torch.tensor([k // wide for k in range(columns)], dtype=torch.int32),
        }
        return tensors, truth(shifted, lambda n, k: scales[k // wide, n])

    return write


F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FP8, INT8 = {"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "int"}
INT4 = {"num_bits": 4, "type": "int"}
BLOCK = {"strategy": "block", "block_structure": [128, 128]}
PUBLISHED = {
    published.name: published
    for published in (
        PublishedFormat(
            "float-tensor",
            compressed_config("float-quantized", strategy="tensor", **FP8),
            eight_bits("fp8", "tensor", F32),
        ),
        PublishedFormat(
            "float-channel",
            compressed_config("float-quantized", strategy="channel", **FP8),
            eight_bits("fp8", "channel", BF16),
        ),
        PublishedFormat(
            "float-block", compressed_config("float-quantized", **BLOCK, **FP8), eight_bits("fp8", "block", F32)
        ),
        PublishedFormat(
            "int-channel",
            compressed_config("int-quantized", strategy="channel", **INT8),
            eight_bits("int8", "channel", F32),
        ),
        PublishedFormat(
            "int-tensor",
            compressed_config("int-quantized", strategy="tensor", **INT8),
            eight_bits("int8", "tensor", BF16),
        ),
        PublishedFormat(
            "naive-group",
            compressed_config("naive-quantized", strategy="group", group_size=32, **INT8),
            eight_bits("int8", "group", F16, group=32),
        ),
        PublishedFormat(
            "pack-group",
            compressed_config("pack-quantized", strategy="group", group_size=32, actorder="weight", **INT4),
            packed(4, 32, BF16),
        ),
        PublishedFormat(
            "pack-group-zeros",
            compressed_config("pack-quantized", strategy="group", group_size=32, **INT4 | {"symmetric": False}),
            packed(4, 32, F32, symmetric=False),
        ),
        PublishedFormat(
            "pack-channel", compressed_config("pack-quantized", strategy="channel", **INT4), packed(4, None, F32)
        ),
        PublishedFormat(
            "pack-channel-zeros",
            compressed_config("pack-quantized", group_size=-1, **INT4 | {"symmetric": False}),
            packed(4, None, F16, symmetric=False),
        ),
        PublishedFormat(
            "pack-8",
            compressed_config("pack-quantized", strategy="group", group_size=64, **INT8),
            packed(8, 64, F32),
        ),
        PublishedFormat("fp8-block", fp8_config([128, 128]), renamed(eight_bits("fp8", "block", BF16))),
        PublishedFormat(
            "fp8-small-block", fp8_config([48, 32]), renamed(eight_bits("fp8", "block", F32, block=(48, 32)))
        ),
        PublishedFormat("fp8-tensor", fp8_config(None), eight_bits("fp8", "tensor", F32)),
        PublishedFormat("awq", awq_config(32, zero_point=True), awq(32, zero_point=True)),
        PublishedFormat("awq-row", awq_config(-1, zero_point=True), awq(None, zero_point=True)),
        PublishedFormat("awq-symmetric", awq_config(64, zero_point=False), awq(64, zero_point=False)),
        PublishedFormat(
            "gptq", gptq_config(4, 32, "gptq", symmetric=True), gptq(4, 32, symmetric=True, minus_one=True)
        ),
        PublishedFormat(
            "gptq-zeros", gptq_config(4, 64, "gptq", symmetric=False), gptq(4, 64, symmetric=False, minus_one=True)
        ),
        PublishedFormat(
            "gptq-v2", gptq_config(4, 32, "gptq_v2", symmetric=False), gptq(4, 32, symmetric=False, minus_one=False)
        ),
        PublishedFormat(
            "gptq-row", gptq_config(4, -1, "gptq", symmetric=True), gptq(4, None, symmetric=True, minus_one=True)
        ),
        PublishedFormat(
            "gptq-8", gptq_config(8, 32, "gptq", symmetric=True), gptq(8, 32, symmetric=True, minus_one=True)
        ),
    )
}


def quantize_directory(directory: Path, published: PublishedFormat, *, seed: int = 0) -> Tensors:
    """Replace the projections of a model that `oracle.save_tiny` wrote with random matrices of that format. Returns
    their numbers in float32, by the tensor's name in the plain model."""
    file, draw = directory / "model.safetensors", random.Random(seed)
    tensors, numbers = load_file(file), {}
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        if module.endswith(PROJECTIONS):
            rows, columns = tensors.pop(name).shape
            stored, numbers[name] = published.write(module, rows, columns, draw)
            tensors |= stored
    save_file(tensors, file, metadata={"format": "pt"})
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"quantization_config": published.config}))
    return numbers


def read_projections(directory: Path) -> dict[str, torch.Tensor]:
    """The numbers of all matrices of a quantised model, as the product reads them, by the tensor's name in the plain
    model."""
    config, format, found = load_config(directory, quantized=True), load_quantization(directory), {}
    assert format is not None
    shapes = {
        "self_attn.q_proj": (config.q_size, config.hidden),
        "self_attn.k_proj": (config.kv_size, config.hidden),
        "self_attn.v_proj": (config.kv_size, config.hidden),
        "self_attn.o_proj": (config.hidden, config.q_size),
        "mlp.gate_proj": (config.intermediate, config.hidden),
        "mlp.up_proj": (config.intermediate, config.hidden),
        "mlp.down_proj": (config.hidden, config.intermediate),
    }
    with WeightFiles(directory) as files:
        assert format.reader(files, "lm_head", config.vocab, config.hidden) is None
        for layer in range(config.layers):
            for name, (rows, columns) in shapes.items():
                module = f"model.layers.{layer}.{name}"
                reader = format.reader(files, module, rows, columns)
                assert reader is not None
                matrix = reader.read_rows(files, 0, rows)
                found[f"{module}.weight"] = dequantize_matrix(matrix, reader.format, columns)
    return found
