"""One id per row of logits: greedy, or drawn after temperature, min-p, top-k and top-p, on the device throughout.

Ids race, as in Gumbel's trick: each has an exponential time of its own, a function of the row's (seed, choice,
position) and the id alone, divided by its probability; the first wins. It knows rows, no requests.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
import triton
import triton.language as tl

# A program looks at so many ids at once.
CHUNK = 4096
# Rows with filters gather the likeliest first; one that needs more than these looks at its whole row again and again.
CANDIDATES_MAX = 4096
# How often a row's candidates are counted before their threshold is taken as it is.
NARROWINGS_MAX = tl.constexpr(10)
# Ids as many powers of two below the likeliest never win: a time is at least 2⁻⁵³, the likeliest's at most 37.
HOPELESS = tl.constexpr(60.0)
# The first guess of where the candidates end.
FIRST_GUESS = tl.constexpr(12.0)
LOG2_E = tl.constexpr(1.4426950408889634)
# Beyond these a temperature changes nothing, but overflows.
TEMPERATURE_MIN, TEMPERATURE_MAX = tl.constexpr(1e-30), tl.constexpr(1e30)


class Mode(IntEnum):
    """What the rows of a launch may ask for: each includes what stands before it, and costs more."""

    GREEDY = 0  # every row's likeliest id, whatever its temperature
    PLAIN = 1  # temperature
    FILTERED = 2  # min-p, top-k and top-p


class Draws(NamedTuple):
    """How each row is drawn, all [rows] and contiguous: `engine.protocol.Sampling` as tensors."""

    temperature: torch.Tensor  # float32; 0: the likeliest, of equals the lowest id
    seed: torch.Tensor  # int64
    choice: torch.Tensor  # int32
    position: torch.Tensor  # int32, the index that the id will have in its sequence
    top_k: torch.Tensor  # int32; 0: off
    top_p: torch.Tensor  # float32; 1: off
    min_p: torch.Tensor  # float32; 0: off


class Scratch(NamedTuple):
    """What one launch leaves to the next; at fixed addresses, so that both may be captured."""

    maxima: torch.Tensor  # [rows, chunks] float32; NaN where the chunk holds one
    firsts: torch.Tensor  # [rows, chunks] int32, the lowest id of the maximum
    times: torch.Tensor  # [rows, chunks] float32, the winner's, as if the chunk's maximum were the row's
    winners: torch.Tensor  # [rows, chunks] int32
    sums: torch.Tensor  # [rows, chunks] float32, Σ exp((x − the chunk's maximum) / temperature)
    values: torch.Tensor  # [rows, CANDIDATES_MAX] float32
    ids: torch.Tensor  # [rows, CANDIDATES_MAX] int32


def new_scratch(rows: int, vocab: int, device: torch.device | str) -> Scratch:
    """For launches of at most `rows` rows of `vocab` logits."""
    chunks = triton.cdiv(vocab, CHUNK)
    sizes = [chunks] * 5 + [CANDIDATES_MAX] * 2
    dtypes = (torch.float32, torch.int32, torch.float32, torch.int32, torch.float32, torch.float32, torch.int32)
    return Scratch(
        *(torch.empty(rows, size, dtype=dtype, device=device) for size, dtype in zip(sizes, dtypes, strict=True))
    )


@triton.jit
def _row_key(seed_ptr, choice_ptr, position_ptr, row):
    """64 random bits: Philox4x32-10 keyed by the seed, counting (position, choice)."""
    position = tl.load(position_ptr + row)
    choice = tl.load(choice_ptr + row)
    high, low, _, _ = tl.philox(tl.load(seed_ptr + row), position, position * 0, choice, choice * 0)
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _exponentials(key, ids):
    """Exponentially distributed times of `ids`, float32 over 0: −log of a uniform number of 52 bits from SplitMix64.

    Small times decide, and those are near 1's logarithm: the distance from 1 is taken before the rounding."""
    z = key + (ids + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    near_one = (z >> 63) != 0
    z = z ^ (z.to(tl.int64, bitcast=True) >> 63).to(tl.uint64, bitcast=True)  # where near 1: all bits flipped
    z = (z & 0xFFFFFFFFFFFFF000) | 0x800  # 52 bits and a half: never 0 and never 1
    high, low = (z >> 32).to(tl.uint32), z.to(tl.uint32)
    # The number, or its distance from 1: within (0, 0.5].
    part = high.to(tl.float32) * 2.3283064365386963e-10 + low.to(tl.float32) * 5.421010862427522e-20
    time = tl.log2(tl.where(near_one, 1.0 - part, part)) * -0.6931471805599453
    # Close to 1 the logarithm loses its digits: −log(1 − x) = x + x²/2 + x³/3 + …
    series = 0.25 + part * (0.2 + part * 0.16666667)
    series = part + part * part * (0.5 + part * (0.33333334 + part * series))
    return tl.where(near_one & (part < 0.0625), series, time)


@triton.jit
def _scale(temperature):
    """Logits times this are logarithms to base 2."""
    return LOG2_E / tl.minimum(tl.maximum(temperature, TEMPERATURE_MIN), TEMPERATURE_MAX)


@triton.jit
def _finite(x):
    """Zero for an infinity: nothing is subtracted from infinities alone."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def _winner(times, ids):
    """(time, id) of the first of the race; the lowest id of those that tie."""
    first = tl.min(times)
    return first, tl.min(tl.where(times == first, ids, 0x7FFFFFFF))


@triton.jit
def _race(key, ids, exponents):
    """(time, id) of the first of `ids`, whose weights are 2 to the power of `exponents`, at most 0. The likeliest's
    time is at most 37, so that one cut off at 2¹⁰⁰ never wins."""
    times = _exponentials(key, ids) * tl.exp2(tl.minimum(-exponents, 100.0))
    return _winner(tl.where(exponents > -float("inf"), times, float("inf")), ids)


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
    MODE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One chunk of one row: its maximum; its race, or, where filters come first, its sum."""
    row = tl.program_id(1).to(tl.int64)
    place = row * tl.num_programs(0) + tl.program_id(0)
    ids = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits_ptr + row * logits_stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    holds_nan = tl.max((x != x).to(tl.int32)) != 0
    x = tl.where(x == x, x, -float("inf"))
    largest = tl.max(x)
    tl.store(maxima_ptr + place, tl.where(holds_nan, float("nan"), largest))
    tl.store(firsts_ptr + place, tl.min(tl.where(x == largest, ids, 0x7FFFFFFF)))
    if MODE > 0:
        temperature = tl.load(temperature_ptr + row)
        if temperature > 0.0:
            exponents = (x - _finite(largest)) * _scale(temperature)
            if MODE > 1:
                top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
                if _is_narrowed(top_k, top_p, min_p, vocab):
                    tl.store(sums_ptr + place, tl.sum(tl.exp2(exponents)))
                else:
                    time, winner = _race(_row_key(seed_ptr, choice_ptr, position_ptr, row), ids, exponents)
                    tl.store(times_ptr + place, time)
                    tl.store(winners_ptr + place, winner)
            else:
                time, winner = _race(_row_key(seed_ptr, choice_ptr, position_ptr, row), ids, exponents)
                tl.store(times_ptr + place, time)
                tl.store(winners_ptr + place, winner)


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
    """One row's chunks put together. What it writes for a row with filters counts only where no id can be drawn."""
    row = tl.program_id(0).to(tl.int64)
    maxima, largest, usable = _chunk_maxima(maxima_ptr, row, chunks, CHUNKS)
    chunk = tl.arange(0, CHUNKS)
    place = row * chunks + chunk
    firsts = tl.load(firsts_ptr + place, mask=chunk < chunks, other=0x7FFFFFFF)
    chosen = tl.min(tl.where(maxima == largest, firsts, 0x7FFFFFFF))
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
            _, chosen = _winner(times * tl.exp2(tl.minimum(behind, 100.0)), winners)
    tl.store(out_ptr + row, tl.where(usable, chosen, -1))


@triton.jit
def _ordered(x):
    """float32 as integers in the same order. Both zeros are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _tile(values_ptr, start, count, largest, scale, min_p, BLOCK: tl.constexpr):
    """Ordered values and weights, relative to the likeliest's, of values [start, start + BLOCK); and which of them
    min-p leaves."""
    index = start + tl.arange(0, BLOCK)
    x = tl.load(values_ptr + index, mask=index < count, other=-float("inf")).to(tl.float32)
    weights = tl.exp2((x - largest) * scale)
    return _ordered(x), weights, (index < count) & (weights >= min_p)


@triton.jit
def _measure(values_ptr, count, threshold, largest, scale, min_p, BLOCK: tl.constexpr):
    """(How many values that min-p leaves are at least `threshold`, in order; the sum of their weights.)"""
    counts = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        keys, weights, near = _tile(values_ptr, start, count, largest, scale, min_p, BLOCK)
        taken = near & (keys >= threshold.to(tl.int32))
        counts += taken.to(tl.int32)
        sums += tl.where(taken, weights, 0.0)
    return tl.sum(counts), tl.sum(sums)


@triton.jit
def _search(values_ptr, count, low, high, wanted, BY_COUNT: tl.constexpr, largest, scale, min_p, BLOCK: tl.constexpr):
    """The largest key within [low, high) from which on there are `wanted` values, or weights that sum to as much; `low`
    if there is none."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        number, total = _measure(values_ptr, count, middle, largest, scale, min_p, BLOCK)
        if BY_COUNT:
            enough = number >= wanted
        else:
            enough = total >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _narrow(values_ptr, count, top_k, enough, largest, scale, min_p, BLOCK: tl.constexpr):
    """(A threshold, how many values are at least that): all that can be drawn, and, where a few guesses find such a
    threshold, no more than CANDIDATES_MAX."""
    low = largest - HOPELESS / scale
    guess = largest - FIRST_GUESS / scale
    high = largest
    number = count
    tries = 0
    while (number > BLOCK) & (tries < NARROWINGS_MAX):
        found, total = _measure(values_ptr, count, _ordered(guess), largest, scale, min_p, BLOCK)
        sufficient = tl.where(top_k > 0, found >= top_k, total >= enough)
        low = tl.where(sufficient, guess, low)
        number = tl.where(sufficient, found, number)
        high = tl.where(sufficient, high, guess)
        guess = low + (high - low) * 0.5
        tries += 1
    return low, number


@triton.jit
def _compact(values_ptr, count, threshold, largest, scale, min_p, out_ptr, out_ids_ptr, BLOCK: tl.constexpr):
    """Copies the values that min-p leaves and that are at least `threshold`, and their ids, in order; how many."""
    written = 0
    for start in range(0, count, BLOCK):
        keys, _, near = _tile(values_ptr, start, count, largest, scale, min_p, BLOCK)
        taken = (near & (keys >= threshold)).to(tl.int32)
        place = written + tl.cumsum(taken) - taken
        index = start + tl.arange(0, BLOCK)
        x = tl.load(values_ptr + index, mask=index < count, other=0.0).to(tl.float32)
        tl.store(out_ptr + place, x, mask=taken != 0)
        tl.store(out_ids_ptr + place, index, mask=taken != 0)
        written += tl.sum(taken)
    return written


@triton.jit
def _draw(
    values_ptr, ids_ptr, count, low, top_k, top_p, total, largest, scale, min_p, key, BLOCK: tl.constexpr
):  # fmt: skip
    """The id that wins among the values at least `low`, after min-p, top-k and top-p. `ids_ptr` None: a value's index.

    What stays is all above a cut, and of those equal to it the first few."""
    high = _ordered(largest).to(tl.int64) + 1
    cut = low.to(tl.int64)
    equals = count  # how many of the equal to the cut stay
    if top_k > 0:
        number, total_above = _measure(values_ptr, count, cut, largest, scale, min_p, BLOCK)
        total = total_above
        if number > top_k:
            cut = _search(values_ptr, count, cut, high, top_k, True, largest, scale, min_p, BLOCK)
            above, total_above = _measure(values_ptr, count, cut + 1, largest, scale, min_p, BLOCK)
            equals = top_k - above
            total = total_above + equals * _weight(cut, largest, scale)
    if top_p < 1.0:
        wanted = top_p * total
        nucleus = _search(values_ptr, count, cut, high, wanted, False, largest, scale, min_p, BLOCK)
        _, total_above = _measure(values_ptr, count, nucleus + 1, largest, scale, min_p, BLOCK)
        few = tl.ceil((wanted - total_above) / tl.maximum(_weight(nucleus, largest, scale), 1e-30))
        few = tl.minimum(tl.maximum(few, 1.0), 1e9).to(tl.int32)
        equals = tl.where(nucleus > cut, few, tl.minimum(few, equals))
        cut = nucleus
    best_time, best_id = float("inf"), 0x7FFFFFFF
    seen = 0
    for start in range(0, count, BLOCK):
        keys, weights, near = _tile(values_ptr, start, count, largest, scale, min_p, BLOCK)
        tied = (near & (keys == cut)).to(tl.int32)
        rank = seen + tl.cumsum(tied)
        seen += tl.sum(tied)
        stays = near & ((keys > cut) | ((tied != 0) & (rank <= equals)))
        if tl.max(stays.to(tl.int32)) != 0:
            index = start + tl.arange(0, BLOCK)
            if ids_ptr is None:
                ids = index
            else:
                ids = tl.load(ids_ptr + index, mask=index < count, other=0)
            times = _exponentials(key, ids) / tl.maximum(weights, 1e-30)
            time, winner = _winner(tl.where(stays, times, float("inf")), ids)
            best_id = tl.where(time < best_time, winner, best_id)
            best_time = tl.minimum(time, best_time)
    return best_id


@triton.jit
def _weight(key, largest, scale):
    key = key.to(tl.int32)
    x = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.exp2((x - largest) * scale)


@triton.jit
def _filtered(
    row_ptr, vocab, total, top_k, top_p, min_p, largest, scale, key, values_ptr, ids_ptr, BLOCK: tl.constexpr
):  # fmt: skip
    """The id of a row with filters: drawn from candidates, which are gathered; or, where these are too many, from the
    row itself."""
    near = vocab
    if min_p > 0.0:
        near, total = _measure(row_ptr, vocab, tl.full((), -0x7FFFFFFF, tl.int32), largest, scale, min_p, BLOCK)
    top_k = tl.where((top_k > 0) & (top_k < near), top_k, 0)
    threshold, number = _narrow(row_ptr, vocab, top_k, tl.minimum(top_p, 1.0) * total, largest, scale, min_p, BLOCK)
    low = _ordered(threshold)
    if number <= BLOCK:
        number = _compact(row_ptr, vocab, low, largest, scale, min_p, values_ptr, ids_ptr, BLOCK)
        tl.debug_barrier()  # other threads of this program read what was written
        chosen = _draw(
            values_ptr, ids_ptr, number, low, top_k, top_p, total, largest, scale, min_p, key, BLOCK
        )  # fmt: skip
    else:
        chosen = _draw(row_ptr, None, vocab, low, top_k, top_p, total, largest, scale, min_p, key, BLOCK)
    return chosen


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
    values_ptr,
    ids_ptr,
    out_ptr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: drawn from what its filters leave, if it has any."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    maxima, largest, usable = _chunk_maxima(maxima_ptr, row, chunks, CHUNKS)
    if usable & (temperature > 0.0) & _is_narrowed(top_k, top_p, min_p, vocab):
        scale = _scale(temperature)
        chunk = tl.arange(0, CHUNKS)
        sums = tl.load(sums_ptr + row * chunks + chunk, mask=chunk < chunks, other=0.0)
        chosen = _filtered(
            logits_ptr + row * logits_stride,
            vocab,
            tl.sum(sums * tl.exp2((maxima - largest) * scale)),
            top_k,
            top_p,
            min_p,
            largest,
            scale,
            _row_key(seed_ptr, choice_ptr, position_ptr, row),
            values_ptr + row * BLOCK,
            ids_ptr + row * BLOCK,
            BLOCK,
        )
        tl.store(out_ptr + row, chosen)


def sample(logits: torch.Tensor, draws: Draws, scratch: Scratch, out: torch.Tensor, *, mode: Mode) -> None:
    """out[r] = an id drawn from logits[r] as row r of `draws` says; -1 where a row's logits hold a NaN or an infinity
    upwards, or nothing else than infinities downwards.

    `logits` [rows, vocab] of any float dtype, contiguous within a row; `out` [rows] int32 or int64; `scratch` of at
    least as many rows, as `new_scratch` makes it. min-p keeps what is at least min_p times as likely as the likeliest;
    of these, top-k keeps the k likeliest; of these, top-p keeps the fewest whose share of their sum is at least top_p;
    among equals at the edge the lowest ids stay. Nothing is read on the host; `mode` must cover every row."""
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    assert logits.stride(1) == 1
    assert out.shape == (rows,)
    assert all(column.shape == (rows,) and column.is_contiguous() for column in draws)
    assert scratch.maxima.shape[0] >= rows
    assert scratch.maxima.shape[1] == chunks, "scratch is for another vocabulary"
    if rows == 0:
        return
    maxima, firsts, times, winners, sums, values, ids = scratch
    _chunk_kernel[(chunks, rows)](
        logits,
        logits.stride(0),
        vocab,
        *draws,
        maxima,
        firsts,
        times,
        winners,
        sums,
        MODE=int(mode),
        CHUNK=CHUNK,
        num_warps=8,
    )
    width = triton.next_power_of_2(chunks)
    _combine_kernel[(rows,)](
        vocab,
        chunks,
        draws.temperature,
        draws.top_k,
        draws.top_p,
        draws.min_p,
        maxima,
        firsts,
        times,
        winners,
        out,
        MODE=int(mode),
        CHUNKS=width,
        num_warps=1,
    )
    if mode == Mode.FILTERED:
        _filter_kernel[(rows,)](
            logits,
            logits.stride(0),
            vocab,
            chunks,
            *draws,
            maxima,
            sums,
            values,
            ids,
            out,
            CHUNKS=width,
            BLOCK=CANDIDATES_MAX,
            num_warps=16,
        )
