"""Anthropic's Message Batches API, on the worker and the rows of /v1/batches. Any of the tenant's keys that calls
models may create and read batches; the requests of a batch run with the key that created it.
"""

from __future__ import annotations

import functools
import time
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, delete, get, post
from litestar.params import Parameter
from litestar.types import ASGIApp

from billing.clock import SECOND, rfc3339
from gateway import errors
from gateway.api.messages_wire import MessagesRequest
from gateway.batches.inline_batches import DIALECT, RESULTS_S
from gateway.batches.inline_requests import BODY_BYTES_MAX
from gateway.batches.results import message_results
from gateway.batches.rows import BatchProgress, BatchRow
from gateway.files.contents import ContentReader
from gateway.http.exchange import check_encoding
from gateway.http.form import body_parts
from gateway.routes.batches.admission import admitted
from gateway.routes.batches.batches import ID_CHARS_SHOWN, idempotency_key
from gateway.routes.batches.downloads import Download
from gateway.routes.batches.files import open_stored, unreadable
from gateway.services import Services
from gateway.uploads.abortable import announced_bytes

COLLECTION = "/v1/messages/batches"
PATH = f"{COLLECTION}/{{batch:str}}"
CANCEL, RESULTS = f"{PATH}/cancel", f"{PATH}/results"
TENANT = "/t/{tenant:str}"
PAGE_DEFAULT, PAGE_MAX = 20, 1000
PREFIX, ROW_PREFIX = "msgbatch_", "batch_"  # of ids, and of the same ids in the database


class BatchedMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request of a batch. `custom_id`: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', unique in the batch."""

    custom_id: str
    params: MessagesRequest


class MessageBatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a new batch of messages, which is read while it arrives."""

    requests: list[BatchedMessage]


class MessageBatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a batch by their state. All are `processing` until the batch has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. `archived_at`: when its results expired. `results_url`: a path at this server, once the batch has
    ended."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    ended_at: str | None
    created_at: str
    expires_at: str
    archived_at: str | None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchPage(msgspec.Struct, frozen=True, kw_only=True):
    data: list[MessageBatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


@post([COLLECTION, TENANT + COLLECTION], status_code=200, opt={"route": COLLECTION})
async def create_message_batch(request: Request[Any, Any, Any], services: Services) -> MessageBatchObject:
    """Create a batch of at most 100,000 requests or 256 MB. With an Idempotency-Key a repeated call gets the same
    batch, for a day. Counts as a request under the limits, as every endpoint of batches does; its requests do not."""
    async with admitted(request, services) as (caller, _):
        pass  # as an upload of a file: `[files]` limits how many run
    check_encoding(request)
    if (announced_bytes(request) or 0) > BODY_BYTES_MAX:
        raise errors.RequestTooLarge(f"The body is over the limit of {BODY_BYTES_MAX} bytes.")
    key = idempotency_key(request)
    async with services.file_uploads.run_upload(caller):
        parts = body_parts(request, BODY_BYTES_MAX, services.config.files.upload_idle_s)
        return message_batch(await services.inline_batches.create_batch(caller, parts, key))


@get([PATH, TENANT + PATH], opt={"route": PATH})
async def get_message_batch(request: Request[Any, Any, Any], services: Services, batch: str) -> MessageBatchObject:
    """A batch, with its counts."""
    async with admitted(request, services) as (_, tenant_id):
        return message_batch(await _find(services, tenant_id, batch))


@post([CANCEL, TENANT + CANCEL], status_code=200, opt={"route": CANCEL})
async def cancel_message_batch(request: Request[Any, Any, Any], services: Services, batch: str) -> MessageBatchObject:
    """End a batch early. Requests that run are aborted and not billed; the results so far remain."""
    async with admitted(request, services) as (_, tenant_id):
        cancelled = await services.batches.cancel_batch(tenant_id, _row_id(batch), DIALECT)
        if cancelled is None:
            raise _not_found(batch)
        return message_batch(cancelled)


@delete([PATH, TENANT + PATH], status_code=200, opt={"route": PATH})
async def delete_message_batch(request: Request[Any, Any, Any], services: Services, batch: str) -> DeletedMessageBatch:
    """Delete an ended batch and its results."""
    async with admitted(request, services) as (_, tenant_id):
        if not await services.batches.delete_batch(tenant_id, _row_id(batch), DIALECT):
            raise _not_found(batch)
    return DeletedMessageBatch(id=batch)


@get([COLLECTION, TENANT + COLLECTION], opt={"route": COLLECTION})
async def list_message_batches(
    request: Request[Any, Any, Any],
    services: Services,
    after_id: str | None = None,
    before_id: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
) -> MessageBatchPage:
    """The tenant's batches, the newest first. `after_id`: the page of older batches that begins after it; `before_id`:
    the page of newer batches that ends before it."""
    if after_id is not None and before_id is not None:
        raise errors.InvalidRequest("Send 'after_id' or 'before_id', not both.", param="before_id")
    cursor = after_id if before_id is None else before_id
    async with admitted(request, services) as (_, tenant_id):
        after = None if cursor is None else _row_id(cursor)
        newer = before_id is not None
        found = await services.batches.list_batches(tenant_id, DIALECT, after, limit + 1, newer=newer)
    if found is None:
        name = "after_id" if before_id is None else "before_id"
        raise errors.InvalidRequest(f"{name!r} is wrong: {_not_found(cursor or '').message}", param=name)
    shown = found[-limit:] if newer else found[:limit]
    data = [message_batch(progress) for progress in shown]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return MessageBatchPage(data=data, has_more=len(found) > limit, first_id=first, last_id=last)


@get([RESULTS, TENANT + RESULTS], opt={"route": RESULTS})
async def get_message_batch_results(request: Request[Any, Any, Any], services: Services, batch: str) -> ASGIApp:
    """The results of an ended batch, as lines of JSON in any order. Each names its request by `custom_id`."""
    async with admitted(request, services) as (_, tenant_id):
        row = (await _find(services, tenant_id, batch)).row
        if row.ended_at is None:
            raise errors.NotFound(f"The results of '{batch[:ID_CHARS_SHOWN]}' exist once the batch has ended.")
        readers: list[ContentReader] = []
        try:
            for file_id in (row.output_file_id, row.error_file_id):
                found = None if file_id is None else await services.files.open_file(tenant_id, file_id)
                if found is not None:
                    readers.append(await open_stored(services, *found))
                elif file_id is not None or row.status == "failed":
                    raise errors.NotFound(f"The results of '{batch[:ID_CHARS_SHOWN]}' have expired or were deleted.")
        except BaseException:
            for reader in readers:
                reader.close()
            raise
    headers = [(b"content-type", b"application/x-jsonl")]
    return Download(message_results(readers), readers, headers, functools.partial(unreadable, row.id))


async def _find(services: Services, tenant_id: str, batch_id: str) -> BatchProgress:
    """Raises NotFound."""
    found = await services.batches.find_batch(tenant_id, _row_id(batch_id), DIALECT)
    if found is None:
        raise _not_found(batch_id)
    return found


def _row_id(batch_id: str) -> str:
    """The id in the database; that of no row for an id of another API."""
    return ROW_PREFIX + batch_id.removeprefix(PREFIX) if batch_id.startswith(PREFIX) else ""


def _not_found(batch_id: str) -> errors.NotFound:
    """The refusal of an id that is unknown, or another tenant's."""
    return errors.NotFound(f"No message batch found with id '{batch_id[:ID_CHARS_SHOWN]}'.")


def message_batch(progress: BatchProgress) -> MessageBatchObject:
    """As clients of Anthropic's API read it."""
    row = progress.row
    batch_id = PREFIX + row.id.removeprefix(ROW_PREFIX)
    has_ended = row.ended_at is not None
    return MessageBatchObject(
        id=batch_id,
        processing_status="ended" if has_ended else "canceling" if row.status == "cancelling" else "in_progress",
        request_counts=_counts(progress),
        ended_at=_moment(row.ended_at),
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.deadline_at),
        archived_at=_moment(_archived_at(row)),
        cancel_initiated_at=_moment(row.cancelling_at),
        results_url=f"{COLLECTION}/{batch_id}/results" if has_ended else None,
    )


def _counts(progress: BatchProgress) -> MessageBatchCounts:
    row, unrun = progress.row, progress.row.unrun or 0
    counts = {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    if row.ended_at is None:
        counts["processing"] = row.lines
    elif row.status == "failed":  # its contents were deleted, and with them all results
        counts["errored"] = row.lines
    else:
        counts |= {"succeeded": progress.succeeded, "errored": progress.failed - unrun}
        counts["expired" if row.status == "expired" else "canceled"] = unrun
    return MessageBatchCounts(**counts)


def _archived_at(row: BatchRow) -> int | None:
    """When the results expired; None: they have not, by the clock of this host."""
    if row.ended_at is None:
        return None
    expired_at = row.ended_at + (row.output_expires_s or RESULTS_S) * SECOND
    return expired_at if expired_at <= time.time() * SECOND else None


def _moment(moment: int | None) -> str | None:
    return None if moment is None else rfc3339(moment)
