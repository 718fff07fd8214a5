"""The simulator: it keeps time as a device does, loses no request and no page, and makes the same of the same seed.
Then what it is for: the promises of the tiers, over simulated hours."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from engine.protocol.frames import Sampling
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.costs import Costs, StepLoad, load_of
from engine.simulate.__main__ import main
from engine.simulate.devices import DEVICES, BadInput, Device, device
from engine.simulate.drawing import draw
from engine.simulate.fairness import ServedGap
from engine.simulate.loads import SimulatedAdapters
from engine.simulate.options import read_tiers
from engine.simulate.report import GroupReport, Percentiles, SimulationReport, TierReport, WeightsReport, make_report
from engine.simulate.trace import TraceRow, read_trace
from engine.simulate.traffic import Burst, Flood, Noise, Poisson, Population, Traffic, arrivals
from engine.simulate.world import Clock, SimulatedDevice, Stall, World
from engine.step import Chunk, Sequence, Step
from support.paths import REPO

# A step of 1 s, and 1 ms more for each token of prefill; nothing else costs.
PLAIN = Device(
    base_s=1.0, prefill_token_s=0.001, sequence_s=0, kv_token_s=0, adapter_s=0, pages=4096, step_tokens_max=512,
    prefill_tokens_min=64, sequences_max=16,
)  # fmt: skip
ONE = Population({"standard": 1.0}, tenants=1, adapters=0)
ALL = Population(dict.fromkeys(("premium", "standard", "batch"), 1.0), tenants=3, adapters=2)


def simulate(
    traffic: Traffic, on: Device = PLAIN, tiers: tuple[Tier, ...] = SHIPPED_TIERS, **more: Any
) -> SimulationReport:
    return make_report(run(traffic, on, tiers, **more), {})


def run(traffic: Traffic, on: Device = PLAIN, tiers: tuple[Tier, ...] = SHIPPED_TIERS, **more: Any) -> World:
    world = World(tiers, on, traffic, **more)
    world.run()
    return world


def tier_of(report: SimulationReport, name: str) -> TierReport:
    return next(tier for tier in report.tiers if tier.tier == name)


def tenant_of(report: SimulationReport, name: str) -> GroupReport:
    return next(group for group in report.tenants if group.name == name)


def recorded(per_s: float, until_s: float, seed: int = 1) -> tuple[TraceRow, ...]:
    """Rows as Azure's conversations are: Poisson, prompts of 1,020 tokens (mean 1,155), answers of 129 (mean 211)."""
    draws = random.Random(seed)
    rows: list[TraceRow] = []
    at_s = draws.expovariate(per_s)
    while at_s < until_s:
        prompt = min(8000, 1 + int(draws.lognormvariate(math.log(1020), 0.5)))
        rows.append(TraceRow(at_s, prompt, min(1000, 1 + int(draws.lognormvariate(math.log(129), 0.99)))))
        at_s += draws.expovariate(per_s)
    return tuple(rows)


# ---- the clock


def test_one_request_takes_what_its_steps_cost() -> None:
    world = run(Traffic(ONE, 10.0, (TraceRow(0.5, 100, 4),)), system_tokens=0)
    (ending,) = world.measure.endings
    assert (ending.reason, ending.made, ending.queue_s) == ("stop", 4, 0.0)
    assert ending.ttft_s == pytest.approx(1.1)
    assert list(world.measure.gaps_s[1]) == pytest.approx([1.0] * 3)
    assert world.measure.ended_at == pytest.approx(0.5 + 1.1 + 3.0)
    assert world.measure.busy_s == pytest.approx(4.1)
    assert world.measure.steps == 4


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    rows = (TraceRow(0.0, 50, 3), TraceRow(0.2, 50, 1))
    # One ahead, the step after the present one was planned before it came.
    for steps_ahead, wait_s in ((0, 1.05 - 0.2), (1, 1.05 - 0.2 + 1.0)):
        world = run(Traffic(ONE, 10.0, rows), msgspec.structs.replace(PLAIN, steps_ahead=steps_ahead), system_tokens=0)
        second = next(ending for ending in world.measure.endings if ending.request.at_s == 0.2)
        assert second.queue_s == pytest.approx(1.05 - 0.2), "it is in a step that was begun then"
        assert second.ttft_s == pytest.approx(wait_s + 1.05)


def test_a_step_takes_its_load_s_costs() -> None:
    """Of each term, and one after another."""
    on = msgspec.structs.replace(PLAIN, sequence_s=0.01, kv_token_s=1e-4, adapter_s=0.1)
    sequence = Sequence(0, 0, "r", "m", "a", "n", "t", "s", [1] * 60, 9, Sampling(), frozenset(), 0.0)
    other = Sequence(1, 0, "r", "m", None, "n", "t", "s", [1] * 60, 9, Sampling(), frozenset(), 0.0)
    step = Step(1, "m", [Chunk(other, 60, 1, True), Chunk(sequence, 10, 50, True)])
    assert load_of(step) == StepLoad(50, 2, 61 + 60, 1)
    seconds = Costs(1.0, 0.001, 0.01, 1e-4, 0.1).step_seconds(load_of(step))
    assert seconds == pytest.approx(1.0 + 0.05 + 0.02 + 0.0121 + 0.1)
    simulated = SimulatedDevice(on, (), 0.0, random.Random(0))
    load = load_of(step)
    assert simulated.run_step(load, 5.0) == pytest.approx(5.0 + seconds)
    assert simulated.run_step(load, 5.1) == pytest.approx(5.0 + 2 * seconds), "it computes one step after another"
    assert simulated.run_step(load, 50.0) == pytest.approx(50.0 + seconds)


@pytest.mark.parametrize(
    ("begun", "stalls", "done"),
    [
        (10.0, [Stall(12.0, 5.0)], 11.0),  # after it
        (10.0, [Stall(2.0, 5.0)], 11.0),  # long over
        (10.0, [Stall(10.5, 5.0)], 16.0),  # in the middle
        (10.0, [Stall(8.0, 5.0)], 14.0),  # it begins in it
        (10.0, [Stall(15.6, 1.0), Stall(10.5, 5.0)], 17.0),  # two in one step
        (10.0, [Stall(15.0, 1.0), Stall(10.5, 5.0)], 16.5),  # one runs into the next
        (10.0, [Stall(10.2, 1.0), Stall(10.4, 1.0)], 12.2),  # overlapping ones are one
    ],
)
def test_a_stalled_device_goes_on_where_it_was(begun: float, stalls: list[Stall], done: float) -> None:
    simulated = SimulatedDevice(PLAIN, stalls, 0.0, random.Random(0))
    assert simulated.run_step(StepLoad(0, 1, 1, 0), begun) == pytest.approx(done)


def test_a_stall_is_seen_by_everybody_and_then_over() -> None:
    traffic = Traffic(ONE, 600.0, poissons=(Poisson("standard", 0.5, 60, 8),))
    calm, stalled = (run(traffic, stalls=stalls) for stalls in ((), (Stall(200.0, 60.0),)))
    assert max(calm.measure.gaps_s[1]) < 3
    assert max(stalled.measure.gaps_s[1]) > 60
    assert stalled.measure.submitted == calm.measure.submitted
    late = [[e.ttft_s for e in world.measure.endings if e.request.at_s > 400] for world in (calm, stalled)]
    assert late[0] == pytest.approx(late[1])


def test_copies_to_host_memory_take_the_device_s_time() -> None:
    on = msgspec.structs.replace(PLAIN, page_copy_s=0.25)
    simulated = SimulatedDevice(on, (), 0.0, random.Random(0))
    simulated.run_step(StepLoad(0, 1, 1, 0), 0.0)
    simulated.copied(4, 0.2)
    assert simulated.run_step(StepLoad(0, 1, 1, 0), 0.5) == pytest.approx(3.0)
    simulated.copied(2, 10.0)
    assert simulated.run_step(StepLoad(0, 1, 1, 0), 10.0) == pytest.approx(11.5)


def test_noise_moves_the_steps_and_not_their_mean() -> None:
    traffic = Traffic(ONE, 3000.0, floods=(Flood("standard", 8, 50, 50),))
    calm, noisy = (simulate(traffic, step_noise=noise) for noise in (0.0, 0.2))
    assert calm.step_ms_mean
    assert noisy.step_ms_mean
    assert noisy.step_ms_mean / calm.step_ms_mean == pytest.approx(math.exp(0.2**2 / 2), rel=0.03)
    spread = [tier_of(report, "standard").inter_token_ms.p99 or 0.0 for report in (calm, noisy)]
    assert 0 < 1.3 * spread[0] < spread[1]


# ---- nothing is lost, and all is the same again

CROWDED = msgspec.structs.replace(PLAIN, base_s=0.02, prefill_token_s=1e-4, pages=400, adapter_pages=3)


def everything(seed: int) -> tuple[Traffic, dict[str, Any]]:
    traffic = Traffic(
        ALL, 60.0, recorded(0.5, 60.0, seed),
        poissons=(Poisson("premium", 1.0, 60, 20),),
        floods=(Flood("batch", 20, 200, 60), Flood("standard", 4, 900, 30)),
        bursts=(Burst(20.0, 40, "premium", 100, 10),),
        noise=Noise("premium-1", 3.0), abort_rate=0.3, patience_s=2.0,
    )  # fmt: skip
    return traffic, {"stalls": (Stall(10.0, 3.0), Stall(40.0, 0.5)), "step_noise": 0.1, "seed": seed}


@pytest.mark.parametrize("host_pages", [0, 50])
@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_once_and_no_page_leaks(seed: int, steps_ahead: int, host_pages: int) -> None:
    traffic, more = everything(seed)
    on = msgspec.structs.replace(CROWDED, steps_ahead=steps_ahead, host_pages=host_pages, page_copy_s=1e-4)
    world = run(traffic, on, **more)  # which checks the books of scheduler and arena at its end
    measure = world.measure
    asked = [id(ending.request) for ending in measure.endings] + [id(asked) for asked, _ in measure.refusals]
    assert len(asked) == len(set(asked)) == measure.submitted
    expected = arrivals(traffic, seed)
    assert {id(one) for one in world._arrivals} <= set(asked), "one that arrived did not end"
    assert len(world._arrivals) == len(expected)
    assert {ending.reason for ending in measure.endings} == {"stop", "length", "aborted"}
    for ending in measure.endings:
        whole = ending.made == ending.request.new_tokens
        assert whole == (ending.reason != "aborted") or (ending.reason == "aborted" and whole)
        assert (ending.reason == "stop") <= ending.request.by_stop
    assert (sum(ending.swapped_tokens for ending in measure.endings) > 0) == bool(host_pages)
    made = sum(ending.made for ending in measure.endings)
    assert world.scheduler.results.tokens_made == made + world.scheduler.results.tokens_overrun
    assert world.scheduler.preemptions == sum(ending.preemptions for ending in measure.endings) > 0
    assert sum(sum(one.made) for one in measure.bins) == made
    assert sum(sum(one.arrived) for one in measure.bins) == measure.submitted
    assert sum(one.busy_s for one in measure.bins) == pytest.approx(measure.busy_s)


def test_the_same_seed_makes_the_same_bytes() -> None:
    made: list[tuple[bytes, str]] = []
    for seed in (4, 4, 5):
        traffic, more = everything(seed)
        world = run(traffic, CROWDED, **more)
        report = make_report(world, {"seed": seed})
        made.append((msgspec.json.encode(report), draw(world.measure, report, "the same")))
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_clients_who_leave_make_less_and_free_what_they_held() -> None:
    traffic = Traffic(ONE, 300.0, poissons=(Poisson("standard", 0.5, 100, 100),))
    staying, leaving = (simulate(dataclasses.replace(traffic, abort_rate=rate, patience_s=10.0)) for rate in (0.0, 1.0))
    group = tier_of(leaving, "standard").group
    assert tier_of(staying, "standard").group.aborted == 0
    assert group.aborted == group.requests > 100
    assert 0 < group.output_tokens < tier_of(staying, "standard").group.output_tokens / 4
    assert leaving.ended_at_s < staying.ended_at_s


def test_a_burst_waits_in_the_queue_and_drains() -> None:
    traffic = Traffic(ONE, 100.0, bursts=(Burst(30.0, 64, "standard", 100, 10),))
    world = run(traffic, system_tokens=0)
    waits = sorted(ending.queue_s for ending in world.measure.endings)
    assert len(waits) == 64
    assert waits[0] == 0.0
    assert waits[-1] > 10, "64 requests through 16 places"
    assert max(one.waiting[1] for one in world.measure.bins) >= 64 - 16
    assert world.measure.endings[-1].request.at_s == 30.0


def test_a_full_queue_refuses_and_a_flood_asks_again() -> None:
    tiers = (msgspec.structs.replace(SHIPPED_TIERS[1], queue_max=4, queue_target_ms=None),)
    report = simulate(Traffic(ONE, 200.0, floods=(Flood("standard", 40, 100, 20),)), tiers=tiers)
    group = report.tiers[0].group
    assert group.refused["queue_full"] > 20
    assert group.requests - group.refused["queue_full"] > 40, "those that are taken keep coming"
    assert report.tiers[0].ttft_holds is False, "a refused request had no first token"


def test_a_tenant_of_three_times_the_weight_is_served_three_times_as_much() -> None:
    floods = (Flood("standard", 20, 50, 10), Flood("standard", 20, 50, 10))
    traffic = Traffic(ONE, 2000.0, floods=floods, weights={"standard-flood-2": 3.0})
    report = simulate(traffic, system_tokens=0)
    one, three = (tenant_of(report, f"standard-flood-{k}").output_tokens for k in (1, 2))
    assert three / one == pytest.approx(3.0, rel=0.05)
    assert 0 < tier_of(report, "standard").served_gap <= tier_of(report, "standard").served_gap_bound


def test_a_drain_of_any_length_is_drawn_in_few_bins() -> None:
    """A second of arrivals, and hours until the last of them has its answer."""
    world = run(Traffic(ONE, 1.0, floods=(Flood("standard", 100, 50, 3000),)))
    measure = world.measure
    assert measure.ended_at > 10_000
    assert 120 <= len(measure.bins) <= 480
    assert len(measure.bins) * measure.bin_s >= measure.ended_at
    assert sum(sum(one.made) for one in measure.bins) == 100 * 3000
    assert sum(one.busy_s for one in measure.bins) == pytest.approx(measure.busy_s)
    assert max(one.waiting[1] for one in measure.bins) >= 100 - 16


def test_what_can_never_run_is_refused_and_a_flood_of_it_ends() -> None:
    report = simulate(Traffic(ONE, 30.0, floods=(Flood("standard", 2, 200_000, 5),)))
    group = tier_of(report, "standard").group
    assert set(group.refused) == {"too_long"}
    assert group.requests == sum(group.refused.values()) <= 2 * 30
    assert group.ttft_met is None, "it is nobody's missed target"


# ---- traffic


def test_a_noisy_tenant_leaves_all_others_requests_as_they_are() -> None:
    quiet = Traffic(ALL, 600.0, recorded(1.0, 600.0), abort_rate=0.2)
    loud = dataclasses.replace(quiet, noise=Noise("standard-1", 10.0))
    before, after = arrivals(quiet, 7), arrivals(loud, 7)
    noisy = [one for one in before if one.tenant == "standard-1"]
    assert [one for one in after if one.tenant != "standard-1"] == [one for one in before if one not in noisy]
    assert set(noisy) <= set(after)
    assert sum(one.tenant == "standard-1" for one in after) == 10 * len(noisy)
    assert all(a.at_s <= b.at_s < 600.0 for a, b in itertools.pairwise(after))
    assert arrivals(quiet, 8) != before


def test_tenants_and_adapters_are_dealt_by_their_zipf() -> None:
    population = Population({"premium": 1.0, "batch": 3.0}, tenants=4, tenant_zipf=1.0, adapters=2, base_share=0.5)
    asked = arrivals(Traffic(population, 1e9, recorded(10.0, 1000.0)), 0)
    count = len(asked)
    batch = [one for one in asked if one.tier == "batch"]
    assert len(batch) / count == pytest.approx(0.75, abs=0.02)
    harmonic = sum(1 / k for k in range(1, 5))
    for k in range(1, 5):
        share = sum(one.tenant == f"batch-{k}" for one in batch) / len(batch)
        assert share == pytest.approx(1 / k / harmonic, abs=0.03)
    assert {one.tier for one in asked} == {"premium", "batch"}
    assert sum(one.adapter is None for one in asked) / count == pytest.approx(0.5, abs=0.02)
    assert {one.adapter for one in asked if one.tenant == "batch-2"} == {None, "batch-2/1", "batch-2/2"}
    first = sum(one.adapter is not None and one.adapter.endswith("/1") for one in asked) / count
    assert first == pytest.approx(0.5 * 2 / 3, abs=0.02)


def test_prompts_share_their_tenant_s_beginning_and_nothing_else() -> None:
    population = Population({"standard": 1.0}, tenants=2, tenant_zipf=0.0, adapters=0)
    rows = tuple(TraceRow(20.0 * i, 64, 1) for i in range(60))
    report = simulate(Traffic(population, 2000.0, rows), system_tokens=32)
    for group in report.tenants:
        assert group.cached_tokens == 32 * (group.requests - 1), "all but the first find 32 tokens"
    assert simulate(Traffic(population, 2000.0, rows), system_tokens=0).prefix_hit_rate == 0.0


# ---- what is given


def test_a_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:47.5000000,396,109\n2023-11-16 18:15:46.0000000,374,44\n2023-11-17 00:00:00,1,1\n"
    )
    assert read_trace(file) == [TraceRow(0.0, 374, 44), TraceRow(1.5, 396, 109), TraceRow(20654.0, 1, 1)]


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no column TIMESTAMP; it needs TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "has no column GeneratedTokens"),
        (HEADER, "has no requests"),
        (HEADER + "2023-11-16,1,1\nyesterday,1,1\n", "line 3: Invalid isoformat string: 'yesterday'"),
        (HEADER + "2023-11-16,many,1\n", "line 2: invalid literal for int"),
        (HEADER + "2023-11-16,1\n", "line 2: "),
        (HEADER + "2023-11-16,0,1\n", "line 2: ContextTokens is 0; it must be from 1 to 16000000"),
        (HEADER + "2023-11-16,1,-4\n", "line 2: GeneratedTokens is -4; it must be from 1 to 16000000"),
        ("\xff", "is not text"),
    ],
)
def test_a_bad_trace_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=r"^--trace: ") as refused:
        read_trace(file)
    assert says in str(refused.value)
    with pytest.raises(BadInput, match="No such file"):
        read_trace(tmp_path / "nothing.csv")


FIVE = "base_s = 0.01\nprefill_token_s = 1e-5\nsequence_s = 1e-5\nkv_token_s = 1e-8\nadapter_s = 1e-4\n"


def test_a_device_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(FIVE)
    assert device(str(file)).costs() == Costs(0.01, 1e-5, 1e-5, 1e-8, 1e-4)
    other = tmp_path / "mine.json"
    other.write_bytes(msgspec.json.encode(DEVICES["h200-8b"]))
    assert device(str(other)) == DEVICES["h200-8b"] == device("h200-8b")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FIVE.replace("0.01", "-1"), "base_s: Expected `float` >= 1e-06"),
        (FIVE.replace("1e-4", "nan"), "adapter_s: Expected `float` >= 0"),
        (FIVE.replace("1e-4", "inf"), "adapter_s: Expected `float` <= 60"),
        (FIVE + "speed = 3\n", "Object contains unknown field `speed`"),
        ("base_s = 1\n", "Object missing required field `prefill_token_s`"),
        (
            FIVE + "sequences_max = 2048\n",
            "sequences_max is 2048; its limit is step_tokens_max - prefill_tokens_min, 1984",
        ),
        ("base_s", "Expected '='"),
    ],
)
def test_a_bad_device_is_refused_by_its_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"^--device: ") as refused:
        device(str(file))
    assert says in str(refused.value)
    with pytest.raises(BadInput, match=r"neither a shipped device \(h200-8b, laptop-cpu\)"):
        device("b200")


def test_tiers_come_from_the_configuration_file() -> None:
    assert read_tiers(REPO / "laneway.toml") == SHIPPED_TIERS


# What was measured: prefill tokens, sequences, KV tokens, distinct adapters, milliseconds a step.
MEASURED: dict[str, list[tuple[int, int, int, int, float]]] = {
    "h200-8b": [
        (0, 256, 256 * 192, 0, 9.40),  # docs/LOG.md: a decode step of 256 rows
        (0, 256, 256 * 192, 64, 13.8),  # the same over 64 adapters
        (0, 128, 128 * 500, 16, 10.06),  # benchmarks/results/mixed_step.csv
        (64, 129, 128 * 500 + 64, 16, 13.39),
        (256, 129, 128 * 500 + 256, 16, 18.40),
        (2048, 129, 128 * 500 + 2048, 16, 62.29),
        (0, 32, 32 * 8192, 0, 13.50),  # benchmarks/results/long_context.csv
        (8192, 1, 8192, 0, 225.9),
    ],
    "laptop-cpu": [
        (0, 1, 64, 0, 1000 / 22.89),  # benchmarks/results/cpu_decode.csv: one stream
        (0, 8, 8 * 64, 0, 8000 / 71.16),  # eight
        (0, 8, 8 * 64, 4, 8000 / 61.57),  # eight, over four adapters
        (512, 1, 512, 0, 841.1),  # a cold prompt
    ],
}


@pytest.mark.parametrize("name", DEVICES)
def test_shipped_devices_cost_what_was_measured(name: str) -> None:
    costs = DEVICES[name].costs()
    for *load, took_ms in MEASURED[name]:
        assert 1000 * costs.step_seconds(StepLoad(*load)) == pytest.approx(took_ms, rel=0.13)
    assert DEVICES[name].source


# ---- what it is for: promises over simulated hours


def test_the_gap_is_what_a_plain_account_of_it_says() -> None:
    """Against every pair's own history, over random waits and services."""
    for seed in range(5):
        draws = random.Random(seed)
        gap = ServedGap(4)
        for name in "abcd":
            gap.index(name)
        waiting = [0] * 4
        since: dict[tuple[int, int], list[float]] = {}  # of a pair that waits: how far the one was ahead, each time
        widest = 0.0
        for _ in range(400):
            tenant = draws.randrange(4)
            match draws.randrange(4):
                case 0:
                    gap.note_waiting(tenant)
                    waiting[tenant] += 1
                case 1 if waiting[tenant]:
                    gap.note_start(tenant)
                    waiting[tenant] -= 1
                case _:
                    gap.totals[tenant] += draws.randrange(100)
                    gap.note_step()
            for pair in itertools.combinations(range(4), 2):
                if not (waiting[pair[0]] and waiting[pair[1]]):
                    since.pop(pair, None)
                    continue
                history = since.setdefault(pair, [])
                history.append(gap.totals[pair[0]] - gap.totals[pair[1]])
                widest = max(widest, max(history) - min(history))
        assert gap.widest == widest > 200


def slower(on: Device, factor: float, **sizes: int) -> Device:
    """A device on which an hour has so many times fewer steps, for a test's sake: all times are scaled, and nothing
    else."""
    names = ("base_s", "prefill_token_s", "sequence_s", "kv_token_s", "adapter_s")
    return msgspec.structs.replace(on, **{name: getattr(on, name) * factor for name in names}, **sizes)


def slower_tier(tier: Tier, factor: float) -> Tier:
    """Its targets to the same measure; and it refuses nobody, so that all are counted."""
    names = ("ttft_base_ms", "ttft_per_1k_prompt_tokens_ms", "inter_token_ms", "ageing_s")
    scaled = {name: getattr(tier, name) * factor for name in names}
    return msgspec.structs.replace(tier, **scaled, queue_target_ms=None, queue_max=100_000)


HOUR_S = 3600.0
THREE_FLOODS = (Flood("standard", 40, 2000, 50), Flood("standard", 40, 100, 400), Flood("standard", 40, 600, 200))


def test_tenants_who_wait_are_served_alike_within_the_theorem_s_bound() -> None:
    """Without preemption and cache. Request by request, as a plain queue would take them, one of the three would be
    served more than twice as much as another."""
    tiers = (slower_tier(SHIPPED_TIERS[1], 40),)
    traffic = Traffic(Population({"standard": 1.0}, tenants=1, adapters=0), HOUR_S, floods=THREE_FLOODS)
    world = run(traffic, slower(DEVICES["h200-8b"], 40, sequences_max=16), tiers, system_tokens=0)
    report = make_report(world, {})
    (tier,) = report.tiers
    assert report.preemptions == 0
    assert report.prefix_hit_rate == 0
    assert 0 < tier.served_gap <= tier.served_gap_bound
    assert tier.served_gap_bound < min(world.measure.served[0].totals[:3]) / 3, "or the hour would prove nothing"


def test_with_preemption_cache_and_adapters_the_gap_is_at_most_twice_the_bound() -> None:
    tiers = tuple(slower_tier(tier, 40) for tier in SHIPPED_TIERS)
    traffic = Traffic(
        Population({"premium": 1.0}, tenants=4, adapters=2), HOUR_S,
        poissons=(Poisson("premium", 0.1, 512, 64),), floods=THREE_FLOODS,
    )  # fmt: skip
    on = slower(DEVICES["h200-8b"], 40, sequences_max=32, pages=1500, adapter_pages=20)
    report = simulate(traffic, on, tiers)
    tier = tier_of(report, "standard")
    assert report.preemptions > 100
    assert set(tier.group.recomputed_tokens) <= {"premium", "standard"}
    assert tier.group.prefix_hit_rate is not None
    assert tier.group.prefix_hit_rate > 0.1
    assert 0 < tier.served_gap <= 2 * tier.served_gap_bound


@pytest.mark.slow
def test_a_noisy_tenant_leaves_the_quiet_ones_their_first_tokens_and_their_prefixes() -> None:
    """One of ten tenants of a tier asks ten times as often, for an hour: nearly as much again as all ask together.
    Recorded traffic at Azure's rate on a device as busy with it as an H200."""
    traffic = Traffic(
        Population({"standard": 1.0}, tenants=10, tenant_zipf=0.0, adapters=2), HOUR_S, recorded(5.38 / 16, HOUR_S)
    )
    on, tiers = slower(DEVICES["h200-8b"], 16), tuple(slower_tier(tier, 16) for tier in SHIPPED_TIERS)
    p95_s: list[float] = []
    hit_rate: list[float] = []
    for noise in (None, Noise("standard-1", 10.0)):
        world = run(dataclasses.replace(traffic, noise=noise), on, tiers)
        quiet = [ending for ending in world.measure.endings if ending.request.tenant != "standard-1"]
        waits = sorted(ending.ttft_s or math.inf for ending in quiet)
        p95_s.append(waits[int(0.95 * len(waits))])
        hit_rate.append(sum(one.cached_tokens for one in quiet) / sum(one.prompt_tokens for one in quiet))
    assert p95_s[1] <= 1.2 * p95_s[0]
    assert abs(hit_rate[1] - hit_rate[0]) <= 0.02
    assert hit_rate[0] > 0.15


def test_premium_keeps_its_first_tokens_under_a_flood_of_batch() -> None:
    """The flood that vLLM was measured under, on an H200 as it was measured: its premium TTFT p99 was 3,887 ms, its
    batch throughput 3,785 tokens a second."""
    premium = msgspec.structs.replace(SHIPPED_TIERS[0], ttft_base_ms=500.0, inter_token_ms=50.0)
    traffic = Traffic(
        Population({"premium": 1.0}, tenants=8, base_share=0.0), 30.0, poissons=(Poisson("premium", 4.0, 512, 64),)
    )
    on = msgspec.structs.replace(DEVICES["h200-8b"], pages=8192)
    alone = simulate(traffic, on, (premium, *SHIPPED_TIERS[1:]))
    flooded = simulate(
        dataclasses.replace(traffic, floods=(Flood("batch", 512, 512, 512),)), on, (premium, *SHIPPED_TIERS[1:])
    )
    before, under = tier_of(alone, "premium"), tier_of(flooded, "premium")
    assert before.group.requests == under.group.requests > 100
    assert under.ttft_holds is True
    assert (before.group.ttft_ms.p99 or 0) < (under.group.ttft_ms.p99 or 0) <= 177
    assert (under.inter_token_ms.p99 or 0) <= 60
    assert under.group.preemptions == 0
    assert tier_of(flooded, "batch").output_tokens_per_s >= 3785


def test_tiers_keep_their_targets_on_two_models_that_batch_saturates() -> None:
    """The mix of benchmarks.serving.two_models, with its targets. Steps are short for premium's sake, and standard's
    prefill has what is left of them before batch's decodes do."""

    def tier(tier: Tier, ttft_ms: float, inter_token_ms: float) -> Tier:
        targets = {"ttft_base_ms": ttft_ms, "ttft_per_1k_prompt_tokens_ms": 2 * ttft_ms}
        sizes = {"inter_token_ms": inter_token_ms, "queue_target_ms": None, "queue_max": 1000}
        return msgspec.structs.replace(tier, **targets, **sizes)

    premium, standard, batch = SHIPPED_TIERS
    tiers = (tier(premium, 50, 40), tier(standard, 200, 60), tier(batch, 3_600_000, 1000))
    on = msgspec.structs.replace(DEVICES["h200-8b"], pages=16_384, sequences_max=384, prefill_tokens_min=64)
    population = Population({"standard": 1.0}, tenants=1, adapters=0, models=2, model_zipf=0.0)
    poissons = (Poisson("premium", 4.0, 512, 64), Poisson("standard", 4.0, 512, 128))
    traffic = Traffic(population, 25.0, poissons=poissons, floods=2 * (Flood("batch", 256, 512, 512),))
    report = simulate(traffic, on, tiers, system_tokens=0, seed=1)
    for name in ("premium", "standard"):
        kept = tier_of(report, name)
        assert kept.group.requests > 80
        assert (kept.ttft_holds, kept.inter_token_holds) == (True, True), name
    assert tier_of(report, "batch").output_tokens_per_s > 6000


def test_adapters_take_their_time_and_who_uses_none_is_answered_meanwhile() -> None:
    """One tenant's six, each loaded once, on a device that is mostly idle."""
    traffic = Traffic(
        Population({"standard": 1.0}, tenants=1, adapters=6, base_share=0.5), 60.0,
        poissons=(Poisson("standard", 2.0, 64, 4),),
    )  # fmt: skip
    instant = msgspec.structs.replace(DEVICES["h200-8b"], adapter_pages=1)
    load_s = 0.25

    def first_tokens(device: Device) -> tuple[list[float], int]:
        world = run(traffic, device)
        assert len(world.adapters.resident()) == 6
        (group,) = (tier.group for tier in make_report(world, {}).tiers if tier.tier == "standard")
        return [group.ttft_ms.p50 or 0, group.ttft_ms.max or 0], group.requests

    (p50, longest), count = first_tokens(instant)
    (p50_slow, longest_slow), count_slow = first_tokens(msgspec.structs.replace(instant, adapter_load_s=load_s))
    assert count == count_slow > 50
    assert p50_slow == pytest.approx(p50, rel=0.1), "six of a hundred waited"
    assert longest < 100 < 1000 * load_s <= longest_slow < 1000 * load_s + longest + 20


MODELS = Population({"standard": 1.0}, tenants=4, adapters=2, models=10)
# Ten of a gigabyte, of which three fit; each 0.3 s away.
SMALL = msgspec.structs.replace(
    PLAIN, base_s=0.01, prefill_token_s=1e-5, sequences_max=64, weights_bytes=10**9, weights_load_s=0.3
)


def test_models_are_dealt_by_their_zipf_and_have_their_own_adapters() -> None:
    traffic = Traffic(MODELS, 1000.0, poissons=(Poisson("standard", 5.0, 10, 1),))
    asked = arrivals(traffic, 0)
    counts = Counter(one.model for one in asked)
    assert counts["model-1"] / counts["model-4"] == pytest.approx(4, rel=0.3)
    assert all(one.adapter is None or one.adapter.endswith(f"/{one.model}") for one in asked)
    single = arrivals(dataclasses.replace(traffic, population=dataclasses.replace(MODELS, models=1)), 0)
    assert [one.at_s for one in single] == [one.at_s for one in asked], "nothing else is drawn otherwise"


def test_keeping_what_is_used_most_finds_more_on_the_device_than_plain_lru() -> None:
    traffic = Traffic(MODELS, 300.0, poissons=(Poisson("standard", 1.0, 100, 16),))
    found = {}
    for keep in ("use", "lru"):
        world = run(traffic, SMALL, models_resident=3, keep=keep, seed=3)
        weights = make_report(world, {}).weights
        assert weights
        assert weights.hit_rate
        assert weights.loads == weights.evictions
        assert weights.ttft_miss_ms.p50
        assert weights.ttft_hit_ms.p50
        assert weights.ttft_miss_ms.p50 - weights.ttft_hit_ms.p50 == pytest.approx(300, abs=100)
        found[keep] = weights.hit_rate
    assert found["use"] > found["lru"] + 0.05
    assert make_report(run(traffic, SMALL, models_resident=10), {}).weights is None, "all of them fit"


def test_premium_on_many_models_keeps_its_first_tokens_beside_batch_on_others() -> None:
    population = Population({"premium": 1.0}, tenants=2, adapters=0, models=3)
    floods = tuple(Flood("batch", 8, 200, 50) for _ in range(3))
    traffic = Traffic(population, 60.0, poissons=(Poisson("premium", 1.0, 100, 10),), floods=floods)
    report = simulate(traffic, SMALL, models_resident=2, seed=1)
    premium = tier_of(report, "premium")
    assert premium.ttft_holds
    assert premium.inter_token_holds
    assert tier_of(report, "batch").group.output_tokens > 10_000


def test_four_adapters_load_at_once() -> None:
    clock = Clock()
    adapters = SimulatedAdapters(1, 1.0, clock)
    adapters.models = dict.fromkeys("abcdef", "m")
    assert [adapters.request_load(digest) for digest in "abcdef"] == [True] * 4 + [False] * 2
    assert not adapters.is_adapter_ready("a", hidden=True)
    assert adapters.next_at() == 1.0
    clock.now = 1.0
    assert adapters.is_adapter_ready("a", hidden=False)
    assert adapters.request_load("e")
    assert adapters.next_at() == 2.0
    adapters.cancel_load("e")
    assert adapters.next_at() is None
    adapters.place_adapter("a", [0])
    adapters.cancel_load("a")
    assert adapters.is_adapter_ready("a", hidden=False), "it is in the arena"
    adapters.evict_adapter("a")
    assert not adapters.is_adapter_ready("a", hidden=False), "there is no host memory here"


# ---- the command


def laneway(*arguments: str, exits: int = 0, config: str | None = None) -> subprocess.CompletedProcess[str]:
    """Through the console script, as an operator starts it."""
    command = [str(Path(sys.executable).with_name("laneway")), *(["--config", config] if config else []), "simulate"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exits, done.stderr
    return done


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.5000000,{300 + second},{20 + second}\n" for second in range(60)]
    file.write_text(HEADER + "".join(rows))
    return file


def test_the_command_reports_draws_and_repeats_itself(tmp_path: Path, trace: Path) -> None:
    made: list[bytes] = []
    for name in ("a", "b"):
        files = ["--json", str(tmp_path / f"{name}.json"), "--svg", str(tmp_path / f"{name}.svg")]
        settings = ["--mix", "premium=1", "--mix", "batch=2", "--by-tenant", "--stall", "5:8", "--abort-rate", "0.1"]
        done = laneway("--trace", str(trace), "--speed", "2", *settings, *files)
        made.append((tmp_path / f"{name}.json").read_bytes() + (tmp_path / f"{name}.svg").read_bytes())
    assert made[0] == made[1]
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["schema"] == 1
    assert report["duration_s"] == pytest.approx(59 / 2, abs=0.001), "the last row too"
    assert [tier["tier"] for tier in report["tiers"]] == ["premium", "standard", "batch"]
    assert sum(tier["group"]["requests"] for tier in report["tiers"]) == 60
    assert report["tiers"][1]["ttft_holds"] is None, "nobody asked"
    assert report["settings"]["device"]["base_s"] == DEVICES["h200-8b"].base_s
    assert report["settings"]["traffic"]["rows"] == 60
    for line in ("premium: first token within 1000 ms + 1000 ms per 1,000 prompt tokens", "batch-1 "):
        assert line in done.stdout
    assert "simulated in" in done.stderr
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag.endswith("svg")
    words = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert "60 requests" in words
    assert "premium: first token fails" in words, "a stall of eight seconds"


def test_the_command_takes_the_tiers_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "laneway.toml"
    config.write_text(
        '[[tiers]]\nname = "gold"\nservice_tier = "gold"\nttft_base_ms = 7\nttft_per_1k_prompt_tokens_ms = 1\n'
        "inter_token_ms = 7\n"
        '[[tiers]]\nname = "rest"\nservice_tier = "rest"\n'
    )
    asks = ("--poisson", "gold:1:100:10", "--duration", "10", "--quiet")
    done = laneway(*asks, config=str(config))
    assert "gold: first token within 7 ms + 1 ms per 1,000 prompt tokens FAILS" in done.stdout
    assert done.stderr == ""
    assert laneway(*asks, "--strict", config=str(config), exits=1).stdout == done.stdout
    shipped = ("--tiers", str(REPO / "laneway.toml"))
    refused = laneway(*asks, *shipped, config=str(config), exits=2)
    assert "there is no tier 'gold'" in refused.stderr, "the last word is the command's"
    config.write_text("[gateway]\nport = 0\n")
    assert "gateway.port" in laneway(*asks, config=str(config), exits=2).stderr


@pytest.mark.parametrize("duration_s", [0.5, 30.0, 3000.0])
def test_everything_that_is_drawn_is_in_the_picture(duration_s: float) -> None:
    traffic = Traffic(ALL, duration_s, floods=(Flood("batch", 20, 100, 20), Flood("premium", 1, 10, 10)))
    world = run(traffic)
    root = ElementTree.fromstring(draw(world.measure, make_report(world, {}), "a < b & c"))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    texts = [element for element in root.iter() if element.tag.endswith("text")]
    assert texts[0].text == "a < b & c"
    assert [text.text.split(":")[0] for text in texts[1:4] if text.text] == ["premium", "standard", "batch"]
    for text in texts:
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height
    paths = [element.attrib["d"] for element in root.iter() if element.tag.endswith("path")]
    points = [pair.split(" ") for path in paths for pair in re.findall(r"[ML]([\d.]+ [\d.]+)", path)]
    assert len(points) > 200
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    assert "nan" not in "".join(paths)


def test_every_field_of_a_report_and_of_a_device_is_documented() -> None:
    text = (REPO / "docs" / "contributors" / "simulator.md").read_text()
    kinds: tuple[type[msgspec.Struct], ...] = (
        SimulationReport,
        TierReport,
        WeightsReport,
        GroupReport,
        Percentiles,
        Device,
    )
    fields = {field for kind in kinds for field in kind.__struct_fields__} - {"source", "group"}
    assert not [field for field in sorted(fields) if f"`{field}`" not in text]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "there are no requests: --trace, --poisson, --flood, --burst or --conversations is needed"),
        (("--trace", "nothing.csv"), "--trace: nothing.csv: No such file or directory"),
        (("--device", "abacus"), "--device: 'abacus' is neither a shipped device"),
        (("--pages", "0"), "the device: pages: Expected `int` >= 1"),
        (("--sequences-max", "5000"), "the device: sequences_max: Expected `int` <= 4096"),
        (("--flood", "premium:1:1"), "--flood 'premium:1:1': TIER:OUTSTANDING:PROMPT:NEW is needed"),
        (
            ("--flood", "gold:1:1:1"),
            "there is no tier 'gold'; there are premium, standard, batch",
        ),
        (("--flood", "batch:0:1:1"), "--flood 'batch:0:1:1': '0' is not a whole number from 1 to 100000"),
        (("--poisson", "batch:nan:1:1"), "--poisson 'batch:nan:1:1': 'nan' is not a number from 1e-06 to 10000"),
        (("--poisson", "batch:1:x:1"), "'x' is not a whole number from 1 to 16000000"),
        (("--poisson", "batch:10000:1:1", "--duration", "604800"), "--poisson: 6048000000 requests of tier batch; the"),
        (("--burst", "1:2"), "--burst '1:2': AT_S:COUNT:TIER[:PROMPT:NEW] is needed"),
        (("--burst", "-1:2:batch"), "'-1' is not a number from 0 to 60"),
        (("--burst", "61:2:batch"), "'61' is not a number from 0 to 60"),
        (
            ("--weight", "batch-1=0", "--burst", "1:2:batch"),
            "'0' is not a number from 0.001 to 1000",
        ),
        (("--weight", "batch=2", "--burst", "1:2:batch"), "--weight 'batch=2': there is no tenant 'batch'; there are"),
        (("--stall", "5"), "--stall '5': AT_S:FOR_S is needed"),
        (("--mix", "batch=-1"), "--mix 'batch=-1': '-1' is not a number from 0 to 1e+06"),
        (("--mix", "batch=0"), "--mix: all weights are 0"),
        (("--noisy", "batch-21:2", "--burst", "1:2:batch"), "--noisy 'batch-21:2': there is no tenant 'batch-21'"),
        (("--noisy", "batch-1:0.5"), "'0.5' is not a number from 1 to 1000"),
        (("--noisy", "premium-1:2", "--burst", "1:2:batch"), "--noisy: tenant 'premium-1' has no requests"),
        (("--abort-rate", "1.5"), "--abort-rate"),
        (("--speed", "nan"), "--speed"),
        (("--tiers", "nothing.toml"), "--tiers: nothing.toml: No such file"),
        (("--json", "no/where.json"), "--json: the folder of no/where.json does not exist"),
    ],
)
def test_the_command_refuses_by_name(arguments: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2, result.output
    assert says in result.output
