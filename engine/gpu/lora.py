"""LoRA beside the base: while a base product runs, a second stream computes its delta, and the consumer adds it."""

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
    """The modules of a layer, stacked as in the fused weights."""

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
    """Deltas of a step, one stack after another in the same memory."""

    def __init__(self, table: TileTable, memory: StepMemory, side: torch.cuda.Stream) -> None:
        """`side`: a stream of lower priority than the steps' streams."""
        self._table = table
        self._scratch = memory.lora
        self._deltas = memory.deltas
        self._side = side

    def begin_step(self) -> None:
        """Called before the first `fork` of a step."""
        self._scratch.begin_step()

    def fork(self) -> None:
        """Called before a base product: its x is ready for the delta."""
        self._side.wait_stream(torch.cuda.current_stream())

    def join(self, work: LoraWork, layer: int, stack: Stack, x: Tensor) -> Tensor:
        """Called after the base product. Returns the delta [rows, outputs of the stack] of x [rows, in], valid in
        adapted rows only, and ready for the next work of the current stream.

        The delta is launched after the base product and on a stream of lower priority, so that it runs only on the
        multiprocessors that the product leaves free: a multiprocessor taken before delays the whole product."""
        out = sum(stack.outs)
        delta = self._deltas[: x.shape[0] * out].view(x.shape[0], out)
        with torch.cuda.stream(self._side):
            lora(x, delta, self._table, work, self._scratch, layer, stack, add=False)
        torch.cuda.current_stream().wait_stream(self._side)
        return delta
