"""From a model directory (Hugging Face layout) to the fused tensors that the decoder multiplies with, and a digest.

It knows tensor names and shapes. It must never know a request or the arena.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import DecoderConfig, ModelRefused
from engine.models.linear import Linear

DIGEST_CACHE = ".laneway-digest.json"
# Models of larger files are not packed: it takes their size once more.
PACK_BYTES_MAX = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden → q_size + 2 kv_size
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    o: Linear  # q_size → hidden
    post_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden → 2 intermediate
    down: Linear  # intermediate → hidden


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    lm_head: Linear  # hidden → vocab


def load_weights(directory: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Read every tensor of the decoder; q/k/v and gate/up are fused. Raises ModelRefused naming the tensor."""
    with ExitStack() as stack:
        reader = _Reader(stack, directory, dtype, device)
        layers = tuple(_load_layer(reader, config, i) for i in range(config.layers))
        embedding = reader.tensor("model.embed_tokens.weight", config.vocab, config.hidden)
        norm = reader.tensor("model.norm.weight", config.hidden)
        tied = config.tied if config.tied is not None else "lm_head.weight" not in reader
        head = embedding if tied else reader.tensor("lm_head.weight", config.vocab, config.hidden)
        return Weights(embedding, layers, norm, Linear(head, packed=reader.packed))


def _load_layer(reader: _Reader, config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}."
    attention = prefix + "self_attn."
    outs = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    qkv = torch.cat([reader.tensor(f"{attention}{n}_proj.weight", out, config.hidden) for n, out in outs.items()])
    bias = None
    if config.qkv_bias:
        bias = torch.cat([reader.tensor(f"{attention}{n}_proj.bias", out) for n, out in outs.items()])
    mlp = prefix + "mlp."
    gate_up = [reader.tensor(f"{mlp}{n}_proj.weight", config.intermediate, config.hidden) for n in ("gate", "up")]
    o = reader.tensor(attention + "o_proj.weight", config.hidden, config.q_size)
    down = reader.tensor(mlp + "down_proj.weight", config.hidden, config.intermediate)
    return LayerWeights(
        input_norm=reader.tensor(prefix + "input_layernorm.weight", config.hidden),
        qkv=Linear(qkv, bias, packed=reader.packed),
        q_norm=reader.tensor(attention + "q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=reader.tensor(attention + "k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=Linear(o, packed=reader.packed),
        post_norm=reader.tensor(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=Linear(torch.cat(gate_up), packed=reader.packed),
        down=Linear(down, packed=reader.packed),
    )


class _Reader:
    """The tensors of all safetensors files of a directory, by name, checked for shape."""

    def __init__(self, stack: ExitStack, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._device = device
        self._dtype = dtype
        self._directory = directory
        self._files = {}
        files = weight_files(directory)
        self.packed = sum(path.stat().st_size for path in files) <= PACK_BYTES_MAX
        for path in files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise ModelRefused(f"{path}: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._files:
            raise ModelRefused(f"{self._directory}: {name} is missing")
        tensor: Tensor = self._files[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelRefused(f"{self._directory}: {name} has shape {tuple(tensor.shape)}, the config says {shape}")
        return tensor.to(device=self._device, dtype=self._dtype)


def weight_files(directory: Path) -> list[Path]:
    """The directory's *.safetensors by name. Raises ModelRefused when there is none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelRefused(f"{directory}: no *.safetensors")
    return files


def model_digest(directory: Path) -> str:
    """SHA-256 over config.json and the weights, in hex. It is kept beside them, for as long as no size and no time of
    modification changes, since hashing a large model takes longer than loading it."""
    files = [directory / "config.json", *weight_files(directory)]
    stats = [path.stat() for path in files]
    seen = [[path.name, stat.st_size, stat.st_mtime_ns] for path, stat in zip(files, stats, strict=True)]
    cache = directory / DIGEST_CACHE
    try:
        kept = json.loads(cache.read_bytes())
        if kept["files"] == seen:
            return str(kept["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there is none, or it is not ours: compute
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    digest = total.hexdigest()
    _write_beside(cache, json.dumps({"files": seen, "digest": digest}))
    return digest


def _write_beside(path: Path, text: str) -> None:
    """Best effort: a model directory may be read-only."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        scratch.write_text(text)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
