"""The benchmarks of several models over the fake engine: what is asked and counted, and what a failure leaves."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.files.spec import BaseShape
from benchmarks import example_adapters
from benchmarks.serving import ceilings, flood, many_models, shapes, two_models
from benchmarks.serving.gateway import Gateway, InboxLine, Measured, Phase, Request, Traffic, drive
from benchmarks.serving.processes import EngineProcess, NotStarted, SocketLine, measure, settings_of, started
from engine.fake.runner import build_fake_runner
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import Abort, Snapshot, Submit, Watch
from engine.protocol.inbox import Inbox
from engine.protocol.snapshot_parts import ModelPlace, Preemption

FAKE = FakeConfig(step_ms=1.0, prefill_ms_per_1k_tokens=1.0, steps_ahead=1, pages=24)
DEVICE = ceilings.Device("a GPU", copy_bytes_per_s=4e12, product_flops_per_s=7e14, to_device_bytes_per_s=5e10)


def config(**changes: Any) -> EngineConfig:
    own: dict[str, Any] = {
        "models": (ModelConfig(name="a"), ModelConfig(name="b", digest="b" * 64)),
        "tiers": flood.tiers(flood.parse([])),
        "step_tokens_max": 64,
        "prefill_tokens_min": 16,
        "sequences_max": 8,
        "fake": FAKE,
    }
    return EngineConfig(**(own | changes))


def snapshot(preemptions: list[Preemption] | None = None, models: list[ModelPlace] | None = None) -> Snapshot:
    return Snapshot("epoch", 1, 1, 1, [], b"", 1, [], [], 0, preemptions or [], 0, [], 0, models or [])


def place(name: str, loads: int) -> ModelPlace:
    return ModelPlace(name, "device", False, False, False, 1, 16, 0, 0, 0, 0.0, loads)


# ---- the flood, with a model for each tier


@pytest.fixture(scope="module")
def halves() -> list[Measured]:
    own = config()
    premium = Traffic("premium", "premium", 48, 5, rate=40.0, models=("a",))
    batch = Traffic("batch", "batch", 48, 30, outstanding=12, models=("b",))
    bench = flood.Bench(own, build_fake_runner(own), {}, "fake", premium, batch, lead_s=0.2, watch_s=0.05)
    return drive(own, bench.runner, {}, flood.flood_phases(bench, 20), seed=1)


def test_both_models_are_warm_before_one_is_measured_under_the_flood_of_the_other(halves: list[Measured]) -> None:
    assert [half.phase.name for half in halves] == ["warm", "warm", "alone", "flood"]
    assert [{request.model for request in half.requests} for half in halves] == [{"a"}, {"b"}, {"a"}, {"a", "b"}]
    under = halves[-1]
    flood.check(halves[-2:], "premium", refusals=False)
    assert {request.traffic.name: request.model for request in under.requests} == {"premium": "a", "batch": "b"}
    assert {(step.model, step.switched) for step in under.steps} >= {("a", True), ("b", True), ("b", False)}


def test_who_preempted_whom_is_seen_once_each(halves: list[Measured]) -> None:
    under = halves[-1]
    seen = flood.preempted_by(under)
    assert seen[("batch", "premium", "recompute")] > 0, "one model's premium takes pages of another's batch"
    # Those between the last look and the end are not.
    assert sum(seen.values()) <= sum(request.usage.preemptions for request in under.requests)
    assert flood.preempted_by(halves[-2]) == {}


def test_what_was_preempted_before_the_phase_is_not_its_own() -> None:
    def one(number: int, age_s: float) -> Preemption:
        return Preemption(number, age_s, "r", "batch", "premium", "swap")

    measured = Measured(Phase("flood", (), lead_s=2.0), began_s=102.0, ended_s=110.0)
    measured.watched = [(101.0, snapshot([one(1, 1.5), one(2, 0.5)])), (102.0, snapshot([one(2, 1.5), one(3, 0.1)]))]
    assert flood.preempted_by(measured) == {("batch", "premium", "swap"): 2}


# ---- phases of seconds, and models by Zipf's law


def test_a_phase_of_seconds_waits_for_what_came_within_them() -> None:
    own = config()
    poisson = Traffic("poisson", "premium", 16, 4, rate=60.0, models=("a",))
    filling = Traffic("filling", "batch", 16, 4, outstanding=3, models=("b",))
    phase = Phase("both", (filling, poisson), lead_s=0.1, seconds=0.4)
    (measured,) = drive(own, build_fake_runner(own), {}, [phase], seed=3)
    assert measured.ended_s == pytest.approx(measured.began_s + 0.4)
    came = [request for request in measured.requests if request.traffic is poisson]
    assert min(request.due_s for request in came) < measured.began_s, "it begins with the lead"
    assert max(request.due_s for request in came) <= measured.ended_s
    assert all(len(request.token_s) == 4 for request in came if request.due_s >= measured.began_s)
    both = measured.tokens_per_s("poisson") + measured.tokens_per_s("filling")
    assert both == pytest.approx(measured.tokens_per_s())
    assert both > 0


def test_models_are_drawn_by_zipfs_law_and_alike_for_every_engine() -> None:
    names = tuple(f"m{index}" for index in range(10))
    traffic = Traffic("t", "one", 1, 1, models=names)

    def drawn(seed: int) -> list[str]:
        gateway = Gateway({name: InboxLine(Inbox()) for name in names}, {}, 100, seed)
        return [gateway.model_of(handle, traffic) for handle in range(3000)]

    first = drawn(1)
    assert first == drawn(1) != drawn(2)
    counts = Counter(first)
    three = sum(counts[name] for name in names[:3]) / 3000
    assert three == pytest.approx(many_models.CPU.hits_max, abs=0.03)
    assert many_models.CPU.hits_max == pytest.approx((1 + 1 / 2 + 1 / 3) / sum(1 / n for n in range(1, 11)))


# ---- engines of their own


def tiny(**changes: Any) -> two_models.Sizes:
    own = {"lead_s": 0.2, "seconds": 0.6, "switch_s": 0.3, "rate": 20.0, "sequences": 16, "outstanding": 12}
    return replace(two_models.cpu_sizes(), **(own | changes))


def faked(settings: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    fake = {"step_ms": 1.0, "prefill_ms_per_1k_tokens": 1.0, "steps_ahead": 1, "vocab_size": 2048}
    return {name: own | {"fake": fake} for name, own in settings.items()}


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    found = {}
    sizes = tiny()
    for setup in two_models.SETUPS:
        directory = tmp_path_factory.mktemp(setup)
        models = [ModelConfig(name=name, digest=shapes.digest_of(name)) for name in two_models.MODELS]
        settings = faked(two_models.engine_settings(setup, sizes, models, "cpu"))
        with started(directory, settings, fake=True) as lines:
            assert len(lines) == len(settings) == 1 + (setup == "two")
            found[setup] = two_models.figures(lines, sizes, seed=1)
    return found


def test_two_engines_share_what_one_has_alone() -> None:
    sizes, models = two_models.gpu_sizes(), [ModelConfig(name="a"), ModelConfig(name="b")]
    (one,) = two_models.engine_settings("one", sizes, models, "cuda").values()
    two = list(two_models.engine_settings("two", sizes, models, "cuda").values())
    assert [len(own["models"]) for own in (one, *two)] == [2, 1, 1]
    for shared in ("arena_bytes", "sequences_max"):
        assert sum(own[shared] for own in two) == one[shared]
    assert len({str(own["tiers"]) for own in (one, *two)}) == 1


def test_the_same_traffic_goes_to_one_engine_and_to_two(setups: dict[str, dict[str, float]]) -> None:
    for found in setups.values():
        assert not any(found[name] for name in ("phases_failed", "failed", "premium_unanswered", "standard_unanswered"))
        assert found["tok_s"] > found["batch_tok_s"] > 0
        assert found["premium_ttft_in_target"] > 0
    assert setups["one"]["steps_switched"] > 0.5, "they take turns"
    assert "switch_costs_ms" not in setups["two"]


def test_the_report_says_whether_aims_are_kept(
    setups: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = setups["one"] | {"tok_s": 1100.0}, setups["two"] | {"tok_s": 1000.0}
    assert two_models.report({"one": one, "two": two})["one_over_two_tok_s"] == pytest.approx(1.1)
    assert "1.100 times what two make; aim at least 1.05: kept" in capsys.readouterr().out
    two_models.report({"one": one | {"switch_costs_ms": 9.0, "step_alone_p50_ms": 8.0}, "two": two | {"tok_s": 1080.0}})
    assert capsys.readouterr().out.count("NOT KEPT") == 2
    assert two_models.report({"two": two}) == {}, "one set-up failed: the other's table stands"


def test_a_late_answer_and_none_miss_the_target() -> None:
    sizes = two_models.gpu_sizes()
    traffic = Traffic("premium", "premium", sizes.prompt, 1)
    target_s = 0.05 + 0.1 * 0.512
    requests = [
        Request(traffic, 10.0, [10.0 + target_s - 0.001], model="a"),
        Request(traffic, 11.0, [11.0 + target_s + 0.001], model="b"),
        Request(traffic, 12.0, refused="full"),
        Request(traffic, 99.0),  # not within the window
    ]
    found = two_models.mixed_figures(Measured(Phase("mixed", ()), 10.0, 20.0, requests), sizes)
    assert found["premium_ttft_target_ms"] == pytest.approx(1000 * target_s)
    assert found["premium_ttft_in_target"] == pytest.approx(1 / 3)
    assert (found["premium_unanswered"], found["failed"]) == (1.0, 1.0)


def test_bounds() -> None:
    sizes = two_models.gpu_sizes()
    assert two_models.bound_step_ms(sizes, DEVICE) == pytest.approx(1000 * 2 * 8_030_261_248 / 4e12)
    unlimited = replace(sizes, arena_bytes=1 << 44)
    rows, context = sizes.sequences, 512 + 256
    reads_s = (2 * 2 * 8_030_261_248 + rows * context * 131_072) / 4e12
    prefill_s = 2 * 8_030_261_248 * rows / 7e14
    assert two_models.bound_tok_s(unlimited, DEVICE) == pytest.approx(rows / (reads_s + prefill_s))
    assert two_models.bound_tok_s(sizes, DEVICE) < two_models.bound_tok_s(unlimited, DEVICE)


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    settings = settings_of(config()) | {"sequences_max": 0}
    with pytest.raises(NotStarted, match="sequences_max"), started(tmp_path, {"e": settings}, fake=True):
        pass


def test_phases_before_the_one_in_which_an_engine_died_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = EngineProcess(tmp_path, "engine", settings_of(config()), fake=True)

    class Fatal(SocketLine):
        def take(self, frame: Submit | Abort | Watch) -> None:
            if isinstance(frame, Submit) and frame.share == "fatal":
                process.stop()
            super().take(frame)

    try:
        process.wait()
        fine, fatal = (Traffic(name, "batch", 16, 4, outstanding=2, share=name) for name in ("fine", "fatal"))
        phases = [Phase(own.name, (own,), seconds=0.1) for own in (fine, fatal)]
        done, failed = measure([Fatal(process.path)], phases, seed=1)
    finally:
        process.stop()
    assert [measured.phase.name for measured in done] == ["fine"]
    assert failed.startswith("fatal: ")
    assert "FAILED in phase fatal" in capsys.readouterr().out
    assert done[0].tokens_per_s() > 0


# ---- many models


def test_hits_and_loads_are_what_the_engine_said() -> None:
    traffic = Traffic("open", "one", 1, 1)
    requests = [
        Request(traffic, 10.0, [10.01], found="device"),
        Request(traffic, 11.0, [11.02], found="device"),
        Request(traffic, 12.0, [12.5], found="host"),
        Request(traffic, 13.0, found="disk", refused="full"),
        Request(traffic, 5.0, [5.1], found="disk"),  # of the lead
    ]
    measured = Measured(Phase("open", ()), 10.0, 20.0, requests)
    looks = ((9.0, 1, 1), (10.5, 2, 1), (19.0, 5, 3), (21.0, 9, 9))
    measured.watched = [(at, snapshot(models=[place("a", a), place("b", b)])) for at, a, b in looks]
    found = many_models.phase_figures(measured)
    assert [found[f"open_found_{where}"] for where in many_models.PLACES] == [0.5, 0.25, 0.25]
    assert found["open_loads"] == 5
    assert found["open_device_ttft_p50_ms"] == pytest.approx(15.0)
    assert found["open_host_ttft_p99_ms"] == pytest.approx(500.0)
    assert (found["open_requests"], found["open_failed"]) == (4.0, 1.0)
    measured.watched = [(11.0, snapshot())]
    assert math.isnan(many_models.loads(measured)), "an engine that does not say"


def test_the_engine_is_asked_for_each_request_where_its_model_is(tmp_path: Path) -> None:
    sizes = replace(many_models.CPU, lead_s=0.1, seconds=0.3, rate=30.0)
    models = [ModelConfig(name=name, digest=shapes.digest_of(name)) for name in sizes.names]
    own = faked({"e": many_models.settings("all", sizes, models, "cpu")})
    with started(tmp_path, own, fake=True) as lines:
        done, failed = measure(lines, many_models.phases(sizes), seed=1)
    assert not failed
    assert {request.model for request in done[0].requests} == set(sizes.names), "each was asked once at least"
    for measured in done[1:]:
        assert len(measured.watched) >= len(measured.requests)
        for _, seen in measured.watched:
            assert {one.name for one in seen.models} <= set(sizes.names)


def test_policies_differ_in_what_fits_alone() -> None:
    sizes, models = many_models.GPU, [ModelConfig(name="m")]
    own, every = (many_models.settings(policy, sizes, models, "cuda") for policy in ("own", "all"))
    assert 3 <= own["weights_bytes"] / sizes.weights_bytes < 4
    assert own["weights_host_bytes"] >= 10 * sizes.weights_bytes
    assert (every["weights_bytes"], every["weights_host_bytes"]) == (0, 0)
    with pytest.raises(SystemExit, match="'best' is none of own, lru, all"):
        many_models.policies("own,best")


@pytest.mark.parametrize(("policy", "left"), [("use", {"often", "new"}), ("lru", {"lately", "new"})])
def test_one_policy_keeps_what_is_used_often_the_other_what_was_used_lately(policy: str, left: set[str]) -> None:
    fake = FakeConfig(step_ms=0.0, weights_bytes=10, weights_host_ms=1.0)
    names = ("often", "lately", "new")
    models = tuple(ModelConfig(name=name, digest=shapes.digest_of(name)) for name in names)
    own = config(models=models, fake=fake, weights_bytes=20, weights_residence_s=0.0, weights_policy=policy)
    often, lately, new = (Traffic(name, "premium", 4, 1, rate=200.0, models=(name,)) for name in names)
    phases = [Phase("often", (often,), 20), Phase("lately", (lately,), 1), Phase("new", (new,), 2, watch_s=0.001)]
    *_, last = drive(own, build_fake_runner(own), {}, phases, seed=1)
    assert {model.name for model in last.watched[-1][1].models if model.where == "device"} == left


def test_ratios_are_of_what_both_have(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"own": {"closed_tok_s": 90.0, "closed_loads": 5.0}, "all": {"closed_tok_s": 100.0, "closed_loads": 0.0}}
    assert many_models.report(found, {"bound_found_device": 0.6}) == {"own_over_all_closed_tok_s": 0.9}
    assert "bound_found_device 0.6" in capsys.readouterr().out


# ---- shapes


def test_parameters_are_those_of_the_models() -> None:
    assert shapes.parameters(shapes.llama_8b()) == 8_030_261_248
    assert shapes.parameters(shapes.LLAMA_1B) == 1_235_814_400


def test_files_hold_the_parameters_and_are_the_same_for_one_seed(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    shape = shapes.SMALL | {"vocab_size": 64, "num_hidden_layers": 1}
    first, second = (shapes.write_files(tmp_path / name, shape, "float32") for name in ("first", "second"))
    tensors = load_file(first / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == shapes.parameters(shape)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    model = shapes.linked(tmp_path, "named", first, "float32")
    assert (Path(model.path) / "model.safetensors").samefile(first / "model.safetensors")


def test_each_example_adapter_is_loaded_for_the_base_that_it_was_trained_for() -> None:
    examples = example_adapters.EXAMPLES.parent
    tiny = BaseShape.from_config(json.loads((examples / "models" / "laneway-tiny" / "config.json").read_bytes()))
    named = {
        path.parent.name: json.loads(path.read_bytes()) for path in examples.glob("adapters/*/adapter_config.json")
    }
    own = {name for name, config in named.items() if config["base_model_name_or_path"] == "laneway-tiny"}
    assert {path.name for path in example_adapters.fitting(tiny)} == own
    assert 0 < len(own) < len(named)
