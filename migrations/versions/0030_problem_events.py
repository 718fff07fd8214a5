"""Problems of a deployment as events, with an outbox; formats and kinds of events of webhooks.

The new columns of `webhooks` have defaults, so that the version before can still create webhooks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

BigSerial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("format", sa.String(length=16), nullable=False, server_default="laneway"))
    op.add_column("webhooks", sa.Column("events", sa.JSON(), nullable=False, server_default=sa.text("'[\"budgets\"]'")))
    op.add_column("webhooks", sa.Column("routing_key", sa.LargeBinary(), nullable=True))
    op.create_table(
        "problem_reports",
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("part", sa.String(length=32), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.Column("found_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("status IN ('degraded', 'down')", name=op.f("ck_problem_reports_status")),
        sa.PrimaryKeyConstraint("gateway_id", "part", name=op.f("pk_problem_reports")),
    )
    op.create_table(
        "problems",
        sa.Column("part", sa.String(length=32), nullable=False),
        sa.Column("bad_since", sa.BigInteger(), nullable=True),
        sa.Column("down_since", sa.BigInteger(), nullable=True),
        sa.Column("good_since", sa.BigInteger(), nullable=True),
        sa.Column("opened_by", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=True),
        sa.PrimaryKeyConstraint("part", name=op.f("pk_problems")),
    )
    op.create_table(
        "problem_events",
        sa.Column("sequence", BigSerial, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=16), nullable=False),
        sa.Column("part", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.Column("gateways", sa.Integer(), nullable=False),
        sa.Column("opened_by", sa.String(length=64), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("type IN ('opened', 'worsened', 'resolved')", name=op.f("ck_problem_events_type")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_problem_events")),
        sa.UniqueConstraint("id", name=op.f("uq_problem_events_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_problem_events_opened_by", "problem_events", ["opened_by"])
    op.create_table(
        "problem_deliveries",
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_problem_deliveries_state")),
        sa.ForeignKeyConstraint(
            ["event_id"], ["problem_events.id"], name=op.f("fk_problem_deliveries_event_id_problem_events")
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_problem_deliveries_webhook_id_webhooks")
        ),
        sa.PrimaryKeyConstraint("event_id", "webhook_id", name=op.f("pk_problem_deliveries")),
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_problem_deliveries_pending",
        "problem_deliveries",
        ["next_attempt_at"],
        sqlite_where=pending,
        postgresql_where=pending,
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
