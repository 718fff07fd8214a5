"""Checks an adapter against a base model. Input: configuration or resolved modules, header, shapes. Output: ranks,
scales and places in the file.

It loads no torch, and must never know about tenants or names of adapters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.files.config import RANK_MAX, AdapterConfig, parse_config
from adapters.files.header import AdapterRefused, Header, Tensor, read_header
from adapters.files.resolved import Key, ModulesUnresolved, ResolvedModules

__all__ = [
    "AdapterConfig",
    "AdapterRefused",
    "AdapterSpec",
    "BaseShape",
    "Header",
    "ModuleShape",
    "ModuleSpec",
    "fit",
    "parse_config",
    "read_header",
    "resolve",
    "validate",
]

PARENTS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
TENSOR_NAME = re.compile(
    r"base_model\.model\.(?P<path>model\.layers\.(?P<layer>0|[1-9][0-9]{0,4})\.(?P<parent>self_attn|mlp)"
    r"\.(?P<module>[a-z_]+))\.lora_(?P<side>[AB])\.weight"
)


@dataclass(slots=True, frozen=True)
class ModuleShape:
    in_features: int
    out_features: int


@dataclass(slots=True, frozen=True)
class BaseShape:
    """The shape that an adapter must fit: the decoder's layers, and each linear module's size, equal in all layers."""

    layers: int
    modules: Mapping[str, ModuleShape]

    @classmethod
    def from_directory(cls, directory: Path) -> BaseShape:
        """Read from the config.json of a model directory that was checked before. Raises OSError, ValueError."""
        return cls.from_config(json.loads((directory / "config.json").read_bytes()))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BaseShape:
        """Read from a Hugging Face config of a dense decoder (Llama, Mistral, Qwen2, Qwen3). KeyError when it is
        none."""
        hidden, inner = int(config["hidden_size"]), int(config["intermediate_size"])
        heads = int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        queries, keys = heads * head, int(config.get("num_key_value_heads") or heads) * head
        modules = {
            "q_proj": ModuleShape(hidden, queries),
            "k_proj": ModuleShape(hidden, keys),
            "v_proj": ModuleShape(hidden, keys),
            "o_proj": ModuleShape(queries, hidden),
            "gate_proj": ModuleShape(hidden, inner),
            "up_proj": ModuleShape(hidden, inner),
            "down_proj": ModuleShape(inner, hidden),
        }
        return cls(int(config["num_hidden_layers"]), modules)


@dataclass(slots=True, frozen=True)
class ModuleSpec:
    """One (layer, module) that the adapter has: y += scale · (x · Aᵀ) · Bᵀ."""

    layer: int
    module: str
    rank: int
    scale: float
    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]


@dataclass(slots=True, frozen=True)
class AdapterSpec:
    """A valid adapter for a base. Modules by layer, then name; an absent module has rank 0."""

    modules: tuple[ModuleSpec, ...]
    base_model_name_or_path: str | None

    @property
    def rank_max(self) -> int:
        return max(module.rank for module in self.modules)

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the modules that it has in some layer, in the order of the forward."""
        found = {module.module for module in self.modules}
        return tuple(name for name in PARENTS if name in found)

    @property
    def parameters(self) -> int:
        return sum(module.rank * (module.a.shape[1] + module.b.shape[0]) for module in self.modules)


def validate(config: AdapterConfig, header: Header, base: BaseShape, rank_max: int = RANK_MAX) -> AdapterSpec:
    """Validate for a base that takes ranks up to `rank_max`. Raises AdapterRefused, naming the tensor."""
    pairs = _pairs(header, base)
    for layer, module in pairs:
        path = _path(layer, module)
        if not config.targets(path):
            named = next(iter(pairs[layer, module].values())).name
            raise AdapterRefused(f"{named}: the configuration does not target {path} (target_modules, …)")
    _check_complete(config, base, pairs)
    modules = []
    for key in sorted(pairs):
        path = _path(*key)
        modules.append(_module(key, pairs[key], config.rank(path), config.scale(path), base, rank_max))
    return AdapterSpec(tuple(modules), config.base_model_name_or_path)


def fit(resolved: ResolvedModules, header: Header, base: BaseShape, rank_max: int = RANK_MAX) -> AdapterSpec:
    """As `validate`, with resolved modules instead of the configuration. Raises AdapterRefused, Unresolved."""
    pairs = _pairs(header, base)
    if pairs.keys() != resolved.modules.keys():
        raise ModulesUnresolved("the resolved modules are not those of the file")
    modules = [_module(key, pairs[key], *resolved.modules[key], base, rank_max) for key in sorted(pairs)]
    return AdapterSpec(tuple(modules), None)


def resolve(config: AdapterConfig, header: Header) -> dict[Key, tuple[int, float]]:
    """Rank and scale of each (layer, module) of a stored adapter. Its check has passed, so ranks are taken from the
    tensors. Raises AdapterRefused."""
    found: dict[Key, tuple[int, float]] = {}
    for tensor in header.values():
        match = TENSOR_NAME.fullmatch(tensor.name)
        if match is None or len(tensor.shape) != 2:
            raise AdapterRefused(f"{tensor.name}: {_why_not(tensor.name)}")
        if match["side"] == "A":
            rank = tensor.shape[0]
            found[int(match["layer"]), match["module"]] = rank, config.scale_of_rank(match["path"], rank)
    return found


def _pairs(header: Header, base: BaseShape) -> dict[Key, dict[str, Tensor]]:
    """(layer, module) → "A" or "B" → tensor; one of both may be missing. Raises AdapterRefused."""
    pairs: dict[Key, dict[str, Tensor]] = {}
    for tensor in header.values():
        layer, module, side = _locate(tensor, base)
        pairs.setdefault((layer, module), {})[side] = tensor
    if not pairs:
        raise AdapterRefused("adapter_model.safetensors: it has no LoRA tensors")
    return pairs


def _locate(tensor: Tensor, base: BaseShape) -> tuple[int, str, str]:
    """(layer, module, "A" or "B") of a tensor by its name."""
    match = TENSOR_NAME.fullmatch(tensor.name)
    if match is None or PARENTS.get(match["module"]) != match["parent"] or match["module"] not in base.modules:
        raise AdapterRefused(f"{tensor.name}: {_why_not(tensor.name)}")
    layer = int(match["layer"])
    if layer >= base.layers:
        raise AdapterRefused(f"{tensor.name}: the base has {base.layers} layers, 0 to {base.layers - 1}")
    return layer, match["module"], match["side"]


def _check_complete(config: AdapterConfig, base: BaseShape, found: Collection[Key]) -> None:
    """Check that the file has every module that the configuration targets: an adapter of fewer layers is for another
    base."""
    names = {module for _, module in found} if config.target_modules is None else set(base.modules)
    for layer in range(base.layers):
        for module in sorted(names):
            path = _path(layer, module)
            if (layer, module) not in found and config.targets(path):
                raise AdapterRefused(
                    f"base_model.model.{path}.lora_A.weight: missing, and the configuration targets {path}; "
                    f"the base has {base.layers} layers, these tensors are of {len({layer for layer, _ in found})}"
                )


def _path(layer: int, module: str) -> str:
    return f"model.layers.{layer}.{PARENTS[module]}.{module}"


def _why_not(name: str) -> str:
    """Why a tensor of this name is not served."""
    if "lora_magnitude" in name:
        return "a DoRA magnitude; only plain LoRA is served"
    if "lora_embedding" in name or "embed_tokens" in name:
        return "LoRA on (or a copy of) the embedding is not served"
    if "lm_head" in name:
        return "LoRA on (or a copy of) the output head is not served"
    if name.endswith(".bias"):
        return "a trained bias is not served"
    if ".lora_" not in name:
        return "a whole weight (modules_to_save?) is not served, only LoRA on linear modules"
    return "not the name of a LoRA tensor of a linear module that this base has"


def _module(
    key: Key, pair: Mapping[str, Tensor], rank: int, scale: float, base: BaseShape, rank_max: int
) -> ModuleSpec:
    layer, module = key
    path = _path(layer, module)
    for side in "AB":
        if side not in pair:
            raise AdapterRefused(f"base_model.model.{path}.lora_{side}.weight: missing, the other of the pair is there")
    a, b, shape = pair["A"], pair["B"], base.modules[module]
    if len(a.shape) != 2 or a.shape[1] != shape.in_features:
        raise AdapterRefused(f"{a.name}: shape {list(a.shape)}, the base needs [rank, {shape.in_features}]")
    if len(b.shape) != 2 or b.shape[0] != shape.out_features:
        raise AdapterRefused(f"{b.name}: shape {list(b.shape)}, the base needs [{shape.out_features}, rank]")
    for tensor, found in ((a, a.shape[0]), (b, b.shape[1])):
        if not 1 <= found <= rank_max:
            raise AdapterRefused(f"{tensor.name}: rank {found} is not from 1 to {rank_max}")
        if found != rank:
            raise AdapterRefused(f"{tensor.name}: rank {found}, the configuration says {rank}")
    return ModuleSpec(layer, module, rank, scale, a, b)
