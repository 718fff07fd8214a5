"""A model's weights as the decoder uses them: which tensors of the files are stacked into one, their loading into a
CPU's memory, and the digest of a model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles, stamps, weight_files
from engine.models.linear import Linear, can_pack

DIGEST_CACHE = ".laneway-digest.json"
# Models with larger files are not packed, since packing doubles their memory.
PACK_BYTES_MAX = 1024 * 1024 * 1024
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LayerWeights:
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


class LoadStopped(Exception):
    """The load was cancelled."""


class Fused(NamedTuple):
    """A tensor as the decoder uses it. `stacked`: (name, rows) of the files' tensors in it, in the order of its
    rows."""

    name: str
    shape: tuple[int, ...]
    stacked: tuple[tuple[str, int], ...]


def fused_tensors(config: DecoderConfig, *, tied: bool) -> Iterator[Fused]:
    """All tensors of a model, in slab order. The files' names are Hugging Face's. A tied lm_head is the embedding and
    not listed."""

    def one(name: str, source: str, *shape: int) -> Fused:
        return Fused(name, shape, ((source, shape[0]),))

    hidden, inner = config.hidden, config.intermediate
    qkv = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    yield one("embedding", "model.embed_tokens.weight", config.vocab, hidden)
    for index in range(config.layers):
        own, source = f"layers.{index}.", f"model.layers.{index}."
        attention, mlp = source + "self_attn.", source + "mlp."
        yield one(own + "input_norm", source + "input_layernorm.weight", hidden)
        stacked = tuple((f"{attention}{name}_proj.weight", rows) for name, rows in qkv.items())
        yield Fused(own + "qkv", (sum(qkv.values()), hidden), stacked)
        if config.qkv_bias:
            stacked = tuple((f"{attention}{name}_proj.bias", rows) for name, rows in qkv.items())
            yield Fused(own + "qkv_bias", (sum(qkv.values()),), stacked)
        if config.qk_norm:
            yield one(own + "q_norm", attention + "q_norm.weight", config.head_dim)
            yield one(own + "k_norm", attention + "k_norm.weight", config.head_dim)
        yield one(own + "o", attention + "o_proj.weight", hidden, config.q_size)
        yield one(own + "post_norm", source + "post_attention_layernorm.weight", hidden)
        stacked = tuple((f"{mlp}{name}_proj.weight", inner) for name in ("gate", "up"))
        yield Fused(own + "gate_up", (2 * inner, hidden), stacked)
        yield one(own + "down", mlp + "down_proj.weight", hidden, inner)
    yield one("norm", "model.norm.weight", hidden)
    if not tied:
        yield one("lm_head", HEAD, config.vocab, hidden)


def is_tied(config: DecoderConfig, files: WeightFiles) -> bool:
    return config.tied if config.tied is not None else HEAD not in files


def assemble(config: DecoderConfig, tensor: Callable[[str], Tensor], *, tied: bool, packed: bool = False) -> Weights:
    """Weights from `tensor(name)`, called once for each fused tensor. `packed`: as in `Linear`."""

    def layer(own: str) -> LayerWeights:
        return LayerWeights(
            input_norm=tensor(own + "input_norm"),
            qkv=Linear(tensor(own + "qkv"), tensor(own + "qkv_bias") if config.qkv_bias else None, packed=packed),
            q_norm=tensor(own + "q_norm") if config.qk_norm else None,
            k_norm=tensor(own + "k_norm") if config.qk_norm else None,
            o=Linear(tensor(own + "o"), packed=packed),
            post_norm=tensor(own + "post_norm"),
            gate_up=Linear(tensor(own + "gate_up"), packed=packed),
            down=Linear(tensor(own + "down"), packed=packed),
        )

    embedding = tensor("embedding")
    layers = tuple(layer(f"layers.{index}.") for index in range(config.layers))
    head = embedding if tied else tensor("lm_head")
    return Weights(embedding, layers, tensor("norm"), Linear(head, packed=packed))


def check_weights(directory: Path, config: DecoderConfig) -> None:
    """Check names and shapes, reading the headers only. Raises ModelRefused naming the tensor, OSError."""
    with WeightFiles(directory) as files:
        for fused in fused_tensors(config, tied=is_tied(config, files)):
            for name, rows in fused.stacked:
                files.find(name, (rows, *fused.shape[1:]))


def load_weights(
    directory: Path, config: DecoderConfig, dtype: torch.dtype, stopped: Callable[[], bool] = lambda: False
) -> Weights:
    """Read every tensor of the decoder into a CPU's memory. Raises ModelRefused naming the tensor, OSError, and
    LoadStopped soon after `stopped()`."""
    with WeightFiles(directory) as files:
        tied = is_tied(config, files)
        known = {fused.name: fused for fused in fused_tensors(config, tied=tied)}

        def read(name: str) -> Tensor:
            if stopped():
                raise LoadStopped
            fused, row = known[name], 0
            tensor = torch.empty(fused.shape, dtype=dtype)
            for source, rows in fused.stacked:
                files.read(files.find(source, (rows, *fused.shape[1:])), tensor[row : row + rows])
                row += rows
            return tensor

        return assemble(config, read, tied=tied, packed=packs(weight_files(directory)))


def packs(files: list[Path]) -> bool:
    """Whether a model of these files is small enough to be packed."""
    return sum(path.stat().st_size for path in files) <= PACK_BYTES_MAX


def cpu_bytes(config: DecoderConfig, dtype: torch.dtype, *, packed: bool) -> int:
    """Memory that `load_weights` takes: each matrix once, twice if packed; the embedding beside lm_head, tied or not.
    (MKL pads a packed tiny matrix by up to 0.1 MB, which is not counted.)"""
    qkv = config.q_size + 2 * config.kv_size
    layer = config.hidden * (qkv + config.q_size + 3 * config.intermediate)
    matrices = config.layers * layer + config.vocab * config.hidden
    norms = config.layers * (2 * config.hidden + 2 * config.head_dim * config.qk_norm + qkv * config.qkv_bias)
    copies = 2 if packed and can_pack(torch.empty(1, 1, dtype=dtype)) else 1
    return (matrices * copies + norms + config.hidden + config.vocab * config.hidden) * dtype.itemsize


def model_digest(directory: Path) -> str:
    """SHA-256 over config.json and the weights, in hex. Cached in DIGEST_CACHE until a file's size or modification time
    changes, since hashing a large model takes longer than loading it."""
    files = [directory / "config.json", *weight_files(directory)]
    seen = [list(stamp) for stamp in stamps(files)]
    cache = directory / DIGEST_CACHE
    try:
        kept = json.loads(cache.read_bytes())
        if kept["files"] == seen:
            return str(kept["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no cache, or an invalid one: compute
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
        # A read-only file system refuses to remove even what is not there.
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
