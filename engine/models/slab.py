"""A model's weights as one slab of bytes: where each tensor lies in it, and which stretch of which file fills it.

Headers alone say that: names and shapes are checked, and no number is read. It must never know a device or a request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import DecoderConfig, ModelRefused
from engine.models.linear import Linear
from engine.models.weights import LayerWeights, Weights, weight_files

# Every tensor begins at a multiple of this: what a product on a GPU reads fastest.
ALIGN_BYTES = 256
FILE_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the slab. `stacked`: (name, rows) of the files' tensors that lie in it, one after another."""

    offset: int
    shape: tuple[int, ...]
    stacked: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Of one model in one dtype. A tied lm_head is the embedding, and has no part."""

    dtype: torch.dtype
    parts: dict[str, Part]
    bytes: int

    def view(self, slab: Tensor, name: str) -> Tensor:
        part = self.parts[name]
        size = math.prod(part.shape) * self.dtype.itemsize
        return slab[part.offset : part.offset + size].view(self.dtype).view(part.shape)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`count` numbers that lie end to end in a file, from byte `start`, and in the slab, from byte `offset`."""

    offset: int
    count: int
    file: Path
    start: int
    dtype: torch.dtype


def slab_layout(config: DecoderConfig, dtype: torch.dtype, *, tied: bool) -> SlabLayout:
    parts: dict[str, Part] = {}
    position = 0
    for name, shape, stacked in _tensors(config, tied):
        parts[name] = Part(position, shape, stacked)
        size = math.prod(shape) * dtype.itemsize
        position += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return SlabLayout(dtype, parts, position)


_Form = tuple[str, tuple[int, ...], tuple[tuple[str, int], ...]]


def _tensors(config: DecoderConfig, tied: bool) -> Iterator[_Form]:
    """(name here, shape, what is stacked in it): the names are Hugging Face's."""

    def one(name: str, source: str, *shape: int) -> _Form:
        return name, shape, ((source, shape[0]),)

    hidden, inner = config.hidden, config.intermediate
    qkv = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    yield one("embedding", "model.embed_tokens.weight", config.vocab, hidden)
    for index in range(config.layers):
        own, source = f"layers.{index}.", f"model.layers.{index}."
        attention, mlp = source + "self_attn.", source + "mlp."
        yield one(own + "input_norm", source + "input_layernorm.weight", hidden)
        stacked = tuple((f"{attention}{name}_proj.weight", rows) for name, rows in qkv.items())
        yield own + "qkv", (sum(qkv.values()), hidden), stacked
        if config.qkv_bias:
            stacked = tuple((f"{attention}{name}_proj.bias", rows) for name, rows in qkv.items())
            yield own + "qkv_bias", (sum(qkv.values()),), stacked
        if config.qk_norm:
            yield one(own + "q_norm", attention + "q_norm.weight", config.head_dim)
            yield one(own + "k_norm", attention + "k_norm.weight", config.head_dim)
        yield one(own + "o", attention + "o_proj.weight", hidden, config.q_size)
        yield one(own + "post_norm", source + "post_attention_layernorm.weight", hidden)
        stacked = tuple((f"{mlp}{name}_proj.weight", inner) for name in ("gate", "up"))
        yield own + "gate_up", (2 * inner, hidden), stacked
        yield one(own + "down", mlp + "down_proj.weight", hidden, inner)
    yield one("norm", "model.norm.weight", hidden)
    if not tied:
        yield one("lm_head", "lm_head.weight", config.vocab, hidden)


def slab_weights(slab: Tensor, layout: SlabLayout, config: DecoderConfig) -> Weights:
    """The tensors as views of `slab` uint8 [bytes], whatever lies there now. On a CPU products keep copies."""

    def optional(name: str) -> Tensor | None:
        return layout.view(slab, name) if name in layout.parts else None

    def layer(own: str) -> LayerWeights:
        return LayerWeights(
            input_norm=layout.view(slab, own + "input_norm"),
            qkv=Linear(layout.view(slab, own + "qkv"), optional(own + "qkv_bias")),
            q_norm=optional(own + "q_norm"),
            k_norm=optional(own + "k_norm"),
            o=Linear(layout.view(slab, own + "o")),
            post_norm=layout.view(slab, own + "post_norm"),
            gate_up=Linear(layout.view(slab, own + "gate_up")),
            down=Linear(layout.view(slab, own + "down")),
        )

    embedding = layout.view(slab, "embedding")
    layers = tuple(layer(f"layers.{index}.") for index in range(config.layers))
    head = optional("lm_head")
    return Weights(embedding, layers, layout.view(slab, "norm"), Linear(embedding if head is None else head))


def read_headers(directory: Path, config: DecoderConfig, dtype: torch.dtype) -> tuple[SlabLayout, tuple[Stretch, ...]]:
    """How the directory's *.safetensors make the slab, in its order. Raises ModelRefused naming the tensor, OSError."""
    entries: dict[str, tuple[Path, Any, int]] = {}
    for path in weight_files(directory):
        found, data_start = _header(path)
        entries.update((name, (path, entry, data_start)) for name, entry in found.items())
    tied = config.tied if config.tied is not None else "lm_head.weight" not in entries
    layout = slab_layout(config, dtype, tied=tied)
    stretches = []
    for part in layout.parts.values():
        offset = part.offset
        for name, rows in part.stacked:
            shape = (rows, *part.shape[1:])
            if name not in entries:
                raise ModelRefused(f"{directory}: {name} is missing")
            path, entry, data_start = entries[name]
            if tuple(entry["shape"]) != shape:
                found_shape = tuple(entry["shape"])
                raise ModelRefused(f"{directory}: {name} has shape {found_shape}, the config says {shape}")
            if entry["dtype"] not in FILE_DTYPES:
                known = ", ".join(FILE_DTYPES)
                raise ModelRefused(f"{directory}: {name} is of dtype {entry['dtype']}, which is not among {known}")
            start = data_start + entry["data_offsets"][0]
            stretches.append(Stretch(offset, math.prod(shape), path, start, FILE_DTYPES[entry["dtype"]]))
            offset += math.prod(shape) * dtype.itemsize
    return layout, tuple(stretches)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """(entries by tensor, where the data begins)"""
    try:
        with safe_open(path, framework="pt"):
            pass  # it checks the header whole: extents that overlap, or that the file is too short for
    except SafetensorError as error:
        raise ModelRefused(f"{path}: {error}") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        entries: dict[str, Any] = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, LENGTH_BYTES + length
