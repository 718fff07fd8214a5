"""The ends of batches in webhooks and metrics: each end once, signed, to whom it concerns, and without a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.accounts import webhooks
from billing.errors import InvalidValue
from gateway.batch_tables import batch_deliveries, batches
from gateway.batches.events import BatchEvent
from gateway.upkeep.batch_gauges import read_gauges
from gateway.upkeep.webhook_bodies import body_of
from gateway.upkeep.webhook_deliveries import signature
from support.gateway.batch_client import BatchClient, chat_lines, set_deadline
from support.gateway.webhook_endpoint import Endpoint
from support.stack import MODEL, Stack
from support.waiting import eventually

TOML = "[webhooks]\npoll_s = 0.2\nprivate_addresses = true\n"
EVENT = BatchEvent("batch_1", "ten_1", "/v1/completions", "expired", 5, 3, 2, "file-a", None, 10**6, 3 * 10**6)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


@pytest.fixture
def hooked(stack: Stack, endpoint: Endpoint) -> Iterator[tuple[Stack, Endpoint, webhooks.MadeWebhook]]:
    made = stack.write(
        lambda c: webhooks.create_webhook(c, url=endpoint.url, tenant_id=stack.tenants["acme"], events=["batches"])
    )
    yield stack, endpoint, made
    stack.write(lambda c: webhooks.deactivate_webhook(c, made.webhook.id))


def deliveries(stack: Stack) -> dict[str, list[str]]:
    query = sa.select(batch_deliveries.c.batch_id, batch_deliveries.c.webhook_id)
    found: dict[str, list[str]] = {}
    for batch_id, webhook_id in stack.read(lambda c: c.execute(query).all()):
        found.setdefault(batch_id, []).append(webhook_id)
    return found


def test_each_end_has_one_delivery_to_the_tenants_webhooks(
    hooked: tuple[Stack, Endpoint, webhooks.MadeWebhook],
) -> None:
    stack, _, made = hooked
    operators = stack.write(lambda c: webhooks.create_webhook(c, url="https://example.org/all", events=["batches"]))
    others = stack.write(
        lambda c: webhooks.create_webhook(
            c, url="https://example.org/other", tenant_id=stack.tenants["globex"], events=["batches"]
        )
    )
    with BatchClient(stack, stack.keys["acme"]) as client:
        completed = client.finish(client.create(chat_lines(2)))["id"]
        failed = client.finish(client.create(b"{}"))["id"]
        late = client.create(chat_lines(300, max_tokens=64))
        set_deadline(stack, late, 0.0)
        assert client.finish(late)["status"] == "expired"
        cancelled = client.create(chat_lines(300, max_tokens=64))
        client.cancel(cancelled)
        assert client.finish(cancelled)["status"] == "cancelled"
    found = deliveries(stack)
    wanted = sorted([made.webhook.id, operators.webhook.id])
    for batch_id in (completed, failed, late, cancelled):
        assert sorted(found[batch_id]) == wanted
    assert others.webhook.id not in {one for ids in found.values() for one in ids}
    for one in (operators, others):
        stack.write(lambda c, one=one: webhooks.deactivate_webhook(c, one.webhook.id))


def test_a_delivery_is_signed_and_has_the_counts(tmp_path: Path, model_dir: Path, endpoint: Endpoint) -> None:
    directory = tmp_path / "stack"
    directory.mkdir()
    stack = Stack(directory, f"sqlite:///{directory}/laneway.db", model_dir, toml=TOML)
    try:
        stack.start()
        made = stack.write(
            lambda c: webhooks.create_webhook(c, url=endpoint.url, tenant_id=stack.tenants["acme"], events=["batches"])
        )
        with BatchClient(stack, stack.keys["acme"]) as client:
            lines = chat_lines(3)
            lines[0]["body"]["nonsense"] = 1
            batch = client.finish(client.create(lines))
        eventually(lambda: len(endpoint.got) == 1)
        headers, body = endpoint.got[0]
        event = json.loads(body)
        assert (event["id"], event["type"]) == (batch["id"], "batch.completed")
        data = event["data"]
        assert (data["lines"], data["succeeded"], data["failed"]) == (3, 2, 1)
        assert data["output_file_id"] == batch["output_file_id"]
        assert headers["x-laneway-signature"] == signature(made.secret, int(headers["x-laneway-timestamp"]), body)
        text = stack.metrics()
        assert 'laneway_batch_lines_ended_total{outcome="succeeded"' in text
        ended = [line for line in text.splitlines() if line.startswith("laneway_batch_lines_ended_total")]
        assert sum(float(line.split()[-1]) for line in ended) == 3
    finally:
        stack.stop()


def test_the_bodies_of_other_formats() -> None:
    slack = json.loads(body_of(EVENT, "slack", None))
    assert slack["text"].startswith("Laneway: a batch is expired: The batch batch_1 of ten_1 has ended: of 5 lines")
    laneway = json.loads(body_of(EVENT, "laneway", None))
    assert (laneway["type"], laneway["created_at"], laneway["data"]["created_at"]) == ("batch.expired", 3, 1)
    with pytest.raises(InvalidValue, match="receives no batches"):
        webhooks.check_kinds("pagerduty", ["batches"], None)
    webhooks.check_kinds("laneway", ["budgets", "batches"], "ten_1")


def test_gauges_count_unended_batches(stack: Stack) -> None:
    before = stack.read(read_gauges)
    with BatchClient(stack, stack.keys["acme"]) as client:
        batch_id = client.create(chat_lines(2000, max_tokens=64, model=MODEL))
        client.until(batch_id, completed=10)
        long_ago = sa.update(batches).where(batches.c.id == batch_id)
        stack.write(lambda c: c.execute(long_ago.values(created_at=batches.c.created_at - 7200 * 10**6)))
        found = stack.read(read_gauges)
        assert found["in_progress"] == before.get("in_progress", 0) + 1
        assert found["lines"] > before["lines"]
        assert found["age_s"] >= 7200
        assert found["stalled_s"] < 60
        client.cancel(batch_id)
        client.finish(batch_id)
    assert stack.read(read_gauges).get("in_progress", 0) == before.get("in_progress", 0)
