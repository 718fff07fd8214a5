"""Adapters for tests: small adapters that peft writes, and files made by hand, so that they can be invalid."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from adapters.files.check import resolve_stored
from adapters.files.spec import PARENTS, BaseShape, ModuleShape

BASE = BaseShape.from_config(
    {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
    }
)
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


class TinyModel(nn.Module):
    """Modules named and shaped like a Llama's, without the arithmetic between them."""

    def __init__(self, base: BaseShape = BASE) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(7, base.modules["q_proj"].in_features)
        self.model.layers = nn.ModuleList(self._layer(base) for _ in range(base.layers))
        self.lm_head = nn.Linear(base.modules["q_proj"].in_features, 7, bias=False)

    @staticmethod
    def _layer(base: BaseShape) -> nn.Module:
        layer = nn.Module()
        layer.self_attn, layer.mlp = nn.Module(), nn.Module()
        for name, shape in base.modules.items():
            parent = getattr(layer, PARENTS[name])
            setattr(parent, name, nn.Linear(shape.in_features, shape.out_features, bias=False))
        return layer


def peft_adapter(directory: Path, base: BaseShape = BASE, seed: int = 0, **config: Any) -> Any:
    """Have peft make an adapter with random A and B and save it; returns peft's model, the oracle."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = {"target_modules": list(base.modules), "init_lora_weights": False, **config}
    model = get_peft_model(TinyModel(base), LoraConfig(**config))
    model.save_pretrained(str(directory))
    return model.eval()


def peft_module(model: Any, layer: int, module: str) -> Any:
    """peft's linear layer of one (layer, module), wrapped or not."""
    return getattr(getattr(model.base_model.model.model.layers[layer], PARENTS[module]), module)


def tensor_name(layer: int, module: str, side: str) -> str:
    return f"base_model.model.model.layers.{layer}.{PARENTS[module]}.{module}.lora_{side}.weight"


def lora_tensors(
    rank: int = 2, modules: tuple[str, ...] = ("q_proj",), base: BaseShape = BASE
) -> dict[str, np.ndarray]:
    """float32 tensors of an adapter on these modules of every layer."""
    dice = np.random.default_rng(rank)
    found = {}
    for layer in range(base.layers):
        for module in modules:
            shape: ModuleShape = base.modules[module]
            found[tensor_name(layer, module, "A")] = dice.standard_normal((rank, shape.in_features)).astype(np.float32)
            found[tensor_name(layer, module, "B")] = dice.standard_normal((shape.out_features, rank)).astype(np.float32)
    return found


DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "float64": "F64", "int32": "I32"}


def header_of(tensors: dict[str, np.ndarray]) -> tuple[dict[str, Any], bytes]:
    """A correct header object and data section; uint16 stands for bfloat16."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    return header, data


def packed(header: Any, data: bytes) -> bytes:
    """A safetensors file of any header, sensible or not: an object, or its text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def config_of(rank: int = 2, **changes: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "r": rank, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none", **changes}


def write_adapter(directory: Path, config: Any = None, weights: bytes | dict[str, np.ndarray] | None = None) -> Path:
    """An adapter directory, by hand; whatever is not given is valid."""
    directory.mkdir(parents=True, exist_ok=True)
    found = lora_tensors() if weights is None else weights
    raw = found if isinstance(found, bytes) else packed(*header_of(found))
    text = config if isinstance(config, bytes) else json.dumps(config_of() if config is None else config).encode()
    (directory / CONFIG).write_bytes(text)
    (directory / WEIGHTS).write_bytes(raw)
    return directory


def loadable(directory: Path) -> Path:
    """An adapter directory, resolved as by the check of a registration."""
    resolve_stored(directory)
    return directory
