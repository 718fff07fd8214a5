"""The slab of a quantised model, filled in pieces, holds the matrices that are read whole: of every published format,
and of every format that matrices are quantised to on loading."""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.contents.model_digests import model_digest
from engine.models.config import DecoderConfig, ModelRefused, load_config
from engine.models.cpu_loading import CpuWeightReader, check_weights
from engine.models.files import WeightFiles
from engine.models.matrices import PARTS, MatrixFormat, QuantizedMatrix, dequantize_matrix, quantize_matrix
from engine.models.quantized import QUANTIZE_FORMATS, quantized_digest
from engine.models.slab import ALIGN_BYTES, SlabLayout, section_product, slab_weights
from engine.models.slab_source import DummySource, FileSource
from support import oracle
from support.engine.published_formats import PUBLISHED, quantize_directory

CPU = torch.device("cpu")
FAMILIES = ("llama", "qwen2", "qwen3", "tied")  # plain, with biases of qkv, with norms of q and k, without lm_head
QUANTIZE = ("fp8", "int8", "int4")
# Columns that every published format can have.
SHAPE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 4}
# Rows that end inside an alignment, and groups of 64 of which the last is shorter.
ODD_SHAPE = {"hidden_size": 104, "intermediate_size": 216, "num_attention_heads": 4, "num_key_value_heads": 1}
PIECES = (ALIGN_BYTES, 5 * ALIGN_BYTES, 1 << 20)


def fill_by_threads(source: FileSource | DummySource, piece: int, threads: int = 3) -> torch.Tensor:
    """The slab, whose pieces are filled in a random order, by several threads at once."""
    slab = torch.full((source.layout.bytes,), 0xA5, dtype=torch.uint8)
    starts = list(range(0, len(slab), piece))
    random.Random(piece).shuffle(starts)

    def fill(own: int) -> None:
        for start in starts[own::threads]:
            source.fill(start, slab[start : start + piece])

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(fill, range(threads)):
            pass
    return slab


def assert_slab_is_whole_matrices(
    slab: torch.Tensor, layout: SlabLayout, directory: Path, config: DecoderConfig, quantize: str, kept: Collection[int]
) -> None:
    """The slab's quantised matrices equal `StackedMatrix.read`; its other tensors equal what `load_weights` reads."""
    matrices = check_weights(directory, config, quantize, kept)
    assert layout.formats == {name: matrix.format for name, matrix in matrices.items()}
    with WeightFiles(directory) as files:
        for name, stacked in matrices.items():
            for part, found, expected in zip(PARTS, layout.view_matrix(slab, name), stacked.read(files), strict=True):
                assert (found is None) == (expected is None), (name, part)
                if found is not None and expected is not None:
                    assert found.dtype == expected.dtype, (name, part)
                    assert torch.equal(found, expected), (name, part)
    plain = [name for name, part in layout.parts.items() if part.part is None]
    with CpuWeightReader(directory, config, layout.dtype, quantize=quantize, kept=kept) as reader:
        for name in plain:
            assert torch.equal(layout.view(slab, name), reader.read_tensor(name)), name
        assert ("lm_head" in plain) == (not reader.tied)
    assert len(plain) + sum(len(found.parts) for found in layout.formats.values()) == len(layout.parts)


def stacked_modules(config: DecoderConfig, layer: int) -> dict[str, list[str]]:
    """The tensors of the plain model by the fused matrix, named by hand."""
    own = f"model.layers.{layer}."
    return {
        f"layers.{layer}.qkv": [f"{own}self_attn.{name}_proj.weight" for name in "qkv"],
        f"layers.{layer}.o": [f"{own}self_attn.o_proj.weight"],
        f"layers.{layer}.gate_up": [f"{own}mlp.{name}_proj.weight" for name in ("gate", "up")],
        f"layers.{layer}.down": [f"{own}mlp.down_proj.weight"],
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_matrix_in_a_slab(name: str, tmp_path: Path) -> None:
    family = FAMILIES[list(PUBLISHED).index(name) % len(FAMILIES)]
    directory = oracle.save_tiny(family, tmp_path, num_hidden_layers=2, **SHAPE)
    numbers = quantize_directory(directory, PUBLISHED[name])
    config = load_config(directory, quantized=True)
    for dtype, piece in zip((torch.float32, torch.bfloat16, torch.float32), PIECES, strict=True):
        source = FileSource(directory, config, dtype)
        slab = fill_by_threads(source, piece)
        assert_slab_is_whole_matrices(slab, source.layout, directory, config, "none", ())
        for layer in range(config.layers):
            for fused, modules in stacked_modules(config, layer).items():
                format = source.layout.formats[fused]
                truth = torch.cat([numbers[module] for module in modules])
                found = dequantize_matrix(source.layout.view_matrix(slab, fused), format, truth.shape[1])
                assert torch.equal(found, truth), fused


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantize", QUANTIZE)
def test_a_matrix_in_a_slab_that_is_quantised_on_loading(quantize: str, family: str, tmp_path: Path) -> None:
    shape = ODD_SHAPE if family == "qwen2" else ODD_SHAPE | {"head_dim": 14}
    directory = oracle.save_tiny(family, tmp_path, num_hidden_layers=2, vocab_size=331, **shape)
    config, plain = load_config(directory), load_file(directory / "model.safetensors")
    for dtype, piece, kept in zip(
        (torch.bfloat16, torch.float32, torch.bfloat16), PIECES, ((), (1,), (0,)), strict=True
    ):
        source = FileSource(directory, config, dtype, quantize, kept)
        assert all(part.offset % ALIGN_BYTES == 0 for part in source.layout.parts.values())
        slab = fill_by_threads(source, piece)
        assert_slab_is_whole_matrices(slab, source.layout, directory, config, quantize, kept)
        # A row of `o` is narrower than a group, but for qwen2.
        names = {"int4": "int4 g64" if family == "qwen2" else "int4, int4 g64"}
        assert source.weights_format == names.get(quantize, quantize)
        for layer in range(config.layers):
            for fused, modules in stacked_modules(config, layer).items():
                whole = torch.cat([plain[module] for module in modules])
                if layer in kept:
                    assert torch.equal(source.layout.view(slab, fused), whole.to(dtype))
                    continue
                expected = quantize_matrix(whole, QUANTIZE_FORMATS[quantize])
                for found, wanted in zip(source.layout.view_matrix(slab, fused), expected, strict=True):
                    assert (found is None) == (wanted is None)
                    assert found is None or wanted is None or torch.equal(found, wanted)


def test_a_row_as_wide_as_a_group_has_one_scale(tmp_path: Path) -> None:
    config = load_config(oracle.save_tiny("llama", tmp_path, num_hidden_layers=1, **SHAPE))
    formats = FileSource(tmp_path, config, torch.bfloat16, "int4").layout.formats
    assert {name.rpartition(".")[2]: format.group for name, format in formats.items()} == {
        "qkv": None,
        "o": None,
        "gate_up": None,
        "down": 64,
    }


def test_scales_may_be_filled_before_their_numbers(tmp_path: Path) -> None:
    """And again afterwards, and twice: what is remembered of a row stays the same."""
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=1)
    config = load_config(directory)
    for quantize in QUANTIZE:
        wanted = fill_by_threads(FileSource(directory, config, torch.float32, quantize), 1 << 20, threads=1)
        source = FileSource(directory, config, torch.float32, quantize)
        slab = torch.full_like(wanted, 0xA5)
        for _ in range(2):
            for start in reversed(range(0, len(slab), ALIGN_BYTES)):
                source.fill(start, slab[start : start + ALIGN_BYTES])
            assert torch.equal(slab, wanted)


def test_a_section_of_a_slab_is_its_layer(tmp_path: Path) -> None:
    """As the quality gate reads a layer: alone, in memory of its own."""
    directory = oracle.save_tiny("qwen3", tmp_path, num_hidden_layers=11, **SHAPE)
    config = load_config(directory)
    source = FileSource(directory, config, torch.bfloat16, "int4", kept=(1,))
    slab = fill_by_threads(source, 1 << 20)
    for prefix in ("embedding", "layers.0.", "layers.1.", "layers.10.", "norm", "lm_head"):
        start, layout = source.layout.section(prefix)
        own = torch.full((layout.bytes,), 0xA5, dtype=torch.uint8)
        source.fill(start, own)
        assert layout.parts.keys() == {name for name in source.layout.parts if name.startswith(prefix)}
        for name in layout.parts:
            assert torch.equal(layout.view(own, name), source.layout.view(slab, name)), name

        def product(matrix: object, format: MatrixFormat | None, bias: torch.Tensor | None) -> bool:
            return isinstance(matrix, QuantizedMatrix)

        if prefix.startswith("layers."):
            assert section_product(own, layout, product)(f"{prefix}qkv", None) == (prefix != "layers.1.")


# ---- random weights


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "tied"])
@pytest.mark.parametrize("quantize", QUANTIZE)
def test_random_quantised_weights_are_finite_and_the_same_for_one_seed(
    quantize: str, family: str, tmp_path: Path
) -> None:
    config = load_config(oracle.save_tiny(family, tmp_path, num_hidden_layers=2, **SHAPE))

    def fill(seed: int, threads: int) -> tuple[DummySource, torch.Tensor]:
        source = DummySource(config, torch.bfloat16, CPU, seed, quantize)
        return source, fill_by_threads(source, 16 * ALIGN_BYTES, threads)

    (source, slab), (_, again), (_, other) = fill(3, 1), fill(3, 3), fill(4, 1)
    assert source.weights_format == quantize
    layout = source.layout

    def assert_fine(matrix: torch.Tensor | QuantizedMatrix, format: MatrixFormat | None, bias: object) -> str:
        if isinstance(matrix, QuantizedMatrix):
            assert format is not None
            matrix = dequantize_matrix(matrix, format, matrix.data.shape[1] * (2 if quantize == "int4" else 1))
        assert bool(matrix.isfinite().all())
        assert 0.014 < matrix.float().std() < 0.026
        return "quantised" if format else "plain"

    weights = slab_weights(slab, layout, config, assert_fine)
    assert weights.lm_head == "plain"
    assert {found for layer in weights.layers for found in (layer.qkv, layer.o, layer.gate_up, layer.down)} == {
        "quantised"
    }
    assert all(bool((layer.input_norm == 1).all()) for layer in weights.layers)
    for name in layout.parts:
        assert torch.equal(layout.view(slab, name), layout.view(again, name)), name
    assert not torch.equal(layout.view(slab, "layers.1.o"), layout.view(other, "layers.1.o"))


# ---- refusals, and digests


def test_a_matrix_of_which_a_part_is_quantised_is_refused(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=2, **SHAPE)
    plain = load_file(directory / "model.safetensors")
    quantize_directory(directory, PUBLISHED["float-channel"])
    config, file = load_config(directory, quantized=True), directory / "model.safetensors"
    published = json.loads((directory / "config.json").read_bytes())
    own = "model.layers.1.self_attn."
    tensors = load_file(file)
    del tensors[f"{own}k_proj.weight_scale"]
    tensors[f"{own}k_proj.weight"] = plain[f"{own}k_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(ModelRefused, match=f"{own}k_proj"):
        FileSource(directory, config, torch.float32)
    # A format whose list of exceptions is not read: the module is stored as one.
    exceptions = {"ignore": ["lm_head", f"{own}k_proj"]}
    published["quantization_config"] |= exceptions
    (directory / "config.json").write_text(json.dumps(published))
    wanted = f"{own}k_proj is not quantised, and others of {own}q_proj, {own}k_proj, {own}v_proj are"
    for check in (lambda: FileSource(directory, config, torch.float32), lambda: check_weights(directory, config)):
        with pytest.raises(ModelRefused) as refused:
            check()
        assert str(refused.value) == wanted


def test_modules_of_one_matrix_in_different_formats_are_refused(tmp_path: Path) -> None:
    """Blocks with scales in float32 and in bfloat16: one matrix would have two dtypes of scales."""
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=1, **SHAPE)
    quantize_directory(directory, PUBLISHED["fp8-small-block"])
    config, file = load_config(directory, quantized=True), directory / "model.safetensors"
    tensors, scale = load_file(file), "model.layers.0.self_attn.v_proj.weight_scale_inv"
    save_file(tensors | {scale: tensors[scale].bfloat16()}, file)
    wanted = r"v_proj and model\.layers\.0\.self_attn\.q_proj are stored in different formats"
    with pytest.raises(ModelRefused, match=wanted):
        FileSource(directory, config, torch.float32)


@pytest.mark.parametrize("name", ["float-channel", "fp8-block", "awq", "gptq"])
def test_a_published_checkpoint_is_not_quantised_again(name: str, tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=1, **SHAPE)
    quantize_directory(directory, PUBLISHED[name])
    config, method = load_config(directory, quantized=True), PUBLISHED[name].config["quant_method"]
    for quantize in QUANTIZE:
        with pytest.raises(ModelRefused) as refused:
            FileSource(directory, config, torch.float32, quantize)
        assert str(refused.value) == f"quantize: {quantize}, but the checkpoint is quantised already ({method})"


def test_a_digest_tells_how_a_model_is_quantised_and_which_layers_are_not(tmp_path: Path) -> None:
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=1, **SHAPE)
    own = model_digest(directory)
    assert quantized_digest(own, "none") == own
    assert quantized_digest(own, "none", (1,)) == own, "nothing is quantised, so nothing is left out"
    versions: list[tuple[str, tuple[int, ...]]] = [
        *((quantize, ()) for quantize in QUANTIZE),
        ("int4", (0,)),
        ("int4", (1,)),
        ("int4", (0, 1)),
        ("fp8", (0, 1)),
        ("int4", (10,)),
    ]
    digests = [quantized_digest(own, *version) for version in versions]
    assert len({own, *digests}) == len(digests) + 1
    assert digests == [quantized_digest(own, *version) for version in versions]
    assert quantized_digest(own, "int4", (1, 0)) == quantized_digest(own, "int4", [0, 1]), "in any order"
    before = digests[0]
    oracle.save_tiny("llama", tmp_path, num_hidden_layers=1, seed=1, **SHAPE)
    assert quantized_digest(model_digest(directory), *versions[0]) != before
