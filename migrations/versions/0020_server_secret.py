"""The fingerprint of the server secret that all gateways of this database have in common."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    table = op.create_table(
        "server_secret",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_server_secret")),
    )
    op.bulk_insert(table, [{"id": 1, "fingerprint": "", "changed_at": 0}])


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
