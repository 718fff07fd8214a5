"""An outbox: the table of one kind of event and its deliveries to webhooks. Gateways claim deliveries that are due, and
record their attempts.

A gateway claims a delivery for a limited time, so that another attempt follows if the gateway dies. This module knows
webhooks and times, and must never know how a delivery is sent or what its event is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Literal, Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.clock import SECOND, database_now

ATTEMPTS_MAX = 12
RETRY_S_MAX = 3600.0
CLAIM_MAX = 32
ERROR_CHARS_MAX = 200

State = Literal["pending", "delivered", "failed"]
Values = dict[str, object]

_webhooks = tables.webhooks


class Event(Protocol):
    """One event for a webhook. A receiver recognises a repeated delivery by `id`."""

    @property
    def id(self) -> str: ...


E = TypeVar("E", bound=Event)


class Receiver(msgspec.Struct, frozen=True):
    """A webhook as a delivery needs it. `routing_key`: encrypted, of the format `pagerduty` alone."""

    id: str
    url: str
    secret: str
    format: str
    routing_key: bytes | None


RECEIVER = (_webhooks.c.id, _webhooks.c.url, _webhooks.c.secret, _webhooks.c.format, _webhooks.c.routing_key)


class ClaimedDelivery(msgspec.Struct, Generic[E], frozen=True):
    """A delivery to attempt now. `attempt` counts the attempts from 1."""

    event: E
    receiver: Receiver
    attempt: int


class WebhookOutbox(Generic[E]):
    """The deliveries in the table `deliveries`, whose column `key` names the event."""

    def __init__(
        self, deliveries: sa.Table, key: str, events: sa.Select[tuple[object, ...]], read: Callable[..., E]
    ) -> None:
        """`events`: selects events joined with their deliveries and with `webhooks`; `read` makes an event of the
        selected columns."""
        table, self._key, self._read = deliveries, key, read
        self._width = len(events.selected_columns)
        self._due = (
            events.add_columns(*RECEIVER, _webhooks.c.active, table.c.attempts)
            .where(table.c.state == "pending", table.c.next_attempt_at <= sa.bindparam("now"))
            .order_by(table.c.next_attempt_at)
            .with_for_update(skip_locked=True, of=table)
        )
        self._any_due = sa.select(table.c.webhook_id).where(
            table.c.state == "pending", table.c.next_attempt_at <= sa.bindparam("now")
        )
        self._set = sa.update(table).where(
            table.c[key] == sa.bindparam("of_event"),
            table.c.webhook_id == sa.bindparam("of_webhook"),
            table.c.state == "pending",
        )

    def any_due(self, connection: sa.Connection) -> bool:
        """Whether `claim` may find a delivery; a reading connection is enough."""
        return connection.execute(self._any_due.limit(1), {"now": database_now(connection)}).first() is not None

    def claim(self, connection: sa.Connection, *, retry_s: float, limit: int = CLAIM_MAX) -> list[ClaimedDelivery[E]]:
        """Claim due deliveries, the longest overdue first, and count an attempt of each. Unless
        `record_attempts` records their success, they are due again after `retry_s`, doubled with each attempt up to
        RETRY_S_MAX. After ATTEMPTS_MAX attempts a delivery has failed."""
        now = database_now(connection)
        rows = connection.execute(self._due.limit(limit), {"now": now}).all()
        claimed: list[ClaimedDelivery[E]] = []
        over: list[Values] = []
        for row in rows:
            event, (*receiver, active, attempts) = self._read(*row[: self._width]), row[self._width :]
            delivery = ClaimedDelivery(event, Receiver(*receiver), attempts + 1)
            if active and attempts < ATTEMPTS_MAX:
                claimed.append(delivery)
            else:
                reason = "its last attempt was not reported" if active else "the webhook was removed"
                over.append(_of(delivery, state="failed", next_attempt_at=None, last_error=reason))
        attempted = [
            _of(one, attempts=one.attempt, next_attempt_at=now + round(wait_s(one.attempt, retry_s) * SECOND))
            for one in claimed
        ]
        self._change(connection, attempted)
        self._change(connection, over)
        return claimed

    def record_attempts(
        self, connection: sa.Connection, results: Iterable[tuple[ClaimedDelivery[E], str | None]]
    ) -> None:
        """Record the results of attempts, each with its error; None: delivered. A failed attempt is repeated when
        `claim` set it due; the last attempt ends the delivery as failed."""
        now = database_now(connection)
        done: list[Values] = []
        failed: list[Values] = []
        over: list[Values] = []
        for claimed, error in results:
            if error is None:
                done.append(_of(claimed, state="delivered", delivered_at=now, next_attempt_at=None, last_error=None))
            elif claimed.attempt < ATTEMPTS_MAX:
                failed.append(_of(claimed, last_error=error[:ERROR_CHARS_MAX]))
            else:
                over.append(_of(claimed, state="failed", next_attempt_at=None, last_error=error[:ERROR_CHARS_MAX]))
        for rows in (done, failed, over):
            self._change(connection, rows)

    def _change(self, connection: sa.Connection, rows: list[Values]) -> None:
        """Update pending deliveries; all rows have the same columns. If an attempt whose claim had expired completed a
        delivery, the delivery is no longer pending and does not change."""
        if rows:
            connection.execute(self._set, rows)


def wait_s(attempt: int, retry_s: float) -> float:
    """Seconds from this attempt to the next one."""
    return float(min(retry_s * 2 ** (attempt - 1), RETRY_S_MAX))


def _of(delivery: ClaimedDelivery[E], **values: object) -> Values:
    return {"of_event": delivery.event.id, "of_webhook": delivery.receiver.id, **values}
