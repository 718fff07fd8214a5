"""Tables of invoices' numbers, taxes and payments, of credit notes, and of connectors that push usage to other systems.

They share the metadata and the conventions of `billing.tables`. Amounts named `…_minor` are integers of the currency's
smallest unit that is paid (cents), rounded once for each document.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# A tenant's name, address, taxes and terms on its documents, and its accounts in other systems.
billing_profiles = sa.Table(
    "billing_profiles",
    metadata,
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("legal_name", sa.String(200)),  # null: the tenant's name
    sa.Column("address", sa.JSON, nullable=False),  # a list of lines
    sa.Column("tax_id", sa.String(64)),
    sa.Column("taxes", sa.JSON, nullable=False),  # a list of {"name": …, "rate": "19"}, in percent
    sa.Column("payment_days", sa.Integer),  # null: billing.payment_days
    sa.Column("accounts", sa.JSON, nullable=False),  # the tenant's account by the connector's name
    sa.Column("updated_at", sa.BigInteger, nullable=False),
)

# The last ordinal of each series and year. A document takes its ordinal under this row's lock, in the transaction that
# writes the document, so a rolled-back transaction leaves no gap.
document_counters = sa.Table(
    "document_counters",
    metadata,
    sa.Column("series", sa.String(16), primary_key=True),
    sa.Column("year", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
)

# The document of an invoice or a credit: number, addresses, rounded amounts and taxes at the moment of its issue.
documents = sa.Table(
    "documents",
    metadata,
    sa.Column("number", sa.String(64), primary_key=True),  # INV-2026-000001
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("series", sa.String(16), nullable=False),
    sa.Column("year", sa.Integer, nullable=False),
    sa.Column("ordinal", sa.BigInteger, nullable=False),
    sa.Column("tenant_id", sa.String(64), nullable=False, index=True),
    sa.Column("invoice_id", sa.ForeignKey("invoices.id"), unique=True),
    sa.Column("correction_id", sa.ForeignKey("corrections.id"), unique=True),
    sa.Column("issuer", sa.JSON, nullable=False),
    sa.Column("customer", sa.JSON, nullable=False),
    sa.Column("currency", sa.String(3), nullable=False),
    sa.Column("decimals", sa.Integer, nullable=False),  # of the smallest unit: 2 for cents
    sa.Column("exact_picos", sa.BigInteger, nullable=False),  # of a credit note: the credit, above 0
    sa.Column("net_minor", sa.BigInteger, nullable=False),
    sa.Column("taxes", sa.JSON, nullable=False),  # a list of {"name", "rate", "minor"}
    sa.Column("tax_minor", sa.BigInteger, nullable=False),
    sa.Column("total_minor", sa.BigInteger, nullable=False),
    sa.Column("issued_at", sa.BigInteger, nullable=False),
    sa.Column("due_at", sa.BigInteger),  # of an invoice with a total above 0
    sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name="kind"),
    sa.CheckConstraint("total_minor = net_minor + tax_minor", name="total_minor"),
    sa.UniqueConstraint("series", "year", "ordinal"),
)

# Amounts received for an invoice; below 0, the reversal of a payment.
payments = sa.Table(
    "payments",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("invoice_id", sa.ForeignKey("invoices.id"), nullable=False, index=True),
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("minor", sa.BigInteger, nullable=False),
    sa.Column("paid_at", sa.BigInteger, nullable=False),
    sa.Column("reference", sa.String(200), nullable=False),
    sa.Column("actor", sa.String(128), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)

# A connector of laneway.toml, and the gateway that pushes for it now. Usage with start_sequence < sequence ≤ `sequence`
# is in connector_hours.
connectors = sa.Table(
    "connectors",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("start_sequence", sa.BigInteger, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("sent_tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("gateway_id", sa.String(64)),
    sa.Column("lease_until", sa.BigInteger),
    sa.Column("sent_at", sa.BigInteger),
    sa.Column("failed_at", sa.BigInteger),  # null: the last attempt succeeded
    sa.Column("last_error", sa.String(200)),
)

# Tokens of a tenant's hour and meter for one connector. `sending` is set, with the next `part`, before an event is
# sent, and moves to `sent` when the receiver has it: a repeated event has the same identifier and the same amount.
# A row of hour 0 has the sum of the old hours that retention deleted.
connector_hours = sa.Table(
    "connector_hours",
    metadata,
    sa.Column("connector", sa.ForeignKey("connectors.name"), primary_key=True),
    sa.Column("tenant_id", sa.String(64), primary_key=True),
    sa.Column("meter", sa.String(32), primary_key=True),
    sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("recorded", sa.BigInteger, nullable=False),
    sa.Column("sent", sa.BigInteger, nullable=False),
    sa.Column("sending", sa.BigInteger),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),  # of this part
    sa.Column("next_attempt_at", sa.BigInteger, nullable=False),
    sa.Column("unsure_since", sa.BigInteger),  # the first attempt of this part that may have arrived
    sa.Column("stuck", sa.String(200)),  # the reason why only an operator's release sends it again
    sa.CheckConstraint("sent <= recorded", name="sent"),
)
OPEN_HOURS = connector_hours.c.sent < connector_hours.c.recorded
sa.Index("ix_connector_hours_open", connector_hours.c.hour, sqlite_where=OPEN_HOURS, postgresql_where=OPEN_HOURS)
SENT_HOURS = connector_hours.c.sent == connector_hours.c.recorded
sa.Index("ix_connector_hours_sent", connector_hours.c.hour, sqlite_where=SENT_HOURS, postgresql_where=SENT_HOURS)
