"""An admin key cannot make an admin key that outlives it, by creation, rotation or through its session."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from gateway.access import keys
from gateway.access.roles import ROLES, Role
from support.gateway.session_client import sign_in
from support.stack import Stack

HOUR = 3600


def admin_key(stack: Stack, role: Role, expires_at: int | None = None) -> keys.MadeKey:
    tenant_id = stack.tenants["acme"] if role == "tenant_admin" else None
    return stack.write(
        lambda c: keys.create_key(c, tenant_id=tenant_id, name="a", kind="admin", role=role, expires_at=expires_at)
    )


def ask(stack: Stack, by: keys.MadeKey, path: str, **sent: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {by.secret}"}
    return httpx.post(f"{stack.url}/v1/admin/keys{path}", json=sent, headers=headers, timeout=30)


def assert_outlives(answer: httpx.Response, ends: int) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "expires_at"
    assert str(ends) in error["message"]


@pytest.mark.parametrize("role", [role for role in ROLES if role in ("owner", "operator", "tenant_admin")])
def test_a_key_that_ends_makes_none_that_does_not(stack: Stack, role: Role) -> None:
    ends = int(time.time()) + HOUR
    by, other = admin_key(stack, role, ends), admin_key(stack, role)
    for later in (None, ends + 1, ends + 10 * HOUR):
        assert_outlives(ask(stack, by, "", name="b", kind="admin", role=role, expires_at=later), ends)
    assert_outlives(ask(stack, by, "", name="b", kind="admin"), ends)
    made = ask(stack, by, "", name="b", kind="admin", role=role, expires_at=ends)
    assert made.status_code == 201, made.text
    assert_outlives(ask(stack, by, f"/{other.key.id}/rotate", overlap_s=0), ends)
    assert stack.read(lambda c: keys.get_key(c, other.key.id).rotated_to) is None  # type: ignore[union-attr]
    assert ask(stack, by, f"/{made.json()['id']}/rotate", overlap_s=0).status_code == 201
    # Keys for inference are exempt: they have no administrative rights.
    if role != "operator":
        tenant = {} if role == "tenant_admin" else {"tenant": "acme"}
        assert ask(stack, by, "", name="b", kind="live", **tenant).status_code == 201


def test_a_session_is_bound_as_its_key_is(stack: Stack) -> None:
    ends = int(time.time()) + HOUR
    browser = sign_in(stack, admin_key(stack, "owner", ends))
    assert_outlives(browser.post("/v1/admin/keys", json={"name": "b", "kind": "admin"}), ends)
    fields = {"name": "b", "kind": "admin", "expires_at": ends - 1}
    assert browser.post("/v1/admin/keys", json=fields).status_code == 201


def test_the_new_key_of_a_rotation_ends_as_the_old_one(stack: Stack) -> None:
    ends = int(time.time()) + HOUR
    by = admin_key(stack, "owner", ends)
    made = ask(stack, by, f"/{by.key.id}/rotate", overlap_s=60)
    assert made.status_code == 201, made.text
    assert made.json()["expires_at"] == ends


def test_a_key_without_an_end_may_make_any(stack: Stack) -> None:
    by = admin_key(stack, "owner")
    for expires_at in (None, int(time.time()) + HOUR):
        assert ask(stack, by, "", name="b", kind="admin", expires_at=expires_at).status_code == 201
