"""The report of a quantised model's quality, from an engine that has one to the admin API and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from engine.protocol.frames import ModelInfo
from engine.protocol.quality import ModelQuality
from gateway.access import keys
from gateway.cli import main
from support.gateway.scripted_engine import ScriptedStack
from support.stack import MODEL

QUALITY = ModelQuality(20_480, 0.0123, 0.9714, 11.25, 11.0, 7, 0.0456, 3, 1_790_000_000.75)
SHOWN = {
    "tokens": 20_480,
    "mean_kl": 0.0123,
    "top1": 0.9714,
    "perplexity": 11.25,
    "reference_perplexity": 11.0,
    "worst_layer": 7,
    "worst_layer_error": 0.0456,
    "kept_layers": 3,
    "measured_at": 1_790_000_000,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[ScriptedStack]:
    directory = tmp_path_factory.mktemp("quality")
    gate = "[engine.quality]\ntop1_min = 0.97\n"
    made = ScriptedStack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=gate)
    made.prepare()
    made.start_engine()
    info = ModelInfo(MODEL, "d" * 64, 2048, 49152, 16, 1000, weights_format="int4 g128 (awq)", kv_format="fp8")
    made.scripted.models = [msgspec.structs.replace(info, quality=QUALITY)]
    try:
        made.start_gateway()
        made.wait_ready()
        yield made
    finally:
        made.stop()


def test_the_report_is_in_the_list_and_on_the_models_own_path(stack: ScriptedStack) -> None:
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret

    def ask(path: str) -> Any:
        answer = httpx.get(f"{stack.url}/v1/admin/{path}", headers={"Authorization": f"Bearer {secret}"}, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    listed = ask("models")
    assert listed["quality_limits"] == {"mean_kl_max": 0.1, "top1_min": 0.97, "layer_error_max": 0.2}
    for model in (listed["data"][0], ask(f"models/{MODEL}")):
        assert (model["weights_format"], model["kv_format"]) == ("int4 g128 (awq)", "fp8")
        assert (model["quantize"], model["kv_dtype"]) == ("none", "auto"), "as configured, not as served"
        assert model["quality"] == SHOWN


def test_the_report_is_shown_by_command(stack: ScriptedStack) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["--config", str(stack.config_file), "models", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert json.loads(run("show", MODEL, "--json"))["quality"] == SHOWN
    assert json.loads(run("list", "--json"))[0]["quality"] == SHOWN
    [line] = [line for line in run("show", MODEL).splitlines() if line.startswith("quality ")]
    assert line.split(maxsplit=1)[1] == ("KL 0.0123, top-1 97.1%, perplexity 11.25 (11.00), layer 7 off by 4.6%")
    assert "int4 g128 (awq)" in run("list")
