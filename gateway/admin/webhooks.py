"""Making, changing and removing webhooks, to which alerts and problems are delivered."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sqlalchemy as sa

from billing.accounts import webhooks
from billing.accounts.outbox import Receiver
from billing.accounts.webhooks import MadeWebhook, Webhook
from billing.errors import InvalidValue, RowNotFound
from gateway.access.deployment_secret import check_secrets
from gateway.access.routing_keys import seal_routing_key
from gateway.admin.writes import Actor, Writes
from gateway.config.server_secrets import read_server_secrets

ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}")


class WebhookWrites:
    """Audit lines have a webhook's URL without its path and query, which may hold a secret."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(
        self,
        connection: sa.Connection,
        *,
        url: str,
        tenant_id: str | None = None,
        format: str = webhooks.FORMATS[0],
        events: Sequence[str] = (webhooks.BUDGETS,),
        routing_key: str | None = None,
    ) -> MadeWebhook:
        """Create a webhook for the alerts of one tenant; without `tenant_id`, for all alerts that the actor sees.
        `routing_key`: of the format `pagerduty`; it is stored encrypted. Raises WrongSecret if this host has another
        server secret."""
        check_routing_key(format, routing_key)
        self._writes.lock(connection)
        whose = self._writes.visible_tenant(connection, tenant_id)
        made = webhooks.create_webhook(connection, url=url, tenant_id=whose, format=format, events=events)
        if routing_key is not None:
            secrets = read_server_secrets(self._writes.config)
            check_secrets(connection, secrets)
            webhooks.set_routing_key(
                connection, made.webhook.id, seal_routing_key(secrets, made.webhook.id, routing_key)
            )
        self._writes.record(connection, "webhook.create", None, made.webhook.redacted())
        return made

    def change_webhook(
        self,
        connection: sa.Connection,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        active: bool | None = None,
    ) -> Webhook:
        """Change the given fields. `active` false: it gets no new events; pending deliveries are still sent."""
        self._writes.lock(connection)
        before = seen_webhook(connection, webhook_id, self._writes.actor)
        if url is not None and url != before.url and before.format == "pagerduty":
            raise InvalidValue(
                "a webhook with a routing key keeps its URL, which receives the key: make a new one", "url"
            )
        paused = None if active is None else not active
        after = webhooks.change_webhook(connection, before, url=url, events=events, paused=paused)
        self._writes.record(connection, "webhook.update", before.redacted(), after.redacted())
        return after

    def rotate_secret(self, connection: sa.Connection, webhook_id: str) -> MadeWebhook:
        """Sign with a new secret from now on: a receiver that has only the old secret refuses deliveries."""
        self._writes.lock(connection)
        before = seen_webhook(connection, webhook_id, self._writes.actor)
        made = webhooks.rotate_secret(connection, before)
        self._writes.record_line(connection, "webhook.rotate_secret", before.id, before.tenant_id)
        return made

    def note_test(self, connection: sa.Connection, webhook_id: str) -> Receiver:
        """Write the audit line of a test event, before it is sent, and return its receiver."""
        self._writes.lock(connection)
        before = seen_webhook(connection, webhook_id, self._writes.actor)
        self._writes.record_line(connection, "webhook.test", before.id, before.tenant_id)
        return webhooks.receiver_of(connection, before.id)

    def remove(self, connection: sa.Connection, webhook_id: str) -> Webhook:
        self._writes.lock(connection)
        before = seen_webhook(connection, webhook_id, self._writes.actor)
        after = webhooks.deactivate_webhook(connection, webhook_id)
        self._writes.record(connection, "webhook.remove", before.redacted(), after.redacted())
        return after


def seen_webhook(connection: sa.Connection, webhook_id: str, actor: Actor) -> Webhook:
    """A webhook that was not removed. Raises RowNotFound, also for a webhook that `actor` does not see."""
    found = webhooks.get_webhook(connection, webhook_id)
    if found is None or not found.active or not actor.sees(found.tenant_id):
        raise RowNotFound(f"there is no webhook {webhook_id!r}", "webhook_id")
    return found


def check_routing_key(format_: str, routing_key: str | None) -> None:
    """Raises InvalidValue if PagerDuty's format has no valid routing key, or another format has one."""
    if routing_key is None and format_ == webhooks.PAGERDUTY:
        raise InvalidValue(f"the format {webhooks.PAGERDUTY} needs a routing key", "routing_key")
    if routing_key is not None and format_ != webhooks.PAGERDUTY:
        raise InvalidValue(f"only the format {webhooks.PAGERDUTY} has a routing key", "routing_key")
    if routing_key is not None and not ROUTING_KEY.fullmatch(routing_key):
        raise InvalidValue("a routing key is PagerDuty's integration key: 32 letters and digits", "routing_key")
