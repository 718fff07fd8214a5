"""Quantiles of many durations in little space: DDSketch, as C. Masson, J. E. Rim and H. K. Lee describe it
("DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", PVLDB 12(12), 2019).

A duration of x seconds is counted in the bucket ⌈log x ÷ log γ⌉, γ = (1 + ACCURACY) ÷ (1 − ACCURACY), and a bucket is
read as the value whose relative error is ACCURACY at both of its ends. Sums of counts are the sketch of all their
durations, so sketches of quarter-hours are merged to days without a further error. From a microsecond to a day there
are 1,260 buckets, so buckets are never merged.
"""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec

ACCURACY = 0.01
GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
SHORTEST_S = 1e-6  # shorter durations are counted as 0

_LOG = math.log(GAMMA)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, dict[int, int]]).decode


class DurationSketch:
    """Counts of durations by bucket. Quantiles have a relative error of at most ACCURACY."""

    __slots__ = ("_counts", "_zeros")

    def __init__(self) -> None:
        self._zeros = 0
        self._counts: defaultdict[int, int] = defaultdict(int)

    def count_duration(self, seconds: float) -> None:
        if seconds < SHORTEST_S:
            self._zeros += 1
            return
        bucket = math.ceil(math.log(seconds) / _LOG)
        self._counts[bucket] += 1

    def merge_encoded(self, data: bytes | None) -> None:
        """Add the counts of a sketch that `encoded` gave; None: an empty one. Raises msgspec.DecodeError."""
        if data is None:
            return
        zeros, counts = _decode(data)
        self._zeros += zeros
        mine = self._counts
        for bucket, count in counts.items():
            mine[bucket] += count

    def merge_sketch(self, other: DurationSketch) -> None:
        """Add the counts of another sketch."""
        self._zeros += other._zeros
        for bucket, count in other._counts.items():
            self._counts[bucket] += count

    def encoded(self) -> bytes | None:
        """Some three bytes for each bucket in use; None for an empty sketch."""
        return _encode((self._zeros, self._counts)) if self._zeros or self._counts else None

    def quantile_s(self, part: float) -> float | None:
        """The duration with the rank ⌈`part` · n⌉ of n (0 < `part` ≤ 1), in seconds; None without durations."""
        left = math.ceil(part * (self._zeros + sum(self._counts.values()))) - self._zeros
        if left <= 0:
            return 0.0 if self._zeros else None
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return float(2 * GAMMA**bucket / (GAMMA + 1))
        raise AssertionError("the counts add up to n")
