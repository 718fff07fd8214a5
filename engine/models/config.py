"""A Hugging Face config.json as the typed shape of a dense decoder: Llama, Mistral, Qwen2/2.5, Qwen3, SmolLM2.

Keys that the decoder does not support are refused by name, so that no model is computed wrongly without an error. No
torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.text.small_files import TOKENIZER_BYTES_MAX, read_small
from kernels.kv_layout import KvLayout

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
# Largest value of a number of the shape, and of the layers: a typing error is refused before memory is laid out by it.
SIZE_MAX = 1 << 30
LAYERS_MAX = 4096


class ModelRefused(ValueError):
    """The directory holds a model that this engine cannot run; the message names the key or tensor."""


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rotary frequencies stretched as in Llama 3.1: long wavelengths by `factor`, short ones not at all."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of a dense decoder. `tied` None: the file has no `tie_word_embeddings`; then lm_head is tied if its tensor
    is missing."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    qkv_bias: bool
    qk_norm: bool
    tied: bool | None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_elements_per_token(self) -> int:
        """Elements of one token's KV: K and V of all layers."""
        return self.layers * 2 * self.kv_size

    def kv_layout(self, dtype: str) -> KvLayout:
        """The layout of its K and V in pages. `dtype`: "fp8", or the model's."""
        return KvLayout(self.layers, self.kv_heads, self.head_dim, dtype)


def load_config(directory: Path, *, quantized: bool = False) -> DecoderConfig:
    """Read the shape in `directory/config.json`. A quantised checkpoint is refused, unless `quantized` says that the
    caller reads its format, too (`checkpoints.load_quantization`). Raises ModelRefused."""
    path, data = directory / "config.json", read_config(directory)
    try:
        return parse_config(data, quantized=quantized)
    except ModelRefused:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise ModelRefused(f"{path}: a value is of the wrong kind: {error}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """The object in `directory/config.json`. Raises ModelRefused."""
    path = directory / "config.json"
    try:
        text = read_small(path)
    except OSError as error:
        raise ModelRefused(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelRefused(str(error)) from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ModelRefused(f"{path}: not a JSON object")
    return data


class TokenizerVocabulary(msgspec.Struct):
    """`vocab`: each token's text and id."""

    vocab: dict[str, int]


class TokenizerFile(msgspec.Struct):
    """The fields that the engine reads of a tokenizer.json whose model is a table of tokens (BPE, WordPiece,
    WordLevel)."""

    model: TokenizerVocabulary


def check_vocabulary(directory: Path, vocab: int) -> None:
    """Check that a tokenizer.json, if the directory has one, has no id of `vocab` or above. Raises ModelRefused,
    OSError."""
    path = directory / "tokenizer.json"
    try:
        text = read_small(path, TOKENIZER_BYTES_MAX)
    except FileNotFoundError:
        return
    except ValueError as error:
        raise ModelRefused(str(error)) from error
    try:
        largest = max(msgspec.json.decode(text, type=TokenizerFile).model.vocab.values(), default=0)
    except msgspec.ValidationError:
        return  # no table of tokens, such as a Unigram model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelRefused(f"{path}: {error}") from error
    if largest >= vocab:
        raise ModelRefused(f"{path}: it has an id {largest}; config.json says vocab_size {vocab}")


def parse_config(data: Mapping[str, Any], *, quantized: bool = False) -> DecoderConfig:
    """The decoder's shape from the keys that transformers 4 or 5 writes. `quantized`: as in `load_config`. Raises
    ModelRefused."""
    architecture = (data.get("architectures") or ["(none)"])[0]
    if architecture not in ARCHITECTURES:
        raise ModelRefused(f"architectures: {architecture} is not among {', '.join(sorted(ARCHITECTURES))}")
    quantization = data.get("quantization_config") or data.get("compression_config")
    if quantization and not quantized:
        method = quantization.get("quant_method") or "unknown"
        raise ModelRefused(f"quantization_config: {method} is not supported; serve the model's unquantized weights")
    for key in ("attention_bias", "mlp_bias"):
        if data.get(key):
            raise ModelRefused(f"{key}: true is not supported for {architecture}")
    if data.get("hidden_act", "silu") != "silu":
        raise ModelRefused(f"hidden_act: {data['hidden_act']} is not supported, only silu")
    heads = _positive(data, "num_attention_heads")
    hidden = _positive(data, "hidden_size")
    kv_heads = _positive(data, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelRefused(f"num_key_value_heads: {kv_heads} does not divide {heads} heads")
    theta, scaling = _rotary(data)
    return DecoderConfig(
        layers=_positive(data, "num_hidden_layers", most=LAYERS_MAX),
        hidden=hidden,
        intermediate=_positive(data, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_positive(data, "head_dim", hidden // heads),
        vocab=_positive(data, "vocab_size"),
        context_tokens=_context(data, architecture),
        norm_eps=_finite(float(data.get("rms_norm_eps", 1e-6)), "rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=architecture == "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tied=data.get("tie_word_embeddings"),
    )


def _positive(data: Mapping[str, Any], key: str, default: int | None = None, *, most: int = SIZE_MAX) -> int:
    value = data.get(key)
    if value is None:
        value = default
    if type(value) is not int or value < 1:
        raise ModelRefused(f"{key}: {value!r} is not a positive integer")
    if value > most:
        raise ModelRefused(f"{key}: {value} is more than {most}")
    return value


def _finite(value: float, key: str) -> float:
    if not 0 <= value < math.inf:
        raise ModelRefused(f"{key}: {value} is not a finite number from 0 on")
    return value


def _context(data: Mapping[str, Any], architecture: str) -> int:
    """The served context. Within one sliding window, sliding attention equals full attention, so the window limits
    it."""
    context = _positive(data, "max_position_embeddings")
    window = data.get("sliding_window")
    slides = data.get("use_sliding_window", architecture == "MistralForCausalLM")
    return min(context, _positive(data, "sliding_window")) if slides and window else context


def _rotary(data: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Theta and scaling. transformers 5 writes `rope_parameters`, earlier versions `rope_theta` and `rope_scaling`."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = _finite(float(rope.get("rope_theta") or data.get("rope_theta") or 10000.0), "rope_theta")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if (rope.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelRefused("partial_rotary_factor: only 1.0 is supported")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelRefused(f"rope_scaling: {kind} is not supported, only default and llama3")
    try:
        return theta, Llama3Scaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_context_tokens=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelRefused(f"rope_scaling: llama3 lacks {error}") from error
