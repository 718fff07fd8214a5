"""Budgets for each end user on a real gateway: every dialect, what administrators see, and where no name is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import tenants
from billing.proofs.ledger_audit import audit_ledger
from billing.tables import metadata
from support.gateway.admin_client import Operator
from support.gateway.command_line import Laneway
from support.stack import MODEL, Stack
from support.waiting import eventually

ANN, BOB = "ann@example.org", "bob@example.org"
LIMIT = 250  # tokens
SMALL = {"model": MODEL, "max_tokens": 1}
SAYS = [{"role": "user", "content": "Hi"}]
# Path → the fields of a request, and the fields that name the end user.
DIALECTS: dict[str, tuple[dict[str, Any], Callable[[str], dict[str, Any]]]] = {
    "chat/completions": (SMALL | {"messages": SAYS}, lambda name: {"user": name}),
    "completions": (SMALL | {"prompt": "Hi"}, lambda name: {"user": name}),
    "responses": ({"model": MODEL, "max_output_tokens": 1, "input": "Hi"}, lambda name: {"safety_identifier": name}),
    "messages": (SMALL | {"messages": SAYS}, lambda name: {"metadata": {"user_id": name}}),
}


def post(stack: Stack, path: str, body: dict[str, Any], tenant: str = "acme") -> httpx.Response:
    return httpx.post(f"{stack.url}/v1/{path}", headers=stack.headers(tenant), json=body, timeout=60)


def ask(stack: Stack, path: str, name: str | None, **fields: Any) -> httpx.Response:
    body, named = DIALECTS[path]
    return post(stack, path, body | ({} if name is None else named(name)) | fields)


def every_row(connection: sa.Connection) -> str:
    return str([connection.execute(sa.select(table)).all() for table in metadata.tables.values()])


@pytest.fixture
def limited(make_stack: Callable[..., Stack]) -> tuple[Stack, Operator, dict[str, Any]]:
    """acme has a budget for each end user."""
    stack = make_stack()
    stack.write(lambda c: tenants.update_tenant(c, stack.tenants["acme"], store_responses_s=3600))
    admin = Operator(stack)
    wanted = {"tenant": "acme", "unit": "tokens", "period": "month", "limit_amount": LIMIT, "per_end_user": True}
    for field, value in (("kind", "soft"), ("thresholds", [80])):
        assert admin.refused(400, "POST", "budgets", wanted | {field: value})["param"] == field
    template = admin.ok("POST", "budgets", wanted)
    assert (template["per_end_user"], template["end_users"], template["end_users_near"]) == (True, 0, 0)
    ordinary = admin.ok("POST", "budgets", wanted | {"per_end_user": False, "limit_amount": 10**6})
    assert (ordinary["id"] != template["id"], ordinary["per_end_user"], ordinary["end_users"]) == (True, False, None)
    assert admin.ok("POST", "budgets", wanted)["id"] == template["id"]
    return stack, admin, template


def test_every_dialect_and_what_is_shown(limited: tuple[Stack, Operator, dict[str, Any]]) -> None:
    stack, admin, template = limited
    spent = ask(stack, "chat/completions", ANN, max_tokens=LIMIT, ignore_eos=True)
    assert spent.status_code == 200, spent.text
    assert int(spent.headers["x-laneway-max-tokens-granted"]) < LIMIT, "clamped to the end user's budget"
    for path in DIALECTS:
        refused = ask(stack, path, ANN)
        assert refused.status_code == 429, (path, refused.text)
        error = refused.json()["error"]
        assert "The end user's token budget (month) does not cover this request" in error["message"]
        assert ANN not in refused.text
        assert refused.headers["x-should-retry"] == "false"
        if path != "messages":
            assert (error["type"], error["code"]) == ("insufficient_quota", "end_user_budget_exceeded")
        for name in (BOB, "", None):
            assert ask(stack, path, name).status_code == 200, "the key serves its other end users"
    assert ask(stack, "chat/completions", ANN, stream=True).status_code == 429
    assert ask(stack, "chat/completions", ANN, safety_identifier=BOB).status_code == 200, "it comes first"

    started = ask(stack, "responses", "carl", background=True)
    assert started.status_code == 200, started.text

    def end_users(**query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = admin.ok("GET", f"budgets/{template['id']}/end_users", **query)["data"]
        return found

    eventually(lambda: [one["used"] > 0 for one in end_users(end_user="carl")] == [True])
    ann, bob, carl = end_users()
    assert end_users(end_user=ANN) == [ann]
    assert end_users(end_user=BOB) == [bob]
    assert end_users(end_user="carl") == [carl]
    assert end_users(end_user="ann") == [], "the whole name counts"
    assert (ann["used"], ann["left"], ann["shared"]) == (LIMIT, 0, False)
    assert (bob["used"] > 0, bob["held"]) == (True, 0)
    first = admin.ok("GET", f"budgets/{template['id']}/end_users", limit=1)
    assert (first["data"], first["has_more"]) == ([ann], True)
    assert admin.ok("GET", f"budgets/{template['id']}/end_users", limit=2, page=first["next_page"])["data"] == [
        bob,
        carl,
    ]
    listed = admin.ok("GET", "budgets", tenant="acme")["data"]
    assert [(one["end_users"], one["end_users_near"]) for one in listed] == [(3, 1), (None, None)]
    assert [one["projected"] for one in listed if one["per_end_user"]] == [None]
    own = httpx.get(f"{stack.url}/v1/budget", headers=stack.headers()).json()["data"]
    assert sorted(one["per_end_user"] for one in own) == [False, True]
    ordinary = next(one["id"] for one in listed if not one["per_end_user"])
    for hidden in (ann["id"], ordinary):
        admin.refused(404, "GET", f"budgets/{hidden}/end_users")
    admin.refused(404, "DELETE", f"budgets/{ann['id']}")

    laneway = Laneway(stack.directory, stack.config_file.read_text())
    shown = laneway.json("budgets", "end-users", template["id"])
    assert [row["id"] for row in shown] == [ann["id"], bob["id"], carl["id"]]
    assert laneway.json("budgets", "end-users", template["id"], "--user", ANN) == [ann]
    assert "no budget for each end user" in laneway.refusal("budgets", "end-users", ordinary)
    theirs = laneway.json("budgets", "set", "globex", "--period", "month", "--tokens", str(LIMIT), "--per-end-user")
    body, named = DIALECTS["chat/completions"]
    assert post(stack, "chat/completions", body | named(ANN), "globex").status_code == 200, "another tenant's end user"
    [other] = laneway.json("budgets", "end-users", theirs["id"], "--user", ANN)
    assert other["id"] != ann["id"]

    assert ANN not in stack.read(every_row)
    assert ANN not in stack.log_file.read_text()
    findings = stack.read(audit_ledger)
    assert (findings.sound, findings.overshot) == (True, [])

    admin.ok("POST", "budgets", {"tenant": "acme", "unit": "tokens", "period": "month", "per_end_user": True,
                                 "limit_amount": 2 * LIMIT})  # fmt: skip
    assert ask(stack, "chat/completions", ANN).status_code == 200, "the new limit is that of each end user"
    assert admin("DELETE", f"budgets/{template['id']}").status_code == 204
    admin.refused(404, "GET", f"budgets/{template['id']}/end_users")
    query = sa.select(sa.func.count()).where(tables.budgets.c.template_id == template["id"], tables.budgets.c.active)
    assert stack.read(lambda c: c.execute(query).scalar_one()) == 0
