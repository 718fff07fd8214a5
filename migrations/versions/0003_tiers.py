"""Add a tenant's share weight, and the cost of preemptions by the tier that caused them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SQLITE = """
CREATE TRIGGER usage_recompute_no_{verb} BEFORE {verb} ON usage_recompute
BEGIN SELECT RAISE(ABORT, 'usage_recompute is append-only'); END
"""
# Revision 0001 creates the function.
POSTGRES = (
    """
CREATE TRIGGER usage_recompute_append_only BEFORE UPDATE OR DELETE ON usage_recompute
FOR EACH ROW EXECUTE FUNCTION laneway_append_only()
""",
    """
CREATE TRIGGER usage_recompute_no_truncate BEFORE TRUNCATE ON usage_recompute
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only()
""",
)


def upgrade() -> None:
    op.add_column("tenants", sa.Column("share_weight", sa.Double(), server_default=sa.text("1.0"), nullable=False))
    op.add_column("usage", sa.Column("swapped_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.create_table(
        "usage_recompute",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("tier", sa.String(length=32), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["usage.request_id"], name=op.f("fk_usage_recompute_request_id_usage")),
        sa.PrimaryKeyConstraint("request_id", "tier", name=op.f("pk_usage_recompute")),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("update", "delete"):
            op.execute(SQLITE.format(verb=verb))
    else:
        for trigger in POSTGRES:
            op.execute(trigger)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
