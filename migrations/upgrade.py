"""Upgrades a database's schema to the newest revision in one transaction. Concurrent upgrades wait for each other."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import event

ADVISORY_LOCK = 0x1A9E_3A71  # of PostgreSQL; serialises upgrades by several hosts
BUSY_TIMEOUT_S = 30
WAL_RETRY_S = 0.02


def upgrade(url: str) -> None:
    """Run all revisions that the database at `url` lacks, in one transaction. Without such a revision nothing
    changes."""
    with _migrating(url) as connection:
        command.upgrade(configuration(connection), "head")


def is_current(url: str) -> bool:
    """Whether the schema is at the newest revision."""
    found, newest = revisions(url)
    return found == newest


def revisions(url: str) -> tuple[str | None, str | None]:
    """The schema's revision, None without tables, and the newest revision."""
    from alembic.migration import MigrationContext

    with _migrating(url) as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    return found, ScriptDirectory.from_config(configuration(None)).get_current_head()


def new_revision(url: str, message: str) -> None:
    """Write a new revision from the difference between our tables and the schema of `url`. It is a draft, to be
    reviewed and edited."""
    with _migrating(url) as connection:
        command.revision(configuration(connection), message, autogenerate=True)


def configuration(connection: sa.Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _migrating(url: str) -> Iterator[sa.Connection]:
    target = sa.make_url(url)
    is_sqlite = target.get_backend_name() == "sqlite"
    if is_sqlite and target.database:
        Path(target.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would use the umask. Its -wal and -shm files get the mode of the database file.
        os.close(os.open(target.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    arguments: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S} if is_sqlite else {}
    engine = sa.create_engine(target, connect_args=arguments, poolclass=sa.pool.NullPool)
    if is_sqlite:
        _own_transactions(engine)
    try:
        with engine.begin() as connection:
            if not is_sqlite:
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
            yield connection
    finally:
        engine.dispose()


def _own_transactions(engine: sa.Engine) -> None:
    """Begin SQLite's transactions here and not in the driver, so that they include CREATE TABLE and ALTER TABLE."""

    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = None
        _use_wal(dbapi_connection)

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _use_wal(dbapi_connection: Any) -> None:
    """Change the journal mode to WAL. This needs exclusive access to the file, and SQLite's busy timeout does not apply
    to it, so it is retried here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            dbapi_connection.execute("PRAGMA journal_mode = WAL").close()
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(WAL_RETRY_S)
