"""The dense decoder on a GPU: one forward pass over packed rows, the same when run eagerly and when captured in a
graph.

Everything that differs between two steps of one shape is read from tensors at fixed addresses. It must never wait for
the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from adapters.files.spec import BaseShape
from engine.compute.pooling import pooled_sum
from engine.gpu.lora import LoraDeltas, stacks
from engine.gpu.packing import StepTensors
from engine.gpu.products import Fp8Product, GpuProduct, PlainProduct, ProductMemory, warm_up_products
from engine.gpu.step_memory import StepMemory, Workspace
from engine.models.config import DecoderConfig
from engine.models.shape import rotary_frequencies
from engine.models.weights import LayerWeights, Weights
from kernels.decode_attention import decode_attention, plan_decode
from kernels.embed import embed
from kernels.kv_layout import KvLayout
from kernels.lora_work import LoraWork, Stack
from kernels.norm import OutputScales, add_rms_norm, rms_norm
from kernels.prefill_attention import prefill_attention
from kernels.quantize import MANY_ROWS, QuantizedRows, quantize_rows
from kernels.rotary import rotary_tables, rotary_write
from kernels.swiglu import swiglu


@dataclass(frozen=True, slots=True)
class GpuLora:
    """A step's LoRA work list, and the memory and stream in which its deltas are computed."""

    work: LoraWork
    deltas: LoraDeltas


class GpuDecoder:
    """A model's weights and arithmetic on one GPU. `kv`: the arena viewed in the dtype of K and V; uint8 for fp8."""

    def __init__(
        self,
        config: DecoderConfig,
        base: BaseShape,
        weights: Weights[GpuProduct],
        arena: Tensor,
        layout: KvLayout | None = None,
    ) -> None:
        """`base`: the same model as adapters see it. `arena` [pages, page_bytes] uint8. `layout`: of K and V; None: in
        the model's dtype."""
        self.config = config
        self.dtype = weights.norm.dtype
        self.device = weights.norm.device
        layout = layout or config.kv_layout(str(self.dtype).removeprefix("torch."))
        self.kv = arena if layout.is_fp8 else arena.view(self.dtype)
        self.tokens_per_page = layout.tokens_per_page(arena.shape[1])
        assert self.tokens_per_page > 0, "a page holds no token of this model"
        self.page_waste = layout.page_waste(arena.shape[1])  # bytes
        self._weights = weights
        self._products = [
            product for layer in weights.layers for product in (layer.qkv, layer.o, layer.gate_up, layer.down)
        ]
        self._has_few_row_products = any(not isinstance(product, PlainProduct) for product in self._products)
        self._frequencies = rotary_frequencies(config).to(self.device)
        self._scale = config.head_dim**-0.5
        self._stacks = stacks(base)

    def forward(
        self, step: StepTensors, drawn: Tensor, memory: StepMemory, lora: GpuLora | None, samples: int, *, decodes: bool
    ) -> None:
        """Write the logits of `step.sampled` to the first `samples` rows of `memory.logits`, and K and V of every row
        to the arena.

        `drawn` [n] int32: the ids of the previous step, indexed by `step.source`. `decodes`: row i is the only row of
        sequence i, and all rows are sampled."""
        work, logits = memory.work.first(step.ids.shape[0]), memory.logits[:samples]
        embed(step.ids, step.source, drawn, self._weights.embedding, work.hidden)
        self.run_layers(step, memory, lora, decodes=decodes)
        last = work.x if decodes else work.x.index_select(0, step.sampled[:samples])
        self._weights.lm_head(last, None, logits, memory.products)

    def run_layers(self, step: StepTensors, memory: StepMemory, lora: GpuLora | None, *, decodes: bool) -> None:
        """All layers over the residual stream in the first rows of `memory.work.hidden`, in place; its norm is in
        `memory.work.x` afterwards. The other arguments: as in `forward`."""
        config, weights = self.config, self._weights
        work = memory.work.first(step.ids.shape[0])
        if decodes:
            plan_decode(memory.plan, step.sequence_rows, step.kv_lens, step.page_starts)
        if lora is not None:
            lora.deltas.begin_step()
        rotary_tables(step.positions, self._frequencies, work.cos, work.sin)
        if self._has_few_row_products:
            memory.products.scratch.arrivals.zero_()  # steps of other models use the same memory
        first = weights.layers[0]
        quantized = work.x_fp8 if first.qkv.reads_fp8 else None
        rms_norm(work.hidden, first.input_norm, config.norm_eps, work.x, quantized=quantized)
        for index, layer in enumerate(weights.layers):
            self._attention(index, layer, step, memory, work, lora, decodes)
            following = weights.layers[index + 1] if index + 1 < config.layers else None
            self._mlp(index, layer, following, step, memory, work, lora)

    def reported_logits(self, rows: Tensor, memory: StepMemory) -> Tensor:
        """Logits [reports, vocab] of `rows` int64 [reports] of the step that was launched last, in `memory.reported`.
        Not part of a graph."""
        logits = memory.reported[: rows.shape[0]]
        self._weights.lm_head(memory.work.x.index_select(0, rows), None, logits, memory.products)
        return logits

    def pooled_sums(self, spans: list[slice], memory: StepMemory) -> Tensor:
        """float32 [spans, hidden]: the sums of the hidden states of spans of rows of the step that was launched last.
        Not part of a graph."""
        return torch.stack([pooled_sum(memory.work.x[span]) for span in spans])

    def warm_up_products(self, rows_max: int) -> None:
        """Compile the kernels of quantised products and of rows in fp8 that steps of up to `rows_max` rows use, in
        memory that is freed afterwards. Steps of a few rows compile all others."""
        warm_up_products(self._products, self.dtype, self.device, rows_max)
        layers, config, rows = self._weights.layers, self.config, MANY_ROWS
        if rows_max < rows:
            return
        if any(layer.o.reads_fp8 for layer in layers):
            quantize_rows(self._zeros(rows, config.q_size), self._zeros_fp8(rows, config.q_size))
        if any(layer.down.reads_fp8 for layer in layers):
            gate_up, delta = (self._zeros(rows, 2 * config.intermediate) for _ in range(2))
            activated, quantized = self._zeros(rows, config.intermediate), self._zeros_fp8(rows, config.intermediate)
            adapted = torch.ones(rows, dtype=torch.int32, device=self.device)
            swiglu(gate_up, activated, quantized=quantized)
            swiglu(gate_up, activated, delta=delta, adapted=adapted, quantized=quantized)

    def _zeros(self, rows: int, width: int) -> Tensor:
        return torch.zeros(rows, width, dtype=self.dtype, device=self.device)

    def _zeros_fp8(self, rows: int, width: int) -> QuantizedRows:
        numbers = torch.zeros(rows, width, dtype=torch.float8_e4m3fn, device=self.device)
        return QuantizedRows(numbers, torch.zeros(rows, dtype=torch.float32, device=self.device))

    def _attention(
        self,
        index: int,
        layer: LayerWeights[GpuProduct],
        step: StepTensors,
        memory: StepMemory,
        work: Workspace,
        lora: GpuLora | None,
        decodes: bool,
    ) -> None:
        config = self.config
        delta, _ = _product(layer.qkv, work.x, work.x_fp8, work.qkv, memory.products, lora, index, self._stacks.qkv)
        rotary_write(
            work.qkv,
            work.q,
            self.kv,
            work.cos,
            work.sin,
            step.write_pages,
            step.write_slots,
            layer=index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            tokens_per_page=self.tokens_per_page,
            delta=delta,
            adapted=None if delta is None else step.adapted,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.norm_eps,
        )
        self._attend(index, step, memory, work, decodes)
        rows = work.attended_fp8
        if layer.o.reads_fp8:
            quantize_rows(work.attended, rows)
        product = _product(
            layer.o,
            work.attended,
            rows,
            work.added,
            memory.products,
            lora,
            index,
            self._stacks.o,
            may_lack_scales=True,
        )
        self._join_residual(work, layer.post_norm, product, step.adapted, layer.gate_up)

    def _attend(self, index: int, step: StepTensors, memory: StepMemory, work: Workspace, decodes: bool) -> None:
        """The prefill kernel computes all rows of a mixed step, including the decodes' rows (decision 0028)."""
        config = self.config
        if decodes:
            decode_attention(
                work.q,
                work.attended,
                self.kv,
                step.pages,
                memory.plan,
                layer=index,
                tokens_per_page=self.tokens_per_page,
                scale=self._scale,
            )
            return
        prefill_attention(
            work.q,
            work.attended,
            self.kv,
            step.sequence_rows,
            step.query_lens,
            step.kv_lens,
            step.page_starts,
            step.pages,
            step.query_blocks,
            memory.partials,
            layer=index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            tokens_per_page=self.tokens_per_page,
            scale=self._scale,
        )

    def _mlp(
        self,
        index: int,
        layer: LayerWeights[GpuProduct],
        following: LayerWeights[GpuProduct] | None,
        step: StepTensors,
        memory: StepMemory,
        work: Workspace,
        lora: GpuLora | None,
    ) -> None:
        """`following`: the next layer; None after the last one."""
        products = memory.products
        delta, _ = _product(
            layer.gate_up, work.x, work.x_fp8, work.gate_up, products, lora, index, self._stacks.gate_up
        )
        rows = work.activated_fp8
        swiglu(
            work.gate_up,
            work.activated,
            delta=delta,
            adapted=None if delta is None else step.adapted,
            quantized=rows if layer.down.reads_fp8 else None,
        )
        product = _product(
            layer.down,
            work.activated,
            rows,
            work.added,
            products,
            lora,
            index,
            self._stacks.down,
            may_lack_scales=True,
        )
        if following is None:
            self._join_residual(work, self._weights.norm, product, step.adapted, self._weights.lm_head)
        else:
            self._join_residual(work, following.input_norm, product, step.adapted, following.qkv)

    def _join_residual(
        self, work: Workspace, norm: Tensor, product: BaseProduct, adapted: Tensor, reader: GpuProduct
    ) -> None:
        """`product`: what `work.added` lacks. `reader`: the product of the normed rows."""
        delta, scales = product
        add_rms_norm(
            work.added,
            work.hidden,
            norm,
            self.config.norm_eps,
            work.x,
            delta=delta,
            adapted=None if delta is None else adapted,
            scales=scales,
            quantized=work.x_fp8 if reader.reads_fp8 else None,
        )


class BaseProduct(NamedTuple):
    """The terms that the consumer of a base product applies: the delta of LoRA, None if no row is adapted; and the
    scales that the product lacks, None if it has them."""

    delta: Tensor | None
    scales: OutputScales | None


def _product(
    product: GpuProduct,
    x: Tensor,
    quantized: QuantizedRows,
    out: Tensor,
    memory: ProductMemory,
    lora: GpuLora | None,
    layer: int,
    stack: Stack,
    *,
    may_lack_scales: bool = False,
) -> BaseProduct:
    """The base's x · Wᵀ into `out`, and beside it the delta, computed from the unquantised x. `may_lack_scales`: the
    consumer applies scales. Beside a delta the product has its scales all the same: cuBLAS splits an unscaled product
    over more multiprocessors, which the delta would lack."""
    if lora is not None:
        lora.deltas.fork()
    elif may_lack_scales and isinstance(product, Fp8Product):
        scales = product.multiply_unscaled(quantized, out)
        if scales is not None:
            return BaseProduct(None, scales)
    product(x, quantized if product.reads_fp8 else None, out, memory)
    return BaseProduct(None if lora is None else lora.deltas.join(lora.work, layer, stack, x), None)
