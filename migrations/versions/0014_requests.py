"""Add indexes for the list of requests: holds that were not settled, and usage with rare endings, each by the time of
the ending."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

UNSETTLED = "state = 'voided' OR state = 'expired'"
UNUSUAL = "ending <> 'stop' AND ending <> 'length'"


def upgrade() -> None:
    for name, table, column, where in (
        ("ix_holds_unsettled", "holds", "ended_at", UNSETTLED),
        ("ix_usage_unusual", "usage", "finished_at", UNUSUAL),
    ):
        chosen = sa.text(where)
        op.create_index(name, table, [column], unique=False, sqlite_where=chosen, postgresql_where=chosen)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
