"""SwiGLU with and without a delta, Llama-3.1-8B's shape: python -m benchmarks.kernels.bench_swiglu

Torch's ops beside it: F.silu and a product.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels.timing import graph_us, print_header, print_row, rotation
from kernels.swiglu import swiglu

WIDTH, ROWS = 14336, (1, 256, 8192)


def bench(rows: int, dtype: torch.dtype) -> None:
    row_bytes = WIDTH * dtype.itemsize
    adapted = torch.ones(rows, device="cuda", dtype=torch.int32)
    sets = [
        [torch.randn(rows, width * WIDTH, device="cuda", dtype=dtype) for width in (2, 2, 1)]
        for _ in range(rotation(5 * rows * row_bytes))
    ]

    def torchs_op(gate_up: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(F.silu(gate_up[:, :WIDTH]), gate_up[:, WIDTH:], out=out)

    plain = graph_us([partial(swiglu, gate_up, out) for gate_up, _, out in sets])
    torchs = graph_us([partial(torchs_op, gate_up, out) for gate_up, _, out in sets])
    print_row(f"swiglu {rows} rows", plain, 3 * rows * row_bytes, torchs)
    with_delta = graph_us([partial(swiglu, gate_up, out, delta=delta, adapted=adapted) for gate_up, delta, out in sets])
    print_row(f"swiglu {rows} rows, delta", with_delta, 5 * rows * row_bytes)


def main() -> None:
    print_header()
    for rows in ROWS:
        bench(rows, torch.bfloat16)


if __name__ == "__main__":
    main()
