"""Outputs of a batch's lines, recorded in the transaction that settles the line, under the lease of the batch's worker.

A batch has one worker at a time. The worker's lease is a row with an epoch; a gateway that claims the batch increments
the epoch. An output is recorded only while the lease has the epoch under which the line ran, and only once for each
line, so a worker that was taken for dead can neither add an output nor charge for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from billing.bulk import BulkInsert, Query, Row, among
from billing.ledger.messages import Ending, LineOutput, Settlement
from billing.output_tables import line_outputs, output_leases

_LOCK_LEASES = Query(
    sa.select(output_leases.c.batch_id, output_leases.c.epoch)
    .where(among(output_leases.c.batch_id, "batch_ids"))
    .order_by(output_leases.c.batch_id)
    .with_for_update(read=True)
)
_RECORDED = Query(
    sa.select(line_outputs.c.batch_id, line_outputs.c.line).where(
        among(line_outputs.c.batch_id, "batch_ids"), among(line_outputs.c.line, "lines")
    )
)
_INSERT_OUTPUTS = BulkInsert(line_outputs)


class LeaseLost(Exception):
    """Another gateway has claimed the batch, or the batch has ended."""


class OutputFence:
    """The outputs of one database transaction. Call `lock_leases` before hold rows are locked, then `admits` and
    `add_output` for each output, then `write`."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}  # of the leases, by batch
        self._recorded: set[tuple[str, int]] = set()  # lines that have an output
        self._rows: list[Row] = []

    def lock_leases(self, connection: sa.Connection, outputs: Sequence[LineOutput]) -> None:
        """No gateway can claim the batches of `outputs` until the transaction ends."""
        if not outputs:
            return
        named = {"batch_ids": sorted({output.batch_id for output in outputs})}
        self._epochs = {str(batch_id): int(epoch) for batch_id, epoch in _LOCK_LEASES.rows(connection, named)}
        lines = {"lines": [output.line for output in outputs]}
        self._recorded = {(str(batch_id), int(line)) for batch_id, line in _RECORDED.rows(connection, named | lines)}

    def admits(self, output: LineOutput) -> bool:
        """Whether the worker that made the output still has the lease, and the line has no output yet."""
        is_recorded = (output.batch_id, output.line) in self._recorded
        return self._epochs.get(output.batch_id) == output.epoch and not is_recorded

    def add_output(self, request_id: str, output: LineOutput, now: int) -> None:
        """Record it; `now` in microseconds UTC."""
        self._recorded.add((output.batch_id, output.line))
        self._rows.append((output.batch_id, output.line, request_id, output.sealed, output.is_error, now, output.code))

    def write(self, connection: sa.Connection) -> None:
        _INSERT_OUTPUTS.run(connection, self._rows)


def outputs_of(endings: Sequence[Ending]) -> list[LineOutput]:
    """The outputs of the settlements among these."""
    return [ending.output for ending in endings if isinstance(ending, Settlement) and ending.output is not None]


def record_unheld(connection: sa.Connection, outputs: Sequence[tuple[str, LineOutput]], now: int) -> list[bool]:
    """Record outputs of lines that ended without a hold to settle, each with its request id. Returns for each whether
    it was recorded; it was not if the worker has lost the lease."""
    fence = OutputFence()
    fence.lock_leases(connection, [output for _, output in outputs])
    recorded = []
    for request_id, output in outputs:
        recorded.append(fence.admits(output))
        if recorded[-1]:
            fence.add_output(request_id, output, now)
    fence.write(connection)
    return recorded


def lock_lease(connection: sa.Connection, batch_id: str, epoch: int) -> None:
    """Lock the lease of the batch until the transaction ends. Raises LeaseLost if its epoch is another one."""
    query = sa.select(output_leases.c.epoch).where(output_leases.c.batch_id == batch_id).with_for_update()
    if connection.execute(query).scalar_one_or_none() != epoch:
        raise LeaseLost(f"{batch_id} has another worker, or has ended")


def take_lease(connection: sa.Connection, batch_id: str, gateway_id: str, epoch: int) -> int | None:
    """Claim a batch whose lease has `epoch`. Returns the new epoch; None: another gateway has claimed it meanwhile."""
    leased = (output_leases.c.batch_id == batch_id, output_leases.c.epoch == epoch)
    row = sa.update(output_leases).where(*leased).values(gateway_id=gateway_id, epoch=epoch + 1)
    return epoch + 1 if connection.execute(row).rowcount else None
