"""Add the console: roles of admin keys, and the sessions of people who signed in with such a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ROLE = (
    "role IS NULL OR (kind = 'admin' AND role IN ('owner', 'operator', 'finance', 'tenant_admin', 'read_only') "
    "AND (role = 'tenant_admin') = (tenant_id IS NOT NULL))"
)


def upgrade() -> None:
    # As a constraint of the column, since SQLite can add only such a constraint to an existing table.
    op.execute(f"ALTER TABLE keys ADD COLUMN role VARCHAR(16) CONSTRAINT {op.f('ck_keys_role')} CHECK ({ROLE})")
    op.execute("UPDATE keys SET role = 'owner' WHERE kind = 'admin' AND tenant_id IS NULL")
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_sessions_key_id_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("hash", name=op.f("uq_sessions_hash")),
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"], unique=False)
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
