"""A model's weights as the decoder uses them: which tensors of the files are stacked into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from engine.models.config import DecoderConfig
from engine.models.files import WeightFiles

HEAD = "lm_head.weight"

# Multiplies by a weight matrix on a device, in the matrix's format.
Product = TypeVar("Product")


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[Product]):
    input_norm: Tensor  # [hidden]
    qkv: Product  # hidden → q_size + 2 kv_size
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    o: Product  # q_size → hidden
    post_norm: Tensor  # [hidden]
    gate_up: Product  # hidden → 2 intermediate
    down: Product  # intermediate → hidden


@dataclass(frozen=True, slots=True)
class Weights(Generic[Product]):
    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights[Product], ...]
    norm: Tensor  # [hidden]
    lm_head: Product  # hidden → vocab


class Fused(NamedTuple):
    """A tensor as the decoder uses it. `stacked`: (name, rows) of the files' tensors in it, in the order of its
    rows."""

    name: str
    shape: tuple[int, ...]
    stacked: tuple[tuple[str, int], ...]

    @property
    def is_linear(self) -> bool:
        """Whether it is a matrix of a layer, which may be quantised. Embedding and lm_head are not."""
        return len(self.shape) == 2 and self.name.startswith("layers.")


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


def assemble(
    config: DecoderConfig,
    tensor: Callable[[str], Tensor],
    product: Callable[[str, Tensor | None], Product],
    *,
    tied: bool,
) -> Weights[Product]:
    """Weights from `tensor(name)`, called once for each vector, each bias and the embedding, and `product(name, bias)`,
    called once for each matrix; a tied lm_head is the product of `embedding`."""
    embedding = tensor("embedding")
    layers = tuple(assemble_layer(config, index, tensor, product) for index in range(config.layers))
    norm = tensor("norm")
    return Weights(embedding, layers, norm, product("embedding" if tied else "lm_head", None))


def assemble_layer(
    config: DecoderConfig,
    index: int,
    tensor: Callable[[str], Tensor],
    product: Callable[[str, Tensor | None], Product],
) -> LayerWeights[Product]:
    """One layer, in the form of `assemble`."""
    own = f"layers.{index}."
    return LayerWeights(
        input_norm=tensor(own + "input_norm"),
        qkv=product(own + "qkv", tensor(own + "qkv_bias") if config.qkv_bias else None),
        q_norm=tensor(own + "q_norm") if config.qk_norm else None,
        k_norm=tensor(own + "k_norm") if config.qk_norm else None,
        o=product(own + "o", None),
        post_norm=tensor(own + "post_norm"),
        gate_up=product(own + "gate_up", None),
        down=product(own + "down", None),
    )
