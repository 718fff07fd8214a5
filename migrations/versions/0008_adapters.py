"""Add adapter versions by content, and of adapters: the served version, sharing, pinning and notes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("adapters", sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("adapters", sa.Column("for_all", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("adapters", sa.Column("pinned", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("adapters", sa.Column("notes", sa.String(length=2000), nullable=True))
    op.execute("UPDATE adapters SET for_all = true WHERE tenant_id IS NULL")
    op.create_table(
        "adapter_versions",
        sa.Column("adapter_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("replaced", sa.Integer(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("rank_max", sa.Integer(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("trained_for", sa.String(length=200), nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("removed_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_versions_adapter_id_adapters")),
        sa.PrimaryKeyConstraint("adapter_id", "number", name=op.f("pk_adapter_versions")),
    )
    op.create_index("ix_adapter_versions_digest", "adapter_versions", ["digest"], unique=False)
    # Existing adapters become their version 1, which is served; their targets and warnings are unknown.
    op.execute(
        "INSERT INTO adapter_versions (adapter_id, number, digest, targets, warnings, created_at, removed_at) "
        "SELECT id, 1, digest, '[]', '[]', created_at, CASE WHEN active THEN NULL ELSE created_at END FROM adapters"
    )
    op.create_table(
        "adapter_shares",
        sa.Column("adapter_id", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_shares_adapter_id_adapters")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapter_shares_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("adapter_id", "tenant_id", name=op.f("pk_adapter_shares")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
