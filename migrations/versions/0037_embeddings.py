"""Embeddings: what a settled request did, and the tokens of embeddings in the roll-ups.

The columns have defaults, so that the version before can still write to the tables: it makes text alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("operation", sa.String(length=16), nullable=False, server_default="text"))
    for table in ("usage_hours", "tag_hours"):
        tokens = sa.Column("embedding_tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        op.add_column(table, tokens)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
