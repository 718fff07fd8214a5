"""Tokens by engine process: of settled requests, of checkpoints and of settlements that were too late, and their
comparison with the engines' own counts.

All new columns are nullable, so that the version before can still write to these tables. Its rows name no engine.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

SQLITE = """
CREATE TRIGGER usage_attempts_no_{verb} BEFORE {verb} ON usage_attempts
BEGIN SELECT RAISE(ABORT, 'usage_attempts is append-only'); END
"""
# Revision 0001 creates the function.
POSTGRES = (
    """
CREATE TRIGGER usage_attempts_append_only BEFORE UPDATE OR DELETE ON usage_attempts
FOR EACH ROW EXECUTE FUNCTION laneway_append_only()
""",
    """
CREATE TRIGGER usage_attempts_no_truncate BEFORE TRUNCATE ON usage_attempts
FOR EACH STATEMENT EXECUTE FUNCTION laneway_append_only()
""",
)


def upgrade() -> None:
    op.add_column("usage", sa.Column("engine_epoch", sa.String(length=64), nullable=True))
    op.add_column("checkpoints", sa.Column("engines", sa.Text(), nullable=True))
    op.add_column("reconciliations", sa.Column("engine_books", sa.Text(), nullable=True))
    op.create_table(
        "usage_attempts",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.String(length=64), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["usage.request_id"], name=op.f("fk_usage_attempts_request_id_usage")),
        sa.PrimaryKeyConstraint("request_id", "epoch", name=op.f("pk_usage_attempts")),
    )
    op.create_table(
        "lost_attempts",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.String(length=64), nullable=False),
        sa.Column("lost_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["request_id"], ["holds.request_id"], name=op.f("fk_lost_attempts_request_id_holds")),
        sa.PrimaryKeyConstraint("request_id", "epoch", name=op.f("pk_lost_attempts")),
    )
    op.create_table(
        "engine_ledger",
        sa.Column("epoch", sa.String(length=64), nullable=False),
        sa.Column("made_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_engine_ledger")),
    )
    counts = (
        "made_tokens",
        "lost_tokens",
        "reclaimed_tokens",
        "settled_before",
        "settled_after",
        "late_before",
        "late_after",
        "open_tokens",
        "expired_tokens",
    )
    op.create_table(
        "engine_readings",
        sa.Column("epoch", sa.String(length=64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in counts),
        sa.Column("unnamed_tokens", sa.BigInteger(), nullable=True),
        sa.Column("quiet", sa.Boolean(), nullable=False),
        sa.Column("read_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("epoch", name=op.f("pk_engine_readings")),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("update", "delete"):
            op.execute(SQLITE.format(verb=verb))
    else:
        for trigger in POSTGRES:
            op.execute(trigger)


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
