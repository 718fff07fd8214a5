"""Run by alembic: the revisions, on the connection that `upgrade` opened. This module knows the tables only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

import gateway.tables  # noqa: F401 - the import adds its tables to the metadata
from billing.tables import metadata

connection: sa.Connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
with context.begin_transaction():
    context.run_migrations()
