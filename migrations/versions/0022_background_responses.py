"""Responses in the background: their events, and checkpoints of the tokens that can already be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")


def upgrade() -> None:
    with op.batch_alter_table("responses") as responses:
        responses.add_column(sa.Column("background", sa.Boolean(), nullable=False, server_default=sa.false()))
        responses.add_column(sa.Column("cancel_requested", sa.Boolean(), nullable=False, server_default=sa.false()))
        responses.add_column(sa.Column("events_until", sa.BigInteger(), nullable=True))
        responses.drop_constraint(op.f("ck_responses_status"), type_="check")
        statuses = ", ".join(f"'{status}'" for status in STATUSES)
        responses.create_check_constraint(op.f("ck_responses_status"), f"status IN ({statuses})")
    unended = sa.text("status IN ('queued', 'in_progress')")
    op.create_index("ix_responses_unended", "responses", ["gateway_id"], sqlite_where=unended, postgresql_where=unended)
    has_events = sa.text("events_until IS NOT NULL")
    op.create_index(
        "ix_responses_events_until",
        "responses",
        ["events_until"],
        sqlite_where=has_events,
        postgresql_where=has_events,
    )
    op.create_table(
        "response_events",
        sa.Column("response_id", sa.String(length=64), nullable=False),
        sa.Column("first_number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_number", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name=op.f("fk_response_events_response_id_responses"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("response_id", "first_number", name=op.f("pk_response_events")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_checkpoints")),
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
