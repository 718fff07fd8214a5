"""Message batches without a gateway process: when the content of their requests is removed, and what clients read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from billing.clock import DAY, database_now, rfc3339
from billing.database import Database
from gateway.batch_tables import batches
from gateway.batches import claims, rows
from gateway.batches.inline_batches import InlineBatches
from gateway.batches.rows import BatchRow
from gateway.config.batches_settings import BatchesSection
from gateway.config.file import parse_gateway_config
from gateway.config.files_settings import FilesSection
from gateway.config.server_secrets import ServerSecrets
from gateway.errors import QuotaExceeded
from gateway.files.backends import ContentDirectory, ContentMissing
from gateway.files.contents import FileContents
from gateway.files.files import Files
from gateway.files.rows import UPLOAD_PURPOSE, insert_file, new_file_id
from gateway.metrics import Metrics
from gateway.routes.batches.message_batches import MessageBatchCounts, MessageBatchObject, message_batch
from gateway.stored.texts import TextKeys
from support.gateway.batch_stage import LINES, Stage
from support.waiting import PATIENCE_S

Gate = tuple[threading.Event, threading.Event]


async def part() -> Any:
    yield b"requests"


class Creation:
    """One creation whose requests are written already."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.stage = Stage(database)
        self.files = Files(
            database,
            FileContents(ContentDirectory(directory)),
            TextKeys(ServerSecrets(b"s" * 32)),
            FilesSection(),
            Metrics(),
        )
        config = parse_gateway_config(b"", directory, "test", {})
        self.batches = InlineBatches(config, database, self.files, cast(Any, None), lambda: None)
        self.file_id = new_file_id()

    # `gate`: set when the transaction has begun, and when it may end.
    async def insert(
        self, batches_max: int = 10, gate: tuple[threading.Event, threading.Event] | None = None
    ) -> BatchRow:
        written = await self.files.contents.write(self.stage.key, self.file_id, part())

        def insert(connection: sa.Connection) -> BatchRow:
            if gate is not None:
                began, may_end = gate
                began.set()
                assert may_end.wait(PATIENCE_S)
            insert_file(connection, self.stage.file(self.file_id, UPLOAD_PURPOSE), self.stage.key, written)
            new = self.stage.new(input_file_id=self.file_id)
            return rows.create_batch(connection, new, BatchesSection(tenant_batches_max=batches_max))

        return await self.batches._insert(self.file_id, insert)

    async def has_content(self) -> bool:
        try:
            (await self.files.contents.open_reader(self.stage.key, self.file_id)).close()
        except ContentMissing:
            return False
        return True


@pytest.fixture
def creation(sqlite_database: Database, tmp_path: Path) -> Creation:
    return Creation(sqlite_database, tmp_path / "files")


async def test_a_cancelled_creation_that_is_committed_has_its_requests(creation: Creation) -> None:
    began, may_end = threading.Event(), threading.Event()
    task = asyncio.create_task(creation.insert(gate=(began, may_end)))
    assert await asyncio.to_thread(began.wait, 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_end.set()
    await creation.stage.database.write_in_background(lambda connection: None)  # the writer has one thread
    assert creation.stage.claim() is not None
    assert await creation.has_content()


async def test_a_refused_creation_leaves_no_content(creation: Creation) -> None:
    creation.stage.create()
    with pytest.raises(QuotaExceeded):
        await creation.insert(batches_max=1)
    assert not await creation.has_content()


def seen(stage: Stage, row: BatchRow) -> MessageBatchObject:
    found = stage.read(row)
    return message_batch(stage.write(lambda c: rows.progress_of(c, [found]))[0])


def test_all_requests_of_a_failed_batch_are_errored(database: Database) -> None:
    stage = Stage(database)
    stage.create(dialect="anthropic")
    row, epoch = stage.claim() or pytest.fail("it is not claimed")
    stage.run(row, epoch)
    assert stage.record(row, epoch, 1)
    assert seen(stage, row).request_counts.processing == LINES
    stage.write(lambda c: claims.end_unreadable(c, row, epoch))
    assert seen(stage, row).request_counts == MessageBatchCounts(
        processing=0, succeeded=0, errored=LINES, canceled=0, expired=0
    )


def test_a_batch_is_archived_when_its_results_have_expired(database: Database) -> None:
    stage = Stage(database)
    row = stage.create(dialect="anthropic")
    assert seen(stage, row).archived_at is None
    now = stage.write(database_now)
    for age, archived_at in ((28, None), (30, rfc3339(now - DAY))):
        ended = sa.update(batches).values(status="completed", ended_at=now - age * DAY)
        stage.write(lambda c, ended=ended: c.execute(ended))
        assert seen(stage, row).archived_at == archived_at


def test_a_batch_is_unknown_to_the_other_api(database: Database) -> None:
    stage = Stage(database)
    for own, other in (("openai", "anthropic"), ("anthropic", "openai")):
        row = stage.create(dialect=own)
        assert stage.write(lambda c, id_=row.id, d=other: rows.read_batch(c, stage.tenant_id, id_, d)) is None
        assert stage.write(lambda c, id_=row.id, d=other: rows.cancel_batch(c, stage.tenant_id, id_, d)) is None
        assert not stage.write(lambda c, id_=row.id, d=other: rows.delete_batch(c, stage.tenant_id, id_, d))
        assert stage.write(lambda c, id_=row.id, d=other: rows.list_batches(c, stage.tenant_id, d, id_, 1)) is None
        assert stage.write(lambda c, id_=row.id, d=own: rows.read_batch(c, stage.tenant_id, id_, d)) == row
        assert stage.write(lambda c, id_=row.id, d=own: rows.cancel_batch(c, stage.tenant_id, id_, d)) is not None
