"""OpenAI's Batch API: batches of a tenant. Any of the tenant's keys that calls models may create and read them; the
lines of a batch run with the key that created it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.params import Parameter
from msgspec import Meta

from billing.clock import SECOND
from gateway.access.write_replays import HEADER, NAME
from gateway.api.parsing import BodyDecoder
from gateway.api.unknown_fields import UnknownFields
from gateway.batches.endpoints import OPENAI_ENDPOINTS
from gateway.batches.rows import BatchProgress, NewBatch
from gateway.config.files_settings import EXPIRES_S_MAX, EXPIRES_S_MIN
from gateway.errors import InvalidRequest, NotFound
from gateway.http.exchange import line_of, read_body
from gateway.routes.batches.admission import admitted
from gateway.routes.conversations import Metadata
from gateway.services import Services

COLLECTION = "/v1/batches"
PATH = f"{COLLECTION}/{{batch:str}}"
CANCEL = f"{PATH}/cancel"
TENANT = "/t/{tenant:str}"
PAGE_DEFAULT, PAGE_MAX = 20, 100
BODY_BYTES_MAX = 64 * 1024
ID_CHARS_SHOWN = 64
DIALECT = "openai"
ERRORS_SHOWN_MAX = 100


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the output files of a batch expire: `seconds` after they are created."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=EXPIRES_S_MIN, le=EXPIRES_S_MAX)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a new batch. `completion_window`: 1h to 24h."""

    input_file_id: str
    endpoint: str
    completion_window: Annotated[str, Meta(pattern="^([1-9]|1[0-9]|2[0-4])h$")]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class BatchErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed or ended early. `line`: of the input file, from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrorList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchErrorObject]


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a batch. `total`: while the batch is validated, the lines so far. `failed`: lines of the error file."""

    total: int
    completed: int
    failed: int


class BatchInputDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class BatchOutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that the batch's lines are billed so far. Reasoning tokens are not counted apart."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Moments are seconds UTC."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrorList | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@post([COLLECTION, TENANT + COLLECTION], status_code=200, opt={"route": COLLECTION})
async def create_batch(request: Request[Any, Any, Any], services: Services) -> BatchObject:
    """Create a batch of an uploaded file. With an Idempotency-Key a repeated call gets the same batch, for a day.
    Counts as a request under the limits, as every endpoint of batches does; its lines do not."""
    async with admitted(request, services) as (caller, tenant_id):
        data = await read_body(request, BODY_BYTES_MAX)
        unknown = UnknownFields(ignore=services.config.gateway.unknown_fields == "ignore")
        body = _read_batch(data, unknown)
        line_of(request).record.ignored = tuple(unknown.ignored)
        if body.endpoint not in OPENAI_ENDPOINTS:
            names = ", ".join(OPENAI_ENDPOINTS)
            raise InvalidRequest(f"'endpoint' must be one of {names}.", param="endpoint")
        expiry = body.output_expires_after
        new = NewBatch(
            tenant_id=tenant_id,
            key_id=caller.key_id,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            window_hours=int(body.completion_window[:-1]),
            metadata=body.metadata,
            output_expires_s=None if expiry is None else expiry.seconds,
            dialect=DIALECT,
            idempotency=_idempotency(request, data),
        )
        return batch_object(await services.batches.create_batch(new))


@get([PATH, TENANT + PATH], opt={"route": PATH})
async def get_batch(request: Request[Any, Any, Any], services: Services, batch: str) -> BatchObject:
    """A batch, with its counts and usage so far."""
    async with admitted(request, services) as (_, tenant_id):
        return batch_object(found_batch(await services.batches.find_batch(tenant_id, batch, DIALECT), batch))


@post([CANCEL, TENANT + CANCEL], status_code=200, opt={"route": CANCEL})
async def cancel_batch(request: Request[Any, Any, Any], services: Services, batch: str) -> BatchObject:
    """End a batch early. Lines that run are aborted and not billed; the outputs so far remain."""
    async with admitted(request, services) as (_, tenant_id):
        return batch_object(found_batch(await services.batches.cancel_batch(tenant_id, batch, DIALECT), batch))


@get([COLLECTION, TENANT + COLLECTION], opt={"route": COLLECTION})
async def list_batches(
    request: Request[Any, Any, Any],
    services: Services,
    after: str | None = None,
    limit: Annotated[int, Parameter(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
) -> BatchList:
    """The tenant's batches, the newest first."""
    async with admitted(request, services) as (_, tenant_id):
        found = await services.batches.list_batches(tenant_id, DIALECT, after, limit + 1)
        if found is None:
            raise InvalidRequest(f"'after' is wrong: {batch_not_found(after or '').message}", param="after")
    data = [batch_object(progress) for progress in found[:limit]]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return BatchList(data=data, first_id=first, last_id=last, has_more=len(found) > limit)


_read_batch = BodyDecoder(
    BatchRequest, [("completion_window", "A completion window is a number of hours from '1h' to '24h'")]
).decode


def _idempotency(request: Request[Any, Any, Any], body: bytes) -> tuple[str, str] | None:
    """The Idempotency-Key and the fingerprint of the body. Raises InvalidRequest."""
    name = idempotency_key(request)
    return None if name is None else (name, hashlib.sha256(body).hexdigest())


def idempotency_key(request: Request[Any, Any, Any]) -> str | None:
    """Raises InvalidRequest."""
    name = request.headers.get(HEADER)
    if name is not None and not NAME.fullmatch(name):
        raise InvalidRequest(f"{HEADER!r} is 1 to 255 printable ASCII characters.", param=HEADER)
    return name


def found_batch(progress: BatchProgress | None, batch_id: str) -> BatchProgress:
    """Raises NotFound."""
    if progress is None:
        raise batch_not_found(batch_id)
    return progress


def batch_not_found(batch_id: str) -> NotFound:
    """The refusal of an id that is unknown, another tenant's, or of a message batch."""
    return NotFound(f"No batch found with id '{batch_id[:ID_CHARS_SHOWN]}'.")


def batch_object(progress: BatchProgress) -> BatchObject:
    """As clients read it. The files of a batch exist once it has ended."""
    row = progress.row
    ended = {row.status: _seconds(row.ended_at)}
    errors = None
    if row.errors is not None:
        errors = BatchErrorList(data=msgspec.convert(row.errors[:ERRORS_SHOWN_MAX], list[BatchErrorObject]))
    return BatchObject(
        id=row.id,
        endpoint=row.endpoint,
        errors=errors,
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        status=row.status,
        output_file_id=None if row.ended_at is None else row.output_file_id,
        error_file_id=None if row.ended_at is None else row.error_file_id,
        created_at=row.created_at // SECOND,
        in_progress_at=_seconds(row.in_progress_at),
        expires_at=row.deadline_at // SECOND,
        finalizing_at=_seconds(row.finalizing_at),
        cancelling_at=_seconds(row.cancelling_at),
        completed_at=ended.get("completed"),
        failed_at=ended.get("failed"),
        expired_at=ended.get("expired"),
        cancelled_at=ended.get("cancelled"),
        request_counts=RequestCounts(total=row.lines, completed=progress.succeeded, failed=progress.failed),
        usage=BatchUsage(
            input_tokens=progress.prompt_tokens,
            input_tokens_details=BatchInputDetails(cached_tokens=progress.cached_tokens),
            output_tokens=progress.completion_tokens,
            output_tokens_details=BatchOutputDetails(reasoning_tokens=0),
            total_tokens=progress.prompt_tokens + progress.completion_tokens,
        ),
        metadata=row.metadata,
    )


def _seconds(moment: int | None) -> int | None:
    return None if moment is None else moment // SECOND
