"""A target below the shortest step causes a warning; a target below a twentieth of it refuses the start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_peer import REPO

from engine.__main__ import check_speed
from engine.config import EngineConfig, FakeConfig, ModelConfig
from engine.fake import FakeRunner, build_fake_runner
from engine.probe import IMPOSSIBLE_TIMES, impossible, out_of_reach, shortest_step_s
from engine.tiers import SHIPPED_TIERS, Tier


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
    assert out_of_reach(SHIPPED_TIERS, 0.030) == []
    for field in ("inter_token_ms", "ttft_base_ms"):
        tier = Tier(name="gold", service_tier="priority", **{field: 20.0})  # type: ignore[arg-type]
        (said,) = out_of_reach((tier,), 0.030)
        assert said.startswith(f"tiers: {field} of 'gold' is 20, and the shortest step takes 30.0 ms here: ")
        assert f"set {field} above 30" in said
        assert out_of_reach((tier,), 0.019) == []
        assert impossible((tier,), 0.030) == []
        assert impossible((tier,), 0.020 * IMPOSSIBLE_TIMES) == []
        assert "the shortest step takes 500.0 ms" in impossible((tier,), 0.500)[0]


def test_a_target_out_of_reach_is_a_warning_and_refuses_no_start(caplog: pytest.LogCaptureFixture) -> None:
    """As on a busy machine: the step takes 104.8 ms, the target is 100 ms."""
    runner = fake(step_ms=104.8)
    tiers = (Tier(name="premium", service_tier="priority", inter_token_ms=100.0),)
    config = EngineConfig(models=(ModelConfig(name="one"),), tiers=tiers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.probe.PROBE_S_MAX", 0.5)
        (said,) = check_speed(config, runner)
    assert "inter_token_ms of 'premium' is 100" in said
    (warned,) = [record for record in caplog.records if record.message == "tier.target_out_of_reach"]
    assert warned.levelname == "WARNING"


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
