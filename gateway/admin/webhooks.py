"""Making and removing webhooks, to which alerts are delivered."""

from __future__ import annotations

import sqlalchemy as sa

from billing.accounts import webhooks
from billing.accounts.webhooks import MadeWebhook, Webhook
from billing.errors import RowNotFound
from gateway.admin.writes import Writes


class WebhookWrites:
    """Audit lines have a webhook's URL without its path and query, which may hold a secret."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(self, connection: sa.Connection, *, url: str, tenant_id: str | None = None) -> MadeWebhook:
        """For the alerts of one tenant; without one, for all alerts that the actor sees."""
        self._writes.lock(connection)
        made = webhooks.create(connection, url=url, tenant_id=self._writes.visible_tenant(connection, tenant_id))
        self._writes.record(connection, "webhook.create", None, made.webhook.redacted())
        return made

    def remove(self, connection: sa.Connection, webhook_id: str) -> Webhook:
        self._writes.lock(connection)
        before = webhooks.get(connection, webhook_id)
        if before is None or not before.active or not self._writes.actor.sees(before.tenant_id):
            raise RowNotFound(f"there is no webhook {webhook_id!r}")
        after = webhooks.remove(connection, webhook_id)
        self._writes.record(connection, "webhook.remove", before.redacted(), after.redacted())
        return after
