"""Added base models have a format that their weights are quantised to, and a dtype of KV."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("base_models", sa.Column("quantize", sa.String(length=16), nullable=True))
    op.add_column("base_models", sa.Column("kv_dtype", sa.String(length=16), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
