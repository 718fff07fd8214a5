"""Limits of a tenant's administrative writes and keys, so that its writes do not slow other tenants."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.access import keys
from gateway.access.write_limits import TENANT_WRITES_BURST_S, TENANT_WRITES_PER_S
from gateway.config.file import ConfigError, parse_gateway_config
from support.gateway.session_client import SESSION, sign_in
from support.stack import Stack

LIMITS = "[administration]\ntenant_writes_per_minute = 12\noperator_writes_per_minute = 30\ntenant_keys_max = 8\n"


def admin_key(stack: Stack, tenant: str | None) -> keys.MadeKey:
    tenant_id = None if tenant is None else stack.tenants[tenant]
    role: Any = "owner" if tenant is None else "tenant_admin"
    return stack.write(lambda c: keys.create_key(c, tenant_id=tenant_id, name="admin", kind="admin", role=role))


def write(stack: Stack, made: keys.MadeKey, name: str, url: str = "", tenant: str = "acme") -> httpx.Response:
    """Create a project of the tenant."""
    headers = {"Authorization": f"Bearer {made.secret}"}
    return httpx.post(f"{url or stack.url}/v1/admin/projects", json={"name": name, "tenant": tenant}, headers=headers)


def until_refused(ask: Callable[[int], httpx.Response], most: int = 60) -> tuple[int, httpx.Response]:
    """The number of answers before the first 429, and the 429."""
    for number in range(most):
        answer = ask(number)
        if answer.status_code == 429:
            return number, answer
        assert answer.status_code == 201, answer.text
    raise AssertionError(f"{most} writes in a row, and none was refused")


def test_a_key_its_tenant_and_the_operator_have_limits_of_their_own(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml=LIMITS)
    first, second, third = (admin_key(stack, "acme") for _ in range(3))
    ours, other = admin_key(stack, None), admin_key(stack, "globex")
    stack.known()
    count, refused = until_refused(lambda n: write(stack, first, f"a{n}"))
    assert 6 <= count <= 10, "half of the tenant's, and what flowed in meanwhile"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "the key's administrative writes per minute: limit 6" in refused.json()["error"]["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 10 + 3, "spread over a quarter of the wait"
    assert refused.headers["x-should-retry"] == "true"
    headers = {"Authorization": f"Bearer {first.secret}"}
    assert httpx.get(f"{stack.url}/v1/admin/projects", headers=headers).status_code == 200, "a read is no write"

    until_refused(lambda n: write(stack, second, f"b{n}"))
    count, refused = until_refused(lambda n: write(stack, third, f"c{n}"))
    assert count <= 3
    assert "the tenant's administrative writes per minute: limit 12" in refused.json()["error"]["message"]

    assert write(stack, other, "x", tenant="globex").status_code == 201, "another tenant's"
    count, _ = until_refused(lambda n: write(stack, ours, f"d{n}"))
    assert count >= 30


def test_a_tenants_writes_at_once_go_on_one_after_another(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    made = admin_key(stack, "acme")
    stack.known()
    began = time.monotonic()
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda n: write(stack, made, f"p{n}"), range(12)))
    assert [answer.status_code for answer in answers] == [201] * 12
    assert time.monotonic() - began >= 12 / TENANT_WRITES_PER_S - TENANT_WRITES_BURST_S


def test_a_session_takes_of_its_keys_limit(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(toml=LIMITS)
    made = admin_key(stack, "acme")
    stack.known()
    browser = sign_in(stack, made)
    until_refused(lambda n: write(stack, made, f"a{n}"))
    answer = browser.post("/v1/admin/projects", json={"name": "b"})
    assert answer.status_code == 429, answer.text
    for _ in range(12):  # more than the limit of wrong keys from one address
        assert browser.post(SESSION, json={"key": made.secret}).status_code == 429, "to sign in is a write too"
    sign_in(stack, admin_key(stack, "globex"))


def test_gateways_share_the_limit_through_redis(
    make_stack: Callable[..., Stack], postgres_url: str, redis_url: str
) -> None:
    toml = f'{LIMITS}[redis]\nurl = "{redis_url}"\nanswer_ms = 5000\n'
    stack = make_stack(database_url=postgres_url, toml=toml)
    stack.start_more_gateways(1)
    made = admin_key(stack, "acme")
    stack.known()
    count, _ = until_refused(lambda n: write(stack, made, f"a{n}", stack.urls[n % 2]))
    assert count <= 8


def test_a_tenant_has_so_many_keys(make_stack: Callable[..., Stack]) -> None:
    """Admin and inference keys count together. A revocation frees a place, a rotation with an overlap takes one."""
    stack = make_stack(toml=LIMITS.replace("= 12", "= 1200"))
    made = admin_key(stack, "acme")
    headers = {"Authorization": f"Bearer {made.secret}"}

    def ask(path: str, **sent: Any) -> httpx.Response:
        return httpx.post(f"{stack.url}/v1/admin/keys{path}", json=sent, headers=headers)

    stack.known()
    there = 2  # the stack's own, and the admin's
    made_ids = [ask("", name=f"k{n}").json()["id"] for n in range(8 - there)]
    refused = ask("", name="one more")
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "tenant"
    assert "8 keys" in error["message"]
    assert "tenant_keys_max" in error["message"]
    assert ask(f"/{made_ids[0]}/rotate", overlap_s=60).status_code == 400
    assert ask(f"/{made_ids[0]}/rotate", overlap_s=0).status_code == 201
    assert ask(f"/{made_ids[1]}/revoke").status_code == 200
    assert ask("", name="room again").status_code == 201


@pytest.mark.parametrize(
    "settings", ["tenant_writes_per_minute = 0", "tenant_keys_max = 0", "operator_writes_per_minute = -1"]
)
def test_bounds_of_the_settings(settings: str) -> None:
    with pytest.raises(ConfigError, match=settings.split(" ")[0]):
        parse_gateway_config(f"[administration]\n{settings}\n".encode(), Path("/"), "test", {})
