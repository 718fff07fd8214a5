"""The race that draws an id: each id has an exponential time, a function of the row's (seed, choice, position) and the
id alone, divided by its probability; the first wins (Gumbel's trick). The same numbers as `reference_sample`'s.

Device functions only.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_key(seed_ptr, choice_ptr, position_ptr, row):
    """64 random bits: Philox4x32-10 keyed by the seed, counting (position, choice)."""
    position = tl.load(position_ptr + row)
    choice = tl.load(choice_ptr + row)
    high, low, _, _ = tl.philox(tl.load(seed_ptr + row), position, position * 0, choice, choice * 0)
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def exponentials(key, ids):
    """Exponentially distributed times of `ids`, float32 over 0: −log of a uniform number of 52 bits from SplitMix64.

    Small times decide the race, and they are logarithms of numbers near 1: the distance from 1 is computed before the
    rounding."""
    z = (key + 0x9E3779B97F4A7C15) + ids.to(tl.uint64) * 0x9E3779B97F4A7C15
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
def winner_of(times, ids):
    """(time, id) of the earliest; of equal times, the lowest id."""
    first = tl.min(times)
    return first, tl.min(tl.where(times == first, ids, 0x7FFFFFFF))
