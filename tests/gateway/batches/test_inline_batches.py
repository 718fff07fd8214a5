"""The creation of a message batch, without a gateway process: when the content of its requests is removed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.batches import rows
from gateway.batches.inline_batches import InlineBatches
from gateway.batches.rows import BatchRow
from gateway.config.batches_settings import BatchesSection
from gateway.config.file import parse
from gateway.config.files_settings import FilesSection
from gateway.config.server_secrets import ServerSecrets
from gateway.errors import QuotaExceeded
from gateway.files.backends import ContentDirectory, ContentMissing
from gateway.files.contents import FileContents
from gateway.files.files import Files
from gateway.files.rows import insert_file, new_file_id
from gateway.metrics import Metrics
from gateway.stored.texts import TextKeys
from support.gateway.batch_stage import Stage


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
        config = parse(b"", directory, "test", {})
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
                assert may_end.wait(10)
            insert_file(connection, self.stage.file(self.file_id), self.stage.key, written)
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
