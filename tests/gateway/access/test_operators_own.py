"""What is the operator's beside a tenant's things: a tenant's admin sees nothing of it, and cannot use it up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets, webhooks
from billing.clock import database_now
from gateway.access import keys
from support.stack import Stack

INNER = "'hooks.inner' is at 10.0.0.5, which is private: webhooks.private_addresses"


@pytest.fixture
def own_stack(make_stack: Callable[..., Stack]) -> Stack:
    return make_stack()


def client_of(stack: Stack, role: keys.Role, tenant: str | None = None) -> httpx.Client:
    tenant_id = None if tenant is None else stack.tenants[tenant]
    key = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name=role, kind="admin", role=role))
    return httpx.Client(base_url=f"{stack.url}/v1/admin", headers={"Authorization": f"Bearer {key.secret}"}, timeout=30)


def told_in_vain(connection: sa.Connection, tenant_id: str) -> dict[str | None, str]:
    """An alert of the tenant that neither its own webhook nor the operator's could be told of; their ids by whose."""
    budget = budgets.create_budget(
        connection,
        tenant_id=tenant_id,
        scope="tenant",
        scope_id=tenant_id,
        unit="tokens",
        period="month",
        limit_amount=10,
        kind="soft",
    )
    now = database_now(connection)
    alert: dict[str, Any] = {"id": "alr_1", "tenant_id": tenant_id, "budget_id": budget.id, "window_start": 0}
    alert |= {"threshold": 80, "limit_amount": 10, "used": 8, "crossed_at": now}
    connection.execute(sa.insert(tables.alerts).values(alert))
    found = {}
    for owner in (tenant_id, None):
        made = webhooks.create_webhook(connection, url="https://hooks.inner/x", tenant_id=owner)
        found[owner] = made.webhook.id
        delivery = {"alert_id": "alr_1", "webhook_id": made.webhook.id, "state": "failed", "attempts": 9}
        delivery["last_error"] = INNER if owner is None else "the server answered 500"
        connection.execute(sa.insert(tables.alert_deliveries).values(delivery))
    return found


def test_the_operators_webhooks_are_not_a_tenants_to_see(own_stack: Stack) -> None:
    tenant_id = own_stack.tenants["acme"]
    made = own_stack.write(lambda c: told_in_vain(c, tenant_id))
    with client_of(own_stack, "read_only") as operator, client_of(own_stack, "tenant_admin", "acme") as admin:
        (all_of_it,) = operator.get("/alerts").json()["data"]
        assert {one["webhook_id"] for one in all_of_it["deliveries"]} == set(made.values())
        answer = admin.get("/alerts")
        (theirs,) = answer.json()["data"]
        assert [one["webhook_id"] for one in theirs["deliveries"]] == [made[tenant_id]]
        assert "10.0.0.5" not in answer.text
        for client, count in ((operator, 2), (admin, 1)):
            (told,) = [one for one in client.get("/overview").json()["attention"] if one["kind"] == "webhooks"]
            assert re.match(rf"{count} webhook deliver(y|ies) failed", told["message"])


def test_a_tenant_uses_up_no_others_webhooks(own_stack: Stack) -> None:
    acme = own_stack.tenants["acme"]
    for n in range(webhooks.TENANT_WEBHOOKS_MAX - 1):
        own_stack.write(lambda c, n=n: webhooks.create_webhook(c, url=f"https://a.example/{n}", tenant_id=acme))
    url = {"url": "https://b.example/"}
    with client_of(own_stack, "tenant_admin", "acme") as admin:
        assert admin.post("/webhooks", json=url).status_code == 201
        refused = admin.post("/webhooks", json=url)
        assert (refused.status_code, str(webhooks.TENANT_WEBHOOKS_MAX) in refused.text) == (400, True)
    with client_of(own_stack, "tenant_admin", "globex") as other, client_of(own_stack, "operator") as operator:
        assert other.post("/webhooks", json=url).status_code == operator.post("/webhooks", json=url).status_code == 201
