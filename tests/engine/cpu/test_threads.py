"""Threads chosen by measurement: the fewest that are about as fast as the fastest."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

import engine.cpu.runner
import engine.cpu.threads
from engine.cpu.batch import PackedBatch
from engine.cpu.decoder import Decoder, Lora
from engine.cpu.runner import build_runner
from engine.cpu.threads import MEASURED_S, TURNS, available_cores, choose_threads, measured_threads
from engine.models.linear import PACKED_ROWS
from engine.protocol.config import EngineConfig, ModelConfig
from support import oracle
from support.engine.quality import ANY_QUALITY, measure_few_windows
from support.engine.same_ids import Case, run_cases

# Microseconds of a product of one row and of eight rows, by threads of 16 cores; and what is chosen.
MEASURED: dict[str, tuple[dict[int, tuple[float, float]], int]] = {
    "all are twice as fast": ({1: (800, 2000), 8: (400, 1000), 16: (200, 500)}, 16),
    "half are as fast": ({1: (800, 2000), 8: (210, 540), 16: (200, 500)}, 8),
    "half are 12 % slower": ({1: (800, 2000), 8: (224, 560), 16: (200, 500)}, 16),
    "one is the fastest": ({1: (100, 300), 8: (150, 400), 16: (300, 900)}, 1),
    "one is 9 % slower": ({1: (218, 545), 8: (210, 520), 16: (200, 500)}, 1),
    "one is fast for one row alone": ({1: (100, 3000), 8: (120, 700), 16: (150, 600)}, 8),
    "a slow product does not hide a fast one": ({1: (10, 5000), 8: (30, 4900), 16: (60, 4800)}, 1),
}


@pytest.mark.parametrize("case", MEASURED)
def test_the_fewest_that_are_about_as_fast_are_chosen(case: str) -> None:
    measured, expected = MEASURED[case]
    calls: list[int] = []

    def measure(threads: int) -> tuple[float, ...]:
        """Every turn but the fourth is disturbed: by a third, and in the first by a start of the threads."""
        calls.append(threads)
        turn = calls.count(threads)
        return tuple(us * 1e-6 * {1: 20.0, 4: 1.0}.get(turn, 1.3) for us in measured[threads])

    assert choose_threads(16, measure, clock=lambda: 0.0) == expected
    assert calls == [1, 8, 16] * TURNS, "in turn, so that other work disturbs all alike"


@pytest.mark.parametrize(("cores", "tried"), [(1, []), (2, [1, 2]), (3, [1, 3]), (4, [1, 2, 4]), (9, [1, 4, 9])])
def test_one_half_and_all_cores_are_tried(cores: int, tried: list[int]) -> None:
    calls: set[int] = set()

    def measure(threads: int) -> tuple[float, ...]:
        calls.add(threads)
        return (1.0 / threads,)

    assert choose_threads(cores, measure, clock=lambda: 0.0) == cores
    assert sorted(calls) == tried


def test_a_slow_machine_is_measured_less_often() -> None:
    """Every number of threads once at least."""
    now, calls = [100.0], list[int]()

    def measure(threads: int) -> tuple[float, ...]:
        now[0] += MEASURED_S / 4
        calls.append(threads)
        return (1.0,)

    assert choose_threads(8, measure, clock=lambda: now[0]) == 1
    assert calls == [1, 4, 8] * 2


def test_a_clock_that_stands_still_chooses_one() -> None:
    assert choose_threads(8, lambda threads: (0.0, 0.0)) == 1


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_is_measured_once_in_little_time_and_logged(caplog: pytest.LogCaptureFixture, threads: None) -> None:
    torch.set_num_threads(1)
    measured_threads.cache_clear()
    with caplog.at_level(logging.INFO, logger="engine"):
        began = time.process_time()
        chosen = measured_threads()
        taken = time.process_time() - began
        assert measured_threads() == chosen
    assert 1 <= chosen <= available_cores()
    assert torch.get_num_threads() == 1, "the measurement restores the number of threads"
    # CPU time of all threads: other processes on the machine are none of its business.
    assert taken < 0.3 * available_cores()
    if available_cores() > 1:
        (record,) = caplog.records
        fields = record.__dict__["fields"]
        assert (record.message, fields["threads"], fields["cores"]) == ("cpu.threads", chosen, available_cores())
        assert all(len(us) == 2 and min(us) > 0 for us in fields["us_by_threads"].values())


@pytest.mark.parametrize(("setting", "few", "many"), [(0, 3, available_cores()), (2, 2, 2)])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_few_rows_take_what_was_measured_and_the_setting_overrides_it(
    kv_dtype: Literal["auto", "fp8"],
    setting: int,
    few: int,
    many: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: None,
) -> None:
    """With fp8 KV all steps take as many threads as few rows: a row's bits are the same in every step."""
    measure_few_windows(monkeypatch)
    monkeypatch.setattr(engine.cpu.runner, "measured_threads", lambda: 3)
    directory = oracle.save_tiny("llama", tmp_path, num_hidden_layers=1)
    models = (ModelConfig(name="m", path=str(directory), kv_dtype=kv_dtype),)
    runner = build_runner(EngineConfig(models=models, arena_bytes=16 << 20, threads=setting, quality=ANY_QUALITY))
    assert torch.get_num_threads() == many
    used: list[tuple[int, int]] = []
    run_layers = Decoder.run_layers

    def spy(decoder: Decoder, hidden: torch.Tensor, batch: PackedBatch, lora: Lora | None) -> torch.Tensor:
        used.append((len(batch.ids), torch.get_num_threads()))
        return run_layers(decoder, hidden, batch, lora)

    monkeypatch.setattr(Decoder, "run_layers", spy)
    run_cases(runner, [Case("m", list(range(10, 50)), new=3), Case("m", list(range(10, 15)), new=6)])
    for rows, count in used:
        assert count == (few if rows <= PACKED_ROWS or kv_dtype == "fp8" else many), rows
    assert len({rows <= PACKED_ROWS for rows, _ in used}) == 2
    assert torch.get_num_threads() == many
