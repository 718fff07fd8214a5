"""Rows of files on both databases: quotas under concurrency, uses by batches, expiry, and removal of contents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from billing.accounts import tenants
from billing.clock import SECOND
from billing.database import Database
from billing.errors import NotPossibleYet
from gateway.admin.administration import Administration
from gateway.admin.erasure import erase
from gateway.admin.writes import Actor
from gateway.config.file import parse_gateway_config
from gateway.config.files_settings import FilesSection
from gateway.config.server_secrets import ServerSecrets
from gateway.errors import Conflict, QuotaExceeded, ReachedLimit
from gateway.files.backends import ContentDirectory
from gateway.files.contents import FileContents
from gateway.files.files import Files
from gateway.files.rows import OUTPUT_PURPOSE, NewFile, StoredFile, begin_use, end_use, insert_file, new_file_id
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange
from gateway.metrics import Metrics
from gateway.stored.texts import TextKeys, delete_text_key
from gateway.tables import files as file_rows

TEXT = b'{"custom_id": "1"}\n'
SECTION = FilesSection(tenant_files_max=5, tenant_bytes_max=1024)


async def part(data: bytes) -> AsyncIterator[bytes]:
    yield data


class FileStore:
    """Files of two tenants, without a gateway."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.directory = directory
        self.metrics = Metrics()
        self.keys = TextKeys(ServerSecrets(b"s" * 32))
        contents = FileContents(ContentDirectory(directory))
        self.files = Files(database, contents, self.keys, SECTION, self.metrics)
        self.acme, self.globex = (
            database.write_sync(lambda c, slug=slug: tenants.create_tenant(c, slug=slug, name=slug, tier="batch")).id
            for slug in ("acme", "globex")
        )

    async def upload(self, tenant_id: str = "", data: bytes = TEXT, *, expires_s: int = 3600) -> StoredFile:
        tenant_id = tenant_id or self.acme
        key, _ = await self.files.begin_upload(tenant_id)
        new = NewFile(
            id=new_file_id(), tenant_id=tenant_id, key_id="key_1", purpose="batch", filename="a", expires_s=expires_s
        )

        return await self.files.create_file(new, key, await self.files.contents.write(key, new.id, part(data)))

    def change(self, file_id: str, **values: Any) -> None:
        row = sa.update(file_rows).where(file_rows.c.id == file_id).values(values)
        self.database.write_sync(lambda c: c.execute(row))

    def contents(self) -> set[str]:
        return {path.name for path in self.directory.rglob("*") if path.is_file()}

    def rows(self) -> set[str]:
        return set(self.database.read_sync(lambda c: list(c.execute(sa.select(file_rows.c.id)).scalars())))

    async def read(self, file_id: str, *, hidden: bool = False) -> bytes | None:
        found = await self.files.open_file(self.acme, file_id, hidden=hidden)
        if found is None:
            return None
        return await self.files.contents.read(found[1], file_id, 0, found[0].bytes)


@pytest.fixture
def store(database: Database, tmp_path: Path) -> FileStore:
    return FileStore(database, tmp_path / "files")


def test_a_file_is_found_by_its_tenant_alone(store: FileStore) -> None:
    async def run() -> None:
        made = await store.upload()
        assert await store.files.find_file(store.acme, made.id) == made
        assert await store.read(made.id) == TEXT
        for id_ in (made.id, "file-x", "file-\0", "../" + made.id):
            assert await store.files.find_file(store.globex, id_) is None
            assert await store.files.open_file(store.globex, id_, hidden=True) is None
            assert not await store.files.delete_file(store.globex, id_)
            assert await store.files.list_files(store.globex, id_, 10, "desc", None) is None
        assert (await store.files.find_file(store.acme, made.id)) is not None

    asyncio.run(run())


def test_pages_have_each_file_once_in_order(store: FileStore) -> None:
    async def run() -> None:
        made = [(await store.upload()).id for _ in range(5)]
        store.database.write_sync(lambda c: c.execute(sa.update(file_rows).values(created_at=7)))  # ids break the tie
        for order, expected in (("asc", sorted(made)), ("desc", sorted(made, reverse=True))):
            found, after, more = [], None, True
            while more:
                page = await store.files.list_files(store.acme, after, 2, order, "batch")  # type: ignore[arg-type]
                assert page is not None
                found += [file.id for file in page.files]
                after, more = found[-1], page.more
            assert found == expected
        other = await store.files.list_files(store.acme, None, 10, "asc", OUTPUT_PURPOSE)
        assert other is not None
        assert other.files == []

    asyncio.run(run())


def test_quotas_hold_under_concurrent_uploads(store: FileStore) -> None:
    """From several threads with event loops of their own, as several gateways."""

    def upload(_: int) -> bool:
        try:
            asyncio.run(store.upload())
        except QuotaExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(upload, range(12))) == SECTION.tenant_files_max
    assert store.contents() == store.rows()
    asyncio.run(store.upload(store.globex))


def test_bytes_have_a_quota_and_a_refused_upload_leaves_nothing(store: FileStore) -> None:
    async def run() -> None:
        first = await store.upload(data=b"x" * 1000)
        with pytest.raises(QuotaExceeded, match="tenant_bytes_max"):
            await store.upload(data=b"x" * 25)
        await store.upload(data=b"x" * 24)
        with pytest.raises(QuotaExceeded, match="tenant_bytes_max"):
            await store.files.begin_upload(store.acme)
        assert store.contents() == store.rows()
        await store.files.delete_file(store.acme, first.id)
        await store.files.remove_unused(0)
        assert (await store.files.begin_upload(store.acme))[1].count == 1000

    asyncio.run(run())


def test_a_tenants_own_quotas_replace_the_configured_ones(store: FileStore) -> None:
    def limit(**limits: int | None) -> None:
        own: dict[str, Any] = {"scope": "tenant", "subject_id": store.acme, "tenant_id": store.acme}
        change = LimitsChange(**limits)
        store.database.write_sync(lambda c: overrides.change_own_limits(c, **own, change=change))

    async def run() -> None:
        limit(files=2, total_file_bytes=5000)
        first = await store.upload(data=b"x" * 4000)
        with pytest.raises(
            QuotaExceeded, match=r"exceed 5000 bytes \(the tenant's quota 'total_file_bytes'\)"
        ) as refused:
            await store.upload(data=b"x" * 1001)
        assert refused.value.limit == ReachedLimit("tenant_file_bytes", 5000)
        await store.upload(data=b"x" * 1000)
        limit(total_file_bytes=9000)
        with pytest.raises(QuotaExceeded, match=r"the limit is 2 \(the tenant's quota 'files'\)"):
            await store.upload()
        limit(files=1)  # below the present use: nothing is deleted
        assert await store.files.find_file(store.acme, first.id) is not None
        limit(files=None, total_file_bytes=None)
        with pytest.raises(QuotaExceeded, match=r"exceed 1024 bytes \(files\.tenant_bytes_max\)"):
            await store.upload()
        for _ in range(SECTION.tenant_files_max):
            await store.upload(store.globex)

    asyncio.run(run())


def test_a_deleted_file_is_hidden_at_once_and_its_content_is_removed_later(store: FileStore) -> None:
    async def run() -> None:
        made, other = await store.upload(), await store.upload()
        assert await store.files.delete_file(store.acme, made.id)
        assert not await store.files.delete_file(store.acme, made.id)
        assert await store.files.find_file(store.acme, made.id) is None
        page = await store.files.list_files(store.acme, None, 10, "desc", None)
        assert page is not None
        assert [file.id for file in page.files] == [other.id]
        assert await store.files.list_files(store.acme, made.id, 10, "desc", None) is not None
        assert await store.files.remove_unused() == 0, "a download may run"
        assert await store.files.remove_unused(0) == 1
        assert store.contents() == store.rows() == {other.id}

    asyncio.run(run())


def test_an_expired_file_is_hidden_and_removed(store: FileStore) -> None:
    async def run() -> None:
        made = await store.upload(expires_s=7200)
        assert made.expires_at == made.created_at + 7200 * SECOND
        store.change(made.id, expires_at=made.created_at)
        assert await store.files.find_file(store.acme, made.id) is None
        assert store.database.write_sync(lambda c: begin_use(c, store.acme, made.id)) is None
        assert await store.files.remove_unused(0) == 1
        assert store.contents() == store.rows() == set()

    asyncio.run(run())


@pytest.mark.parametrize("end", ["deleted", "expired"])
def test_a_content_in_use_remains_until_its_batch_ends(store: FileStore, end: str) -> None:
    async def run() -> None:
        made = await store.upload()
        assert store.database.write_sync(lambda c: begin_use(c, store.globex, made.id)) is None
        for _ in range(2):  # two batches
            assert store.database.write_sync(lambda c: begin_use(c, store.acme, made.id)) == made
        if end == "deleted":
            await store.files.delete_file(store.acme, made.id)
        else:
            store.change(made.id, expires_at=made.created_at)
        for _ in range(2):
            assert await store.files.remove_unused(0) == 0
            assert await store.read(made.id) is None
            assert await store.read(made.id, hidden=True) == TEXT
            store.database.write_sync(lambda c: end_use(c, store.acme, made.id))
        assert await store.files.remove_unused(0) == 1
        store.database.write_sync(lambda c: end_use(c, store.acme, made.id))
        assert store.contents() == set()

    asyncio.run(run())


def test_a_content_without_a_row_is_removed_when_it_is_old(store: FileStore) -> None:
    """Of a gateway that was killed between the content and the row."""

    async def run() -> None:
        made = await store.upload()
        key, _ = await store.files.begin_upload(store.acme)

        await store.files.contents.write(key, new_file_id(), part(TEXT))
        assert await store.files.remove_orphans() == 0
        assert len(store.contents()) == 2
        assert await store.files.remove_orphans(-1) == 1
        assert store.contents() == {made.id}

    asyncio.run(run())


def test_an_output_is_inserted_by_its_batch_and_no_quota_refuses_it(store: FileStore) -> None:
    async def run() -> None:
        for _ in range(SECTION.tenant_files_max):
            made = await store.upload()
        found = await store.files.open_file(store.acme, made.id)
        assert found is not None
        new = NewFile(
            id=new_file_id(), tenant_id=store.acme, key_id="k", purpose=OUTPUT_PURPOSE, filename="o", expires_s=3600
        )

        written = await store.files.contents.write(found[1], new.id, part(b"out"))
        stored = store.database.write_sync(lambda c: insert_file(c, new, found[1], written))
        assert (stored.purpose, stored.bytes) == (OUTPUT_PURPOSE, 3)
        assert await store.read(new.id) == b"out"

    asyncio.run(run())


def test_an_erased_tenant_has_no_file_and_no_content(store: FileStore) -> None:
    async def run() -> None:
        made, other = await store.upload(), await store.upload(store.globex)
        store.change(made.id, uses=1, filename="Wintermute")
        store.database.write_sync(lambda c: erase(c, "era_1", store.acme, 1))
        assert await store.read(made.id, hidden=True) is None
        names = store.database.read_sync(lambda c: list(c.execute(sa.select(file_rows.c.filename)).scalars()))
        assert "Wintermute" not in names
        assert await store.files.remove_unused() == 1
        assert store.contents() == store.rows() == {other.id}

    asyncio.run(run())


def test_a_key_that_was_deleted_during_the_upload_refuses_it(store: FileStore) -> None:
    async def run() -> None:
        key, _ = await store.files.begin_upload(store.acme)
        store.database.write_sync(lambda c: delete_text_key(c, store.acme))
        new = NewFile(id=new_file_id(), tenant_id=store.acme, key_id="k", purpose="batch", filename="a", expires_s=3600)

        written = await store.files.contents.write(key, new.id, part(TEXT))
        with pytest.raises(Conflict):
            await store.files.create_file(new, key, written)
        assert store.contents() == set()

    asyncio.run(run())


def test_opting_out_of_stored_responses_is_refused_while_a_file_needs_the_key(store: FileStore, tmp_path: Path) -> None:
    """One key encrypts both."""
    writes = Administration(parse_gateway_config(b"", tmp_path, "test", {}), Actor("cli:test")).tenants
    made = asyncio.run(store.upload())
    store.database.write_sync(lambda c: writes.update(c, store.acme, store_responses_s=3600))
    store.change(made.id, uses=1)
    asyncio.run(store.files.delete_file(store.acme, made.id))
    with pytest.raises(NotPossibleYet, match="the tenant has 1 files"):
        store.database.write_sync(lambda c: writes.update(c, store.acme, store_responses_s=None))
    assert asyncio.run(store.read(made.id, hidden=True)) == TEXT
    store.change(made.id, uses=0)
    store.database.write_sync(lambda c: writes.update(c, store.acme, store_responses_s=None))
    assert asyncio.run(store.read(made.id, hidden=True)) is None


def test_the_gauges_count_files_and_bytes(store: FileStore) -> None:
    async def run() -> None:
        await store.upload()
        await store.upload(store.globex)
        await store.files.measure_files()
        text = store.metrics.text().decode()
        assert "laneway_files 2.0" in text
        assert f"laneway_file_bytes {2.0 * len(TEXT)}" in text

    asyncio.run(run())
