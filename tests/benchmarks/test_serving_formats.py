"""Formats of weights and KV in the serving benchmarks: what is configured, what the rows say, and the bounds."""

from __future__ import annotations

import argparse
import csv
import json

import pytest

from benchmarks.rows import RESULTS
from benchmarks.serving import batch_of_one, flood, llama, offline, paired_flood
from benchmarks.serving.formats import QUANTIZE, add_format_options, format_columns
from engine.models.config import parse_config

CONFIG = parse_config(json.loads(llama.SHAPE.read_bytes()))
LAYER_ELEMENTS = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
HEAD_BYTES = 2 * 128256 * 4096


def test_options_reach_the_engine_s_configuration() -> None:
    parser = argparse.ArgumentParser()
    add_format_options(parser)
    assert vars(parser.parse_args([])) == {"quantize": "none", "kv": "auto"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--quantize", "int5"])
    given = flood.parse(["--quantize", "int4", "--kv", "fp8", "--models", "2"])
    config = llama.gpu_config(flood.tiers(given), 20, 16, 2048, 256, given.models, quantize=given.quantize, kv=given.kv)
    assert [(model.quantize, model.kv_dtype) for model in config.models] == [("int4", "fp8")] * 2
    [model] = offline.config(4, [16], "fp8").models
    assert (model.quantize, model.kv_dtype) == ("fp8", "auto")


def test_a_row_names_the_model_s_dtype_where_nothing_was_chosen() -> None:
    assert format_columns("none", "auto") == {"weights": "bf16", "kv": "bf16"}
    assert format_columns("none", "fp8", "float32") == {"weights": "float32", "kv": "fp8"}
    assert format_columns("int4", "auto") == {"weights": "int4", "kv": "bf16"}


@pytest.mark.parametrize("name", ["serving_offline", "serving_flood", "serving_paired_flood", "long_context"])
def test_every_row_has_its_formats(name: str) -> None:
    with (RESULTS / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[-2:] == ["weights", "kv"]
    assert all(row["weights"] in (*QUANTIZE, "bf16", "float32") and row["kv"] for row in rows)


def test_a_tree_without_formats_gets_no_options_for_them() -> None:
    given = argparse.Namespace(quantize="none", kv="auto")
    assert paired_flood.format_options(given) == []
    given = argparse.Namespace(quantize="fp8", kv="fp8")
    assert flood.parse(["--quick", *paired_flood.format_options(given)]).quantize == "fp8"


@pytest.mark.parametrize(
    ("quantize", "kv", "matrix_bytes"),
    [
        ("none", "auto", 2.0),
        ("fp8", "auto", 1 + 4 / 4096),
        ("int8", "fp8", 1 + 4 / 4096),
        ("int4", "auto", 0.5 + 2 / 64),
    ],
)
def test_a_step_reads_each_weight_and_each_key_and_value_once(quantize: str, kv: str, matrix_bytes: float) -> None:
    """`matrix_bytes` of an element, its share of a scale included (a little less where rows are longer than 4,096)."""
    token = 2 * 32 * 8 * (130 if kv == "fp8" else 256)
    expected = 32 * LAYER_ELEMENTS * matrix_bytes + HEAD_BYTES
    assert llama.decode_bytes(CONFIG, quantize, kv, 0) == pytest.approx(expected, rel=5e-4)
    assert llama.decode_bytes(CONFIG, quantize, kv, 1000) - llama.decode_bytes(CONFIG, quantize, kv, 0) == 1000 * token


def test_the_bound_of_one_request_is_its_bytes_over_the_copy_speed() -> None:
    speed = 4.0e12
    bounds = [batch_of_one.bound_tok_s(CONFIG, quantize, "auto", speed) for quantize in ("none", "fp8", "int4")]
    middle = [speed / llama.decode_bytes(CONFIG, quantize, "auto", 128 + 256) for quantize in ("none", "fp8", "int4")]
    assert bounds == pytest.approx(middle, rel=1e-3)
    assert all(aim < bound for aim, bound in zip((0.0, *batch_of_one.AIMS.values()), bounds, strict=True))
