"""Stored answers of replays are encrypted from now on. Existing answers, which are plain text, are deleted.

Their rows are not deleted before they expire: a repeated idempotent call must not run, and be billed, again.
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
