"""The draw from one row of logits after min-p, top-k and top-p, by one program.

Nothing is sorted: a cut is sought by halving the interval of ordered values in which it must lie, among candidates
gathered from the spans of the row whose maxima are high. Device functions only.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.changes import changed
from kernels.race import exponentials, winner_of

# Rows with filters gather the likeliest ids first: the ids of SPANS_FEW spans, then of SPANS_MANY; a row that needs
# more candidates than fit reads all its ids repeatedly.
SPANS_FEW = tl.constexpr(256)
# Ids as many powers of two below the likeliest never win: a time is at least 2⁻⁵³, the likeliest's at most 37.
HOPELESS = tl.constexpr(60.0)


@triton.jit
def ordered(x, SHIFT: tl.constexpr):
    """float32 as integers in the same order, without the `SHIFT` bits that the logits' dtype leaves empty. Both zeros
    are one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _weight(key, largest, scale, SHIFT: tl.constexpr):
    """The weight of an id whose sort key is `key`."""
    key = key.to(tl.int32)
    bits = (key << SHIFT) | ((key >> 31) & ((1 << SHIFT) - 1))
    x = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.exp2((x - largest) * scale)


@triton.jit
def _tile(values_ptr, start, count, largest, scale, min_p, change, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """(sort keys, weights relative to the likeliest's, whether min-p leaves them) of BLOCK values from `start` on."""
    index = start + tl.arange(0, BLOCK)
    x = tl.load(values_ptr + index, mask=index < count, other=-float("inf")).to(tl.float32)
    if change is not None:
        x = changed(x, index, index < count, change)
    weights = tl.exp2((x - largest) * scale)
    return ordered(x, SHIFT), weights, (index < count) & (weights >= min_p)


@triton.jit
def _measure(values_ptr, count, threshold, largest, scale, min_p, change, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """(number of values that min-p leaves and whose sort key is at least `threshold`, sum of their weights)"""
    counts = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        keys, weights, near = _tile(values_ptr, start, count, largest, scale, min_p, change, BLOCK, SHIFT)
        taken = near & (keys >= threshold.to(tl.int32))
        counts += taken.to(tl.int32)
        sums += tl.where(taken, weights, 0.0)
    return tl.sum(counts), tl.sum(sums)


@triton.jit
def _search(
    values_ptr,
    count,
    low,
    high,
    wanted,
    BY_COUNT: tl.constexpr,
    largest,
    scale,
    min_p,
    change,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The largest key within [low, high) from which on there are `wanted` values, or weights that sum to as much; `low`
    if no such key exists."""
    while high - low > 1:
        middle = (low + high) >> 1
        number, total = _measure(values_ptr, count, middle, largest, scale, min_p, change, BLOCK, SHIFT)
        if BY_COUNT:
            enough = number >= wanted
        else:
            enough = total >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _draw(
    values_ptr,
    ids_ptr,  # None: a value's id is its index
    count,
    low,
    top_k,
    top_p,
    total,
    largest,
    scale,
    min_p,
    key,
    change,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The id that wins among the values that are, in order, at least `low`, after min-p, top-k and top-p; `total` is
    the sum of the weights that min-p leaves.

    All ids above a cut remain, and of the ids equal to it the first few."""
    high = ordered(largest, SHIFT).to(tl.int64) + 1
    cut = low
    equals = count
    if top_k > 0:
        number, total = _measure(values_ptr, count, cut, largest, scale, min_p, change, BLOCK, SHIFT)
        if number > top_k:
            cut = _search(values_ptr, count, cut, high, top_k, True, largest, scale, min_p, change, BLOCK, SHIFT)
            above, total = _measure(values_ptr, count, cut + 1, largest, scale, min_p, change, BLOCK, SHIFT)
            equals = top_k - above
            total += equals * _weight(cut, largest, scale, SHIFT)
    if top_p < 1.0:
        wanted = top_p * total
        nucleus = _search(values_ptr, count, cut, high, wanted, False, largest, scale, min_p, change, BLOCK, SHIFT)
        _, above_sum = _measure(values_ptr, count, nucleus + 1, largest, scale, min_p, change, BLOCK, SHIFT)
        few = tl.ceil((wanted - above_sum) / tl.maximum(_weight(nucleus, largest, scale, SHIFT), 1e-30))
        few = tl.minimum(tl.maximum(few, 1.0), 1e9).to(tl.int32)
        equals = tl.where(nucleus > cut, few, tl.minimum(few, equals))
        cut = nucleus
    best_time, best_id = float("inf"), 0x7FFFFFFF
    seen = 0
    for start in range(0, count, BLOCK):
        keys, weights, near = _tile(values_ptr, start, count, largest, scale, min_p, change, BLOCK, SHIFT)
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
            times = exponentials(key, ids) / tl.maximum(weights, 1e-30)
            time, winner = winner_of(tl.where(stays, times, float("inf")), ids)
            best_id = tl.where(time < best_time, winner, best_id)
            best_time = tl.minimum(time, best_time)
    return best_id


@triton.jit
def _span_threshold(peaks, low, high, spans_max):
    """The least key within [low, high] that at most `spans_max` of `peaks` reach; none reaches `high`."""
    low = low - 1
    while high - low > 1:
        middle = (low + high) >> 1
        few = tl.sum((peaks >= middle.to(tl.int32)).to(tl.int32)) <= spans_max
        low = tl.where(few, low, middle)
        high = tl.where(few, middle, high)
    return high


@triton.jit
def _gather(
    row_ptr,
    vocab,
    peaks,
    threshold,
    largest,
    scale,
    min_p,
    change,
    spans_ptr,
    values_ptr,
    ids_ptr,
    PEAKS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Copies the values that min-p leaves and that reach `threshold`, with their ids, in order, as long as there is
    space. Returns the number of such values."""
    reached = (peaks >= threshold.to(tl.int32)).to(tl.int32)
    tl.store(spans_ptr + tl.cumsum(reached) - reached, tl.arange(0, PEAKS), mask=reached != 0)
    slots = tl.sum(reached) * SPAN
    tl.debug_barrier()  # other threads of this program read the written values
    found = 0
    for start in range(0, slots, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        ids = tl.load(spans_ptr + slot // SPAN, mask=slot < slots, other=0) * SPAN + slot % SPAN
        within = (slot < slots) & (ids < vocab)
        x = tl.load(row_ptr + ids, mask=within, other=-float("inf")).to(tl.float32)
        if change is not None:
            x = changed(x, ids, within, change)
        near = within & (tl.exp2((x - largest) * scale) >= min_p)
        taken = (near & (ordered(x, SHIFT) >= threshold.to(tl.int32))).to(tl.int32)
        place = found + tl.cumsum(taken) - taken
        tl.store(values_ptr + place, x, mask=(taken != 0) & (place < BLOCK))
        tl.store(ids_ptr + place, ids, mask=(taken != 0) & (place < BLOCK))
        found += tl.sum(taken)
    tl.debug_barrier()
    return found


@triton.jit
def draw_filtered(
    row_ptr,
    vocab,
    total,
    top_k,
    top_p,
    min_p,
    largest,
    scale,
    key,
    change,
    peaks,
    spans_ptr,
    values_ptr,
    ids_ptr,
    SPANS_MANY: tl.constexpr,
    PEAKS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The id of a row with filters: drawn from candidates that are gathered; or, where too many are needed, from the
    row itself. `total` is the sum of all weights; `change`: `row_changes` of the row's logits, or None."""
    high = ordered(largest, SHIFT).to(tl.int64) + 1
    bottom = ordered(largest - HOPELESS / scale, SHIFT).to(tl.int64)
    chosen = -1
    spans_max = SPANS_FEW + 0
    while spans_max > 0:
        threshold = _span_threshold(peaks, bottom, high, spans_max)
        number = _gather(
            row_ptr, vocab, peaks, threshold, largest, scale, min_p, change, spans_ptr, values_ptr,
            ids_ptr, PEAKS, SPAN, BLOCK, SHIFT,
        )  # fmt: skip
        _, mass = _measure(
            values_ptr, tl.minimum(number, BLOCK), threshold, largest, scale, min_p, None, BLOCK, SHIFT
        )  # fmt: skip
        # All ids that min-p leaves are gathered; or top-k's; or top-p's, whose sum is known if min-p removes no id.
        complete = (threshold <= bottom) | (_weight(threshold, largest, scale, SHIFT) <= min_p)
        enough = tl.where(top_k > 0, number >= top_k, (min_p == 0.0) & (top_p < 1.0) & (mass >= top_p * total))
        if (number <= BLOCK) & (complete | enough):
            chosen = _draw(
                values_ptr, ids_ptr, number, threshold, top_k, top_p, tl.where(complete, mass, total),
                largest, scale, min_p, key, None, BLOCK, SHIFT,
            )  # fmt: skip
            spans_max = 0
        else:
            spans_max = tl.where(spans_max < SPANS_MANY, SPANS_MANY, 0)
    if chosen < 0:
        _, mass = _measure(row_ptr, vocab, bottom, largest, scale, min_p, change, BLOCK, SHIFT)
        chosen = _draw(
            row_ptr, None, vocab, bottom, top_k, top_p, mass, largest, scale, min_p, key, change, BLOCK, SHIFT
        )  # fmt: skip
    return chosen
