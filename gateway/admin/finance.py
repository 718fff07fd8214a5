"""What an operator may do with prices, corrections and periods: each write with its audit line, as `administration` has
them, and the one report that must ask the configuration. It knows no HTTP and no terminal.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from billing import revision
from billing.accounts import prices
from billing.accounts.prices import SubjectKind, UnitPrices
from billing.books import corrections, invoices, margins
from billing.books.corrections import Correction
from billing.books.invoices import Invoice
from billing.books.margins import Margins, Preview
from billing.clock import database_now
from billing.errors import RowNotFound
from gateway.admin.administration import Administration, key_of, project_of, tenant_of
from gateway.catalog import adapters


class Finance(Administration):
    """Beside what Administration writes. A tenant is an id or a slug."""

    def preview_price(
        self,
        connection: sa.Connection,
        *,
        subject: str,
        input: int,
        cached_input: int,
        output: int,
        multipliers: Mapping[str, str],
        subject_kind: SubjectKind = "model",
        currency: str = "USD",
        month: str | None = None,
        tenant: str | None = None,
    ) -> Preview:
        """What `publish_price` with these would have made of a month, without one the last whole month in UTC. Reads
        only."""
        for tier in multipliers:
            self._check_tier(tier, "multipliers")
        self._check_subject(connection, subject_kind, subject)
        tiers = {tier.name: multipliers.get(tier.name, "1") for tier in self._config.tiers}
        return margins.preview(
            connection,
            month=month or margins.month_before(database_now(connection)),
            subject=subject,
            subject_kind=subject_kind,
            currency=currency,
            tiers=prices.by_tier(UnitPrices(input, cached_input, output), tiers),
            tenant_id=None if tenant is None else tenant_of(connection, tenant, self._actor).id,
        )

    def margins(self, connection: sa.Connection, *, month: str | None = None, tenant: str | None = None) -> Margins:
        """By tier, at the configured cost of a device's second. Reads only."""
        return margins.by_tier(
            connection,
            month or margins.month_before(database_now(connection)),
            device_second_picos=self._config.billing.device_second_picos,
            tenant_id=None if tenant is None else tenant_of(connection, tenant, self._actor).id,
        )

    def close_period(self, connection: sa.Connection, *, tenant: str, month: str) -> Invoice:
        revision.lock(connection)
        tenant_id = tenant_of(connection, tenant, self._actor).id
        invoice = invoices.close(connection, tenant_id, month, actor=self._actor.id)
        self._record(connection, "period.close", invoice.period.id, tenant_id, after=invoice)
        return invoice

    def make_request_correction(
        self, connection: sa.Connection, *, request_id: str, meter: str, tokens: int, reason: str
    ) -> Correction:
        revision.lock(connection)
        made = corrections.correct_request(
            connection, request_id, meter=meter, tokens=tokens, reason=reason, actor=self._actor.id
        )
        self._record(connection, "correction.make", made.id, made.tenant_id, after=made)
        return made

    def make_correction(
        self,
        connection: sa.Connection,
        *,
        tenant: str,
        picos: int,
        reason: str,
        project: str | None = None,
        key_id: str | None = None,
        model: str | None = None,
        adapter: str | None = None,
        tier: str | None = None,
        meter: str | None = None,
    ) -> Correction:
        """A free one. `adapter` by its id."""
        revision.lock(connection)
        tenant_id = tenant_of(connection, tenant, self._actor).id
        if tier is not None:
            self._check_tier(tier)
        if model is not None:
            self._check_subject(connection, "model", model, "model")
        if adapter is not None:
            self._check_subject(connection, "adapter", adapter, "adapter")
        if key_id is not None and key_of(connection, key_id).tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        made = corrections.correct_tenant(
            connection,
            tenant_id,
            picos=picos,
            reason=reason,
            actor=self._actor.id,
            project_id=None if project is None else project_of(connection, tenant_id, project).id,
            key_id=key_id,
            model=model,
            adapter=adapter,
            tier=tier,
            meter=meter,
        )
        self._record(connection, "correction.make", made.id, tenant_id, after=made)
        return made


def adapter_names(connection: sa.Connection) -> dict[str, str]:
    """By id, for people who read an invoice."""
    return {row.id: row.name for row in adapters.list_adapters(connection)}
