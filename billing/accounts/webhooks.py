"""Webhooks: addresses to which events are delivered: alerts of budgets, ends of batches, and operators' problems. Every
write bumps the revision. This module opens no connection."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts.outbox import RECEIVER, Receiver
from billing.clock import database_now
from billing.errors import InvalidValue, RowNotFound
from billing.ids import new_id
from billing.revision import Change

# The most active webhooks of the operator, and of each tenant. Each alert writes a delivery for each webhook.
WEBHOOKS_MAX = 100
TENANT_WEBHOOKS_MAX = 10
URL_CHARS_MAX = 2048
SECRET_PREFIX = "whsec_"
# The kinds of events, and the forms of a body.
BUDGETS, PROBLEMS, BATCHES = "budgets", "problems", "batches"
EVENTS = (BUDGETS, PROBLEMS, BATCHES)
PAGERDUTY = "pagerduty"
FORMATS = ("laneway", "slack", PAGERDUTY)

_webhooks = tables.webhooks


class Webhook(msgspec.Struct, frozen=True):
    """A webhook without its secrets, as it may be shown. `tenant_id` None: the operator's, for alerts of all tenants.
    `format`: one of FORMATS; `events`: some of EVENTS. `active` false: it was removed. A paused webhook gets no new
    events."""

    id: str
    tenant_id: str | None
    url: str
    active: bool
    created_at: int
    format: str
    events: list[str]
    paused: bool = False

    def redacted(self) -> Webhook:
        """The webhook with only the host of its URL: paths and queries of chat services contain their keys."""
        parts = urlsplit(self.url)
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        return msgspec.structs.replace(self, url=origin if self.url in (origin, f"{origin}/") else f"{origin}/…")


class MadeWebhook(msgspec.Struct, frozen=True):
    """A new webhook with the secret that signs its deliveries. The secret is not shown again."""

    webhook: Webhook
    secret: str


_SELECT = sa.select(*(_webhooks.c[name] for name in Webhook.__struct_fields__))


def create_webhook(
    connection: sa.Connection,
    *,
    url: str,
    tenant_id: str | None = None,
    format: str = FORMATS[0],
    events: Sequence[str] = (BUDGETS,),
) -> MadeWebhook:
    """Create a webhook; without `tenant_id`, for alerts of all tenants and for problems. Raises InvalidValue."""
    check_url(url)
    check_kinds(format, events, tenant_id)
    own = sa.select(sa.func.count()).where(_webhooks.c.active, _webhooks.c.tenant_id.is_not_distinct_from(tenant_id))
    limit = WEBHOOKS_MAX if tenant_id is None else TENANT_WEBHOOKS_MAX
    if connection.execute(own).scalar_one() >= limit:
        whose = "for all tenants" if tenant_id is None else "of the tenant"
        raise InvalidValue(f"there are {limit} webhooks {whose} already, the limit")
    chosen = [event for event in EVENTS if event in events]
    webhook = Webhook(new_id("whk"), tenant_id, url, True, database_now(connection), format, chosen)
    secret = _new_secret()
    connection.execute(sa.insert(_webhooks).values(**msgspec.structs.asdict(webhook), secret=secret))
    revision.bump(connection, Change("webhooks", tenant_id))
    return MadeWebhook(webhook, secret)


def set_routing_key(connection: sa.Connection, webhook_id: str, sealed: bytes) -> None:
    """Store the encrypted routing key of a webhook that was made in the same transaction."""
    connection.execute(sa.update(_webhooks).where(_webhooks.c.id == webhook_id).values(routing_key=sealed))


def get_webhook(connection: sa.Connection, webhook_id: str) -> Webhook | None:
    row = connection.execute(_SELECT.where(_webhooks.c.id == webhook_id)).one_or_none()
    return None if row is None else Webhook(*row)


def list_webhooks(connection: sa.Connection, tenant_id: str | None = None) -> list[Webhook]:
    """Active webhooks, oldest first: all, or one tenant's own."""
    query = _SELECT.where(_webhooks.c.active).order_by(_webhooks.c.created_at, _webhooks.c.id)
    if tenant_id is not None:
        query = query.where(_webhooks.c.tenant_id == tenant_id)
    return [Webhook(*row) for row in connection.execute(query)]


def change_webhook(
    connection: sa.Connection,
    webhook: Webhook,
    *,
    url: str | None = None,
    events: Sequence[str] | None = None,
    paused: bool | None = None,
) -> Webhook:
    """Change the given fields. Pending deliveries are sent to the new URL. Raises InvalidValue."""
    after = webhook
    if url is not None:
        check_url(url)
        after = msgspec.structs.replace(after, url=url)
    if events is not None:
        check_kinds(webhook.format, events, webhook.tenant_id)
        after = msgspec.structs.replace(after, events=[event for event in EVENTS if event in events])
    if paused is not None:
        after = msgspec.structs.replace(after, paused=paused)
    values = {"url": after.url, "events": after.events, "paused": after.paused}
    connection.execute(sa.update(_webhooks).where(_webhooks.c.id == webhook.id).values(values))
    revision.bump(connection, Change("webhooks", webhook.tenant_id))
    return after


def rotate_secret(connection: sa.Connection, webhook: Webhook) -> MadeWebhook:
    """Replace the secret. Pending deliveries are signed with the new secret too."""
    secret = _new_secret()
    connection.execute(sa.update(_webhooks).where(_webhooks.c.id == webhook.id).values(secret=secret))
    revision.bump(connection, Change("webhooks", webhook.tenant_id))
    return MadeWebhook(webhook, secret)


def receiver_of(connection: sa.Connection, webhook_id: str) -> Receiver:
    """The receiver of a webhook's deliveries. The webhook must exist."""
    return Receiver(*connection.execute(sa.select(*RECEIVER).where(_webhooks.c.id == webhook_id)).one())


def _new_secret() -> str:
    return SECRET_PREFIX + secrets.token_urlsafe(32)


def deactivate_webhook(connection: sa.Connection, webhook_id: str) -> Webhook:
    """Deactivate the webhook; its pending deliveries fail. Raises RowNotFound."""
    connection.execute(sa.update(_webhooks).where(_webhooks.c.id == webhook_id).values(active=False))
    webhook = get_webhook(connection, webhook_id)
    if webhook is None:
        raise RowNotFound(f"there is no webhook {webhook_id!r}")
    revision.bump(connection, Change("webhooks", webhook.tenant_id))
    return webhook


def check_kinds(format_: str, events: Sequence[str], tenant_id: str | None) -> None:
    """Raises InvalidValue, which names the field and the allowed values."""
    if format_ not in FORMATS:
        raise InvalidValue(f"a webhook's format is one of {', '.join(FORMATS)}, not {format_[:50]!r}", "format")
    unknown = [event for event in events if event not in EVENTS]
    if unknown or not events:
        found = "an empty list" if not events else repr(unknown[0][:50])
        raise InvalidValue(f"a webhook's events are some of {', '.join(EVENTS)}, not {found}", "events")
    if format_ == PAGERDUTY and BATCHES in events:
        raise InvalidValue(f"a webhook of the format {PAGERDUTY} receives no {BATCHES}: they are no incident", "events")
    if tenant_id is not None and PROBLEMS in events:
        raise InvalidValue(
            f"a tenant's webhook receives {BUDGETS} and {BATCHES}: {PROBLEMS} are the operator's", "events"
        )


def check_url(url: str) -> None:
    """Raises InvalidValue unless `url` is an http or https address without credentials, since lists show it."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port out of range
    except ValueError as error:
        raise InvalidValue(f"{error}", "url") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue("a webhook's URL begins with http:// or https:// and names a host", "url")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidValue("a webhook's URL has no user, password or fragment", "url")
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidValue(f"a webhook's URL is at most {URL_CHARS_MAX} printable ASCII characters", "url")
