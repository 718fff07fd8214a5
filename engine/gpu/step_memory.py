"""The working memory of a step. One step runs at a time and leaves nothing there, so that all models share it.

Its addresses are fixed: captured steps hold them. It must never know a step's requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.gpu.products import ProductMemory, product_form, reads_fp8
from engine.models.config import DecoderConfig
from engine.models.slab import SlabLayout
from engine.step import PROMPT_LOGPROB_ROWS_MAX
from kernels.decode_attention import FP8_TUNING, TUNING, DecodePlan, allocate_decode_plan
from kernels.lora_work import LoraScratch, TileTable
from kernels.prefill_attention import PROGRAMS_PER_SM as PREFILL_PROGRAMS_PER_SM
from kernels.prefill_attention import PrefillPartials, allocate_prefill_partials
from kernels.quantize import QuantizedRows
from kernels.sample import Scratch, new_scratch

ALIGN_BYTES = 256
META = torch.device("meta")
# Modules of the largest stack.
STACKED = 3


@dataclass(frozen=True, slots=True)
class Workspace:
    """Activations of at most `rows` rows, reused by every layer."""

    hidden: Tensor  # [rows, hidden]: the residual stream
    x: Tensor  # [rows, hidden]
    qkv: Tensor  # [rows, q + 2 kv]
    q: Tensor  # [rows, q]: rotated
    attended: Tensor  # [rows, q]
    added: Tensor  # [rows, hidden]: added to the residual
    gate_up: Tensor  # [rows, 2 inter]
    activated: Tensor  # [rows, inter]
    cos: Tensor  # [rows, head_dim / 2] float32
    sin: Tensor
    # The same activations in fp8, and their row scales; [0, …] in a model whose products read no fp8.
    x_numbers: Tensor
    x_scales: Tensor
    attended_numbers: Tensor
    attended_scales: Tensor
    activated_numbers: Tensor
    activated_scales: Tensor

    @property
    def x_fp8(self) -> QuantizedRows:
        return QuantizedRows(self.x_numbers, self.x_scales)

    @property
    def attended_fp8(self) -> QuantizedRows:
        return QuantizedRows(self.attended_numbers, self.attended_scales)

    @property
    def activated_fp8(self) -> QuantizedRows:
        return QuantizedRows(self.activated_numbers, self.activated_scales)

    def first(self, rows: int) -> Workspace:
        """Views of the first rows."""
        return Workspace(*(getattr(self, name)[:rows] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The working memory of one model's steps."""

    packed: Tensor  # int32 [words]: the step as it was sent
    work: Workspace
    plan: DecodePlan
    partials: PrefillPartials
    lora: LoraScratch
    deltas: Tensor  # [elements]
    logits: Tensor  # [sequences, vocab]
    reported: Tensor  # [at most PROMPT_LOGPROB_ROWS_MAX, vocab]: logits for prompt logprobs; no graph writes them
    scratch: Scratch  # of the draw
    products: ProductMemory


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sizes of the largest step. `plan`: capacity of the decode plan in sequences."""

    words: int
    rows: int
    sequences: int
    plan: int


def step_form(
    config: DecoderConfig,
    dtype: torch.dtype,
    table: TileTable,
    sizes: StepSizes,
    multiprocessors: int,
    layout: SlabLayout,
    *,
    kv_fp8: bool = False,
) -> StepMemory:
    """The memory that steps of this model need, as tensors without storage. `table`: of adapters. `layout`: of the
    model's weights. `kv_fp8`: the model's K and V are fp8."""
    tuning = FP8_TUNING if kv_fp8 else TUNING

    def empty(rows: int, width: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(rows, width, dtype=kind, device=META)

    q, qkv, half = config.q_size, config.q_size + 2 * config.kv_size, config.head_dim // 2
    rows, heads, kv_heads, head_dim = sizes.rows, config.heads, config.kv_heads, config.head_dim
    work = Workspace(
        hidden=empty(rows, config.hidden),
        x=empty(rows, config.hidden),
        qkv=empty(rows, qkv),
        q=empty(rows, q),
        attended=empty(rows, q),
        added=empty(rows, config.hidden),
        gate_up=empty(rows, 2 * config.intermediate),
        activated=empty(rows, config.intermediate),
        cos=empty(rows, half, torch.float32),
        sin=empty(rows, half, torch.float32),
        **_fp8_rows(config, rows if reads_fp8(layout) else 0),
    )
    on_no_device = TileTable(torch.empty(0, dtype=dtype, device=META), table.entries.to(META))
    widest = max(qkv, config.hidden, 2 * config.intermediate)
    return StepMemory(
        packed=torch.empty(sizes.words, dtype=torch.int32, device=META),
        work=work,
        plan=allocate_decode_plan(
            sizes.plan,
            heads,
            kv_heads,
            head_dim,
            META,
            programs=multiprocessors * tuning.programs_per_sm,
            tuning=tuning,
        ),
        partials=allocate_prefill_partials(
            kv_heads, head_dim, META, programs=multiprocessors * PREFILL_PROGRAMS_PER_SM
        ),
        lora=LoraScratch.empty(rows, STACKED, on_no_device),
        deltas=torch.empty(rows * widest, dtype=dtype, device=META),
        logits=empty(sizes.sequences, config.vocab),
        reported=empty(min(rows, PROMPT_LOGPROB_ROWS_MAX), config.vocab),
        scratch=new_scratch(sizes.sequences, config.vocab, META),
        products=product_form(layout, dtype, rows),
    )


def _fp8_rows(config: DecoderConfig, rows: int) -> dict[str, Tensor]:
    """The fields of Workspace for `rows` rows in fp8."""
    widths = {"x": config.hidden, "attended": config.q_size, "activated": config.intermediate}
    fields = {}
    for name, width in widths.items():
        fields[f"{name}_numbers"] = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=META)
        fields[f"{name}_scales"] = torch.empty(rows, dtype=torch.float32, device=META)
    return fields


def form_bytes(form: StepMemory) -> int:
    total = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal total
        total += _aligned(tensor)
        return tensor

    _each(form, count)
    return total


class StepMemories:
    """The memory of all models' steps: one stretch of the size that the largest model of the start needs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stretches: list[Tensor] = []

    def place(self, form: StepMemory) -> StepMemory:
        """Place a form in a stretch that other models use too, or in a new stretch if no existing one is large
        enough."""
        needed = form_bytes(form)
        fitting = [stretch for stretch in self._stretches if len(stretch) >= needed]
        if not fitting:
            # Zeros, because the counters of attention are 0 between two steps.
            fitting = [torch.zeros(needed, dtype=torch.uint8, device=self._device)]
            self._stretches += fitting
        stretch, position = fitting[0], 0

        def place_tensor(tensor: Tensor) -> Tensor:
            nonlocal position
            own = stretch[position : position + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            position += _aligned(tensor)
            return own

        placed: StepMemory = _each(form, place_tensor)
        return placed


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGN_BYTES) * ALIGN_BYTES


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of `value` with every tensor replaced by `change(tensor)`."""
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return dataclasses.replace(value, **{field.name: _each(getattr(value, field.name), change) for field in fields})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(item, change) for item in value))
    return value
