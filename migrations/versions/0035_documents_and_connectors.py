"""Numbers, taxes and payments of invoices; credit notes; the month that a correction counts in; connectors that push
usage to other systems.

`corrections.counted_at` is null in rows of the version before, which count in the moment when they were made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

APPEND_ONLY = ("documents", "payments")
SQLITE = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""
# Revision 0001 creates laneway_append_only.
POSTGRES = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION laneway_append_only();
CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only();
"""


def upgrade() -> None:
    op.add_column("corrections", sa.Column("counted_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_corrections_counted_at", "corrections", ["counted_at"])
    _create_documents()
    _create_connectors()
    if op.get_bind().dialect.name == "sqlite":
        for table in APPEND_ONLY:
            for verb in ("update", "delete"):
                op.execute(SQLITE.format(table=table, verb=verb))
        return
    for table in APPEND_ONLY:
        op.execute(POSTGRES.format(table=table))


def _create_documents() -> None:
    op.create_table(
        "billing_profiles",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("legal_name", sa.String(length=200), nullable=True),
        sa.Column("address", sa.JSON(), nullable=False),
        sa.Column("tax_id", sa.String(length=64), nullable=True),
        sa.Column("taxes", sa.JSON(), nullable=False),
        sa.Column("payment_days", sa.Integer(), nullable=True),
        sa.Column("accounts", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_billing_profiles_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_billing_profiles")),
    )
    op.create_table(
        "document_counters",
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("year", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("series", "year", name=op.f("pk_document_counters")),
    )
    op.create_table(
        "documents",
        sa.Column("number", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("series", sa.String(length=16), nullable=False),
        sa.Column("year", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("invoice_id", sa.String(length=64), nullable=True),
        sa.Column("correction_id", sa.String(length=64), nullable=True),
        sa.Column("issuer", sa.JSON(), nullable=False),
        sa.Column("customer", sa.JSON(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("decimals", sa.Integer(), nullable=False),
        sa.Column("exact_picos", sa.BigInteger(), nullable=False),
        sa.Column("net_minor", sa.BigInteger(), nullable=False),
        sa.Column("taxes", sa.JSON(), nullable=False),
        sa.Column("tax_minor", sa.BigInteger(), nullable=False),
        sa.Column("total_minor", sa.BigInteger(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name=op.f("ck_documents_kind")),
        sa.CheckConstraint("total_minor = net_minor + tax_minor", name=op.f("ck_documents_total_minor")),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name=op.f("fk_documents_invoice_id_invoices")),
        sa.ForeignKeyConstraint(
            ["correction_id"], ["corrections.id"], name=op.f("fk_documents_correction_id_corrections")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_documents")),
        sa.UniqueConstraint("invoice_id", name=op.f("uq_documents_invoice_id")),
        sa.UniqueConstraint("correction_id", name=op.f("uq_documents_correction_id")),
        sa.UniqueConstraint("series", "year", "ordinal", name=op.f("uq_documents_series_year_ordinal")),
    )
    op.create_index(op.f("ix_documents_tenant_id"), "documents", ["tenant_id"])
    op.create_table(
        "payments",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("minor", sa.BigInteger(), nullable=False),
        sa.Column("paid_at", sa.BigInteger(), nullable=False),
        sa.Column("reference", sa.String(length=200), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name=op.f("fk_payments_invoice_id_invoices")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_payments")),
    )
    op.create_index(op.f("ix_payments_invoice_id"), "payments", ["invoice_id"])


def _create_connectors() -> None:
    op.create_table(
        "connectors",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("start_sequence", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("sent_tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("gateway_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("failed_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_connectors")),
    )
    op.create_table(
        "connector_hours",
        sa.Column("connector", sa.String(length=63), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("meter", sa.String(length=32), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("recorded", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=False),
        sa.Column("sending", sa.BigInteger(), nullable=True),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=False),
        sa.Column("unsure_since", sa.BigInteger(), nullable=True),
        sa.Column("stuck", sa.String(length=200), nullable=True),
        sa.CheckConstraint("sent <= recorded", name=op.f("ck_connector_hours_sent")),
        sa.ForeignKeyConstraint(
            ["connector"], ["connectors.name"], name=op.f("fk_connector_hours_connector_connectors")
        ),
        sa.PrimaryKeyConstraint("connector", "tenant_id", "meter", "hour", name=op.f("pk_connector_hours")),
    )
    unsent = sa.text("sent < recorded")
    op.create_index(
        "ix_connector_hours_open", "connector_hours", ["hour"], sqlite_where=unsent, postgresql_where=unsent
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
