"""For which tiers' requests the device computed while a settled request was in the queue; and quotas of files and
batches beside the rate limits of a tenant.

The columns are nullable, so that the version before can still write to the tables. A gateway of the version before that
changes a tenant's rate limits removes the tenant's own quotas.
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
    for name in ("files", "total_file_bytes", "batches", "enqueued_tokens"):
        op.add_column("rate_limits", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
