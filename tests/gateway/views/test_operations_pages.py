"""/v1/admin/tiers, models and health on a running gateway: what is told agrees with what was done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from engine.protocol.frames import RaisedTargets
from gateway.access import keys
from gateway.upkeep.health_checks import CHECK_S_MAX, HealthReport
from gateway.views.models import ModelsView
from gateway.views.tiers import TiersView, TierView
from support.gateway.admin_client import Operator
from support.gateway.scripted_engine import ScriptedStack
from support.redis_server import RedisServer
from support.stack import MODEL, Stack
from support.waiting import eventually

Asks = Callable[[str], Any]


@pytest.fixture
def own(tmp_path: Path, model_dir: Path, redis_server: RedisServer) -> Iterator[Stack]:
    """Its parts are stopped."""
    made = Stack(
        tmp_path / "own", f"sqlite:///{tmp_path / 'own.db'}", model_dir, toml=f'[redis]\nurl = "{redis_server.url}"\n'
    )
    made.start()
    yield made
    made.stop()


def asks(stack: Stack) -> Asks:
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret

    def ask(path: str) -> Any:
        headers = {"Authorization": f"Bearer {secret}"}
        answer = httpx.get(f"{stack.url}/v1/admin/{path}", headers=headers, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def test_tiers_with_their_targets_and_what_came_of_them(stack: Stack) -> None:
    ask = asks(stack)

    def requests() -> int:
        tiers = msgspec.convert(ask("tiers"), TiersView)
        return tiers.data[0].attainment[0].requests

    before = requests()
    for _ in range(3):
        assert stack.chat("acme").status_code == 200
    eventually(lambda: requests() >= before + 3)
    tiers = msgspec.convert(ask("tiers"), TiersView)
    assert [tier.name for tier in tiers.data] == ["premium", "standard", "batch"]
    premium = tiers.data[0]
    configured = stack.config.tiers[0]
    assert premium.targets.ttft_base_ms == configured.ttft_base_ms
    assert premium.service_tier == "priority"
    assert [one.window for one in premium.attainment] == ["5m", "1h", "24h"]
    five = premium.attainment[0]
    assert five.ttft_p50_ms is not None
    assert 0 < five.ttft_p50_ms <= (five.ttft_p95_ms or 0) <= (five.ttft_p99_ms or 0)
    assert five.share_within_target == pytest.approx(five.within_target / five.requests, abs=1e-6)
    assert tiers.recorded_since is not None
    assert tiers.recorded_since <= time.time()
    one = msgspec.convert(ask("tiers/standard"), TierView)
    assert (one.name, one.rank, one.targets) == ("standard", 1, tiers.data[1].targets)
    assert [attainment.window for attainment in one.attainment] == ["5m", "1h", "24h"]


def test_an_unknown_tier_is_refused_with_the_names_of_all(stack: Stack) -> None:
    error = Operator(stack).refused(404, "GET", "tiers/gold")
    assert error["message"] == "There is no tier 'gold'. The tiers: premium, standard, batch."
    assert error["param"] == "name"


def test_models_and_where_adapters_are(stack: Stack) -> None:
    assert stack.chat("acme", model="acme-style").status_code == 200
    found = msgspec.convert(asks(stack)("models"), ModelsView)
    assert found.engine_away is None
    [model] = [one for one in found.data if one.name == MODEL]  # other tests of this stack add models of their own
    assert (model.tokens_per_page or 0) * (model.pages or 0) == model.kv_tokens
    assert model.adapters >= 3
    places = {one.name: one.where for one in found.adapters}
    assert places["acme-style"] == "device"
    assert found.adapters_total >= 3


def test_health_of_a_gateway_that_is_well(stack: Stack) -> None:
    ask = asks(stack)
    report = msgspec.convert(ask("health"), HealthReport)
    found = {item.name: item for item in report.data}
    assert set(found) == {
        "database",
        "redis",
        "engine",
        "models",
        "gateways",
        "workers",
        "journal",
        "books",
        "exports",
        "traces",
        "disk",
        "certificates",
        "drain",
        "connectors",
    }
    for name in ("database", "redis", "engine", "models", "workers", "journal"):
        assert found[name].status == "ok", found[name]
        assert found[name].detail
    again = msgspec.convert(ask("health"), HealthReport)
    assert {i.name: i.since for i in again.data if i.name == "workers"} == {"workers": found["workers"].since}


def test_a_part_has_its_status_since_before_the_first_report(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    time.sleep(1.1)  # moments are whole seconds
    asked = int(time.time())
    found = {item["name"]: item for item in asks(stack)("health")["data"]}
    assert found["disk"]["since"] < asked
    assert found["models"]["detail"] == "1 base model is served"
    assert found["gateways"]["detail"] == "1 gateway renews its lease"


def test_one_dead_part_is_told_and_stalls_nothing(own: Stack, redis_server: RedisServer) -> None:
    ask = asks(own)

    def status(name: str) -> tuple[str, str]:
        report = msgspec.convert(ask("health"), HealthReport)
        [item] = [item for item in report.data if item.name == name]
        return item.status, item.detail

    assert status("redis")[0] == "ok"
    redis_server.freeze()
    began = time.monotonic()
    assert status("redis")[0] in ("degraded", "down")
    assert time.monotonic() - began < CHECK_S_MAX + 10
    assert status("database")[0] == "ok"
    redis_server.thaw()
    eventually(lambda: status("redis")[0] == "ok")
    own.kill_engine()
    eventually(lambda: status("engine")[0] == "down")
    report = msgspec.convert(ask("health"), HealthReport)
    assert report.status == "down"
    models = msgspec.convert(ask("models"), ModelsView)
    assert models.engine_away
    assert models.data[0].tokens_per_page, "what the last one said of itself stays known"
    refused = own.chat("globex")
    assert refused.status_code == 503

    def refusals() -> int:
        standard = msgspec.convert(ask("tiers"), TiersView).data[1]
        return standard.attainment[0].refused_503

    eventually(lambda: refusals() == 1)


def test_tiers_show_the_targets_that_the_engine_raised(tmp_path: Path, model_dir: Path) -> None:
    """As in a demo on a slow machine; its first tokens are measured by these targets."""
    stack = ScriptedStack(tmp_path / "stack", f"sqlite:///{tmp_path / 'raised.db'}", model_dir)
    stack.prepare()
    stack.start_engine()
    stack.scripted.raised = {"premium": RaisedTargets(210.0, 1210.0, 5210.0)}
    try:
        stack.start_gateway()
        stack.wait_ready()
        premium, standard, _ = msgspec.convert(asks(stack)("tiers"), TiersView).data
    finally:
        stack.stop()
    assert (premium.targets.inter_token_ms, premium.targets.ttft_base_ms) == (210, 1210)
    assert premium.queue_target_ms == 5210
    assert (standard.targets.inter_token_ms, standard.targets.ttft_base_ms) == (100, 1000)
