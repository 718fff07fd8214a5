"""The first rows of a step: each row's id, drawn by the step before or given by the host, and its embedding.

It knows ids, no sequences.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

IDS_BLOCK = 256


@triton.jit
def _chosen_id(ids_ptr, source_ptr, previous_ptr, rows, within):
    source = tl.load(source_ptr + rows, mask=within, other=-1)
    drawn = tl.load(previous_ptr + source, mask=within & (source >= 0), other=0)
    given = tl.load(ids_ptr + rows, mask=within, other=0)
    return tl.where(source >= 0, drawn.to(tl.int64), given.to(tl.int64))


@triton.jit
def _gather_ids_kernel(ids_ptr, source_ptr, previous_ptr, out_ptr, count, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = rows < count
    tl.store(out_ptr + rows, _chosen_id(ids_ptr, source_ptr, previous_ptr, rows, within), mask=within)


@triton.jit
def _embed_kernel(
    ids_ptr,
    source_ptr,
    previous_ptr,
    embedding_ptr,
    out_ptr,
    embedding_stride,
    out_stride,
    vocab,
    hidden,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = columns < hidden
    chosen = _chosen_id(ids_ptr, source_ptr, previous_ptr, row, row >= 0)
    # A row that failed drew -1: its result is discarded, but it must read memory of the model.
    chosen = tl.minimum(tl.maximum(chosen, 0), vocab - 1)
    embedded = tl.load(embedding_ptr + chosen * embedding_stride + columns, mask=within)
    tl.store(out_ptr + row.to(tl.int64) * out_stride + columns, embedded, mask=within)


def gather_ids(ids: torch.Tensor, source: torch.Tensor, previous: torch.Tensor, out: torch.Tensor) -> None:
    """out[r] = previous[source[r]] where `source[r]` ≥ 0, else ids[r].

    `ids`, `source`, `out` [rows]; `previous` [any number]; each int32 or int64, contiguous. A -1 among `previous`
    remains -1."""
    _check_ids(ids, source, previous)
    assert out.shape == ids.shape
    if ids.numel():
        grid = (triton.cdiv(ids.numel(), IDS_BLOCK),)
        _gather_ids_kernel[grid](ids, source, previous, out, ids.numel(), BLOCK=IDS_BLOCK, num_warps=4)


def embed(
    ids: torch.Tensor, source: torch.Tensor, previous: torch.Tensor, embedding: torch.Tensor, out: torch.Tensor
) -> None:
    """out[r] = embedding[id], where id is `gather_ids`' and is brought within the vocabulary if it is not.

    `embedding` [vocab, hidden], `out` [rows, hidden] in one dtype, contiguous within a row; the rest as above."""
    _check_ids(ids, source, previous)
    rows, hidden = out.shape
    vocab = embedding.shape[0]
    assert ids.shape == (rows,)
    assert embedding.shape == (vocab, hidden)
    assert embedding.dtype == out.dtype
    assert embedding.stride(1) == out.stride(1) == 1
    if rows == 0:
        return
    block = min(triton.next_power_of_2(hidden), 2048)
    _embed_kernel[(triton.cdiv(hidden, block), rows)](
        ids, source, previous, embedding, out, embedding.stride(0), out.stride(0), vocab, hidden, BLOCK=block
    )


def _check_ids(ids: torch.Tensor, source: torch.Tensor, previous: torch.Tensor) -> None:
    assert source.shape == ids.shape
    assert ids.dim() == previous.dim() == 1
    assert all(operand.is_contiguous() for operand in (ids, source, previous))
