"""Tags of a key over HTTP: a request's usage keeps those that the key had when it began."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.access import keys
from support.stack import MODEL, Stack, body
from support.waiting import eventually

START = int(time.time()) - 3600
REFUSED_TAGS: list[tuple[dict[str, Any], str]] = [
    ({"tags": {"a b": "x"}}, "tags"),
    ({"tags": {"laneway/key": "x"}}, "tags"),
    ({"tags": {"team": ""}}, "tags"),
    ({"tags": {"team": "x" * 257}}, "tags"),
    ({"tags": {f"n{number}": "x" for number in range(17)}}, "tags"),
]


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[httpx.Client]:
    made = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin"))
    headers = {"Authorization": f"Bearer {made.secret}"}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=30) as client:
        yield client


def chat(stack: Stack, secret: str) -> str:
    headers = {"Authorization": f"Bearer {secret}"}
    answer = httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=body(max_tokens=3), timeout=60)
    assert answer.status_code == 200, answer.text
    request_id = answer.headers["x-request-id"]
    eventually(lambda: stack.usage(request_id) is not None)
    return str(request_id)


def test_usage_keeps_the_tags_of_its_time(stack: Stack, operator: httpx.Client) -> None:
    made = operator.post("/v1/admin/keys", json={"tenant": "acme", "tags": {"team": "search", "env": "live"}}).json()
    assert made["tags"] == {"env": "live", "team": "search"}
    stack.known()
    first = chat(stack, made["secret"])
    changed = operator.patch(f"/v1/admin/keys/{made['id']}", json={"tags": {"team": "chat"}}).json()
    assert changed["tags"] == {"team": "chat"}
    stack.known()
    second = chat(stack, made["secret"])
    rotated = operator.post(f"/v1/admin/keys/{made['id']}/rotate", json={"overlap_s": 60}).json()
    assert rotated["tags"] == {"team": "chat"}
    assert operator.patch(f"/v1/admin/keys/{rotated['id']}", json={"tags": {}}).json()["tags"] == {}
    stack.known()
    third = chat(stack, rotated["secret"])
    expected = {first: {"env": "live", "team": "search"}, second: {"team": "chat"}, third: {}}
    key_ids = [made["id"], rotated["id"]]

    def listed(**query: Any) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for key_id in key_ids:
            answer = operator.get("/v1/admin/usage/requests", params={"tenant": "acme", "key_id": key_id, **query})
            assert answer.status_code == 200, answer.text
            found |= {row["request_id"]: row["tags"] for row in answer.json()["data"]}
        return found

    assert listed() == expected
    assert set(listed(tags=["team=search", "team=chat"])) == {first, second}
    assert set(listed(tags=["team=search", "env=live"])) == {first}
    assert set(listed(tags="team=")) == {third}
    totals = operator.get(
        "/v1/admin/usage", params={"tenant": "acme", "key_id": made["id"], "tags": "team=chat"}
    ).json()
    assert totals["requests"] == 1
    whole = operator.get(f"/v1/admin/requests/{first}").json()
    assert whole["usage"]["tags"] == expected[first]
    picos = {request_id: stack.usage(request_id).cost_picos for request_id in expected}  # type: ignore[union-attr]
    query: dict[str, Any] = {
        "start_time": START,
        "api_key_ids": key_ids,
        "group_by_tags": ["team", "env"],
        "bucket_width": "all",
    }
    costs = operator.get("/v1/organization/costs", params=query).json()["data"][0]["results"]
    assert {(row["tags"]["team"], row["tags"]["env"]): row["amount"]["picos"] for row in costs} == {
        ("search", "live"): picos[first],
        ("chat", None): picos[second],
        (None, None): picos[third],
    }
    usage = operator.get("/v1/organization/usage/completions", params=query | {"tags": "team=chat"}).json()
    [row] = usage["data"][0]["results"]
    assert (row["num_model_requests"], row["tags"]) == (1, {"team": "chat", "env": None})
    plain = operator.get("/v1/organization/costs", params=query | {"group_by_tags": []}).json()["data"][0]["results"]
    assert [(row["tags"], row["amount"]["picos"]) for row in plain] == [(None, sum(picos.values()))]


@pytest.mark.parametrize(("fields", "field"), REFUSED_TAGS)
def test_tags_that_are_refused_over_http(operator: httpx.Client, fields: dict[str, Any], field: str) -> None:
    answer = operator.post("/v1/admin/keys", json={"tenant": "acme", **fields})
    assert answer.status_code == 400, answer.text
    assert field in f"{answer.json()['error']['param']} {answer.json()['error']['message']}"
    assert operator.post("/v1/admin/keys", json={"kind": "admin", "tags": {"team": "x"}}).status_code == 400


@pytest.mark.parametrize(
    ("path", "query", "param"),
    [
        ("organization/costs", {"tags": "team"}, "tags"),
        ("organization/costs", {"tags": "a b=c"}, "tags"),
        ("organization/costs", {"group_by_tags": ["a", "b", "c", "d", "e"]}, "group_by_tags"),
        ("organization/usage/completions", {"group_by_tags": "laneway/key"}, "group_by_tags"),
        ("admin/usage", {"tags": "team"}, "tags"),
    ],
)
def test_questions_that_are_refused(operator: httpx.Client, path: str, query: dict[str, Any], param: str) -> None:
    start = {"start_time": START} if path.startswith("organization") else {}
    answer = operator.get(f"/v1/{path}", params=start | query)
    assert answer.status_code == 400, answer.text
    assert param in answer.text


def test_lists_of_a_key_over_http(stack: Stack, operator: httpx.Client) -> None:
    made = operator.post(
        "/v1/admin/keys", json={"tenant": "acme", "models": [MODEL], "allowed_ips": ["127.0.0.1", "::1/128"]}
    ).json()
    assert (made["models"], made["allowed_ips"]) == ([MODEL], ["127.0.0.1/32", "::1/128"])
    stack.known()
    chat(stack, made["secret"])
    shown = operator.get(f"/v1/admin/keys/{made['id']}").json()
    assert (shown["models"], shown["allowed_ips"]) == (made["models"], made["allowed_ips"])
    opened = operator.patch(f"/v1/admin/keys/{made['id']}", json={"models": None, "allowed_ips": None}).json()
    assert (opened["models"], opened["allowed_ips"]) == (None, None)
    refusals: list[dict[str, Any]] = [
        {"models": []},
        {"models": ["a b"]},
        {"allowed_ips": []},
        {"allowed_ips": ["10.0.0.1/8"]},
    ]
    for refused in refusals:
        answer = operator.patch(f"/v1/admin/keys/{made['id']}", json=refused)
        assert answer.status_code == 400, (refused, answer.text)
        assert next(iter(refused)) in answer.text
    tenant = operator.patch("/v1/admin/tenants/initech", json={"allowed_ips": ["::ffff:192.0.2.0/120"]}).json()
    assert tenant["allowed_ips"] == ["192.0.2.0/24"]
    assert operator.patch("/v1/admin/tenants/initech", json={"allowed_ips": None}).json()["allowed_ips"] is None
