"""The pool of tiles: exact page counts, no byte in two tiles, nothing written outside the pages it was handed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.device.host_weights import pack_adapter
from adapters.device.pool import TilePool
from adapters.files.spec import AdapterRefused, BaseShape, ModuleShape
from kernels.lora_work import TILE_RANK
from support.adapters.files import BASE, loadable, lora_tensors, write_adapter
from support.adapters.tile_pool import GUARD, MODULES, PAGE_BYTES, Books, host_adapter, module_weights


def new_pool(pages: int = 64, page_bytes: int = PAGE_BYTES) -> tuple[TilePool, torch.Tensor]:
    arena = torch.full((pages, page_bytes), GUARD, dtype=torch.uint8)
    wide = BaseShape(BASE.layers, {**BASE.modules, "q_proj": ModuleShape(24, 48)})
    return TilePool(arena, torch.float32, {"base": BASE, "twin": BASE, "wide": wide}), arena


RANKS = st.dictionaries(st.sampled_from(MODULES), st.integers(1, 40), min_size=1, max_size=len(MODULES))


@given(
    adapters=st.lists(RANKS, min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.sampled_from(["place", "place", "remove", "use"]), st.integers(0, 4)), max_size=25),
    seed=st.integers(0, 9),
)
@settings(max_examples=80, deadline=None)
def test_packing_keeps_the_books(adapters: list[dict[str, int]], steps: list[tuple[str, int]], seed: int) -> None:
    pool, arena = new_pool()
    for index, ranks in enumerate(adapters):
        pool.add_host_adapter(str(index), "base", host_adapter(ranks, index))
    books = Books(pool, arena, random.Random(seed))
    for action, index in steps:
        getattr(books, action)(str(index % len(adapters)))
        books.check()
    for digest in list(books.placed):
        books.remove(digest)
    books.check()
    assert len(books.free) == arena.shape[0]


def test_tiles_hold_the_weights_at_their_places() -> None:
    pool, arena = new_pool()
    modules = module_weights({"q_proj": 37, "down_proj": 5})
    pool.add_host_adapter("a", "base", pack_adapter(modules, BASE))
    pool.place_adapter("a", list(range(10, 10 + pool.pages_needed("a"))))
    places, cuts = pool._resident["a"].places, pool._known["a"].layout.cuts
    assert {cut.rank for cut in cuts if cut.module == "q_proj"} == {TILE_RANK, 5}
    for cut, (page, offset) in zip(cuts, places, strict=True):
        weights = modules[cut.layer, cut.module]
        count = cut.rank * (weights.a.shape[1] + weights.b.shape[1])
        numbers = arena[page, offset : offset + count * 4].view(torch.float32)
        rows = slice(cut.first, cut.first + cut.rank)
        torch.testing.assert_close(numbers, torch.cat([weights.a[rows].flatten(), weights.b[rows].flatten()]))
    covered = sorted((cut.layer, cut.module, cut.first) for cut in cuts)
    assert len(set(covered)) == len(covered) == BASE.layers * (3 + 1)


def test_placing_and_removing_are_idempotent() -> None:
    pool, _ = new_pool()
    pool.add_host_adapter("a", "base", host_adapter({"q_proj": 4}))
    needed = pool.pages_needed("a")
    pool.place_adapter("a", list(range(needed)))
    pool.place_adapter("a", [])
    assert pool.resident() == ["a"]
    assert sorted(pool.evict_adapter("a")) == list(range(needed))
    assert pool.evict_adapter("a") == []
    assert pool.evict_adapter("never heard of") == []
    assert pool.is_known("a", "base")
    assert pool.pages_needed("a") == needed


def test_a_second_adapter_uses_what_the_first_left_free() -> None:
    pool, _ = new_pool()
    small = {"k_proj": 1}
    for digest in "ab":
        pool.add_host_adapter(digest, "base", host_adapter(small, ord(digest)))
    assert pool.pages_needed("a") == 1
    pool.place_adapter("a", [3])
    assert pool.pages_needed("b") == 0
    pool.place_adapter("b", [])
    assert pool.evict_adapter("a") == []  # the page is b's too
    assert pool.evict_adapter("b") == [3]


def test_the_wrong_number_of_pages_is_our_mistake() -> None:
    pool, _ = new_pool()
    pool.add_host_adapter("a", "base", host_adapter({"q_proj": 4}))
    needed = pool.pages_needed("a")
    for pages in ([], list(range(needed + 1))):
        with pytest.raises(AssertionError):
            pool.place_adapter("a", pages)
    pool.add_host_adapter("b", "base", host_adapter({"up_proj": 16}))
    pool.place_adapter("a", list(range(needed)))
    with pytest.raises(AssertionError):  # a page it has already
        pool.place_adapter("b", list(range(pool.pages_needed("b"))))
    pool.check_integrity()


def test_a_tile_larger_than_a_page_is_refused_when_loaded() -> None:
    pool, _ = new_pool(page_bytes=4_096)
    pool.add_host_adapter("fits", "base", host_adapter({"up_proj": 16}))
    pool, _ = new_pool(page_bytes=4_032)
    with pytest.raises(AdapterRefused, match=r"up_proj.*16 rank rows takes 4096 bytes, an arena page has 4032"):
        pool.add_host_adapter("does not", "base", host_adapter({"up_proj": 16}))
    assert not pool.is_known("does not", "base")


def test_integrity_check_sees_damage() -> None:
    pool, arena = new_pool()
    pool.add_host_adapter("a", "base", host_adapter({"q_proj": 4}))
    pool.place_adapter("a", list(range(pool.pages_needed("a"))))
    arena[0, 17] ^= 1
    with pytest.raises(AssertionError, match="differs from host memory"):
        pool.check_integrity()
    arena[0, 17] ^= 1
    pool.check_integrity()
    free = pool._pages.pages[0].free.free
    free[0] = (free[0][0] + 64, free[0][1] - 64)
    with pytest.raises(AssertionError, match="gap or an overlap"):
        pool.check_integrity()


# ---- knowing and forgetting ------------------------------------------------------------------------------------


def test_loading_and_unloading(tmp_path: Path) -> None:
    pool, _ = new_pool()
    path = loadable(write_adapter(tmp_path))
    assert not pool.is_known("a", "base")
    pool.register_adapter("a", "base", path)
    pool.register_adapter("a", "base", tmp_path / "not read again")
    assert pool.is_known("a", "base")
    assert not pool.is_known("a", "twin")
    pool.register_adapter("a", "twin", path)
    assert pool.is_known("a", "twin")
    pool.place_adapter("a", list(range(pool.pages_needed("a"))))
    with pytest.raises(AssertionError):
        pool.unload("a")
    pool.evict_adapter("a")
    pool.unload("a")
    pool.unload("a")
    assert not pool.is_known("a", "base")


def test_one_adapter_for_models_of_other_sizes_is_refused(tmp_path: Path) -> None:
    """It fits both, but its outputs would lie elsewhere in the stacked q/k/v of the second."""
    pool, _ = new_pool()
    path = loadable(write_adapter(tmp_path, weights=lora_tensors(modules=("v_proj",))))
    pool.register_adapter("a", "base", path)
    with pytest.raises(AdapterRefused, match="a serves base, whose modules have other sizes than wide's"):
        pool.register_adapter("a", "wide", path)
    assert not pool.is_known("a", "wide")


def test_bases_come_and_go_with_their_adapters(tmp_path: Path) -> None:
    pool, _ = new_pool()
    directory = loadable(write_adapter(tmp_path, weights=lora_tensors(modules=("v_proj",))))
    with pytest.raises(AdapterRefused, match="model 'late' is not served here"):
        pool.register_adapter("a", "late", directory)
    pool.add_base("late", BASE)
    for model in ("late", "base"):
        pool.register_adapter("a", model, directory)
    pool.register_adapter("b", "late", directory)
    pool.place_adapter("a", list(range(pool.pages_needed("a"))))
    pool.remove_base("late")
    assert [pool.is_known("a", model) for model in ("late", "base")] == [False, True], "it serves another"
    assert pool.resident() == ["a"]
    assert pool.adapter_locations(9)[1] == 1, "the other one went with its model"
    with pytest.raises(AdapterRefused, match="not served here"):
        pool.register_adapter("b", "late", directory)
    pool.add_base("late", BASE)
    assert not pool.is_known("b", "late")
    pool.register_adapter("b", "late", directory)
    pool.check_integrity()


def test_bad_adapters_are_refused_when_loaded(tmp_path: Path) -> None:
    pool, _ = new_pool()
    with pytest.raises(AdapterRefused, match="model 'other' is not served"):
        pool.register_adapter("a", "other", loadable(write_adapter(tmp_path / "good")))
    with pytest.raises(AdapterRefused, match="missing; the gateway makes it"):
        pool.register_adapter("a", "base", write_adapter(tmp_path / "unresolved"))
    wide = BaseShape(3, {**BASE.modules, "q_proj": ModuleShape(99, 40)})
    with pytest.raises(AdapterRefused, match=r"lora_A\.weight: shape"):
        pool.register_adapter("a", "base", loadable(write_adapter(tmp_path / "wide", weights=lora_tensors(base=wide))))
    with pytest.raises(AdapterRefused, match="missing"):
        pool.register_adapter("a", "base", tmp_path / "nowhere")
    assert not pool.is_known("a", "base")


# ---- how much room it takes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [(8,), (16,), (64,), (8, 16, 32, 64)])
def test_adapters_of_a_large_model_waste_little(ranks: tuple[int, ...]) -> None:
    """Llama-3.1-8B, seven modules, bfloat16, pages of 2 MiB; on the meta device, so without the bytes."""
    llama = BaseShape.from_config(
        {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8}
    )  # fmt: skip
    arena = torch.empty(2_000, 2 * 1024**2, dtype=torch.uint8, device="meta")
    pool = TilePool(arena, torch.bfloat16, {"llama": llama})
    pages, wanted = 0, 0
    for index in range(8):
        ranks_of = dict.fromkeys(llama.modules, ranks[index % len(ranks)])
        host = host_adapter(ranks_of, base=llama, dtype=torch.bfloat16, device="meta")
        wanted += host.layout.bytes
        pool.add_host_adapter(str(index), "llama", host)
        needed = pool.pages_needed(str(index))
        pool.place_adapter(str(index), list(range(pages, pages + needed)))
        pages += needed
    assert pages * 2 * 1024**2 <= 1.05 * wanted
