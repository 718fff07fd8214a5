"""A key with a budget and limits of its own is rotated with an overlap: both keys answer, and share both."""

from __future__ import annotations

from typing import Any

import httpx

from billing.proofs import reconcile
from gateway.access import keys
from support.stack import Stack
from support.waiting import eventually


def test_both_keys_share_budget_and_limits(stack: Stack) -> None:
    operator = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="op", kind="admin"))
    stack.known()

    def call(method: str, path: str, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {operator.secret}"}
        answer = httpx.request(method, f"{stack.url}/v1/admin/{path}", headers=headers, json=body or None, timeout=30)
        assert answer.status_code < 300, answer.text
        return answer.json()

    old = call("POST", "keys", tenant="acme", name="rotating")
    stack.keys["old"] = old["secret"]
    of_key = {"tenant": "acme", "key_id": old["id"]}
    budget = call("POST", "budgets", **of_key, unit="tokens", period="total", limit_amount=10_000)
    call("POST", "limits", **of_key, requests_per_minute=6)
    used = _tokens(stack.chat("old", max_tokens=4))
    new = call("POST", f"keys/{old['id']}/rotate", overlap_s=86_400)
    stack.keys["new"] = new["secret"]
    assert new["first_key_id"] == old["id"]

    for name in ("old", "new", "old", "new"):
        used += _tokens(stack.chat(name, max_tokens=4))
    for name in ("old", "new"):
        eventually(lambda name=name: _own_budget(stack, name)["used"] == used)
        own = _own_budget(stack, name)
        assert (own["id"], own["scope_id"], own["held"]) == (budget["id"], new["id"], 0)

    # Five of six requests are taken, whichever key made them.
    assert stack.chat("new", max_tokens=4).status_code == 200
    assert [stack.chat(name, max_tokens=4).status_code for name in ("old", "new")] == [429, 429]
    call("POST", "limits", **of_key, requests_per_minute=100)
    changed = call("POST", "budgets", **of_key, unit="tokens", period="total", limit_amount=used)
    assert (changed["id"], changed["scope_id"]) == (budget["id"], new["id"])
    for name in ("old", "new"):
        answer = stack.chat(name, max_tokens=4)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "key_budget_exceeded"), name

    call("POST", f"keys/{old['id']}/revoke")
    assert stack.chat("old").status_code == 401
    assert stack.chat("new").status_code == 429
    found = stack.read(reconcile.reconcile_all)
    assert budget["id"] not in str(found), found


def _tokens(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return int(usage["prompt_tokens"] + usage["completion_tokens"])


def _own_budget(stack: Stack, name: str) -> dict[str, Any]:
    data = httpx.get(f"{stack.url}/v1/budget", headers=stack.headers(name)).json()["data"]
    [found] = [budget for budget in data if budget["scope"] == "key"]
    return dict(found)
