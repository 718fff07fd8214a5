"""Refused sign-ins: each has a line of the audit log, within bounds, and none is a use of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import sqlalchemy as sa

from billing.database import Database
from gateway.access import keys
from gateway.access.refused_sign_ins import ACTION, LINES_MAX, NOTED_S, UNKNOWN_ACTOR, RefusedSignIns
from gateway.tables import audit_log
from support.gateway.session_client import SESSION
from support.stack import Stack

WRONG = "This is not a valid admin key"


def lines(read: Callable[[Callable[[sa.Connection], Any]], Any]) -> list[sa.Row[Any]]:
    query = sa.select(audit_log).where(audit_log.c.action == ACTION).order_by(audit_log.c.id)
    return list(read(lambda c: c.execute(query).all()))


def test_a_refused_sign_in_is_in_the_audit_log_and_is_no_use_of_its_key(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    answer = httpx.post(stack.url + SESSION, json={"key": stack.keys["acme"]})  # a key for requests
    assert answer.status_code == 401
    assert answer.json()["error"]["message"].startswith(WRONG)
    [line] = lines(stack.read)
    assert line.object_id == "127.0.0.1"
    assert line.tenant_id == stack.tenants["acme"]
    assert line.request_id == answer.headers["x-request-id"]
    assert line.after == {"reason": "invalid_api_key"}
    httpx.post(stack.url + SESSION, json={"key": keys.make_secret("admin")})
    assert len(lines(stack.read)) == 1, "a second line of this address would come only after a minute"
    stack.stop()  # a gateway writes the last uses of keys before it ends
    used = stack.read(lambda c: c.execute(sa.select(sa.func.max(keys.keys.c.last_used_at))).scalar_one())
    assert used is None


async def test_lines_are_bounded_by_address_and_by_process(database: Database) -> None:
    now = [0.0]
    refused = RefusedSignIns(lambda: now[0])

    async def note(address: str) -> None:
        await refused.note(database, address, "invalid_api_key", "req_1")

    for number in range(3 * LINES_MAX):
        await note(f"192.0.2.{number}")
        await note("192.0.2.0")
    assert [line.object_id for line in lines(database.read_sync)] == [f"192.0.2.{n}" for n in range(LINES_MAX)]
    assert {line.actor for line in lines(database.read_sync)} == {UNKNOWN_ACTOR}
    now[0] = NOTED_S
    await note("192.0.2.0")
    assert len(lines(database.read_sync)) == LINES_MAX + 1
