"""The device's table and a step's work list beside the pool: what kernels find through them is the adapters' weights,
whatever was placed and removed before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from adapters.device.host_weights import ModuleWeights, pack_adapter
from adapters.device.layer import LoraBatch
from adapters.device.pool import TilePool
from adapters.device.table import MODULES, AdapterRows, stack_of
from adapters.device.work import write_work
from adapters.files.spec import AdapterRefused, BaseShape
from kernels.lora_work import DECODE_BLOCK_ROWS, WorkLayout
from kernels.reference_lora import lora_tiled, table_tiles
from support.adapters.files import BASE
from support.adapters.tile_pool import GUARD, PAGE_BYTES, Books, host_adapter, module_weights

STACKS = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)]
RANK_MAX = 40
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ADAPTERS = {
    "all": dict.fromkeys(MODULES, 5),
    "deep": {"q_proj": 37, "down_proj": 40, "up_proj": 1},
    "one": {"v_proj": 16},
    "two": {"k_proj": 17, "o_proj": 3},
}


Modules = dict[tuple[int, str], ModuleWeights]


def new_pool(adapters_max: int = 3) -> tuple[TilePool, AdapterRows, dict[str, Modules], torch.Tensor]:
    arena = torch.full((64, PAGE_BYTES), GUARD, dtype=torch.uint8, device=DEVICE)
    rows = AdapterRows(arena, torch.float32, BASE.layers, adapters_max, RANK_MAX)
    rows.table.entries.fill_(-(2**40))
    pool = TilePool(arena, torch.float32, {"base": BASE}, rows)
    hosts = {digest: module_weights(ranks, seed) for seed, (digest, ranks) in enumerate(ADAPTERS.items())}
    for digest, host in hosts.items():
        pool.add_host_adapter(digest, "base", pack_adapter(host, BASE))
    return pool, rows, hosts, arena


def place(pool: TilePool, digest: str, free: list[int]) -> None:
    pool.place_adapter(digest, [free.pop() for _ in range(pool.pages_needed(digest))])


def check_row(rows: AdapterRows, digest: str, host: Modules) -> None:
    """Every module's A, B and scale, read through the table, are the host's; what it lacks has no tiles."""
    row, tiles = rows.find(digest)
    assert tiles == max(-(-weights.a.shape[0] // 16) for weights in host.values())
    for layer in range(BASE.layers):
        for module in MODULES:
            found = table_tiles(rows.table, row, layer, stack_of(BASE, (module,)))
            weights = host.get((layer, module))
            if weights is None:
                assert found == []
                continue
            assert torch.equal(torch.cat([tile.a.t() for tile in found]).cpu(), weights.a)
            assert torch.equal(torch.cat([tile.b for tile in found]).cpu(), weights.b)
            assert {tile.scale for tile in found} == {weights.scale}


def test_rows_follow_places_and_removals() -> None:
    pool, rows, hosts, arena = new_pool()
    dice = random.Random(0)
    books = Books(pool, arena, dice)
    for _ in range(40):
        digest = dice.choice(list(ADAPTERS))
        if digest in books.placed:
            books.remove(digest)
        elif rows.free_rows:
            books.place(digest)
        assert rows.free_rows == 3 - len(books.placed)
        assert len({rows.find(placed)[0] for placed in books.placed}) == len(books.placed)
        for placed in books.placed:
            check_row(rows, placed, hosts[placed])
        books.check()


def test_a_full_table_refuses_and_changes_nothing() -> None:
    pool, rows, _, arena = new_pool(adapters_max=1)
    free = list(range(64))
    place(pool, "all", free)
    before = arena.clone()
    needed = pool.pages_needed("one")
    with pytest.raises(ValueError, match="1 adapters are in the arena"):
        pool.place_adapter("one", free[:needed])
    assert torch.equal(arena, before)
    assert pool.resident() == ["all"]
    assert pool.pages_needed("one") == needed
    pool.check_integrity()
    pool.evict_adapter("all")
    place(pool, "one", free)
    assert rows.find("one") == (0, 1)


def test_integrity_finds_a_wrong_row() -> None:
    pool, rows, _, _ = new_pool()
    place(pool, "deep", list(range(64)))
    pool.check_integrity()
    row, _ = rows.find("deep")
    rows.table.entries[row, 1, MODULES.index("q_proj"), 2] += 1
    with pytest.raises(AssertionError, match="deep: a wrong table row"):
        pool.check_integrity()


def test_a_rank_that_no_row_can_hold_is_refused() -> None:
    pool, _, _, _ = new_pool()
    with pytest.raises(AdapterRefused, match=f"rank {RANK_MAX + 16}: this engine serves ranks up to {RANK_MAX}"):
        pool.add_host_adapter("wide", "base", host_adapter({"q_proj": RANK_MAX + 16}))
    assert not pool.is_known("wide", "base")


def test_a_model_deeper_than_the_table_is_refused() -> None:
    pool, rows, _, _ = new_pool()
    assert rows.layers == BASE.layers
    deeper = BaseShape(BASE.layers + 1, BASE.modules)
    with pytest.raises(ValueError, match=rf"it has {deeper.layers} layers; .* table of adapters is for {BASE.layers}"):
        pool.add_base("deep", deeper)
    pool.add_base("shallow", BaseShape(BASE.layers - 1, BASE.modules))


@pytest.mark.parametrize(
    "runs",
    [
        [("all", 3), ("deep", 1), (None, 2), ("one", 40)],
        [(None, 1), ("one", 2), ("one", 3), ("all", 0), ("deep", 17)],
        [("one", 1), (None, 1), ("one", 1), ("all", 1), ("one", 2)],
        [("deep", 100)],
    ],
)
def test_a_steps_work_gives_what_the_cpu_gives(runs: list[tuple[str | None, int]]) -> None:
    """Both are built from the same runs; the tiled reference finds tiles through the table, LoraBatch through views."""
    pool, rows, _, _ = new_pool()
    free = list(range(64))
    for digest in ("deep", "one", "all"):
        place(pool, digest, free)
    count = sum(each for _, each in runs)
    layout = WorkLayout.of(count, len(runs), rows.table.tiles_max, DECODE_BLOCK_ROWS)
    numbers, adapted = np.full(layout.size, -1, dtype=np.int32), np.full(count + 5, -1, dtype=np.int32)
    assert write_work(pool, runs, layout, numbers, adapted)
    assert adapted.tolist() == [int(digest is not None) for digest, each in runs for _ in range(each)] + [0] * 5
    batch = LoraBatch(pool, runs, DEVICE)
    work = layout.view(torch.from_numpy(numbers).to(DEVICE))
    torch.manual_seed(count)
    for layer in range(BASE.layers):
        for modules in STACKS:
            stack = stack_of(BASE, modules)
            x = torch.randn(count, stack.in_features, device=DEVICE)
            y = torch.randn(count, sum(stack.outs), device=DEVICE)
            wanted = y.clone()
            batch.apply_stacked(layer, modules, x, wanted)
            lora_tiled(x, y, rows.table, work, layer, stack, add=True)
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-4)


def test_a_step_without_adapters_is_no_work() -> None:
    pool, rows, _, _ = new_pool()
    place(pool, "all", list(range(64)))
    layout = WorkLayout.of(8, 8, rows.table.tiles_max, DECODE_BLOCK_ROWS)
    numbers, adapted = np.full(layout.size, -1, dtype=np.int32), np.ones(8, dtype=np.int32)
    assert not write_work(pool, [(None, 5), ("all", 0)], layout, numbers, adapted)
    assert not adapted.any()
    assert not layout.view(torch.from_numpy(numbers)).header.any()


def test_the_most_recently_used_is_evicted_last() -> None:
    pool, rows, _, _ = new_pool()
    free = list(range(64))
    for digest in ("deep", "one", "all"):
        place(pool, digest, free)
    layout = WorkLayout.of(8, 8, rows.table.tiles_max, DECODE_BLOCK_ROWS)
    numbers, adapted = np.zeros(layout.size, dtype=np.int32), np.zeros(8, dtype=np.int32)
    write_work(pool, [("deep", 2), (None, 1), ("one", 1)], layout, numbers, adapted)
    assert pool.resident() == ["all", "deep", "one"]


def test_modules_that_share_an_x_are_neighbours_in_the_table() -> None:
    assert sum(STACKS, ()) == MODULES
    assert stack_of(BASE, ("q_proj", "k_proj", "v_proj")) == (0, 24, (40, 20, 20))
    with pytest.raises(AssertionError):
        stack_of(BASE, ("q_proj", "v_proj"))
