"""Add base models that operators add and remove without a restart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "base_models",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("path", sa.String(length=256), nullable=True),
        sa.Column("dtype", sa.String(length=16), nullable=True),
        sa.Column("context_tokens", sa.BigInteger(), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=True),
        sa.Column("tenants", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("fallbacks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("max_tokens_default", sa.BigInteger(), nullable=True),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_base_models")),
        sa.UniqueConstraint("name", name=op.f("uq_base_models_name")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
