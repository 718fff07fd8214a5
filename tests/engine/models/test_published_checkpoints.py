"""Published quantised checkpoints: their numbers are read exactly, in any rows and bytes, and what is damaged or
unknown is refused by name."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.models.checkpoints import METHODS, CheckpointFormat, load_quantization, parse_quantization
from engine.models.config import ModelRefused, load_config
from engine.models.files import StampedFiles, WeightFiles
from engine.models.matrices import PARTS, QuantizedMatrix, dequantize_matrix
from engine.models.matrix_readers import MatrixReader, StackedMatrix
from support import oracle
from support.engine.published_formats import (
    PUBLISHED,
    compressed_config,
    gptq_config,
    quantize_directory,
    read_projections,
)

MODULE = "model.layers.0.mlp.down_proj"
OUT, IN = 72, 160  # neither is a multiple of a block


@pytest.fixture(scope="module", params=PUBLISHED)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A directory with one matrix in a published format, and the matrix's numbers."""
    published, directory = PUBLISHED[request.param], tmp_path_factory.mktemp(request.param)
    columns = 192 if published.config.get("group_size") == 64 else IN
    tensors, numbers = published.write(MODULE, OUT, columns, random.Random(1))
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"quantization_config": published.config}))
    return directory, numbers


def open_reader(directory: Path, files: WeightFiles, shape: tuple[int, ...] = (OUT, IN)) -> MatrixReader:
    format = load_quantization(directory)
    assert format is not None
    reader = format.reader(files, MODULE, *shape)
    assert reader is not None
    return reader


def test_the_numbers_are_exactly_the_published_ones(stored: tuple[Path, torch.Tensor]) -> None:
    directory, numbers = stored
    with WeightFiles(directory) as files:
        reader = open_reader(directory, files, numbers.shape)
        matrix = reader.read_rows(files, 0, OUT)
    assert torch.equal(dequantize_matrix(matrix, reader.format, numbers.shape[1]), numbers)
    shape = (OUT, reader.format.groups(numbers.shape[1]))
    assert matrix.data.shape == (OUT, reader.format.row_bytes(numbers.shape[1]))
    assert (matrix.scales.shape, matrix.scales.dtype) == (shape, reader.format.scale_dtype)
    assert (matrix.zeros is not None) == reader.format.has_zeros


def test_any_rows_and_any_bytes_are_those_of_the_whole(stored: tuple[Path, torch.Tensor]) -> None:
    directory, numbers = stored
    with WeightFiles(directory) as files:
        reader = open_reader(directory, files, numbers.shape)
        whole = reader.read_rows(files, 0, OUT)
        for start, stop in ((0, 1), (3, 3), (5, 6), (7, 33), (40, OUT), (OUT, OUT)):
            rows = reader.read_rows(files, start, stop)
            for found, expected in zip(rows, whole, strict=True):
                assert (found is None) == (expected is None)
                assert found is None or expected is None or torch.equal(found, expected[start:stop])
        for part, tensor in zip(PARTS, whole, strict=True):
            if tensor is None:
                continue
            raw = tensor.view(torch.uint8).flatten()
            assert reader.part_bytes(part) == len(raw)
            for start, stop in ((0, len(raw)), (1, 2), (len(raw) // 3, len(raw) - 5)):
                target = torch.full((stop - start,), 0xA5, dtype=torch.uint8)
                reader.fill_part(files, part, start, target)
                assert torch.equal(target, raw[start:stop])


def test_stacked_matrices_are_filled_in_pieces_by_several_threads(
    stored: tuple[Path, torch.Tensor], tmp_path: Path
) -> None:
    directory, numbers = stored
    published = PUBLISHED[next(name for name in PUBLISHED if directory.name.startswith(f"{name}0"))]
    tensors: dict[str, torch.Tensor] = {}
    truths = []
    for seed, (module, rows) in enumerate({"q": 72, "k": 24, "v": 48}.items()):
        written, found = published.write(module, rows, numbers.shape[1], random.Random(seed))
        tensors |= written
        truths.append(found)
    save_file(tensors, tmp_path / "model.safetensors")
    format = parse_quantization({"quantization_config": published.config})
    assert format is not None
    with WeightFiles(tmp_path) as files:
        shapes = zip("qkv", truths, strict=True)
        readers = [format.reader(files, module, len(found), numbers.shape[1]) for module, found in shapes]
        stack = StackedMatrix([reader for reader in readers if reader is not None])
        stamps = files.stamps()
    filled = {part: torch.full((stack.part_bytes(part),), 0xA5, dtype=torch.uint8) for part in PARTS}

    def fill(own: int) -> None:
        for part in PARTS if stack.format.has_zeros else PARTS[:2]:
            target = filled[part]
            for start in range(own * 100, len(target), 300):
                with StampedFiles(stamps) as opened:
                    stack.fill_part(opened, part, start, target[start : start + 100])

    threads = [threading.Thread(target=fill, args=(own,)) for own in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = stack.out_features
    matrix = QuantizedMatrix(
        filled["data"].view(rows, -1),
        filled["scales"].view(stack.format.scale_dtype).view(rows, -1),
        filled["zeros"].view(rows, -1) if stack.format.has_zeros else None,
    )
    assert torch.equal(dequantize_matrix(matrix, stack.format, stack.in_features), torch.cat(truths))


def test_a_file_that_changed_is_not_read(stored: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    directory, numbers = stored
    (tmp_path / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with WeightFiles(tmp_path) as files:
        reader, stamps = open_reader(tmp_path, files, numbers.shape), files.stamps()
    with StampedFiles(stamps) as opened:
        reader.read_rows(opened, 0, OUT)
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    with StampedFiles(stamps) as opened:
        for _ in range(2):
            with pytest.raises(OSError, match="has changed since the model was registered"):
                reader.read_rows(opened, 0, OUT)


def test_matrices_of_different_formats_are_not_stacked(tmp_path: Path) -> None:
    config = compressed_config("float-quantized", strategy="channel", num_bits=8, type="float")
    tensors: dict[str, torch.Tensor] = {}
    for module, dtype in (("q", torch.float32), ("k", torch.bfloat16)):
        tensors |= {
            f"{module}.weight": torch.zeros(8, 64, dtype=torch.float8_e4m3fn),
            f"{module}.weight_scale": torch.ones(8, 1, dtype=dtype),
        }
    save_file(tensors, tmp_path / "model.safetensors")
    format = parse_quantization({"quantization_config": config})
    assert format is not None
    with WeightFiles(tmp_path) as files:
        readers = [format.reader(files, module, 8, 64) for module in "qk"]
        with pytest.raises(ModelRefused, match="k and q are stored in different formats"):
            StackedMatrix([reader for reader in readers if reader is not None])


# ---- which module is quantised, and how


def plain_and_quantized(directory: Path, config: dict[str, Any]) -> tuple[CheckpointFormat, WeightFiles]:
    """`a` is quantised to int8 with row scales, `b` is plain, `c` is fp8 with row scales."""
    tensors = {
        "a.weight": torch.ones(8, 64, dtype=torch.int8),
        "a.weight_scale": torch.ones(8, 1),
        "b.weight": torch.ones(8, 64, dtype=torch.bfloat16),
        "c.weight": torch.ones(8, 64).to(torch.float8_e4m3fn),
        "c.weight_scale": torch.ones(8, 1),
    }
    save_file(tensors, directory / "model.safetensors")
    format = parse_quantization({"quantization_config": config})
    assert format is not None
    return format, WeightFiles(directory)


def two_groups(**change: Any) -> dict[str, Any]:
    int8, fp8 = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
    config = compressed_config("naive-quantized", strategy="channel", **int8)
    scheme = {"targets": ["re:c$"], "weights": {**fp8, "strategy": "channel"}, "format": "float-quantized"}
    config["config_groups"]["group_1"] = scheme
    return config | change


def test_targets_and_exceptions_name_modules_as_compressed_tensors_reads_them(tmp_path: Path) -> None:
    format, files = plain_and_quantized(tmp_path, two_groups(ignore=["re:b.*", "lm_head"]))
    with files:
        a, b, c = (format.reader(files, module, 8, 64) for module in "abc")
    assert a is not None
    assert b is None
    assert c is not None
    assert (a.format.element, c.format.element) == ("int8", "fp8")


@pytest.mark.parametrize("ignore", [["a"], ["re:a"], ["re:(a|x)$"], ["Linear"]])
def test_an_exception_that_is_stored_quantised_is_refused(ignore: list[str], tmp_path: Path) -> None:
    format, files = plain_and_quantized(tmp_path, two_groups(ignore=ignore))
    with files, pytest.raises(ModelRefused, match="a: the config's `ignore` names it"):
        format.reader(files, "a", 8, 64)


def test_a_pattern_matches_at_the_start_of_a_name(tmp_path: Path) -> None:
    config = two_groups(ignore=["re:x", "re:.*down"])
    format, files = plain_and_quantized(tmp_path, config)
    with files:
        assert format.reader(files, "a", 8, 64) is not None


def test_a_module_of_no_target_is_refused(tmp_path: Path) -> None:
    config = two_groups()
    config["config_groups"]["group_0"]["targets"] = ["other"]
    format, files = plain_and_quantized(tmp_path, config)
    with files, pytest.raises(ModelRefused, match="a: no target of the config_groups names it"):
        format.reader(files, "a", 8, 64)


def test_scales_of_the_kv_cache_and_of_activations_are_ignored(tmp_path: Path) -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = compressed_config("float-quantized", **scheme)
    config["kv_cache_scheme"] = scheme
    config["config_groups"]["group_0"]["input_activations"] = scheme
    tensors, numbers = PUBLISHED["float-tensor"].write(MODULE, OUT, IN, random.Random(0))
    tensors |= {f"{MODULE}.input_scale": torch.ones(1), f"{MODULE}.k_scale": torch.ones(1)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with WeightFiles(tmp_path) as files:
        reader = open_reader(tmp_path, files)
        assert torch.equal(dequantize_matrix(reader.read_rows(files, 0, OUT), reader.format, IN), numbers)


def test_zeros_of_a_symmetric_matrix_are_accepted_if_they_are_zero(tmp_path: Path) -> None:
    """Old versions of compressed-tensors write them."""
    format = parse_quantization({"quantization_config": two_groups(ignore=[])})
    assert format is not None
    tensors = {"a.weight": torch.ones(8, 64, dtype=torch.int8), "a.weight_scale": torch.ones(8, 1)}
    for zero in (0, 1):
        zeros = torch.full((8, 1), zero, dtype=torch.int8)
        save_file(tensors | {"a.weight_zero_point": zeros}, tmp_path / "model.safetensors")
        with WeightFiles(tmp_path) as files:
            if not zero:
                assert format.reader(files, "a", 8, 64) is not None
                continue
            with pytest.raises(ModelRefused, match=r"a\.weight_zero_point: it is not 0"):
                format.reader(files, "a", 8, 64)


# ---- damaged files

NAN, INF = float("nan"), float("inf")


def damage(name: str, suffix: str, change: Any, tmp_path: Path, rows: int = OUT, columns: int = IN) -> None:
    """Write the format `name` with one tensor changed, and read all of it."""
    published = PUBLISHED[name]
    tensors, _ = published.write(MODULE, OUT, 192 if published.config.get("group_size") == 64 else IN, random.Random(2))
    found = change(tensors[f"{MODULE}.{suffix}"]) if f"{MODULE}.{suffix}" in tensors else change(None)
    tensors[f"{MODULE}.{suffix}"] = found
    save_file({key: value for key, value in tensors.items() if value is not None}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": published.config}))
    with WeightFiles(tmp_path) as files:
        open_reader(tmp_path, files, (rows, columns)).read_rows(files, 0, rows)


def put(value: float) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return change


def fp8_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(torch.uint8)[OUT - 1, 7] = 0xFF
    return tensor


def missing(tensor: torch.Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("name", "suffix", "change", "why"),
    [
        ("float-channel", "weight_scale", put(NAN), rf"the scale nan \(row {OUT - 1}, group 0\)"),
        ("float-tensor", "weight_scale", put(INF), "the scale inf"),
        ("int-channel", "weight_scale", put(-0.5), "the scale -0.5"),
        ("pack-group", "weight_scale", put(NAN), rf"the scale nan \(row {OUT - 1}, group 4\)"),
        ("fp8-block", "weight_scale_inv", put(NAN), "the scale nan"),
        ("awq", "scales", put(NAN), "the scale nan"),
        ("gptq", "scales", put(-INF), "the scale -inf"),
        ("float-channel", "weight", fp8_nan, "numbers that are NaN"),
        ("fp8-block", "weight", fp8_nan, "numbers that are NaN"),
        ("float-channel", "weight_scale", missing, "is missing"),
        ("pack-group", "weight_scale", missing, "is missing"),
        ("pack-group", "weight_packed", missing, "is missing"),
        ("pack-group-zeros", "weight_zero_point", missing, "is missing"),
        ("fp8-block", "weight_scale_inv", missing, "is missing"),
        ("fp8-tensor", "weight_scale", missing, "is missing"),
        ("awq", "qzeros", missing, "is missing"),
        ("awq", "scales", missing, "is missing"),
        ("gptq", "qweight", missing, "is missing"),
        ("gptq", "qzeros", missing, "is missing"),
        # groups of another size
        ("pack-group", "weight_scale", lambda scales: scales[:, :-1].contiguous(), r"shape \(72, 4\)"),
        ("pack-group-zeros", "weight_zero_point", lambda zeros: zeros[:, :1].contiguous(), r"shape \(9, 1\)"),
        ("fp8-block", "weight_scale_inv", lambda scales: torch.ones(2, 2), r"shape \(2, 2\)"),
        ("fp8-tensor", "weight_scale", lambda scales: torch.ones(OUT), r"shape \(72,\)"),
        ("awq", "scales", lambda scales: scales[:2].contiguous(), r"shape \(2, 72\)"),
        ("gptq", "scales", lambda scales: scales.repeat(2, 1), r"shape \(10, 72\)"),
        ("gptq", "qzeros", lambda zeros: zeros[:, :1].contiguous(), r"shape \(5, 1\)"),
        # other dtypes
        ("float-channel", "weight", lambda weight: weight.view(torch.int8), "of dtype I8, not of F8_E4M3"),
        ("float-channel", "weight", lambda weight: weight.float().to(torch.float8_e5m2), "of dtype F8_E5M2"),
        ("float-channel", "weight", lambda weight: weight.float(), "of dtype F32, but .*weight_scale exists"),
        ("int-channel", "weight", lambda weight: weight.view(torch.uint8), "of dtype U8, not of I8"),
        ("int-channel", "weight_scale", lambda scales: scales.double(), "of dtype F64"),
        ("pack-group", "weight_packed", lambda packed: packed.view(torch.float32), "of dtype F32, not of I32"),
        ("awq", "qweight", lambda words: words.view(torch.uint8).view(IN, -1)[:, : OUT // 8].contiguous(), "dtype U8"),
        ("gptq", "g_idx", lambda index: index.float(), "of dtype F32"),
        # contradictions
        ("pack-group", "weight_shape", lambda shape: torch.tensor([OUT, IN + 1]), "it says"),
        ("gptq", "g_idx", lambda index: index.flip(0), "reordered columns"),
        ("gptq-row", "g_idx", lambda index: index + 1, "reordered columns"),
        ("pack-group", "weight_g_idx", lambda _: torch.zeros(IN, dtype=torch.int32), "reordered columns"),
        ("pack-group", "weight_g_idx", lambda _: torch.zeros(3, dtype=torch.int32), r"shape \(3,\)"),
        ("gptq", "qzeros", lambda zeros: zeros + 1, "its zeros are not 8"),
        ("gptq-8", "qzeros", lambda zeros: zeros ^ 1, "its zeros are not 128"),
        (
            "pack-group",
            "weight_zero_point",
            lambda _: torch.zeros(9, 5, dtype=torch.int32),
            r"weight_zero_point has shape",
        ),
    ],
)
def test_damage_is_refused_with_the_tensors_name(name: str, suffix: str, change: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=why) as caught:
        damage(name, suffix, change, tmp_path)
    assert f"{MODULE}.{suffix}" in str(caught.value)


@pytest.mark.parametrize("name", ["float-channel", "pack-group", "fp8-block", "awq", "gptq"])
@pytest.mark.parametrize(("rows", "columns"), [(OUT + 8, IN), (OUT, IN + 32), (OUT, 1), (1, IN), (1 << 30, 1 << 30)])
def test_another_shape_than_the_configs_is_refused(name: str, rows: int, columns: int, tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=rf"{MODULE}\.\w*weight\w*:? (has shape|1 |{columns} )"):
        damage(name, "bias", lambda _: torch.zeros(OUT), tmp_path, rows, columns)


def test_the_largest_zero_of_gptq_v1_wraps_to_0(tmp_path: Path) -> None:
    """A zero of 0 is stored as 15, and takes one from the next number of its word."""
    config = gptq_config(4, 32, "gptq", symmetric=False)
    tensors = {
        "m.qweight": torch.zeros(4, 8, dtype=torch.int32),
        "m.qzeros": torch.tensor([[0x00000030 - 0x11111111]], dtype=torch.int32),
        "m.scales": torch.ones(1, 8, dtype=torch.float16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    format = parse_quantization({"quantization_config": config})
    assert format is not None
    with WeightFiles(tmp_path) as files:
        reader = format.reader(files, "m", 8, 32)
        assert reader is not None
        zeros = reader.read_rows(files, 0, 8).zeros
    assert zeros is not None
    assert zeros.flatten().tolist() == [0, 3, 0, 0, 0, 0, 0, 0]


def test_reordered_columns_are_accepted_if_the_order_is_the_plain_one(tmp_path: Path) -> None:
    for name, key, flag in (("gptq", "desc_act", True), ("pack-group", "actorder", "group")):
        published = PUBLISHED[name]
        config = json.loads(json.dumps(published.config))
        (config if name == "gptq" else config["config_groups"]["group_0"]["weights"])[key] = flag
        tensors, numbers = published.write(MODULE, OUT, IN, random.Random(2))
        index = f"{MODULE}.g_idx" if name == "gptq" else f"{MODULE}.weight_g_idx"
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        plain = (torch.arange(IN) // 32).to(torch.int32)
        for order, message in ((plain, ""), (None, "is missing"), (plain.roll(1), "reordered columns")):
            stored = {k: v for k, v in tensors.items() if k != index} | ({} if order is None else {index: order})
            save_file(stored, tmp_path / "model.safetensors")
            with WeightFiles(tmp_path) as files:
                if message:
                    with pytest.raises(ModelRefused, match=f"{index}.*{message}"):
                        open_reader(tmp_path, files)
                else:
                    reader = open_reader(tmp_path, files)
                    found = dequantize_matrix(reader.read_rows(files, 0, OUT), reader.format, IN)
                    assert torch.equal(found, numbers)


def test_a_truncated_shard_is_refused(stored: tuple[Path, torch.Tensor], tmp_path: Path) -> None:
    directory, _ = stored
    whole = (directory / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ModelRefused, match=r"model\.safetensors: its tensors end at byte"):
        WeightFiles(tmp_path)
    header = json.loads(whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]])
    name = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"][1])
    entry = header[name]
    entry["shape"][0] *= 2
    text = json.dumps(header).encode()
    body = whole[8 + struct.unpack("<Q", whole[:8])[0] :]
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    with WeightFiles(tmp_path) as files, pytest.raises(ModelRefused, match=name):
        open_reader(tmp_path, files, _.shape)


# ---- configs


def changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(config))
    *parents, key = path.split("/")
    at = result
    for parent in parents:
        at = at[parent]
    at[key] = value
    return result


WEIGHTS = "config_groups/group_0/weights"
PACKED, BLOCKS = PUBLISHED["pack-group"].config, PUBLISHED["fp8-block"].config
AWQ, GPTQ = PUBLISHED["awq"].config, PUBLISHED["gptq"].config


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"quant_method": "bitsandbytes"}, f"quant_method 'bitsandbytes' is not supported, only {', '.join(METHODS)}"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        ({"bits": 4}, "quant_method None"),
        (["fp8"], "it is not a JSON object"),
        ("fp8", "it is not a JSON object"),
        (changed(PACKED, "format", "nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized' of 4 bits 'int'"),
        (changed(PACKED, "format", "marlin-24"), "format 'marlin-24'"),
        (changed(PACKED, "format", "float-quantized"), "format 'float-quantized' of 4 bits 'int'"),
        (changed(PACKED, "format", None), "format"),
        (changed(PACKED, f"{WEIGHTS}/num_bits", 3), "of 3 bits"),
        (changed(PACKED, f"{WEIGHTS}/num_bits", "4"), r"Expected `int`, got `str` - at `\$\.config_groups"),
        (changed(PACKED, f"{WEIGHTS}/num_bits", True), "Expected `int`, got `bool`"),
        (changed(PACKED, f"{WEIGHTS}/group_size", -32), "group_size -32"),
        (changed(PACKED, f"{WEIGHTS}/group_size", 0), "group_size 0"),
        (changed(PACKED, f"{WEIGHTS}/group_size", 48), "group_size 48 is not supported, only -1 and multiples of 32"),
        (changed(PACKED, f"{WEIGHTS}/group_size", 32 * 10**30), "group_size 3200"),
        (changed(PACKED, f"{WEIGHTS}/group_size", None), "strategy: 'group' with group_size None"),
        (changed(PACKED, f"{WEIGHTS}/strategy", "token"), "strategy: 'token'"),
        (changed(PACKED, f"{WEIGHTS}/strategy", "block"), "block_structure: None"),
        (changed(PACKED, f"{WEIGHTS}/dynamic", True), "weights.dynamic"),
        (changed(PACKED, f"{WEIGHTS}/type", "float"), "4 bits 'float'"),
        (changed(PACKED, "sparsity_config", {"format": "sparse-24-bitmask"}), "sparsity_config"),
        (changed(PACKED, "transform_config", {"config_groups": {"R1": {}}}), "transform_config"),
        (changed(PACKED, "config_groups", {}), "config_groups: none has weights"),
        (changed(PACKED, "config_groups", {"W4A16": ["Linear"]}), "Expected `object`, got `array`"),
        (changed(PACKED, "config_groups", 4), "Expected `object`, got `int`"),
        (changed(PACKED, "ignore", ["re:("]), r"ignore: the pattern '\('"),
        (changed(PACKED, "ignore", ["re:(?=a)"]), r"ignore: the pattern '\(\?=a\)'"),
        (changed(PACKED, "ignore", ["re:\ud800"]), "ignore: the pattern"),
        (changed(PACKED, "ignore", ["re:(((((a{99}){99}){99}){99}){99})"]), "ignore: the pattern"),
        (changed(PACKED, "ignore", ["re:a"] * 1025), "1025 patterns"),
        (changed(PACKED, "ignore", "lm_head"), "Expected `array | null`, got `str`"),
        (
            changed(PUBLISHED["int-channel"].config, f"{WEIGHTS}/symmetric", False),
            "symmetric: false is supported for 4 bits only",
        ),
        (changed(BLOCKS, "weight_block_size", [128]), r"weight_block_size: \[128\]"),
        (changed(BLOCKS, "weight_block_size", [128, -128]), r"weight_block_size: \[128, -128\]"),
        (changed(BLOCKS, "weight_block_size", [128, 100]), "weight_block_size: 100 columns"),
        (changed(BLOCKS, "weight_block_size", [0, 128]), "weight_block_size"),
        (changed(BLOCKS, "weight_block_size", "128x128"), "Expected `array | null`, got `str`"),
        (changed(BLOCKS, "fmt", "e5m2"), "fmt: 'e5m2'"),
        (changed(AWQ, "bits", 8), "bits: 8 is not supported for awq, only 4"),
        (changed(AWQ, "bits", None), "bits"),
        (changed(AWQ, "version", "gemv"), "version: 'gemv'"),
        (changed(AWQ, "version", "GEMV_FAST"), "version: 'gemv_fast'"),
        (changed(AWQ, "group_size", -128), "group_size -128"),
        (changed(AWQ, "group_size", 16), "group_size 16"),
        (changed(AWQ, "group_size", 10**40), "group_size 1000"),
        (changed(AWQ, "zero_point", "yes"), "Expected `bool`, got `str`"),
        (changed(GPTQ, "bits", 3), "bits: 3 is not supported for gptq, only 4 and 8"),
        (changed(GPTQ, "checkpoint_format", "marlin"), "checkpoint_format: 'marlin'"),
        (changed(GPTQ, "is_marlin_format", True), "checkpoint_format"),
        (changed(GPTQ, "group_size", -2), "group_size -2"),
        (changed(GPTQ, "pack_dtype", "int16"), "pack_dtype"),
        (changed(GPTQ, "dynamic", {"-:lm_head": {}, "+:.*down.*": {"bits": 8}}), "dynamic"),
        (changed(GPTQ, "adapter", {"name": "lora"}), "adapter"),
        (changed(changed(GPTQ, "bits", 8), "sym", False), "sym: false is not supported for 8 bits"),
    ],
)
def test_what_is_not_supported_is_named(config: Any, why: str) -> None:
    for key in ("quantization_config", "compression_config"):
        with pytest.raises(ModelRefused, match=f"^{key}: .*{why}"):
            parse_quantization({key: config})


def test_a_slow_pattern_takes_no_longer(tmp_path: Path) -> None:
    """Python's `re` would take years."""
    config = changed(PACKED, "ignore", ["re:(a*)*b"])
    format = parse_quantization({"quantization_config": config})
    assert format is not None
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with WeightFiles(tmp_path) as files, pytest.raises(ModelRefused, match="weight_packed is missing"):
        format.reader(files, "a" * 5000, 8, 32)


def test_a_model_without_quantisation_has_no_format(tmp_path: Path) -> None:
    plain: tuple[dict[str, Any], ...] = (
        {},
        {"quantization_config": None},
        {"quantization_config": {}, "compression_config": {}},
    )
    for config in plain:
        assert parse_quantization(config) is None
    old = {name: value for name, value in PACKED.items() if name != "quant_method"}
    format = parse_quantization({"compression_config": old})
    assert format is not None
    assert format.method == "compressed-tensors"


def test_a_config_is_refused_until_its_caller_reads_the_format(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"quantization_config": AWQ}))
    with pytest.raises(ModelRefused, match="quantization_config: awq is not supported"):
        load_config(directory)
    assert load_config(directory, quantized=True).hidden == 48


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([*METHODS, "Linear", "re:a", "re:(", "group", "pack-quantized", -1, 4, 8, 128, "int", "float"]),
)
DEEP = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@st.composite
def configs(draw: st.DrawFn) -> Any:
    """A published config with a few values replaced or removed, at any depth."""
    config = json.loads(json.dumps(draw(st.sampled_from(list(PUBLISHED.values()))).config))
    for _ in range(draw(st.integers(0, 3))):
        at: Any = config
        while isinstance(at, dict) and at:
            key = draw(st.sampled_from(sorted(at)))
            if isinstance(at[key], dict) and draw(st.booleans()):
                at = at[key]
                continue
            if draw(st.booleans()):
                at[key] = draw(DEEP)
            else:
                del at[key]
            break
    return config


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=configs() | DEEP, key=st.sampled_from(["quantization_config", "compression_config"]))
def test_any_config_is_read_or_refused(config: Any, key: str) -> None:
    try:
        format = parse_quantization({key: config})
    except ModelRefused as error:
        refused = str(error)
    else:
        refused = ""
        assert format is None or format.method in METHODS
    assert not refused or refused.startswith(f"{key}: ")


# ---- whole models


@pytest.mark.parametrize("name", ["fp8-tensor", "awq", "gptq", "gptq-zeros"])
def test_the_matrices_of_a_whole_model(name: str, tmp_path: Path) -> None:
    """Formats that transformers runs only with packages for a GPU, or not at all."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
    directory = oracle.save_tiny("qwen2", tmp_path, num_hidden_layers=1, **shape)
    numbers = quantize_directory(directory, PUBLISHED[name])
    found = read_projections(directory)
    assert found.keys() == numbers.keys()
    assert all(torch.equal(found[key], numbers[key]) for key in numbers)


def test_fp8_blocks_match_transformers(tmp_path: Path) -> None:
    """transformers reads the quantised files on a CPU, too, by multiplying the scales in: its logits and those of a
    plain model with this reader's numbers differ by no more than float32's order of additions."""
    shape = {"hidden_size": 64, "intermediate_size": 256, "head_dim": 16, "num_attention_heads": 4}
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=2, **shape)
    plain = oracle.load(directory)
    numbers = quantize_directory(directory, PUBLISHED["fp8-block"])
    found, state = read_projections(directory), plain.state_dict()
    assert found.keys() == numbers.keys()
    assert all(torch.equal(found[name], numbers[name]) for name in numbers)
    plain.load_state_dict(state | found)
    theirs = oracle.load(directory)
    ids = list(range(3, 43))
    expected, logits = oracle.logits(theirs, ids), oracle.logits(plain, ids)
    assert float((logits - expected).abs().max()) < 1e-4 * float(expected.abs().max())
