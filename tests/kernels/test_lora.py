"""The LoRA kernels against the reference: popularities, mixed ranks, odd shapes, missing modules, poisoned outputs.

In Triton's interpreter a sample of the matrix runs, on a GPU all of it, in bfloat16 and float16.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernels.lora_work import (
    DECODE_BLOCK_ROWS,
    PREFILL_BLOCK_ROWS,
    SPLITS_MAX,
    TILE_ALIGN_BYTES,
    TILE_RANK,
    LoraScratch,
    LoraWork,
    Range,
    Stack,
    TileTable,
    WorkLayout,
    pack_entry,
)
from kernels.reference_lora import lora_tiled

pytest.importorskip("triton")

from kernels.lora import lora

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
# The interpreter's products of bfloat16 are wrong, so it runs the other two.
DTYPES = [torch.bfloat16, torch.float16] if GPU else [torch.float32, torch.float16]
# Of the largest number of the expected y: h is rounded to the dtype between the products, then y is.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

LAYERS = 3
MODULES = 7
RANKS = [1, 8, 16, 17, 40, 3, 64, 256, 32, 5]
POPULARITIES = ["distinct", "uniform", "zipf", "identical"]
# (inner size, outputs of the stacked modules), odd and even; the last is as wide as two blocks of either kernel.
SHAPES = [(1, (1,)), (17, (31, 1, 13)), (64, (64, 16, 16)), (50, (75, 75)), (40, (24,)), (1040, (1040, 520))]
ROWS = [1, 2, 15, 16, 17, 33, 65, 130]
SEED = 20261121
SAMPLED = 24


@dataclass(frozen=True)
class Case:
    popularity: str
    rows: int
    in_features: int
    outs: tuple[int, ...]
    block_rows: int
    dtype: torch.dtype
    add: bool

    def __str__(self) -> str:
        shape = f"{self.in_features}x{'+'.join(map(str, self.outs))}"
        return f"{self.popularity}-{self.rows}-{shape}-{self.block_rows}-{str(self.dtype)[6:]}-{self.add}"


def cases() -> list[Case]:
    """On a GPU the whole matrix, else a sample in which every popularity, shape, dtype and block appears."""
    blocks = [DECODE_BLOCK_ROWS, PREFILL_BLOCK_ROWS]
    shapes = [(i, o, r) for (i, o), r in itertools.product(SHAPES, ROWS)]
    all_cases = [
        Case(name, rows, in_features, outs, block, dtype, add)
        for name, (in_features, outs, rows), block, dtype, add in itertools.product(
            POPULARITIES, shapes, blocks, DTYPES, [False, True]
        )
    ]
    if GPU:
        return all_cases
    return random.Random(SEED).sample([case for case in all_cases if case.rows < 100], SAMPLED)


def deal(name: str, rows: int, adapters: int, dice: random.Random) -> list[int | None]:
    """Which adapter each row has, sorted; about one row in four has none, but where all are identical."""
    if name == "identical":
        return [dice.randrange(adapters)] * rows
    if name == "distinct":
        return [row if row < adapters else None for row in range(rows)]
    weights = [1.0] * adapters if name == "uniform" else [1 / (1 + rank) ** 1.5 for rank in range(adapters)]
    drawn = dice.choices(range(adapters), weights, k=rows)
    return sorted((a if dice.random() < 0.75 else None for a in drawn), key=lambda a: -1 if a is None else a)


def ranges_of(assigned: list[int | None], ranks: list[list[list[int]]]) -> list[Range]:
    found, first = [], 0
    for adapter, members in itertools.groupby(assigned):
        rows = len(list(members))
        if adapter is not None:
            tiles = max(-(-rank // TILE_RANK) for layer in ranks[adapter] for rank in layer)
            found.append(Range(adapter, first, rows, tiles))
        first += rows
    return found


class Table:
    """Adapters of given ranks for each (layer, module), their tiles in an arena that is NaN between them."""

    def __init__(self, ranks: list[list[list[int]]], shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
        """`ranks` by adapter, layer and module; `shapes` (in, out) by module."""
        tiles_max = max(1, *(-(-rank // TILE_RANK) for own in ranks for layer in own for rank in layer))
        entries = torch.zeros(len(ranks), LAYERS, len(shapes), 1 + tiles_max, dtype=torch.int64)
        unit = TILE_ALIGN_BYTES // dtype.itemsize
        parts: list[torch.Tensor] = []
        position = 0
        for adapter, layer, module in np.ndindex(len(ranks), LAYERS, len(shapes)):
            rank, (inner, out) = ranks[adapter][layer][module], shapes[module]
            entries[adapter, layer, module] = -(2**60)  # whoever reads the place of a tile that is not there faults
            entries[adapter, layer, module, 0] = pack_entry(rank, 0.5 + adapter % 3)
            for tile, start in enumerate(range(0, rank, TILE_RANK)):
                height = min(TILE_RANK, rank - start)
                numbers = torch.cat((torch.randn(height * inner) / inner**0.5, torch.randn(height * out) / rank**0.5))
                gap = torch.full((unit + -len(numbers) % unit,), torch.nan)
                entries[adapter, layer, module, 1 + tile] = position // unit
                parts += [numbers, gap]
                position += len(numbers) + len(gap)
        arena = torch.cat(parts or [torch.zeros(unit)]).to(dtype)
        self.host = TileTable(arena, entries)
        self.device = TileTable(arena.to(DEVICE), entries.to(DEVICE))


def plan(ranges: list[Range], rows: int, tiles_max: int, block_rows: int) -> tuple[LoraWork, LoraWork]:
    """The same work on the host and on the device; what is not live is nonsense."""
    layout = WorkLayout.of(rows, max(1, len(ranges)), tiles_max, block_rows)
    numbers = np.full(layout.size, 2**30, dtype=np.int32)
    layout.plan(ranges, numbers)
    packed = torch.from_numpy(numbers)
    return layout.view(packed), layout.view(packed.to(DEVICE))


def new_scratch(rows: int, modules: int, table: Table) -> LoraScratch:
    scratch = LoraScratch.empty(rows, modules, table.device)
    scratch.planes.fill_(torch.nan)
    return scratch


def run(
    case: Case, table: Table, ranges: list[Range], layer: int, stack: Stack, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """y after the kernel, from planes that were NaN."""
    _, device = plan(ranges, case.rows, table.host.tiles_max, case.block_rows)
    scratch = new_scratch(case.rows, len(stack.outs), table)
    on_device, out = x.to(DEVICE), y.to(DEVICE, copy=True)
    lora(on_device, out, table.device, device, scratch, layer, stack, add=case.add)
    return out.cpu()


def build(case: Case, dice: random.Random) -> tuple[Table, list[Range], Stack]:
    first = dice.randrange(MODULES - len(case.outs) + 1)
    shapes = [(8, 8)] * MODULES
    for index, out in enumerate(case.outs):
        shapes[first + index] = (case.in_features, out)
    adapters = len(RANKS)
    ranks = [[[0 if dice.random() < 0.2 else dice.choice(RANKS) for _ in shapes] for _ in range(LAYERS)] for _ in RANKS]
    for own in ranks:  # modules beside the stack are there, and small
        for by_module in own:
            for module in range(MODULES):
                if not first <= module < first + len(case.outs):
                    by_module[module] = min(by_module[module], 1)
    table = Table(ranks, shapes, case.dtype)
    return table, ranges_of(deal(case.popularity, case.rows, adapters, dice), ranks), Stack(first, *_sizes(case))


def _sizes(case: Case) -> tuple[int, tuple[int, ...]]:
    return case.in_features, case.outs


@pytest.mark.parametrize("case", cases(), ids=str)
def test_kernels_match_the_reference(case: Case) -> None:
    """Rows of the work are written whole, and nothing else is; x of other rows may be NaN."""
    dice = random.Random(f"{case} {SEED}")
    torch.manual_seed(SEED)
    table, ranges, stack = build(case, dice)
    layer = dice.randrange(LAYERS)
    x = torch.full((case.rows, case.in_features), torch.nan, dtype=case.dtype)
    y = torch.full((case.rows, sum(case.outs)), torch.nan, dtype=case.dtype)
    for one in ranges:
        own = slice(one.first, one.first + one.rows)
        x[own] = torch.randn(one.rows, case.in_features)
        if case.add:
            y[own] = torch.randn(one.rows, sum(case.outs))
    wanted = y.double()
    host, _ = plan(ranges, case.rows, table.host.tiles_max, case.block_rows)
    exact = TileTable(table.host.arena.double(), table.host.entries)
    lora_tiled_exact(x, wanted, exact, host, layer, stack, case)
    found = run(case, table, ranges, layer, stack, x, y)
    scale = max(1.0, float(wanted.nan_to_num().abs().max()))
    tolerance = TOLERANCE[case.dtype] * scale
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=tolerance, equal_nan=True)


def lora_tiled_exact(
    x: torch.Tensor, wanted: torch.Tensor, exact: TileTable, work: LoraWork, layer: int, stack: Stack, case: Case
) -> None:
    """The reference in float64. Tiles are counted in bytes of the served dtype, so the places are scaled with it."""
    entries = exact.entries.clone()
    entries[..., 1:] *= 8 // case.dtype.itemsize
    lora_tiled(x.double(), wanted, TileTable(exact.arena, entries), work, layer, stack, add=case.add)


@pytest.mark.parametrize("rank", [1, 16, 17, 48, 64, 65, 256])
def test_every_number_of_tiles(rank: int) -> None:
    """One tile, a few at once, and many are three ways through the expand."""
    dtype, stack, rows = DTYPES[0], Stack(0, 40, (24, 70)), 3
    torch.manual_seed(rank)
    table = Table([[[rank, rank // 2]] * LAYERS], [(40, 24), (40, 70)], dtype)
    ranges = [Range(0, 1, rows, -(-rank // TILE_RANK))]
    case = Case("identical", rows + 2, 40, (24, 70), DECODE_BLOCK_ROWS, dtype, True)
    x, y = torch.randn(rows + 2, 40).to(dtype), torch.randn(rows + 2, 94).to(dtype)
    wanted = y.double()
    host, _ = plan(ranges, rows + 2, table.host.tiles_max, case.block_rows)
    exact = TileTable(table.host.arena.double(), table.host.entries)
    lora_tiled_exact(x, wanted, exact, host, 2, stack, case)
    found = run(case, table, ranges, 2, stack, x, y).double()
    assert float((found - wanted).abs().max()) <= TOLERANCE[dtype] * float(wanted.abs().max())


@pytest.mark.parametrize("block_rows", [DECODE_BLOCK_ROWS, PREFILL_BLOCK_ROWS])
def test_a_step_without_adapters_touches_nothing(block_rows: int) -> None:
    case = Case("distinct", 5, 24, (16, 8), block_rows, DTYPES[0], False)
    table, _, stack = build(case, random.Random(0))
    x = torch.full((5, 24), torch.nan, dtype=case.dtype)
    y = torch.full((5, 24), torch.nan, dtype=case.dtype)
    assert run(case, table, [], 0, stack, x, y).isnan().all()


def test_the_same_work_gives_the_same_bits() -> None:
    """No atomics: the order in which programs run changes nothing."""
    case = Case("uniform", 33, 130, (70, 20), DECODE_BLOCK_ROWS, DTYPES[0], False)
    torch.manual_seed(1)
    table, ranges, stack = build(case, random.Random(1))
    x, y = torch.randn(33, 130).to(case.dtype), torch.zeros(33, 90, dtype=case.dtype)
    once, again = (run(case, table, ranges, 1, stack, x, y) for _ in range(2))
    assert torch.equal(once, again)


def test_x_and_y_may_be_views_with_other_strides() -> None:
    case = Case("identical", 6, 24, (16,), DECODE_BLOCK_ROWS, DTYPES[0], True)
    torch.manual_seed(2)
    table, ranges, stack = build(case, random.Random(3))
    x, y = torch.randn(6, 24).to(case.dtype), torch.randn(6, 16).to(case.dtype)
    wanted = run(case, table, ranges, 0, stack, x, y)
    wide_x = torch.full((6, 40), torch.nan, dtype=case.dtype, device=DEVICE)
    wide_y = torch.full((6, 48), torch.nan, dtype=case.dtype, device=DEVICE)
    wide_x[:, 8:32], wide_y[:, 16:32] = x, y
    _, work = plan(ranges, 6, table.host.tiles_max, case.block_rows)
    scratch = new_scratch(9, 3, table)  # made for more
    lora(wide_x[:, 8:32], wide_y[:, 16:32], table.device, work, scratch, 0, stack, add=True)
    assert torch.equal(wide_y[:, 16:32].cpu(), wanted)
    assert wide_y[:, :16].isnan().all()
    assert wide_y[:, 32:].isnan().all()


def test_work_covers_every_row_and_tile_once() -> None:
    dice = random.Random(4)
    for block_rows, tiles_max in itertools.product([16, 64], [1, 3, 16]):
        first, ranges = 0, []
        for adapter in range(20):
            first += dice.randrange(3)
            rows = dice.randrange(1, 150)
            ranges.append(Range(adapter, first, rows, dice.randint(0, tiles_max)))
            first += rows
        work, _ = plan(ranges, first, tiles_max, block_rows)
        segments, pieces = (part.tolist() for part in (work.segments, work.pieces))
        live = segments[: int(work.header[0])]
        covered = sorted((row, owner) for owner, start, rows, _ in live for row in range(start, start + rows))
        assert covered == [(row, r.table_row) for r in ranges for row in range(r.first, r.first + r.rows)]
        assert all(1 <= rows <= block_rows for _, _, rows, _ in live)
        assert pieces[: int(work.header[1])] == [
            [owner, start, rows, tile] for owner, start, rows, tiles in live for tile in range(tiles)
        ]


def test_the_layout_has_room_for_the_worst_step() -> None:
    for rows, ranges in [(1, 1), (7, 7), (64, 3), (256, 256), (300, 10)]:
        layout = WorkLayout.of(rows, ranges, 4, DECODE_BLOCK_ROWS)
        each = [rows // ranges + (1 if i < rows % ranges else 0) for i in range(ranges)]
        starts = list(itertools.accumulate(each, initial=0))
        full = [Range(i, starts[i], each[i], 4) for i in range(ranges) if each[i]]
        layout.plan(full, np.empty(layout.size, dtype=np.int32))
    layout = WorkLayout.of(1, 1, 1, DECODE_BLOCK_ROWS)
    with pytest.raises(AssertionError, match="2 segments, there is room for 1"):
        layout.plan([Range(0, 0, 17, 1)], np.empty(layout.size, dtype=np.int32))


def test_splits_are_used_and_bounded() -> None:
    """One small segment over a long inner size is cut into as many parts as there are programs and planes for."""
    case = Case("identical", 1, 1040, (40,), DECODE_BLOCK_ROWS, DTYPES[0], False)
    table, ranges, stack = build(case, random.Random(5))
    ranges = [one._replace(tiles=1) for one in ranges]
    _, work = plan(ranges, 1, table.host.tiles_max, case.block_rows)
    scratch, x = new_scratch(1, 1, table), torch.ones(1, 1040, dtype=case.dtype, device=DEVICE)
    lora(x, torch.zeros(1, 40, dtype=case.dtype, device=DEVICE), table.device, work, scratch, 0, stack, add=False)
    written = (~scratch.planes[:, 0, :TILE_RANK].isnan()).all(1)
    assert 1 < int(written.sum()) <= SPLITS_MAX
    assert scratch.planes[:, 0, TILE_RANK:].isnan().all()


def test_one_scratch_serves_step_after_step() -> None:
    """Every launch of a step has counters of its own, which the next step begins anew."""
    case = Case("identical", 5, 40, (24,), DECODE_BLOCK_ROWS, DTYPES[0], False)
    table, ranges, stack = build(case, random.Random(6))
    _, work = plan(ranges, case.rows, table.host.tiles_max, case.block_rows)
    scratch = new_scratch(case.rows, 1, table)
    for _ in range(3):
        x, y = torch.randn(5, 40).to(case.dtype), torch.zeros(5, 24, dtype=case.dtype)
        scratch.begin_step()
        for layer in range(LAYERS):
            out = y.to(DEVICE, copy=True)
            lora(x.to(DEVICE), out, table.device, work, scratch, layer, stack, add=False)
            assert torch.equal(out.cpu(), run(case, table, ranges, layer, stack, x, y))
