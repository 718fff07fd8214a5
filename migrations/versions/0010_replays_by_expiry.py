"""Replays have an expiry time from the start, with an index."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEEP_MICROS = 600_000_000


def upgrade() -> None:
    op.execute(f"UPDATE replays SET expires_at = begun_at + {KEEP_MICROS} WHERE expires_at IS NULL")
    op.create_index("ix_replays_expires_at", "replays", ["expires_at"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
