"""LoRA beside the base: while a base product runs, its delta is computed on a second stream, and the consumer adds it.

It must never know an adapter's name or a row's request: the work list says all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adapters.device.table import stack_of
from adapters.files.spec import BaseShape
from engine.gpu.step_memory import StepMemory
from engine.models.shape import GATE_UP, QKV
from kernels.lora import lora
from kernels.lora_work import LoraWork, Stack, TileTable


@dataclass(frozen=True, slots=True)
class LayerStacks:
    """The modules of a layer as the fused weights stack them."""

    qkv: Stack
    o: Stack
    gate_up: Stack
    down: Stack


def stacks(base: BaseShape) -> LayerStacks:
    return LayerStacks(
        qkv=stack_of(base, QKV),
        o=stack_of(base, ("o_proj",)),
        gate_up=stack_of(base, GATE_UP),
        down=stack_of(base, ("down_proj",)),
    )


class LoraDeltas:
    """The deltas of steps of at most `rows` rows, one module after another, in memory that each reuses."""

    def __init__(self, table: TileTable, memory: StepMemory, side: torch.cuda.Stream) -> None:
        """`side`: of lower priority than the streams of the steps."""
        self._table = table
        self._scratch = memory.lora
        self._deltas = memory.deltas
        self._side = side

    def begin_step(self) -> None:
        """Before the first `fork` of a step."""
        self._scratch.begin_step()

    def fork(self) -> None:
        """Before a base product: x is there, and its delta may be computed from here on."""
        self._side.wait_stream(torch.cuda.current_stream())

    def join(self, work: LoraWork, layer: int, stack: Stack, x: Tensor) -> Tensor:
        """After the base product: the delta of x [rows, in], [rows, outputs of the stack], valid in adapted rows alone,
        which what the current stream does next sees.

        The delta is launched after the base product and on a stream of lower priority, so that it runs only on the
        multiprocessors that the product leaves free: a multiprocessor taken before delays the whole product."""
        out = sum(stack.outs)
        delta = self._deltas[: x.shape[0] * out].view(x.shape[0], out)
        with torch.cuda.stream(self._side):
            lora(x, delta, self._table, work, self._scratch, layer, stack, add=False)
        torch.cuda.current_stream().wait_stream(self._side)
        return delta
