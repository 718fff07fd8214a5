"""Entries by the moment they were recorded at, so that reconciling a month reads that month's alone; engines' counts
beside running requests; and when an export kept a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Entries lie in the order of their moments, so an index of ranges (BRIN) is enough: a few hundred kB for tens of
    # millions of rows, and next to nothing at a settlement. SQLite has none of that kind, and makes a plain one.
    op.create_index("ix_entries_recorded_at", "entries", ["recorded_at"], unique=False, postgresql_using="brin")
    # What engines made is compared with the ledger while requests run: between two bounds (engine_books.py).
    expired = sa.text("state = 'expired'")
    op.create_index(
        "ix_holds_expired",
        "holds",
        ["ended_at"],
        unique=False,
        sqlite_where=expired,
        postgresql_where=expired,
    )
    op.add_column("engine_counts", sa.Column("ledger_before", sa.BigInteger(), nullable=True))
    op.add_column("engine_counts", sa.Column("ledger_bound", sa.BigInteger(), nullable=True))
    # Names that were kept before stay for ever: null.
    op.add_column("export_names", sa.Column("kept_at", sa.BigInteger(), nullable=True))
    op.add_column("reconciliations", sa.Column("engine_bounds", sa.Text(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
