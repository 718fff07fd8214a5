"""The decoder against transformers: logits of every family, whole, in chunks and token by token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contents.model_digests import DIGEST_CACHE, model_digest
from engine.cpu.batch import pack_step
from engine.cpu.decoder import Decoder, PagedKv
from engine.models.config import Llama3Scaling, ModelRefused, load_config, parse_config
from engine.models.cpu_loading import load_weights
from engine.protocol.frames import Sampling
from engine.step import Chunk, Sequence
from support import oracle
from support.read_only import mounted_read_only

CPU = torch.device("cpu")
TOKENS = 150  # beyond the 64 of the scaled rotary embedding's original context


def make_decoder(directory: Path, tokens_per_page: int = 16, pages: int = 40, kv: str = "float32") -> Decoder:
    config = load_config(directory)
    page_bytes = config.layers * config.kv_layout(kv).run_bytes(tokens_per_page)
    arena = torch.full((pages, page_bytes), 255, dtype=torch.uint8)  # all NaN
    return Decoder(config, load_weights(directory, config, torch.float32), PagedKv.of(arena, config.kv_layout(kv)))


def sequence(ids: list[int], pages: list[int], adapter: str | None = None) -> Sequence:
    return Sequence(0, 0, "r", "m", adapter, "n", "t", "s", ids, 100, Sampling(), frozenset(), 0.0, pages=pages)


@torch.inference_mode()
def run(decoder: Decoder, chunks: list[Chunk]) -> torch.Tensor:
    return decoder.forward(pack_step(chunks, decoder.kv.tokens_per_page, CPU, torch.float32), None)


@pytest.fixture(scope="module", params=oracle.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = oracle.save_tiny(request.param, tmp_path_factory.mktemp(request.param))
    return directory, oracle.load(directory)


def random_ids(count: int, seed: int, vocab: int = oracle.TINY_VOCAB) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).abs().max()) < 1e-4 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("sizes", [[TOKENS], [1, 15, 16, 17, 32, 68, 1], [7] * 21 + [3], [1] * TOKENS], ids=str)
def test_logits_are_transformers_logits_however_the_prompt_is_cut(family: tuple[Path, Any], sizes: list[int]) -> None:
    directory, model = family
    ids = random_ids(TOKENS, seed=1)
    expected = oracle.logits(model, ids)
    decoder = make_decoder(directory)
    own = sequence(ids, pages=[7, 3, 9, 1, 2, 30, 31, 11, 0, 5])
    start = 0
    for count in sizes:
        found = run(decoder, [Chunk(own, start, count, True)])
        start += count
        assert close(found[0], expected[start - 1])


def test_a_mixed_batch_is_each_sequence_alone(family: tuple[Path, Any]) -> None:
    """Decodes of all lengths beside prefill chunks, first and later ones."""
    directory, model = family
    decoder = make_decoder(directory, tokens_per_page=8, pages=200)
    lengths = [1, 2, 8, 9, 31, 130, 150, 40, 77]
    sequences = [sequence(random_ids(n, seed=n), list(range(20 * i, 20 * i + 19))) for i, n in enumerate(lengths)]
    before = [0, 1, 7, 8, 30, 129, 149, 0, 30]  # computed in the step before
    run(decoder, [Chunk(s, 0, n, True) for s, n in zip(sequences, before, strict=True) if n])
    chunks = [Chunk(s, n, len(s.prompt_ids) - n, True) for s, n in zip(sequences, before, strict=True)]
    batch = pack_step(chunks[::-1], 8, CPU, torch.float32)
    with torch.inference_mode():
        found = decoder.forward(batch, None)
    assert [chunk.count for chunk in batch.chunks][:7] == [1] * 7
    for row, chunk in enumerate(batch.chunks):
        assert close(found[row], oracle.logits(model, chunk.sequence.prompt_ids)[-1])


def test_only_sampled_rows_get_logits(family: tuple[Path, Any]) -> None:
    decoder = make_decoder(family[0])
    a, b = sequence(random_ids(20, 1), [0, 1]), sequence(random_ids(20, 2), [2, 3])
    assert run(decoder, [Chunk(a, 0, 20, False), Chunk(b, 0, 20, True)]).shape == (1, oracle.TINY_VOCAB)
    assert run(decoder, [Chunk(a, 0, 20, False)]).shape == (0, oracle.TINY_VOCAB)


@pytest.mark.model
def test_the_demo_model_s_logits(model_dir: Path) -> None:
    ids = random_ids(90, seed=5, vocab=49152)
    expected = oracle.logits(oracle.load(model_dir), ids)
    decoder = make_decoder(model_dir)
    own = sequence(ids, pages=[4, 2, 3, 9, 8, 7])
    for start, count in ((0, 40), (40, 49), (89, 1)):
        assert (
            float((run(decoder, [Chunk(own, start, count, True)])[0] - expected[start + count - 1]).abs().max()) < 2e-4
        )


def test_pages_are_shared_by_decodes_of_like_length_only() -> None:
    def decode(tokens: int) -> Chunk:
        return Chunk(sequence([1] * tokens, list(range(tokens))), tokens - 1, 1, True)

    batch = pack_step([decode(n) for n in (200, 3, 9, 120, 16, 1000)], 8, CPU, torch.float32)
    assert [(span.start, span.stop, span.keys) for span in batch.spans] == [(0, 4, 120), (4, 5, 200), (5, 6, 1000)]
    assert [chunk.start + 1 for chunk in batch.chunks] == [3, 9, 120, 16, 200, 1000]
    assert batch.spans[1].mask is None  # one sequence sees all its keys
    first = batch.spans[0]
    assert first.pages.view(4, 15)[1].tolist() == [0, 1, *[0] * 13]  # padded with its own first page
    assert first.mask is not None
    assert (first.mask == 0).sum(-1).flatten().tolist() == [3, 9, 120, 16]


def test_a_page_entered_anew_is_cleared_unless_it_is_filled_at_once() -> None:
    own = sequence([1] * 64, [10, 11, 12, 13])

    def fresh(start: int, count: int) -> list[int]:
        return pack_step([Chunk(own, start, count, True)], 16, CPU, torch.float32).fresh_pages.tolist()

    assert fresh(0, 16) == fresh(0, 64) == fresh(5, 3) == fresh(15, 1) == []
    assert fresh(0, 1) == fresh(0, 15) == [10]
    assert fresh(0, 17) == fresh(16, 1) == [11]


# ---- config and weights


def test_a_config_of_before_transformers_5_means_the_same(tmp_path: Path) -> None:
    new = json.loads((oracle.save_tiny("llama3-rope", tmp_path) / "config.json").read_text())
    rope = new.pop("rope_parameters")
    old = new | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    assert parse_config(old) == load_config(tmp_path)
    assert parse_config(old).rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert parse_config(new | {"rope_theta": 5e5, "rope_scaling": None}).rope_theta == 5e5


GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None}, "architectures"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config: awq"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"compression_config": {"format": "pack-quantized"}}, "quantization_config: unknown"),
    ],
    ids=str,
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    parse_config(GOOD)
    with pytest.raises(ModelRefused, match=named):
        parse_config(GOOD | change)


def test_inside_a_sliding_window_attention_is_full() -> None:
    mistral = GOOD | {"architectures": ["MistralForCausalLM"], "sliding_window": 128}
    assert parse_config(mistral).context_tokens == 128
    assert parse_config(mistral | {"sliding_window": None}).context_tokens == 512
    qwen = GOOD | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 128, "use_sliding_window": False}
    assert parse_config(qwen).context_tokens == 512


@pytest.mark.parametrize("text", ["", "[]", "{", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_broken_config_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelRefused):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelRefused):
        load_config(tmp_path)


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    config = load_config(oracle.save_tiny("llama", tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file(tensors | {name: torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match=f"{name} has shape"):
        load_weights(tmp_path, config, torch.float32)
    save_file({k: v for k, v in tensors.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match=f"{name} is missing"):
        load_weights(tmp_path, config, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"no such format")
    with pytest.raises(ModelRefused, match=r"model\.safetensors"):
        load_weights(tmp_path, config, torch.float32)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelRefused, match=r"no \*\.safetensors"):
        load_weights(tmp_path, config, torch.float32)


def test_weights_in_several_files_are_one_model(tmp_path: Path) -> None:
    whole = oracle.save_tiny("qwen3", tmp_path / "whole")
    parts = tmp_path / "parts"
    parts.mkdir()
    shutil.copy(whole / "config.json", parts)
    tensors = load_file(whole / "model.safetensors")
    for i in range(2):
        save_file(dict(list(tensors.items())[i::2]), parts / f"model-0000{i + 1}-of-00002.safetensors")
    chunk = Chunk(sequence(random_ids(9, 1), [0]), 0, 9, True)
    assert torch.equal(run(make_decoder(whole), [chunk]), run(make_decoder(parts), [chunk]))


def test_the_digest_follows_config_and_weights(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    first = model_digest(directory)
    assert model_digest(directory) == first
    kept = json.loads((directory / DIGEST_CACHE).read_text())
    (directory / DIGEST_CACHE).write_text(json.dumps(kept | {"digest": "remembered"}))
    assert model_digest(directory) == "remembered"  # nothing is read again
    for broken in ("", "[]", "{}", '{"files": 3}'):
        (directory / DIGEST_CACHE).write_text(broken)
        assert model_digest(directory) == first
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    second = model_digest(directory)
    assert second != first
    oracle.save_tiny("llama", tmp_path, seed=1, rms_norm_eps=0.5)
    assert model_digest(directory) not in (first, second)
    assert not list(directory.glob("*.tmp"))


def test_a_model_may_be_on_a_read_only_file_system(tmp_path: Path) -> None:
    with mounted_read_only(oracle.save_tiny("llama", tmp_path)) as directory:
        digest = model_digest(directory)
        assert model_digest(directory) == digest
        assert not (directory / DIGEST_CACHE).exists(), "it is mounted read-only"
