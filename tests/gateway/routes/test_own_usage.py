"""What a key may see of itself: what it used, what is left, and when that begins anew."""

from __future__ import annotations

import datetime
import time

import httpx
import pytest

from billing.accounts import budgets, tenants
from support.stack import MODEL, Stack


def get(stack: Stack, path: str, secret: str) -> httpx.Response:
    return httpx.get(stack.url + path, headers={"Authorization": f"Bearer {secret}"})


def test_usage_is_the_keys_own(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.known()
    nothing = get(stack, "/v1/usage", made.secret).json()
    assert (nothing["requests"], nothing["completion_tokens"], nothing["cost_picos"]) == (0, 0, {})
    stack.keys["own"] = made.secret
    answer = stack.chat("own", n=2)
    usage = answer.json()["usage"]
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    own = get(stack, "/t/acme/v1/usage", made.secret).json()
    assert own == {
        "object": "usage",
        "key_id": made.key.id,
        "start_time": None,
        "end_time": None,
        "requests": 1,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": 16,
        "device_s": row.device_s,
        "preemptions": 0,
        "recomputed": {},
        "swapped_tokens": 0,
        "cost_picos": {"USD": row.cost_picos},
    }
    now = int(time.time())
    assert get(stack, f"/v1/usage?start_time={now - 60}&end_time={now + 60}", made.secret).json()["requests"] == 1
    assert get(stack, f"/v1/usage?end_time={now - 60}", made.secret).json()["requests"] == 0


@pytest.mark.parametrize("query", ["start_time=yesterday", "start_time=-1", "end_time=99999999999999"])
def test_a_moment_that_is_none(stack: Stack, query: str) -> None:
    answer = get(stack, f"/v1/usage?{query}", stack.keys["acme"])
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_budgets_of_the_key_its_project_and_its_tenant(stack: Stack) -> None:
    project = stack.write(lambda c: tenants.create_project(c, tenant_id=stack.tenants["initech"], name="own"))
    made = stack.new_key("initech", project_id=project.id)
    other = stack.new_key("initech")
    of_key = stack.budget(made.key, "tokens", 10_000)
    stack.budget(other.key, "tokens", 10_000)
    of_tenant = stack.write(
        lambda connection: budgets.create_budget(
            connection,
            tenant_id=stack.tenants["initech"],
            scope="tenant",
            scope_id=stack.tenants["initech"],
            unit="money",
            period="day",
            limit_amount=10**15,
        )
    )
    of_project = stack.write(
        lambda connection: budgets.create_budget(
            connection,
            tenant_id=stack.tenants["initech"],
            scope="project",
            scope_id=project.id,
            unit="tokens",
            period="month",
            limit_amount=5,
            kind="soft",
        )
    )
    stack.known()
    stack.keys["bounded"] = made.secret
    answer = stack.chat("bounded")
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    body = get(stack, "/v1/budget", made.secret).json()
    first, soft, second = body["data"]
    assert body["object"] == "list"
    assert (first["id"], soft["id"], second["id"]) == (of_key.id, of_project.id, of_tenant.id)
    assert (soft["kind"], soft["thresholds"], soft["left"] < 0) == ("soft", [80, 100], True)
    used = row.prompt_tokens + row.completion_tokens
    assert (first["used"], first["held"], first["left"]) == (used, 0, 10_000 - used)
    assert (first["unit"], first["period"], first["resets_at"]) == ("tokens", "total", None)
    assert (second["used"], second["left"]) == (row.cost_picos, 10**15 - row.cost_picos)
    midnight = datetime.datetime.fromtimestamp(second["resets_at"], datetime.UTC)
    assert midnight.time() == datetime.time(0)
    assert 0 < second["resets_at"] - time.time() <= 86_400


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/budget"])
def test_a_key_is_needed(stack: Stack, path: str) -> None:
    assert httpx.get(stack.url + path).status_code == 401
    assert get(stack, f"/t/globex{path}", stack.keys["acme"]).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", "/v1/moderations", "nothing is moderated"),
        ("GET", "/v1/responses/resp_1", "Response with id 'resp_1' not found"),
        ("POST", "/v1/engines/gpt/completions", "POST /v1/completions"),
        ("POST", "/v1/images/generations", "images are not made"),
        ("GET", "/v1/organization/users", "GET /v1/usage"),
        ("GET", "/t/acme/v1/organization/costs", "GET /v1/usage"),
        ("POST", "/v1/complete", "POST /v1/messages"),
        ("POST", "/v1/nothing/of/that/name", "/v1/models"),
        ("POST", "/t/acme/v1/audio/speech", "audio is neither read nor made"),
        ("POST", "/chat/completions", "lacks /v1"),
        ("POST", "/conversations", "lacks /v1"),
        ("POST", "/rerank", "lacks /v1"),
        ("POST", "/t/acme/messages", "lacks /v1"),
        ("POST", "/v1/v1/chat/completions", "/v1 twice"),
    ],
)
def test_an_endpoint_that_is_not_there_names_what_to_use(stack: Stack, method: str, path: str, words: str) -> None:
    answer = httpx.request(method, stack.url + path, headers=stack.headers())
    assert answer.status_code == 404
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/t/acme/v1/completions"])
def test_a_method_that_is_wrong_names_the_right_one(stack: Stack, path: str) -> None:
    answer = httpx.get(stack.url + path, headers=stack.headers())
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
    assert "Use POST." in answer.json()["error"]["message"]


def test_the_description_has_every_body(stack: Stack) -> None:
    schema = httpx.get(f"{stack.url}/schema").json()
    kinds = {
        "/v1/completions": "CompletionRequest",
        "/v1/messages": "MessagesRequest",
        "/v1/messages/count_tokens": "CountRequest",
        "/v1/responses": "ResponsesRequest",
        "/v1/responses/input_tokens": "ResponsesRequest",
        "/v1/responses/compact": "CompactRequest",
        "/v1/conversations": "NewConversation",
        "/v1/conversations/{conversation}": "ConversationChange",
        "/v1/conversations/{conversation}/items": "NewItems",
        "/v1/tokenize": "TokenizeRequest",
        "/v1/detokenize": "DetokenizeRequest",
    }
    for path, kind in kinds.items():
        for prefix in ("", "/t/{tenant}"):
            operation = schema["paths"][prefix + path]["post"]
            assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/" + kind)
    messages = schema["paths"]["/v1/messages"]["post"]["responses"]
    assert set(messages["200"]["content"]) == {"application/json", "text/event-stream"}
    assert messages["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/AnthropicError")
    assert schema["components"]["schemas"]["CompletionRequest"]["properties"]["suffix"]["enum"] == [None, ""]
    assert "get" in schema["paths"]["/v1/usage"]
    assert "get" in schema["paths"]["/t/{tenant}/v1/budget"]
    assert MODEL not in str(schema)
