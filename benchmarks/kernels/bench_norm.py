"""RMSNorm with the sum and the delta before it, Llama-3.1-8B's shape: python -m benchmarks.kernels.bench_norm

Torch's op beside it: F.rms_norm, after `residual += x (+ delta)` where there is a sum.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels.timing import graph_us, print_header, print_row, rotation
from kernels.norm import add_rms_norm, rms_norm

HIDDEN, EPS, ROWS = 4096, 1e-5, (1, 256, 8192)


def bench(rows: int, dtype: torch.dtype) -> None:
    row_bytes = HIDDEN * dtype.itemsize
    weight = torch.randn(HIDDEN, device="cuda", dtype=dtype)
    adapted = torch.ones(rows, device="cuda", dtype=torch.int32)
    sets = [
        [torch.randn(rows, HIDDEN, device="cuda", dtype=dtype) for _ in range(4)]
        for _ in range(rotation(4 * rows * row_bytes))
    ]
    plain = graph_us([partial(rms_norm, x, weight, EPS, out) for x, _, out, _ in sets])
    torchs = graph_us([partial(F.rms_norm, x, (HIDDEN,), weight, EPS) for x, *_ in sets])
    print_row(f"rms_norm {rows} rows", plain, 2 * rows * row_bytes, torchs)

    def torchs_sum(x: torch.Tensor, residual: torch.Tensor, delta: torch.Tensor | None) -> None:
        F.rms_norm(residual.add_(x if delta is None else x.add_(delta)), (HIDDEN,), weight, EPS)

    added = graph_us([partial(add_rms_norm, x, residual, weight, EPS, out) for x, residual, out, _ in sets])
    torchs = graph_us([partial(torchs_sum, x, residual, None) for x, residual, *_ in sets])
    print_row(f"add_rms_norm {rows} rows", added, 4 * rows * row_bytes, torchs)
    with_delta = graph_us(
        [
            partial(add_rms_norm, x, residual, weight, EPS, out, delta=delta, adapted=adapted)
            for x, residual, out, delta in sets
        ]
    )
    torchs = graph_us([partial(torchs_sum, x, residual, delta) for x, residual, _, delta in sets])
    print_row(f"add_rms_norm {rows} rows, delta", with_delta, 5 * rows * row_bytes, torchs)


def main() -> None:
    print_header()
    for rows in ROWS:
        bench(rows, torch.bfloat16)


if __name__ == "__main__":
    main()
