"""Tables of the requests that were refused or failed: a row for each, within limits, and their exact counts.

Part of `gateway.tables`, with the same conventions. `tenant_id` is no foreign key, as in `usage`.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# A request of a known key that got an error. If it also has a hold, its row in `holds` is the request, and this row
# has the error that its caller got.
request_errors = sa.Table(
    "request_errors",
    metadata,
    sa.Column("request_id", sa.String(64), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),  # when it ended
    sa.Column("duration_s", sa.Double, nullable=False),  # from its arrival until then
    sa.Column("tenant_id", sa.String(64), nullable=False),
    sa.Column("project_id", sa.String(64)),
    sa.Column("key_id", sa.String(64), nullable=False),
    sa.Column("model", sa.String(200)),  # of the request; null: not known yet, or no possible name
    sa.Column("tier", sa.String(32), nullable=False),  # of the request; the key's before the body is read
    sa.Column("route", sa.String(100), nullable=False),
    sa.Column("outcome", sa.String(16), nullable=False),  # refused, failed
    sa.Column("status", sa.Integer, nullable=False),  # of the error: in a stream, HTTP said 200 before
    sa.Column("code", sa.String(64), nullable=False),
    sa.Column("param", sa.String(64)),  # the field at fault
    sa.Column("limit_name", sa.String(64)),  # the limit that refused it
    sa.Column("limit_value", sa.BigInteger),
    sa.Column("message", sa.String(500)),  # null: it can quote the request
    sa.Column("retry_after_s", sa.Integer),
    sa.Index("ix_request_errors_at", "at", "request_id"),
    sa.Index("ix_request_errors_tenant_id_at", "tenant_id", "at"),
    sa.Index("ix_request_errors_key_id_at", "key_id", "at"),
)

# All requests of known keys that got an error, also those without a row above, by UTC quarter-hour. Each gateway writes
# only its own rows, each as a whole.
request_error_counts = sa.Table(
    "request_error_counts",
    metadata,
    sa.Column("quarter", sa.BigInteger, primary_key=True, autoincrement=False),  # its beginning
    sa.Column("tenant_id", sa.String(64), primary_key=True),
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("outcome", sa.String(16), primary_key=True),
    sa.Column("code", sa.String(64), primary_key=True),
    sa.Column("gateway_id", sa.String(64), primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("settled", sa.BigInteger, nullable=False),  # of these, requests with usage: they failed after a token
    sa.Index("ix_request_error_counts_tenant_id_quarter", "tenant_id", "quarter"),
)
