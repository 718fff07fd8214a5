"""Opens a claimed batch and validates its input file, off the event loop and in bounded memory."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

import sqlalchemy as sa

from billing.database import Database
from gateway.access.callers import Caller
from gateway.batches import claims
from gateway.batches.claimed import ClaimedBatch, InputUnavailable
from gateway.batches.endpoints import ENDPOINTS
from gateway.batches.rows import read_batch
from gateway.batches.validation import LineScanner, ValidLine, in_order
from gateway.catalog.pooling import check_one_model
from gateway.catalog.registry import ModelTarget
from gateway.catalog.router import Router
from gateway.config.batches_settings import BatchesSection
from gateway.config.settings import VERSION, GatewaySection, split_version
from gateway.errors import InvalidRequest, ModelNotFound
from gateway.files.backends import ContentStoreFailed
from gateway.files.files import Files
from gateway.stored.texts import TextKey, TextUnreadable

PROGRESS_S = 1.0  # between two writes of the number of lines
NAMES_AT_ONCE = 100  # names of models that are resolved before other tasks of the event loop run
INVALID_MODEL = "invalid_model"  # of a line whose endpoint does not serve its model


class BatchPreparer:
    """Opens and validates claimed batches; each gateway process has one."""

    def __init__(
        self,
        database: Database,
        files: Files,
        router: Router,
        settings: GatewaySection,
        section: BatchesSection,
        tier: str,
    ) -> None:
        """`tier`: at which the lines will run."""
        self._database = database
        self._files = files
        self._router = router
        self._settings = settings
        self._section = section
        self._tier = tier

    async def open_batch(self, batch: ClaimedBatch) -> TextKey:
        """Read the batch's row, and open its input file; `batch.reader` remains None if the file cannot be opened after
        the deadline. Raises TextUnreadable if the tenant's key was deleted, InputUnavailable, DatabaseUnavailable,
        ApiError."""
        await self._read_row(batch)
        if batch.key is None or batch.reader is None:
            found = await self._files.open_file(batch.tenant_id, batch.row.input_file_id, hidden=True)
            if found is None:
                raise TextUnreadable("the input file, or the key of its tenant, was deleted")
            batch.key = found[1]
            try:
                batch.reader = await self._files.contents.open_reader(batch.key, batch.row.input_file_id)
            except (ContentStoreFailed, TextUnreadable) as error:  # the key exists: its deletion is not the cause
                if not batch.is_input_given_up:
                    raise InputUnavailable(f"the input file: {error}") from error
        return batch.key

    async def _read_row(self, batch: ClaimedBatch) -> None:
        row = await self._database.read(lambda connection: read_batch(connection, batch.tenant_id, batch.id))
        assert row is not None, "a batch's row is not deleted"
        batch.row = row

    async def validate_batch(self, batch: ClaimedBatch, key: TextKey) -> bool:
        """Check the input file and insert its lines. False: the batch has failed. If the batch is to end early, the
        validation may be incomplete. Raises LeaseLost, TextUnreadable, ContentStoreFailed, DatabaseUnavailable."""
        if batch.caller is None:
            return True
        scanner = LineScanner(batch.row.endpoint, ENDPOINTS[batch.row.endpoint].body_bytes_max(self._settings))
        targets = await self._scan(batch, batch.caller, scanner)
        if batch.is_stopping:
            return True
        row, epoch = batch.row, batch.epoch
        found = sorted(scanner.errors, key=lambda error: error.line or 0)
        if not found:
            await self._insert(batch, scanner.lines, targets)
            error = await self._database.write_in_background(
                lambda connection: claims.begin_run(
                    connection,
                    row,
                    epoch,
                    key,
                    scanner.requests,
                    scanner.enqueued_tokens,
                    self._section.tenant_enqueued_tokens_max,
                )
            )
            found = [] if error is None else [error]
        if found:
            await self._database.write_in_background(
                lambda connection: claims.fail_batch(connection, row, epoch, scanner.requests, found)
            )
            return False
        await self._read_row(batch)
        return True

    async def _scan(self, batch: ClaimedBatch, caller: Caller, scanner: LineScanner) -> dict[str, str]:
        """Scan the file to its end, or to the last error that is listed. Returns the targets of the model names."""
        assert batch.reader is not None
        loop, targets = asyncio.get_running_loop(), dict[str, str]()
        written_at = loop.time()
        async for part in batch.reader.stream_bytes():
            await asyncio.to_thread(scanner.scan_part, part)
            await self._resolve(batch, caller, scanner, targets)
            if scanner.has_failed or batch.is_stopping:
                break
            if loop.time() - written_at >= PROGRESS_S:
                written_at = loop.time()
                note = functools.partial(
                    claims.note_progress, batch_id=batch.id, epoch=batch.epoch, lines=scanner.requests
                )
                await self._database.write_in_background(note)
        await asyncio.to_thread(scanner.finish_scan)
        await self._resolve(batch, caller, scanner, targets)
        return targets

    async def _resolve(
        self, batch: ClaimedBatch, caller: Caller, scanner: LineScanner, targets: dict[str, str]
    ) -> None:
        """Find the targets of the model names that were read since the last call, up to the last error that is listed.
        All lines with one name get one target."""
        async for name in in_groups(list(islice(scanner.models, len(targets), None))):
            if scanner.has_failed:
                return
            targets[name] = ""
            try:
                targets[name] = pinned_target(self._router, caller, name, batch.id, self._tier)
                if ENDPOINTS[batch.row.endpoint].embeds:
                    check_one_model(name, self._router.models_of(caller, name))
            except (ModelNotFound, InvalidRequest) as error:
                scanner.refuse_model(name, error.code or INVALID_MODEL, error.message)

    async def _insert(self, batch: ClaimedBatch, lines: list[ValidLine], targets: dict[str, str]) -> None:
        batch_id, epoch = batch.id, batch.epoch
        await self._database.write_in_background(lambda c: claims.restart_validation(c, batch_id, epoch))
        ordered: Iterator[tuple[ValidLine, str]] = await asyncio.to_thread(in_order, lines, targets)
        first = 0
        while some := list(islice(ordered, claims.LINES_INSERTED_AT_ONCE)):

            def insert(connection: sa.Connection, first: int = first, some: list[tuple[ValidLine, str]] = some) -> None:
                claims.insert_lines(connection, batch_id, epoch, first, some)

            await self._database.write_in_background(insert)
            first += len(some)


async def in_groups(names: Iterable[str]) -> AsyncIterator[str]:
    """The names; other tasks of the event loop run after each NAMES_AT_ONCE of them."""
    for number, name in enumerate(names, 1):
        yield name
        if number % NAMES_AT_ONCE == 0:
            await asyncio.sleep(0)


def pinned_target(router: Router, caller: Caller, name: str, sticky: str, tier: str) -> str:
    """The pinned name of the target of `name`. The target of an alias is chosen as for a request: by weight (by the
    hash of `sticky`), or the cheapest at the tier. Raises ModelNotFound."""
    candidates = router.route(caller, name, sticky).candidates
    priced = [
        (prices.most(1, 1), index)
        for index, target in enumerate(candidates)
        if (prices := router.unit_prices(target.model, caller.currency, tier)) is not None
    ]
    return pinned_name(candidates[min(priced)[1] if len(candidates) > 1 and priced else 0])


def pinned_name(target: ModelTarget) -> str:
    """A name of this target that does not change when aliases or adapter versions do: the base model's name, or the
    adapter's name with the version."""
    if target.adapter is None:
        return target.model
    return f"{split_version(target.name)[0]}{VERSION}{target.adapter.version}"
