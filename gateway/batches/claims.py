"""Rows of batches as their worker changes them. Each change is made under the worker's lease: it raises LeaseLost once
another gateway has claimed the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.accounts.tenants import OnBudget
from billing.bulk import BulkInsert
from billing.clock import database_now
from billing.ledger.leases import is_live
from billing.ledger.messages import LineOutput
from billing.ledger.outputs import lock_lease, take_lease
from billing.output_tables import line_outputs, output_leases
from billing.tables import holds, leases, tenants
from gateway.batch_tables import batch_lines, batches
from gateway.batches.events import insert_deliveries
from gateway.batches.rows import (
    COLUMNS,
    BatchRow,
    batch_of,
    billed_usage,
    count_errors,
    count_outputs,
    enqueued_tokens,
    tokens_exceeded,
    tokens_quota,
)
from gateway.batches.validation import BatchError, ValidLine
from gateway.files.contents import WrittenFile
from gateway.files.rows import NewFile, end_use, insert_file, lock_quota
from gateway.stored.texts import TextKey, TextUnreadable

CLAIMABLE_READ_MAX = 50  # batches without a living worker that are read at once
LINES_INSERTED_AT_ONCE = 2000
ROWS_DELETED_AT_ONCE = 200  # an output may have megabytes
EXPIRED_CODE = "batch_expired"
UNREADABLE_MESSAGE = (
    "The contents of the batch cannot be decrypted: they were deleted with the tenant's key, or they are damaged."
)
EXPIRED_MESSAGE = "This request could not be executed before the completion window expired."

_INSERT_LINES = BulkInsert(batch_lines)


class LineTask(msgspec.Struct):
    """A line that has no output yet. `attempts`: that an engine began and that failed, under any lease."""

    line: int
    offset: int
    length: int
    target: str
    attempts: int


class ClaimState(msgspec.Struct, frozen=True):
    """A claimed batch as its row has it now."""

    status: str
    epoch: int
    deadline_at: int


class Claimable(msgspec.Struct, frozen=True):
    """A batch without a worker. `epoch`: of its lease. `rank`: among its tenant's claimable batches by their deadline,
    from 1."""

    batch_id: str
    epoch: int
    tenant_id: str
    rank: int


class LineState(msgspec.Struct, frozen=True):
    """`epoch`: of the lease of the line's batch. `is_error`: of the line's output; None: it has no output."""

    epoch: int | None
    is_error: bool | None


class WorkerView(msgspec.Struct, frozen=True):
    """What a worker reads at each poll: the database's clock (microseconds UTC), its claims, and claimable batches by
    their rank, then by their deadline. `has_ended_rows`: lines of a batch that has ended have rows."""

    now: int
    states: dict[str, ClaimState]
    claimable: list[Claimable]
    has_ended_rows: bool


class DamagedOutput(msgspec.Struct, frozen=True):
    """An output that cannot be decrypted. `offset`, `length`: of its line in the input file."""

    line: int
    offset: int
    length: int
    request_id: str
    is_error: bool


class AssemblyPlan(msgspec.Struct, frozen=True):
    """The files of a batch, decided before they are written. An id is None for a file that would have no line."""

    output_file_id: str | None
    error_file_id: str | None
    succeeded: int
    failed: int
    unrun: int  # of `failed`
    code: str  # and `message`: the error of each line that did not run
    message: str
    status: str  # of the batch at its end


def worker_view(connection: sa.Connection, claimed: Sequence[str], gateway_id: str) -> WorkerView:
    """`claimed`: the batches that the worker of `gateway_id` has. This gateway's lease of any other batch was retained
    by a claim or a release whose answer was lost, so the batch is claimable."""
    now = database_now(connection)
    owned = output_leases.join(batches, batches.c.id == output_leases.c.batch_id)
    columns = (output_leases.c.batch_id, output_leases.c.epoch)
    mine = (
        sa.select(*columns, batches.c.status, batches.c.deadline_at)
        .select_from(owned)
        .where(output_leases.c.batch_id.in_(claimed))
    )
    states = {row.batch_id: ClaimState(row.status, row.epoch, row.deadline_at) for row in connection.execute(mine)}
    joined = owned.outerjoin(leases, leases.c.gateway_id == output_leases.c.gateway_id)
    rank = sa.func.row_number().over(partition_by=batches.c.tenant_id, order_by=batches.c.deadline_at).label("rank")
    query = sa.select(
        *columns,
        batches.c.tenant_id,
        rank,
        output_leases.c.gateway_id,
        leases.c.renewed_at,
        leases.c.expires_at,
    ).select_from(joined)
    query = query.where(batches.c.ended_at.is_(None), output_leases.c.batch_id.not_in(claimed))
    own = output_leases.c.gateway_id == gateway_id
    dead = sa.or_(own, leases.c.gateway_id.is_(None), leases.c.expires_at <= now, leases.c.renewed_at > now)
    rows = connection.execute(query.where(dead).order_by(rank, batches.c.deadline_at).limit(CLAIMABLE_READ_MAX))
    claimable = [
        Claimable(row.batch_id, row.epoch, row.tenant_id, row.rank)
        for row in rows
        if row.gateway_id == gateway_id or row.renewed_at is None or not is_live(row.renewed_at, row.expires_at, now)
    ]
    ended = sa.select(output_leases.c.batch_id).select_from(owned).where(batches.c.ended_at.is_not(None)).limit(1)
    return WorkerView(now, states, claimable, connection.execute(ended).one_or_none() is not None)


def claim_batch(connection: sa.Connection, batch_id: str, gateway_id: str, epoch: int) -> tuple[BatchRow, int] | None:
    """The batch and the epoch of the new lease; None if another gateway has claimed the batch, or it has ended."""
    new_epoch = take_lease(connection, batch_id, gateway_id, epoch)
    row = connection.execute(sa.select(*COLUMNS).where(batches.c.id == batch_id)).one_or_none()
    if new_epoch is None or row is None or row.ended_at is not None:
        return None
    return batch_of(row), new_epoch


def release_batch(connection: sa.Connection, batch_id: str, epoch: int) -> None:
    """Let another gateway, or this one, claim the batch at once."""
    lock_lease(connection, batch_id, epoch)
    connection.execute(sa.update(output_leases).where(output_leases.c.batch_id == batch_id).values(gateway_id=""))


def budget_policy(connection: sa.Connection, tenant_id: str, default: OnBudget) -> OnBudget:
    """The tenant's setting for lines that a budget does not cover."""
    own = connection.execute(sa.select(tenants.c.on_budget).where(tenants.c.id == tenant_id)).scalar_one()
    return default if own is None else msgspec.convert(own, OnBudget)


def has_open_holds(connection: sa.Connection, tenant_id: str, tier: str) -> bool:
    """Whether a request of the tenant at the tier has a hold that has not ended, at any gateway."""
    query = sa.select(holds.c.request_id).where(holds.c.state == "held", holds.c.tenant_id == tenant_id)
    return connection.execute(query.where(holds.c.tier == tier).limit(1)).one_or_none() is not None


def tenant_status(connection: sa.Connection, tenant_id: str) -> str:
    return str(connection.execute(sa.select(tenants.c.status).where(tenants.c.id == tenant_id)).scalar_one())


# ---- validation


def restart_validation(connection: sa.Connection, batch_id: str, epoch: int) -> None:
    """Delete the lines that an earlier worker inserted before it had validated all."""
    lock_lease(connection, batch_id, epoch)
    connection.execute(sa.delete(batch_lines).where(batch_lines.c.batch_id == batch_id))


def note_progress(connection: sa.Connection, batch_id: str, epoch: int, lines: int) -> str:
    """Record the number of lines validated so far. Returns the batch's status."""
    lock_lease(connection, batch_id, epoch)
    connection.execute(sa.update(batches).where(batches.c.id == batch_id).values(lines=lines))
    return str(connection.execute(sa.select(batches.c.status).where(batches.c.id == batch_id)).scalar_one())


def insert_lines(
    connection: sa.Connection, batch_id: str, epoch: int, first: int, lines: Sequence[tuple[ValidLine, str]]
) -> None:
    """Insert lines with their targets; `first`: the position of the first of them."""
    lock_lease(connection, batch_id, epoch)
    rows = [
        (batch_id, line.line, first + index, line.offset, line.length, target, 0)
        for index, (line, target) in enumerate(lines)
    ]
    _INSERT_LINES.run(connection, rows)


def begin_run(
    connection: sa.Connection, row: BatchRow, epoch: int, key: TextKey, lines: int, tokens: int, tokens_max: int
) -> BatchError | None:
    """End the validation. Returns the error of a batch with which its tenant would have too many enqueued tokens; then
    nothing is changed. `tokens_max`: the limit of a tenant without its own limit."""
    lock_lease(connection, row.id, epoch)
    lock_quota(connection, key)  # one batch of the tenant at a time
    quota = tokens_quota(connection, row.tenant_id, tokens_max)
    if enqueued_tokens(connection, row.tenant_id, beside=row.id) + tokens > quota.value:
        return BatchError("token_limit_exceeded", tokens_exceeded(quota))
    values = {"lines": lines, "enqueued_tokens": tokens}
    connection.execute(sa.update(batches).where(batches.c.id == row.id).values(values))
    started = sa.update(batches).where(batches.c.id == row.id, batches.c.status == "validating")
    connection.execute(started.values(status="in_progress", in_progress_at=database_now(connection)))
    return None


def fail_batch(connection: sa.Connection, row: BatchRow, epoch: int, lines: int, found: Sequence[BatchError]) -> None:
    """End a batch whose input file is not valid. None of its lines runs."""
    lock_lease(connection, row.id, epoch)
    _end(
        connection,
        row,
        {"status": "failed", "lines": lines, "errors": msgspec.to_builtins(found)},
        failed=0,
        succeeded=0,
    )


# ---- the run


def next_lines(
    connection: sa.Connection, batch_id: str, target: str, after: int, limit: int
) -> tuple[list[LineTask], int]:
    """Up to `limit` lines of a target without an output, in their order after the position `after`; and the position
    of the last of them."""
    lines, has_output = (
        batch_lines.c,
        sa.exists().where(line_outputs.c.batch_id == batch_lines.c.batch_id, line_outputs.c.line == batch_lines.c.line),
    )
    query = sa.select(lines.line, lines.file_offset, lines.length, lines.model, lines.attempts, lines.position)
    query = query.where(lines.batch_id == batch_id, lines.model == target, lines.position > after, ~has_output)
    rows = connection.execute(query.order_by(lines.position).limit(limit)).all()
    return [LineTask(*row[:-1]) for row in rows], rows[-1].position if rows else after


def targets_of(connection: sa.Connection, batch_id: str) -> list[str]:
    """The models and versions of adapters that the lines of a batch need, in the order of the lines."""
    query = sa.select(batch_lines.c.model).where(batch_lines.c.batch_id == batch_id).group_by(batch_lines.c.model)
    return list(connection.execute(query.order_by(sa.func.min(batch_lines.c.position))).scalars())


def line_state(connection: sa.Connection, batch_id: str, line: int) -> LineState:
    """The epoch of the batch's lease now, and whether the line has its output."""
    epoch = sa.select(output_leases.c.epoch).where(output_leases.c.batch_id == batch_id)
    output = sa.select(line_outputs.c.is_error).where(line_outputs.c.batch_id == batch_id, line_outputs.c.line == line)
    return LineState(connection.execute(epoch).scalar_one_or_none(), connection.execute(output).scalar_one_or_none())


def note_attempt(connection: sa.Connection, batch_id: str, epoch: int, line: int) -> None:
    lock_lease(connection, batch_id, epoch)
    row = sa.update(batch_lines).where(batch_lines.c.batch_id == batch_id, batch_lines.c.line == line)
    connection.execute(row.values(attempts=batch_lines.c.attempts + 1))


def decide_end(connection: sa.Connection, batch_id: str, epoch: int, code: str, message: str, *, listed: bool) -> None:
    """Record why the remaining lines do not run. `listed`: the batch lists it, since its client did not cause it."""
    lock_lease(connection, batch_id, epoch)
    values: dict[str, Any] = {"end_code": code, "end_message": message}
    if listed:
        values["errors"] = msgspec.to_builtins([BatchError(code, message)])
    undecided = (batches.c.id == batch_id, batches.c.end_code.is_(None))
    connection.execute(sa.update(batches).where(*undecided).values(values))


# ---- the end


def plan_assembly(
    connection: sa.Connection, batch_id: str, epoch: int, output_file_id: str, error_file_id: str
) -> AssemblyPlan:
    """Decide the files of a batch whose lines do not run any more. The ids are of this lease only, so a worker that has
    lost its lease never replaces the content of a later worker's file."""
    lock_lease(connection, batch_id, epoch)
    row = batch_of(connection.execute(sa.select(*COLUMNS).where(batches.c.id == batch_id).with_for_update()).one())
    succeeded, failed = count_outputs(connection, [batch_id])[batch_id]
    query = sa.select(sa.func.count()).where(batch_lines.c.batch_id == batch_id)
    unrun = int(connection.execute(query).scalar_one()) - succeeded - failed
    is_cut = unrun > 0 or row.in_progress_at is None  # before the end of the validation not all lines are known
    is_cancelled = row.status == "cancelling" or (row.end_code not in (None, EXPIRED_CODE) and is_cut)
    plan = AssemblyPlan(
        output_file_id=output_file_id if succeeded else None,
        error_file_id=error_file_id if failed + unrun else None,
        succeeded=succeeded,
        failed=failed + unrun,
        unrun=unrun,
        code=row.end_code or EXPIRED_CODE,
        message=row.end_message or EXPIRED_MESSAGE,
        status="cancelled" if is_cancelled else "expired" if is_cut else "completed",
    )
    values: dict[str, Any] = {"output_file_id": plan.output_file_id, "error_file_id": plan.error_file_id}
    if row.status != "cancelling":
        values["status"] = "finalizing"
    if row.finalizing_at is None:
        values["finalizing_at"] = database_now(connection)
    connection.execute(sa.update(batches).where(batches.c.id == batch_id).values(values))
    return plan


def read_damaged(connection: sa.Connection, batch_id: str, lines: Sequence[int]) -> list[DamagedOutput]:
    """The outputs of these lines, without their bytes."""
    outputs, inputs = line_outputs.c, batch_lines.c
    columns = (outputs.line, inputs.file_offset, inputs.length, outputs.request_id, outputs.is_error)
    same = (inputs.batch_id == outputs.batch_id, inputs.line == outputs.line)
    query = sa.select(*columns).join(batch_lines, sa.and_(*same))
    some = query.where(outputs.batch_id == batch_id, outputs.line.in_(lines)).order_by(outputs.line)
    return [DamagedOutput(*row) for row in connection.execute(some)]


def replace_outputs(
    connection: sa.Connection, batch_id: str, epoch: int, key: TextKey, outputs: Sequence[LineOutput]
) -> None:
    """Replace outputs that cannot be decrypted by errors. Raises LeaseLost; TextUnreadable if the key of the outputs
    was deleted meanwhile."""
    lock_lease(connection, batch_id, epoch)
    if not lock_quota(connection, key):
        raise TextUnreadable("the key of the tenant was deleted")
    for output in outputs:
        row = sa.update(line_outputs).where(line_outputs.c.batch_id == batch_id, line_outputs.c.line == output.line)
        connection.execute(row.values(sealed=output.sealed, is_error=output.is_error, code=output.code))


def end_batch(
    connection: sa.Connection,
    row: BatchRow,
    epoch: int,
    plan: AssemblyPlan,
    key: TextKey,
    written: Sequence[tuple[NewFile, WrittenFile]],
) -> None:
    """Insert the rows of the files and end the batch. Raises LeaseLost; TextUnreadable if the key of the files was
    deleted meanwhile."""
    lock_lease(connection, row.id, epoch)
    if not lock_quota(connection, key):
        raise TextUnreadable("the key of the tenant was deleted")
    for new, content in written:
        insert_file(connection, new, key, content)
    counts = count_errors(connection, [row.id])[row.id]
    if plan.unrun:
        counts[plan.code] = counts.get(plan.code, 0) + plan.unrun
    values = {"status": plan.status, "unrun": plan.unrun, "error_counts": counts}
    _end(connection, row, values, succeeded=plan.succeeded, failed=plan.failed)


def end_unreadable(connection: sa.Connection, row: BatchRow, epoch: int) -> None:
    """End a batch whose texts cannot be decrypted any more."""
    lock_lease(connection, row.id, epoch)
    found = [BatchError("content_unavailable", UNREADABLE_MESSAGE)]
    values = {"status": "failed", "errors": msgspec.to_builtins(found), "output_file_id": None, "error_file_id": None}
    _end(connection, row, values, succeeded=0, failed=0)


def _end(connection: sa.Connection, row: BatchRow, values: dict[str, Any], *, succeeded: int, failed: int) -> None:
    end_use(connection, row.tenant_id, row.input_file_id)
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_picos")
    billed = dict(zip(names, billed_usage(connection, [row.id])[row.id], strict=True))
    now = database_now(connection)
    counts = {"succeeded": succeeded, "failed": failed, "ended_at": now}
    connection.execute(sa.update(batches).where(batches.c.id == row.id).values(values | billed | counts))
    insert_deliveries(connection, row.id, row.tenant_id, now)
    # The lease remains, without a worker, until the rows of the lines are deleted. No output is recorded under it.
    ended = sa.update(output_leases).where(output_leases.c.batch_id == row.id)
    connection.execute(ended.values(gateway_id="", epoch=output_leases.c.epoch + 1))


def delete_ended_rows(connection: sa.Connection) -> int:
    """Delete up to ROWS_DELETED_AT_ONCE outputs, and as many lines, of a batch that has ended, and its lease with the
    last of them. Returns the number of rows; 0: no ended batch has rows."""
    ended = sa.select(output_leases.c.batch_id).join(batches, batches.c.id == output_leases.c.batch_id)
    batch_id = connection.execute(ended.where(batches.c.ended_at.is_not(None)).limit(1)).scalar_one_or_none()
    if batch_id is None:
        return 0
    deleted = 0
    for table in (line_outputs, batch_lines):
        some = sa.select(table.c.line).where(table.c.batch_id == batch_id).limit(ROWS_DELETED_AT_ONCE)
        rows = sa.delete(table).where(table.c.batch_id == batch_id, table.c.line.in_(some))
        deleted += connection.execute(rows).rowcount
    if not deleted:
        deleted += connection.execute(sa.delete(output_leases).where(output_leases.c.batch_id == batch_id)).rowcount
    return deleted
