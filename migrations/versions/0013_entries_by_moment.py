"""Add an index of entries by recorded_at, so that reconciling a month reads the entries of that month only; columns for
comparing engines' counts while requests run; and the time when an export stored a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Entries are stored in the order of recorded_at, so a BRIN index is enough: a few hundred kB for tens of millions
    # of rows, at almost no cost for a settlement. SQLite has no BRIN index, and creates a B-tree.
    op.create_index("ix_entries_recorded_at", "entries", ["recorded_at"], unique=False, postgresql_using="brin")
    # For the comparison of engines and ledger while requests run, between two bounds (engine_books.py).
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
    # Names that were stored before have null, and never change.
    op.add_column("export_names", sa.Column("kept_at", sa.BigInteger(), nullable=True))
    op.add_column("reconciliations", sa.Column("engine_bounds", sa.Text(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
