"""Sessions of the console: what begins one, what ends it, and what a page of another site cannot do with it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from billing.accounts import tenants
from billing.clock import SECOND
from gateway.access import keys
from gateway.access.keys import MadeKey
from gateway.access.roles import Role
from gateway.access.sessions import (
    BEYOND_LIMIT_MAX,
    REFUSED_S,
    SESSION_IDLE_S,
    SESSION_S_MAX,
    SESSIONS_MAX,
    WRONG_SIGN_INS_MAX,
    WRONG_SIGN_INS_S,
    SignIns,
)
from gateway.errors import RateLimited
from gateway.tables import audit_log, sessions
from support.gateway.session_client import SESSION, Browser, cookie_name, sign_in
from support.stack import Stack
from support.waiting import last_sent_before, promptly

ENDED_WITHIN_S = 1.0
HOW = ("unknown", "malformed", "live", "revoked", "expired")  # an attempt to sign in is wrong


def admin_key(stack: Stack, role: Role = "owner", tenant: str | None = None, **fields: Any) -> MadeKey:
    tenant_id = None if tenant is None else stack.tenants[tenant]
    return stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name="me", kind="admin", role=role, **fields))


def code(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]


def session_rows(stack: Stack, key: MadeKey) -> list[sa.Row[Any]]:
    query = sa.select(sessions).where(sessions.c.key_id == key.key.id).order_by(sessions.c.created_at)
    return stack.read(lambda c: list(c.execute(query)))


def change(stack: Stack, key: MadeKey, **values: int) -> None:
    stack.write(lambda c: c.execute(sa.update(sessions).where(sessions.c.key_id == key.key.id).values(values)))


def test_signing_in_and_out(stack: Stack) -> None:
    key = admin_key(stack, "tenant_admin", "acme")
    client = Browser(stack.url)
    assert code(client.get(SESSION)) == (401, "session_expired")
    answer = client.post(SESSION, json={"key": key.secret})
    body = answer.json()
    assert (body["role"], body["tenant"]["slug"]) == ("tenant_admin", "acme")
    assert body["key"] == {"id": key.key.id, "name": "me", "last_four": key.key.last4}
    assert abs(body["expires_at"] - time.time() - SESSION_S_MAX) < 60
    cookie = answer.headers["set-cookie"]
    for word in (f"{cookie_name(stack.url)}=", "HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    assert "Secure" not in cookie
    assert answer.headers["cache-control"] == "no-store"
    assert client.get(SESSION).json() == body
    value = client.cookies[cookie_name(stack.url)]
    (row,) = session_rows(stack, key)
    assert row.hash == hashlib.sha256(value.encode()).hexdigest()
    assert not any(secret in str(row) for secret in (value, body["csrf_token"])), "the database knows neither"
    assert client.get("/v1/admin/keys").status_code == 200
    gone = client.delete(SESSION, headers={"x-csrf-token": body["csrf_token"]})
    assert (gone.status_code, gone.content) == (204, b"")
    assert client.cookies == {}
    assert session_rows(stack, key) == []
    client.cookies[cookie_name(stack.url)] = value
    assert code(client.get(SESSION)) == code(client.get("/v1/admin/keys")) == (401, "session_expired")


def test_what_a_session_writes_is_in_the_audit_log(stack: Stack) -> None:
    key = admin_key(stack)
    client = sign_in(stack, key)
    made = client.post("/v1/admin/keys", json={"tenant": "acme", "name": "by cookie"}).json()
    client.delete(SESSION)
    query = sa.select(audit_log).where(audit_log.c.actor == key.key.id).order_by(audit_log.c.id)
    lines = stack.read(lambda c: list(c.execute(query)))
    assert [line.action for line in lines] == ["session.begin", "key.create", "session.end"]
    assert lines[1].object_id == made["id"]
    assert lines[0].object_id == lines[2].object_id
    assert all(line.request_id.startswith("req_") for line in lines)


def test_https_before_us_makes_the_cookie_secure(stack: Stack) -> None:
    """And bound to this host: no other host of the same domain can set it."""
    browser = Browser(stack.url)
    browser.headers["X-Forwarded-Proto"] = "https"
    answer = browser.post(SESSION, json={"key": admin_key(stack).secret})
    assert "Secure" in answer.headers["set-cookie"]
    [name] = browser.cookies
    assert name == f"__Host-{cookie_name(stack.url)}"
    assert browser.get(SESSION).status_code == 200
    browser.cookies = {cookie_name(stack.url): browser.cookies[name]}
    assert code(browser.get(SESSION)) == (401, "session_expired"), "one that came over http is not taken"


def test_the_cookie_has_the_port_that_the_browser_sees(stack: Stack) -> None:
    """Two Laneways on one host use different cookies; gateways behind one address share one."""
    key = {"key": admin_key(stack).secret}
    for host, name in (
        ("a.example:8443", "laneway_session_8443"),
        ("a.example", "laneway_session"),
        ("[::1]", "laneway_session"),
    ):
        answer = httpx.post(stack.url + SESSION, json=key, headers={"Host": host})
        assert [one.name for one in answer.cookies.jar] == [name], host


def test_signing_in_again_ends_the_session_before(stack: Stack) -> None:
    first, second = admin_key(stack), admin_key(stack, "tenant_admin", "acme")
    client = sign_in(stack, first)
    other = sign_in(stack, first)
    before = dict(client.cookies)
    for key in (first, second):
        old = Browser(stack.url)
        old.cookies = dict(client.cookies)
        assert client.post(SESSION, json={"key": key.secret}).status_code == 200
        assert client.get(SESSION).status_code == 200
        assert code(old.get(SESSION)) == (401, "session_expired")
    assert before != client.cookies
    assert other.get(SESSION).status_code == 200, "another browser's is its own"
    query = sa.select(audit_log.c.action).where(audit_log.c.actor == first.key.id).order_by(audit_log.c.id)
    actions = stack.read(lambda c: list(c.execute(query).scalars()))
    assert actions.count("session.end") == 2


@pytest.mark.parametrize("how", HOW)
def test_a_wrong_key(stack: Stack, how: str) -> None:
    secret = {
        "unknown": lambda: keys.make_secret("admin"),
        "malformed": lambda: "hello",
        "live": lambda: stack.keys["acme"],
        "revoked": lambda: revoked(stack),
        "expired": lambda: admin_key(stack, expires_at=int(time.time()) - 5).secret,
    }[how]()

    def attempt() -> float:
        began = time.monotonic()
        answer = browser.post(SESSION, json={"key": secret})
        took = time.monotonic() - began
        assert code(answer) == (401, "invalid_api_key")
        assert "set-cookie" not in answer.headers
        assert took >= REFUSED_S
        return took

    address = httpx.HTTPTransport(local_address=f"127.3.0.{1 + HOW.index(how)}")  # refused sign-ins count by address
    with httpx.Client(base_url=stack.url, transport=address, timeout=30) as browser:
        promptly(attempt, REFUSED_S + 0.2)  # each takes the same time


def revoked(stack: Stack) -> str:
    key = admin_key(stack)
    stack.write(lambda c: keys.revoke(c, key.key.id))
    return key.secret


def test_what_ends_a_key_ends_its_sessions(make_stack: Callable[..., Stack], postgres_url: str) -> None:
    """On every gateway."""
    stack = make_stack(postgres_url)
    stack.start_more_gateways(1)
    cases: dict[str, tuple[MadeKey, Callable[[MadeKey], Any]]] = {
        "revoked": (admin_key(stack), lambda key: stack.write(lambda c: keys.revoke(c, key.key.id))),
        "expired": (
            admin_key(stack),
            lambda key: stack.write(lambda c: keys.rotate(c, key.key.id, overlap_s=0)),
        ),
        "suspended": (
            admin_key(stack, "tenant_admin", "acme"),
            lambda _: stack.write(lambda c: tenants.suspend(c, stack.tenants["acme"])),
        ),
        "idle": (
            admin_key(stack),
            lambda key: change(stack, key, seen_at=int((time.time() - SESSION_IDLE_S) * SECOND)),
        ),
        "over": (admin_key(stack), lambda key: change(stack, key, expires_at=int(time.time() * SECOND))),
    }
    for name, (key, end) in cases.items():
        here, there = sign_in(stack, key), Browser(stack.urls[1])
        there.take_session(here)
        assert here.get(SESSION).json() == there.get(SESSION).json(), name
        end(key)
        for client in (here, there):
            last = last_sent_before(lambda client=client: client.get("/v1/admin/keys").status_code, 401)
            assert last < ENDED_WITHIN_S, name
            assert code(client.get(SESSION)) == (401, "session_expired"), name
            assert code(client.post("/v1/admin/projects", json={})) == (401, "session_expired"), name

    here = sign_in(stack, admin_key(stack))
    there = Browser(stack.urls[1])
    there.take_session(here)
    there.headers = here.headers
    assert there.delete(SESSION).status_code == 204
    assert code(here.get("/v1/admin/keys")) == (401, "session_expired"), "signed out elsewhere"


def test_its_last_use_is_known(stack: Stack) -> None:
    key = admin_key(stack)
    client = sign_in(stack, key)
    before = int((time.time() - SESSION_IDLE_S / 2) * SECOND)
    change(stack, key, seen_at=before)
    assert client.get(SESSION).status_code == 200
    assert session_rows(stack, key)[0].seen_at > before + SESSION_IDLE_S // 3 * SECOND


def test_a_key_has_a_bounded_number(stack: Stack) -> None:
    key = admin_key(stack)
    first = sign_in(stack, key)
    change(stack, key, created_at=0)
    old = {name: session_rows(stack, key)[0]._mapping[name] for name in sessions.c.keys()}  # noqa: SIM118
    more = [old | {"id": f"ses_{n}", "hash": f"{key.key.id}{n}", "created_at": n + 1} for n in range(SESSIONS_MAX - 1)]
    stack.write(lambda c: c.execute(sa.insert(sessions), more))
    assert first.get(SESSION).status_code == 200
    sign_in(stack, key)
    assert len(session_rows(stack, key)) == SESSIONS_MAX
    assert code(first.get(SESSION)) == (401, "session_expired"), "the oldest"


FOREIGN = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://["},  # no address at all
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_writes_nothing(stack: Stack, headers: dict[str, str]) -> None:
    """Even one that knows the token."""
    key = admin_key(stack)
    client = sign_in(stack, key)
    refused = (403, "csrf_token_invalid")
    assert code(client.post("/v1/admin/projects", json={}, headers=headers)) == refused
    assert code(client.delete(SESSION, headers=headers)) == refused
    assert code(httpx.post(stack.url + SESSION, json={"key": key.secret}, headers=headers)) == refused
    own = {"Origin": stack.url, "Sec-Fetch-Site": "same-origin"}
    assert client.post("/v1/admin/projects", json={}, headers=own).status_code == 400
    # With a bearer nothing is sent by itself, so there is nothing to forge.
    bearer = {"Authorization": f"Bearer {key.secret}", **headers}
    assert httpx.post(f"{stack.url}/v1/admin/projects", json={}, headers=bearer).status_code == 400


def test_one_sessions_token_is_not_anothers(stack: Stack) -> None:
    key = admin_key(stack)
    one, other = sign_in(stack, key), sign_in(stack, key)
    answer = one.post("/v1/admin/projects", json={}, headers={"x-csrf-token": other.headers["x-csrf-token"]})
    assert code(answer) == (403, "csrf_token_invalid")


# ---- wrong sign-ins


def wrong(sign_ins: SignIns, address: str) -> RateLimited | None:
    with sign_ins.attempt(address) as attempt:
        return attempt.refusal


def test_wrong_sign_ins_are_bounded_by_address() -> None:
    now = [0.0]
    sign_ins = SignIns(lambda: now[0])
    assert not any(wrong(sign_ins, "10.0.0.1") for _ in range(WRONG_SIGN_INS_MAX - 1))
    for _ in range(5):  # right ones do not count
        with sign_ins.attempt("10.0.0.1") as attempt:
            attempt.succeeded()
    assert wrong(sign_ins, "10.0.0.1") is None
    now[0] = WRONG_SIGN_INS_S - 10
    refused = wrong(sign_ins, "10.0.0.1")
    assert refused is not None
    assert refused.retry_after_s == pytest.approx(10)
    assert str(WRONG_SIGN_INS_MAX) in refused.message
    assert wrong(sign_ins, "10.0.0.2") is None
    now[0] = WRONG_SIGN_INS_S
    assert wrong(sign_ins, "10.0.0.1") is None


def test_beyond_the_limit_few_are_looked_up_at_once() -> None:
    sign_ins = SignIns(lambda: 0.0)
    for _ in range(WRONG_SIGN_INS_MAX):
        wrong(sign_ins, "10.0.0.1")
    with contextlib.ExitStack() as looked_up:
        for _ in range(BEYOND_LIMIT_MAX):
            looked_up.enter_context(sign_ins.attempt("10.0.0.1"))
        with pytest.raises(RateLimited):
            wrong(sign_ins, "10.0.0.1")
        assert wrong(sign_ins, "10.0.0.2") is None
    assert wrong(sign_ins, "10.0.0.1") is not None


def test_an_address_of_ipv6_is_its_network() -> None:
    sign_ins = SignIns(lambda: 0.0)
    for n in range(WRONG_SIGN_INS_MAX):
        wrong(sign_ins, f"2001:db8::{n + 1:x}")
    assert wrong(sign_ins, "2001:db8::ffff") is not None
    assert wrong(sign_ins, "2001:db8:0:1::1") is None


def test_an_address_of_ipv4_inside_ipv6_is_its_own() -> None:
    """As a socket for both says it: one guesser must not keep all of IPv4 from signing in."""
    sign_ins = SignIns(lambda: 0.0)
    for n in range(WRONG_SIGN_INS_MAX):
        wrong(sign_ins, "::ffff:192.0.2.1" if n % 2 else "192.0.2.1")
    assert wrong(sign_ins, "::ffff:192.0.2.1") is not None
    assert wrong(sign_ins, "::ffff:198.51.100.7") is None


async def test_many_wrong_sign_ins_at_once(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    key = admin_key(stack)
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        tries = [client.post(SESSION, json={"key": keys.make_secret("admin")}) for _ in range(3 * WRONG_SIGN_INS_MAX)]
        statuses = [answer.status_code for answer in await asyncio.gather(*tries)]
        assert statuses.count(401) == WRONG_SIGN_INS_MAX
        assert statuses.count(429) == 2 * WRONG_SIGN_INS_MAX
        refused = await client.post(SESSION, json={"key": keys.make_secret("admin")})
        right = await client.post(SESSION, json={"key": key.secret})
    assert code(refused) == (429, "rate_limit_exceeded")
    assert 0 < int(refused.headers["retry-after"]) <= WRONG_SIGN_INS_S
    assert right.status_code == 200, "behind a proxy the wrong ones are others'"
