"""Sums of usage by day. They share the metadata and the conventions of `billing.tables`."""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata, rolled_up_by, summed_columns

# Sums of usage by the UTC day of finished_at, of the rows up to `day_cursor.sequence`: books/day_rollups.py.
usage_days = sa.Table(
    "usage_days",
    metadata,
    *rolled_up_by("tenant_id"),
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
    *rolled_up_by("key_id", "model", "adapter", "tier", "price_version_id", "project_id"),
    *summed_columns(),
    sa.Index("ix_usage_days_day", "day"),
)

# The table has one row, like rollup_cursor: the usage rows up to `sequence` are counted in usage_days.
day_cursor = sa.Table(
    "day_cursor",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("folded_at", sa.BigInteger, nullable=False),
)
