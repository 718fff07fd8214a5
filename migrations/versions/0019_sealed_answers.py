"""Answers that are kept for replays are encrypted from now on; those that are there in plain text are deleted.

Their rows stay until they expire: a call that came before must not run, and be paid for, again.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE replays SET answer = NULL WHERE answer IS NOT NULL")


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
