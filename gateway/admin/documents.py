"""Billing profiles, payments of invoices, stuck events of connectors, and the issuer of documents."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing.books import connectors, documents, invoices
from billing.books.documents import BillingProfile, Issuer, Party, Payment, Tax
from billing.errors import InvalidValue, RowNotFound
from gateway.admin.writes import Writes
from gateway.config.file import Config


class ConnectorRelease(msgspec.Struct, frozen=True):
    """The number of events that a connector sends again."""

    name: str
    events: int


class DocumentWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def set_profile(
        self,
        connection: sa.Connection,
        *,
        tenant: str,
        legal_name: str | None = None,
        address: tuple[str, ...] = (),
        tax_id: str | None = None,
        taxes: tuple[Tax, ...] = (),
        payment_days: int | None = None,
        accounts: dict[str, str] | None = None,
    ) -> BillingProfile:
        """Replace a tenant's billing profile. Issued documents do not change. `accounts` may retain an account of a
        connector that is no longer in laneway.toml; a new or changed account of such a connector is refused."""
        writes = self._writes
        writes.lock(connection)
        writes.check_operator("billing profiles")
        tenant_id = writes.tenant(connection, tenant).id
        before = documents.stored_profile(connection, tenant_id)
        retained = set() if before is None else before.accounts.items()
        known = {section.name for section in writes.config.connectors}
        changed = {name for name, _ in (accounts or {}).items() - retained}
        if unknown := sorted(changed - known):
            raise InvalidValue(f"there is no connector {unknown[0]!r} in laneway.toml", "accounts")
        after = documents.set_profile(
            connection,
            BillingProfile(
                tenant_id=tenant_id,
                legal_name=legal_name,
                address=address,
                tax_id=tax_id,
                taxes=taxes,
                payment_days=payment_days,
                accounts=accounts or {},
            ),
        )
        return writes.record(connection, "profile.set", before, after)

    def record_payment(
        self,
        connection: sa.Connection,
        *,
        invoice_id: str,
        amount_minor: int,
        reference: str,
        paid_at: int | None = None,
    ) -> Payment:
        """Record an amount received for an invoice (id or number), in the document's smallest unit; below 0: a
        reversal. `paid_at`: microseconds UTC, None: now."""
        writes = self._writes
        writes.lock(connection)
        writes.check_operator("payments")
        invoice = invoices.get_invoice(connection, invoice_id)
        if not writes.actor.sees(invoice.tenant_id):
            raise RowNotFound(f"there is no invoice {invoice_id!r}")
        made = documents.pay(
            connection,
            invoice.id,
            minor=amount_minor,
            reference=reference,
            actor=writes.actor.id,
            paid_at=paid_at,
        )
        return writes.record(connection, "payment.record", None, made)

    def release_connector(self, connection: sa.Connection, *, name: str) -> ConnectorRelease:
        """Let a connector send its stuck events again, with the same identifiers and amounts."""
        self._writes.lock(connection)
        self._writes.check_operator("connectors")
        made = ConnectorRelease(name, connectors.release(connection, name))
        self._writes.record_line(connection, "connector.release", name, after=made)
        return made


def issuer_of(config: Config) -> Issuer:
    """The issuer of documents, from the configuration."""
    section = config.billing
    return Issuer(
        party=Party(
            name=section.issuer_name or config.exports.provider_name,
            address=section.issuer_address,
            tax_id=section.issuer_tax_id or None,
        ),
        invoice_series=section.invoice_series,
        credit_series=section.credit_series,
        payment_days=section.payment_days,
    )
