"""How batches of tenants and their files are listed: times in Unix seconds, money in picos. They contain no text of
requests and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import sqlalchemy as sa

from billing.clock import SECOND, database_now
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.tables import tenants
from gateway.admin.writes import Actor
from gateway.batch_tables import batches
from gateway.batches.activity import BatchActivity
from gateway.batches.progress_cache import ProgressCache
from gateway.batches.rows import COLUMNS, BatchProgress, BatchRow, batch_of
from gateway.file_tables import files
from gateway.files.rows import OwnedFile, owned_file, visible_names, visible_to_tenants

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
FilePurpose = Literal["batch", "batch_output"]
_BATCH_LIST = ListColumns(
    {
        "created_at": batches.c.created_at,
        "deadline_at": batches.c.deadline_at,
        "status": batches.c.status,
        "lines": batches.c.lines,
    },
    batches.c.id,
    (batches.c.id, batches.c.input_file_id, batches.c.output_file_id, batches.c.error_file_id),
)
_FILE_LIST = ListColumns(
    {"created_at": files.c.created_at, "filename": files.c.filename, "bytes": files.c.bytes},
    files.c.id,
    (files.c.id, files.c.filename),
)
_OF_ROW = (
    *("id", "tenant_id", "key_id", "dialect", "endpoint", "status", "completion_window", "created_at", "deadline_at"),
    *("in_progress_at", "cancelling_at", "finalizing_at", "ended_at", "lines", "unrun", "input_file_id"),
)
_MOMENTS = ("created_at", "deadline_at", "in_progress_at", "cancelling_at", "finalizing_at", "ended_at")


class BatchProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed or ended early. `message` null: it can quote the input file, which only the batch's tenant may
    read. `line`: of the input file, from 1."""

    code: str
    message: str | None
    param: str | None
    line: int | None


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch with its progress. `lines`: known so far; `succeeded` and `failed`: of these, ended; `unrun`: of
    `failed`, without an output when the batch ended. `errors`: failed lines by code. `lines_per_s`: over the last
    minute, and `expected_end_at`: at this rate; null without one. Tokens and cost: as billed so far. The output
    and error file exist once the batch has ended. `filenames`: of its files that are neither deleted nor expired, by
    their ids. `metadata`: for the tenant's own people; null to operators."""

    id: str
    tenant_id: str
    key_id: str
    dialect: Literal["openai", "anthropic"]
    endpoint: str
    status: BatchStatus
    completion_window: str
    created_at: int
    deadline_at: int
    in_progress_at: int | None
    cancelling_at: int | None
    finalizing_at: int | None
    ended_at: int | None
    lines: int
    succeeded: int
    failed: int
    unrun: int | None
    errors: dict[str, int]
    lines_per_s: float
    expected_end_at: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_picos: int
    currency: str
    problems: list[BatchProblem]
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    filenames: dict[str, str]
    metadata: dict[str, str] | None
    deleted: bool

    @classmethod
    def of(
        cls,
        progress: BatchProgress,
        activity: BatchActivity,
        currency: str,
        filenames: Mapping[str, str],
        actor: Actor,
    ) -> BatchView:
        row = progress.row
        fields = {name: getattr(row, name) for name in _OF_ROW}
        fields |= {name: getattr(progress, name) for name in BatchProgress.__struct_fields__ if name != "row"}
        for name in _MOMENTS:
            fields[name] = _seconds(fields[name])
        has_files = row.ended_at is not None
        return cls(
            **fields
            | {
                "output_file_id": row.output_file_id if has_files else None,
                "error_file_id": row.error_file_id if has_files else None,
            },
            errors=activity.errors,
            lines_per_s=round(activity.lines_per_s, 3),
            expected_end_at=_seconds(activity.expected_end_at),
            currency=currency,
            problems=_problems(row, actor),
            filenames={id_: filenames[id_] for id_ in _file_ids(row) if id_ in filenames},
            metadata=row.metadata if actor.tenant_id == row.tenant_id else None,
            deleted=row.deleted_at is not None,
        )


def _file_ids(row: BatchRow) -> list[str]:
    """The ids of the batch's files that its tenant may see; a message batch has no input file that its tenant
    uploaded."""
    input_id = row.input_file_id if row.dialect == "openai" else None
    return [id_ for id_ in (input_id, row.output_file_id, row.error_file_id) if id_ is not None]


def _problems(row: BatchRow, actor: Actor) -> list[BatchProblem]:
    found = []
    for error in row.errors or []:
        is_shown = error.get("line") is None or actor.tenant_id == row.tenant_id
        message = error["message"] if is_shown else None
        found.append(
            BatchProblem(code=error["code"], message=message, param=error.get("param"), line=error.get("line"))
        )
    return found


def batch_views(
    connection: sa.Connection, found: list[BatchRow], actor: Actor, cache: ProgressCache
) -> list[BatchView]:
    """The views of these batches; the progress of batches that have not ended is read through `cache`."""
    read = cache.read(connection, found)
    ids = {row.tenant_id for row in found}
    query = sa.select(tenants.c.id, tenants.c.currency).where(tenants.c.id.in_(ids))
    currencies = {str(id_): str(currency) for id_, currency in connection.execute(query)}
    filenames = visible_names(connection, [id_ for row in found for id_ in _file_ids(row)])
    return [BatchView.of(one, activity, currencies[one.row.tenant_id], filenames, actor) for one, activity in read]


def list_batch_rows(
    connection: sa.Connection, wanted: ListQuery, *, tenant_id: str | None, status: BatchStatus | None
) -> ListPage[BatchRow]:
    """A page of batches, of all tenants without `tenant_id`. Raises InvalidValue."""
    query = sa.select(*COLUMNS)
    if tenant_id is not None:
        query = query.where(batches.c.tenant_id == tenant_id)
    if status is not None:
        query = query.where(batches.c.status == status)
    return select_page(connection, query, _BATCH_LIST, wanted, batch_of, lambda row: row.id)


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a tenant. `in_use`: batches that read it."""

    id: str
    tenant_id: str
    key_id: str
    purpose: FilePurpose
    filename: str
    bytes: int
    sha256: str
    in_use: int
    created_at: int
    expires_at: int | None

    @classmethod
    def of(cls, found: OwnedFile) -> FileView:
        stored = found.file
        return cls(
            id=stored.id,
            tenant_id=found.tenant_id,
            key_id=found.key_id,
            purpose="batch" if stored.purpose == "batch" else "batch_output",
            filename=stored.filename,
            bytes=stored.bytes,
            sha256=stored.sha256,
            in_use=found.uses,
            created_at=stored.created_at // SECOND,
            expires_at=_seconds(stored.expires_at),
        )


def list_tenant_files(
    connection: sa.Connection, wanted: ListQuery, *, tenant_id: str | None, purpose: FilePurpose | None
) -> ListPage[OwnedFile]:
    """A page of files that are neither deleted nor expired, of all tenants without `tenant_id`. Raises InvalidValue."""
    query = visible_to_tenants(database_now(connection))
    if tenant_id is not None:
        query = query.where(files.c.tenant_id == tenant_id)
    if purpose is not None:
        query = query.where(files.c.purpose == purpose)
    return select_page(connection, query, _FILE_LIST, wanted, owned_file, lambda found: found.file.id)


def _seconds(moment: int | None) -> int | None:
    return None if moment is None else moment // SECOND
