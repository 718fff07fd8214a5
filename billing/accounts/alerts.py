"""Alerts of budgets and their outbox. They are written with the counters that reached a threshold; a gateway delivers
them later. This module must never know how a delivery is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.budget_windows import Crossing, Kind, Scope, Unit
from billing.accounts.outbox import State, WebhookOutbox
from billing.accounts.webhooks import BUDGETS
from billing.clock import Period
from billing.ids import new_id

LIST_MAX = 1000

_alerts = tables.alerts
_budgets = tables.budgets
_deliveries = tables.alert_deliveries
_webhooks = tables.webhooks


class Alert(msgspec.Struct, frozen=True):
    """A budget window reached `threshold` percent of its limit. Amounts in tokens or picos, by `unit`."""

    sequence: int
    id: str
    tenant_id: str
    budget_id: str
    window_start: int
    threshold: int
    limit_amount: int
    used: int
    crossed_at: int
    scope: Scope
    scope_id: str
    unit: Unit
    period: Period
    kind: Kind


class Delivery(msgspec.Struct, frozen=True):
    """The delivery of an alert to one webhook. `next_attempt_at`: while pending; moments in microseconds UTC."""

    alert_id: str
    webhook_id: str
    state: State
    attempts: int
    next_attempt_at: int | None
    delivered_at: int | None
    last_error: str | None


_ALERT = sa.select(
    _alerts, _budgets.c.scope, _budgets.c.scope_id, _budgets.c.unit, _budgets.c.period, _budgets.c.kind
).join(_budgets, _budgets.c.id == _alerts.c.budget_id)

OUTBOX = WebhookOutbox(
    _deliveries,
    "alert_id",
    _ALERT.join(_deliveries, _deliveries.c.alert_id == _alerts.c.id).join(
        _webhooks, _webhooks.c.id == _deliveries.c.webhook_id
    ),
    Alert,
)


def record_alerts(connection: sa.Connection, crossings: Iterable[Crossing], now: int) -> None:
    """Write an alert for each crossing, and its delivery to each active webhook for budgets. The budgets' rows must be
    locked."""
    made: list[dict[str, object]] = [
        {
            "id": new_id("alr"),
            "tenant_id": crossing.budget.tenant_id,
            "budget_id": crossing.budget.id,
            "window_start": crossing.window_start,
            "threshold": crossing.threshold,
            "limit_amount": crossing.budget.limit_amount,
            "used": crossing.used,
            "crossed_at": now,
        }
        for crossing in crossings
    ]
    connection.execute(sa.insert(_alerts), made)
    whose = sa.or_(_webhooks.c.tenant_id.is_(None), _webhooks.c.tenant_id.in_({alert["tenant_id"] for alert in made}))
    query = sa.select(_webhooks.c.id, _webhooks.c.tenant_id, _webhooks.c.events).where(
        _webhooks.c.active, ~_webhooks.c.paused, whose
    )
    new_deliveries = [
        {"alert_id": alert["id"], "webhook_id": webhook.id, "state": "pending", "attempts": 0, "next_attempt_at": now}
        for webhook in connection.execute(query)
        for alert in made
        if webhook.tenant_id in (None, alert["tenant_id"]) and BUDGETS in webhook.events
    ]
    if new_deliveries:
        connection.execute(sa.insert(_deliveries), new_deliveries)


def list_alerts(
    connection: sa.Connection, *, tenant_id: str | None = None, before: int | None = None, limit: int = 100
) -> list[Alert]:
    """Alerts, newest first; a page begins below sequence `before`."""
    query = _ALERT.order_by(_alerts.c.sequence.desc()).limit(min(limit, LIST_MAX))
    if tenant_id is not None:
        query = query.where(_alerts.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(_alerts.c.sequence < before)
    return [Alert(*row) for row in connection.execute(query)]


def get_alert(connection: sa.Connection, alert_id: str) -> Alert | None:
    row = connection.execute(_ALERT.where(_alerts.c.id == alert_id)).one_or_none()
    return None if row is None else Alert(*row)


def deliveries(
    connection: sa.Connection, alert_ids: Sequence[str], *, seen_by: str | None = None
) -> dict[str, list[Delivery]]:
    """Deliveries of each alert. The tenant `seen_by` sees deliveries to its own webhooks, never to the operator's."""
    found: dict[str, list[Delivery]] = {alert_id: [] for alert_id in alert_ids}
    query = sa.select(_deliveries).where(_deliveries.c.alert_id.in_(alert_ids))
    if seen_by is not None:
        own = sa.select(_webhooks.c.id).where(_webhooks.c.tenant_id == seen_by)
        query = query.where(_deliveries.c.webhook_id.in_(own))
    for row in connection.execute(query.order_by(_deliveries.c.webhook_id)):
        found[row.alert_id].append(Delivery(*row))
    return found
