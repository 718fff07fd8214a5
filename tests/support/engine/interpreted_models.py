"""Models as a GpuRunner serves them, on host tensors: Triton's interpreter runs their kernels."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from adapters.device.pool import TilePool
from adapters.device.table import AdapterRows
from adapters.files.spec import BaseShape
from engine.compute.penalties import Draw
from engine.compute.shared import page_size
from engine.gpu.decoder import GpuDecoder
from engine.gpu.draw_state import DrawState
from engine.gpu.draws import draw_fields
from engine.gpu.graphs import Graphs, Run
from engine.gpu.layouts import LayoutLimits, StepLayouts
from engine.gpu.model import GpuModel, SharedStepState
from engine.gpu.packing import PackedStep, Packer
from engine.gpu.products import make_product
from engine.gpu.step_memory import StepMemories, StepMemory, StepSizes, form_bytes, step_form
from engine.models.config import DecoderConfig, load_config
from engine.models.slab import slab_weights
from engine.models.slab_source import FileSource
from engine.protocol.frames import ModelInfo, Sampling
from engine.step import Chunk, Sequence

CPU = torch.device("cpu")
# Kernels on host tensors: Triton runs them in its interpreter, which the process has either on or off.
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1",
    reason="on host tensors kernels need Triton's interpreter, which is off beside a GPU",
)
SEQUENCES = 4
ROWS = 64
PAGES = 24
MODEL = "m"
# Multiprocessors of the device that the interpreter stands for.
PROCESSORS = 4


@dataclass
class Point:
    reached: bool = False

    def query(self) -> bool:
        return self.reached


@dataclass
class Again:
    """Runs the captured step."""

    run: Run
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        self.run()


@dataclass
class Recorder:
    size: int = 100
    graphs: list[Again] = field(default_factory=list)
    marks: list[Point] = field(default_factory=list)

    def run(self, run: Run) -> None:
        run()

    def record(self, run: Run) -> tuple[Again, int]:
        self.graphs.append(Again(run))
        return self.graphs[-1], self.size

    def mark(self) -> Point:
        self.marks.append(Point())
        return self.marks[-1]


def graphs_of(recorder: Recorder, bytes_max: int) -> Graphs:
    return Graphs(recorder, bytes_max, threading.Lock())


@dataclass(frozen=True)
class TinyModel:
    """`kv`: a dtype of K and V; empty: the models' own. `quantize`, `kept`: as in `FileSource`."""

    directory: Path
    kv: str = ""
    quantize: str = "none"
    kept: Collection[int] = ()


class NoStream:
    """The stream of a device that computes everything in order."""

    def wait_stream(self, other: object) -> None:
        pass


class Served:
    """Tiny models as a GpuRunner has them, in one arena and one step memory, with adapters of rank 16 at most."""

    def __init__(
        self, models: list[TinyModel], graphs: Graphs, *, dtype: torch.dtype = torch.float32, rows: int = ROWS
    ) -> None:
        """`rows` of the largest step."""
        own = str(dtype).removeprefix("torch.")
        shapes = [load_config(model.directory, quantized=True) for model in models]
        kv = [shape.kv_layout(model.kv or own) for shape, model in zip(shapes, models, strict=True)]
        page = page_size(zip(shapes, kv, strict=True), dtype)
        self.arena = torch.full((PAGES, page), 0xFF, dtype=torch.uint8)  # NaN in bytes that were never written
        table = AdapterRows(self.arena, dtype, 4, 4, 16)
        self.adapters = TilePool(self.arena, dtype, {}, table)
        side: torch.cuda.Stream = NoStream()  # type: ignore[assignment]
        packer, drawn = Packer(1, 3, pinned=False), torch.zeros(SEQUENCES, dtype=torch.int32)
        self.common = SharedStepState(packer, drawn, self.adapters, side, graphs, DrawState(CPU, SEQUENCES))
        self.memories = StepMemories(CPU)
        self._bases = [BaseShape.from_directory(model.directory) for model in models]
        forms: list[tuple[DecoderConfig, GpuDecoder, StepLayouts, StepMemory]] = []
        for model, shape, layout in zip(models, shapes, kv, strict=True):
            base = self._bases[len(forms)]
            source = FileSource(model.directory, shape, dtype, model.quantize, model.kept)
            slab = torch.zeros(source.layout.bytes, dtype=torch.uint8)
            source.fill(0, slab)
            weights = slab_weights(slab, source.layout, shape, make_product)
            decoder = GpuDecoder(shape, base, weights, self.arena, layout)
            pages = SEQUENCES * -(-shape.context_tokens // decoder.tokens_per_page)
            limits = LayoutLimits(rows, SEQUENCES, pages)
            layouts = StepLayouts(limits, 1, shape.heads, shape.kv_heads, programs=2 * PROCESSORS)
            packer.ensure(layouts.words_max())
            sizes = StepSizes(layouts.words_max(), rows, SEQUENCES, SEQUENCES)
            form = step_form(shape, dtype, table.table, sizes, PROCESSORS, source.layout, kv_fp8=layout.is_fp8)
            forms.append((shape, decoder, layouts, form))
        self.memories.place(max((form for *_, form in forms), key=form_bytes))
        self.models: list[GpuModel] = []
        for number, (shape, decoder, layouts, form) in enumerate(forms):
            info = ModelInfo(f"{MODEL}{number}", "", 512, shape.vocab, decoder.tokens_per_page, PAGES)
            self.models.append(GpuModel(info, decoder, layouts, self.memories.place(form), self.common, number))
        assert len(self.memories._stretches) == 1

    def add_adapter(self, digest: str, number: int, directory: Path, pages: list[int]) -> None:
        """An adapter of a model, in the first of these pages."""
        name = self.models[number].info.name
        self.adapters.add_base(name, self._bases[number])
        self.adapters.register_adapter(digest, name, directory)
        self.adapters.place_adapter(digest, pages[: self.adapters.pages_needed(digest)])

    def logits(self, model: GpuModel, chunks: list[Chunk]) -> dict[Sequence, torch.Tensor]:
        """Logits [vocab] of the chunks' last rows, after one step."""
        packed = PackedStep(chunks, model.info.tokens_per_page)
        sampled = [packed.chunks[index] for index in packed.sampling]
        draws = [Draw(c.sequence.sampling, c.start + c.count, c.sequence.prompt_ids, [], frozenset()) for c in sampled]
        model.forward(packed, {}, draw_fields(draws, model.info.vocab_size))
        found = model.memory.logits[: len(sampled)].clone()
        model.capture_due()
        return dict(zip((chunk.sequence for chunk in sampled), found, strict=True))

    def step(self, model: GpuModel, chunks: list[Chunk]) -> dict[Sequence, int]:
        """The likeliest ids."""
        return {sequence: int(row.argmax()) for sequence, row in self.logits(model, chunks).items()}


def without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRA's second stream is the first one: the interpreter computes everything in order."""
    monkeypatch.setattr(torch.cuda, "current_stream", NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def request(prompt: list[int], pages: list[int], adapter: str | None = None) -> Sequence:
    return Sequence(
        0, 0, "r", "m", adapter, "n", "t", "s", prompt, 99, Sampling(temperature=0.0), frozenset(), 0.0, [], pages
    )
