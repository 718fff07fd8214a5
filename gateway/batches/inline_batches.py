"""Creates batches whose requests are in the body of the creation, as Anthropic's API has them.

The body is written to an input file that the tenant does not see, and validated while it arrives. So the batch begins
with its lines, and its worker validates nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice

import sqlalchemy as sa

from billing.clock import database_now
from billing.database import Database
from gateway import errors
from gateway.access.callers import Caller
from gateway.batches import claims, rows
from gateway.batches.endpoints import ENDPOINTS
from gateway.batches.inline_requests import ENDPOINT, REQUESTS_MAX, RequestSplitter
from gateway.batches.preparation import in_groups, pinned_target
from gateway.batches.rows import BatchProgress, BatchRow, NewBatch
from gateway.batches.validation import LineScanner, in_order
from gateway.catalog.router import Router
from gateway.config.file import Config
from gateway.files.files import Files
from gateway.files.rows import (
    UPLOAD_PURPOSE,
    BytesLeft,
    NewFile,
    bytes_left,
    insert_file,
    lock_quota,
    new_file_id,
)

DIALECT = "anthropic"
WINDOW_HOURS = 24
RESULTS_S = 29 * 24 * 3600  # after which the results of a batch expire
NO_TARGET = ""  # of a name that stands for no model: its lines run, and are refused one by one


class InlineBatches:
    """Creates message batches; each gateway process has one. `notice`: called when a batch was created."""

    def __init__(
        self, config: Config, database: Database, files: Files, router: Router, notice: Callable[[], None]
    ) -> None:
        self._database = database
        self._files = files
        self._router = router
        self._section = config.batches
        self._tier = config.batches_tier
        self._request_bytes_max = ENDPOINTS[ENDPOINT].body_bytes_max(config.gateway)
        self._notice = notice

    async def create_batch(
        self, caller: Caller, parts: AsyncIterator[bytes], idempotency_key: str | None
    ) -> BatchProgress:
        """`parts`: the body as it arrives. Raises InvalidRequest, RequestTooLarge, QuotaExceeded, IdempotencyMismatch,
        ContentStoreFailed, DatabaseUnavailable, and what `parts` raises."""
        assert caller.tenant_id is not None, "a key that calls models has a tenant"
        tenant_id, file_id = caller.tenant_id, new_file_id()
        if await self._is_repeated(caller.key_id, idempotency_key):  # the earlier batch may have used up the quota
            key, left = await self._files.tenant_key(tenant_id), None
        else:
            key, left = await self._files.begin_upload(tenant_id)
        scanner = LineScanner(ENDPOINT, self._request_bytes_max, REQUESTS_MAX)
        written = await self._files.contents.write(key, file_id, self._lines(parts, scanner, left))
        file = NewFile(
            id=file_id,
            tenant_id=tenant_id,
            key_id=caller.key_id,
            purpose=UPLOAD_PURPOSE,
            filename="requests.jsonl",
            expires_s=self._files.section.expires_s,
        )
        new = NewBatch(
            tenant_id=tenant_id,
            key_id=caller.key_id,
            endpoint=ENDPOINT,
            input_file_id=file_id,
            window_hours=WINDOW_HOURS,
            output_expires_s=RESULTS_S,
            dialect=DIALECT,
            idempotency=None if idempotency_key is None else (idempotency_key, written.sha256),
        )
        targets = {name: self._target(caller, name, file_id) async for name in in_groups(scanner.models)}
        ordered = await asyncio.to_thread(lambda: list(in_order(scanner.lines, targets)))

        def insert(connection: sa.Connection) -> BatchRow:
            now = database_now(connection)
            if not lock_quota(connection, key):
                raise errors.Conflict("The tenant's stored data was deleted meanwhile. Create the batch again.")
            if (earlier := rows.earlier_call(connection, new, now)) is not None:
                return earlier
            rows.check_unended(connection, tenant_id, self._section)
            bytes_now = bytes_left(connection, self._files.section, tenant_id)
            if written.size > bytes_now.count:
                raise bytes_now.exceeded()
            tokens = scanner.enqueued_tokens
            quota = rows.tokens_quota(connection, tenant_id, self._section.tenant_enqueued_tokens_max)
            if rows.enqueued_tokens(connection, tenant_id) + tokens > quota.value:
                raise errors.QuotaExceeded(
                    rows.tokens_exceeded(quota), errors.ReachedLimit("tenant_enqueued_tokens", quota.value)
                )
            insert_file(connection, file, key, written, inline=True)
            state = {"status": "in_progress", "lines": scanner.requests, "enqueued_tokens": tokens}
            row = rows.insert_batch(connection, new, now, state | {"in_progress_at": now})
            remaining, first = iter(ordered), 0
            while some := list(islice(remaining, claims.LINES_INSERTED_AT_ONCE)):
                claims.insert_lines(connection, row.id, 0, first, some)
                first += len(some)
            return row

        row = await self._insert(file_id, insert)
        self._notice()
        return (await self._database.read(lambda connection: rows.progress_of(connection, [row])))[0]

    async def _insert(self, file_id: str, insert: Callable[[sa.Connection], BatchRow]) -> BatchRow:
        """If the creation is refused, or the call is repeated, remove the content of the file. After any other error,
        or a cancellation, the batch may have been committed; `Files.remove_orphans` removes the content of no batch."""
        try:
            row = await self._database.write_in_background(insert)
        except errors.ApiError:
            await self._files.remove_content(file_id)
            raise
        if row.input_file_id != file_id:
            await self._files.remove_content(file_id)
        return row

    async def _is_repeated(self, key_id: str, idempotency_key: str | None) -> bool:
        if idempotency_key is None:
            return False
        return await self._database.read(lambda connection: rows.has_earlier_call(connection, key_id, idempotency_key))

    async def _lines(
        self, parts: AsyncIterator[bytes], scanner: LineScanner, left: BytesLeft | None
    ) -> AsyncIterator[bytes]:
        """The lines of the input file, which `scanner` has checked: at most `left` bytes, or a whole body."""
        splitter, size = RequestSplitter(self._request_bytes_max), 0

        def split(part: bytes) -> bytes:
            lines = splitter.split_part(part)
            scanner.scan_part(lines)
            return lines

        async for part in parts:
            lines = await asyncio.to_thread(split, part)
            _check_errors(scanner)
            size += len(lines)
            if left is not None and size > left.count:
                raise left.exceeded()
            if lines:
                yield lines
        splitter.finish_body()
        scanner.finish_scan()
        _check_errors(scanner)

    def _target(self, caller: Caller, name: str, sticky: str) -> str:
        try:
            return pinned_target(self._router, caller, name, sticky, self._tier)
        except errors.ModelNotFound:
            return NO_TARGET


def _check_errors(scanner: LineScanner) -> None:
    """Raises InvalidRequest for the first error, at the request where it is."""
    if not scanner.errors:
        return
    error = scanner.errors[0]
    name = f"requests.{(error.line or 1) - 1}"
    message = error.message
    if error.code == "duplicate_custom_id":
        message = "Another request has the same 'custom_id'."
    raise errors.InvalidRequest(f"{name}: {message}", param=f"{name}.{error.param}" if error.param else name)
