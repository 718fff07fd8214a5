"""One step's LoRA work for the device: which rows belong to which adapter, as the numbers that the kernels read.

It knows rows and digests, no requests.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from adapters.device.pool import TilePool
from kernels.lora_work import Range, WorkLayout


def write_work(
    pool: TilePool,
    runs: Iterable[tuple[str | None, int]],
    layout: WorkLayout,
    work: npt.NDArray[np.int32],
    adapted: npt.NDArray[np.int32],
) -> bool:
    """Whether any row has an adapter. Writes `work` int32 [layout.size] (view it on the device with `layout.view`) and
    `adapted` int32 [rows or more]: 1 for a row that has an adapter, else 0.

    `runs`: (digest of a resident adapter or None, number of rows), in the order of the batch's rows; runs of one
    adapter need not be neighbours, but cost less when they are. Each adapter becomes the most recently used.
    """
    assert pool.rows is not None
    merged: list[tuple[str, int, int]] = []  # digest, first row, end row
    before: str | None = None
    start = stop = 0
    for digest, rows in runs:
        if rows and digest != before:
            if before is not None:
                merged.append((before, start, stop))
            before, start = digest, stop
        stop += rows
    if before is not None:
        merged.append((before, start, stop))
    adapted[:] = 0
    ranges = []
    for digest, first, last in merged:
        pool.use(digest)
        row, tiles = pool.rows.find(digest)
        ranges.append(Range(row, first, last - first, tiles))
        adapted[first:last] = 1
    layout.plan(ranges, work)
    return bool(ranges)
