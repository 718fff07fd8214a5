"""Sums of usage by UTC day. They begin empty: the gateways fold all usage rows in groups, as long as reports read the
hours. A version without them folds hours alone; rows that it leaves behind are folded by the next gateway of this
version.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

COUNTS = (
    *("requests", "input_tokens", "cached_input_tokens", "output_tokens", "made_tokens", "discarded_tokens"),
    *("preemptions", "swapped_tokens", "cost_picos"),
)


def upgrade() -> None:
    def text(name: str, length: int = 64) -> sa.Column[str]:
        return sa.Column(name, sa.String(length=length), nullable=False)

    def number(name: str) -> sa.Column[int]:
        return sa.Column(name, sa.BigInteger(), nullable=False)

    op.create_table(
        "usage_days",
        text("tenant_id"),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        text("key_id"),
        text("model", 200),
        text("adapter", 200),
        text("tier"),
        text("price_version_id"),
        text("project_id"),
        text("currency", 3),
        *(number(name) for name in COUNTS),
        sa.Column("device_s", sa.Double(), nullable=False),
        number("sequence_min"),
        number("sequence_max"),
        sa.Column("embedding_tokens", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint(
            *("tenant_id", "day", "key_id", "model", "adapter", "tier", "price_version_id", "project_id"),
            name=op.f("pk_usage_days"),
        ),
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"], unique=False)
    op.create_table(
        "day_cursor",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("folded_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_day_cursor")),
    )
    op.execute("INSERT INTO day_cursor (id, sequence, folded_at) VALUES (1, 0, 0)")


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
