"""Tables beside `gateway.tables`, which imports this module: the answers of administrative writes that have an
Idempotency-Key. They have the same conventions.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# One row for each administrative write with an Idempotency-Key, made in the write's own transaction.
write_replays = sa.Table(
    "write_replays",
    metadata,
    sa.Column("actor_id", sa.String(64), primary_key=True),  # the key or the person that wrote
    sa.Column("name", sa.String(255), primary_key=True),  # the Idempotency-Key
    sa.Column("fingerprint", sa.String(64), nullable=False),  # SHA-256 of method, path and body, hex
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("tenant_id", sa.String(64), nullable=True),  # of the written object; null: the operator's
    sa.Column("written_at", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.LargeBinary, nullable=True),  # encrypted; null: not stored yet, or never
)
sa.Index("ix_write_replays_written_at", write_replays.c.written_at)
