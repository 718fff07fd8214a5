"""Steps as CUDA graphs: one per number of rows, once with LoRA and once without, none per adapter count.

A replay reads the step from the packed buffer and leaves logits at a fixed address. It must never know requests.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.gpu.packing import Layout

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Graph:
    layout: Layout
    graph: torch.cuda.CUDAGraph


class StepGraphs:
    """One kind of step at several sizes, captured at the start, so that no request waits for a capture."""

    def __init__(
        self,
        buckets: Sequence[int],
        layout: Callable[[int], Layout],
        forward: Callable[[Layout, bool], None],
        *,
        with_lora: bool,
    ) -> None:
        """`buckets` are numbers of rows, ascending. `layout(rows)` sends a step of padding and says where it lies,
        `forward(layout, lora)` runs it. `with_lora` False: only base steps are captured."""
        self._buckets = buckets
        self._graphs: dict[tuple[int, bool], Graph] = {}
        began = time.monotonic()
        pool: Any = None
        variants = (True, False) if with_lora else (False,)
        # Largest first: the smaller ones fit into the memory that it took.
        for rows in reversed(self._buckets):
            for lora in variants:
                graph = self._capture(layout(rows), lora, forward, pool)
                pool = pool or graph.graph.pool()
                self._graphs[rows, lora] = graph
        fields = {"graphs": len(self._graphs), "seconds": round(time.monotonic() - began, 1)}
        _log.info("graphs.captured", extra={"fields": fields})

    def fitting(self, rows: int, lora: bool) -> Graph | None:
        """The graph for so many rows; None when they are more than the largest's."""
        index = bisect.bisect_left(self._buckets, rows)
        return self._graphs[self._buckets[index], lora] if index < len(self._buckets) else None

    def _capture(self, layout: Layout, lora: bool, forward: Callable[[Layout, bool], None], pool: Any) -> Graph:
        # Once outside: kernels compile and libraries take their workspaces, which a capture must not.
        # Its kernels go before those of a side stream, which has the default priority, where both could run.
        stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward(layout, lora)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            forward(layout, lora)
        return Graph(layout, graph)
