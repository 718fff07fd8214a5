"""One id per row of logits: greedy, or drawn after temperature, min-p, top-k and top-p, on the device throughout.

It knows rows, no requests.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.changes import Changes, changed, note_drawn, row_changes
from kernels.filters import draw_filtered, ordered
from kernels.race import exponentials, row_key, winner_of

# Ids that a program processes at once.
CHUNK = 4096
CHUNK_WARPS = 8
FILTER_WARPS = 16
# Candidates are searched by the maximum of each SPAN ids.
SPAN = 32
# Candidates of a row at most.
CANDIDATES_MAX = 4096
# Of a float32 that holds a number of this dtype.
EMPTY_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
LOG2_E = tl.constexpr(1.4426950408889634)
# Beyond these a temperature changes nothing, but overflows.
TEMPERATURE_MIN, TEMPERATURE_MAX = tl.constexpr(1e-30), tl.constexpr(1e30)


class Mode(IntEnum):
    """The most expensive draw among the rows of a launch. Each mode includes the previous ones and costs more."""

    GREEDY = 0  # every row's likeliest id, whatever its temperature
    PLAIN = 1  # temperature
    FILTERED = 2  # min-p, top-k and top-p


class Draws(NamedTuple):
    """How each row is drawn, all [rows] and contiguous: `engine.protocol.frames.Sampling` as tensors."""

    temperature: torch.Tensor  # float32; 0: the likeliest, of equals the lowest id
    seed: torch.Tensor  # int64
    choice: torch.Tensor  # int32
    position: torch.Tensor  # int32, the index that the id will have in its sequence
    top_k: torch.Tensor  # int32; 0: off
    top_p: torch.Tensor  # float32; 1: off
    min_p: torch.Tensor  # float32; 0: off


class Scratch(NamedTuple):
    """Buffers that one launch leaves to the next, at fixed addresses, so that both may be captured."""

    maxima: torch.Tensor  # [rows, chunks] float32; NaN where the chunk holds one
    firsts: torch.Tensor  # [rows, chunks] int32, the lowest id of the maximum
    times: torch.Tensor  # [rows, chunks] float32, the winner's, as if the chunk's maximum were the row's
    winners: torch.Tensor  # [rows, chunks] int32
    sums: torch.Tensor  # [rows, chunks] float32, Σ exp((x − the chunk's maximum) / temperature)
    peaks: torch.Tensor  # [rows, chunks · CHUNK / SPAN] float32, the spans' maxima
    spans: torch.Tensor  # [rows, chunks · CHUNK / SPAN] int32, spans whose ids are gathered
    values: torch.Tensor  # [rows, CANDIDATES_MAX] float32
    ids: torch.Tensor  # [rows, CANDIDATES_MAX] int32


def new_scratch(rows: int, vocab: int, device: torch.device | str) -> Scratch:
    """A scratch for launches of at most `rows` rows of `vocab` logits."""
    chunks = triton.cdiv(vocab, CHUNK)
    sizes = [chunks] * 5 + [chunks * (CHUNK // SPAN)] * 2 + [CANDIDATES_MAX] * 2
    floats, ints = torch.float32, torch.int32
    dtypes = (floats, ints, floats, ints, floats, floats, ints, floats, ints)
    return Scratch(
        *(torch.empty(rows, size, dtype=dtype, device=device) for size, dtype in zip(sizes, dtypes, strict=True))
    )


@triton.jit
def _scale(temperature):
    """Logits times this are logarithms to base 2."""
    return LOG2_E / tl.minimum(tl.maximum(temperature, TEMPERATURE_MIN), TEMPERATURE_MAX)


@triton.jit
def _finite(x):
    """`x`, or 0 for an infinity, which must not be subtracted from another."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def _first(x, largest, ids):
    """The lowest id with the largest `x`."""
    return tl.min(tl.where(x == largest, ids, 0x7FFFFFFF))


@triton.jit
def _race(key, ids, exponents, largest, time_ptr, winner_ptr):
    """Stores the first of `ids`, whose weights are 2 to the power of `exponents`, at most 0, and its time. The
    likeliest's time is at most 37, so an id whose time is cut off at 2¹⁰⁰ never wins. Where all ids are infinitely
    unlikely, the time is infinite and none wins."""
    time, winner = winner_of(exponentials(key, ids) * tl.exp2(tl.minimum(-exponents, 100.0)), ids)
    tl.store(time_ptr, tl.where(largest > -float("inf"), time, float("inf")))
    tl.store(winner_ptr, winner)


@triton.jit
def _is_narrowed(top_k, top_p, min_p, vocab):
    return ((top_k > 0) & (top_k < vocab)) | (top_p < 1.0) | (min_p > 0.0)


@triton.jit
def _chunk_kernel(
    logits_ptr,
    logits_stride,
    vocab,
    temperature_ptr,
    seed_ptr,
    choice_ptr,
    position_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    maxima_ptr,
    firsts_ptr,
    times_ptr,
    winners_ptr,
    sums_ptr,
    peaks_ptr,
    slots_ptr,
    mask_rows_ptr,
    tokens_ptr,
    tokens_stride,
    settings_ptr,
    numbers_ptr,
    settings_stride,
    words_ptr,
    words_stride,
    MODE: tl.constexpr,
    CHANGED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One chunk of one row: its maximum; its race, or, where filters come first, its sum and its spans' maxima."""
    row = tl.program_id(1).to(tl.int64)
    place = row * tl.num_programs(0) + tl.program_id(0)
    ids = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + row * logits_stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    if CHANGED:
        change = row_changes(
            row, slots_ptr, mask_rows_ptr, tokens_ptr, tokens_stride, settings_ptr, numbers_ptr, settings_stride,
            words_ptr, words_stride,
        )  # fmt: skip
        x = changed(x, ids, ids < vocab, change)
    holds_nan = tl.max((x != x).to(tl.int32)) != 0
    x = tl.where(x == x, x, -float("inf"))
    largest = tl.max(x)
    tl.store(maxima_ptr + place, tl.where(holds_nan, float("nan"), largest))
    if MODE == 0:
        tl.store(firsts_ptr + place, _first(x, largest, ids))
    else:
        temperature = tl.load(temperature_ptr + row)
        exponents = (x - _finite(largest)) * _scale(temperature)
        if temperature == 0.0:
            tl.store(firsts_ptr + place, _first(x, largest, ids))
        elif MODE == 1:
            key = row_key(seed_ptr, choice_ptr, position_ptr, row)
            _race(key, ids, exponents, largest, times_ptr + place, winners_ptr + place)
        else:
            top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
            if _is_narrowed(top_k, top_p, min_p, vocab):
                tl.store(sums_ptr + place, tl.sum(tl.exp2(exponents)))
                spans: tl.constexpr = CHUNK // SPAN
                peaks = tl.max(tl.reshape(x, (spans, SPAN)), axis=1)
                tl.store(peaks_ptr + place * spans + tl.arange(0, spans), peaks)
            else:
                key = row_key(seed_ptr, choice_ptr, position_ptr, row)
                _race(key, ids, exponents, largest, times_ptr + place, winners_ptr + place)


@triton.jit
def _chunk_maxima(maxima_ptr, row, chunks, CHUNKS: tl.constexpr):
    """(The maxima of a row's chunks, the row's, whether its logits are such as an id can be drawn from.)"""
    chunk = tl.arange(0, CHUNKS)
    maxima = tl.load(maxima_ptr + row * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
    holds_nan = tl.max((maxima != maxima).to(tl.int32)) != 0
    maxima = tl.where(maxima == maxima, maxima, -float("inf"))
    largest = tl.max(maxima)
    return maxima, largest, (tl.abs(largest) < float("inf")) & (holds_nan == 0)


@triton.jit
def _combine_kernel(
    vocab,
    chunks,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    maxima_ptr,
    firsts_ptr,
    times_ptr,
    winners_ptr,
    out_ptr,
    MODE: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Combine one row's chunks. Its result for a row with filters is used only where no id can be drawn."""
    row = tl.program_id(0).to(tl.int64)
    maxima, largest, usable = _chunk_maxima(maxima_ptr, row, chunks, CHUNKS)
    chunk = tl.arange(0, CHUNKS)
    place = row * chunks + chunk
    firsts = tl.load(firsts_ptr + place, mask=chunk < chunks, other=0x7FFFFFFF)
    chosen = _first(maxima, largest, firsts)
    if MODE > 0:
        temperature = tl.load(temperature_ptr + row)
        races = usable & (temperature > 0.0)
        if MODE > 1:
            top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
            races = races & (_is_narrowed(top_k, top_p, min_p, vocab) == 0)
        if races:
            times = tl.load(times_ptr + place, mask=chunk < chunks, other=float("inf"))
            winners = tl.load(winners_ptr + place, mask=chunk < chunks, other=0x7FFFFFFF)
            behind = (largest - maxima) * _scale(temperature)
            _, chosen = winner_of(times * tl.exp2(tl.minimum(behind, 100.0)), winners)
    tl.store(out_ptr + row, tl.where(usable, chosen, -1))


@triton.jit
def _filter_kernel(
    logits_ptr,
    logits_stride,
    vocab,
    chunks,
    temperature_ptr,
    seed_ptr,
    choice_ptr,
    position_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    maxima_ptr,
    sums_ptr,
    peaks_ptr,
    spans_ptr,
    values_ptr,
    ids_ptr,
    out_ptr,
    slots_ptr,
    mask_rows_ptr,
    tokens_ptr,
    tokens_stride,
    settings_ptr,
    numbers_ptr,
    settings_stride,
    words_ptr,
    words_stride,
    CHANGED: tl.constexpr,
    CHUNKS: tl.constexpr,
    SPANS: tl.constexpr,
    SPANS_MANY: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Draw one row's id from the ids that its filters leave, if it has filters. `SPANS`: spans of a chunk."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    maxima, largest, usable = _chunk_maxima(maxima_ptr, row, chunks, CHUNKS)
    if usable & (temperature > 0.0) & _is_narrowed(top_k, top_p, min_p, vocab):
        change = None
        if CHANGED:
            change = row_changes(
                row, slots_ptr, mask_rows_ptr, tokens_ptr, tokens_stride, settings_ptr, numbers_ptr, settings_stride,
                words_ptr, words_stride,
            )  # fmt: skip
        scale = _scale(temperature)
        chunk = tl.arange(0, CHUNKS)
        sums = tl.load(sums_ptr + row * chunks + chunk, mask=chunk < chunks, other=0.0)
        span = tl.arange(0, CHUNKS * SPANS)
        peaks = tl.load(peaks_ptr + row * chunks * SPANS + span, mask=span < chunks * SPANS, other=-float("inf"))
        chosen = draw_filtered(
            logits_ptr + row * logits_stride,
            vocab,
            tl.sum(sums * tl.exp2((maxima - largest) * scale)),
            top_k,
            top_p,
            min_p,
            largest,
            scale,
            row_key(seed_ptr, choice_ptr, position_ptr, row),
            change,
            ordered(peaks, SHIFT),
            spans_ptr + row * chunks * SPANS,
            values_ptr + row * BLOCK,
            ids_ptr + row * BLOCK,
            SPANS_MANY,
            CHUNKS * SPANS,
            SPAN,
            BLOCK,
            SHIFT,
        )
        tl.store(out_ptr + row, chosen)


def sample(
    logits: torch.Tensor,
    draws: Draws,
    scratch: Scratch,
    out: torch.Tensor,
    *,
    mode: Mode,
    changes: Changes | None = None,
) -> None:
    """out[r] = an id drawn from logits[r] as row r of `draws` says; -1 where a row's largest logit is not finite (NaN,
    +∞, or −∞ everywhere).

    `logits` [rows, vocab] float32, float16 or bfloat16, contiguous within a row; `out` [rows] int32 or int64; `scratch`
    of at least as many rows, as `new_scratch` makes it. min-p keeps the ids that are at least min_p times as likely as
    the likeliest; of these, top-k keeps the k likeliest; of these, top-p keeps the fewest whose share of their sum is
    at least top_p; among equals at the edge the lowest ids remain. Nothing is read on the host; `mode` must cover every
    row. `changes`: of the rows' logits, before the temperature; the ids that are drawn are then counted in their slots.
    """
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    assert vocab > 1
    assert logits.stride(1) == 1
    assert out.shape == (rows,)
    assert all(column.shape == (rows,) and column.is_contiguous() for column in draws)
    assert scratch.maxima.shape[0] >= rows
    assert scratch.maxima.shape[1] == chunks, "scratch is for another vocabulary"
    if rows == 0:
        return
    change_args = _change_args(changes, rows)
    _chunk_kernel[(chunks, rows)](
        logits,
        logits.stride(0),
        vocab,
        *draws,
        *scratch[:6],
        *change_args,
        MODE=int(mode),
        CHANGED=changes is not None,
        CHUNK=CHUNK,
        SPAN=SPAN,
        num_warps=CHUNK_WARPS,
    )
    _combine_kernel[(rows,)](
        vocab,
        chunks,
        draws.temperature,
        draws.top_k,
        draws.top_p,
        draws.min_p,
        *scratch[:4],
        out,
        MODE=int(mode),
        CHUNKS=triton.next_power_of_2(chunks),
        num_warps=1,
    )
    if mode == Mode.FILTERED:
        _draw_filtered_rows(logits, draws, scratch, out, change_args, has_changes=changes is not None)
    if changes is not None:
        note_drawn(out, changes)


def _draw_filtered_rows(
    logits: torch.Tensor,
    draws: Draws,
    scratch: Scratch,
    out: torch.Tensor,
    change_args: tuple[object, ...],
    *,
    has_changes: bool,
) -> None:
    """Draw the rows with filters, after the chunks of all rows were put together."""
    vocab, chunks = logits.shape[1], scratch.maxima.shape[1]
    _filter_kernel[(len(logits),)](
        logits,
        logits.stride(0),
        vocab,
        chunks,
        *draws,
        scratch.maxima,
        scratch.sums,
        scratch.peaks,
        scratch.spans,
        scratch.values,
        scratch.ids,
        out,
        *change_args,
        CHANGED=has_changes,
        CHUNKS=triton.next_power_of_2(chunks),
        SPANS=CHUNK // SPAN,
        SPANS_MANY=_spans_many(vocab),
        SPAN=SPAN,
        BLOCK=CANDIDATES_MAX,
        SHIFT=0 if has_changes else EMPTY_BITS[logits.dtype],
        num_warps=FILTER_WARPS,
    )


def _change_args(changes: Changes | None, rows: int) -> tuple[object, ...]:
    """The kernels' arguments from `slots_ptr` to `words_stride`."""
    if changes is None:
        return (None,) * 9
    slots, mask_rows, tokens, settings, words = changes
    assert slots.shape == mask_rows.shape == (rows,)
    assert tokens.stride(1) == settings.stride(1) == words.stride(1) == 1
    numbers = settings.view(torch.float32)
    return (
        slots, mask_rows, tokens, tokens.stride(0), settings, numbers, settings.stride(0), words, words.stride(0)
    )  # fmt: skip


def _spans_many(vocab: int) -> int:
    """The number n of spans whose ids fill the candidates, if the likeliest ids are spread evenly over the row: n of s
    spans hold an id over a threshold when about −s · log(1 − n / s) ids are over it."""
    spans = vocab / SPAN
    return int(spans * (1 - math.exp(-0.9 * CANDIDATES_MAX / spans)))
