"""Shapes of models that benchmarks serve with random weights, how large they are, and their directories.

Only `write_files` needs torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.protocol.config import ModelConfig

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
# The shape of Llama-3.1-8B is in a file, which other benchmarks read too.
LLAMA_8B = Path(__file__).with_name("llama-3.1-8b.json")
# Llama-3.2-1B's.
LLAMA_1B: dict[str, Any] = _LLAMA | {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
    "rope_theta": 500000.0, "tie_word_embeddings": True,
}  # fmt: skip
# A step of it takes a CPU a few milliseconds.
SMALL: dict[str, Any] = _LLAMA | {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 2048,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
STD = 0.02


def llama_8b() -> dict[str, Any]:
    shape: dict[str, Any] = json.loads(LLAMA_8B.read_bytes())
    return shape


def parameters(shape: dict[str, Any]) -> int:
    hidden, inner, kv = shape["hidden_size"], shape["intermediate_size"], _kv_size(shape)
    queries = shape["num_attention_heads"] * shape["head_dim"]
    layer = 2 * hidden + hidden * (2 * queries + 2 * kv) + 3 * hidden * inner
    embeddings = 1 if shape["tie_word_embeddings"] else 2
    return int(shape["num_hidden_layers"] * layer + embeddings * shape["vocab_size"] * hidden + hidden)


def kv_elements(shape: dict[str, Any]) -> int:
    """KV elements of one token."""
    return int(2 * shape["num_hidden_layers"] * _kv_size(shape))


def _kv_size(shape: dict[str, Any]) -> int:
    return int(shape["num_key_value_heads"] * shape["head_dim"])


def dummy(directory: Path, name: str, shape: dict[str, Any], dtype: str) -> ModelConfig:
    """A model with random weights without files, and a unique digest."""
    path = directory / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(shape))
    return ModelConfig(name=name, path=str(path), digest=digest_of(name), dtype=dtype, dummy=True)  # type: ignore[arg-type]


def linked(directory: Path, name: str, files: Path, dtype: str) -> ModelConfig:
    """A model with the weights in `files`, with a unique name and digest."""
    path = directory / name
    path.mkdir(exist_ok=True)
    for file in files.iterdir():
        (path / file.name).hardlink_to(file)
    return ModelConfig(name=name, path=str(path), digest=digest_of(name), dtype=dtype)  # type: ignore[arg-type]


def digest_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def write_files(directory: Path, shape: dict[str, Any], dtype: str, seed: int = 0) -> Path:
    """config.json and model.safetensors, as Hugging Face lays them out; the same for one seed."""
    import torch
    from safetensors.torch import save_file

    generator, kind = torch.Generator().manual_seed(seed), getattr(torch, dtype)
    hidden, inner, kv = shape["hidden_size"], shape["intermediate_size"], _kv_size(shape)
    queries = shape["num_attention_heads"] * shape["head_dim"]

    def matrix(out: int, columns: int) -> torch.Tensor:
        return torch.empty(out, columns).normal_(0, STD, generator=generator).to(kind)

    tensors = {"model.embed_tokens.weight": matrix(shape["vocab_size"], hidden)}
    for layer in range(shape["num_hidden_layers"]):
        own = {
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        for name, (out, columns) in own.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(out, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(hidden, dtype=kind)
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=kind)
    if not shape["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(shape["vocab_size"], hidden)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(shape))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
