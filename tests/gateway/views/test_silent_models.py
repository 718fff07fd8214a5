"""What a gateway says of models that make no tokens: /health, the metrics, and the console's health."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing import tables
from billing.proofs import reconcile
from engine.protocol.frames import Heartbeat
from engine.protocol.snapshot_parts import TokenAge
from gateway.fleet.fleet import Fleet
from gateway.views.engines import why_no_engine_serves
from gateway.views.token_ages import RESTRICTED, describe_silent, makes_no_token, silent_models
from support.gateway.engine_books import column_sum, engine_status, metric
from support.stack import MODEL, Stack
from support.waiting import eventually

PROBE_ID = 0


class _Engine:
    """Of one member: what the views read."""

    ready, stuck = True, False

    def __init__(self, **tokens: TokenAge) -> None:
        self.last_heartbeat = Heartbeat(1, busy=False, running=0, waiting=0, tokens=tokens or None)


class _Member:
    draining = drains_here = False

    def __init__(self, engine: _Engine) -> None:
        self.engine = engine


def fleet_of(*engines: _Engine) -> Any:
    fleet = Fleet.__new__(Fleet)
    fleet.members = {f"e{number}": _Member(engine) for number, engine in enumerate(engines)}
    return fleet


SILENT, SPEAKS = TokenAge(31.0, True, "CUDA error in /opt/kernels"), TokenAge(4.0)


def test_a_model_is_silent_if_it_makes_tokens_in_no_engine() -> None:
    assert set(silent_models(fleet_of(_Engine(m=SILENT, n=SPEAKS)))) == {"m"}
    assert silent_models(fleet_of(_Engine(m=SILENT), _Engine(m=SPEAKS))) == {}
    assert silent_models(fleet_of(_Engine(m=SPEAKS), _Engine(m=SILENT))) == {}
    assert set(silent_models(fleet_of(_Engine(m=SILENT), _Engine(n=SPEAKS)))) == {"m"}, "n's engine does not have it"
    assert silent_models(fleet_of(_Engine())) == {}, "an earlier build says nothing of tokens"


def test_no_engine_serves_once_every_resident_model_is_silent() -> None:
    for fleet, none in (
        (fleet_of(_Engine(m=SILENT)), True),
        (fleet_of(_Engine(m=SILENT), _Engine(m=SILENT, n=SILENT)), True),
        (fleet_of(_Engine(m=SILENT, n=SPEAKS)), False),
        (fleet_of(_Engine(m=SILENT), _Engine()), False),
        (fleet_of(_Engine()), False),
    ):
        assert makes_no_token(fleet.members.values()) is none
        said = why_no_engine_serves(fleet)
        assert said == ("the engine is connected, but its models make no tokens" if none else None)


def test_the_error_and_the_names_of_some_tenants_models_are_for_operators() -> None:
    silent = silent_models(fleet_of(_Engine(m=SILENT, secret=SILENT)))
    public = describe_silent(silent, ["m"])
    assert public == dict.fromkeys(("m", RESTRICTED), "it owes a token: its last one was 31 s ago")
    assert describe_silent(silent)["secret"].endswith("31 s ago: CUDA error in /opt/kernels")


@pytest.fixture
def start(tmp_path: Path, sqlite_url: str, model_dir: Path) -> Iterator[Callable[[dict[str, Any]], Stack]]:
    stacks: list[Stack] = []

    def start(faults: dict[str, Any]) -> Stack:
        stack = Stack(
            tmp_path / "stack", sqlite_url, model_dir, fake={"faults": faults}, engine_json={"probe_after_s": 0.4}
        )
        stacks.append(stack)
        stack.prepare()
        stack.start_engine()
        stack.start_gateway()
        return stack

    yield start
    for stack in stacks:
        stack.stop()


@pytest.mark.parametrize(
    ("faults", "error"),
    [({"step_error_id": PROBE_ID}, "the step was made to fail"), ({"stall_id": PROBE_ID, "stall_s": 600.0}, "")],
)
def test_health_names_the_model_that_makes_no_tokens(
    start: Callable[[dict[str, Any]], Stack], faults: dict[str, Any], error: str
) -> None:
    stack = start(faults)

    def health() -> dict[str, Any]:
        try:
            answer = httpx.get(f"{stack.url}/health", timeout=10)
        except httpx.TransportError:
            return {}
        return {"status": answer.status_code, **answer.json()}

    eventually(lambda: "silent_models" in health())
    found = health()
    assert found["status"] == 503
    assert list(found["problems"]) == ["engine"]
    assert list(found["silent_models"]) == [MODEL]
    assert found["silent_models"][MODEL].startswith("it owes a token: its last one was ")
    assert "made to fail" not in str(found), "an error may quote a path"
    metrics = stack.metrics()
    assert f'laneway_engine_model_silent{{engine="local",model="{MODEL}"}} 1.0' in metrics
    assert f'laneway_engine_last_token_age_seconds{{engine="local",model="{MODEL}"}}' in metrics
    assert 'laneway_problem{part="engine"} 1.0' in metrics
    headers = {"Authorization": f"Bearer {stack.metrics_key}"}
    items = httpx.get(f"{stack.url}/v1/admin/health", headers=headers, timeout=30).json()["data"]
    models = next(item for item in items if item["name"] == "models")
    assert models["status"] == "down"
    assert MODEL in models["detail"]
    assert error in models["detail"]


def test_the_books_are_sound_with_probes_between_requests(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(engine_json={"probe_after_s": 0.2}, toml="[billing]\nreconcile_s = 1\n")
    for _ in range(3):
        assert stack.chat().status_code == 200
        before = engine_status(stack).tokens_probed
        eventually(lambda before=before: engine_status(stack).tokens_probed >= before + 3)
    report = engine_status(stack)
    assert report.tokens_made - report.tokens_overrun == 24 == column_sum(stack, tables.usage.c.made_tokens)
    assert report.tokens_overrun >= report.tokens_probed >= 9
    assert metric(report, "laneway_tokens_probed_total") >= 9

    def reconciled() -> bool:
        result = stack.read(lambda connection: reconcile.newest_result(connection, "minute"))
        return result is not None and result.engine_gap == 0

    eventually(reconciled)
    laneway = [sys.executable, "-m", "gateway.cli", "--config", str(stack.config_file)]
    done = subprocess.run([*laneway, "billing", "reconcile", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
