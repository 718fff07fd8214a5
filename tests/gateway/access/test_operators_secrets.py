"""Roles without write access do not see tokens in webhooks' URLs, or paths of the host."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from billing.accounts import webhooks
from gateway.access import keys
from gateway.access.roles import ROLES, Role
from support.stack import MODEL, Stack


def asked(stack: Stack, role: Role, path: str) -> httpx.Response:
    tenant_id = stack.tenants["acme"] if role == "tenant_admin" else None
    made = stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name=role, kind="admin", role=role))
    headers = {"Authorization": f"Bearer {made.secret}"}
    return httpx.get(f"{stack.url}/v1/admin/{path}", headers=headers, timeout=30)


@pytest.mark.parametrize("role", ROLES)
def test_tokens_in_webhooks_urls(stack: Stack, role: Role) -> None:
    url = "https://chat.example.com/hook/abc?token=very-secret"
    made = stack.write(lambda c: webhooks.create_webhook(c, url=url, tenant_id=stack.tenants["acme"]))
    answer = asked(stack, role, "webhooks?tenant=acme")
    [shown] = [one["url"] for one in answer.json()["data"] if one["id"] == made.webhook.id]
    assert shown == (url if role in ("owner", "operator", "tenant_admin") else "https://chat.example.com/…")
    stack.write(lambda c: webhooks.deactivate_webhook(c, made.webhook.id))


@pytest.mark.parametrize("role", [role for role in ROLES if role != "tenant_admin"])
@pytest.mark.parametrize("path", ["models", f"models/{MODEL}"])
def test_paths_of_the_host(stack: Stack, role: Role, path: str) -> None:
    answer = asked(stack, role, path)
    found: dict[str, Any] = answer.json()
    [model] = [one for one in found.get("data", [found]) if one["name"] == MODEL]
    sees = role in ("owner", "operator")
    assert model["path"] == (str(stack.model_dir) if sees else "")
    assert (str(stack.model_dir.parent) in answer.text) is sees
