"""The trace id of a settled request.

The column is nullable, so that the version before can still write to the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("trace_id", sa.String(length=32), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
