"""The dense decoder: one forward pass over the packed rows of many sequences, with paged K and V and LoRA as data.

Rows are tokens, y = x · Wᵀ. Requests and pages appear only as index tensors.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters.device.layer import cpu_threads
from engine.cpu.batch import PackedBatch, Span
from engine.models.config import DecoderConfig
from engine.models.linear import CpuProduct, Linear
from engine.models.shape import GATE_UP, QKV, rotary_frequencies
from engine.models.weights import LayerWeights, Weights
from kernels.kv_layout import SCALE_BYTES, KvLayout
from kernels.reference_kv import dequantise_heads, quantise_heads


class Lora(Protocol):
    """Implemented by adapters.device.layer.LoraBatch: y[rows of adapter a] += scale_a · (x · A_aᵀ) · B_aᵀ, in place."""

    def apply(self, layer: int, module: str, x: Tensor, y: Tensor) -> None: ...

    def apply_stacked(self, layer: int, modules: tuple[str, ...], x: Tensor, y: Tensor) -> None: ...


# Rows of a product whose bits do not depend on the number of rows.
EXACT_ROWS = 8


class PagedKv:
    """One model's K and V in the arena, as `kernels.kv_layout` lays them out: one layer of one page is one contiguous
    run."""

    def __init__(self, arena: Tensor, layout: KvLayout) -> None:
        """`arena` [pages, page_bytes] uint8. A page must hold at least one token."""
        self.tokens_per_page = layout.tokens_per_page(arena.shape[1])
        assert self.tokens_per_page > 0, "a page holds no token of this model"
        pages = arena if layout.is_fp8 else arena.view(getattr(torch, layout.dtype))
        run = layout.run_bytes(self.tokens_per_page) // pages.itemsize
        self._used = pages[:, : layout.layers * run]  # [pages, elements]
        self._runs = [self._used[:, i * run : (i + 1) * run] for i in range(layout.layers)]
        if not layout.is_fp8:
            width = 2 * layout.kv_heads * layout.head_dim
            self._rows = [layer.view(-1, self.tokens_per_page, width) for layer in self._runs]

    @classmethod
    def of(cls, arena: Tensor, layout: KvLayout) -> PagedKv:
        return (PagedFp8Kv if layout.is_fp8 else cls)(arena, layout)

    def clear(self, pages: Tensor) -> None:
        """Zero whole pages."""
        self._used.index_fill_(0, pages, 0)

    def put_rows(self, layer: int, pages: Tensor, slots: Tensor, kv: Tensor) -> None:
        """Write K and V `kv` [rows, 2 × kv_size] of each row to its page and slot."""
        self._rows[layer].index_put_((pages, slots), kv)

    def gather_pages(self, layer: int, pages: Tensor, out: Tensor) -> None:
        """Copy a layer's K and V of whole pages to `out` [pages, tokens × 2 × kv_size] in the model's dtype."""
        torch.index_select(self._runs[layer], 0, pages, out=out)


class PagedFp8Kv(PagedKv):
    """K and V in fp8 with a float16 scale per token and head: the numbers of `kernels.reference_kv`."""

    def __init__(self, arena: Tensor, layout: KvLayout) -> None:
        super().__init__(arena, layout)
        tokens, heads = self.tokens_per_page, 2 * layout.kv_heads
        self._shape = (-1, tokens, heads, layout.head_dim)
        self._start = start = layout.scales_start(tokens)
        self._end = start + tokens * heads * SCALE_BYTES
        self._numbers = [run[:, :start].view(self._shape) for run in self._runs]
        # [pages, tokens, heads]
        self._scales = [
            run[:, start : self._end].view(torch.float16).view(-1, heads, tokens).transpose(1, 2) for run in self._runs
        ]

    def put_rows(self, layer: int, pages: Tensor, slots: Tensor, kv: Tensor) -> None:
        numbers, scales = quantise_heads(kv.view(-1, *self._shape[2:]))
        self._numbers[layer].index_put_((pages, slots), numbers)
        self._scales[layer].index_put_((pages, slots), scales)

    def gather_pages(self, layer: int, pages: Tensor, out: Tensor) -> None:
        runs = self._runs[layer].index_select(0, pages)
        numbers = runs[:, : self._start].view(self._shape)
        scales = runs[:, self._start : self._end].view(torch.float16).view(-1, self._shape[2], self._shape[1])
        dequantise_heads(numbers, scales.transpose(1, 2), out.view(self._shape))


class Decoder:
    """A model's weights and arithmetic. Weights and batches are on one device, in one dtype.

    `exact`: its batches are to be packed so that a row gets the same bits in any of them, which K and V in fp8 need. A
    difference in the last bit, where a number lies beside a rounding boundary, becomes a step of fp8. Some layers later
    many numbers differ, and in the end ids do. The price: float products of EXACT_ROWS rows, and more attention calls.
    """

    def __init__(self, config: DecoderConfig, weights: Weights[CpuProduct], kv: PagedKv) -> None:
        self.config = config
        self.kv = kv
        self.exact = isinstance(kv, PagedFp8Kv)
        self.dtype = weights.norm.dtype
        self._weights = weights
        self._frequencies = rotary_frequencies(config).to(weights.norm.device)

    def forward(self, batch: PackedBatch, lora: Lora | None) -> Tensor:
        """Logits [samples, vocab] of `batch.sampled`; K and V of every row are in the arena afterwards."""
        return self.logits(self.run_layers(self.embed(batch), batch, lora), batch.sampled)

    def logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Logits [rows, vocab] of these rows int64 [rows] of the residual stream after all layers. Called once for the
        samples and once for the reported rows, so that the logits of a sample do not depend on the rows that are
        reported beside it."""
        last = self.final_norm(hidden.index_select(0, rows))
        return self._weights.lm_head(last, out=last.new_empty(last.shape[0], self.config.vocab))

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The hidden states [rows, hidden] that the head reads, of the residual stream after all layers."""
        return F.rms_norm(hidden, (self.config.hidden,), self._weights.norm, self.config.norm_eps)

    def embed(self, batch: PackedBatch) -> Tensor:
        """The residual stream [rows, hidden] before the first layer."""
        return F.embedding(batch.ids, self._weights.embedding)

    def run_layers(self, hidden: Tensor, batch: PackedBatch, lora: Lora | None) -> Tensor:
        """The residual stream [rows, hidden] after all layers, in place."""
        # Exactly, one thread computes all but the products: where threads divide a tensor, its numbers are computed
        # otherwise.
        threads = torch.get_num_threads()
        with cpu_threads(1 if batch.exact else None):
            return self._run_layers(hidden, batch, lora, threads)

    def _run_layers(self, hidden: Tensor, batch: PackedBatch, lora: Lora | None, threads: int) -> Tensor:
        """`threads`: of the products."""
        config, weights = self.config, self._weights
        if batch.fresh_pages.numel():
            self.kv.clear(batch.fresh_pages)
        work = _Workspace(config, batch, self._frequencies, hidden, self.kv.tokens_per_page, threads)
        for index, layer in enumerate(weights.layers):
            self._attention(index, layer, batch, work, hidden, lora)
            self._mlp(index, layer, work, hidden, lora)
        return hidden

    def _attention(
        self,
        index: int,
        layer: LayerWeights[CpuProduct],
        batch: PackedBatch,
        work: _Workspace,
        hidden: Tensor,
        lora: Lora | None,
    ) -> None:
        config = self.config
        x = F.rms_norm(hidden, (config.hidden,), layer.input_norm, config.norm_eps)
        work.multiply(layer.qkv, x, work.qkv)
        if lora is not None:
            lora.apply_stacked(index, QKV, x, work.qkv)
        if layer.q_norm is not None and layer.k_norm is not None:
            shape = (config.head_dim,)
            work.q.copy_(F.rms_norm(work.q, shape, layer.q_norm, config.norm_eps))
            work.k.copy_(F.rms_norm(work.k, shape, layer.k_norm, config.norm_eps))
        swapped = work.qk_halves.flip(2)
        work.qk_halves.mul_(work.cos).addcmul_(swapped, work.sin)
        self.kv.put_rows(index, batch.pages, batch.slots, work.kv)
        for span in work.spans:
            span.attend(self.kv, index)
        work.add_product(layer.o, work.attended, hidden)
        if lora is not None:
            lora.apply(index, "o_proj", work.attended, hidden)

    def _mlp(
        self, index: int, layer: LayerWeights[CpuProduct], work: _Workspace, hidden: Tensor, lora: Lora | None
    ) -> None:
        config = self.config
        x = F.rms_norm(hidden, (config.hidden,), layer.post_norm, config.norm_eps)
        work.multiply(layer.gate_up, x, work.gate_up)
        if lora is not None:
            lora.apply_stacked(index, GATE_UP, x, work.gate_up)
        F.silu(work.gate, inplace=True).mul_(work.up)
        work.add_product(layer.down, work.gate, hidden)
        if lora is not None:
            lora.apply(index, "down_proj", work.gate, hidden)


class _Workspace:
    """Buffers of one forward and the views into them, made once and used by every layer: on a small model a view
    costs as much as the arithmetic."""

    def __init__(
        self,
        config: DecoderConfig,
        batch: PackedBatch,
        frequencies: Tensor,
        like: Tensor,
        tokens_per_page: int,
        threads: int,
    ) -> None:
        self._exact_threads = threads if batch.exact else None
        rows, heads = batch.ids.shape[0], config.heads + config.kv_heads
        qk_size = config.q_size + config.kv_size
        self.qkv = like.new_empty(rows, qk_size + config.kv_size)
        qk = self.qkv[:, :qk_size]
        self.q = self.qkv[:, : config.q_size].view(rows, config.heads, config.head_dim)
        self.k = qk[:, config.q_size :].view(rows, config.kv_heads, config.head_dim)
        self.kv = self.qkv[:, config.q_size :]
        self.qk_halves = qk.view(rows, heads, 2, config.head_dim // 2)
        # Exactly, whole blocks of rows: the last few numbers of a tensor are computed by another cosine.
        positions = F.pad(batch.positions, (0, -rows % EXACT_ROWS)) if batch.exact else batch.positions
        angles = positions[:, None] * frequencies
        cos, sin = angles.cos()[:rows].to(like.dtype), angles.sin()[:rows].to(like.dtype)
        self.cos = torch.stack((cos, cos), 1)[:, None]  # [rows, 1, 2, head_dim / 2]
        self.sin = torch.stack((-sin, sin), 1)[:, None]
        self.attended = like.new_empty(rows, config.q_size)
        self.gate_up = like.new_empty(rows, 2 * config.intermediate)
        self.gate, self.up = self.gate_up[:, : config.intermediate], self.gate_up[:, config.intermediate :]
        self.spans = [_SpanAttention(config, span, self.q, self.attended, tokens_per_page) for span in batch.spans]

    def multiply(self, product: CpuProduct, x: Tensor, out: Tensor) -> None:
        """out = x · Wᵀ (+ b)."""
        if self._exact_threads is None:
            product(x, out=out)
        else:
            with cpu_threads(self._exact_threads):
                multiply_exactly(product, x, out)

    def add_product(self, product: CpuProduct, x: Tensor, y: Tensor) -> None:
        """y += x · Wᵀ."""
        if self._exact_threads is None:
            product.add_to(y, x)
        else:
            added = torch.empty_like(y)
            self.multiply(product, x, added)
            y.add_(added)


def multiply_exactly(product: CpuProduct, x: Tensor, out: Tensor) -> None:
    """out = x · Wᵀ (+ b), a row's bits the same in any batch. A float product is made in products of EXACT_ROWS rows,
    the last padded with zeros: for other numbers of rows the libraries choose other kernels, which add in another
    order."""
    if not isinstance(product, Linear):
        product(x, out=out)
        return
    rows = x.shape[0]
    whole = rows // EXACT_ROWS * EXACT_ROWS
    for start in range(0, whole, EXACT_ROWS):
        product(x[start : start + EXACT_ROWS], out=out[start : start + EXACT_ROWS])
    if whole < rows:
        padded = F.pad(x[whole:], (0, 0, 0, EXACT_ROWS - rows + whole))
        out[whole:] = product(padded, out=out.new_empty(EXACT_ROWS, out.shape[1]))[: rows - whole]


class _SpanAttention:
    """Attention of one span: its keys and values gathered from the arena, then one fused call.

    Grouped queries copy no K or V: for decodes the query heads of a group are query rows, for a prefill chunk they are
    heads over an expanded view."""

    def __init__(self, config: DecoderConfig, span: Span, q: Tensor, attended: Tensor, tokens_per_page: int) -> None:
        sequences = span.stop - span.start if span.decode else 1
        group = config.heads // config.kv_heads
        self._pages = span.pages
        self._gathered = q.new_empty(span.pages.shape[0], tokens_per_page * 2 * config.kv_size)
        kv = self._gathered.view(1 if span.shared else sequences, -1, 2, config.kv_heads, config.head_dim)
        kv = kv.expand(sequences, -1, -1, -1, -1)[:, : span.keys]
        keys, values = kv.permute(2, 0, 3, 1, 4).unbind(0)  # each [sequences, kv_heads, keys, head_dim]
        q = q[span.start : span.stop].view(
            -1, config.kv_heads, group, config.head_dim
        )  # [rows, kv_heads, group, head_dim]
        out = attended[span.start : span.stop].view(q.shape)
        self._mask = span.mask
        if span.decode:
            self._q, self._keys, self._values, self._out = q, keys, values, out
            if span.mask is not None:
                self._mask = span.mask.expand(-1, -1, group, -1)
        else:
            self._q, self._out = q.permute(1, 2, 0, 3), out.permute(1, 2, 0, 3)
            self._keys, self._values = (x[0][:, None].expand(-1, group, -1, -1) for x in (keys, values))

    def attend(self, kv: PagedKv, layer: int) -> None:
        kv.gather_pages(layer, self._pages, self._gathered)
        self._out.copy_(F.scaled_dot_product_attention(self._q, self._keys, self._values, attn_mask=self._mask))
