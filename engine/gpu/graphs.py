"""Steps as CUDA graphs: for each model and number of rows one with and one without LoRA, whatever the number of
adapters. One budget for all models; the least recently used graph is evicted first.

A replay reads the step from its packed buffer and leaves logits at a fixed address.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from adapters.device.staging import Mark

# A step of one kind and size is captured at its RUNS_BEFORE-th run. Each eviction of its graph doubles that number, up
# to RUNS_BEFORE_MAX.
RUNS_BEFORE = 3
RUNS_BEFORE_MAX = 3000
# In the text of the driver's error; errors of torch's allocator have another class.
DRIVER_OUT_OF_MEMORY = "CUDA error: out of memory"

_log = logging.getLogger(__name__)
Run = Callable[[], None]


class GraphKind(NamedTuple):
    """The steps that one graph serves. `rows`: the graph's capacity; `model`: a number, because a later model may have
    the same name."""

    model: int
    decodes: bool
    rows: int
    lora: bool


class CapturedGraph(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    def run(self, run: Run) -> None:
        """Run it once without a capture, in the order of the steps, so that compilation and workspace allocation, which
        a capture forbids, are done."""
        ...

    def record(self, run: Run) -> tuple[CapturedGraph, int]:
        """Capture it without running it. Returns the graph and the device bytes that it takes. Raises MemoryError if
        the device lacks memory for the graph; nothing else is affected."""
        ...

    def mark(self) -> Mark:
        """A mark after all steps queued so far."""
        ...


@dataclass(slots=True)
class _Graph:
    replayed: CapturedGraph
    bytes: int


class Graphs:
    """Used only by the loop's thread, except `paused`."""

    def __init__(self, recorder: Recorder, bytes_max: int, lock: threading.Lock) -> None:
        """`lock`: held during a capture, since nothing may be mapped or unmapped meanwhile."""
        self.bytes = 0  # of all present graphs
        self.captures = 0
        self._recorder = recorder
        self._bytes_max = bytes_max
        self._lock = lock
        self._pauses = 0
        self._graphs: OrderedDict[GraphKind, _Graph] = OrderedDict()  # least recently used first
        self._runs: Counter[GraphKind] = Counter()  # eager runs since the start, or since its graph was evicted
        self._before: dict[GraphKind, int] = {}
        self._leaving: list[tuple[_Graph, Mark]] = []  # evicted; a step in flight may use them

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, kind: GraphKind) -> CapturedGraph | None:
        graph = self._graphs.get(kind)
        if graph is None:
            return None
        self._graphs.move_to_end(kind)
        return graph.replayed

    def is_due(self, kind: GraphKind) -> bool:
        """Count a run without a graph. Returns whether a graph should be captured after it."""
        if not self._bytes_max or self._pauses:
            return False
        self._runs[kind] += 1
        return self._runs[kind] >= self._before.get(kind, RUNS_BEFORE)

    def run(self, run: Run) -> None:
        """Run a step that is captured afterwards."""
        self._recorder.run(run)

    def capture(self, kind: GraphKind, run: Run) -> bool:
        """Capture a kind that was `run` once, evicting other graphs if the budget needs it. Returns whether its graph
        is present now."""
        self._sweep()
        with self._lock:
            if self._pauses:
                return False
            try:
                replayed, size = self._recorder.record(run)
            except MemoryError as error:
                self._put_off(kind)
                _log.warning("graph.no_room", extra={"fields": {"rows": kind.rows, "reason": str(error)}})
                return False
            except BaseException:
                self._put_off(kind)  # this step fails, but later ones of its kind do not try a capture
                raise
        self._graphs[kind] = _Graph(replayed, size)
        self.bytes += size
        self.captures += 1
        self._runs.pop(kind, None)
        while self.bytes > self._bytes_max:
            self._drop(next(iter(self._graphs)))
        return kind in self._graphs

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Prevent captures while another thread loads modules or may wait for the whole device."""
        with self._lock:
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1

    def has_room(self) -> bool:
        return self.bytes < self._bytes_max

    def forget_graphs(self, model: int) -> None:
        """Drop the graphs of a model whose steps are all completed."""
        self._sweep()
        for kind in [kind for kind in self._graphs if kind.model == model]:
            self.bytes -= self._graphs.pop(kind).bytes
        for kind in [kind for kind in self._runs if kind.model == model]:
            del self._runs[kind]
        self._before = {kind: runs for kind, runs in self._before.items() if kind.model != model}

    def _drop(self, kind: GraphKind) -> None:
        graph = self._graphs.pop(kind)
        self.bytes -= graph.bytes
        self._leaving.append((graph, self._recorder.mark()))
        self._put_off(kind)

    def _put_off(self, kind: GraphKind) -> None:
        """Double the number of runs before its next capture."""
        self._runs.pop(kind, None)
        self._before[kind] = min(RUNS_BEFORE_MAX, 2 * self._before.get(kind, RUNS_BEFORE))

    def _sweep(self) -> None:
        self._leaving = [(graph, mark) for graph, mark in self._leaving if not mark.query()]


class CudaRecorder:
    """Captures on its own stream. All graphs share one memory pool, which grows to the size of the largest step: a step
    leaves no data in it, and graphs never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Higher priority than a side stream, which has the default.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        anything = torch.zeros(1, device=device)
        self._stream.wait_stream(torch.cuda.current_stream())
        # Keeps the pool when all other graphs are evicted.
        self._anchor, _ = self.record(lambda: (anything.zero_(), None)[1])

    def run(self, run: Run) -> None:
        # Kernels compile and libraries allocate workspaces, which a capture forbids.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, run: Run) -> tuple[CapturedGraph, int]:
        before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which waits for the device. Threads that copy weights or read adapters continue: their
        # calls are not part of this capture.
        with torch.cuda.stream(self._stream), _no_collection():
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                run()
            except torch.OutOfMemoryError as error:
                raise MemoryError(str(error)) from error
            finally:
                _end_capture(graph)
        after, _ = torch.cuda.mem_get_info(self._device)
        return graph, max(0, before - after)

    def mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event


def _end_capture(graph: torch.cuda.CUDAGraph) -> None:
    """Raises MemoryError if the captured graph could not be instantiated, for which the driver takes memory that torch
    does not count."""
    try:
        graph.capture_end()
    except torch.AcceleratorError as error:
        if DRIVER_OUT_OF_MEMORY not in str(error) or not _is_over(graph):
            raise
        raise MemoryError(str(error)) from error


def _is_over(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether torch has ended the capture. If not, its allocator stays in capture mode permanently."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector: freeing a device object during a capture invalidates the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
