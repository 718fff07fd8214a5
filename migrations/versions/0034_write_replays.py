"""Answers of administrative writes with an Idempotency-Key; archived tenants and projects; paused webhooks.

Code of the version before ignores the header, lists archived rows, and delivers to paused webhooks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "write_replays",
        sa.Column("actor_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("actor_id", "name", name=op.f("pk_write_replays")),
    )
    op.add_column("tenants", sa.Column("archived_at", sa.BigInteger(), nullable=True))
    op.add_column("projects", sa.Column("archived_at", sa.BigInteger(), nullable=True))
    op.add_column("webhooks", sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_write_replays_written_at", "write_replays", ["written_at"])


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
