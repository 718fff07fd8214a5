"""Formats of weights and of KV: the options of the serving benchmarks, and their names in rows. Loads no torch."""

from __future__ import annotations

import argparse

QUANTIZE = ("none", "fp8", "int8", "int4")
KV = ("auto", "fp8")


def add_format_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quantize", choices=QUANTIZE, default="none", help="format of the weights, made on loading")
    parser.add_argument("--kv", choices=KV, default="auto", help="dtype of K and V; auto: the model's")


def format_columns(quantize: str, kv: str, dtype: str = "bf16") -> dict[str, str]:
    """The columns `weights` and `kv` of a row. `dtype`: the model's."""
    return {"weights": dtype if quantize == "none" else quantize, "kv": dtype if kv == "auto" else kv}
