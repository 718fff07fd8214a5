"""Add aliases of models, and the tenants' setting to choose the cheapest model that can serve a request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("cheapest", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("cheapest", sa.Boolean(), nullable=False),
        sa.Column("fallbacks", sa.JSON(), nullable=False),
        sa.Column("tenants", sa.JSON(), nullable=True),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_aliases")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
