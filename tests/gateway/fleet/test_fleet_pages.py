"""Two engines behind one gateway: requests over HTTP, and what operators see and do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.protocol.frames import PROTOCOL_VERSION
from gateway.access import keys
from gateway.access.roles import Role
from support.fleet_stack import TwoEngines
from support.stack import MODEL, Stack, body
from support.waiting import eventually


@pytest.fixture(scope="module")
def fleet_of_two(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[TwoEngines]:
    stack = TwoEngines.prepared(tmp_path_factory.mktemp("two"), model_dir)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def admin(stack: Stack, method: str, path: str, role: Role = "owner", **fields: Any) -> httpx.Response:
    if role not in stack.keys:
        made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="pages", kind="admin", role=role))
        stack.keys[role] = made.secret
    headers = stack.headers(role)
    return httpx.request(method, f"{stack.url}/v1/admin/{path}", headers=headers, timeout=30, **fields)


def engines(stack: Stack) -> dict[str, Any]:
    return {engine["name"]: engine for engine in admin(stack, "GET", "engines").json()["data"]}


def laneway(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gateway.cli", "--config", str(stack.config_file), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_an_operator_sees_both_engines(fleet_of_two: TwoEngines) -> None:
    assert fleet_of_two.chat().status_code == 200
    eventually(lambda: all(engine["tiers"] for engine in engines(fleet_of_two).values()))
    found = engines(fleet_of_two)
    assert set(found) == {"a", "b"}
    assert {engine["state"] for engine in found.values()} == {"ready"}
    assert {engine["protocol_version"] for engine in found.values()} == {PROTOCOL_VERSION}
    assert all(engine["models"] == [MODEL] for engine in found.values())
    assert len({engine["epoch"] for engine in found.values()}) == 2
    assert [tier["name"] for tier in found["a"]["tiers"]] == ["premium", "standard", "batch"]
    one = admin(fleet_of_two, "GET", "engines/a").json()
    assert one.keys() == found["a"].keys()
    assert (one["name"], one["epoch"], one["address"]) == ("a", found["a"]["epoch"], found["a"]["address"])
    unknown = admin(fleet_of_two, "GET", "engines/c")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "name")
    assert unknown.json()["error"]["message"] == "There is no engine 'c'. The engines of this gateway: a, b."


def test_a_drained_engine_gets_no_request(fleet_of_two: TwoEngines) -> None:
    answer = admin(fleet_of_two, "POST", "engines/a/drain", json={})
    assert answer.status_code == 200, answer.text
    eventually(lambda: engines(fleet_of_two)["a"]["state"] == "draining")
    with httpx.stream(
        "POST",
        f"{fleet_of_two.url}/v1/chat/completions",
        headers=fleet_of_two.headers(),
        json=body(max_tokens=1000, min_tokens=1000, stream=True),
        timeout=60,
    ) as stream:
        lines = stream.iter_lines()  # kept: httpx closes the connection with its iterator
        next(lines)
        found = engines(fleet_of_two)
        assert (found["a"]["streams"], found["b"]["streams"]) == (0, 1)
    audited = admin(fleet_of_two, "GET", "audit_log").json()["data"]
    assert any(line["action"] == "engine.drain" and line["object_id"] == "engine a" for line in audited)
    assert admin(fleet_of_two, "POST", "engines/a/drain", json={"draining": False}).status_code == 200
    eventually(lambda: engines(fleet_of_two)["a"]["state"] == "ready")


def test_who_may_drain_what(fleet_of_two: TwoEngines) -> None:
    assert admin(fleet_of_two, "POST", "engines/c/drain", json={}).status_code == 404
    assert admin(fleet_of_two, "POST", "engines/a/drain", role="finance", json={}).status_code == 403
    assert admin(fleet_of_two, "GET", "engines", role="finance").status_code == 200
    wrong = admin(fleet_of_two, "POST", "engines/a/drain", json={"draining": "yes"})
    assert wrong.status_code == 400
    assert "draining" in wrong.text


def test_the_commands(fleet_of_two: TwoEngines) -> None:
    shown = laneway(fleet_of_two, "fleet", "status", "--json")
    assert shown.returncode == 0, shown.stderr
    assert [(line["name"], line["state"]) for line in json.loads(shown.stdout)] == [("a", "ready"), ("b", "ready")]
    drained = laneway(fleet_of_two, "drain", "engine", "b")
    assert drained.returncode == 0, drained.stderr
    assert "draining" in laneway(fleet_of_two, "fleet", "status").stdout
    assert laneway(fleet_of_two, "fleet", "status").returncode == 1
    assert laneway(fleet_of_two, "drain", "engine", "b", "--undo").returncode == 0
    unknown = laneway(fleet_of_two, "drain", "engine", "z")
    assert unknown.returncode == 2
    assert "the engines are a, b" in unknown.stderr


def first_event(stack: Stack, **query: str) -> dict[str, Any]:
    """The data of the first event `engine` of the live stream."""
    headers = stack.headers("owner")
    url = f"{stack.url}/v1/admin/engine/live"
    with httpx.stream("GET", url, headers=headers, params=query, timeout=30) as stream:
        lines = stream.iter_lines()
        assert "event: engine" in lines
        return dict(json.loads(next(lines).removeprefix("data: ")))


def test_the_live_stream_is_of_the_named_engine(fleet_of_two: TwoEngines) -> None:
    listed = engines(fleet_of_two)
    for query, name in (({"engine": "b"}, "b"), ({"engine": "a"}, "a"), ({}, "a")):
        event = first_event(fleet_of_two, **query)
        assert (event["engine"], event["epoch"]) == (name, listed[name]["epoch"])
    for path in ("engine/live", "models"):
        unknown = admin(fleet_of_two, "GET", path, params={"engine": "z"})
        assert unknown.status_code == 404
        assert "'z'" in unknown.json()["error"]["message"]
        assert "a, b" in unknown.json()["error"]["message"]


def test_models_of_the_named_engine(fleet_of_two: TwoEngines) -> None:
    for name in ("a", "b"):
        answer = admin(fleet_of_two, "GET", "models", params={"engine": name}).json()
        assert answer["engine_away"] is None
        assert [(model["name"], model["where"]) for model in answer["data"]] == [(MODEL, "device")]


def test_health_counts_the_ready_engines(fleet_of_two: TwoEngines) -> None:
    """One engine is enough; only administrators read which engine is not ready."""

    def ready() -> tuple[int, Any]:
        answer = httpx.get(f"{fleet_of_two.url}/health/ready", timeout=30)
        return answer.status_code, answer.json()

    def part() -> dict[str, Any]:
        [item] = [item for item in admin(fleet_of_two, "GET", "health").json()["data"] if item["name"] == "engine"]
        return dict(item)

    def told() -> list[str]:
        overview = admin(fleet_of_two, "GET", "overview").json()
        return [one["message"] for one in overview["attention"] if one["kind"] == "engine"]

    def drain(name: str, draining: bool) -> None:
        answer = admin(fleet_of_two, "POST", f"engines/{name}/drain", json={"draining": draining})
        assert answer.status_code == 200, answer.text
        eventually(lambda: engines(fleet_of_two)[name]["state"] == ("draining" if draining else "ready"))

    assert ready() == (200, {"ready": True, "problems": {}, "engines": {"ready": 2, "listed": 2}})
    assert (part()["status"], told()) == ("ok", [])
    assert part()["detail"].startswith("2 of 2 engines are ready, with")
    try:
        drain("a", True)
        assert ready() == (200, {"ready": True, "problems": {}, "engines": {"ready": 1, "listed": 2}})
        assert (part()["status"], part()["detail"]) == (
            "degraded",
            "1 of 2 engines is ready; not ready: a (draining)",
        )
        assert told() == ["1 of 2 engines is ready. Not ready: a (draining)."]
        overview = admin(fleet_of_two, "GET", "overview").json()
        assert (overview["status"], overview["engines"]) == ("ok", {"ready": 1, "listed": 2})
        drain("b", True)
        status, answer = ready()
        assert (status, answer["engines"]) == (503, {"ready": 0, "listed": 2})
        assert answer["problems"] == {"engine": "every connected engine drains and refuses new requests"}
        assert part()["status"] == "down"
        assert part()["detail"].endswith("not ready: a (draining), b (draining)")
        assert fleet_of_two.chat().status_code == 503
    finally:
        drain("a", False)
        drain("b", False)
    assert ready()[0] == 200


def test_metrics_name_the_engine(fleet_of_two: TwoEngines) -> None:
    text = fleet_of_two.metrics()
    for name in ("a", "b"):
        assert f'vllm:num_requests_running{{engine="{name}"' in text
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    assert re.search(r'laneway_fleet_engines\{state="ready"[^}]*\} 2', text)
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(families) == len(set(families))


def test_a_request_over_http_outlives_its_engine(fleet_of_two: TwoEngines) -> None:
    """The text, the usage and the books of a stream whose engine is killed."""
    stack = fleet_of_two
    asked = body(max_tokens=600, min_tokens=600, seed=7)
    expected = stack.chat(**{key: value for key, value in asked.items() if key != "model"}).json()
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    killed = ""
    options = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream(
        "POST", f"{stack.url}/v1/chat/completions", headers=stack.headers(), json=options, timeout=60
    ) as stream:
        request_id = stream.headers["x-request-id"]
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
            if not killed and len(pieces) > 20:
                [killed] = [name for name, engine in engines(stack).items() if engine["streams"]]
                stack.processes[killed].process.kill()
    assert killed
    assert "".join(pieces) == expected["choices"][0]["message"]["content"]
    assert usage["completion_tokens"] == expected["usage"]["completion_tokens"]
    row = stack.usage(request_id)
    assert row is not None
    assert row.made_tokens == row.completion_tokens == usage["completion_tokens"]
    assert admin(stack, "GET", "engines").json()["resumed"] >= 1
    stack.processes[killed].stop()
    stack.processes[killed].start()
    eventually(lambda: engines(stack)[killed]["state"] == "ready")
