"""Add periods, invoices, corrections, roll-ups by hour, and results of reconciliations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

APPEND_ONLY = ("corrections", "invoices", "invoice_lines")
SQLITE = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} {when}
BEGIN SELECT RAISE(ABORT, '{message}'); END
"""
# Revision 0001 creates laneway_append_only.
POSTGRES = """
CREATE FUNCTION laneway_period_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a closed period is immutable';
END
$$;
CREATE TRIGGER billing_periods_closed BEFORE UPDATE OR DELETE ON billing_periods
FOR EACH ROW WHEN (OLD.state = 'closed') EXECUTE FUNCTION laneway_period_closed();
CREATE TRIGGER billing_periods_no_truncate BEFORE TRUNCATE ON billing_periods
FOR EACH STATEMENT EXECUTE FUNCTION laneway_period_closed();
"""
POSTGRES_APPEND_ONLY = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION laneway_append_only();
CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only();
"""
OVER_THE_LIMIT = """
UPDATE budget_windows SET excused = held + posted
WHERE held + posted > (SELECT limit_amount FROM budgets WHERE budgets.id = budget_id)
"""


def upgrade() -> None:
    _create_periods()
    _create_rollups()
    _create_reconciliations()
    op.add_column("budget_windows", sa.Column("excused", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.create_index(
        "ix_holds_lost",
        "holds",
        ["lost_tokens"],
        unique=False,
        sqlite_where=sa.text("lost_tokens > 0"),
        postgresql_where=sa.text("lost_tokens > 0"),
    )
    op.execute(OVER_THE_LIMIT)  # for limits that were lowered before; later changes of a limit set `excused` themselves
    _protect(op.get_bind().dialect.name == "sqlite")


def _create_periods() -> None:
    op.create_table(
        "billing_periods",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("start_at", sa.BigInteger(), nullable=False),
        sa.Column("end_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("late_after", sa.BigInteger(), nullable=True),
        sa.Column("closed_sequence", sa.BigInteger(), nullable=True),
        sa.Column("sequence_min", sa.BigInteger(), nullable=True),
        sa.Column("sequence_max", sa.BigInteger(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_by", sa.String(length=128), nullable=True),
        sa.CheckConstraint(
            "(state = 'closed') = (closed_sequence IS NOT NULL)", name=op.f("ck_billing_periods_closed_sequence")
        ),
        sa.CheckConstraint("state IN ('open', 'closed')", name=op.f("ck_billing_periods_state")),
        sa.CheckConstraint("start_at < end_at", name=op.f("ck_billing_periods_end_at")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_billing_periods_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_billing_periods")),
        sa.UniqueConstraint("tenant_id", "month", name=op.f("uq_billing_periods_tenant_id_month")),
        sa.UniqueConstraint("tenant_id", "start_at", name=op.f("uq_billing_periods_tenant_id_start_at")),
    )
    op.create_table(
        "corrections",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("period_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("adapter", sa.String(length=200), nullable=True),
        sa.Column("tier", sa.String(length=32), nullable=True),
        sa.Column("meter", sa.String(length=32), nullable=True),
        sa.Column("price_version_id", sa.String(length=64), nullable=True),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("picos", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["period_id"], ["billing_periods.id"], name=op.f("fk_corrections_period_id_billing_periods")
        ),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name=op.f("fk_corrections_price_version_id_price_versions")
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_corrections")),
        sa.UniqueConstraint("id", name=op.f("uq_corrections_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_corrections_created_at", "corrections", ["created_at"], unique=False)
    op.create_index(op.f("ix_corrections_period_id"), "corrections", ["period_id"], unique=False)
    op.create_index(op.f("ix_corrections_request_id"), "corrections", ["request_id"], unique=False)
    op.create_index("ix_corrections_tenant_id_sequence", "corrections", ["tenant_id", "sequence"], unique=False)
    op.create_table(
        "invoices",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("period_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("usage_picos", sa.BigInteger(), nullable=False),
        sa.Column("correction_picos", sa.BigInteger(), nullable=False),
        sa.Column("total_picos", sa.BigInteger(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("total_picos = usage_picos + correction_picos", name=op.f("ck_invoices_total_picos")),
        sa.ForeignKeyConstraint(
            ["period_id"], ["billing_periods.id"], name=op.f("fk_invoices_period_id_billing_periods")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invoices")),
        sa.UniqueConstraint("period_id", name=op.f("uq_invoices_period_id")),
    )
    op.create_index(op.f("ix_invoices_tenant_id"), "invoices", ["tenant_id"], unique=False)
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("adapter", sa.String(length=200), nullable=True),
        sa.Column("tier", sa.String(length=32), nullable=True),
        sa.Column("meter", sa.String(length=32), nullable=True),
        sa.Column("price_version_id", sa.String(length=64), nullable=True),
        sa.Column("unit_price_picos", sa.BigInteger(), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("picos", sa.BigInteger(), nullable=False),
        sa.Column("correction_id", sa.String(length=64), nullable=True),
        sa.CheckConstraint("kind IN ('usage', 'correction')", name=op.f("ck_invoice_lines_kind")),
        sa.ForeignKeyConstraint(
            ["correction_id"], ["corrections.id"], name=op.f("fk_invoice_lines_correction_id_corrections")
        ),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoices.id"], name=op.f("fk_invoice_lines_invoice_id_invoices")),
        sa.PrimaryKeyConstraint("invoice_id", "line", name=op.f("pk_invoice_lines")),
    )


def _create_rollups() -> None:
    op.create_table(
        "usage_hours",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("adapter", sa.String(length=200), nullable=False),
        sa.Column("tier", sa.String(length=64), nullable=False),
        sa.Column("price_version_id", sa.String(length=64), nullable=False),
        sa.Column("period_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.Column("discarded_tokens", sa.BigInteger(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        sa.Column("swapped_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_picos", sa.BigInteger(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("sequence_min", sa.BigInteger(), nullable=False),
        sa.Column("sequence_max", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "hour",
            "key_id",
            "model",
            "adapter",
            "tier",
            "price_version_id",
            "period_id",
            "project_id",
            name=op.f("pk_usage_hours"),
        ),
    )
    op.create_index("ix_usage_hours_hour", "usage_hours", ["hour"], unique=False)
    op.create_index("ix_usage_hours_period_id", "usage_hours", ["period_id"], unique=False)
    op.create_table(
        "recompute_hours",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("adapter", sa.String(length=200), nullable=False),
        sa.Column("tier", sa.String(length=64), nullable=False),
        sa.Column("caused_by", sa.String(length=64), nullable=False),
        sa.Column("period_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "hour",
            "key_id",
            "model",
            "adapter",
            "tier",
            "caused_by",
            "period_id",
            "project_id",
            name=op.f("pk_recompute_hours"),
        ),
    )
    op.create_index("ix_recompute_hours_hour", "recompute_hours", ["hour"], unique=False)
    op.create_index("ix_recompute_hours_period_id", "recompute_hours", ["period_id"], unique=False)
    op.create_table(
        "rollup_cursor",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.Column("folded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollup_cursor")),
    )
    op.execute("INSERT INTO rollup_cursor (id, sequence, requests, made_tokens, folded_at) VALUES (1, 0, 0, 0, 0)")


def _create_reconciliations() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("sequence_from", sa.BigInteger(), nullable=False),
        sa.Column("sequence_to", sa.BigInteger(), nullable=False),
        sa.Column("took_s", sa.Double(), nullable=False),
        sa.Column("imbalances", sa.BigInteger(), nullable=False),
        sa.Column("overshot", sa.BigInteger(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("engine_gap", sa.BigInteger(), nullable=True),
        sa.Column("engines", sa.Text(), nullable=True),
        sa.CheckConstraint("kind IN ('minute', 'month', 'whole')", name=op.f("ck_reconciliations_kind")),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_reconciliations")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "engine_counts",
        sa.Column("epoch", sa.String(length=64), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.Column("overrun_tokens", sa.BigInteger(), nullable=False),
        sa.Column("lost_tokens", sa.BigInteger(), nullable=False),
        sa.Column("ledger_tokens", sa.BigInteger(), nullable=True),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_engine_counts")),
    )


def _protect(is_sqlite: bool) -> None:
    """As revision 0001 does for the ledger's tables; and triggers for closed periods."""
    if is_sqlite:
        for verb in ("update", "delete"):
            for table in APPEND_ONLY:
                message = f"{table} is append-only"
                op.execute(SQLITE.format(table=table, verb=verb, when="", message=message))
            when, message = "WHEN OLD.state = 'closed'", "a closed period is immutable"
            op.execute(SQLITE.format(table="billing_periods", verb=verb, when=when, message=message))
        return
    op.execute(POSTGRES)
    for table in APPEND_ONLY:
        op.execute(POSTGRES_APPEND_ONLY.format(table=table))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
