"""A model's slab: what it is filled with, in pieces, is what the files hold and what the decoder multiplies with."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contents.model_digests import model_digest
from engine.models.config import DecoderConfig, ModelRefused, check_vocabulary, load_config
from engine.models.cpu_loading import load_weights
from engine.models.files import HEADER_BYTES_MAX, INDEX, WeightFiles, weight_files
from engine.models.linear import Linear
from engine.models.matrices import MatrixFormat, QuantizedMatrix
from engine.models.slab import ALIGN_BYTES, slab_weights
from engine.models.slab_source import DummySource, FileSource, SlabSource
from engine.models.weights import Weights
from support import oracle

CPU = torch.device("cpu")


def filled(source: SlabSource, piece: int) -> torch.Tensor:
    slab = torch.full((source.layout.bytes,), 0xFF, dtype=torch.uint8)
    for start in range(0, len(slab), piece):
        source.fill(start, slab[start : start + piece])
    return slab


def weights_of(source: SlabSource, config: DecoderConfig, piece: int = 4096) -> Weights[Linear]:
    """The weights in a slab that was filled in pieces. None of them is quantised."""

    def product(
        matrix: torch.Tensor | QuantizedMatrix, format: MatrixFormat | None, bias: torch.Tensor | None
    ) -> Linear:
        assert isinstance(matrix, torch.Tensor)
        return Linear(matrix, bias)

    return slab_weights(filled(source, piece), source.layout, config, product)


def tensors(weights: Weights[Any]) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = [weights.embedding, weights.norm, weights.lm_head._plain]
    for layer in weights.layers:
        for field in fields(layer):
            value = getattr(layer, field.name)
            found += [value._plain, value._bias] if isinstance(value, Linear) else [value]
    return found


def assert_same(one: Weights[Any], other: Weights[Any]) -> None:
    for left, right in zip(tensors(one), tensors(other), strict=True):
        assert (left is None) == (right is None)
        assert left is None or (right is not None and torch.equal(left, right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [ALIGN_BYTES, 5 * ALIGN_BYTES, 1 << 20])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "tied"])
def test_a_slab_filled_in_pieces_is_what_loading_whole_tensors_makes(
    family: str, piece: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Files in float32: in bfloat16 every piece is converted."""
    directory = oracle.save_tiny(family, tmp_path)
    config = load_config(directory)
    source = FileSource(directory, config, dtype)
    assert all(part.offset % ALIGN_BYTES == 0 for part in source.layout.parts.values())
    assert_same(weights_of(source, config, piece), load_weights(directory, config, dtype))


def test_a_model_in_several_files(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    config = load_config(directory)
    whole = load_weights(directory, config, torch.float32)
    numbers = load_file(directory / "model.safetensors")
    names = sorted(numbers)
    for index in range(3):
        save_file({name: numbers[name] for name in names[index::3]}, directory / f"part-{index}.safetensors")
    (directory / "model.safetensors").unlink()
    source = FileSource(directory, config, torch.float32)
    assert_same(weights_of(source, config), whole)


def sharded(directory: Path, count: int = 2) -> dict[str, str]:
    """Divide the one file of a model into shards, as transformers does. Returns the file of each tensor."""
    numbers = load_file(directory / "model.safetensors")
    names = sorted(numbers)
    files = [f"model-{index + 1:05}-of-{count:05}.safetensors" for index in range(count)]
    weight_map: dict[str, str] = {}
    for index, file in enumerate(files):
        own = names[index::count]
        save_file({name: numbers[name] for name in own}, directory / file)
        weight_map |= dict.fromkeys(own, file)
    (directory / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (directory / "model.safetensors").unlink()
    return weight_map


def test_a_second_copy_of_the_weights_is_not_read(tmp_path: Path) -> None:
    """Mistral's directories have consolidated.safetensors beside the shards, with other names and the same bytes."""
    directory = oracle.save_tiny("llama", tmp_path)
    config = load_config(directory)
    whole = load_weights(directory, config, torch.float32)
    save_file({"layers.0.attention.wq.weight": torch.zeros(3)}, directory / "consolidated.safetensors")
    digest = model_digest(directory)
    for arrange in (lambda: None, lambda: sharded(directory)):
        arrange()
        source = FileSource(directory, config, torch.float32)
        assert_same(weights_of(source, config), whole)
        assert "consolidated.safetensors" not in {path.name for path in weight_files(directory)}
    sharded_digest = model_digest(directory)
    (directory / "consolidated.safetensors").unlink()
    assert model_digest(directory) == sharded_digest != digest


def test_an_index_that_does_not_fit_its_shards_is_named(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    config = load_config(directory)
    weight_map = sharded(directory)
    good = (directory / INDEX).read_text()
    first = sorted(set(weight_map.values()))[0]
    for text, message in (
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`"),
        ('{"weight_map": {}}', r"no \*\.safetensors"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "not the name of a"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "not the name of a"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "gone.safetensors: missing"),
        (json.dumps({"weight_map": {"a": first}}), "is missing"),
    ):
        (directory / INDEX).write_text(text)
        with pytest.raises(ModelRefused, match=message):
            FileSource(directory, config, torch.float32)
    (directory / INDEX).write_text(good)
    shard = directory / first
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4])
    with pytest.raises(ModelRefused, match=first):
        FileSource(directory, config, torch.float32)
    shard.write_bytes(whole)
    (directory / INDEX).unlink()
    (directory / "copy.safetensors").write_bytes(whole)
    with pytest.raises(ModelRefused, match=f"is in both copy.safetensors and {first}; {INDEX} is missing"):
        FileSource(directory, config, torch.float32)


def test_what_cannot_be_served_is_named_before_a_number_is_read(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    config = load_config(directory)
    file = directory / "model.safetensors"
    good = load_file(file)
    name = "model.layers.1.self_attn.k_proj.weight"
    for change, message in (
        ({name: None}, f"{name} is missing"),
        ({name: torch.zeros(3, 48)}, rf"{name} has shape \(3, 48\), the config says \(16, 48\)"),
        ({name: torch.zeros(16, 48, dtype=torch.int8)}, f"{name} is of dtype I8"),
    ):
        changed = {key: value for key, value in (good | change).items() if value is not None}
        save_file(changed, file)
        with pytest.raises(ModelRefused, match=message):
            FileSource(directory, config, torch.float32)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelRefused, match=str(file)):
        FileSource(directory, config, torch.float32)
    file.unlink()
    with pytest.raises(ModelRefused, match=r"no \*\.safetensors"):
        FileSource(directory, config, torch.float32)


def framed(header: bytes, data: int = 8) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(data)


def entry(begin: int, end: int, **change: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]} | change


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (b"", "not a safetensors header"),
        (b"\xff" * 8, f"its header would have 18446744073709551615 bytes, more than {HEADER_BYTES_MAX}"),
        ((HEADER_BYTES_MAX + 1).to_bytes(8, "little"), f"more than {HEADER_BYTES_MAX}"),
        (framed(b"{}")[:9], "not a safetensors header"),
        (framed(b"[]"), "not a safetensors header"),
        (framed(b"[" * 200_000), "not a safetensors header"),
        (framed(b'{"a\xff": 1}'), "not a safetensors header"),
        (framed(b"{}"), "its tensors end at byte 10, the file has 18"),
        ({"a": entry(0, 4)}, "the file has"),
        ({"a": entry(0, 12)}, "the file has"),
        ({"a": entry(0, 4), "b": entry(0, 8)}, "byte 4 of its data is of no tensor, or of two"),
        ({"a": entry(4, 8)}, "byte 0 of its data is of no tensor"),
        ({"a": entry(0, 8) | {"data_offsets": [8, 0]}}, "byte 0 of its data"),
        ({"a": entry(0, 8, data_offsets=[-8, 8])}, "not a safetensors header"),
        ({"a": entry(0, 8, data_offsets=[0, 1 << 70])}, "the file has 98"),
        ({"a": entry(0, 8, shape=[2.5])}, "not a safetensors header"),
        ({"a": {"dtype": "F32"}}, "not a safetensors header"),
        ({"a": entry(0, 8, shape=[4])}, "a has 8 bytes, which is not what its shape and dtype take"),
    ],
)
def test_a_header_is_checked_whole_and_bounded(file: bytes | dict[str, object], why: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file if isinstance(file, bytes) else framed(json.dumps(file).encode()))
    with pytest.raises(ModelRefused, match=f"^{path}: .*{why}"):
        WeightFiles(tmp_path).find("a", (4,))


def test_a_bad_directory_is_refused_and_never_raises_otherwise(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    path = directory / "config.json"
    good = json.loads(path.read_bytes())
    for change, message in (
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is more than"),
        ({"num_hidden_layers": True}, "num_hidden_layers: True is not"),
        ({"vocab_size": 1 << 62}, "vocab_size: .* is more than"),
        ({"rms_norm_eps": None}, "wrong kind"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan is not"),
        ({"rms_norm_eps": 10**400}, "wrong kind"),
        ({"rope_parameters": "linear"}, "wrong kind"),
        ({"quantization_config": ["fp8"]}, "wrong kind"),
        ({"architectures": [["LlamaForCausalLM"]]}, "wrong kind"),
        ({"architectures": {"name": 1}}, "wrong kind"),
        ({"sliding_window": -1, "use_sliding_window": True}, "sliding_window: -1 is not"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(ModelRefused, match=message):
            load_config(directory)
    path.write_text("[" * 200_000)
    with pytest.raises(ModelRefused, match=r"config\.json"):
        load_config(directory)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ModelRefused, match="not a file"):
        load_config(directory)
    path.unlink()
    path.write_text(json.dumps(good))
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    with pytest.raises(ModelRefused, match=r"model\.safetensors: not a file"):
        FileSource(directory, load_config(directory), torch.float32)
    (directory / "tokenizer.json").write_bytes(b'{"model": {"vocab": {"\xff": 0}}}')
    with pytest.raises(ModelRefused, match=r"tokenizer\.json: .*utf-8"):
        check_vocabulary(directory, 320)


def test_files_that_changed_since_they_were_checked_are_not_read(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    source = FileSource(directory, load_config(directory), torch.float32)
    os.utime(directory / "model.safetensors", ns=(1, 1))
    with pytest.raises(OSError, match="has changed since the model was registered"):
        filled(source, 1 << 20)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_random_weights_are_the_same_for_one_seed_with_norms_of_one(family: str, tmp_path: Path) -> None:
    config = load_config(oracle.save_tiny(family, tmp_path))
    source = DummySource(config, torch.bfloat16, CPU, seed=3)
    weights = weights_of(source, config)
    again = DummySource(config, torch.bfloat16, CPU, seed=3)
    assert_same(weights, weights_of(again, config))
    for layer in weights.layers:
        assert torch.all(layer.input_norm == 1)
        assert layer.q_norm is None or torch.all(layer.q_norm == 1)
        assert layer.qkv._bias is None or not layer.qkv._bias.any()
    assert 0.015 < weights.embedding.float().std() < 0.025
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == weights.embedding.shape[0]
