"""Kernels that start while the one before them runs: what each reads must be what that one wrote."""

from __future__ import annotations

import pytest
import torch

from kernels.launch import launch_options
from kernels.norm import add_rms_norm
from kernels.swiglu import swiglu
from support.kernels.operands import DEVICE, GPU, normal


def test_a_cpu_launches_one_after_the_other() -> None:
    assert launch_options(torch.device("cpu")) == {"PDL": False}


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_a_graph_computes_what_launches_one_by_one_compute(rows: int) -> None:
    """Norm and SwiGLU read each other's output in turn, so that a launch that starts too early reads the last round's
    numbers or writes into what is still read. Bit for bit, in a hundred replays."""
    hidden, rounds = 4096, 8
    weight = normal(hidden, dtype=torch.bfloat16, seed=1).contiguous()
    first = normal(rows, hidden, dtype=torch.bfloat16, seed=2)
    x, residual = first.clone(), torch.zeros_like(first)
    gate_up = torch.ones(rows, 2 * hidden, dtype=torch.bfloat16, device=DEVICE)

    def chain(synchronize: bool) -> None:
        x.copy_(first)
        residual.zero_()
        for _ in range(rounds):
            add_rms_norm(x, residual, weight, 1e-5, gate_up[:, :hidden])
            if synchronize:
                torch.cuda.synchronize()
            swiglu(gate_up, x)
            if synchronize:
                torch.cuda.synchronize()

    chain(synchronize=True)
    expected = x.clone(), residual.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(synchronize=False)
    for _ in range(100):
        graph.replay()
        assert torch.equal(x, expected[0])
        assert torch.equal(residual, expected[1])
