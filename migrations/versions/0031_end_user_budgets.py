"""Budgets for each end user: a template, and a row made from it for each end user that a request names.

The new columns are nullable or have defaults, so that the version before can still create and charge budgets. That
version enforces a template as an ordinary budget, and never finds the budget of an end user.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("budgets", sa.Column("per_end_user", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("budgets", sa.Column("template_id", sa.String(length=64), nullable=True))
    op.add_column("budgets", sa.Column("end_user", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_budgets_template_id"), "budgets", ["template_id"], unique=False)
    op.create_index(
        "ix_budgets_templates",
        "budgets",
        ["per_end_user"],
        unique=False,
        # SQLite uses a partial index only if the query has the index's own expression.
        sqlite_where=sa.text("per_end_user = 1"),
        postgresql_where=sa.text("per_end_user"),
    )
    op.add_column("server_secret", sa.Column("end_user_key", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("a ledger's history goes forward only")
