"""The cost of refused requests: limits are checked before the body is read, and a refusal counts as a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from billing.accounts import budgets
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from support.stack import MODEL, Stack, body
from support.waiting import eventually

NOT_JSON = b'{"model": ' + b"[" * 1000
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
    "/v1/tokenize",
    "/v1/detokenize",
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("refused")
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, fake={"step_ms": 50.0})
    try:
        made.start()
        yield made
    finally:
        made.stop()


def limited(stack: Stack, **limits: int) -> httpx.Client:
    """A client with a new key and these limits, once every gateway knows the key."""
    made = stack.new_key("acme")
    change = LimitsChange(**limits)
    stack.write(
        lambda c: overrides.change_own_limits(
            c, scope="key", subject_id=made.key.id, tenant_id=stack.tenants["acme"], change=change
        )
    )
    stack.known()
    stack.keys[made.key.id] = made.secret
    return httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {made.secret}"}, timeout=60)


def code(answer: httpx.Response) -> tuple[int, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error.get("code")


@pytest.mark.parametrize("path", PATHS)
def test_a_request_over_its_limit_is_refused_before_its_body_is_parsed(stack: Stack, path: str) -> None:
    """The body is no JSON: parsing it would give 400."""
    with limited(stack, requests_per_minute=2) as client:
        assert [client.post(path, content=NOT_JSON).status_code for _ in range(4)] == [400, 400, 429, 429]
        refused = client.post(path, content=NOT_JSON)
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(refused.headers["retry-after"]) >= 1
        assert stack.request_line(refused.headers["x-request-id"])["status"] == 429


def test_a_request_over_its_limit_is_refused_before_its_body_is_read(stack: Stack) -> None:
    """The answer arrives although most of the body was not sent."""
    with limited(stack, requests_per_minute=1) as client:
        assert client.post(PATHS[0], content=NOT_JSON).status_code == 400
        sent = threading.Event()

        def slowly() -> Iterator[bytes]:
            yield b"{"
            sent.wait(30)
            yield b"}"

        refused: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: refused.append(client.post(PATHS[0], content=slowly())))
        asking.start()
        eventually(lambda: any(line["status"] == 429 for line in stack.log_lines("request") if line.get("key")))
        sent.set()
        asking.join(30)
        assert refused[0].status_code == 429


def test_what_is_refused_keeps_its_request_and_gives_back_its_place_and_tokens(stack: Stack) -> None:
    long = body(messages=[{"role": "user", "content": "word " * 9000}])
    for wrong in (body(max_tokens=0), body(model="none"), long):
        with limited(stack, requests_per_minute=3, tokens_per_minute=50, concurrency=1) as client:
            said = [client.post(PATHS[0], json=wrong).status_code for _ in range(4)]
            assert said[:3] == [said[0]] * 3
            assert said[0] in (400, 404)
            assert said[3] == 429
            full = client.post(PATHS[0], json=body(max_tokens=1))
            assert "requests per minute: limit 3, used 3" in full.json()["error"]["message"]
            assert full.headers["x-ratelimit-remaining-tokens"] == "50"


def test_at_its_concurrency_limit_a_tenant_is_refused_before_its_body_is_parsed(stack: Stack) -> None:
    with (
        limited(stack, concurrency=1) as client,
        client.stream("POST", PATHS[0], json=body(stream=True, max_tokens=60)) as running,
    ):
        next(running.iter_lines())
        refused = client.post(PATHS[0], content=NOT_JSON)
        assert code(refused) == (429, "rate_limit_exceeded")
        assert "concurrent" in refused.json()["error"]["message"]


def test_tokens_that_do_not_fit_keep_the_request(stack: Stack) -> None:
    with limited(stack, requests_per_minute=2, tokens_per_minute=100) as client:
        for _ in range(2):
            refused = client.post(PATHS[0], json=body(max_tokens=500))
            assert "tokens per minute" in refused.json()["error"]["message"]
        assert "requests per minute" in client.post(PATHS[0], content=NOT_JSON).json()["error"]["message"]


def test_refused_clients_are_told_different_times(stack: Stack) -> None:
    with limited(stack, requests_per_minute=60) as client:
        told = {client.post(PATHS[0], content=NOT_JSON).headers.get("retry-after") for _ in range(160)}
    assert len(told - {None}) >= 3, told
    assert all(1 <= int(one) <= 60 for one in told if one is not None)


@pytest.mark.parametrize("unit", ["tokens", "money"])
def test_an_empty_budget_is_remembered(stack: Stack, unit: Any) -> None:
    """After a refusal by the ledger, the next request within REMEMBER_S is not parsed."""
    made = stack.new_key("acme")
    stack.budget(made.key, unit, 0)
    stack.known()
    headers = {"Authorization": f"Bearer {made.secret}"}
    holds = stack.holds()
    with httpx.Client(base_url=stack.url, headers=headers, timeout=60) as client:

        def remembered() -> bool:
            first = client.post(PATHS[0], json=body())
            second = client.post(PATHS[0], content=NOT_JSON)
            assert code(first) == (429, "key_budget_exceeded")
            assert second.status_code in (400, 429)  # 400: a stall longer than REMEMBER_S
            return code(second) == (429, "key_budget_exceeded") and "retry-after" not in second.headers

        eventually(remembered)
    assert stack.holds() == holds


def test_a_budget_that_is_raised_is_used_at_once(stack: Stack) -> None:
    made = stack.new_key("acme")
    stack.keys[made.key.id] = made.secret
    budget = stack.budget(made.key, "tokens", 0)
    stack.known()
    assert stack.chat(made.key.id).status_code == 429
    stack.write(lambda c: budgets.change_budget(c, budget.id, limit_amount=10**6))
    stack.known()
    answer = stack.chat(made.key.id)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL
