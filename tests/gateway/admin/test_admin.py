"""The admin API on a real gateway: what an operator does in a day, and every way it can be asked wrongly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import revision
from gateway import tables
from gateway.access import keys
from support.gateway.admin_client import ERROR_KEYS, Operator
from support.stack import MODEL, Stack, body
from support.waiting import eventually


@pytest.fixture
def operator(stack: Stack) -> Operator:
    return Operator(stack)


def test_an_operators_day(make_stack: Callable[..., Stack], database_url: str) -> None:
    stack = make_stack(database_url)
    admin = Operator(stack)

    tenant = admin.ok("POST", "tenants", {"slug": "umbrella", "tier": "standard", "name": "Umbrella"})
    assert tenant["status"] == "active"
    assert abs(tenant["created_at"] - time.time()) < 60
    made = admin.ok("POST", "keys", {"tenant": "umbrella", "name": "first", "tier": "batch"})
    assert keys.is_well_formed(made["secret"])
    stack.keys["umbrella"] = made["secret"]

    answer = stack.chat("umbrella", max_tokens=4)
    assert answer.status_code == 200, answer.text
    assert answer.json()["service_tier"] == "flex", "the key's tier lowers the tenant's"

    totals = admin.ok("GET", "usage", tenant="umbrella")
    used = answer.json()["usage"]
    assert totals["requests"] == 1
    assert (totals["device_s"] > 0, totals["recomputed"], totals["swapped_tokens"]) == (True, {}, 0)
    assert (totals["prompt_tokens"], totals["completion_tokens"]) == (used["prompt_tokens"], 4)
    assert totals["cost_picos"] == {"USD": used["prompt_tokens"] * 50_000 + 4 * 200_000}
    row = admin.ok("GET", "usage/requests", tenant="umbrella")["data"][0]
    assert row["cost_picos"] == totals["cost_picos"]["USD"]
    assert (row["recomputed"], row["swapped_tokens"]) == ({}, 0)
    assert row["request_id"] == answer.headers["x-request-id"]
    assert abs(row["finished_at"] - time.time()) < 60
    assert admin.ok("GET", "usage", tenant="umbrella", end_time=row["finished_at"] - 60)["requests"] == 0

    budget = admin.ok("POST", "budgets", {"tenant": "umbrella", "unit": "tokens", "period": "total", "limit_amount": 0})
    assert (budget["left"], budget["resets_at"]) == (0, None)
    refusal = stack.chat("umbrella", max_tokens=4)
    assert refusal.status_code == 429
    assert refusal.json()["error"]["code"] == "tenant_budget_exceeded"
    again = admin.ok(
        "POST", "budgets", {"tenant": tenant["id"], "unit": "tokens", "period": "total", "limit_amount": 10**6}
    )
    assert again["id"] == budget["id"], "one budget for each unit and period: its limit is changed"
    assert stack.chat("umbrella", max_tokens=4).status_code == 200
    assert admin.ok("GET", "budgets", tenant="umbrella")["data"][0]["used"] > 4
    assert admin("DELETE", f"budgets/{budget['id']}").status_code == 204
    assert admin.ok("GET", "budgets", tenant="umbrella")["data"] == []
    admin.refused(404, "DELETE", f"budgets/{budget['id']}")

    admin.ok("PATCH", "tenants/umbrella", {"status": "suspended"})
    eventually(lambda: stack.chat("umbrella").status_code == 401, 2.0)
    assert admin.ok("GET", "tenants/umbrella")["status"] == "suspended"
    assert admin.ok("PATCH", "tenants/umbrella", {"share_weight": 2})["share_weight"] == 2.0
    admin.refused(400, "PATCH", "tenants/umbrella", {"share_weight": 0})
    admin.ok("PATCH", "tenants/umbrella", {"status": "active"})
    eventually(lambda: stack.chat("umbrella").status_code == 200, 2.0)

    rotated = admin.ok("POST", f"keys/{made['id']}/rotate", {"overlap_s": 3600})
    assert stack.chat("umbrella").status_code == 200, "the old key still works"
    admin.refused(400, "POST", f"keys/{made['id']}/rotate", {})
    assert admin.ok("POST", f"keys/{made['id']}/revoke")["revoked_at"]
    eventually(lambda: stack.chat("umbrella").status_code == 401, 2.0)
    stack.keys["umbrella"] = rotated["secret"]
    assert stack.chat("umbrella").status_code == 200

    price = {"subject": MODEL, "input": 7, "output": 9, "multipliers": {"premium": "3", "batch": "2"}}
    published = admin.ok("POST", "prices", price)
    assert published["tiers"]["premium"] == {"input": 21, "cached_input": 21, "output": 27, "embedding": 21}
    assert published["tiers"]["standard"] == {"input": 7, "cached_input": 7, "output": 9, "embedding": 7}
    assert admin.ok("GET", "prices", subject=MODEL, limit=1)["data"][0] == published
    newest = stack.chat("umbrella", max_tokens=2)
    row = admin.ok("GET", "usage/requests", tenant="umbrella")["data"][-1]
    assert row["cost_picos"] == newest.json()["usage"]["prompt_tokens"] * 14 + 2 * 18

    eventually(lambda: admin.ok("GET", "audit")["findings"]["open_holds"] == 0)
    findings = admin.ok("GET", "audit")
    assert findings["sound"] is True
    assert admin.ok("GET", "engine")["tokens_made"] >= 4

    assert [line.action for line in admin.log()] == [
        *("tenant.create", "key.create", "budget.set", "budget.set", "budget.remove"),
        *(*["tenant.update"] * 3, "key.rotate", "key.create", "key.revoke", "price.publish"),
    ]
    assert all(line.request_id.startswith("req_") for line in admin.log())
    logged = json.dumps([[line.before, line.after] for line in admin.log()])
    assert made["secret"] not in logged
    assert rotated["secret"] not in logged


def test_a_key_is_changed(operator: Operator) -> None:
    """Its default, and in whose budgets its requests count; in the gateway within a second."""
    stack = operator.stack
    made = operator.ok("POST", "keys", {"tenant": "acme"})
    headers = {"Authorization": f"Bearer {made['secret']}"}
    project = operator.ok("POST", "projects", {"tenant": "acme", "name": "capped"})
    budget = {"tenant": "acme", "project": "capped", "unit": "tokens", "period": "total", "limit_amount": 0}
    budget_id = operator.ok("POST", "budgets", budget)["id"]

    def ask() -> httpx.Response:
        asked = body(ignore_eos=True)
        del asked["max_tokens"]
        return httpx.post(f"{stack.url}/v1/chat/completions", headers=headers, json=asked, timeout=30)

    changed = operator.ok("PATCH", f"keys/{made['id']}", {"default_max_tokens": 3})
    assert (changed["default_max_tokens"], changed["project_id"]) == (3, made["project_id"])
    stack.known()
    assert ask().json()["usage"]["completion_tokens"] == 3
    changed = operator.ok("PATCH", f"keys/{made['id']}", {"project": "capped"})
    assert (changed["default_max_tokens"], changed["project_id"]) == (3, project["id"])
    stack.known()
    assert ask().json()["error"]["code"] == "project_budget_exceeded"
    assert operator.ok("PATCH", f"keys/{made['id']}", {"default_max_tokens": None})["default_max_tokens"] is None
    assert operator.ok("GET", f"keys/{made['id']}")["default_max_tokens"] is None
    assert [line.action for line in operator.log()][-3:] == ["key.update"] * 3
    operator("DELETE", f"budgets/{budget_id}")
    operator.ok("POST", f"keys/{made['id']}/revoke")
    operator.refused(400, "PATCH", f"keys/{made['id']}", {"default_max_tokens": 3})


def test_a_secret_is_shown_once(operator: Operator) -> None:
    made = operator.ok("POST", "keys", {"tenant": "acme"})
    assert made["secret"].startswith("lw_live_")
    listed = operator.ok("GET", f"keys/{made['id']}")
    assert listed == {name: value for name, value in made.items() if name != "secret"}
    everything = operator("GET", "keys", limit=500).text
    assert made["secret"] not in everything
    assert keys.hash_secret(made["secret"]) not in everything


def test_pages_by_key_hold_everything_once(operator: Operator) -> None:
    for name in ("a", "b", "c"):
        operator.ok("POST", "keys", {"tenant": "initech", "name": name})
    for path, parameters in (("keys", {"tenant": "initech"}), ("tenants", {}), ("prices", {}), ("usage/requests", {})):
        whole = operator.ok("GET", path, limit=500, **parameters)
        assert whole["object"] == "page"
        assert (whole["has_more"], whole["next_page"]) == (False, None)
        found: list[Any] = []
        page: dict[str, Any] = {}
        while True:
            part = operator.ok("GET", path, limit=2, **page, **parameters)
            assert len(part["data"]) <= 2
            found += part["data"]
            assert part["has_more"] == (part["next_page"] is not None)
            if not part["has_more"]:
                break
            page = {"page": part["next_page"]}
        assert found == whole["data"], path


def test_only_operators_come_in(operator: Operator, stack: Stack) -> None:
    url = f"{stack.url}/v1/admin/tenants"
    for headers, status, code in (
        ({}, 401, "invalid_api_key"),
        ({"Authorization": "Bearer lw_admin_" + "0" * 38}, 401, "invalid_api_key"),
        (stack.headers("acme"), 403, "insufficient_scope"),
    ):
        # With a body that nobody may read before the key is known.
        answer = httpx.post(url, content=b"{" * 1000, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    odd = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="odd", kind="admin"))
    without_role = sa.update(tables.keys).where(tables.keys.c.id == odd.key.id).values(role=None)
    stack.write(lambda c: c.execute(without_role))  # as a gateway of before roles would make one
    assert httpx.get(url, headers={"Authorization": f"Bearer {odd.secret}"}).status_code == 403
    assert httpx.get(f"{stack.url}/t/acme/v1/admin/tenants", headers=stack.headers()).status_code == 404
    answer = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"Bearer {operator.key.secret}"})
    assert answer.status_code == 403, "an admin key calls no models"


def test_every_field_at_fault_is_named_at_once(operator: Operator) -> None:
    def faults(path: str, sent: dict[str, Any]) -> list[str]:
        error = operator.refused(400, "POST", path, sent)
        assert (error["errors"][0]["message"], error["errors"][0]["param"]) == (error["message"], error["param"])
        return [one["param"] for one in error["errors"]]

    wrong: dict[str, Any] = {
        "slug": "A b",
        "tier": "gold",
        "currency": "usd",
        "time_zone": "Mars/Phobos",
        "name": "n" * 201,
    }
    assert faults("tenants", wrong) == ["slug", "name", "currency", "time_zone", "tier"]
    assert faults("tenants", {"slug": 1, "share_weight": -1, "colour": 1}) == ["slug", "tier", "share_weight", "colour"]
    wrong = {"tenant": "acme", "name": "", "tier": "gold", "models": ["a b"], "allowed_ips": ["1.2.3"], "project": "x"}
    assert faults("keys", wrong) == ["name", "tier", "models", "allowed_ips", "project"]
    wrong = {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": -1, "thresholds": [0]}
    assert faults("budgets", wrong) == ["limit_amount", "thresholds"]
    assert "errors" not in operator.refused(400, "POST", "tenants", {"slug": "A b", "tier": "batch"})


def test_the_search_finds_each_kind(operator: Operator) -> None:
    stack = operator.stack
    asked = stack.chat("acme", max_tokens=2)
    assert asked.status_code == 200
    key = operator.ok("POST", "keys", {"tenant": "acme", "name": "Rocket production"})

    def found(text: str) -> set[tuple[str, str]]:
        return {(hit["kind"], hit["id"]) for hit in operator.ok("GET", "search", q=text)["data"]}

    assert ("tenant", stack.tenants["acme"]) in found("ACME")
    assert found("rocket prod") == {("key", key["id"])} == found(key["id"])
    assert ("project", key["project_id"]) in found("default")
    request_id = asked.headers["x-request-id"]
    assert found(request_id) == {("request", request_id)} == found(asked.json()["id"])
    refused = stack.chat("acme", model="no-such-model")
    assert refused.status_code == 404
    eventually(lambda: found(refused.headers["x-request-id"]) == {("request", refused.headers["x-request-id"])})
    assert ("model", MODEL) in found(MODEL)
    assert found(key["secret"]) == set() == found("there is none")
    assert key["secret"] not in operator("GET", "search", q="rocket").text
    operator.refused(400, "GET", "search", q=" ")


BAD: dict[str, tuple[int, str, str, Any, str | None]] = {
    "unknown field": (400, "POST", "tenants", {"slug": "x", "tier": "batch", "colour": 1}, "colour"),
    "missing field": (400, "POST", "tenants", {"slug": "x"}, "tier"),
    "wrong type": (400, "POST", "tenants", {"slug": 1, "tier": "batch"}, "slug"),
    "no object": (400, "POST", "tenants", [], None),
    "no body": (400, "POST", "tenants", None, None),
    "bad slug": (400, "POST", "tenants", {"slug": "A b", "tier": "batch"}, "slug"),
    "unknown tier": (400, "POST", "tenants", {"slug": "x", "tier": "gold"}, "tier"),
    "bad currency": (400, "POST", "tenants", {"slug": "x", "tier": "batch", "currency": "usd"}, "currency"),
    "taken slug": (409, "POST", "tenants", {"slug": "acme", "tier": "batch"}, "slug"),
    "long name": (400, "POST", "tenants", {"slug": "x", "tier": "batch", "name": "n" * 201}, "name"),
    "no such tenant": (404, "GET", "tenants/nobody", None, "tenant"),
    "no such tenant's patch": (404, "PATCH", "tenants/nobody", {"tier": "batch"}, "tenant"),
    "bad status": (400, "PATCH", "tenants/acme", {"status": "gone"}, "status"),
    "key of nobody": (404, "POST", "keys", {"tenant": "nobody"}, "tenant"),
    "key without tenant": (400, "POST", "keys", {}, None),
    "admin key of a tenant": (400, "POST", "keys", {"tenant": "acme", "kind": "admin"}, "tenant"),
    "unknown kind": (400, "POST", "keys", {"tenant": "acme", "kind": "root"}, "kind"),
    "unknown scope": (400, "POST", "keys", {"tenant": "acme", "scopes": ["root"]}, None),
    "a scope too high": (400, "POST", "keys", {"tenant": "acme", "scopes": ["admin"]}, None),
    "no such key": (404, "GET", "keys/key_0", None, "key_id"),
    "rotate no such key": (404, "POST", "keys/key_0/rotate", {}, "key_id"),
    "overlap too long": (400, "POST", "keys/key_0/rotate", {"overlap_s": 10**9}, "overlap_s"),
    "change no such key": (404, "PATCH", "keys/key_0", {"project": "default"}, "key_id"),
    "a default of nothing": (400, "PATCH", "keys/key_0", {"default_max_tokens": 0}, "default_max_tokens"),
    "revoke no such key": (404, "POST", "keys/key_0/revoke", None, "key_id"),
    "price of nothing": (404, "POST", "prices", {"subject": "gpt", "input": 1, "output": 1}, "subject"),
    "negative price": (400, "POST", "prices", {"subject": MODEL, "input": -1, "output": 1}, "input"),
    "price not integral": (
        400,
        "POST",
        "prices",
        {"subject": MODEL, "input": 1, "output": 1, "multipliers": {"batch": "0.5"}},
        "input",
    ),
    "fractional price": (400, "POST", "prices", {"subject": MODEL, "input": 0.5, "output": 1}, "input"),
    "multiplier of no tier": (
        400,
        "POST",
        "prices",
        {"subject": MODEL, "input": 1, "output": 1, "multipliers": {"gold": "1"}},
        "multipliers",
    ),
    "price in the past": (
        400,
        "POST",
        "prices",
        {"subject": MODEL, "input": 1, "output": 1, "effective_from": 1},
        "effective_from",
    ),
    "budget of nobody": (
        404,
        "POST",
        "budgets",
        {"tenant": "nobody", "unit": "tokens", "period": "day", "limit_amount": 1},
        "tenant",
    ),
    "budget over 64 bits": (
        400,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 2**63},
        "limit_amount",
    ),
    "budget of another's key": (
        404,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "key_id": "key_0"},
        "key_id",
    ),
    "budget of a project and a key": (
        400,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "key_id": "key_0", "project": "p"},
        "key_id",
    ),
    "budget of no project": (
        404,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "project": "p"},
        "project",
    ),
    "a threshold of nothing": (
        400,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "thresholds": [0]},
        None,
    ),
    "a soft budget that does nothing": (
        400,
        "POST",
        "budgets",
        {"tenant": "acme", "unit": "tokens", "period": "day", "limit_amount": 1, "kind": "soft", "thresholds": []},
        "thresholds",
    ),
    "bad time zone": (400, "PATCH", "tenants/acme", {"time_zone": "Mars/Olympus"}, "time_zone"),
    "project of nobody": (404, "POST", "projects", {"tenant": "nobody", "name": "p"}, "tenant"),
    "project taken": (409, "POST", "projects", {"tenant": "acme", "name": "default"}, "name"),
    "no such project": (404, "PATCH", "projects/prj_0", {"name": "p"}, None),
    "key of no project": (404, "POST", "keys", {"tenant": "acme", "project": "p"}, "project"),
    "webhook of nobody": (404, "POST", "webhooks", {"url": "https://example.org/", "tenant": "nobody"}, "tenant"),
    "webhook of no URL": (400, "POST", "webhooks", {"url": "gopher://example.org/"}, "url"),
    "no such webhook": (404, "DELETE", "webhooks/whk_0", None, None),
    "no such budget": (404, "DELETE", "budgets/bud_0", None, None),
    "no such path": (404, "GET", "nothing", None, None),
    "no such method": (405, "PUT", "tenants", {}, None),
}


@pytest.mark.parametrize(("status", "method", "path", "body", "param"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_refused_and_changes_nothing(
    operator: Operator, stack: Stack, status: int, method: str, path: str, body: Any, param: str | None
) -> None:
    before = stack.read(revision.read_revision)
    error = operator.refused(status, method, path, body)
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    assert stack.read(revision.read_revision) == before, "a refused write bumps no revision"
    assert operator.log() == []


@pytest.mark.parametrize(
    ("path", "parameters", "param"),
    [
        ("tenants", {"limit": 0}, "limit"),
        ("tenants", {"limit": 501}, "limit"),
        ("keys", {"limit": "many"}, "limit"),
        ("keys", {"page": "key_0"}, "page"),
        ("prices", {"page": "prv_0"}, "page"),
        ("budgets", {"page": "bud_0"}, "page"),
        ("projects", {"sort": "colour"}, "sort"),
        ("projects", {"tenant": "acme", "page": "prj_0"}, "page"),
        ("webhooks", {"page": "whk_0"}, "page"),
        ("alerts", {"page": "x"}, "page"),
        ("audit_log", {"start_time": -1}, "start_time"),
        ("usage/requests", {"page": "x"}, "page"),
        ("usage/requests", {"page": "9" * 30}, "page"),
        ("usage", {"start_time": "yesterday"}, "start_time"),
    ],
)
def test_a_bad_parameter_is_refused(
    operator: Operator, path: str, parameters: dict[str, Any], param: str | None
) -> None:
    error = operator.refused(400, "GET", path, **parameters)
    if param is not None:
        assert error["param"] == param


def test_a_refused_parameter_has_its_limit_or_its_words(operator: Operator, stack: Stack) -> None:
    answer = operator("GET", "batches", status="foo")
    assert answer.status_code == 400, answer.text
    refused = answer.json()["error"]
    assert "cancelled" in refused["message"]
    assert " or " in refused["message"]
    assert refused["param"] == "status"
    assert operator.refused(400, "GET", "tenants", limit=501)["message"] == "limit: Expected `int` <= 500"
    headers = stack.headers("acme")
    for path, param, limit in (
        ("/v1/files?purpose=user_data", "purpose", "must be"),
        ("/v1/batches?limit=1000", "limit", "<= 100"),
        ("/v1/messages/batches?limit=5000", "limit", "<= 1000"),
    ):
        answer = httpx.get(stack.url + path, headers=headers)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["message"].startswith(f"{param}: "), error
        assert limit in error["message"]
        assert error.get("param", param) == param  # Anthropic's errors have no param


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"slug": "\xff", "tier": "batch"}', 400),
        (b"[" * 100_000, 413),
        (b"[" * 60_000, 400),
        (b" " * 10_000_000, 413),
    ],
    ids=["cut off", "no text", "bad text inside", "large", "deep", "ten megabytes"],
)
def test_bytes_that_are_no_request_are_refused(operator: Operator, stack: Stack, content: bytes, status: int) -> None:
    answer = httpx.post(
        f"{stack.url}/v1/admin/tenants",
        content=content,
        headers={"Authorization": f"Bearer {operator.key.secret}", "Content-Type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == status, answer.text[:300]
    assert set(answer.json()["error"]) == ERROR_KEYS


def test_the_engine_away_is_said(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    admin = Operator(stack)
    stack.kill_engine()
    eventually(lambda: admin("GET", "engine").status_code == 503)
    assert admin.refused(503, "GET", "engine")["code"] == "engine_unavailable"
    assert admin.ok("GET", "usage")["requests"] == 0, "what needs no engine works"


def test_the_admin_api_is_described(stack: Stack) -> None:
    schema = httpx.get(f"{stack.url}/schema").json()
    paths = {path for path in schema["paths"] if path.startswith("/v1/admin")}
    assert {"/v1/admin/tenants", "/v1/admin/keys/{key_id}/rotate", "/v1/admin/usage/requests"} <= paths
    operation = schema["paths"]["/v1/admin/budgets"]["post"]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    assert set(schema["components"]["schemas"][name]["required"]) == {"tenant", "unit", "period", "limit_amount"}
