"""Long contexts on one GPU: a decode step of 32 sequences at 8,192 tokens, and a prefill of 8,192, by their bounds.

    python -m benchmarks.serving.long_context [--quantize fp8] [--kv fp8]

Llama-3.1-8B's shape without adapters. The decode's bound is the weights and every key and value read once, at the
device's copy speed; the prefill's is its products, attention's causal half included, at the device's bf16 product rate;
with fp8 weights all products but attention's at its fp8 rate. Wall time from begin to result. Appends rows to
benchmarks/results/long_context.csv.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

import torch

from benchmarks.serving import llama, offline
from benchmarks.serving.formats import add_format_options, format_columns
from benchmarks.serving.mixed_step import median_ms, placed
from engine.gpu.runner import GpuRunner
from engine.models.config import DecoderConfig, parse_config
from engine.step import Chunk, Step, run_step

SEQUENCES, TOKENS = 32, 8192


def weight_elements(config: DecoderConfig) -> int:
    """Elements of all matrices that a step multiplies with, including the head."""
    attention = config.hidden * (2 * config.q_size + 2 * config.kv_size)
    return config.layers * (attention + 3 * config.hidden * config.intermediate) + config.vocab * config.hidden


def run(runner: GpuRunner, step: Step) -> None:
    assert not run_step(runner, step).errors


def measure(quantize: str, kv: str) -> list[dict[str, object]]:
    ceilings = llama.measure_ceilings()
    config = parse_config(json.loads(llama.SHAPE.read_bytes()))
    runner = llama.build(offline.config(40, [16], quantize, kv), with_lora=False)
    # No prefill writes the contexts. The byte is a positive number in each dtype: other processes' bytes can be NaN in
    # fp8, and the kernels write no scale of 0.
    runner._arena.fill_(0x38)
    free, per_page = list(range(runner.pages)), runner.models[llama.MODEL].tokens_per_page
    requests = offline.sequences([], SEQUENCES, 1, TOKENS, 9999)
    decodes = [Chunk(placed(own, TOKENS, free, per_page), TOKENS - 1, 1, True) for own in requests]
    decode_ms = median_ms(partial(run, runner, Step(1, llama.MODEL, decodes)))
    chunk = Chunk(requests[0], 0, TOKENS, True)
    prefill_ms = median_ms(partial(run, runner, Step(2, llama.MODEL, [chunk])), 7)
    moved = llama.decode_bytes(config, quantize, kv, SEQUENCES * TOKENS)
    body = weight_elements(config) - config.vocab * config.hidden
    attention = 2 * config.layers * TOKENS * TOKENS * config.q_size  # of n², half, twice 2 · q_size
    products_per_s = llama.measure_fp8_product() if quantize == "fp8" else ceilings.product_flops_per_s
    prefill_s = 2 * TOKENS * body / products_per_s + attention / ceilings.product_flops_per_s
    found = (
        ("decode_32_at_8k", decode_ms, 1000 * moved / ceilings.copy_bytes_per_s),
        ("prefill_8k", prefill_ms, 1000 * prefill_s),
    )
    for name, taken, bound in found:
        print(f"{name:16} {taken:8.2f} ms  bound {bound:8.2f} ms  {100 * bound / taken:5.1f} %")
    formats = format_columns(quantize, kv)
    return [{"what": name, "ms": f"{taken:.3f}", "bound_ms": f"{bound:.3f}"} | formats for name, taken, bound in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_format_options(parser)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a CUDA device", file=sys.stderr)
        return 2
    llama.append_rows(measure(arguments.quantize, arguments.kv), "long_context")
    return 0


if __name__ == "__main__":
    sys.exit(main())
