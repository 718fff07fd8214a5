"""Indexes by which retention finds old batches and old hours of connectors.

An index is built while writes to its table wait: `batches` has few rows, and only connectors write `connector_hours`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    sent = sa.text("sent = recorded")
    op.create_index("ix_connector_hours_sent", "connector_hours", ["hour"], sqlite_where=sent, postgresql_where=sent)
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index("ix_batches_ended", "batches", ["ended_at"], sqlite_where=ended, postgresql_where=ended)
