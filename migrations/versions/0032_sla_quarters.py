"""The targets and the times between tokens of a settled request, and sums of them by quarter-hour.

The new columns of `usage` are nullable, so that the version before can still settle; its rows count as not measured.
Usage from before this migration is not folded: it has no targets.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

COUNTS = (
    "requests",
    "ttft_measured",
    "ttft_within",
    "itl_measured",
    "itl_within",
    "preemptions",
    "refused",
    "unanswered",
)


def upgrade() -> None:
    for name in ("ttft_target_s", "itl_target_s", "itl_s", "pause_s"):
        op.add_column("usage", sa.Column(name, sa.Double(), nullable=True))
    op.create_table(
        "sla_quarters",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("quarter", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tier", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")) for name in COUNTS),
        *(sa.Column(name, sa.LargeBinary(), nullable=True) for name in ("ttft_sketch", "itl_sketch", "pause_sketch")),
        sa.PrimaryKeyConstraint("tenant_id", "quarter", "tier", "model", name=op.f("pk_sla_quarters")),
    )
    op.create_index("ix_sla_quarters_quarter", "sla_quarters", ["quarter"], unique=False)
    op.create_table(
        "sla_cursor",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("folded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sla_cursor")),
    )
    op.execute("INSERT INTO sla_cursor (id, sequence, folded_at) SELECT 1, COALESCE(MAX(sequence), 0), 0 FROM usage")


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
