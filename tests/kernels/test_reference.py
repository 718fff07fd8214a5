"""The reference LoRA ops against the equation written out row by row, over odd shapes and adapter popularities."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.reference import LoraSegment, LoraTile, Rows, lora, lora_expand, lora_shrink

POPULARITIES = ["distinct", "uniform", "zipf", "identical"]


def popularity(name: str, rows: int, adapters: int, dice: random.Random) -> list[int | None]:
    """Which adapter each row has; about one row in four has none, but where all are identical."""
    if name == "identical":
        return [0] * rows
    if name == "distinct":
        return [row if row < adapters else None for row in range(rows)]
    weights = [1.0] * adapters if name == "uniform" else [1 / (1 + rank) ** 1.5 for rank in range(adapters)]
    drawn = dice.choices(range(adapters), weights, k=rows)
    return [adapter if dice.random() < 0.75 else None for adapter in drawn]


def random_tiles(rank: int, in_features: int, outs: list[int], tile_rank: int = 16) -> list[LoraTile]:
    """One adapter's tiles for modules stacked side by side; a module may have rank 0 by being left out."""
    tiles, column = [], 0
    for index, out in enumerate(outs):
        if not (rank % 2 and index == 1):  # adapters of odd rank lack the second module
            scale = 0.5 + index
            for first in range(0, rank, tile_rank):
                rows = min(tile_rank, rank - first)
                tiles.append(LoraTile(torch.randn(rows, in_features).t(), torch.randn(rows, out), scale, column))
        column += out
    return tiles


def as_rows(rows: list[int], contiguous: bool) -> Rows:
    return slice(rows[0], rows[-1] + 1) if contiguous else torch.tensor(rows)


def expected(x: torch.Tensor, y: torch.Tensor, segments: list[LoraSegment]) -> torch.Tensor:
    """The equation, in float64, a row and a tile at a time."""
    wanted = y.double()
    for rows, tiles in segments:
        for row in range(len(x))[rows] if isinstance(rows, slice) else rows.tolist():
            for tile in tiles:
                added = (x[row].double() @ tile.a.double()) @ tile.b.double() * tile.scale
                wanted[row, tile.column : tile.column + tile.b.shape[1]] += added
    return wanted


@pytest.mark.parametrize("name", POPULARITIES)
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(
    ("rows", "in_features", "outs"),
    [(1, 1, [1]), (2, 3, [5]), (7, 17, [31, 1, 13]), (33, 64, [64, 16, 16]), (129, 50, [75, 75])],
)
def test_lora_matches_the_equation(name: str, contiguous: bool, rows: int, in_features: int, outs: list[int]) -> None:
    dice = random.Random(f"{name}{contiguous}{rows}")
    torch.manual_seed(rows)
    ranks = [1, 8, 16, 17, 40, 3]
    adapters = [random_tiles(rank, in_features, outs) for rank in ranks]
    assigned = popularity(name, rows, len(adapters), dice)
    if contiguous:
        assigned.sort(key=lambda adapter: -1 if adapter is None else adapter)
    segments = []
    for index, tiles in enumerate(adapters):
        own = [row for row, adapter in enumerate(assigned) if adapter == index]
        if own:
            segments.append(LoraSegment(as_rows(own, contiguous), tiles))
    x, y = torch.randn(rows, in_features), torch.randn(rows, sum(outs))
    wanted = expected(x, y, segments)
    lora(x, y, segments)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)


def test_what_no_tile_covers_is_not_touched() -> None:
    """Rows without an adapter, and columns of modules that an adapter lacks, may hold anything: here NaN."""
    x = torch.randn(5, 8)
    y = torch.full((5, 12), torch.nan)
    y[1:3, 4:12] = 0.0
    tile = LoraTile(torch.randn(2, 8).t(), torch.randn(2, 8), 1.0, 4)
    lora(x, y, [LoraSegment(slice(1, 3), [tile])])
    assert y[1:3, 4:12].isfinite().all()
    assert y[0].isnan().all()
    assert y[3:].isnan().all()
    assert y[1:3, :4].isnan().all()
    y = torch.full((5, 12), torch.nan)
    y[[0, 4], 4:12] = 0.0
    lora(x, y, [LoraSegment(torch.tensor([0, 4]), [tile])])
    assert y[[0, 4], 4:12].isfinite().all()
    assert y[1:4].isnan().all()


def test_rows_of_one_segment_read_nothing_of_another() -> None:
    x = torch.full((4, 8), torch.nan)
    x[2] = 1.0
    y = torch.zeros(4, 8)
    lora(x, y, [LoraSegment(slice(2, 3), [LoraTile(torch.randn(2, 8).t(), torch.randn(2, 8), 1.0, 0)])])
    assert y.isfinite().all()


def test_nothing_to_do() -> None:
    x, y = torch.randn(3, 4), torch.full((3, 4), torch.nan)
    lora(x, y, [])
    lora(x, y, [LoraSegment(slice(0, 3), [])])
    tile = LoraTile(torch.randn(2, 4).t(), torch.randn(2, 4), 1.0, 0)
    lora(x, y, [LoraSegment(slice(1, 1), [tile]), LoraSegment(torch.tensor([], dtype=torch.int64), [tile])])
    assert y.isnan().all()
    empty = torch.empty(0, 4)
    lora(empty, empty, [LoraSegment(slice(0, 0), [tile])])


def test_y_may_be_a_view_with_other_strides() -> None:
    """A row range or a column range of a larger buffer, as a runner's workspace is."""
    torch.manual_seed(0)
    buffer = torch.zeros(6, 40)
    x = torch.randn(6, 8)[1:5]
    tile = LoraTile(torch.randn(3, 8).t(), torch.randn(3, 10), 2.0, 5)
    lora(x, buffer[1:5, 20:40], [LoraSegment(slice(1, 3), [tile])])
    wanted = torch.zeros(6, 40)
    wanted[2:4, 25:35] = 2.0 * x[1:3] @ tile.a @ tile.b
    torch.testing.assert_close(buffer, wanted)


def test_a_tile_beyond_y_is_our_mistake() -> None:
    tile = LoraTile(torch.randn(2, 4).t(), torch.randn(2, 4), 1.0, 1)
    with pytest.raises(AssertionError):
        lora(torch.randn(3, 4), torch.zeros(3, 4), [LoraSegment(slice(0, 3), [tile])])


def test_shrink_and_expand_alone() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), torch.zeros(3, 6)
    a, b = torch.randn(2, 4), torch.randn(2, 6)
    segments = [LoraSegment(slice(0, 2), [LoraTile(a.t(), b, 0.25, 0)])]
    ((h,),) = lora_shrink(x, segments)
    torch.testing.assert_close(h, x[:2] @ a.t())
    lora_expand(y, [[h]], segments)
    torch.testing.assert_close(y[:2], 0.25 * h @ b)
    assert not y[2].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 32, dtype=dtype), torch.zeros(4, 16, dtype=dtype)
    tile = LoraTile(torch.randn(8, 32, dtype=dtype).t(), torch.randn(8, 16, dtype=dtype), 0.5, 0)
    wanted = expected(x, y, [LoraSegment(slice(0, 4), [tile])])
    lora(x, y, [LoraSegment(slice(0, 4), [tile])])
    torch.testing.assert_close(y.double(), wanted, rtol=2e-2, atol=0.25)
