"""Tables of the outputs of batches: the lease of each batch's worker, and the output of each line that has ended.

Part of `billing.tables`' metadata, with the same conventions. The ledger writes them in the transaction that settles a
line (`billing.ledger.outputs`). `batch_id` is no foreign key: billing does not know the gateway's table of batches.
"""

from __future__ import annotations

import sqlalchemy as sa

from billing.tables import metadata

# One row for each batch that has not ended. A gateway that claims the batch increments `epoch`.
output_leases = sa.Table(
    "output_leases",
    metadata,
    sa.Column("batch_id", sa.String(64), primary_key=True),
    sa.Column("gateway_id", sa.String(64), nullable=False),  # of the worker; "": no gateway has claimed it
    sa.Column("epoch", sa.BigInteger, nullable=False),
)

# At most one row for each line, until the output files of the batch are assembled.
line_outputs = sa.Table(
    "line_outputs",
    metadata,
    sa.Column("batch_id", sa.String(64), primary_key=True),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),  # from 1
    sa.Column("request_id", sa.String(64), nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),  # encrypted, see gateway.batches.sealing
    sa.Column("is_error", sa.Boolean, nullable=False),  # it belongs in the error file
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("code", sa.String(64)),  # of the error; null: none
)
# With this index, the lines of a batch, or of its last minute, are counted without reading their outputs.
sa.Index("ix_line_outputs_is_error", line_outputs.c.batch_id, line_outputs.c.is_error, line_outputs.c.created_at)
