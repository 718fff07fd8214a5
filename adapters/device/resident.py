"""One adapter in the arena, as views of its tiles for operations that take tensors."""

from __future__ import annotations

import torch

from adapters.device.host_weights import AdapterLayout, tile
from adapters.files.spec import BaseShape
from kernels.reference import LoraTile

Places = list[tuple[int, int]]  # (page, offset in it) of each of an adapter's tiles, in the order of its slab


class ResidentAdapter:
    """The tiles of one adapter in the arena, as the operations use them."""

    def __init__(self, base: BaseShape, layout: AdapterLayout, places: Places, arena: torch.Tensor) -> None:
        """`places`: the arena page and offset of each of its tiles, in slab order."""
        self.places = places
        self._base = base
        self._layout = layout
        self._arena = arena
        self._tiles: dict[tuple[int, str], list[LoraTile]] | None = None  # views, made on first use: kernels need none
        # Filled on use: at most (layers x stacks of modules) entries.
        self._stacked: dict[tuple[int, tuple[str, ...]], tuple[LoraTile, ...]] = {}

    def tiles(self, layer: int, modules: tuple[str, ...]) -> tuple[LoraTile, ...]:
        """The tiles of modules that share one x and whose outputs are columns of one y, in this order."""
        key = (layer, modules)
        if key not in self._stacked:
            self._stacked[key] = tuple(self._stack(layer, modules))
        return self._stacked[key]

    def _stack(self, layer: int, modules: tuple[str, ...]) -> list[LoraTile]:
        found, column = [], 0
        for module in modules:
            found += [tile._replace(column=column) for tile in self._views().get((layer, module), ())]
            column += self._base.modules[module].out_features
        return found

    def _views(self) -> dict[tuple[int, str], list[LoraTile]]:
        if self._tiles is None:
            self._tiles = {}
            for cut, (page, offset) in zip(self._layout.cuts, self.places, strict=True):
                data = self._arena[page, offset : offset + cut.bytes]
                a, b = tile(data, cut, self._layout.dtype)
                key = cut.layer, cut.module
                self._tiles.setdefault(key, []).append(LoraTile(a.t(), b, self._layout.scales[key], 0))
        return self._tiles
