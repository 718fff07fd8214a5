"""Add billing: tenants, prices, budgets, holds, usage, entries and leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


# Triggers refuse changes to rows of these tables, by any program. A correction is a new row.
APPEND_ONLY = ("entries", "usage", "price_versions", "unit_prices")

POSTGRES_FUNCTION = """
CREATE FUNCTION laneway_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$
"""
POSTGRES_ROWS = """
CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table}
FOR EACH ROW EXECUTE FUNCTION laneway_append_only()
"""
POSTGRES_TRUNCATE = """
CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only()
"""
SQLITE = """
CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table}
BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END
"""


def upgrade() -> None:
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("slug", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("default_max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("status IN ('active', 'suspended')", name=op.f("ck_tenants_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("slug", name=op.f("uq_tenants_slug")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_projects_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_projects_tenant_id_name")),
    )
    op.create_table(
        "price_versions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("subject_kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("effective_from", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("subject_kind IN ('model', 'adapter')", name=op.f("ck_price_versions_subject_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_versions")),
        sa.UniqueConstraint(
            "subject_kind",
            "subject",
            "currency",
            "effective_from",
            name=op.f("uq_price_versions_subject_kind_subject_currency_effective_from"),
        ),
    )
    op.create_table(
        "unit_prices",
        sa.Column("price_version_id", sa.String(length=64), nullable=False),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("meter", sa.String(length=32), nullable=False),
        sa.Column("picos", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("picos >= 0", name=op.f("ck_unit_prices_picos")),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name=op.f("fk_unit_prices_price_version_id_price_versions")
        ),
        sa.PrimaryKeyConstraint("price_version_id", "tier", "meter", name=op.f("pk_unit_prices")),
    )
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("scope_id", sa.String(length=64), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("period", sa.String(length=16), nullable=False),
        sa.Column("limit_amount", sa.BigInteger(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("period IN ('day', 'month', 'total')", name=op.f("ck_budgets_period")),
        sa.CheckConstraint("scope IN ('tenant', 'key')", name=op.f("ck_budgets_scope")),
        sa.CheckConstraint("unit IN ('tokens', 'money')", name=op.f("ck_budgets_unit")),
        sa.CheckConstraint("limit_amount >= 0", name=op.f("ck_budgets_limit_amount")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_budgets_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
    )
    op.create_index(op.f("ix_budgets_scope_id"), "budgets", ["scope_id"], unique=False)
    op.create_index(op.f("ix_budgets_tenant_id"), "budgets", ["tenant_id"], unique=False)
    op.create_table(
        "budget_windows",
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("window_start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("posted", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("held >= 0", name=op.f("ck_budget_windows_held")),
        sa.CheckConstraint("posted >= 0", name=op.f("ck_budget_windows_posted")),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name=op.f("fk_budget_windows_budget_id_budgets")),
        sa.PrimaryKeyConstraint("budget_id", "window_start", name=op.f("pk_budget_windows")),
    )
    op.create_table(
        "holds",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("adapter", sa.String(length=200), nullable=True),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("price_version_id", sa.String(length=64), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_tokens", sa.BigInteger(), nullable=False),
        sa.Column("hold_picos", sa.BigInteger(), nullable=False),
        sa.Column("held_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("ending", sa.String(length=64), nullable=True),
        sa.Column("settled_picos", sa.BigInteger(), nullable=False),
        sa.Column("lost_tokens", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('held', 'settled', 'voided', 'expired')", name=op.f("ck_holds_state")),
        sa.CheckConstraint("settled_picos <= hold_picos", name=op.f("ck_holds_settled_picos")),
        sa.ForeignKeyConstraint(
            ["price_version_id"], ["price_versions.id"], name=op.f("fk_holds_price_version_id_price_versions")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_holds_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_holds")),
    )
    op.create_index(
        "ix_holds_open",
        "holds",
        ["gateway_id"],
        unique=False,
        sqlite_where=sa.text("state = 'held'"),
        postgresql_where=sa.text("state = 'held'"),
    )
    op.create_table(
        "hold_charges",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["holds.request_id"], name=op.f("fk_hold_charges_request_id_holds")),
        sa.PrimaryKeyConstraint("request_id", "budget_id", name=op.f("pk_hold_charges")),
    )
    op.create_table(
        "usage",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("adapter", sa.String(length=200), nullable=True),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("price_version_id", sa.String(length=64), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.Column("discarded_tokens", sa.BigInteger(), nullable=False),
        sa.Column("discard_reason", sa.String(length=64), nullable=True),
        sa.Column("cost_picos", sa.BigInteger(), nullable=False),
        sa.Column("ending", sa.String(length=64), nullable=False),
        sa.Column("queue_s", sa.Double(), nullable=False),
        sa.Column("ttft_s", sa.Double(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["holds.request_id"], name=op.f("fk_usage_request_id_holds")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_usage")),
        sa.UniqueConstraint("request_id", name=op.f("uq_usage_request_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_usage_finished_at", "usage", ["finished_at"], unique=False)
    op.create_index("ix_usage_key_id_sequence", "usage", ["key_id", "sequence"], unique=False)
    op.create_index("ix_usage_tenant_id_sequence", "usage", ["tenant_id", "sequence"], unique=False)
    op.create_table(
        "entries",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("transaction_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("account", sa.String(length=16), nullable=False),
        sa.Column("meter", sa.String(length=32), nullable=True),
        sa.Column("amount_picos", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("recorded_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("account IN ('receivable', 'revenue')", name=op.f("ck_entries_account")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_entries")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_entries_transaction_id"), "entries", ["transaction_id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("acquired_at", sa.BigInteger(), nullable=False),
        sa.Column("renewed_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("gateway_id", name=op.f("pk_leases")),
    )
    op.execute("INSERT INTO revision (id, number) VALUES (1, 0)")
    _protect()


def _protect() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in APPEND_ONLY:
            for verb in ("update", "delete"):
                op.execute(SQLITE.format(table=table, verb=verb))
        return
    op.execute(POSTGRES_FUNCTION)
    for table in APPEND_ONLY:
        op.execute(POSTGRES_ROWS.format(table=table))
        op.execute(POSTGRES_TRUNCATE.format(table=table))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
