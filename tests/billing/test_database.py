"""Transactions as the ledger needs them: whole or not at all, reads that change nothing, failures with one name."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing import revision
from billing.database import Database, DatabaseUnavailable
from migrations.upgrade import upgrade
from support.billing.books import CANNOT_SERVE, Books, beginning_with
from support.cut_proxy import CutProxy
from support.read_only import mounted_read_only


async def test_a_write_that_raises_leaves_nothing(books: Books) -> None:
    before = await books.database.read(revision.read_revision)

    def fails(connection: sa.Connection) -> None:
        revision.bump(connection)
        raise KeyError("ours")

    with pytest.raises(KeyError):
        await books.database.write(fails)
    assert await books.database.read(revision.read_revision) == before


async def test_a_read_cannot_write(books: Books) -> None:
    with pytest.raises((sa.exc.DBAPIError, DatabaseUnavailable), match=r"read-?only"):
        await books.database.read(revision.bump)


async def test_a_read_sees_one_moment(books: Books) -> None:
    def both(connection: sa.Connection) -> tuple[int, int]:
        first = revision.read_revision(connection)
        books.database.write_sync(revision.bump)
        return first, revision.read_revision(connection)

    first, second = await books.database.read(both)
    assert first == second
    assert await books.database.read(revision.read_revision) == first + 1


async def test_writes_take_turns(books: Books) -> None:
    before = await books.database.read(revision.read_revision)
    await asyncio.gather(*(books.database.write(revision.bump) for _ in range(20)))
    assert await books.database.read(revision.read_revision) == before + 20


async def test_threads_of_one_process_wait_for_each_other_s_writes(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for SQLite's lock, which the driver polls at growing intervals."""
    upgrade(sqlite_url)
    database = Database(sqlite_url)
    begun, go_on = threading.Event(), threading.Event()

    def long(connection: sa.Connection) -> None:
        revision.bump(connection)
        begun.set()
        assert go_on.wait(10)

    before = await database.read(revision.read_revision)
    background = asyncio.create_task(database.write_in_background(long))
    await asyncio.to_thread(begun.wait, 10)
    with monkeypatch.context() as patience:
        patience.setattr("billing.database.BUSY_TIMEOUT_S", 0.05)
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await database.write(revision.bump)
    waiting = asyncio.create_task(database.write(revision.bump))
    go_on.set()
    await asyncio.gather(background, waiting)
    assert await database.read(revision.read_revision) == before + 2
    database.close()


async def test_away_has_one_name(postgres_books: Books) -> None:
    async with CutProxy(postgres_books.url) as proxy:
        database = Database(proxy.url)
        await database.read(revision.read_revision)
        proxy.cut()
        with pytest.raises(DatabaseUnavailable):
            await database.read(revision.read_revision)
        with pytest.raises(DatabaseUnavailable):
            await database.write(revision.bump)
        proxy.restore()
        await database.write(revision.bump)
        database.close()


@pytest.mark.parametrize("setting", CANNOT_SERVE)
async def test_a_server_that_answers_and_cannot_serve_is_away(postgres_books: Books, setting: str) -> None:
    database = Database(postgres_books.url)
    with beginning_with(database, setting), pytest.raises(DatabaseUnavailable):
        await database.write(revision.bump)
    await database.write(revision.bump)
    database.close()


@pytest.mark.parametrize("past_sqlalchemy", [False, True])
def test_a_damaged_file_is_away(sqlite_url: str, past_sqlalchemy: bool) -> None:
    """SQLite says so by its plain DatabaseError; a row that it refuses stays the row's fault."""
    upgrade(sqlite_url)
    database = Database(sqlite_url)
    insert = "INSERT INTO revision (id, number) VALUES (1, 1)"

    def run(connection: sa.Connection) -> None:
        if past_sqlalchemy:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.executemany(insert, [()])
        else:
            connection.exec_driver_sql(insert)

    with pytest.raises((sqlite3.IntegrityError, sa.exc.IntegrityError)):
        database.write_sync(run)
    database.close()
    path = database.sqlite_path
    assert path is not None
    size = path.stat().st_size
    with path.open("r+b") as file:  # all but the schema's page
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    damaged = Database(sqlite_url)
    with pytest.raises(DatabaseUnavailable, match="malformed"):
        damaged.write_sync(run)
    damaged.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db", "postgresql://host/db"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"memory|must begin with"):
        Database(url)


def test_durable_settings_of_sqlite(sqlite_books: Books) -> None:
    def pragma(name: str) -> object:
        return sqlite_books.database.read_sync(
            lambda connection: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
        )

    assert [pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys")] == ["wal", 2, 1]


def test_a_file_system_that_is_read_only_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    before = Database(f"sqlite:///{folder}/a.db")
    before.write_sync(lambda connection: connection.execute(sa.text("CREATE TABLE t (n INTEGER)")))
    before.close()
    with mounted_read_only(folder):
        database = Database(f"sqlite:///{folder}/a.db")
        with pytest.raises(DatabaseUnavailable):
            database.write_sync(lambda connection: connection.execute(sa.text("INSERT INTO t VALUES (1)")))
        assert database.write_fault == "the file or the folder of the database cannot be written"
        database.close()


def test_a_read_only_sqlite_database_is_named(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/a.db")

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.text("PRAGMA query_only = ON"))
        connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))

    with pytest.raises(DatabaseUnavailable):
        database.write_sync(write)
    assert database.write_fault == "the database is read-only"
    database.close()


def test_a_full_sqlite_file_is_named_until_a_write_succeeds(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/a.db")
    database.write_sync(lambda connection: connection.execute(sa.text("CREATE TABLE t (n BLOB)")))

    def overfill(connection: sa.Connection) -> None:
        connection.execute(sa.text("PRAGMA max_page_count = 4"))
        connection.execute(sa.text("INSERT INTO t VALUES (zeroblob(1000000))"))

    with pytest.raises(DatabaseUnavailable):
        database.write_sync(overfill)
    assert database.write_fault == "the disk of the database is full"
    database.write_sync(lambda connection: connection.execute(sa.text("PRAGMA max_page_count = 100000")))
    assert database.write_fault == ""
    database.close()


def test_a_read_only_postgres_is_named_and_a_lost_one_is_not(postgres_url: str) -> None:
    database = Database(postgres_url)

    def write(connection: sa.Connection) -> None:
        connection.execute(sa.text("SET TRANSACTION READ ONLY"))
        connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))

    with pytest.raises(DatabaseUnavailable):
        database.write_sync(write)
    assert database.write_fault == "the database is read-only"
    database.close()
    lost = Database("postgresql+psycopg://postgres@127.0.0.1:1/none")
    with pytest.raises(DatabaseUnavailable):
        lost.write_sync(lambda connection: connection.execute(sa.text("SELECT 1")))
    assert lost.write_fault == ""
    lost.close()
