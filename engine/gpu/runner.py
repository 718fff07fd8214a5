"""Executes steps on one GPU: packs a step, replays its graph or runs it eagerly, draws on the device, and returns.

The host is told the ids when it asks for the result. It decides nothing: which chunk runs, and in which pages, is the
scheduler's. It must never import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adapters.pool import TilePool
from adapters.work import write_work
from engine.gpu.decoder import GpuDecoder, Lora, workspace
from engine.gpu.draws import Reported, draw_fields, mode_of, report, to_host
from engine.gpu.graphs import StepGraphs
from engine.gpu.layouts import Layouts, Limits
from engine.gpu.lora import LoraDeltas
from engine.gpu.packing import Layout, PackedStep, Packer, views
from engine.penalties import Draw, penalize
from engine.protocol import Logprobs, ModelInfo
from engine.runner import draw_of, sort_out
from engine.step import DeviceLost, HostPool, Sequence, Step, StepResult
from kernels.prefill_blocks import prefill_blocks
from kernels.sample import Draws, new_scratch, sample

STEPS_AHEAD = 1
# Prefill kernels are compiled at the start for row numbers that are a multiple of 16 and that are not.
PREFILL_WARM_ROWS = (48, 49)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that the device is computing."""

    chunks: int
    errors: dict[int, str]
    places: list[int]  # by place in the order of samples: the chunk's index in the step
    wanted: list[bool]  # likewise: whether its chunk samples
    ids: Tensor  # [samples] int32, pinned; −1: the row's logits are not numbers
    reported: Reported | None
    done: torch.cuda.Event

    def result(self) -> StepResult:
        """Wait until the ids are on the host. Raises DeviceLost."""
        with _device_errors():
            self.done.synchronize()
        errors = dict(self.errors)
        ids: list[int | None] = [None] * self.chunks
        for index, wanted, drawn in zip(self.places, self.wanted, self.ids.tolist(), strict=True):
            if not wanted:
                continue
            if drawn < 0:
                errors[index] = "the model's logits are not finite numbers"
            else:
                ids[index] = drawn
        found: dict[int, Logprobs] = {}
        if self.reported is not None:
            found = {self.places[place]: own for place, own in self.reported.by_place().items()}
        return StepResult(ids, errors, {index: own for index, own in found.items() if ids[index] is not None})


class GpuModel:
    """One model: its decoder, its graphs, and the memory that a step of it works in."""

    def __init__(
        self, info: ModelInfo, decoder: GpuDecoder, layouts: Layouts, packer: Packer, drawn: Tensor, pool: TilePool
    ) -> None:
        assert pool.rows is not None
        self.info = info
        config, limits = decoder.config, layouts.limits
        self.logits = torch.empty(limits.sequences, config.vocab, dtype=decoder.dtype, device=decoder.device)
        self.scratch = new_scratch(limits.sequences, config.vocab, decoder.device)
        self._decoder = decoder
        self._layouts = layouts
        self._packer = packer
        self._drawn = drawn
        self._pool = pool
        self._work = workspace(config, limits.rows, decoder.dtype, decoder.device)
        self._deltas = LoraDeltas(pool.rows.table, config, limits.rows, _stream(decoder.device))
        self._decodes: StepGraphs | None = None
        self._mixed: StepGraphs | None = None

    def capture(self, *, with_lora: bool) -> None:
        """Compile every kernel and capture the graphs."""
        layouts = self._layouts
        for rows in PREFILL_WARM_ROWS:
            layout = self._padding(layouts.exact(rows, 1, 1, layouts.limits.pages, prefill=True))
            for lora in (True, False):
                self._run(layout, 1, lora=lora, decodes=False)
        self._decodes = StepGraphs(layouts.decode_rows, self._decode_padding, self._decode, with_lora=with_lora)
        self._mixed = StepGraphs(layouts.mixed_rows, self._mixed_padding, self._mix, with_lora=with_lora)

    def forward(self, packed: PackedStep, drawn: dict[Sequence, int], draws: Many[Draw]) -> Layout:
        """Start the step; `logits` [samples] are written. Returns where its fields lie in the device buffer."""
        extra = draw_fields(draws)
        adapted = any(chunk.sequence.adapter is not None for chunk in packed.chunks)
        blocks = 0
        if not packed.decodes:
            config, programs = self._decoder.config, self._layouts.programs
            found = prefill_blocks(packed.counts, packed.kv_lens, config.heads, config.kv_heads, programs=programs)
            blocks, extra["query_blocks"] = len(found), found
        graphs = self._decodes if packed.decodes else self._mixed
        graph = graphs.fitting(packed.rows, adapted) if graphs else None
        layout = graph.layout if graph is not None else self._exact(packed, blocks)
        extra["lora"] = np.empty(layout.sizes.lora_words, np.int32)
        extra["adapted"] = np.empty(layout.sizes.rows, np.int32)
        work = self._layouts.work(layout, prefill=not packed.decodes)
        write_work(self._pool, packed.adapter_runs(), work, extra["lora"], extra["adapted"])
        self._packer.send(layout, packed, drawn, extra)
        if graph is not None:
            graph.graph.replay()
        else:
            self._run(layout, len(packed.sampling), lora=adapted, decodes=packed.decodes)
        return layout

    def _exact(self, packed: PackedStep, blocks: int) -> Layout:
        rows, sequences = packed.rows, len(packed.chunks)
        return self._layouts.exact(rows, sequences, blocks, packed.page_count, prefill=not packed.decodes)

    def _run(self, layout: Layout, samples: int, *, lora: bool, decodes: bool) -> None:
        """The forward over the packed buffer."""
        tensors = views(layout, self._packer.device)
        beside = None
        if lora:
            beside = Lora(self._layouts.work(layout, prefill=not decodes).view(tensors.lora), self._deltas)
        work = self._work.first(layout.sizes.rows)
        self._decoder.forward(tensors, self._drawn, work, beside, self.logits[:samples], decodes=decodes)

    def _decode(self, layout: Layout, lora: bool) -> None:
        self._run(layout, layout.sizes.rows, lora=lora, decodes=True)

    def _mix(self, layout: Layout, lora: bool) -> None:
        self._run(layout, layout.sizes.sequences, lora=lora, decodes=False)

    def _decode_padding(self, rows: int) -> Layout:
        return self._padding(self._layouts.decode(rows))

    def _mixed_padding(self, rows: int) -> Layout:
        return self._padding(self._layouts.mixed(rows))

    def _padding(self, layout: Layout) -> Layout:
        """Send a step of nothing but padding."""
        nothing = {
            "query_blocks": np.zeros(0, np.int32),
            "lora": np.zeros(layout.sizes.lora_words, np.int32),
            "adapted": np.zeros(layout.sizes.rows, np.int32),
        }
        self._packer.send(layout, PackedStep([], self._decoder.tokens_per_page), {}, nothing)
        return layout


class GpuRunner:
    """Implements engine.step.Runner. Steps are for one thread; `load_adapter` may run beside it."""

    steps_ahead = STEPS_AHEAD

    def __init__(
        self,
        decoders: dict[str, tuple[ModelInfo, GpuDecoder]],
        arena: Tensor,
        adapters: TilePool,
        host_pool: HostPool | None,
        limits: Limits,
    ) -> None:
        """`arena` [pages, page_bytes] uint8: every model's K and V, and the adapters' tiles, lie in it."""
        self.adapters = adapters
        self.host_pool = host_pool
        self.pages, self.page_bytes = arena.shape
        self.models = {name: info for name, (info, _) in decoders.items()}
        self._tokens_per_page = {name: decoder.tokens_per_page for name, (_, decoder) in decoders.items()}
        self._drawn = torch.zeros(limits.sequences, dtype=torch.int32, device=arena.device)
        # Of the ids in `drawn`, whose they are.
        self._places: dict[Sequence, int] = {}
        assert adapters.rows is not None
        tiles_max = adapters.rows.table.tiles_max
        layouts = {name: decoder.layouts(limits, tiles_max) for name, (_, decoder) in decoders.items()}
        words = max(own.words_max() for own in layouts.values())
        self._packer = Packer(words, arena.device, STEPS_AHEAD + 2)
        self._served = {
            name: GpuModel(info, decoder, layouts[name], self._packer, self._drawn, adapters)
            for name, (info, decoder) in decoders.items()
        }

    @torch.inference_mode()
    def capture(self, *, with_lora: bool = True) -> None:
        """Before the first step: compile kernels and capture graphs."""
        for model in self._served.values():
            model.capture(with_lora=with_lora)
        torch.cuda.synchronize()

    @torch.inference_mode()
    def begin(self, step: Step) -> PendingStep:
        """Start one forward of all chunks. A chunk with an id that is no id, or whose logits are not numbers, fails
        alone. Raises DeviceLost."""
        with _device_errors():
            return self._begin(step)

    def _begin(self, step: Step) -> PendingStep:
        info, model = self.models[step.model], self._served[step.model]
        good, errors = sort_out(step.chunks, info)
        packed = PackedStep(good, self._tokens_per_page[step.model])
        chunks = [packed.chunks[index] for index in packed.sampling]
        draws = [draw_of(chunk) for chunk in chunks]
        reported = None
        if good:
            layout = model.forward(packed, self._places, draws)
            if draws:
                reported = self._draw_ids(model, layout, draws)
        self._places = {chunk.sequence: place for place, chunk in enumerate(chunks)}
        ids = to_host(self._drawn[: len(draws)])
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        places = {id(chunk): index for index, chunk in enumerate(step.chunks)}
        return PendingStep(
            chunks=len(step.chunks),
            errors=errors,
            places=[places[id(chunk)] for chunk in chunks],
            wanted=[chunk.sample for chunk in chunks],
            ids=ids,
            reported=reported,
            done=done,
        )

    def load_adapter(self, digest: str, model: str, path: str) -> None:
        """Check its files, and know it. Raises ValueError with the reason, OSError."""
        self.adapters.load(digest, model, Path(path))

    def unload_adapter(self, digest: str) -> None:
        """Forget it; the scheduler has removed it from the arena before."""
        self.adapters.unload(digest)

    def _draw_ids(self, model: GpuModel, layout: Layout, draws: Many[Draw]) -> Reported | None:
        """Draw into the fixed buffer that the next step reads."""
        logits, drawn = model.logits[: len(draws)], self._drawn[: len(draws)]
        names = ("temperatures", "seeds", "choices", "draw_positions", "top_ks", "top_ps", "min_ps")
        fields = Draws(*(layout.view(self._packer.device, name)[: len(draws)] for name in names))
        sample(penalize(logits, draws), fields, model.scratch, drawn, mode=mode_of(draws))
        return report(logits, drawn, draws)


@contextmanager
def _device_errors() -> Iterator[None]:
    """After an error such as an illegal access CUDA refuses every further call of this process. Running out of memory
    is no such error, and is not of this class."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise DeviceLost(str(error)) from error


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
