"""A key that replaces another shares its budgets and rate limits: keys and budgets name the first key of the rotations.

Keys that were rotated before are not joined: each has its own budgets and rate limits, as before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("keys", sa.Column("first_key_id", sa.String(length=64), nullable=True))
    op.create_index("ix_keys_first_key_id", "keys", ["first_key_id"], unique=False)
    op.add_column("budgets", sa.Column("first_key_id", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_budgets_first_key_id"), "budgets", ["first_key_id"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
