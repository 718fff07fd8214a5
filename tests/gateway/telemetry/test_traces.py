"""Traces of a whole Laneway at a real receiver: what they show, what they must not, and a collector that misbehaves."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from support.gateway.admin_client import Operator
from support.gateway.monitored_stack import samples
from support.gateway.otlp_receiver import Behaviour, OtlpReceiver, attributes_of, read_attributes
from support.stack import MODEL, Stack, body
from support.waiting import eventually

CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{CALLER[0]}-{CALLER[1]}-01"}
CANARY = f"canary{secrets.token_hex(8)}"
CLIENT_SECRET = f"collector-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, modules_postgres_url: str, model_dir: Path, receiver: OtlpReceiver
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("traced")
    (directory / "headers").write_text(f"Authorization: Bearer {CLIENT_SECRET}\n")
    telemetry = f'\n[telemetry]\nendpoint = "{receiver.url}"\nheaders_file = "headers"\n'
    made = Stack(directory, modules_postgres_url, model_dir, fake={"step_ms": 2.0}, toml=f'tools = "hermes"{telemetry}')
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def accepting(receiver: OtlpReceiver) -> None:
    receiver.behaviour = "accept"


def chat(stack: Stack, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    headers = stack.headers() | (headers or {})
    return httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(**fields), timeout=60)


def named(spans: list[Span]) -> dict[str, Span]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def test_one_trace_from_the_caller_to_the_engine(traced: Stack, receiver: OtlpReceiver) -> None:
    answer = chat(traced, TRACEPARENT, max_tokens=6)
    assert answer.status_code == 200
    request_id = answer.headers["x-request-id"]
    spans = named(receiver.trace_of(request_id))
    chain = ["POST /v1/chat/completions", f"chat {MODEL}"]
    assert set(spans) == {*chain, "hold", "settle", "queue", "prefill", "decode"}
    root, generation = (spans[name] for name in chain)
    assert root.trace_id.hex() == CALLER[0]
    assert (root.parent_span_id.hex(), root.kind) == (CALLER[1], Span.SPAN_KIND_SERVER)
    assert {spans[name].parent_span_id for name in ("hold", "settle", chain[1])} == {root.span_id}
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert {span.parent_span_id for span in phases} == {generation.span_id}
    in_order = [spans["hold"], *phases, spans["settle"]]
    for before, after in itertools.pairwise(in_order):
        assert before.start_time_unix_nano <= before.end_time_unix_nano <= after.start_time_unix_nano
    for span in spans.values():
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
        assert span.status.code == Status.STATUS_CODE_UNSET
    usage = answer.json()["usage"]
    found = attributes_of(generation)
    assert found.pop("laneway.device_s") > 0
    [epoch] = found.pop("laneway.engine.epochs")
    assert epoch
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "laneway",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": request_id,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 6,
        "laneway.tier": "premium",
    }
    line = traced.request_line(request_id)
    assert attributes_of(root) == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "laneway.request_id": request_id,
        "laneway.tenant.id": traced.tenants["acme"],
        "laneway.key.id": traced.key_ids["acme"],
        "laneway.tier": "premium",
        "laneway.ending": "length",
        "laneway.cost_picos": line["cost_picos"],
    }
    took_s = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
    assert took_s == pytest.approx(line["total_s"], abs=1e-6)
    resource = read_attributes(receiver.requests()[-1].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["service.instance.id"][:3]) == ("laneway", "gw_")
    assert receiver.heads[-1]["authorization"] == f"Bearer {CLIENT_SECRET}"


def test_a_request_id_leads_to_its_trace(traced: Stack, receiver: OtlpReceiver) -> None:
    """Answer → log line → usage row → what the console shows → trace."""
    request_id = chat(traced).headers["x-request-id"]
    trace_id = traced.request_line(request_id)["trace_id"]
    row = traced.usage(request_id)
    assert row is not None
    assert row.trace_id == trace_id
    operator = Operator(traced)
    traced.known()
    shown = operator.ok("GET", f"requests/{request_id}")
    assert shown["trace_id"] == shown["usage"]["trace_id"] == trace_id
    [listed] = operator.ok("GET", "requests", search=request_id)["data"]
    assert listed["trace_id"] == trace_id
    assert {span.trace_id.hex() for span in receiver.trace_of(request_id)} == {trace_id}


def test_several_texts_each_have_their_phases(traced: Stack, receiver: OtlpReceiver) -> None:
    request = {"model": MODEL, "prompt": ["One.", "Two."], "n": 2, "max_tokens": 3, "stream": True}
    with httpx.stream(
        "POST", f"{traced.url}/v1/completions", headers=traced.headers(), json=request, timeout=60
    ) as answer:
        assert "[DONE]" in "".join(answer.iter_text())
    spans = receiver.trace_of(answer.headers["x-request-id"])
    [generation] = [span for span in spans if span.name == f"text_completion {MODEL}"]
    found = attributes_of(generation)
    assert found["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert (found["laneway.texts"], found["laneway.stream"], found["gen_ai.usage.output_tokens"]) == (4, True, 12)
    for phase in ("queue", "prefill", "decode"):
        ours = [span for span in spans if span.name == phase]
        assert sorted(attributes_of(span)["laneway.text"] for span in ours) == [0, 1, 2, 3]


def test_refused_requests_are_traces_without_an_engine(traced: Stack, receiver: OtlpReceiver) -> None:
    refused = chat(traced, max_tokens=-1)
    [root] = receiver.trace_of(refused.headers["x-request-id"])
    found = attributes_of(root)
    assert (found["http.response.status_code"], found["laneway.tenant.id"]) == (400, traced.tenants["acme"])
    assert found["error.type"] == traced.request_line(refused.headers["x-request-id"])["code"]
    assert root.status.code == Status.STATUS_CODE_UNSET, "a refusal is not the server's fault"
    stranger = httpx.post(f"{traced.url}/v1/messages", json={}, headers={"x-api-key": "sk-no"}, timeout=30)
    assert stranger.status_code == 401
    [root] = receiver.trace_of(stranger.headers["x-request-id"])
    assert (root.name, attributes_of(root)["error.type"]) == ("POST /v1/messages", "invalid_api_key")


def test_no_canary_is_in_any_span(traced: Stack, receiver: OtlpReceiver) -> None:
    """Prompt, system prompt, tools, their arguments and results, user, metadata, names of unknown fields, key, headers,
    a model's name that nobody serves; of the answer its text. And the secret of the collector's headers."""
    function = {"name": "look", "arguments": json.dumps({"for": f"{CANARY}-argument"})}
    messages = [
        {"role": "system", "content": f"{CANARY}-system"},
        {"role": "user", "content": f"{CANARY}-prompt"},
        {"role": "assistant", "tool_calls": [{"id": f"call_{CANARY}", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": f"call_{CANARY}", "content": f"{CANARY}-result"},
    ]
    look = {"name": "look", "description": f"{CANARY}-tool", "parameters": {"type": "object"}}
    fields = {
        "messages": messages, "tools": [{"type": "function", "function": look}], "user": f"{CANARY}-user",
        "metadata": {"note": f"{CANARY}-metadata"}, "stop": [f"{CANARY}-stop"], "max_tokens": 12,
    }  # fmt: skip
    headers = TRACEPARENT | {
        "tracestate": f"vendor={CANARY}", "baggage": f"secret={CANARY}", "user-agent": CANARY, "x-own": CANARY,
        "cookie": f"a={CANARY}",
    }  # fmt: skip
    answers = [
        chat(traced, headers, **fields),
        chat(traced, headers, **fields, model=f"{CANARY}-model"),
        chat(traced, headers, **fields, **{f"{CANARY}_field": 1}),
        chat(traced, headers | {"Authorization": f"Bearer sk-{CANARY}"}, **fields),
        httpx.post(f"{traced.url}/v1/{CANARY}", headers=traced.headers(), json={}, timeout=30),
        httpx.post(f"{traced.url}/t/{CANARY}/v1/messages", headers=traced.headers(), json={}, timeout=30),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 401, 404, 404]
    for answer in answers:
        assert receiver.trace_of(answer.headers["x-request-id"])
    message = answers[0].json()["choices"][0]["message"]
    planted = [CANARY, CLIENT_SECRET, traced.keys["acme"], message["content"]]
    assert all(planted)
    for text in planted:
        assert not any(text.encode() in sent for sent in receiver.bodies), text


def test_a_collector_that_misbehaves_is_named_and_requests_are_served(
    tmp_path: Path, sqlite_url: str, model_dir: Path
) -> None:
    receiver = OtlpReceiver()
    toml = f'\n[telemetry]\nendpoint = "{receiver.url}"\ntimeout_s = 0.2\n'
    stack = Stack(tmp_path / "stack", sqlite_url, model_dir, toml=toml)
    try:
        stack.start()
        operator = Operator(stack)

        def traces() -> dict[str, Any]:
            report = operator.ok("GET", "health")
            return next(item for item in report["data"] if item["name"] == "traces")

        assert traces()["status"] == "ok"
        cases: list[tuple[Behaviour, str]] = [("refuse", "it answered 400"), ("hang", "it did not answer within 0.2 s")]
        for behaviour, reason in cases:
            receiver.behaviour = behaviour
            assert [chat(stack, max_tokens=2).status_code for _ in range(2)] == [200] * 2
            eventually(lambda reason=reason: reason in traces()["detail"])
            assert traces()["status"] == "degraded"
            assert receiver.url in traces()["detail"]
        line = stack.log_lines("traces.undelivered")[0]
        assert (line["endpoint"], line["reason"]) == (receiver.url, "it answered 400")
        assert httpx.get(f"{stack.url}/health/ready", timeout=30).status_code == 200, "it still serves"
        eventually(lambda: sum(samples(stack.metrics())["laneway_traces_waiting"].values()) == 2)
        assert sum(samples(stack.metrics())["laneway_traces_dropped_total"].values()) == 2
    finally:
        stack.stop()
        receiver.stop()
    assert stack.gateway is not None
    assert stack.gateway.returncode == 0
    assert [line["traces"] for line in stack.log_lines("traces.dropped")] == [2], "counted at the stop"


def test_gen_ai_metrics_are_sliced(traced: Stack) -> None:
    def page() -> dict[str, dict[Any, float]]:
        return samples(traced.metrics())

    def count(name: str, **labels: str) -> float:
        wanted = {"gen_ai_provider_name": "laneway", **labels}.items()
        series = page().get(f"{name}_count", {})
        return sum(number for found, number in series.items() if set(wanted) <= set(found))

    first, chats = "gen_ai_server_time_to_first_token_seconds", {"gen_ai_operation_name": "chat", "tier": "standard"}
    text = "A prompt of several pages. " * 20
    headers = {"Authorization": f"Bearer {traced.keys['globex']}"}
    for _ in range(2):
        assert chat(traced, headers, messages=[{"role": "user", "content": text}]).status_code == 200
    eventually(lambda: count(first, **chats, guided="false", cache="hit") == 1)
    assert count(first, **chats, guided="false", cache="miss") == 1
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    assert chat(traced, headers, response_format=schema, max_tokens=4).status_code == 200
    eventually(lambda: count(first, **chats, guided="true") == 1)
    duration, tokens = "gen_ai_client_operation_duration_seconds", "gen_ai_client_token_usage"
    assert count(duration, **chats, gen_ai_request_model=MODEL) == 3
    assert count("gen_ai_server_time_per_output_token_seconds", **chats) == 3
    made = page()[f"{tokens}_sum"]
    labels = {("gen_ai_token_type", "output"), ("tier", "standard")}
    assert sum(number for found, number in made.items() if labels <= set(found)) == 8 + 8 + 4
    series = sum(len(found) for name, found in page().items() if name.startswith("gen_ai_"))
    assert series < 500
