"""Rows of batches, as their clients create, read, list and cancel them. A batch is looked up by tenant and id."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.ids import new_id
from billing.output_tables import line_outputs, output_leases
from billing.tables import usage
from gateway import errors
from gateway.batch_tables import batches
from gateway.config.batches_settings import BatchesSection
from gateway.file_tables import files
from gateway.files.rows import UPLOAD_PURPOSE, begin_use, hide_files, lock_tenant_key
from gateway.limits.quotas import Quota, quota_of

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
IDEMPOTENCY_S = 24 * 3600  # for which the creation with an Idempotency-Key is replayed
HOUR_S = 3600
CANCELLED_CODE = "batch_cancelled"
CANCELLED_MESSAGE = "This request was not executed, because its batch was cancelled."
CANCELLABLE = ("validating", "in_progress")


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One batch, with the columns of the table. Moments are microseconds UTC."""

    id: str
    tenant_id: str
    key_id: str
    dialect: str
    endpoint: str
    input_file_id: str
    status: str
    completion_window: str
    created_at: int
    deadline_at: int
    in_progress_at: int | None
    cancelling_at: int | None
    finalizing_at: int | None
    ended_at: int | None
    metadata: dict[str, str] | None
    output_expires_s: int | None
    output_file_id: str | None
    error_file_id: str | None
    lines: int
    succeeded: int | None
    failed: int | None
    unrun: int | None
    error_counts: dict[str, int] | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    cost_picos: int | None
    errors: list[dict[str, Any]] | None
    end_code: str | None
    end_message: str | None
    deleted_at: int | None


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch that a client requests. `window_hours`: from 1 to 24. `idempotency`: the Idempotency-Key and the
    fingerprint of the body."""

    tenant_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    window_hours: int
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None
    dialect: str = "openai"
    idempotency: tuple[str, str] | None = None


class BatchProgress(msgspec.Struct, frozen=True):
    """A batch with its counts and usage so far. `lines`: known so far, `succeeded` and `failed`: of these, ended."""

    row: BatchRow
    succeeded: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_picos: int


COLUMNS = [batches.c[name] for name in BatchRow.__struct_fields__]
_BILLED = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_picos")


def create_batch(connection: sa.Connection, new: NewBatch, section: BatchesSection) -> BatchRow:
    """Insert a batch that begins to use its input file. With `idempotency`, the batch that an earlier call created.
    Raises NotFound for an unknown input file, InvalidRequest for an output file, QuotaExceeded, IdempotencyMismatch."""
    lock_tenant_key(connection, new.tenant_id)  # one new batch of the tenant at a time
    now = database_now(connection)
    if (earlier := earlier_call(connection, new, now)) is not None:
        return earlier
    check_unended(connection, new.tenant_id, section)
    if (file := begin_use(connection, new.tenant_id, new.input_file_id)) is None:
        raise file_not_found(new.input_file_id)
    if file.purpose != UPLOAD_PURPOSE:
        message = f"The file has the purpose {file.purpose!r}; the input of a batch has {UPLOAD_PURPOSE!r}."
        raise errors.InvalidRequest(message, param="input_file_id")
    return insert_batch(connection, new, now, {"status": "validating", "lines": 0, "enqueued_tokens": 0})


def check_unended(connection: sa.Connection, tenant_id: str, section: BatchesSection) -> None:
    """Raises QuotaExceeded for a tenant that may have no further batch now. The count is exact under the lock of
    `lock_tenant_key`."""
    unended = sa.select(sa.func.count()).where(batches.c.tenant_id == tenant_id, batches.c.ended_at.is_(None))
    count = connection.execute(unended).scalar_one()
    quota = quota_of(connection, tenant_id, "batches", section.tenant_batches_max, "batches.tenant_batches_max")
    if count >= quota.value:
        raise errors.QuotaExceeded(
            f"The tenant has {count} batches that have not ended; the limit is {quota.value} ({quota.source}). Wait "
            "for their end, or cancel some.",
            errors.ReachedLimit("tenant_batches", quota.value),
        )


def insert_batch(connection: sa.Connection, new: NewBatch, now: int, state: dict[str, Any]) -> BatchRow:
    """Insert a batch without a worker. `state`: its further columns."""
    key, fingerprint = new.idempotency or (None, None)
    values = msgspec.structs.asdict(new) | {
        "id": new_id("batch"),
        "completion_window": f"{new.window_hours}h",
        "created_at": now,
        "deadline_at": now + new.window_hours * HOUR_S * SECOND,
        "idempotency_key": key,
        "fingerprint": fingerprint,
    }
    values |= state
    del values["window_hours"], values["idempotency"]
    connection.execute(sa.insert(batches).values(values))
    connection.execute(sa.insert(output_leases).values(batch_id=values["id"], gateway_id="", epoch=0))
    row = read_batch(connection, new.tenant_id, values["id"])
    assert row is not None
    return row


def file_not_found(file_id: str) -> errors.NotFound:
    """The same for an unknown file and another tenant's."""
    return errors.NotFound(f"No such file: {file_id[:128]!r}.", param="input_file_id")


def enqueued_tokens(connection: sa.Connection, tenant_id: str, beside: str = "") -> int:
    """The enqueued tokens of the tenant's batches that have not ended, without the batch `beside`."""
    own = (batches.c.tenant_id == tenant_id, batches.c.ended_at.is_(None), batches.c.id != beside)
    query = sa.select(sa.func.coalesce(sa.func.sum(batches.c.enqueued_tokens), 0)).where(*own)
    return int(connection.execute(query).scalar_one())


def tokens_quota(connection: sa.Connection, tenant_id: str, configured: int) -> Quota:
    """The enqueued tokens that a tenant may have. `configured`: of laneway.toml."""
    return quota_of(connection, tenant_id, "enqueued_tokens", configured, "batches.tenant_enqueued_tokens_max")


def tokens_exceeded(quota: Quota) -> str:
    """Why a tenant's batch is refused with which it would have too many enqueued tokens."""
    return (
        f"With this batch the tenant would have over {quota.value} enqueued tokens, the limit ({quota.source}). Tokens "
        "are estimated from the bytes of the bodies. Create the batch again when other batches have ended."
    )


def earlier_call(connection: sa.Connection, new: NewBatch, now: int) -> BatchRow | None:
    """The batch that an earlier call with the same Idempotency-Key created. Raises IdempotencyMismatch."""
    if new.idempotency is None:
        return None
    key, fingerprint = new.idempotency
    same_key = (batches.c.key_id == new.key_id, batches.c.idempotency_key == key)
    old = sa.update(batches).where(*same_key, batches.c.created_at < now - IDEMPOTENCY_S * SECOND)
    connection.execute(old.values(idempotency_key=None))
    row = connection.execute(sa.select(batches.c.id, batches.c.fingerprint).where(*same_key)).one_or_none()
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise errors.IdempotencyMismatch
    return read_batch(connection, new.tenant_id, row.id)


def has_earlier_call(connection: sa.Connection, key_id: str, idempotency_key: str) -> bool:
    """Whether an earlier call with this Idempotency-Key created a batch. Its fingerprint is not compared."""
    young = batches.c.created_at >= database_now(connection) - IDEMPOTENCY_S * SECOND
    query = sa.select(batches.c.id).where(
        batches.c.key_id == key_id, batches.c.idempotency_key == idempotency_key, young
    )
    return connection.execute(query).one_or_none() is not None


def read_batch(connection: sa.Connection, tenant_id: str, batch_id: str, dialect: str | None = None) -> BatchRow | None:
    """`dialect`: of the API that must have created it; None: either. None: unknown, another tenant's, another API's, or
    deleted."""
    if not BATCH_ID.fullmatch(batch_id):  # a database refuses some texts
        return None
    own = sa.select(*COLUMNS).where(
        batches.c.id == batch_id, batches.c.tenant_id == tenant_id, batches.c.deleted_at.is_(None)
    )
    if dialect is not None:
        own = own.where(batches.c.dialect == dialect)
    row = connection.execute(own).one_or_none()
    return None if row is None else batch_of(row)


def read_any_batch(connection: sa.Connection, batch_id: str) -> BatchRow | None:
    """A batch of any tenant, also a deleted one, for callers that check their actor's access themselves."""
    if not BATCH_ID.fullmatch(batch_id):
        return None
    row = connection.execute(sa.select(*COLUMNS).where(batches.c.id == batch_id)).one_or_none()
    return None if row is None else batch_of(row)


def batch_of(row: sa.Row[Any]) -> BatchRow:
    """Of a row with the columns of BatchRow."""
    return BatchRow(**{name: getattr(row, name) for name in BatchRow.__struct_fields__})


def list_batches(
    connection: sa.Connection, tenant_id: str, dialect: str, after: str | None, limit: int, *, newer: bool = False
) -> list[BatchRow] | None:
    """Up to `limit` batches, the newest first: the batches created before the batch `after`; with `newer`, the batches
    created after it, of which the oldest are returned. None: the tenant has no such batch."""
    query = sa.select(*COLUMNS).where(
        batches.c.tenant_id == tenant_id, batches.c.dialect == dialect, batches.c.deleted_at.is_(None)
    )
    own = sa.tuple_(batches.c.created_at, batches.c.id)
    if after is not None:
        if (cursor := read_batch(connection, tenant_id, after, dialect)) is None:
            return None
        position = sa.tuple_(sa.literal(cursor.created_at), sa.literal(cursor.id))
        query = query.where(own > position if newer else own < position)
    sort = sa.asc if newer else sa.desc
    ordered = query.order_by(sort(batches.c.created_at), sort(batches.c.id)).limit(limit)
    found = [batch_of(row) for row in connection.execute(ordered)]
    return found[::-1] if newer else found


def progress_of(connection: sa.Connection, rows: list[BatchRow]) -> list[BatchProgress]:
    """The progress of each batch, in the order of `rows`: for batches that have not ended, with the present counts and
    usage."""
    running = [row.id for row in rows if row.ended_at is None]
    counts = count_outputs(connection, running)
    billed = billed_usage(connection, running)
    found = []
    for row in rows:
        if row.ended_at is None:
            found.append(BatchProgress(row, *counts[row.id], *billed[row.id]))
        else:
            ended = (row.succeeded or 0, row.failed or 0, *(getattr(row, name) or 0 for name in _BILLED))
            found.append(BatchProgress(row, *ended))
    return found


def count_outputs(connection: sa.Connection, batch_ids: list[str]) -> dict[str, tuple[int, int]]:
    """The outputs of each batch so far: of lines that succeeded and that failed."""
    query = sa.select(line_outputs.c.batch_id, line_outputs.c.is_error, sa.func.count())
    grouped = query.where(line_outputs.c.batch_id.in_(batch_ids)).group_by(
        line_outputs.c.batch_id, line_outputs.c.is_error
    )
    found = {(batch_id, bool(is_error)): count for batch_id, is_error, count in connection.execute(grouped)}
    return {id_: (found.get((id_, False), 0), found.get((id_, True), 0)) for id_ in batch_ids}


def count_errors(connection: sa.Connection, batch_ids: list[str]) -> dict[str, dict[str, int]]:
    """The lines of each batch that have an error as their output so far, by its code."""
    query = sa.select(line_outputs.c.batch_id, line_outputs.c.code, sa.func.count())
    errors_of = query.where(line_outputs.c.batch_id.in_(batch_ids), line_outputs.c.is_error)
    found: dict[str, dict[str, int]] = {id_: {} for id_ in batch_ids}
    for batch_id, code, count in connection.execute(errors_of.group_by(line_outputs.c.batch_id, line_outputs.c.code)):
        found[batch_id][code or ""] = int(count)
    return found


def billed_usage(connection: sa.Connection, batch_ids: list[str]) -> dict[str, tuple[int, int, int, int]]:
    """The prompt, cached and completion tokens that the lines of each batch are billed so far, and their cost."""
    sums = [sa.func.coalesce(sa.func.sum(usage.c[name]), 0) for name in _BILLED]
    query = sa.select(usage.c.batch_id, *sums).where(usage.c.batch_id.in_(batch_ids)).group_by(usage.c.batch_id)
    found = {row[0]: tuple(int(value) for value in row[1:]) for row in connection.execute(query)}
    return {id_: found.get(id_, (0, 0, 0, 0)) for id_ in batch_ids}  # type: ignore[misc]


def cancel_batch(
    connection: sa.Connection, tenant_id: str, batch_id: str, dialect: str | None = None
) -> BatchRow | None:
    """Ask the worker to end the batch; its running lines are aborted. No effect on a batch that is being cancelled.
    `dialect` and None as in `read_batch`. Raises Conflict for a batch whose lines have all ended."""
    if (row := read_batch(connection, tenant_id, batch_id, dialect)) is None:
        return None
    values = {
        "status": "cancelling",
        "cancelling_at": database_now(connection),
        "end_code": CANCELLED_CODE,
        "end_message": CANCELLED_MESSAGE,
    }
    cancelled = sa.update(batches).where(batches.c.id == batch_id, batches.c.status.in_(CANCELLABLE)).values(values)
    if not connection.execute(cancelled).rowcount:
        row = read_batch(connection, tenant_id, batch_id)
        if row is not None and row.status not in ("cancelling", "cancelled"):
            why = "its lines have ended, and its files are being assembled" if row.ended_at is None else "it has ended"
            raise errors.Conflict(f"The batch has the status {row.status!r}: {why}.")
        return row
    return read_batch(connection, tenant_id, batch_id)


def delete_old_batches(connection: sa.Connection, before: int, limit: int) -> int:
    """Delete at most `limit` batches that ended before a moment, with their deliveries. A batch whose lines or files
    have rows is not deleted. Returns their number."""
    own_files = files.c.id.in_([batches.c.input_file_id, batches.c.output_file_id, batches.c.error_file_id])
    has_lines = sa.exists().where(output_leases.c.batch_id == batches.c.id)
    old = sa.select(batches.c.id).where(batches.c.ended_at < before, ~has_lines, ~sa.exists().where(own_files))
    oldest = old.order_by(batches.c.ended_at).limit(limit).with_for_update(skip_locked=True, of=batches)
    ids = list(connection.execute(oldest).scalars())
    if ids:  # the deliveries are deleted by the cascade of their foreign key
        connection.execute(sa.delete(batches).where(batches.c.id.in_(ids)))
    return len(ids)


def delete_batch(connection: sa.Connection, tenant_id: str, batch_id: str, dialect: str) -> bool:
    """Hide an ended batch and its files from the tenant. False: `read_batch` finds none. Raises Conflict for a batch
    that has not ended."""
    if (row := read_batch(connection, tenant_id, batch_id, dialect)) is None:
        return False
    if row.ended_at is None:
        raise errors.Conflict(f"The batch has the status {row.status!r}. Cancel it, and delete it once it has ended.")
    hide_files(connection, tenant_id, [id_ for id_ in (row.output_file_id, row.error_file_id) if id_ is not None])
    values = {"deleted_at": database_now(connection), "idempotency_key": None}
    connection.execute(sa.update(batches).where(batches.c.id == batch_id).values(values))
    return True
