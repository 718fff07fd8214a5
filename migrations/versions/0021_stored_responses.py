"""Responses that are stored for tenants that opted in, and the keys that encrypt them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("store_responses_s", sa.BigInteger(), nullable=True))
    op.create_table(
        "text_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=True),
        sa.Column("wrapped", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_text_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_text_keys")),
        sa.UniqueConstraint("tenant_id", name=op.f("uq_text_keys_tenant_id")),
    )
    op.create_table(
        "responses",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("text_key_id", sa.String(length=64), nullable=False),
        sa.Column("gateway_id", sa.String(length=64), nullable=False),
        sa.Column("previous_id", sa.String(length=64), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("input", sa.LargeBinary(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "status IN ('in_progress', 'completed', 'incomplete', 'failed')", name=op.f("ck_responses_status")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_responses_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_responses")),
    )
    op.create_index("ix_responses_tenant_id", "responses", ["tenant_id", "created_at", "bytes"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
