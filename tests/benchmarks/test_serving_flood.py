"""The flood's benchmark over the fake engine: what it submits, what it counts, what it writes and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.serving import flood
from benchmarks.serving.flood_plot import draw
from benchmarks.serving.gateway import Measured, Phase, Request, Traffic, drive
from engine.fake.runner import FakeRunner, build_fake_runner
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig

ADAPTERS = [f"{index:064x}" for index in range(3)]
IMAGE_BYTES_MAX = 200 * 1024


def engine(pages: int = 64) -> tuple[EngineConfig, FakeRunner]:
    fake = FakeConfig(step_ms=1.0, prefill_ms_per_1k_tokens=1.0, steps_ahead=1, pages=pages)
    config = EngineConfig(
        models=(ModelConfig(name="m"),),
        tiers=flood.tiers(flood.parse([])),
        step_tokens_max=64,
        prefill_tokens_min=16,
        sequences_max=8,
        fake=fake,
    )
    runner = build_fake_runner(config)
    for digest in ADAPTERS:
        runner.load_adapter(digest, "m", "")
    return config, runner


@pytest.fixture(scope="module")
def halves() -> list[Measured]:
    config, runner = engine()
    premium = Traffic("premium", "premium", prompt_tokens=48, new_tokens=5, rate=40.0)
    batch = Traffic("batch", "batch", prompt_tokens=48, new_tokens=30, outstanding=12)
    bench = flood.Bench(config, runner, {"m": ADAPTERS}, "fake", premium, batch, lead_s=0.2)
    return drive(config, runner, {"m": ADAPTERS}, flood.flood_phases(bench, 30), seed=1)


def test_each_half_measures_as_many_as_were_asked_for(halves: list[Measured]) -> None:
    assert [half.phase.name for half in halves] == ["warm", "alone", "flood"]
    for half in halves[1:]:
        own = half.of("premium")
        assert len(own) == 30
        assert all(len(request.token_s) == 5 and request.ttft_ms > 0 for request in own)
        assert all(request.usage.cached_tokens == 0 for request in own), "prompts are distinct"
        assert half.began_s < own[0].due_s <= own[-1].due_s == half.ended_s
    flood.check(halves, "premium", refusals=False)


def test_batch_is_always_outstanding_and_counted_within_the_window(halves: list[Measured]) -> None:
    _, alone, under = halves
    batch = [request for request in under.requests if request.traffic.name == "batch"]
    assert not [request for request in alone.requests if request.traffic.name == "batch"]
    ended = sum(request.usage.completion_tokens == 30 for request in batch)
    assert 12 < len(batch) <= 12 + ended, "one more as soon as one has ended"
    seconds = under.ended_s - under.began_s
    within = [at for request in batch for at in request.token_s if under.began_s <= at <= under.ended_s]
    assert under.tokens_per_s("batch") == pytest.approx(len(within) / seconds)
    assert len(within) < sum(len(request.token_s) for request in batch), "the lead is not in the window"


def test_figures_are_the_row_that_was_agreed(halves: list[Measured], capsys: pytest.CaptureFixture[str]) -> None:
    found = flood.figures(*halves[1:])
    assert list(found) == [
        "premium_ttft_alone_p50_ms",
        "premium_ttft_alone_p99_ms",
        "premium_ttft_flood_p50_ms",
        "premium_ttft_flood_p99_ms",
        "premium_itl_alone_p99_ms",
        "premium_itl_flood_p99_ms",
        "batch_out_tok_s",
        "preemptions",
    ]
    assert found["batch_out_tok_s"] > 0
    flood.report(found, halves[1:], "NVIDIA H200")
    printed = capsys.readouterr().out
    assert "vLLM 0.24.0, one H200, 2026-10:     3887" in printed
    assert printed.count("aim ") == 3


def test_a_refusal_ends_the_benchmark_unless_it_is_meant() -> None:
    premium, batch = Traffic("premium", "premium", 1, 1), Traffic("batch", "batch", 1, 1)
    refused = Measured(Phase("flood", (premium, batch), 1), requests=[Request(batch, 0.0, refused="it is full")])
    with pytest.raises(SystemExit, match="a batch request was refused: it is full"):
        flood.check([refused], "premium", refusals=False)
    flood.check([refused], "premium", refusals=True)
    refused.requests.append(Request(premium, 0.0))
    with pytest.raises(SystemExit, match="a premium request made 0 of 1 ids"):
        flood.check([refused], "premium", refusals=True)


def test_points_are_drawn(halves: list[Measured], tmp_path: Path) -> None:
    points, image = tmp_path / "points.csv", tmp_path / "img" / "flood.png"
    flood.write_points(halves[1:], points)
    lines = points.read_text().splitlines()
    assert lines[0] == "half,tier,due_s,ttft_ms"
    assert sum(line.startswith("flood,premium,") for line in lines) == 30
    assert any(line.startswith("flood,batch,") for line in lines)
    draw(points, image)
    assert image.read_bytes().startswith(b"\x89PNG")
    assert image.stat().st_size < IMAGE_BYTES_MAX


def test_the_rest_of_the_arena_is_left_alone() -> None:
    _, runner = engine(pages=64)
    assert flood.limit_kv(runner, ADAPTERS, 40) == 3
    assert runner.pages == 43
    assert not runner.adapters.resident()


def test_a_tenant_shares_a_prefix_with_itself_alone() -> None:
    config, runner = engine(pages=256)
    quiet = Traffic("quiet", "premium", 48, 2, rate=50.0, share="quiet", prefix_tokens=32)
    noisy = Traffic("noisy", "premium", 48, 2, rate=50.0, share="noisy", prefix_tokens=32)
    _, beside = drive(config, runner, {}, [Phase("warm", (quiet,), 2), Phase("beside", (quiet, noisy), 10)], seed=1)
    assert all(request.usage.cached_tokens == 32 for request in beside.of("quiet"))
    first, *rest = sorted(
        (request for request in beside.requests if request.traffic is noisy and request.token_s),
        key=lambda request: request.due_s,
    )
    assert first.usage.cached_tokens == 0
    assert rest[-1].usage.cached_tokens == 32


def test_a_quiet_tenant_is_measured_beside_a_neighbour_at_its_share_and_at_ten_times_that() -> None:
    config, runner = engine(pages=256)
    unused = Traffic("premium", "premium", 1, 1)
    bench = flood.Bench(config, runner, {}, "fake", unused, unused, lead_s=0.05)
    halves = drive(config, runner, {}, flood.noisy_phases(bench, 36, rate=40.0), seed=1)[1:]
    flood.check(halves, "quiet", refusals=True)
    alone, fair, noisy = (sum(r.traffic.name == "noisy" for r in half.requests) for half in halves)
    assert alone == 0
    assert noisy > 4 * fair > 0
    found = flood.noisy_figures(halves)
    assert [name for name in found if "p95" in name] == [
        "quiet_ttft_alone_p95_ms", "quiet_ttft_fair_p95_ms", "quiet_ttft_noisy_p95_ms"
    ]  # fmt: skip
    assert 0.6 < found["quiet_hit_rate_noisy"] <= 64 / 96
    assert found["noisy_tok_s"] > 0
