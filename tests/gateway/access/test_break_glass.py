"""An admin key for emergencies: each use raises an alert."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access.break_glass import ACTION
from gateway.tables import audit_log
from support.gateway.admin_client import Operator
from support.gateway.session_client import SESSION, Browser
from support.stack import Stack

COUNTER = "laneway_break_glass_uses_total"


@pytest.fixture
def operator(stack: Stack) -> Operator:
    return Operator(stack)


def uses(stack: Stack) -> float:
    found = re.search(rf"^{COUNTER} (\S+)$", stack.metrics(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def audited(stack: Stack, key_id: str) -> list[Any]:
    query = sa.select(audit_log).where(audit_log.c.actor == key_id, audit_log.c.action == ACTION)
    return stack.read(lambda c: list(c.execute(query)))


def test_each_use_of_a_break_glass_key_is_counted_and_audited_once_a_minute(stack: Stack, operator: Operator) -> None:
    made = operator.ok("POST", "keys", {"name": "glass", "kind": "admin", "break_glass": True})
    assert made["break_glass"] is True
    before = uses(stack)
    headers = {"Authorization": f"Bearer {made['secret']}"}
    for _ in range(3):
        assert httpx.get(f"{stack.url}/v1/admin/tenants", headers=headers).status_code == 200
    assert uses(stack) == before + 3
    [line] = audited(stack, made["id"])
    assert line.request_id.startswith("req_")
    [warning] = [line for line in stack.log_lines("keys.break_glass_use") if line["key"] == made["id"]]
    assert warning["level"] == "warning"
    assert made["secret"] not in stack.log_file.read_text()


def test_a_sign_in_with_it_is_a_use(stack: Stack, operator: Operator) -> None:
    made = operator.ok("POST", "keys", {"name": "glass", "kind": "admin", "break_glass": True})
    before = uses(stack)
    browser = Browser(stack.url)
    assert browser.post(SESSION, json={"key": made["secret"]}).status_code == 200
    assert uses(stack) == before + 1
    assert browser.get("/v1/admin/tenants").status_code == 200
    assert uses(stack) == before + 2
    assert len(audited(stack, made["id"])) == 1


def test_an_existing_admin_key_can_be_marked(stack: Stack, operator: Operator) -> None:
    made = operator.ok("POST", "keys", {"name": "was plain", "kind": "admin"})
    assert made["break_glass"] is False
    path = f"keys/{made['id']}"
    assert operator.ok("PATCH", path, {"break_glass": True})["break_glass"] is True
    rotated = operator.ok("POST", f"{path}/rotate", {"overlap_s": 60})
    assert rotated["break_glass"] is True, "the new key is for emergencies too"
    stack.known()
    before = uses(stack)
    operator("GET", "tenants")
    assert uses(stack) == before, "another key's use is none"
    error = operator.refused(400, "PATCH", f"keys/{stack.key_ids['acme']}", {"break_glass": True})
    assert error["message"] == "break_glass is for admin keys: this key is of kind live"
