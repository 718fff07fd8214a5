"""The name that a settled request asked for, and the version of its adapter: the arms of an alias are compared by them.

The columns are nullable, so that the version before can still write to the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("asked", sa.String(length=128), nullable=True))
    op.add_column("usage", sa.Column("adapter_version", sa.Integer(), nullable=True))
    asked, versioned = sa.text("asked IS NOT NULL"), sa.text("adapter_version IS NOT NULL")
    op.create_index("ix_usage_asked", "usage", ["asked", "finished_at"], sqlite_where=asked, postgresql_where=asked)
    op.create_index(
        "ix_usage_versioned", "usage", ["adapter", "finished_at"], sqlite_where=versioned, postgresql_where=versioned
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
