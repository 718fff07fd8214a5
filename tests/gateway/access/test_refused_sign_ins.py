"""Refused sign-ins: each has a line of the audit log, within bounds, and none is a use of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.access import keys
from gateway.access.callers import Caller
from gateway.access.provider_answers import SignedSignInRefused
from gateway.access.refused_sign_ins import (
    ACTION,
    HOUR_LINES_MAX,
    HOUR_S,
    KEY_HOUR_LINES_MAX,
    LINES_MAX,
    NOTED_S,
    PERSON_ACTION,
    UNKNOWN_ACTOR,
    RefusedSignIns,
)
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
    for _ in range(2):
        httpx.post(stack.url + SESSION, json={"key": keys.make_secret("admin")})
    found = [line.actor for line in lines(stack.read)]
    assert found == [line.actor, UNKNOWN_ACTOR], "one line a minute of an address without a key"
    stack.stop()  # a gateway writes the last uses of keys before it ends
    used = stack.read(lambda c: c.execute(sa.select(sa.func.max(keys.keys.c.last_used_at))).scalar_one())
    assert used is None


async def test_people_have_bounds_of_their_own(database: Database) -> None:
    refused = RefusedSignIns(lambda: 0.0)
    expired = SignedSignInRefused("The ID token has expired (exp).")
    query = sa.select(audit_log).where(audit_log.c.action == PERSON_ACTION).order_by(audit_log.c.id)
    for number in range(2 * LINES_MAX):
        await refused.note_person(database, f"192.0.2.{number}", expired, f"req_{number}", None)
    lines = database.read_sync(lambda c: c.execute(query).all())
    assert len(lines) == LINES_MAX
    assert {line.actor for line in lines} == {UNKNOWN_ACTOR}
    assert lines[0].after == {"reason": "invalid_token", "detail": "The ID token has expired (exp)."}


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


def bearer(key_id: str) -> Caller:
    return Caller(
        key_id=key_id,
        tenant_id=None,
        tenant_slug=None,
        project_id=None,
        first_key_id=key_id,
        tier="standard",
        scopes=frozenset(),
        default_max_tokens=None,
        share_weight=1.0,
        subjects=(),
        expires_at=None,
        age=0,
    )


async def test_a_known_key_always_leaves_a_line(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    refused = RefusedSignIns(lambda: now[0])

    async def note(address: str, key_id: str | None = None) -> None:
        caller = None if key_id is None else bearer(key_id)
        await refused.note(database, address, "totp_invalid", "req_1", caller)

    for number in range(2 * LINES_MAX):
        await note(f"192.0.2.{number}")
    await note("192.0.2.0", "key_owner")
    await note("198.51.100.1", "key_owner")  # the same key within a minute
    await note("192.0.2.0", "key_other")
    actors = [line.actor for line in lines(database.read_sync)]
    assert actors == [UNKNOWN_ACTOR] * LINES_MAX + ["key_owner", "key_other"]
    now[0] = NOTED_S
    await note("192.0.2.99", "key_owner")
    await note("192.0.2.99")
    await note("192.0.2.99")
    suppressed = [record.__dict__["fields"] for record in caplog.records if "suppressed" in record.message]
    assert [one["times"] for one in suppressed] == [1, LINES_MAX + 1]  # one log line a minute


async def test_lines_of_an_hour_are_bounded(database: Database) -> None:
    now = [0.0]
    refused = RefusedSignIns(lambda: now[0])
    minutes = int(HOUR_S / NOTED_S)
    for minute in range(minutes):
        now[0] = minute * NOTED_S
        for number in range(2):
            await refused.note(database, f"192.0.2.{number}", "invalid_api_key", "req_1")
        await refused.note(database, "192.0.2.0", "totp_invalid", "req_1", bearer("key_owner"))
    actors = [line.actor for line in lines(database.read_sync)]
    assert actors.count(UNKNOWN_ACTOR) == HOUR_LINES_MAX < 2 * minutes
    assert actors.count("key_owner") == KEY_HOUR_LINES_MAX
    now[0] = HOUR_S
    await refused.note(database, "192.0.2.7", "invalid_api_key", "req_1")
    assert lines(database.read_sync)[-1].object_id == "192.0.2.7"


def test_an_address_outside_the_keys_networks_leaves_a_line(stack: Stack) -> None:
    key = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="cli:root", kind="admin"))
    changed = sa.update(keys.keys).where(keys.keys.c.id == key.key.id).values(allowed_ips=["203.0.113.0/24"])
    stack.write(lambda c: c.execute(changed))
    answer = httpx.post(stack.url + SESSION, json={"key": key.secret})
    assert answer.status_code == 403
    [line] = [line for line in lines(stack.read) if line.actor == key.key.id]
    assert line.after == {"reason": "ip_not_allowed"}
