"""RMSNorm with the sum and the delta before it, Llama-3.1-8B's shape: python -m benchmarks.kernels.bench_norm

Torch's op beside it: F.rms_norm, after `residual += x (+ delta)` where there is a sum.
"""

from __future__ import annotations

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
    plain = graph_us([lambda s=s: rms_norm(s[0], weight, EPS, s[1]) for s in sets])  # type: ignore[misc]
    torchs = graph_us([lambda s=s: F.rms_norm(s[0], (HIDDEN,), weight, EPS) for s in sets])  # type: ignore[misc]
    print_row(f"rms_norm {rows} rows", plain, 2 * rows * row_bytes, torchs)
    added = graph_us([lambda s=s: add_rms_norm(s[0], s[1], weight, EPS, s[2]) for s in sets])  # type: ignore[misc]
    torchs = graph_us([lambda s=s: F.rms_norm(s[1].add_(s[0]), (HIDDEN,), weight, EPS) for s in sets])  # type: ignore[misc]
    print_row(f"add_rms_norm {rows} rows", added, 4 * rows * row_bytes, torchs)
    with_delta = graph_us(
        [lambda s=s: add_rms_norm(s[0], s[1], weight, EPS, s[2], delta=s[3], adapted=adapted) for s in sets]  # type: ignore[misc]
    )
    torchs = graph_us(
        [lambda s=s: F.rms_norm(s[1].add_(s[0].add_(s[3])), (HIDDEN,), weight, EPS) for s in sets]  # type: ignore[misc]
    )
    print_row(f"add_rms_norm {rows} rows, delta", with_delta, 5 * rows * row_bytes, torchs)


def main() -> None:
    print_header()
    for rows in ROWS:
        bench(rows, torch.bfloat16)


if __name__ == "__main__":
    main()
