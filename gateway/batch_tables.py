"""Tables of batches: the batches of all tenants, the lines of unended batches, and deliveries to webhooks.

Part of `gateway.tables`, with the same conventions. The leases of workers and the outputs of lines are the ledger's
(`billing.output_tables`).
"""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),  # batch_…
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.String(64), nullable=False),  # that created it, and with which its lines run
    sa.Column("dialect", sa.String(16), nullable=False),  # of the API that created it: openai, anthropic
    sa.Column("endpoint", sa.String(64), nullable=False),
    sa.Column("input_file_id", sa.String(64), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("completion_window", sa.String(8), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("deadline_at", sa.BigInteger, nullable=False),
    sa.Column("in_progress_at", sa.BigInteger),
    sa.Column("cancelling_at", sa.BigInteger),
    sa.Column("finalizing_at", sa.BigInteger),
    sa.Column("ended_at", sa.BigInteger),  # null: it has not ended
    sa.Column("metadata", sa.JSON(none_as_null=True)),
    sa.Column("output_expires_s", sa.BigInteger),  # of its output files, after their creation; null: the default
    sa.Column(
        "output_file_id", sa.String(64)
    ),  # of the last assembly that began; the file exists once the batch has ended
    sa.Column("error_file_id", sa.String(64)),
    sa.Column("lines", sa.BigInteger, nullable=False),  # validated so far; once validated, all
    sa.Column("succeeded", sa.BigInteger),  # lines in the output file; null: it has not ended
    sa.Column("failed", sa.BigInteger),  # lines in the error file
    sa.Column("unrun", sa.BigInteger),  # of these, the lines without an output when the batch ended
    sa.Column("enqueued_tokens", sa.BigInteger, nullable=False),  # as estimated from the bytes of the bodies
    # Once it has ended: the tokens that its lines are billed, and their cost.
    sa.Column("prompt_tokens", sa.BigInteger),
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("completion_tokens", sa.BigInteger),
    sa.Column("cost_picos", sa.BigInteger),
    sa.Column("errors", sa.JSON(none_as_null=True)),  # list of code, message, param, line; null: none
    # Why its remaining lines do not run, once that is decided: the error of each of them.
    sa.Column("end_code", sa.String(64)),
    sa.Column("end_message", sa.String(500)),
    sa.Column("idempotency_key", sa.String(255)),  # null: none, or older than batches.rows.IDEMPOTENCY_S
    sa.Column("fingerprint", sa.String(64)),  # SHA-256 of the creating request's body, hex
    sa.Column("deleted_at", sa.BigInteger),  # hidden from the tenant; null: not deleted
    sa.Column("error_counts", sa.JSON(none_as_null=True)),  # lines of the error file by code; null: it has not ended
    sa.CheckConstraint(
        "status IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', "
        "'cancelled')",
        name="status",
    ),
)
sa.Index("ix_batches_tenant_id", batches.c.tenant_id, batches.c.created_at, batches.c.id)
BATCH_UNENDED = sa.text("ended_at IS NULL")
sa.Index("ix_batches_unended", batches.c.deadline_at, sqlite_where=BATCH_UNENDED, postgresql_where=BATCH_UNENDED)
BATCH_ENDED = sa.text("ended_at IS NOT NULL")  # read by rows.delete_old_batches
sa.Index("ix_batches_ended", batches.c.ended_at, sqlite_where=BATCH_ENDED, postgresql_where=BATCH_ENDED)
_IDEMPOTENT = sa.text("idempotency_key IS NOT NULL")
sa.Index(
    "uq_batches_idempotency_key",
    batches.c.key_id,
    batches.c.idempotency_key,
    unique=True,
    sqlite_where=_IDEMPOTENT,
    postgresql_where=_IDEMPOTENT,
)

batch_lines = sa.Table(
    "batch_lines",
    metadata,
    sa.Column("batch_id", sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),  # from 1, in the order of the file
    sa.Column("position", sa.BigInteger, nullable=False),  # in which lines run: by model, adapter and prefix
    sa.Column("file_offset", sa.BigInteger, nullable=False),  # bytes of the input file before the line
    sa.Column("length", sa.BigInteger, nullable=False),  # bytes of the line without its end
    sa.Column("model", sa.String(200), nullable=False),  # or version of an adapter, for which the line's name stood
    sa.Column("attempts", sa.BigInteger, nullable=False),  # that an engine began and that failed
)
sa.Index("uq_batch_lines_position", batch_lines.c.batch_id, batch_lines.c.position, unique=True)

# The outbox of batches that have ended, as billing.tables.alert_deliveries is of alerts.
batch_deliveries = sa.Table(
    "batch_deliveries",
    metadata,
    sa.Column("batch_id", sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("webhook_id", sa.ForeignKey("webhooks.id"), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_at", sa.BigInteger),  # while pending
    sa.Column("delivered_at", sa.BigInteger),
    sa.Column("last_error", sa.String(200)),
    sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
)
sa.Index(
    "ix_batch_deliveries_pending",
    batch_deliveries.c.next_attempt_at,
    sqlite_where=batch_deliveries.c.state == "pending",
    postgresql_where=batch_deliveries.c.state == "pending",
)
