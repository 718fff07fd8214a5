"""Add export jobs, and the names that all exports of a closed period use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "exports",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("read_rows", sa.BigInteger(), nullable=False),
        sa.Column("all_rows", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("file", sa.String(length=255), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("error", sa.String(length=500), nullable=True),
        sa.CheckConstraint("kind IN ('focus', 'events')", name=op.f("ck_exports_kind")),
        sa.CheckConstraint("format IN ('csv', 'parquet', 'jsonl')", name=op.f("ck_exports_format")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'removed')", name=op.f("ck_exports_state")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_exports_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_exports")),
        sa.UniqueConstraint("id", name=op.f("uq_exports_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_exports_state", "exports", ["state"], unique=False)
    op.create_table(
        "export_names",
        sa.Column("period_id", sa.String(length=64), nullable=False),
        sa.Column("subject_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["period_id"], ["billing_periods.id"], name=op.f("fk_export_names_period_id_billing_periods")
        ),
        sa.PrimaryKeyConstraint("period_id", "subject_id", name=op.f("pk_export_names")),
    )
    op.create_table(
        "export_invoices",
        sa.Column("export_id", sa.String(length=64), nullable=False),
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("picos", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["export_id"], ["exports.id"], name=op.f("fk_export_invoices_export_id_exports")),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name=op.f("fk_export_invoices_invoice_id_invoices")),
        sa.PrimaryKeyConstraint("export_id", "invoice_id", name=op.f("pk_export_invoices")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
