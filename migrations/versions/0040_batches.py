"""Batches, their lines, the leases of their workers and the outputs of their lines; the batch of a line's usage;
what a tenant's lines do that a budget does not cover.

The new columns of `tenants` and `usage` are nullable, so that the version before can still write to them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

STATUSES = "'validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled'"


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("dialect", sa.String(length=16), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("completion_window", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deadline_at", sa.BigInteger(), nullable=False),
        sa.Column("in_progress_at", sa.BigInteger(), nullable=True),
        sa.Column("cancelling_at", sa.BigInteger(), nullable=True),
        sa.Column("finalizing_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("output_expires_s", sa.BigInteger(), nullable=True),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.BigInteger(), nullable=True),
        sa.Column("failed", sa.BigInteger(), nullable=True),
        sa.Column("unrun", sa.BigInteger(), nullable=True),
        sa.Column("enqueued_tokens", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost_picos", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("end_code", sa.String(length=64), nullable=True),
        sa.Column("end_message", sa.String(length=500), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("error_counts", sa.JSON(none_as_null=True), nullable=True),
        sa.CheckConstraint(f"status IN ({STATUSES})", name=op.f("ck_batches_status")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_batches_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index("ix_batches_tenant_id", "batches", ["tenant_id", "created_at", "id"])
    unended = sa.text("ended_at IS NULL")
    op.create_index("ix_batches_unended", "batches", ["deadline_at"], sqlite_where=unended, postgresql_where=unended)
    idempotent = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        "uq_batches_idempotency_key",
        "batches",
        ["key_id", "idempotency_key"],
        unique=True,
        sqlite_where=idempotent,
        postgresql_where=idempotent,
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("file_offset", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_lines_batch_id_batches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_lines")),
    )
    op.create_index("uq_batch_lines_position", "batch_lines", ["batch_id", "position"], unique=True)
    op.create_table(
        "output_leases",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_output_leases")),
    )
    op.create_table(
        "line_outputs",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_line_outputs")),
    )
    op.create_index("ix_line_outputs_is_error", "line_outputs", ["batch_id", "is_error", "created_at"])
    op.create_table(
        "batch_deliveries",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.String(length=200), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name=op.f("ck_batch_deliveries_state")),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_deliveries_batch_id_batches"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_batch_deliveries_webhook_id_webhooks")),
        sa.PrimaryKeyConstraint("batch_id", "webhook_id", name=op.f("pk_batch_deliveries")),
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_batch_deliveries_pending",
        "batch_deliveries",
        ["next_attempt_at"],
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.add_column("tenants", sa.Column("on_budget", sa.String(length=8), nullable=True))
    op.add_column("usage", sa.Column("batch_id", sa.String(length=64), nullable=True))
    of_batch = sa.text("batch_id IS NOT NULL")
    op.create_index(
        "ix_usage_batch_id", "usage", ["batch_id", "sequence"], sqlite_where=of_batch, postgresql_where=of_batch
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
