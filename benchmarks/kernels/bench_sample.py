"""The draw of a step's ids over Llama-3.1's and SmolLM2's vocabularies: python -m benchmarks.kernels.bench_sample

Torch's op beside it: argmax for greedy, softmax and an exponential race for temperature, and for top-p a full sort,
cumulative sum and race. The bound is one reading of the logits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.kernels.timing import graph_us, print_header, print_row, rotation
from kernels.sample import Draws, Mode, new_scratch, sample

CASES: list[tuple[str, Mode, dict[str, Any]]] = [
    ("greedy", Mode.GREEDY, {}),
    ("temperature", Mode.PLAIN, {}),
    ("top-p 0.9", Mode.FILTERED, {"top_p": 0.9}),
    ("top-k 50", Mode.FILTERED, {"top_k": 50}),
    ("min-p 0.05", Mode.FILTERED, {"min_p": 0.05}),
    ("top-k 50, top-p 0.9, min-p 0.01", Mode.FILTERED, {"top_k": 50, "top_p": 0.9, "min_p": 0.01}),
]


def draws_of(rows: int, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Draws:
    def column(number: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), number, dtype=dtype, device="cuda")

    seeds = torch.randint(0, 2**62, (rows,), device="cuda")
    floats, ints = torch.float32, torch.int32
    return Draws(
        column(0.8, floats), seeds, column(0, ints), column(9, ints), column(top_k, ints), column(top_p, floats),
        column(min_p, floats),
    )  # fmt: skip


def some_logits(rows: int, vocab: int, flat: bool) -> torch.Tensor:
    """Normal, and unless `flat` with a hundred ids above them, the likeliest about a third of the whole."""
    x = torch.randn(rows, vocab, device="cuda")
    if not flat:
        x[:, torch.randperm(vocab, device="cuda")[:100]] += torch.linspace(8, 14, 100, device="cuda")
    return x.bfloat16()


def torchs(name: str, logits: torch.Tensor) -> torch.Tensor | None:
    if name == "greedy":
        return logits.argmax(dim=-1)
    probabilities = (logits.float() / 0.8).softmax(dim=-1)
    if name == "temperature":
        return (torch.empty_like(probabilities).exponential_() / probabilities).argmin(dim=-1)
    if name == "top-p 0.9":
        ordered, ids = probabilities.sort(dim=-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered > 0.9] = 0
        return ids.gather(1, (torch.empty_like(ordered).exponential_() / ordered).argmin(dim=-1, keepdim=True))
    return None


def bench(rows: int, vocab: int, flat: bool = False) -> None:
    sets = [some_logits(rows, vocab, flat) for _ in range(min(rotation(2 * rows * vocab), 8))]
    out = torch.empty(rows, dtype=torch.int32, device="cuda")
    scratch = new_scratch(rows, vocab, "cuda")
    for name, mode, filters in CASES:
        draws = draws_of(rows, **filters)
        us = graph_us([partial(sample, x, draws, scratch, out, mode=mode) for x in sets])
        beside = None
        if not flat and torchs(name, sets[0]) is not None:
            beside = graph_us([partial(torchs, name, x) for x in sets[:2]], replays=3)
        print_row(f"{name}{', flat' * flat} {rows} x {vocab}", us, 2 * rows * vocab, beside)


def main() -> None:
    print_header()
    for rows, vocab in ((1, 128256), (32, 128256), (256, 128256), (256, 49152)):
        bench(rows, vocab)
    bench(256, 128256, flat=True)


if __name__ == "__main__":
    main()
