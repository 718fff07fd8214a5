"""What is seen of batches, on PostgreSQL: message batches, operators' views and cancellation, gauges and deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import pytest
import sqlalchemy as sa

from billing.accounts import webhooks
from gateway.access import keys
from gateway.batch_tables import batch_deliveries
from gateway.upkeep.batch_gauges import read_gauges
from support.gateway.batch_client import BatchClient, chat_lines, usage_of
from support.stack import MODEL, Stack
from support.waiting import eventually


@pytest.fixture
def served(tmp_path: Path, postgres_url: str, model_dir: Path) -> Iterator[Stack]:
    made = Stack(tmp_path, postgres_url, model_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_batch_of_each_api(served: Stack) -> None:
    admin = served.write(lambda c: keys.create_key(c, tenant_id=None, name="batches", kind="admin")).secret
    hook = served.write(
        lambda c: webhooks.create_webhook(c, url="https://example.org/batches", events=["batches"])
    ).webhook
    params = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"Authorization": f"Bearer {admin}"}
    with (
        anthropic.Anthropic(base_url=served.url, api_key=served.keys["acme"], max_retries=0) as sdk,
        BatchClient(served, served.keys["acme"]) as client,
        httpx.Client(base_url=f"{served.url}/v1/admin/", headers=headers, timeout=30) as operator,
    ):
        batches = sdk.messages.batches
        requests = [{"custom_id": f"r-{number}", "params": params} for number in range(5000)]
        made = batches.create(requests=requests)  # type: ignore[arg-type]
        row_id = made.id.replace("msgbatch_", "batch_")
        eventually(lambda: operator.get(f"batches/{row_id}").json()["succeeded"] > 0, 60)
        view = operator.get("batches", params={"status": "in_progress"}).json()["data"][0]
        assert (view["id"], view["lines"], view["dialect"]) == (row_id, 5000, "anthropic")
        assert view["lines_per_s"] > 0
        assert view["expected_end_at"] is not None
        gauges = served.read(read_gauges)
        assert gauges["in_progress"] == 1
        assert 0 < gauges["lines"] < 5000
        assert operator.post(f"batches/{row_id}/cancel").json()["status"] == "cancelling"
        eventually(lambda: batches.retrieve(made.id).processing_status == "ended", 60)
        kinds = [line.result.type for line in batches.results(made.id)]
        assert set(kinds) == {"succeeded", "canceled"}
        counts = batches.retrieve(made.id).request_counts
        assert (counts.succeeded, counts.canceled) == (kinds.count("succeeded"), kinds.count("canceled"))
        assert len([row for row in usage_of(served, row_id) if row.cost_picos]) == counts.succeeded
        lines = chat_lines(3)
        lines[0]["body"]["nonsense"] = 1
        other = client.finish(client.create(lines))
        assert operator.get(f"batches/{other['id']}").json()["errors"] == {"unknown_parameter": 1}
        page = operator.get("batches", params={"limit": 1}).json()
        following = operator.get("batches", params={"limit": 1, "page": page["next_page"]}).json()
        assert [one["data"][0]["id"] for one in (page, following)] == [other["id"], row_id]
        files = operator.get("files", params={"sort": "-bytes"}).json()["data"]
        assert {one["purpose"] for one in files} == {"batch", "batch_output"}
        assert batches.delete(made.id).id == made.id
        assert operator.get(f"batches/{row_id}").json()["deleted"] is True
        assert batches.list().data == []
    query = sa.select(batch_deliveries.c.batch_id).where(batch_deliveries.c.webhook_id == hook.id)
    assert set(served.read(lambda c: c.execute(query).scalars().all())) == {row_id, other["id"]}
