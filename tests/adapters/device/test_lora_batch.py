"""A step's batch of mixed adapters against peft's own layers: every module, any mix, any order of rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.device.host_weights import HostAdapter, open_source, read_weights, tile
from adapters.device.layer import ONE_THREAD_ROWS_MAX, LoraBatch
from adapters.device.pool import TilePool
from adapters.files.spec import AdapterRefused
from adapters.files.store import AdapterStore
from support.adapters.directories import add_directory
from support.adapters.files import BASE, loadable, lora_tensors, peft_adapter, peft_module, write_adapter
from support.adapters.peft_configs import CONFIGS

NAMES = list(CONFIGS)
STACKS = [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)]
PAGE_BYTES = 6_144


class Served:
    """Every config as an adapter: peft's model, and ours, stored, loaded and placed in one pool."""

    def __init__(self, directory: Path) -> None:
        store = AdapterStore(directory / "store")
        self.arena = torch.full((256, PAGE_BYTES), 0xFF, dtype=torch.uint8)  # NaN in float32
        self.pool = TilePool(self.arena, torch.float32, {"base": BASE})
        self.theirs: dict[str, Any] = {}
        self.digests: dict[str, str] = {}
        pages = 0
        for seed, (name, config) in enumerate(CONFIGS.items()):
            source = directory / f"adapter{seed}"
            self.theirs[name] = peft_adapter(source, seed=seed, **config)
            digest = self.digests[name] = add_directory(store, source, BASE).digest
            self.pool.register_adapter(digest, "base", store.path(digest))
            needed = self.pool.pages_needed(digest)
            self.pool.place_adapter(digest, list(range(pages, pages + needed)))
            pages += needed
        self.pool.check_integrity()

    def batch(self, rows: list[str | None]) -> LoraBatch:
        return LoraBatch(self.pool, [(None if name is None else self.digests[name], 1) for name in rows])

    def delta(self, name: str, layer: int, module: str, x: torch.Tensor) -> torch.Tensor:
        """What peft adds to the base's output for these rows."""
        linear = peft_module(self.theirs[name], layer, module)
        if not hasattr(linear, "base_layer"):
            return torch.zeros(len(x), BASE.modules[module].out_features)
        with torch.no_grad():
            return (linear(x) - linear.base_layer(x)).detach()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served"))


def check(served: Served, rows: list[str | None]) -> None:
    """Every layer and stack of modules, against peft row by row."""
    batch = served.batch(rows)
    torch.manual_seed(len(rows))
    for layer in range(BASE.layers):
        for stack in STACKS:
            x = torch.randn(len(rows), BASE.modules[stack[0]].in_features)
            before = torch.randn(len(rows), sum(BASE.modules[module].out_features for module in stack))
            y = before.clone()
            if len(stack) == 1:
                batch.apply(layer, stack[0], x, y)
            else:
                batch.apply_stacked(layer, stack, x, y)
            wanted = before.clone()
            for name in {name for name in rows if name is not None}:
                own = [row for row, other in enumerate(rows) if other == name]
                wanted[own] += torch.cat([served.delta(name, layer, module, x[own]) for module in stack], 1)
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 7])
def test_one_adapter_equals_peft(served: Served, name: str, rows: int) -> None:
    check(served, [name] * rows)


@pytest.mark.parametrize("popularity", ["distinct", "uniform", "zipf", "identical"])
@pytest.mark.parametrize("grouped", [True, False])
def test_mixed_batches_equal_peft(served: Served, popularity: str, grouped: bool) -> None:
    dice = random.Random(f"{popularity}{grouped}")
    choices: list[str | None] = [None, *NAMES]
    weights = {"uniform": [1.0] * len(choices), "zipf": [1 / (1 + i) ** 1.5 for i in range(len(choices))]}
    for size in (1, 6, 19):
        if popularity == "distinct":
            rows: list[str | None] = [*NAMES, None][:size]
        elif popularity == "identical":
            rows = [NAMES[3]] * size
        else:
            rows = dice.choices(choices, weights[popularity], k=size)
        if grouped:
            rows.sort(key=lambda name: "" if name is None else name)
        else:
            dice.shuffle(rows)
        check(served, rows)


def test_runs_are_as_good_as_rows(served: Served) -> None:
    """A chunk of a prompt is one run of many rows; empty runs are nothing."""
    first, second = served.digests[NAMES[0]], served.digests[NAMES[2]]
    runs = [(None, 2), (first, 3), (second, 0), (first, 1), (second, 4), (None, 0), (first, 2)]
    x = torch.randn(12, 24)
    one, other = torch.zeros(12, 40), torch.zeros(12, 40)
    LoraBatch(served.pool, runs).apply(0, "q_proj", x, one)
    LoraBatch(served.pool, [(digest, 1) for digest, count in runs for _ in range(count)]).apply(0, "q_proj", x, other)
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not one[:2].any()
    assert one[2:].all()


def test_rows_without_an_adapter_are_not_touched(served: Served) -> None:
    rows = [None, NAMES[0], None, NAMES[0], NAMES[1], None]
    y = torch.full((6, 64), torch.nan)
    y[[1, 3, 4]] = 0.0
    x = torch.randn(6, 24)
    x[[0, 2, 5]] = torch.nan
    served.batch(rows).apply_stacked(1, ("q_proj", "k_proj", "v_proj")[:1], x, y[:, :40])
    assert y[[1, 3, 4], :40].isfinite().all()
    assert y[[0, 2, 5]].isnan().all()


def test_a_batch_without_adapters_is_false_and_does_nothing(served: Served) -> None:
    for runs in ([], [(None, 5)], [(served.digests[NAMES[0]], 0)]):
        batch = LoraBatch(served.pool, runs)
        assert not batch
        batch.apply_stacked(0, ("q_proj", "k_proj", "v_proj"), torch.empty(5, 24), torch.empty(5, 80))
    assert served.batch([NAMES[0]])


def test_a_batch_marks_its_adapters_as_used(served: Served) -> None:
    served.batch(NAMES)  # type: ignore[arg-type]
    assert served.pool.resident() == [served.digests[name] for name in NAMES]
    served.batch([NAMES[1], None, NAMES[0], NAMES[1]])
    assert served.pool.resident()[-2:] == [served.digests[NAMES[1]], served.digests[NAMES[0]]]


def test_it_runs_under_inference_mode(served: Served) -> None:
    with torch.inference_mode():
        y = torch.zeros(2, 40)
        served.batch([NAMES[0], NAMES[2]]).apply(0, "q_proj", torch.randn(2, 24), y)
    assert y.all()


@pytest.mark.parametrize(("rows", "alone"), [(1, True), (ONE_THREAD_ROWS_MAX, True), (ONE_THREAD_ROWS_MAX + 1, False)])
def test_one_thread_multiplies_few_rows(
    served: Served, rows: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr("adapters.device.layer.lora", lambda *_: seen.append(torch.get_num_threads()))
        batch = served.batch(["plain"] * rows)
        batch.apply(0, "q_proj", torch.zeros(rows, BASE.modules["q_proj"].in_features), torch.zeros(1))
        assert seen == [1 if alone else 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_an_adapter_not_resident_is_our_mistake(served: Served) -> None:
    with pytest.raises(KeyError):
        LoraBatch(served.pool, [("f" * 64, 1)])


def read(path: Path, dtype: torch.dtype) -> HostAdapter:
    source = open_source(loadable(path), BASE, dtype)
    slab = torch.zeros(source.layout.bytes, dtype=torch.uint8)
    read_weights(source, slab, lambda: False)
    assert source.finite
    return HostAdapter(source.layout, slab)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_read_in_the_runners_dtype(tmp_path: Path, dtype: torch.dtype, stored: torch.dtype) -> None:
    theirs = peft_adapter(tmp_path, r=19).to(stored)
    theirs.save_pretrained(tmp_path)
    host = read(tmp_path, dtype)
    rows = dict.fromkeys(host.layout.scales, 0)
    for cut in host.layout.cuts:
        linear = peft_module(theirs, cut.layer, cut.module)
        a, b = tile(host.slab[cut.start : cut.start + cut.bytes], cut, dtype)
        own = slice(cut.first, cut.first + cut.rank)
        assert torch.equal(a, linear.lora_A["default"].weight[own].to(dtype))
        assert torch.equal(b, linear.lora_B["default"].weight.t()[own].to(dtype))
        assert host.layout.scales[cut.layer, cut.module] == linear.scaling["default"]
        rows[cut.layer, cut.module] += cut.rank
    assert set(rows.values()) == {19}
    assert len(rows) == BASE.layers * len(BASE.modules)


def test_a_number_that_the_runners_dtype_lacks_is_refused(tmp_path: Path) -> None:
    tensors = lora_tensors()
    next(iter(tensors.values()))[0, 0] = 1e6
    write_adapter(tmp_path, weights=tensors)
    host = read(tmp_path, torch.bfloat16)
    cut = host.layout.cuts[0]
    assert all(part.isfinite().all() for part in tile(host.slab[: cut.bytes], cut, torch.bfloat16))
    with pytest.raises(AdapterRefused, match="too large for float16"):
        read(tmp_path, torch.float16)
