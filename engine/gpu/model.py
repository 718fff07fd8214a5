"""One model on a GPU: a step of it from packed rows to logits, replayed from a graph or run eagerly.

The caller of `forward` ensures that the weights are resident.
"""

from __future__ import annotations

import bisect
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapters.device.pool import TilePool
from adapters.device.work import write_work
from engine.compute.logprobs import prompt_report
from engine.gpu.decoder import GpuDecoder, GpuLora
from engine.gpu.draw_state import DrawState
from engine.gpu.graphs import CapturedGraph, GraphKind, Graphs, Run
from engine.gpu.layouts import StepLayouts
from engine.gpu.lora import LoraDeltas
from engine.gpu.packing import PackedStep, Packer, StepLayout, views
from engine.gpu.step_memory import StepMemory
from engine.protocol.frames import ModelInfo
from engine.step import Sequence
from kernels.prefill_blocks import prefill_blocks
from kernels.sample import Draws, Mode, sample

STEPS_AHEAD = 1
# Kernels are compiled for numbers of rows that are a multiple of 16, that are not, and for one.
PREFILL_WARM_ROWS = (48, 49)
DECODE_WARM_ROWS = (1, 2, 16)
WARM_ROWS = max(PREFILL_WARM_ROWS)
WARM_SENDS = 1 + len(PREFILL_WARM_ROWS) + len(DECODE_WARM_ROWS)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedStepState:
    """State that the steps of all models share: one step runs at a time."""

    packer: Packer
    drawn: Tensor  # int32 [sequences]: the ids of the previous step
    adapters: TilePool
    side: torch.cuda.Stream
    graphs: Graphs
    draws: DrawState


class GpuModel:
    def __init__(
        self,
        info: ModelInfo,
        decoder: GpuDecoder,
        layouts: StepLayouts,
        memory: StepMemory,
        common: SharedStepState,
        number: int,
    ) -> None:
        """`number`: unique among all models since the start."""
        assert common.adapters.rows is not None
        self.info = info
        self.memory = memory
        self.number = number
        self.page_waste = decoder.page_waste
        self.eager = False  # True: graphs are not used
        self._decoder = decoder
        self._layouts = layouts
        self._common = common
        self._deltas = LoraDeltas(common.adapters.rows.table, memory, common.side)
        self._buckets = {True: layouts.decode_rows, False: layouts.mixed_rows}
        self._captured: dict[tuple[bool, int], StepLayout] = {}  # layouts of graphs by (decodes, rows)
        self._due: tuple[GraphKind, Run] | None = None

    def beside(self, memory: StepMemory, common: SharedStepState) -> GpuModel:
        """This model with different step memory and state."""
        return GpuModel(self.info, self._decoder, self._layouts, memory, common, self.number)

    def warm_up(self) -> None:
        """Compile every kernel, by steps of padding rows, which neither read nor write the arena. `warm_up_products`
        compiles the kernels that only larger steps use."""
        warm = [self._warm_layout(rows, prefill=True) for rows in PREFILL_WARM_ROWS]
        most = self.memory.plan.capacity
        warm += [self._warm_layout(rows, prefill=False) for rows in DECODE_WARM_ROWS if rows <= most]
        for layout in warm:
            self._send_padding(layout)
            decodes = not layout.sizes.query_blocks
            for lora in (True, False):
                self._run(layout, layout.sizes.rows if decodes else 1, lora=lora, decodes=decodes)
        self._decoder.warm_up_products(self._layouts.limits.rows)
        zero = partial(torch.zeros, 1, device=self._decoder.device)
        whole, real = zero(dtype=torch.int32), zero(dtype=torch.float32)
        fields = Draws(real, zero(dtype=torch.int64), whole, whole, whole, real + 1, real)
        index = zero(dtype=torch.int64)
        prompt_report(self.reported_logits(index), index, 1)
        self.pooled_sums([slice(0, 1), slice(0, min(2, self.memory.work.x.shape[0]))])
        # Every kernel of a draw: no request compiles one. A mode with changes serves any of bias, penalties and mask.
        logits, drawn = self.memory.logits[:1], self._common.drawn[:1]
        self._common.draws.reserve(self.info.vocab_size)
        for changes in (None, self._common.draws.idle_changes(self.info.vocab_size)):
            for mode in Mode:
                sample(logits, fields, self.memory.scratch, drawn, mode=mode, changes=changes)

    def reported_logits(self, rows: Tensor) -> Tensor:
        """Logits [reports, vocab] of rows int64 [reports] of the step that was launched last."""
        return self._decoder.reported_logits(rows, self.memory)

    def pooled_sums(self, spans: list[slice]) -> Tensor:
        """float32 [spans, hidden], as GpuDecoder.pooled_sums."""
        return self._decoder.pooled_sums(spans, self.memory)

    def warm_words(self) -> int:
        """Words of the largest step that `warm_up` sends."""
        sizes = [self._warm_layout(rows, prefill=True) for rows in PREFILL_WARM_ROWS]
        sizes += [self._warm_layout(rows, prefill=False) for rows in DECODE_WARM_ROWS]
        return max(layout.words for layout in sizes)

    def _warm_layout(self, rows: int, *, prefill: bool) -> StepLayout:
        if prefill:
            return self._layouts.exact(rows, 1, 1, 1, prefill=True)
        return self._layouts.exact(rows, rows, 0, 1, prefill=False)

    def capture_all(self, *, with_lora: bool) -> None:
        """Capture steps of every number of rows, as far as the budget allows. `with_lora` False: only base steps."""
        graphs, began, before = self._common.graphs, time.monotonic(), self._common.graphs.captures
        for decodes in (True, False):
            # Largest first: smaller steps fit into its memory.
            for rows in reversed(self._buckets[decodes]):
                for lora in (True, False) if with_lora else (False,):
                    kind = GraphKind(self.number, decodes, rows, lora)
                    if graphs.has_room() and graphs.get(kind) is None:
                        layout = self._captured_layout(decodes, rows)
                        self._send_padding(layout)
                        run = self._captured_run(layout, decodes, lora)
                        graphs.run(run)
                        graphs.capture(kind, run)
        fields = {
            "model": self.info.name,
            "graphs": graphs.captures - before,
            "bytes": graphs.bytes,
            "seconds": round(time.monotonic() - began, 1),
        }
        _log.info("graphs.captured", extra={"fields": fields})

    def capture_due(self) -> None:
        """Capture the graph of a step if it is due. Call it after the step was begun."""
        if self._due is not None:
            kind, run = self._due
            self._due = None
            began = time.monotonic()
            if not self._common.graphs.capture(kind, run):
                return
            fields = {"model": self.info.name, "rows": kind.rows, "decodes": kind.decodes, "lora": kind.lora}
            _log.info("graph.captured", extra={"fields": fields | {"seconds": round(time.monotonic() - began, 4)}})

    def forward(self, packed: PackedStep, drawn: dict[Sequence, int], fields: dict[str, NDArray[Any]]) -> StepLayout:
        """Start the step. It writes the first rows of `memory.logits`, one per sample. Returns where the step's fields
        lie in `memory.packed`. `drawn`: by sequence, the index of its id among the ids of the previous step;
        `fields`: `draw_fields` of the samples."""
        self._due = None  # left by a step that failed before its capture
        extra = dict(fields)
        adapted = any(chunk.sequence.adapter is not None for chunk in packed.chunks)
        blocks = 0
        if not packed.decodes:
            config, programs = self._decoder.config, self._layouts.programs
            found = prefill_blocks(packed.counts, packed.kv_lens, config.heads, config.kv_heads, programs=programs)
            blocks, extra["query_blocks"] = len(found), found
        layout, graph, run = self._choose_layout(packed, adapted, blocks)
        extra["lora"] = np.empty(layout.sizes.lora_words, np.int32)
        extra["adapted"] = np.empty(layout.sizes.rows, np.int32)
        work = self._layouts.work(layout, prefill=not packed.decodes)
        write_work(self._common.adapters, packed.adapter_runs(), work, extra["lora"], extra["adapted"])
        self._common.packer.send(layout, packed, drawn, extra, self.memory.packed)
        if graph is not None:
            graph.replay()
        elif run is not None:
            self._common.graphs.run(run)
        else:
            self._run(layout, len(packed.sampling), lora=adapted, decodes=packed.decodes)
        return layout

    def _choose_layout(
        self, packed: PackedStep, adapted: bool, blocks: int
    ) -> tuple[StepLayout, CapturedGraph | None, Run | None]:
        """The layout in which the step is sent, and its graph; or without a graph, the run to capture afterwards, if
        due."""
        buckets, decodes = self._buckets[packed.decodes], packed.decodes
        index = bisect.bisect_left(buckets, packed.rows)
        if index < len(buckets) and not self.eager:
            kind = GraphKind(self.number, decodes, buckets[index], adapted)
            graph = self._common.graphs.get(kind)
            if graph is not None:
                return self._captured_layout(decodes, kind.rows), graph, None
            if self._common.graphs.is_due(kind):
                layout = self._captured_layout(decodes, kind.rows)
                run = self._captured_run(layout, decodes, adapted)
                self._due = kind, run
                return layout, None, run
        rows, sequences, prefill = packed.rows, len(packed.chunks), not decodes
        return self._layouts.exact(rows, sequences, blocks, packed.page_count, prefill=prefill), None, None

    def _captured_layout(self, decodes: bool, rows: int) -> StepLayout:
        if (decodes, rows) not in self._captured:
            make = self._layouts.decode if decodes else self._layouts.mixed
            self._captured[decodes, rows] = make(rows)
        return self._captured[decodes, rows]

    def _captured_run(self, layout: StepLayout, decodes: bool, lora: bool) -> Run:
        samples = layout.sizes.rows if decodes else layout.sizes.sequences
        return partial(self._run, layout, samples, lora=lora, decodes=decodes)

    def _run(self, layout: StepLayout, samples: int, *, lora: bool, decodes: bool) -> None:
        """The forward over the packed buffer."""
        tensors = views(layout, self.memory.packed)
        beside = None
        if lora:
            beside = GpuLora(self._layouts.work(layout, prefill=not decodes).view(tensors.lora), self._deltas)
        self._decoder.forward(tensors, self._common.drawn, self.memory, beside, samples, decodes=decodes)

    def _send_padding(self, layout: StepLayout) -> None:
        """Send a step of padding rows only."""
        nothing = {
            "query_blocks": np.zeros(0, np.int32),
            "lora": np.zeros(layout.sizes.lora_words, np.int32),
            "adapted": np.zeros(layout.sizes.rows, np.int32),
        }
        step = PackedStep([], self._decoder.tokens_per_page)
        self._common.packer.send(layout, step, {}, nothing, self.memory.packed)
