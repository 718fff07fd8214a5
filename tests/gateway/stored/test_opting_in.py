"""Opting in to stored responses, and out of them, by the command line and the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from gateway.access import keys
from gateway.tables import audit_log, text_keys
from support.gateway.command_line import Laneway
from support.stack import MODEL, Stack

DAY_S = 24 * 3600


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Any) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("opting")
    made = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def operator(stack: Stack) -> Iterator[httpx.Client]:
    secret = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="operator", kind="admin")).secret
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=f"{stack.url}/v1/admin", headers=headers, timeout=30) as client:
        yield client


def ask(stack: Stack) -> Any:
    stack.known()
    body = {"model": MODEL, "input": "Hi", "max_output_tokens": 3}
    return httpx.post(f"{stack.url}/v1/responses", headers=stack.headers("acme"), json=body).json()


def deleted_keys(stack: Stack) -> list[bool]:
    found = stack.read(lambda c: list(c.execute(sa.select(text_keys.c.wrapped)).scalars()))
    return [wrapped is None for wrapped in found]


def test_by_command(stack: Stack) -> None:
    laneway = Laneway(stack.directory, stack.config_file.read_text())
    assert ask(stack)["store"] is False
    assert laneway.json("tenants", "set", "acme", "--store-responses", "30d")["store_responses_s"] == 30 * DAY_S
    assert laneway.json("tenants", "set", "acme", "--name", "A")["store_responses_s"] == 30 * DAY_S
    assert ask(stack)["store"] is True
    assert deleted_keys(stack) == [False]
    assert laneway.json("tenants", "set", "acme", "--store-responses", "12h")["store_responses_s"] == DAY_S // 2
    assert deleted_keys(stack) == [False]
    assert laneway.json("tenants", "set", "acme", "--store-responses", "off")["store_responses_s"] is None
    assert all(deleted_keys(stack))
    assert ask(stack)["store"] is False
    for wrong in ("30", "d", "-1d", "1w", "0h", "99999d", "off "):
        assert "store" in laneway.refusal("tenants", "set", "acme", "--store-responses", wrong)
    actions = stack.read(lambda c: list(c.execute(sa.select(audit_log.c.action)).scalars()))
    assert actions.count("tenant.update") == 4


def test_by_api(stack: Stack, operator: httpx.Client) -> None:
    changed = operator.patch("/tenants/globex", json={"store_responses_s": DAY_S})
    assert changed.json()["store_responses_s"] == DAY_S
    assert operator.get("/tenants/globex").json()["store_responses_s"] == DAY_S
    for wrong in (0, 59, 10**10, "30d"):
        refused = operator.patch("/tenants/globex", json={"store_responses_s": wrong})
        assert refused.status_code == 400
        assert "store_responses_s" in refused.text
    assert operator.patch("/tenants/globex", json={"store_responses_s": None}).json()["store_responses_s"] is None
