"""Alerts of budgets and their outbox. They are written with the counters that reached a threshold; a gateway delivers
them later.

A gateway claims a delivery for a limited time, so that another attempt follows if the gateway dies. This module knows
webhooks and times, and must never know how a delivery is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.budget_windows import Crossing, Kind, Scope, Unit
from billing.clock import SECOND, Period, database_now
from billing.ids import new_id

ATTEMPTS_MAX = 12
RETRY_S_MAX = 3600.0
CLAIM_MAX = 32
ERROR_CHARS_MAX = 200
LIST_MAX = 1000

State = Literal["pending", "delivered", "failed"]
Values = dict[str, object]

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


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A delivery to attempt now. `attempt` counts the attempts from 1."""

    alert: Alert
    webhook_id: str
    url: str
    secret: str
    attempt: int


_ALERT = sa.select(
    _alerts, _budgets.c.scope, _budgets.c.scope_id, _budgets.c.unit, _budgets.c.period, _budgets.c.kind
).join(_budgets, _budgets.c.id == _alerts.c.budget_id)


_DUE = (
    sa.select(
        *_ALERT.selected_columns,
        *(_webhooks.c.id, _webhooks.c.url, _webhooks.c.secret, _webhooks.c.active, _deliveries.c.attempts),
    )
    .join_from(_deliveries, _webhooks, _webhooks.c.id == _deliveries.c.webhook_id)
    .join(_alerts, _alerts.c.id == _deliveries.c.alert_id)
    .join(_budgets, _budgets.c.id == _alerts.c.budget_id)
    .where(_deliveries.c.state == "pending", _deliveries.c.next_attempt_at <= sa.bindparam("now"))
    .order_by(_deliveries.c.next_attempt_at)
    .with_for_update(skip_locked=True, of=_deliveries)
)
_SET = sa.update(_deliveries).where(
    _deliveries.c.alert_id == sa.bindparam("of_alert"),
    _deliveries.c.webhook_id == sa.bindparam("of_webhook"),
    _deliveries.c.state == "pending",
)


def record(connection: sa.Connection, crossings: Iterable[Crossing], now: int) -> None:
    """Write an alert for each crossing, and its delivery to each active webhook. The budgets' rows must be locked."""
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
    query = sa.select(_webhooks.c.id, _webhooks.c.tenant_id).where(_webhooks.c.active, whose)
    new_deliveries = [
        {"alert_id": alert["id"], "webhook_id": webhook.id, "state": "pending", "attempts": 0, "next_attempt_at": now}
        for webhook in connection.execute(query)
        for alert in made
        if webhook.tenant_id in (None, alert["tenant_id"])
    ]
    if new_deliveries:
        connection.execute(sa.insert(_deliveries), new_deliveries)


def listing(
    connection: sa.Connection, *, tenant_id: str | None = None, before: int | None = None, limit: int = 100
) -> list[Alert]:
    """Alerts, newest first; a page begins below sequence `before`."""
    query = _ALERT.order_by(_alerts.c.sequence.desc()).limit(min(limit, LIST_MAX))
    if tenant_id is not None:
        query = query.where(_alerts.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(_alerts.c.sequence < before)
    return [Alert(*row) for row in connection.execute(query)]


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


def any_due(connection: sa.Connection) -> bool:
    """Whether `claim` would find a delivery; a reading connection is enough."""
    now = database_now(connection)
    due = sa.select(_deliveries.c.alert_id).where(
        _deliveries.c.state == "pending", _deliveries.c.next_attempt_at <= now
    )
    return connection.execute(due.limit(1)).first() is not None


def claim(connection: sa.Connection, *, retry_s: float, limit: int = CLAIM_MAX) -> list[ClaimedDelivery]:
    """Claim due deliveries, the longest overdue first, and count an attempt of each. Unless
    `record_attempts` records their success, they are due again after `retry_s`, doubled with each attempt up to
    RETRY_S_MAX. After ATTEMPTS_MAX attempts a delivery has failed."""
    now = database_now(connection)
    rows = connection.execute(_DUE.limit(limit), {"now": now}).all()
    claimed: list[ClaimedDelivery] = []
    over: list[Values] = []
    for row in rows:
        *of_alert, webhook_id, url, secret, active, attempts = row
        alert = Alert(*of_alert)
        if active and attempts < ATTEMPTS_MAX:
            claimed.append(ClaimedDelivery(alert, webhook_id, url, secret, attempts + 1))
        else:
            reason = "its last attempt was not reported" if active else "the webhook was removed"
            over.append(_of(alert.id, webhook_id, state="failed", next_attempt_at=None, last_error=reason))
    waits = [min(retry_s * 2 ** (one.attempt - 1), RETRY_S_MAX) for one in claimed]
    attempted = [
        _of(one.alert.id, one.webhook_id, attempts=one.attempt, next_attempt_at=now + round(wait_s * SECOND))
        for one, wait_s in zip(claimed, waits, strict=True)
    ]
    _change(connection, attempted)
    _change(connection, over)
    return claimed


def record_attempts(connection: sa.Connection, results: Iterable[tuple[ClaimedDelivery, str | None]]) -> None:
    """Record the results of attempts, each with its error; None: delivered. A failed attempt is repeated when `claim`
    set it due; the last attempt ends the delivery as failed."""
    now = database_now(connection)
    done: list[Values] = []
    failed: list[Values] = []
    over: list[Values] = []
    for claimed, error in results:
        key = (claimed.alert.id, claimed.webhook_id)
        if error is None:
            done.append(_of(*key, state="delivered", delivered_at=now, next_attempt_at=None, last_error=None))
        elif claimed.attempt < ATTEMPTS_MAX:
            failed.append(_of(*key, last_error=error[:ERROR_CHARS_MAX]))
        else:
            over.append(_of(*key, state="failed", next_attempt_at=None, last_error=error[:ERROR_CHARS_MAX]))
    for rows in (done, failed, over):
        _change(connection, rows)


def _of(alert_id: str, webhook_id: str, **values: object) -> Values:
    return {"of_alert": alert_id, "of_webhook": webhook_id, **values}


def _change(connection: sa.Connection, rows: list[Values]) -> None:
    """Update pending deliveries; all rows have the same columns. A delivery that an attempt with an expired claim has
    made meanwhile is no longer pending, so it does not change."""
    if rows:
        connection.execute(_SET, rows)
