"""Add projects, soft budgets, alerts, webhooks and time zones of tenants. The audit log gets a tenant and becomes
append-only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SCOPE = "scope IN ('tenant', 'project', 'key')"
KIND = "kind IN ('hard', 'soft')"
COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.add_column("tenants", sa.Column("time_zone", sa.String(length=64), server_default="UTC", nullable=False))
    op.add_column("projects", sa.Column("default_max_tokens", sa.BigInteger(), nullable=True))
    op.add_column("budget_windows", sa.Column("alerted", sa.Integer(), server_default="0", nullable=False))
    if is_sqlite:
        _remake_budgets()
    else:
        op.add_column("budgets", sa.Column("kind", sa.String(length=16), server_default="hard", nullable=False))
        op.add_column("budgets", sa.Column("thresholds", sa.String(length=64), nullable=True))
        op.drop_constraint(op.f("ck_budgets_scope"), "budgets", type_="check")
        op.create_check_constraint(op.f("ck_budgets_scope"), "budgets", SCOPE)
        op.create_check_constraint(op.f("ck_budgets_kind"), "budgets", KIND)
    _create_alerts()
    op.add_column("audit_log", sa.Column("tenant_id", sa.String(length=64), nullable=True))
    op.create_index("ix_audit_log_tenant_id_id", "audit_log", ["tenant_id", "id"], unique=False)
    _protect_audit_log(is_sqlite)


def _remake_budgets() -> None:
    """SQLite cannot change a constraint of an existing table, so the table is created again. Foreign keys refer to it
    by name, and so to the new table."""
    op.create_table(
        "budgets_remade",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("scope_id", sa.String(length=64), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("period", sa.String(length=16), nullable=False),
        sa.Column("limit_amount", sa.BigInteger(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), server_default="hard", nullable=False),
        sa.Column("thresholds", sa.String(length=64), nullable=True),
        sa.CheckConstraint("period IN ('day', 'month', 'total')", name=op.f("ck_budgets_period")),
        sa.CheckConstraint(SCOPE, name=op.f("ck_budgets_scope")),
        sa.CheckConstraint(KIND, name=op.f("ck_budgets_kind")),
        sa.CheckConstraint("unit IN ('tokens', 'money')", name=op.f("ck_budgets_unit")),
        sa.CheckConstraint("limit_amount >= 0", name=op.f("ck_budgets_limit_amount")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_budgets_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
    )
    columns = "id, tenant_id, scope, scope_id, unit, period, limit_amount, active, created_at"
    op.execute(f"INSERT INTO budgets_remade ({columns}) SELECT {columns} FROM budgets")
    op.drop_table("budgets")
    op.rename_table("budgets_remade", "budgets")
    op.create_index(op.f("ix_budgets_scope_id"), "budgets", ["scope_id"], unique=False)
    op.create_index(op.f("ix_budgets_tenant_id"), "budgets", ["tenant_id"], unique=False)


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        sa.Column("sequence", COUNTED, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("budget_id", sa.String(length=64), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("threshold", sa.Integer(), nullable=False),
        sa.Column("limit_amount", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("crossed_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["budget_id"], ["budgets.id"], name=op.f("fk_alerts_budget_id_budgets")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_alerts")),
        sa.UniqueConstraint("id", name=op.f("uq_alerts_id")),
        sa.UniqueConstraint(
            "budget_id", "window_start", "threshold", name=op.f("uq_alerts_budget_id_window_start_threshold")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alerts_tenant_id_sequence", "alerts", ["tenant_id", "sequence"], unique=False)
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhooks_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "alert_deliveries",
        sa.Column("alert_id", sa.String(length=64), nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_alert_deliveries_state")),
        sa.ForeignKeyConstraint(["alert_id"], ["alerts.id"], name=op.f("fk_alert_deliveries_alert_id_alerts")),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_alert_deliveries_webhook_id_webhooks")),
        sa.PrimaryKeyConstraint("alert_id", "webhook_id", name=op.f("pk_alert_deliveries")),
    )
    op.create_index(
        "ix_alert_deliveries_pending",
        "alert_deliveries",
        ["next_attempt_at"],
        unique=False,
        sqlite_where=sa.text("state = 'pending'"),
        postgresql_where=sa.text("state = 'pending'"),
    )


def _protect_audit_log(is_sqlite: bool) -> None:
    """As revision 0001 does for the ledger's tables. For PostgreSQL it uses the function of revision 0001."""
    if is_sqlite:
        for verb in ("update", "delete"):
            op.execute(
                f"CREATE TRIGGER audit_log_no_{verb} BEFORE {verb} ON audit_log "
                "BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE ON audit_log "
        "FOR EACH ROW EXECUTE FUNCTION laneway_append_only()"
    )
    op.execute(
        "CREATE TRIGGER audit_log_no_truncate BEFORE TRUNCATE ON audit_log "
        "FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only()"
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
