"""Measures a model in every format on the held-out text, as the quality gate does, and prints a Markdown table:

    python tests/programs/quality_table.py .laneway/models/laneway-tiny --threads 2

All is measured on the CPU, beside float32. The first row is the floor: the same weights computed in bfloat16. Without a
directory the demo model is measured, which takes an hour or more; `--windows 4` measures a tenth of the text. Nothing
is written beside the model. The exit status is 1 if a format that should pass the gate's default limits does not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if __name__ == "__main__":  # beside support/, and beside the packages where those are not installed
    sys.path[:0] = [str(directory) for directory in Path(__file__).resolve().parents[1:3]]

import torch

from engine.compute.quality import WINDOWS, LayerRun, MeasuredModel, held_out_ids, measure_quality
from engine.cpu.quality import CpuMeasuredModel
from engine.models.checkpoints import load_quantization
from engine.models.config import load_config
from engine.models.packaged.convert import convert_demo_model
from engine.protocol.config import ModelConfig, QualityLimits
from engine.protocol.quality import ModelQuality, find_quality_fault
from support.paths import MODEL_DIR

Quantize = Literal["none", "fp8", "int8", "int4"]
Kv = Literal["auto", "fp8"]
FORMATS: tuple[Quantize, ...] = ("none", "fp8", "int8", "int4")
KV_DTYPES: tuple[Kv, ...] = ("auto", "fp8")
# No layer stays unquantised: the format itself is measured.
NO_LIMITS = QualityLimits(mean_kl_max=100, top1_min=0, layer_error_max=100)
# The formats of weights that every model must pass with, whatever its KV. int4, without calibration, is too coarse for
# small models.
MUST_PASS = ("float32", "bfloat16", "fp8", "int8")
HEAD = "| weights | KV | mean KL, nats | top-1 | perplexity | worst layer | its error | default limits |"


class RoundedModel:
    """A model's own weights in bfloat16 beside the same in float32. Implements engine.compute.quality.MeasuredModel."""

    may_keep_layers = False

    def __init__(self, directory: Path) -> None:
        config, shape = ModelConfig(name="m", path=str(directory)), load_config(directory)
        self.layers, self.vocab = shape.layers, shape.vocab
        self._wide = CpuMeasuredModel(config, shape, torch.float32)
        self._rounded = CpuMeasuredModel(config, shape, torch.bfloat16)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self._wide.embed(ids)

    def load_layer(self, index: int) -> tuple[LayerRun, LayerRun, LayerRun, int]:
        reference, (_, rounded, _, _) = self._wide.load_layer(index)[0], self._rounded.load_layer(index)

        def run(hidden: torch.Tensor) -> torch.Tensor:
            return rounded(hidden.bfloat16()).float()

        return reference, run, run, 0

    def logits(self, hidden: torch.Tensor, *, quantized: bool) -> torch.Tensor:
        if not quantized:
            return self._wide.logits(hidden, quantized=False)
        return self._rounded.logits(hidden.bfloat16(), quantized=False)


def rows(directory: Path, windows: int) -> Iterator[str]:
    """The table, a line at a time. A published checkpoint is measured with both dtypes of KV, beside its dequantised
    weights."""
    shape, published = load_config(directory, quantized=True), load_quantization(directory)
    ids = held_out_ids(directory, shape.vocab, windows)

    def line(model: MeasuredModel, weights: str, kv: str) -> str:
        found = measure_quality(model, ids, NO_LIMITS, directory.name).quality
        return table_line(found, weights, kv)

    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    if published is None:
        yield line(RoundedModel(directory), "bfloat16", "bfloat16")
    for quantize in FORMATS if published is None else FORMATS[:1]:
        for kv_dtype in KV_DTYPES:
            config = ModelConfig(name="m", path=str(directory), quantize=quantize, kv_dtype=kv_dtype)
            if quantize == "none" and kv_dtype == "auto" and published is None:
                continue  # this row would compare float32 with itself
            plain = "float32" if published is None else published.method
            weights, kv = quantize.replace("none", plain), kv_dtype.replace("auto", "float32")
            yield line(CpuMeasuredModel(config, shape, torch.float32), weights, kv)


def table_line(found: ModelQuality, weights: str, kv: str) -> str:
    fault = find_quality_fault(found, QualityLimits())
    verdict = "passes" if fault is None else f"refused: {fault.partition(';')[0]}"
    return (
        f"| {weights} | {kv} | {found.mean_kl:.5f} | {found.top1:.2%} "
        f"| {found.perplexity:.2f} (of {found.reference_perplexity:.2f}) "
        f"| {found.worst_layer} | {found.worst_layer_error:.4f} | {verdict} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=MODEL_DIR)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="of 512 tokens of the text (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if not arguments.directory.exists() and arguments.directory == MODEL_DIR:
        convert_demo_model(MODEL_DIR)
    torch.set_num_threads(arguments.threads)
    failed = False
    for text in rows(arguments.directory, arguments.windows):
        print(text, flush=True)
        failed |= text.startswith(tuple(f"| {name} |" for name in MUST_PASS)) and "refused" in text
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
