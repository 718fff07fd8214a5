"""Add the time since which audits have reached the database without a gap, so that a starting gateway need not wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audits",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("unbroken_from", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audits")),
    )
    op.execute("INSERT INTO audits (id, seen_at, unbroken_from) VALUES (1, 0, 0)")


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
