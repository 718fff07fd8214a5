"""A step with prefill in it: one captured graph, one eager forward, or the captured decodes and then the chunk.

    python -m benchmarks.serving.mixed_step [--decodes 128] [--adapters 16]

Llama-3.1-8B's shape, `--decodes` decoding sequences of 500 tokens, and one chunk of 64, 256 or 2,048 prompt tokens
beside them. Wall time from begin to result, median of 15. Appends rows to benchmarks/results/mixed_step.csv.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.serving import llama, offline
from engine.gpu.runner import GpuRunner
from engine.step import Chunk, Sequence, Step

CHUNK_TOKENS = (64, 256, 2048)
CONTEXT = 500


def placed(sequence: Sequence, tokens: int, free: list[int], tokens_per_page: int) -> Sequence:
    """A sequence with pages for `tokens` tokens; the contents do not matter."""
    count = -(-tokens // tokens_per_page)
    sequence.pages, free[:] = free[:count], free[count:]
    return sequence


def median_ms(run: Callable[[], None], rounds: int = 15) -> float:
    times = []
    for _ in range(rounds + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[3:])


def measure(decodes: int, adapters: int) -> list[dict[str, object]]:
    runner: GpuRunner = llama.build(offline.config(24, [16]))
    digests = llama.add_adapters(runner.adapters, llama.base(), adapters, [16])
    free = list(range(runner.pages))
    for digest in digests:
        count = runner.adapters.pages_needed(digest)
        runner.adapters.place_adapter(digest, free[:count])
        free = free[count:]
    per_page = runner.models[llama.MODEL].tokens_per_page
    requests = offline.sequences(digests, decodes, 1, CONTEXT, 9999)
    running = [Chunk(placed(own, CONTEXT, free, per_page), CONTEXT - 1, 1, True) for own in requests]
    rows: list[dict[str, object]] = []
    for tokens in CHUNK_TOKENS:
        (newcomer,) = offline.sequences(digests[:1], 1, 2, tokens, 9999)
        chunk = Chunk(placed(newcomer, tokens, free, per_page), 0, tokens, True)
        found = compare(runner, running, chunk)
        print(f"{tokens:5d} tokens  " + "  ".join(f"{name} {value:.2f}" for name, value in found.items()))
        rows.append({"chunk_tokens": tokens} | {name: f"{value:.3f}" for name, value in found.items()})
        free = chunk.sequence.pages + free
    return rows


def compare(runner: GpuRunner, running: list[Chunk], chunk: Chunk) -> dict[str, float]:
    """Milliseconds of each variant."""
    mixed, decodes, alone = (Step(1, llama.MODEL, chunks) for chunks in ([*running, chunk], running, [chunk]))

    def run(*steps: Step) -> None:
        begun = []
        for step in steps:
            begun.append(runner.begin_step(step))
            begun[-1].draw(None)
        for pending in begun:
            assert not pending.result().errors

    model = runner._served[llama.MODEL]
    found = {
        "decodes_alone_ms": median_ms(partial(run, decodes)),
        "captured_ms": median_ms(partial(run, mixed)),
        "decodes_then_captured_chunk_ms": median_ms(partial(run, decodes, alone)),
    }
    model.eager = True
    found["eager_ms"] = median_ms(partial(run, mixed))
    found["decodes_then_eager_chunk_ms"] = median_ms(partial(run, decodes, alone))
    model.eager = False
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decodes", type=int, default=128)
    parser.add_argument("--adapters", type=int, default=16)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a CUDA device", file=sys.stderr)
        return 2
    rows = measure(arguments.decodes, arguments.adapters)
    common = {"decodes": arguments.decodes, "adapters": arguments.adapters}
    llama.append_rows([common | row for row in rows], "mixed_step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
