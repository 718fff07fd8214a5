"""How many tokens an answer may have: what was asked or a default, cut to what the budgets have left, and said."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from billing.accounts import tenants
from gateway.access import keys
from support.stack import Stack, body, events

GRANTED = "x-laneway-max-tokens-granted"


def ask(stack: Stack, secret: str, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{stack.url}{path}", headers=headers, json=body(**fields), timeout=30)


def test_what_was_asked_is_granted_where_no_budget_is_short(stack: Stack) -> None:
    assert stack.chat(max_tokens=6).headers[GRANTED] == "6"
    assert stack.chat(max_tokens=6, n=3).headers[GRANTED] == "18", "of all texts together"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_what_is_left_is_granted_and_said(stack: Stack, stream: bool, path: str) -> None:
    made = stack.new_key("globex")
    prompt = stack.chat("globex", max_tokens=1).json()["usage"]["prompt_tokens"]
    stack.budget(made.key, "tokens", prompt + 5)
    answer = ask(stack, made.secret, path, max_tokens=100, stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers[GRANTED] == "5"
    row = stack.usage(answer.headers["x-request-id"])
    assert row is not None
    assert (row.completion_tokens, row.ending) == (5, "length")
    refused = ask(stack, made.secret, path, max_tokens=100, stream=stream)
    assert refused.status_code == 429
    assert GRANTED not in refused.headers


def test_a_clamped_answer_ends_with_length(stack: Stack) -> None:
    made = stack.new_key("globex")
    prompt = stack.chat("globex", max_tokens=1).json()["usage"]["prompt_tokens"]
    stack.budget(made.key, "tokens", prompt + 5)
    *chunks, done = events(ask(stack, made.secret, max_tokens=100, stream=True).text)
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_whose_default_counts(stack: Stack) -> None:
    """The key's, else its project's, else the tenant's, else the model's or the gateway's."""
    tenant_id = stack.tenants["initech"]
    project = stack.write(
        lambda c: tenants.create_project(c, tenant_id=tenant_id, name="granted", default_max_tokens=5)
    )

    def granted(**fields: Any) -> str:
        made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name="k", **fields))
        answer = ask(stack, made.secret, max_tokens=None)
        assert answer.status_code == 200, answer.text
        return answer.headers[GRANTED]

    assert granted(project_id=project.id, default_max_tokens=4) == "4"
    assert granted(project_id=project.id) == "5"
    assert granted() == "2048"
    stack.write(lambda c: tenants.update_tenant(c, tenant_id, default_max_tokens=6))
    assert granted() == "6"
    assert granted(project_id=project.id) == "5"
    stack.write(lambda c: tenants.update_project(c, project.id, default_max_tokens=None))
    assert granted(project_id=project.id) == "6"
    stack.write(lambda c: tenants.update_tenant(c, tenant_id, default_max_tokens=None))
