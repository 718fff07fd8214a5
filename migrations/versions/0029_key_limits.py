"""The models and networks that a key is limited to, and the tags of keys on their usage.

All new columns are nullable, so that the version before can still write to these tables. Its rows have no tags. Usage
with tags that a gateway of that version folds is missing in tag_hours: its hours appear without tags.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

KEYS = ("tenant_id", "key_id", "model", "adapter", "tier", "price_version_id", "period_id", "project_id", "tag_set_id")
SUMS = (
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "made_tokens",
    "discarded_tokens",
    "preemptions",
    "swapped_tokens",
    "cost_picos",
)


def upgrade() -> None:
    for name in ("models", "allowed_ips", "tags"):
        op.add_column("keys", sa.Column(name, sa.JSON(), nullable=True))
    op.add_column("tenants", sa.Column("allowed_ips", sa.JSON(), nullable=True))
    for table in ("keys", "holds", "usage"):
        op.add_column(table, sa.Column("tag_set_id", sa.String(length=64), nullable=True))
    op.create_table(
        "tag_sets",
        sa.Column("tag_set_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_tag_sets_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tag_set_id", "name", name=op.f("pk_tag_sets")),
    )
    op.create_index("ix_tag_sets_tenant_id_name", "tag_sets", ["tenant_id", "name"], unique=False)
    op.create_table(
        "tag_hours",
        *(sa.Column(name, sa.String(200 if name in ("model", "adapter") else 64), nullable=False) for name in KEYS),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in SUMS),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("sequence_min", sa.BigInteger(), nullable=False),
        sa.Column("sequence_max", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(KEYS[0], "hour", *KEYS[1:], name=op.f("pk_tag_hours")),
    )
    op.create_index("ix_tag_hours_hour", "tag_hours", ["hour"], unique=False)
    op.create_index("ix_tag_hours_period_id", "tag_hours", ["period_id"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
