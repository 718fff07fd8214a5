"""Tables of SLA reports. They share the metadata and the conventions of `billing.tables`."""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# Requests within their targets, by the UTC quarter-hour of finished_at: books/sla.py. The rows of all tenants together
# have NONE as their tenant.
SLA_COUNTS = (
    *("requests", "ttft_measured", "ttft_within", "itl_measured", "itl_within", "preemptions"),
    *("refused", "unanswered"),  # without a usage row
)
sla_quarters = sa.Table(
    "sla_quarters",
    metadata,
    sa.Column("tenant_id", sa.String(64), primary_key=True),
    sa.Column("quarter", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tier", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0")) for name in SLA_COUNTS),
    *(sa.Column(name, sa.LargeBinary) for name in ("ttft_sketch", "itl_sketch", "pause_sketch")),
    sa.Index("ix_sla_quarters_quarter", "quarter"),
)

# The table has one row, like rollup_cursor: the usage rows up to `sequence` are counted in sla_quarters.
sla_cursor = sa.Table(
    "sla_cursor",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("folded_at", sa.BigInteger, nullable=False),
)
