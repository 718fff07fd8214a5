"""compressed-tensors' own package writes and reads the formats that the engine reads: the numbers are the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file

from engine.models.checkpoints import parse_quantization
from engine.models.files import WeightFiles
from engine.models.matrices import dequantize_matrix
from support import oracle
from support.engine.published_formats import PUBLISHED, compressed_config, quantize_directory, read_projections

COMPRESSED = [name for name, published in PUBLISHED.items() if published.config["quant_method"] == "compressed-tensors"]
ROWS, COLUMNS = 72, 160


def read_matrix(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> torch.Tensor:
    """Of module `m`."""
    save_file({f"m.{name}": value.contiguous() for name, value in tensors.items()}, directory / "model.safetensors")
    format = parse_quantization({"quantization_config": config})
    assert format is not None
    with WeightFiles(directory) as files:
        reader = format.reader(files, "m", ROWS, COLUMNS)
        assert reader is not None
        return dequantize_matrix(reader.read_rows(files, 0, ROWS), reader.format, COLUMNS)


@pytest.mark.parametrize(
    ("format", "weights", "groups"),
    [
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, 1),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}, 1),
        ("naive-quantized", {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}, 5),
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, 5),
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}, 1),
        ("pack-quantized", {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}, 5),
        ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}, 5),
    ],
)
def test_what_the_package_writes_is_read_as_the_package_reads_it(
    format: str, weights: dict[str, Any], groups: int, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(format)
    state = {
        "weight": torch.randn(ROWS, COLUMNS, generator=generator),
        "weight_scale": torch.rand(ROWS, groups, generator=generator) * 0.1 + 0.1,
    }
    if not weights.get("symmetric", True):
        state["weight_zero_point"] = torch.randint(-8, 8, (ROWS, groups), generator=generator, dtype=torch.int8)
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(stored, scheme)["weight"]
    assert torch.equal(read_matrix(tmp_path, stored, compressed_config(format, **weights)), expected)


@pytest.mark.parametrize("name", ["awq", "awq-row", "awq-symmetric"])
def test_the_package_converts_awq_to_the_same_numbers(name: str) -> None:
    """The words of AWQ: the package's conversion to pack-quantized, and the numbers that were written."""
    columns = 192
    tensors, numbers = PUBLISHED[name].write("m", ROWS, columns, random.Random(0))
    converted = AutoAWQConverter.from_autoawq_config(PUBLISHED[name].config).process(dict(tensors))
    group = columns // converted["m.weight_scale"].shape[1]
    weights = {"num_bits": 4, "type": "int", "group_size": group, "symmetric": "m.weight_zero_point" not in converted}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    state = {key.removeprefix("m."): value for key, value in converted.items()}
    state["weight_scale"] = state["weight_scale"].float()
    found = BaseCompressor.get_value_from_registry("pack-quantized").decompress(state, scheme)["weight"]
    assert torch.equal(found, numbers)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_whole_model_matches_transformers(name: str, tmp_path: Path) -> None:
    """transformers runs the quantised files with the package, and a plain model with the numbers read from them: the
    logits differ by no more than float32's order of additions. Scales are stored in float32, since the package
    multiplies in their dtype; and it dequantises while loading, since its lazy way (transformers 5.23) fails for zeros
    and for int8 without quantised activations."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=2, **shape)
    plain = oracle.load(directory)
    numbers = quantize_directory(directory, PUBLISHED[name])
    file = directory / "model.safetensors"
    scaled = {key: value.float() if key.endswith("_scale") else value for key, value in load_file(file).items()}
    save_file(scaled, file, metadata={"format": "pt"})
    found = read_projections(directory)
    assert found.keys() == numbers.keys()
    assert all(torch.equal(found[key], numbers[key]) for key in numbers)
    plain.load_state_dict(plain.state_dict() | found)
    config = json.loads((directory / "config.json").read_bytes())
    config["quantization_config"]["dequantize"] = True
    (directory / "config.json").write_text(json.dumps(config))
    theirs = oracle.load(directory)
    ids = list(range(3, 43))
    expected, logits = oracle.logits(theirs, ids), oracle.logits(plain, ids)
    assert float((logits - expected).abs().max()) < 1e-4 * float(expected.abs().max())
