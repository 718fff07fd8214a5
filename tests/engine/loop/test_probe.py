"""A target below the shortest step causes a warning; a target below a twentieth of it refuses the start."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import check_speed, raised_targets
from engine.fake.runner import FakeRunner, build_fake_runner
from engine.loop.probe import (
    IMPOSSIBLE_TIMES,
    impossible_targets,
    shortest_step_s,
    unreachable_targets,
    with_raised_targets,
)
from engine.protocol.codec import FrameReader, decode_from_engine
from engine.protocol.config import EngineConfig, FakeConfig, ModelConfig
from engine.protocol.frames import Hello
from engine.protocol.tiers import SHIPPED_TIERS, Tier
from engine.scheduler.turns import TARGET_MARGIN
from support.engine.process import REPO


def fake(**changes: Any) -> FakeRunner:
    models = (ModelConfig(name="one"), ModelConfig(name="two"))
    return build_fake_runner(EngineConfig(models=models, fake=FakeConfig(**changes)))


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_the_shortest_step_is_what_a_decode_takes(steps_ahead: int) -> None:
    runner = fake(step_ms=3.0, prefill_ms_per_1k_tokens=10_000.0, steps_ahead=steps_ahead)
    assert 0.003 <= shortest_step_s(runner, runner.models, runner.pages, runner.page_bytes) < 0.040
    # A model of the shortest context there is.
    tiny = fake(step_ms=0.0, context_tokens=2)
    assert shortest_step_s(tiny, tiny.models, tiny.pages, tiny.page_bytes) < 0.040


def test_while_the_machine_is_busy_it_looks_again_for_a_while() -> None:
    runner, asked, busy = fake(step_ms=0.0), [0], [0]

    def clock() -> float:
        """0.4 ms later at each look while the machine is busy, then 1 µs."""
        asked[0] += 1
        return 4e-4 * min(asked[0], busy[0]) + 1e-6 * asked[0]

    def probed(enough_s: float) -> float:
        asked[0] = 0
        return shortest_step_s(runner, runner.models, runner.pages, runner.page_bytes, enough_s, clock)

    assert probed(1.0) < 1e-4
    busy[0] = asked[0]  # for as long as one round
    assert probed(3e-4) < 1e-4
    busy[0] = 1_000_000
    assert 3e-4 < probed(3e-4) < 1e-3
    assert asked[0] > 5.0 / 4.1e-4, "five seconds, by its clock"


def test_a_target_below_a_steps_cost_is_named_with_what_to_do() -> None:
    assert unreachable_targets(SHIPPED_TIERS, 0.030) == []
    for field in ("inter_token_ms", "ttft_base_ms"):
        tier = Tier(name="gold", service_tier="priority", **{field: 20.0})  # type: ignore[arg-type]
        (said,) = unreachable_targets((tier,), 0.030)
        assert said.startswith(f"tiers: {field} of 'gold' is 20, and the shortest step takes 30.0 ms here: ")
        # Steps are planned for 0.9 of a target: with 30 a step of 30 ms would still be too long.
        assert f"set {field} to at least 34" in said
        assert unreachable_targets((tier,), 0.018) == []
        assert impossible_targets((tier,), 0.030) == []
        assert impossible_targets((tier,), 0.020 * IMPOSSIBLE_TIMES) == []
        assert "the shortest step takes 500.0 ms" in impossible_targets((tier,), 0.500)[0]


def test_a_target_out_of_reach_is_a_warning_and_refuses_no_start(caplog: pytest.LogCaptureFixture) -> None:
    """As on a busy machine: the step takes 104.8 ms, the target is 100 ms."""
    runner = fake(step_ms=104.8)
    tiers = (Tier(name="premium", service_tier="priority", inter_token_ms=100.0),)
    config = EngineConfig(models=(ModelConfig(name="one"),), tiers=tiers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.loop.probe.PROBE_S_MAX", 0.5)
        same, (said,) = check_speed(config, runner)
    assert same is config
    assert "inter_token_ms of 'premium' is 100" in said
    (warned,) = [record for record in caplog.records if record.message == "tier.target_out_of_reach"]
    assert warned.levelname == "WARNING"


def test_targets_are_raised_to_what_the_machine_can_keep() -> None:
    assert with_raised_targets(SHIPPED_TIERS, 0.0999) is SHIPPED_TIERS
    for step_s in (0.1001, 0.1523, 4.0):
        tiers = with_raised_targets(SHIPPED_TIERS, step_s)
        assert unreachable_targets(tiers, step_s) == []
        inter_token_ms = {tier.inter_token_ms for tier in tiers}
        assert len(inter_token_ms) == 1
        (target_ms,) = inter_token_ms
        assert TARGET_MARGIN * target_ms >= step_s * 1000, "a step of one request fits"
        assert target_ms <= 1.5 * step_s * 1000 + 10, "and it promises no less than it must"
        for before, tier in zip(SHIPPED_TIERS, tiers, strict=True):
            assert tier.ttft_base_ms == max(before.ttft_base_ms, target_ms)
            assert (tier.queue_target_ms is None) == (before.queue_target_ms is None)
            assert tier.queue_target_ms is None or tier.queue_target_ms >= target_ms
            assert (tier.floor, tier.queue_max) == (before.floor, before.queue_max)


@pytest.mark.parametrize("step_ms", [30.0, 400.0])  # the second is over 20 times the target
def test_a_demo_starts_with_a_larger_target_and_says_so(step_ms: float, caplog: pytest.LogCaptureFixture) -> None:
    tiers = (
        Tier(name="premium", service_tier="priority", inter_token_ms=15.0),
        Tier(name="batch", service_tier="flex", inter_token_ms=3_000_000.0, ttft_base_ms=3_000_000.0),
    )
    config = EngineConfig(models=(ModelConfig(name="one"),), tiers=tiers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.loop.probe.PROBE_S_MAX", 0.1)
        changed, (said,) = check_speed(config, fake(step_ms=step_ms), raise_targets=True)
    assert unreachable_targets(changed.tiers, step_ms / 1000) == []
    assert changed.tiers[1] == tiers[1]
    assert said.startswith("this machine cannot keep the targets of tier 'premium' now: until the next start they are ")
    assert f"{changed.tiers[0].inter_token_ms:g} ms between tokens" in said
    targets = raised_targets(tiers, changed.tiers)
    assert set(targets) == {"premium"}
    assert targets["premium"].inter_token_ms == changed.tiers[0].inter_token_ms
    assert [record.levelname for record in caplog.records if record.message == "tier.target_out_of_reach"] == [
        "WARNING"
    ]


@pytest.mark.model
def test_an_engine_with_raised_targets_starts_and_tells_its_gateways(model_dir: Path, tmp_path: Path) -> None:
    """What the test after this one refuses. The ready line has the warning, the Hello the targets."""
    tiers = [{"name": "gold", "service_tier": "priority", "inter_token_ms": 0.01}]
    config = {"models": [{"name": "smol", "path": str(model_dir)}], "tiers": tiers}
    (tmp_path / "engine.json").write_text(json.dumps(config))
    path = tmp_path / "s"
    argv = [sys.executable, "-m", "engine", "--socket", str(path), "--config", str(tmp_path / "engine.json")]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([*argv, "--raise-targets"], cwd=REPO, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            (warning,) = ready["warnings"]
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(path))
                reader = FrameReader()
                while True:
                    frames = reader.feed(peer.recv(65536))
                    if frames:
                        break
                hello = decode_from_engine(frames[0])
        finally:
            process.terminate()
    assert isinstance(hello, Hello)
    assert hello.raised["gold"].inter_token_ms >= 1
    assert f"{hello.raised['gold'].inter_token_ms:g} ms between tokens" in warning


@pytest.mark.model
def test_an_engine_with_such_a_target_does_not_start(model_dir: Path, tmp_path: Path) -> None:
    tiers = [{"name": "gold", "service_tier": "priority", "inter_token_ms": 0.01}]
    config = {"models": [{"name": "smol", "path": str(model_dir)}], "tiers": tiers}
    (tmp_path / "engine.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "engine", "--socket", str(tmp_path / "s"), "--config", str(tmp_path / "engine.json")]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["event"] == "engine.cannot_start"
    assert "inter_token_ms of 'gold' is 0.01" in last["reason"]
