"""Steps as CUDA graphs: one per number of rows, once with LoRA and once without, none per adapter count; of all models
within one budget, the least recently used first to go.

A replay reads the step from its packed buffer and leaves logits at a fixed address. It must never know requests.
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
# Of an error that is not torch's own allocator's, which has a class for it.
DRIVER_OUT_OF_MEMORY = "CUDA error: out of memory"

_log = logging.getLogger(__name__)
Run = Callable[[], None]


class GraphKind(NamedTuple):
    """Of steps that one graph is for. `rows` and what else there is room for are the graph's; `model` is a number, as
    another of the same name may come."""

    model: int
    decodes: bool
    rows: int
    lora: bool


class CapturedGraph(Protocol):
    def replay(self) -> None: ...


class Recorder(Protocol):
    def run(self, run: Run) -> None:
        """Once, now, as it would run while it is captured: what a capture must not do is done then. In the order of the
        steps."""
        ...

    def record(self, run: Run) -> tuple[CapturedGraph, int]:
        """Capture it, which runs nothing on the device; and the bytes that this took of it. Raises MemoryError where
        the device has no room for a graph of it, and all else is as good as before."""
        ...

    def mark(self) -> Mark:
        """After all the steps that the device was given until now."""
        ...


@dataclass(slots=True)
class _Graph:
    replayed: CapturedGraph
    bytes: int


class Graphs:
    """The loop's alone, but for `paused`."""

    def __init__(self, recorder: Recorder, bytes_max: int, lock: threading.Lock) -> None:
        """`lock`: while something is captured nothing is mapped, nor unmapped."""
        self.bytes = 0  # of the graphs held
        self.captures = 0
        self._recorder = recorder
        self._bytes_max = bytes_max
        self._lock = lock
        self._pauses = 0
        self._graphs: OrderedDict[GraphKind, _Graph] = OrderedDict()  # least recently used first
        self._runs: Counter[GraphKind] = Counter()  # eager ones, since the start or since its graph went
        self._before: dict[GraphKind, int] = {}
        self._leaving: list[tuple[_Graph, Mark]] = []  # a step in flight may be of theirs

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, kind: GraphKind) -> CapturedGraph | None:
        graph = self._graphs.get(kind)
        if graph is None:
            return None
        self._graphs.move_to_end(kind)
        return graph.replayed

    def is_due(self, kind: GraphKind) -> bool:
        """It runs now, without a graph; whether it should have one from the next time on."""
        if not self._bytes_max or self._pauses:
            return False
        self._runs[kind] += 1
        return self._runs[kind] >= self._before.get(kind, RUNS_BEFORE)

    def run(self, run: Run) -> None:
        """A step that is to be captured afterwards."""
        self._recorder.run(run)

    def capture(self, kind: GraphKind, run: Run) -> bool:
        """After it was `run` once; whether there is a graph of it now. Others go if it does not fit beside them."""
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
                self._put_off(kind)  # the step fails with it, but not each of its kind from now on
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
        """Nothing is captured meanwhile: for other threads, that load modules or may wait for the whole device."""
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
        """Every step of it is completed."""
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
        """It runs twice as often as before until it is captured."""
        self._runs.pop(kind, None)
        self._before[kind] = min(RUNS_BEFORE_MAX, 2 * self._before.get(kind, RUNS_BEFORE))

    def _sweep(self) -> None:
        self._leaving = [(graph, mark) for graph, mark in self._leaving if not mark.query()]


class CudaRecorder:
    """Captures on a stream of its own. All graphs share one pool: a step leaves nothing in it, and they never run at
    once, so that it grows to the largest step's and no further."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Its kernels go before those of a side stream, which has the default priority, where both could run.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        anything = torch.zeros(1, device=device)
        self._stream.wait_stream(torch.cuda.current_stream())
        # Keeps the pool when all others have gone.
        self._anchor, _ = self.record(lambda: (anything.zero_(), None)[1])

    def run(self, run: Run) -> None:
        # Kernels compile and libraries take their workspaces, which a capture must not.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, run: Run) -> tuple[CapturedGraph, int]:
        before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which waits for the device. Threads that copy weights or read adapters go on meanwhile:
        # their calls are none of this capture's.
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
    """Raises MemoryError where only what was captured could not be made a graph that can be launched: the driver takes
    memory for it that torch knows nothing of."""
    try:
        graph.capture_end()
    except torch.AcceleratorError as error:
        if DRIVER_OUT_OF_MEMORY not in str(error) or not _is_over(graph):
            raise
        raise MemoryError(str(error)) from error


def _is_over(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether torch has ended the capture. Where it has not, its allocator believes in it for ever."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


@contextmanager
def _no_collection() -> Iterator[None]:
    """What is collected may be of the device, and a capture bears no such call."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
