"""The simulated fleet: no text is lost to a kill, the router keeps prefixes and adapters where they are, and the same
seed makes the same report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from engine.protocol.tiers import SHIPPED_TIERS
from engine.simulate.__main__ import main
from engine.simulate.conversations import ConversationRate
from engine.simulate.devices import Device
from engine.simulate.fleet import ONE_ENGINE, FleetSettings, FleetWorld, Kill, hit_rate
from engine.simulate.fleet_report import fleet_report
from engine.simulate.traffic import Population, Traffic

# A step of 20 ms, and 0.1 ms more for each token of prefill.
DEVICE = Device(
    base_s=0.02, prefill_token_s=1e-4, sequence_s=1e-4, kv_token_s=0, adapter_s=0, pages=2048, adapter_pages=8,
    adapter_load_s=0.05, step_tokens_max=1024, prefill_tokens_min=256, sequences_max=64,
)  # fmt: skip
POPULATION = Population(dict.fromkeys(("premium", "standard", "batch"), 1.0), tenants=4, adapters=2)
RATES = (
    ConversationRate("premium", 1.0, 4.0, 100, 12, 1.0),
    ConversationRate("standard", 2.0, 4.0, 100, 12, 1.0),
)


def settings(**more: Any) -> FleetSettings:
    shared = {"conversations": RATES, "engines": 4, "gateways": 2, "system_tokens": 256, "device": DEVICE}
    given: dict[str, Any] = shared | more
    seconds, population = given.pop("seconds", 12.0), given.pop("population", POPULATION)
    return FleetSettings(SHIPPED_TIERS, traffic=Traffic(population, seconds), **given)


def run(policy: str, **more: Any) -> FleetWorld:
    world = FleetWorld(settings(**more), policy)
    world.run()
    assert all(text.made == text.new_tokens and text.ended_at is not None for text in world.texts)
    return world


def test_four_engines_find_nearly_what_one_big_engine_finds() -> None:
    worlds = {policy: run(policy) for policy in ("predicted", "random", ONE_ENGINE)}
    rate = {policy: hit_rate(list(world.engines.values())) or 0.0 for policy, world in worlds.items()}
    assert rate["predicted"] >= 0.9 * rate[ONE_ENGINE]  # 12 seconds, most of them with cold caches
    assert rate["random"] < 0.75 * rate["predicted"]
    loads = {policy: sum(own.adapter_loads for own in world.engines.values()) for policy, world in worlds.items()}
    assert loads["predicted"] < loads["random"]


def test_texts_of_a_killed_engine_continue_on_others() -> None:
    world = run("predicted", kills=(Kill(5.0, 1, 2.0), Kill(6.0, 3, None)))
    assert world.resumed
    assert any(text.made > 1 and text.gap_s > 0 for text in world.resumed)
    assert max(text.gap_s for text in world.resumed) < 1.0
    assert {engine.name for engine in world.dead} == {"engine-1", "engine-3"}
    assert set(world.engines) == {"engine-1", "engine-2", "engine-4"}, "engine 1 came back"
    (report,) = fleet_report([world], {}).runs
    assert report.resumed == len(world.resumed)
    assert sum(engine.killed for engine in report.engines) == 2


def test_without_an_engine_texts_wait_for_one() -> None:
    world = run("predicted", engines=1, kills=(Kill(5.0, 1, 3.0),))
    assert max(text.gap_s for text in world.resumed) > 3.0


def test_a_hot_adapter_is_replicated_and_cold_ones_stay_where_they_are() -> None:
    simple = {"simple": True, "engines": 8, "seconds": 30.0}
    # One adapter, with more prompts than two engines compute.
    hot = Population({"standard": 1.0}, tenants=1, adapters=1, base_share=0.0)
    crowd = (ConversationRate("standard", 30.0, 1.0, 800, 4, 1.0),)
    engines = run("predicted", conversations=crowd, population=hot, **simple).engines.values()
    assert 3 <= sum(engine.adapter_loads for engine in engines) <= 8
    # 40 adapters, a few requests of each: no engine needs more than one load of each, and few are on two engines.
    cold = Population({"standard": 1.0}, tenants=8, adapters=5, base_share=0.0, adapter_zipf=0.0)
    calm = (ConversationRate("standard", 10.0, 1.0, 200, 4, 1.0),)
    kept, moved = (
        sum(
            engine.adapter_loads
            for engine in run(policy, conversations=calm, population=cold, **simple).engines.values()
        )
        for policy in ("predicted", "random")
    )
    assert kept <= 2 * 40
    assert kept < moved / 2


def test_two_hundred_simple_engines() -> None:
    rates = (ConversationRate("standard", 40.0, 3.0, 200, 20, 1.0),)
    report = fleet_report([run("predicted", simple=True, engines=200, conversations=rates, seconds=5.0)], {})
    again = fleet_report([run("predicted", simple=True, engines=200, conversations=rates, seconds=5.0)], {})
    assert msgspec.json.encode(report) == msgspec.json.encode(again)
    assert report.runs[0].prefix_hit_rate


COMMAND = ["--engines", "2", "--conversations", "standard:1:3:100:8:1", "--duration", "6", "--quiet"]


def test_the_command_line(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "f.json"), "--svg", str(tmp_path / "f.svg")]
    more = ["--kill-at", "3:2:1", "--poisson", "batch:1:100:4", "--adapter-load-s", "0.01"]
    done = CliRunner().invoke(main, [*COMMAND, *more, *files, "--routing", "predicted", "--routing", "sticky"])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "f.json").read_text())
    assert [own["routing"] for own in report["runs"]] == ["predicted", "sticky"]
    assert report["settings"]["kills"] == [{"at_s": 3.0, "engine": 2, "restart_s": 1.0}]
    assert report["runs"][0]["requests"] > 6
    assert "sticky" in done.output
    ElementTree.fromstring((tmp_path / "f.svg").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kill-at", "1:1", "--poisson", "batch:1:9:9"], "--kill-at needs --engines"),
        ([*COMMAND, "--kill-at", "1:3"], "not a whole number from 1 to 2"),
        ([*COMMAND, "--flood", "batch:1:9:9"], "--flood is not simulated with --engines"),
        ([*COMMAND, "--conversations", "gold:1:3:100:8:1"], "there is no tier 'gold'"),
        (["--engines", "2"], "--conversations"),
    ],
)
def test_invalid_arguments_are_named(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
