"""The end of a batch as an event, with an outbox of its deliveries to webhooks."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing.accounts.outbox import WebhookOutbox
from billing.accounts.webhooks import BATCHES
from billing.tables import webhooks
from gateway.batch_tables import batch_deliveries, batches

_batches, _deliveries = batches.c, batch_deliveries.c


class BatchEvent(msgspec.Struct, frozen=True):
    """A batch has ended. `id`: of the batch, which ends once. Moments are microseconds UTC."""

    id: str
    tenant_id: str
    endpoint: str
    status: str
    lines: int
    succeeded: int
    failed: int
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    ended_at: int


OUTBOX = WebhookOutbox(
    batch_deliveries,
    "batch_id",
    sa.select(*(_batches[name] for name in BatchEvent.__struct_fields__))
    .join(batch_deliveries, _deliveries.batch_id == _batches.id)
    .join(webhooks, webhooks.c.id == _deliveries.webhook_id),
    BatchEvent,
)


def insert_deliveries(connection: sa.Connection, batch_id: str, tenant_id: str, now: int) -> None:
    """In the transaction that ends the batch: a delivery to each webhook for batches, of its tenant and of the
    operator."""
    own = sa.or_(webhooks.c.tenant_id == tenant_id, webhooks.c.tenant_id.is_(None))
    query = sa.select(webhooks.c.id, webhooks.c.events).where(webhooks.c.active, ~webhooks.c.paused, own)
    rows = [
        {"batch_id": batch_id, "webhook_id": row.id, "state": "pending", "attempts": 0, "next_attempt_at": now}
        for row in connection.execute(query.order_by(webhooks.c.id))
        if BATCHES in row.events
    ]
    if rows:
        connection.execute(sa.insert(batch_deliveries), rows)
