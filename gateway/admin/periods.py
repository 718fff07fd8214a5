"""Closing a tenant's billing months, and what each tier earned in a month."""

from __future__ import annotations

import sqlalchemy as sa

from billing.books import invoices, margins
from billing.books.invoices import Invoice
from billing.books.margins import Margins
from billing.clock import database_now
from gateway.admin.documents import issuer_of
from gateway.admin.writes import Writes


class PeriodWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def close(self, connection: sa.Connection, *, tenant: str, month: str) -> Invoice:
        """Close a tenant's month permanently, and make its invoice."""
        self._writes.lock(connection)
        tenant_id = self._writes.tenant(connection, tenant).id
        issuer = issuer_of(self._writes.config)
        invoice = invoices.close(connection, tenant_id, month, actor=self._writes.actor.id, issuer=issuer)
        self._writes.record_line(connection, "period.close", invoice.period.id, tenant_id, after=invoice)
        return invoice

    def margins(self, connection: sa.Connection, *, month: str | None = None, tenant: str | None = None) -> Margins:
        """Revenue and cost by tier in a month (None: the last whole month in UTC), by the cost of a device second in
        each currency. Reads only."""
        return margins.by_tier(
            connection,
            month or margins.month_before(database_now(connection)),
            device_picos=self._writes.config.billing.device_picos,
            tiers=[tier.name for tier in self._writes.config.tiers],
            tenant_id=None if tenant is None else self._writes.tenant(connection, tenant).id,
        )
