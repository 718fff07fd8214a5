"""A model without a price in the tenant's currency: refused so that no client repeats what an operator must mend."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest

from billing.accounts import tenants
from gateway.access import keys
from support.stack import MODEL, Stack

ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def secret(stack: Stack) -> str:
    """Of a tenant that pays in a currency in which nothing is priced."""
    tenant = stack.write(lambda c: tenants.create_tenant(c, slug="euro", name="Euro", tier="standard", currency="EUR"))
    made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant.id, name="euro"))
    stack.known()
    return made.secret


def refusals(stack: Stack) -> int:
    return len(stack.log_lines("hold.price_unknown"))


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_that_is_not_repeated(stack: Stack, secret: str, path: str, stream: bool) -> None:
    body = ASKED | {"stream": stream}
    if path == "completions":
        body = {"model": MODEL, "prompt": "Hi", "max_tokens": 4, "stream": stream}
    answer = httpx.post(f"{stack.url}/v1/{path}", headers={"Authorization": f"Bearer {secret}"}, json=body)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "has no price in EUR for tier 'standard'" in error["message"]
    assert "laneway prices publish" in error["message"]
    if path != "messages":
        assert (error["code"], error["param"]) == ("model_not_priced", "model")


def test_official_clients_ask_once(stack: Stack, secret: str) -> None:
    before = refusals(stack)
    with (
        openai.OpenAI(base_url=f"{stack.url}/v1", api_key=secret, max_retries=2) as client,
        pytest.raises(openai.BadRequestError, match="has no price"),
    ):
        client.chat.completions.create(**ASKED)
    assert refusals(stack) == before + 1
    with (
        anthropic.Anthropic(base_url=stack.url, api_key=secret, max_retries=2) as other,
        pytest.raises(anthropic.BadRequestError, match="has no price"),
    ):
        other.messages.create(**ASKED)
    assert refusals(stack) == before + 2


def test_an_idempotency_key_is_free_again(stack: Stack, secret: str) -> None:
    """Once there is a price, the same call runs."""
    headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "first"}
    codes = [
        httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=ASKED).json()["error"]["code"]
        for _ in range(2)
    ]
    assert codes == ["model_not_priced"] * 2
