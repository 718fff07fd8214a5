"""Add a histogram of the time to first token, by minute, tier and gateway."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "first_token_minutes",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("bucket", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("within_target", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "tier", "gateway_id", "bucket", name=op.f("pk_first_token_minutes")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
