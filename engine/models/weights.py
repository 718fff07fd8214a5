"""From a model directory (Hugging Face layout) to the fused tensors that the decoder multiplies with, and a digest.

It knows tensor names and shapes. It must never know a request or the arena.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.models.config import DecoderConfig, ModelRefused
from engine.models.linear import Linear, can_pack

DIGEST_CACHE = ".laneway-digest.json"
# Models of larger files are not packed: it takes their size once more.
PACK_BYTES_MAX = 1024 * 1024 * 1024
# Of files. Others, quantized ones, mean something only with scales that the decoder does not know.
STORED_DTYPES = ("F64", "F32", "F16", "BF16")


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


class LoadStopped(Exception):
    """Nobody waits for it any more."""


def load_weights(
    directory: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
) -> Weights:
    """Read every tensor of the decoder; q/k/v and gate/up are fused. On device "meta" no number is read: names and
    shapes are checked. Raises ModelRefused naming the tensor, LoadStopped."""
    with ExitStack() as stack:
        reader = _Reader(stack, directory, dtype, device, stopped)
        layers = tuple(_load_layer(reader, config, i) for i in range(config.layers))
        embedding = reader.kept("model.embed_tokens.weight", config.vocab, config.hidden)
        norm = reader.kept("model.norm.weight", config.hidden)
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
        input_norm=reader.kept(prefix + "input_layernorm.weight", config.hidden),
        qkv=Linear(qkv, bias, packed=reader.packed),
        q_norm=reader.kept(attention + "q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=reader.kept(attention + "k_norm.weight", config.head_dim) if config.qk_norm else None,
        o=Linear(o, packed=reader.packed),
        post_norm=reader.kept(prefix + "post_attention_layernorm.weight", config.hidden),
        gate_up=Linear(torch.cat(gate_up), packed=reader.packed),
        down=Linear(down, packed=reader.packed),
    )


class _Reader:
    """The tensors of all safetensors files of a directory, by name, checked for shape."""

    def __init__(
        self,
        stack: ExitStack,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        stopped: Callable[[], bool],
    ) -> None:
        self._device = device
        self._stopped = stopped
        self._dtype = dtype
        self._directory = directory
        self._files = {}
        files = weight_files(directory)
        self.packed = packs(files)
        for path in files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise ModelRefused(f"{path}: {error}") from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def kept(self, name: str, *shape: int) -> Tensor:
        """One that stays as it is: its own, and not a view of a file, all of which would stay in memory with it."""
        tensor = self.tensor(name, *shape)
        return tensor.clone() if tensor.device.type == "cpu" else tensor

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._files:
            raise ModelRefused(f"{self._directory}: {name} is missing")
        if self._stopped():
            raise LoadStopped
        stored = self._files[name].get_slice(name)
        if tuple(stored.get_shape()) != shape:
            found = tuple(stored.get_shape())
            raise ModelRefused(f"{self._directory}: {name} has shape {found}, the config says {shape}")
        if stored.get_dtype() not in STORED_DTYPES:
            wanted = ", ".join(STORED_DTYPES)
            raise ModelRefused(f"{self._directory}: {name} is of dtype {stored.get_dtype()}, not of {wanted}")
        if self._device.type == "meta":
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(device=self._device, dtype=self._dtype)


def packs(files: list[Path]) -> bool:
    """Whether a model of these files is packed, where its device can."""
    return sum(path.stat().st_size for path in files) <= PACK_BYTES_MAX


def cpu_bytes(config: DecoderConfig, dtype: torch.dtype, *, packed: bool) -> int:
    """What `load_weights` takes of a CPU's memory: each matrix once, and if packed once more; the embedding beside the
    head, be they tied or not. (MKL pads a packed matrix by a tenth of a MB at most, where it is tiny.)"""
    qkv = config.q_size + 2 * config.kv_size
    layer = config.hidden * (qkv + config.q_size + 3 * config.intermediate)
    matrices = config.layers * layer + config.vocab * config.hidden
    norms = config.layers * (2 * config.hidden + 2 * config.head_dim * config.qk_norm + qkv * config.qkv_bias)
    copies = 2 if packed and can_pack(torch.empty(1, 1, dtype=dtype)) else 1
    return (matrices * copies + norms + config.hidden + config.vocab * config.hidden) * dtype.itemsize


def stamps(files: list[Path]) -> tuple[tuple[str, int, int], ...]:
    """By which a file that was changed is told: name, size, time of modification."""
    stats = [path.stat() for path in files]
    return tuple((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in zip(files, stats, strict=True))


def weight_files(directory: Path) -> list[Path]:
    """The directory's *.safetensors by name. Raises ModelRefused when there is none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelRefused(f"{directory}: no *.safetensors")
    for path in files:
        if not path.is_file():  # a pipe would be waited for for ever
            raise ModelRefused(f"{path}: not a file")
    return files


def model_digest(directory: Path) -> str:
    """SHA-256 over config.json and the weights, in hex. It is kept beside them, for as long as no size and no time of
    modification changes, since hashing a large model takes longer than loading it."""
    files = [directory / "config.json", *weight_files(directory)]
    seen = [list(stamp) for stamp in stamps(files)]
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
