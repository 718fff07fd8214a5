"""The header check and the fit to a base: at least every kind of wrong file that an upload can be."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.files.check import check_adapter, read_adapter
from adapters.files.header import HEADER_BYTES_MAX, TENSORS_MAX
from adapters.files.spec import AdapterRefused, BaseShape, ModuleShape, parse_config, read_header, validate
from support.adapters.files import (
    BASE,
    CONFIG,
    WEIGHTS,
    config_of,
    header_of,
    lora_tensors,
    packed,
    peft_adapter,
    tensor_name,
    write_adapter,
)

A0, B0 = tensor_name(0, "q_proj", "A"), tensor_name(0, "q_proj", "B")
A1, A2 = tensor_name(1, "q_proj", "A"), tensor_name(2, "q_proj", "A")


def refusal(directory: Path) -> str:
    with pytest.raises(AdapterRefused) as caught:
        read_adapter(directory, BASE)
    return caught.value.reason


def renamed(old: str, new: str) -> dict[str, np.ndarray]:
    return {(new if name == old else name): tensor for name, tensor in lora_tensors().items()}


def changed(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    return {**lora_tensors(), name: tensor}


def added(name: str, shape: tuple[int, ...] = (2, 2)) -> dict[str, np.ndarray]:
    return {**lora_tensors(), name: np.zeros(shape, np.float32)}


def with_header(change: Callable[[dict[str, Any]], None]) -> bytes:
    header, data = header_of(lora_tensors())
    change(header)
    return packed(header, data)


def poisoned(name: str, value: float) -> dict[str, np.ndarray]:
    tensors = lora_tensors()
    tensors[name].flat[7] = value
    return tensors


# ---- what fits -------------------------------------------------------------------------------------------------


def test_a_base_shape_comes_from_its_config() -> None:
    llama = BaseShape.from_config(
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": None}
    )  # fmt: skip
    assert llama.layers == 32
    assert llama.modules["k_proj"] == ModuleShape(4096, 1024)
    assert llama.modules["o_proj"] == ModuleShape(4096, 4096)
    assert llama.modules["down_proj"] == ModuleShape(14336, 4096)
    assert BASE.modules["q_proj"] == ModuleShape(24, 40)  # head_dim is not hidden / heads
    assert BASE.modules["o_proj"] == ModuleShape(40, 24)


@pytest.mark.parametrize(
    "config",
    [
        {"r": 3, "lora_alpha": 7},
        {"r": 17, "lora_alpha": 4, "use_rslora": True},
        {"r": 4, "rank_pattern": {"q_proj": 9, "layers.1.mlp.up_proj": 33}, "alpha_pattern": {"v_proj": 3}},
        {"r": 2, "target_modules": ["o_proj", "down_proj"], "layers_to_transform": [0, 2]},
        {"r": 2, "target_modules": r".*layers\.1\.(self_attn\.v_proj|mlp\.gate_proj)"},
    ],
)
def test_what_peft_saves_is_accepted(tmp_path: Path, config: dict[str, Any]) -> None:
    model = peft_adapter(tmp_path, **config)
    spec = read_adapter(tmp_path, BASE)
    found = {(module.layer, module.module): (module.rank, module.scale) for module in spec.modules}
    theirs = {}
    for name, layer in model.base_model.model.named_modules():
        if hasattr(layer, "scaling"):
            parts = name.split(".")
            theirs[int(parts[2]), parts[4]] = (layer.r["default"], layer.scaling["default"])
    assert found == theirs
    assert spec.rank_max == max(rank for rank, _ in theirs.values())
    assert set(spec.targets) == {module for _, module in theirs}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft's, on this transformers
def test_all_linear_of_a_real_architecture_is_accepted(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=3, target_modules="all-linear"))
    model.save_pretrained(str(tmp_path))
    spec = read_adapter(tmp_path, BaseShape.from_config(config.to_dict()))
    assert len(spec.modules) == 2 * 7


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16"])
def test_every_dtype_is_accepted(tmp_path: Path, dtype: str) -> None:
    tensors = {name: np.ones(tensor.shape, dtype) for name, tensor in lora_tensors().items()}
    spec = read_adapter(write_adapter(tmp_path, weights=tensors), BASE)
    assert {module.a.dtype for module in spec.modules} == {
        {"float32": "F32", "float16": "F16", "uint16": "BF16"}[dtype]
    }


def test_a_module_of_some_layers_only_is_accepted(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in lora_tensors().items() if ".layers.1." in name}
    spec = read_adapter(write_adapter(tmp_path, config_of(layers_to_transform=1), tensors), BASE)
    assert [(module.layer, module.module, module.rank, module.scale) for module in spec.modules] == [
        (1, "q_proj", 2, 2.0)
    ]
    assert spec.parameters == 2 * (24 + 40)


def test_metadata_and_padding_of_the_header_are_accepted(tmp_path: Path) -> None:
    header, data = header_of(lora_tensors())
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode() + b"   "
    assert read_adapter(write_adapter(tmp_path, weights=packed(text, data)), BASE).modules


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    backwards = dict(reversed(lora_tensors().items()))
    forwards = read_adapter(write_adapter(tmp_path / "a"), BASE)
    assert len(read_adapter(write_adapter(tmp_path / "b", weights=backwards), BASE).modules) == len(forwards.modules)


# ---- what does not ---------------------------------------------------------------------------------------------

BAD_TENSORS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "NaN": (poisoned(A1, np.nan), f"{A1}: number 7 is NaN"),
    "infinity": (poisoned(B0, -np.inf), f"{B0}: number 7 is NaN or infinite"),
    "float64": (changed(A0, np.zeros((2, 24), np.float64)), f"{A0}: dtype 'F64'"),
    "integers": (changed(A0, np.zeros((2, 24), np.int32)), f"{A0}: dtype 'I32'"),
    "another width": (changed(A0, np.zeros((2, 25), np.float32)), f"{A0}: shape [2, 25], the base needs [rank, 24]"),
    "another height": (changed(B0, np.zeros((24, 2), np.float32)), f"{B0}: shape [24, 2], the base needs [40, rank]"),
    "a vector": (changed(A0, np.zeros(24, np.float32)), f"{A0}: shape [24]"),
    "A of another rank": (changed(A0, np.zeros((3, 24), np.float32)), f"{A0}: rank 3, the configuration says 2"),
    "B of another rank": (changed(B0, np.zeros((40, 1), np.float32)), f"{B0}: rank 1, the configuration says 2"),
    "rank 0": (changed(A0, np.zeros((0, 24), np.float32)), f"{A0}: rank 0 is not from 1"),
    "rank 10,000": (changed(A0, np.zeros((10_000, 24), np.float32)), f"{A0}: rank 10000 is not from 1"),
    "no B": ({name: t for name, t in lora_tensors().items() if name != B0}, f"{B0}: missing"),
    "no A": ({name: t for name, t in lora_tensors().items() if name != A2}, f"{A2}: missing"),
    "too few layers": (
        {name: t for name, t in lora_tensors().items() if ".2." not in name},
        f"{A2}: missing, and the configuration targets model.layers.2.self_attn.q_proj; the base has 3 layers, these "
        "tensors are of 2",
    ),
    "too many layers": (renamed(A0, tensor_name(3, "q_proj", "A")), "lora_A.weight: the base has 3 layers"),
    "a padded layer number": (renamed(A0, A0.replace("layers.0", "layers.00")), "layers.00.self_attn"),
    "a huge layer number": (renamed(A0, A0.replace(".0.", f".{10**200}.")), "not the name of a LoRA tensor"),
    "a module of another parent": (renamed(A0, A0.replace("self_attn", "mlp")), "not the name of a LoRA tensor"),
    "an unknown module": (renamed(A0, A0.replace("q_proj", "qkv_proj")), "not the name of a LoRA tensor"),
    "no prefix": (renamed(A0, A0.removeprefix("base_model.model.")), "not the name of a LoRA tensor"),
    "an adapter's name": (renamed(A0, A0.replace(".weight", ".default.weight")), "not the name of a LoRA tensor"),
    "an untargeted module": ({**lora_tensors(), **lora_tensors(modules=("v_proj",))}, "does not target"),
    "DoRA": (added(A0.replace("lora_A.weight", "lora_magnitude_vector"), (40,)), "DoRA"),
    "a bias on B": (added(B0.replace("weight", "bias"), (40,)), "a trained bias"),
    "a trained bias": (added("base_model.model.model.layers.0.self_attn.q_proj.bias", (40,)), "a trained bias"),
    "an embedding": (added("base_model.model.model.embed_tokens.lora_embedding_A"), "the embedding"),
    "a saved embedding": (added("base_model.model.model.embed_tokens.weight"), "the embedding"),
    "an output head": (added("base_model.model.lm_head.lora_A.weight"), "the output head"),
    "a saved module": (added("base_model.model.model.norm.weight"), "modules_to_save"),
    "a path": (added("../../etc/passwd"), "../../etc/passwd"),
    "nothing": ({}, "no LoRA tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors_are_refused_by_name(tmp_path: Path, case: str) -> None:
    tensors, named = BAD_TENSORS[case]
    assert named in refusal(write_adapter(tmp_path, weights=tensors))


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 0x7C00), ("float16", 0xFE01), ("uint16", 0x7F80), ("uint16", 0xFFC0)]
)
def test_not_finite_in_half_precision(tmp_path: Path, dtype: str, bits: int) -> None:
    tensors = {name: np.ones(tensor.shape, dtype) for name, tensor in lora_tensors().items()}
    tensors[A1].view(np.uint16)[1, 3] = bits
    assert refusal(write_adapter(tmp_path, weights=tensors)) == f"{A1}: number 27 is NaN or infinite"


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 0x7BFF), ("uint16", 0x7F7F), ("uint16", 0xFF7F), ("float16", 1)]
)
def test_the_largest_and_smallest_numbers_are_finite(tmp_path: Path, dtype: str, bits: int) -> None:
    tensors = {name: np.ones(tensor.shape, dtype) for name, tensor in lora_tensors().items()}
    tensors[A1].view(np.uint16)[1, 3] = bits
    assert read_adapter(write_adapter(tmp_path, weights=tensors), BASE).modules


@pytest.mark.parametrize(
    ("dtype", "fits", "too_large"),
    [("float32", 0x477FEFFF, 0x477FF000), ("uint16", 0x477F, 0x4780), ("float16", 0x7BFF, 0x7C00)],
)
def test_what_float16_cannot_hold_is_refused_for_a_base_that_computes_in_it(
    tmp_path: Path, dtype: str, fits: int, too_large: int
) -> None:
    whole = np.uint32 if dtype == "float32" else np.uint16
    sign = 1 << (np.dtype(whole).itemsize * 8 - 1)
    for bits in (fits, too_large):
        tensors = {name: np.ones(tensor.shape, dtype) for name, tensor in lora_tensors().items()}
        tensors[A1].view(whole)[1, 3] = bits | sign
        written = write_adapter(tmp_path / str(bits), weights=tensors)
        if bits == fits:
            assert check_adapter(written, BASE, dtype="float16").spec.modules
        else:
            with pytest.raises(AdapterRefused, match=f"{A1}: number 27 is NaN"):
                check_adapter(written, BASE, dtype="float16")
            if dtype != "float16":
                assert check_adapter(written, BASE).spec.modules


def test_a_base_may_take_smaller_ranks_only(tmp_path: Path) -> None:
    written = write_adapter(tmp_path)
    assert check_adapter(written, BASE, rank_max=2).spec.rank_max == 2
    with pytest.raises(AdapterRefused, match=f"{A0}: rank 2 is not from 1 to 1"):
        check_adapter(written, BASE, rank_max=1)


def test_the_ranks_must_be_the_configurations(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path, config_of(2, rank_pattern={"layers.1.self_attn.q_proj": 4}))
    assert refusal(directory).startswith(f"{A1}: rank 2, the configuration says 4")


def entry(header: dict[str, Any], name: str = A0) -> dict[str, Any]:
    found: dict[str, Any] = header[name]
    return found


BAD_HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too few"),
    "seven bytes": (b"\0" * 7, "too few"),
    "a huge header": (struct.pack("<Q", HEADER_BYTES_MAX + 1) + b"{}", "more than"),
    "the largest length": (struct.pack("<Q", 2**64 - 1) + b"{}", "more than"),
    "a header beyond the file": (struct.pack("<Q", 1000) + b"{}", "truncated"),
    "a pickle": (pickle.dumps({"a": [1.0] * 9}, protocol=2), "not a safetensors"),
    "no object": (packed([], b""), "does not begin with"),
    "not JSON": (packed(b"{nonsense", b""), "not valid JSON"),
    "bad UTF-8": (packed(b'{"\xff": 1}', b""), "not valid JSON"),
    "deep nesting": (packed(b'{"a":' * 100_000, b""), "not valid JSON"),
    "a tensor twice": (packed(b'{"a": {"dtype": "F32"}, "a": {"dtype": "F16"}}', b""), "a: named twice"),
    "no entry": (with_header(lambda h: h.update({A0: 7})), "exactly dtype, shape and data_offsets"),
    "another key": (with_header(lambda h: entry(h).update(strides=[1])), "exactly dtype, shape and data_offsets"),
    "a missing key": (with_header(lambda h: entry(h).pop("shape")), "exactly dtype, shape and data_offsets"),
    "a list for dtype": (with_header(lambda h: entry(h).update(dtype=[])), f"{A0}: dtype []"),
    "a negative size": (with_header(lambda h: entry(h).update(shape=[-2, -24])), f"{A0}: its shape"),
    "a fraction of a size": (with_header(lambda h: entry(h).update(shape=[2.0, 24])), f"{A0}: its shape"),
    "true for a size": (with_header(lambda h: entry(h).update(shape=[True, 48])), f"{A0}: its shape"),
    "many dimensions": (with_header(lambda h: entry(h).update(shape=[1] * 99 + [48])), f"{A0}: its shape"),
    "an overflowing shape": (with_header(lambda h: entry(h).update(shape=[2**63, 2**63, 4])), f"{A0}: shape"),
    "a wrapping shape": (with_header(lambda h: entry(h).update(shape=[2**62 + 48])), f"{A0}: shape"),
    "a shape that no text can hold": (
        with_header(lambda h: entry(h).update(shape=[10**4000, 10**4000])),
        f"{A0}: its shape is not a list of sizes",
    ),
    "offsets that no text can hold": (
        with_header(lambda h: entry(h).update(data_offsets=[0, 2**64])),
        f"{A0}: its data_offsets are not",
    ),
    "a dtype of a megabyte": (with_header(lambda h: entry(h).update(dtype="F" * 2**20)), f"{A0}: dtype 'FFFF"),
    "offsets backwards": (with_header(lambda h: entry(h).update(data_offsets=[192, 0])), f"{A0}: its data_offsets"),
    "three offsets": (with_header(lambda h: entry(h).update(data_offsets=[0, 192, 192])), f"{A0}: its data_offsets"),
    "offsets that overlap": (with_header(lambda h: entry(h, A1).update(data_offsets=[0, 192])), "overlaps"),
    "offsets with a gap": (with_header(lambda h: entry(h).update(data_offsets=[4, 196])), "gap"),
    "offsets beyond the file": (with_header(lambda h: entry(h, A2).update(data_offsets=[2**40, 2**40 + 192])), "gap"),
    "a shape beyond the file": (
        packed({A0: {"dtype": "F32", "shape": [2**20, 24], "data_offsets": [0, 2**20 * 96]}}, b"\0" * 96),
        "truncated",
    ),
    "a tensor left out": (with_header(lambda h: h.pop(A0)), "gap"),
    "bytes after the end": (packed(*header_of(lora_tensors())) + b"x", "1 bytes after the last tensor"),
    "truncated": (packed(*header_of(lora_tensors()))[:-1], "truncated"),
    "too many tensors": (
        packed({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(TENSORS_MAX + 1)}, b""),
        "tensors, more than",
    ),
    "a long name": (packed({"n" * 2000: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, b""), "characters"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_bad_headers_are_refused_by_name(tmp_path: Path, case: str) -> None:
    raw, named = BAD_HEADERS[case]
    found = refusal(write_adapter(tmp_path, weights=raw))
    assert named in found
    assert len(found) < 500


@pytest.mark.parametrize("name", ["x" * 2**20, "[" + "1," * 2**19 + "1]"])
def test_a_reason_is_a_sentence_and_no_file(tmp_path: Path, name: str) -> None:
    """It goes into an answer, a log and a terminal."""
    write_adapter(tmp_path, config_of(**dict[str, Any]({name: 1, "peft_type": name})))
    assert len(refusal(tmp_path)) < 500


def test_a_zip_archive_is_refused(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path)
    with zipfile.ZipFile(directory / WEIGHTS, "w") as archive:
        archive.writestr("data.pkl", b"x" * 100)
    assert "zip archive" in refusal(directory)


def test_an_enormous_file_is_refused_unread(tmp_path: Path) -> None:
    directory = write_adapter(tmp_path)
    with (directory / WEIGHTS).open("r+b") as file:
        file.truncate(5 * 1024**3)  # sparse
    assert "more than" in refusal(directory)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_file_is_refused_or_still_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any byte changed, dropped or doubled: never another exception, never a tensor outside the file."""
    raw = bytearray(packed(*header_of(lora_tensors())))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 900) | st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b"9", b"-", b'"'])
        )
    path = tmp_path_factory.mktemp("damaged") / WEIGHTS
    path.write_bytes(raw)
    try:
        header = read_header(path)
        validate(parse_config(json.dumps(config_of()).encode()), header, BASE)
    except AdapterRefused:
        return
    assert max(tensor.stop for tensor in header.values()) == len(raw)


def test_a_directory_that_lacks_a_file(tmp_path: Path) -> None:
    for name in (CONFIG, WEIGHTS):
        directory = write_adapter(tmp_path / name)
        (directory / name).unlink()
        with pytest.raises(OSError, match=name):
            read_adapter(directory, BASE)
