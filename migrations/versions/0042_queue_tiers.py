"""Of a settled request's wait in the queue: for which tiers' requests the device computed meanwhile.

The column is nullable, so that the version before can still settle.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("queue_device_s", sa.JSON(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
