"""What an operator wrote holds at the gateway that answered it: the very next request goes by it, without a wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.access import keys
from support.stack import MODEL, Stack

ROUNDS = 4  # of each write: one may happen just before a look of the watch, which then hides that nothing followed


class Operator:
    """An operator and callers of one gateway, each over a connection of its own."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
        stack.known()
        self._client = httpx.Client(base_url=stack.url, timeout=30)
        self._admin = {"Authorization": f"Bearer {made.secret}"}

    def close(self) -> None:
        self._client.close()

    def write(self, method: str, path: str, **body: Any) -> Any:
        answer = self._client.request(method, f"/v1/admin/{path}", headers=self._admin, json=body or None)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def new_key(self, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.write("POST", "keys", tenant="acme", **fields)
        return made

    def chat(self, secret: str, model: str = MODEL, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4} | fields
        return self._client.post("/v1/chat/completions", headers={"Authorization": f"Bearer {secret}"}, json=body)

    def status(self, secret: str, model: str = MODEL) -> int:
        return self.chat(secret, model).status_code


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[Operator]:
    operator = Operator(stack)
    yield operator
    operator.close()


@pytest.fixture(params=range(ROUNDS))
def round_(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_a_revoked_key(operator: Operator, round_: int) -> None:
    made = operator.new_key()
    assert operator.status(made["secret"]) == 200
    operator.write("POST", f"keys/{made['id']}/revoke")
    assert operator.status(made["secret"]) == 401


def test_a_key_of_a_secret_that_was_refused_before(operator: Operator, round_: int) -> None:
    """A rotation without an overlap: the old key is remembered as good here, the new one as nothing."""
    old = operator.new_key()
    assert operator.status(old["secret"]) == 200
    new = operator.write("POST", f"keys/{old['id']}/rotate", overlap_s=0)
    assert (operator.status(old["secret"]), operator.status(new["secret"])) == (401, 200)


def test_a_keys_default(operator: Operator, round_: int) -> None:
    made = operator.new_key(default_max_tokens=3)
    for tokens in (3, 5):
        operator.write("PATCH", f"keys/{made['id']}", default_max_tokens=tokens)
        answer = operator.chat(made["secret"], max_tokens=None)
        assert answer.json()["usage"]["completion_tokens"] == tokens


def test_a_suspended_tenant(operator: Operator, round_: int) -> None:
    secret = operator.stack.keys["globex"]
    assert operator.status(secret) == 200
    operator.write("PATCH", "tenants/globex", status="suspended")
    assert operator.status(secret) == 401
    operator.write("PATCH", "tenants/globex", status="active")
    assert operator.status(secret) == 200


def test_an_adapter_that_is_shared_no_more(operator: Operator, round_: int) -> None:
    stack = operator.stack
    secret, adapter = stack.keys["globex"], stack.adapters["acme-style"]
    operator.write("PATCH", f"adapters/{adapter}", shared=["globex"])
    assert "acme-style" in _models(stack, secret)
    operator.write("PATCH", f"adapters/{adapter}", shared=[])
    assert "acme-style" not in _models(stack, secret)
    assert operator.status(secret, "acme-style") == 404


def test_an_alias(operator: Operator, round_: int) -> None:
    secret = operator.stack.keys["acme"]
    operator.write("PUT", "aliases/moving", models=[{"model": MODEL, "weight": 1}])
    assert operator.status(secret, "moving") == 200
    operator.write("DELETE", "aliases/moving")
    assert operator.status(secret, "moving") == 404


def test_a_limit(operator: Operator, round_: int) -> None:
    made = operator.new_key()
    assert operator.status(made["secret"]) == 200
    own = operator.write("POST", "limits", tenant="acme", key_id=made["id"], requests_per_minute=7)
    assert operator.chat(made["secret"]).headers["x-ratelimit-limit-requests"] == "7"
    operator.write("DELETE", f"limits/{own['id']}")
    assert operator.chat(made["secret"]).headers.get("x-ratelimit-limit-requests") != "7"


def test_a_budget(operator: Operator, round_: int) -> None:
    made = operator.new_key()
    fields = {"tenant": "acme", "key_id": made["id"], "unit": "tokens", "period": "total"}
    budget = operator.write("POST", "budgets", **fields, limit_amount=0)
    assert operator.status(made["secret"]) == 429
    operator.write("POST", "budgets", **fields, limit_amount=10_000)
    assert operator.status(made["secret"]) == 200
    operator.write("POST", "budgets", **fields, limit_amount=0)
    assert operator.status(made["secret"]) == 429
    operator.write("DELETE", f"budgets/{budget['id']}")
    assert operator.status(made["secret"]) == 200


def _models(stack: Stack, secret: str) -> set[str]:
    cards = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"Bearer {secret}"}).json()["data"]
    return {card["id"] for card in cards}
