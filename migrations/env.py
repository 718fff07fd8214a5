"""What alembic runs: the revisions, over the connection that `upgrade` opened. Knows the tables and nothing else."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

import gateway.tables  # noqa: F401 - its tables join the metadata when it is imported
from billing.tables import metadata

connection: sa.Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
