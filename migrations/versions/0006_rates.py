"""Add rate limits of single keys and tenants, and replays: stored answers for an Idempotency-Key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rate_limits",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("subject_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("concurrency", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("scope IN ('key', 'tenant')", name=op.f("ck_rate_limits_scope")),
        sa.CheckConstraint("requests_per_minute >= 1", name=op.f("ck_rate_limits_requests_per_minute")),
        sa.CheckConstraint("tokens_per_minute >= 1", name=op.f("ck_rate_limits_tokens_per_minute")),
        sa.CheckConstraint("concurrency >= 1", name=op.f("ck_rate_limits_concurrency")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_rate_limits_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate_limits")),
        sa.UniqueConstraint("subject_id", name=op.f("uq_rate_limits_subject_id")),
    )
    op.create_index("ix_rate_limits_tenant_id", "rate_limits", ["tenant_id"], unique=False)
    op.create_table(
        "replays",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("begun_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_id", "name", name=op.f("pk_replays")),
        sa.UniqueConstraint("request_id", name=op.f("uq_replays_request_id")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
