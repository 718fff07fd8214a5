"""One step's LoRA work: which rows belong to which adapter, built once and applied in every layer.

It knows rows and digests, no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from adapters.device.pool import TilePool
from adapters.device.resident import ResidentAdapter
from kernels.reference import LoraSegment, Rows, lora, lora_in_blocks

# One thread multiplies up to ONE_THREAD_ROWS_MAX rows: a tile takes microseconds, waking a second thread takes tens.
ONE_THREAD_ROWS_MAX = 64


class LoraBatch:
    """Adds each adapter's low-rank product to its own rows. A batch without adapters does nothing and costs nothing."""

    def __init__(
        self,
        pool: TilePool,
        runs: Iterable[tuple[str | None, int]],
        device: torch.device | None = None,
        *,
        rows_per_product: int | None = None,
    ) -> None:
        """`runs`: (digest of a resident adapter or None, number of rows), in the order of the batch's rows.
        Contiguous rows of one adapter are read in place, others are gathered. `rows_per_product`: each product is of so
        many rows, as `lora_in_blocks` says."""
        self._rows_per_product = rows_per_product
        self._segments: list[tuple[Rows, ResidentAdapter]] = []
        self._most_rows = 0  # of one adapter
        ranges: dict[str, list[tuple[int, int]]] = {}
        position = 0
        for digest, count in runs:
            start, position = position, position + count
            if digest is None or not count:
                continue
            own = ranges.setdefault(digest, [])
            if own and own[-1][1] == start:
                own[-1] = (own[-1][0], position)
            else:
                own.append((start, position))
        for digest, own in ranges.items():
            self._segments.append((_rows(own, device), pool.use(digest)))
            self._most_rows = max(self._most_rows, sum(stop - start for start, stop in own))

    def __bool__(self) -> bool:
        """Whether any row has an adapter."""
        return bool(self._segments)

    def apply(self, layer: int, module: str, x: torch.Tensor, y: torch.Tensor) -> None:
        """y[rows of a] += scale_a · (x[rows of a] · A_aᵀ) · B_aᵀ, in place, for every adapter a.

        x [tokens, in], y [tokens, out], both of the pool's dtype.
        """
        self.apply_stacked(layer, (module,), x, y)

    def apply_stacked(self, layer: int, modules: tuple[str, ...], x: torch.Tensor, y: torch.Tensor) -> None:
        """The same for modules that share x and whose outputs are columns of y, in the order of `modules`."""
        if not self._segments:
            return
        found = [LoraSegment(rows, adapter.tiles(layer, modules)) for rows, adapter in self._segments]
        with cpu_threads(1 if self._most_rows <= ONE_THREAD_ROWS_MAX else None):
            segments = [segment for segment in found if segment.tiles]
            if self._rows_per_product is None:
                lora(x, y, segments)
            else:
                lora_in_blocks(x, y, segments, self._rows_per_product)


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Run the block with `count` threads of CPU arithmetic; None: with all of them. The change takes 0.1 µs."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(ranges: list[tuple[int, int]], device: torch.device | None) -> Rows:
    if len(ranges) == 1:
        return slice(*ranges[0])
    return torch.cat([torch.arange(start, stop, device=device) for start, stop in ranges])
