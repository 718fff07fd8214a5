"""Requests that were refused or failed, and their counts; times of a request that show where it waited.

The new columns of `usage` are nullable, so that the version before can still settle.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_errors",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("route", sa.String(length=100), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("param", sa.String(length=64), nullable=True),
        sa.Column("limit_name", sa.String(length=64), nullable=True),
        sa.Column("limit_value", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.String(length=500), nullable=True),
        sa.Column("retry_after_s", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_request_errors")),
    )
    op.create_index("ix_request_errors_at", "request_errors", ["at", "request_id"])
    op.create_index("ix_request_errors_tenant_id_at", "request_errors", ["tenant_id", "at"])
    op.create_index("ix_request_errors_key_id_at", "request_errors", ["key_id", "at"])
    op.create_table(
        "request_error_counts",
        sa.Column("quarter", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "quarter", "tenant_id", "key_id", "outcome", "code", "gateway_id", name=op.f("pk_request_error_counts")
        ),
    )
    op.create_index("ix_request_error_counts_tenant_id_quarter", "request_error_counts", ["tenant_id", "quarter"])
    for name in ("submitted_s", "load_s", "weights_s"):
        op.add_column("usage", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
