"""One request alone on one GPU: tokens a second by formats of weights and KV, beside the bound.

    python -m benchmarks.serving.batch_of_one [--quantize fp8] [--kv fp8] [--repeats 3]

Llama-3.1-8B's shape with random weights, no adapters, 128 random prompt tokens and 512 greedy output tokens, through
the real scheduler and runner. The bound: each token reads the weights and its context's keys and values once, at the
device's copy speed. Appends a row to benchmarks/results/serving_batch_of_one.csv.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch

from benchmarks.serving import llama, offline
from benchmarks.serving.formats import add_format_options, format_columns
from engine.models.config import DecoderConfig, parse_config

PROMPT_TOKENS, NEW_TOKENS = 128, 512
# The aim, in tokens a second, for Llama-3.1-8B's shape on one H200.
AIMS = {"fp8": 400.0, "int4": 600.0}


def bound_tok_s(config: DecoderConfig, quantize: str, kv: str, copy_bytes_per_s: float) -> float:
    """Upper bound of tokens a second, over the contexts of a whole answer."""
    contexts = range(PROMPT_TOKENS, PROMPT_TOKENS + NEW_TOKENS)
    moved = sum(llama.decode_bytes(config, quantize, kv, tokens) for tokens in (contexts[0], contexts[-1])) / 2
    return copy_bytes_per_s / moved


def measure(quantize: str, kv: str, repeats: int) -> dict[str, object]:
    ceilings = llama.measure_ceilings()
    config = parse_config(json.loads(llama.SHAPE.read_bytes()))
    runner = llama.build(offline.config(4, [16], quantize, kv), with_lora=False)
    scheduler = offline.new_scheduler(runner)
    runs = [
        offline.drive(runner, scheduler, offline.sequences([], 1, seed, PROMPT_TOKENS, NEW_TOKENS))
        for seed in range(1 + repeats)  # the first warms everything
    ]
    best = max(run.tok_s for run in runs[1:])
    bound = bound_tok_s(config, quantize, kv, ceilings.copy_bytes_per_s)
    aim = f", aim at least {AIMS[quantize]:g}" if quantize in AIMS else ""
    print(f"{best:.0f} tok/s, bound {bound:.0f}, {100 * best / bound:.1f} % of it{aim}; host {runs[-1].host_ms:.2f} ms")
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "out_tok_s": f"{best:.1f}",
        "bound_tok_s": f"{bound:.1f}",
        "share_of_bound": f"{best / bound:.4f}",
        **format_columns(quantize, kv),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_format_options(parser)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a CUDA device", file=sys.stderr)
        return 2
    llama.append_rows([measure(arguments.quantize, arguments.kv, arguments.repeats)], "serving_batch_of_one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
