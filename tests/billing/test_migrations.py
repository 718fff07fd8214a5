"""The schema that the migrations make is the schema that the tables say, and it protects what must not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from billing_books import Books, settlement

import gateway.tables  # noqa: F401 - its tables are in the metadata too
from billing import revision
from billing.database import Database
from billing.ledger import Held, Ledger
from billing.tables import metadata
from migrations.upgrade import is_current, upgrade

REPO = Path(__file__).resolve().parents[2]


def test_tables_and_migrations_agree(database_url: str) -> None:
    assert not is_current(database_url)
    upgrade(database_url)
    assert is_current(database_url)
    engine = sa.create_engine(database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_upgrading_again_changes_nothing(database_url: str) -> None:
    upgrade(database_url)
    database = Database(database_url)
    database.write_sync(revision.bump)
    upgrade(database_url)
    assert database.read_sync(revision.read) == 1
    database.close()


def test_two_hosts_upgrade_at_once(database_url: str) -> None:
    # Processes, as hosts are: alembic's context belongs to a whole process.
    hosts = [subprocess.Popen([sys.executable, "-m", "migrations", database_url], cwd=REPO) for _ in range(2)]
    assert [host.wait(60) for host in hosts] == [0, 0]
    assert is_current(database_url)


def test_command_makes_the_file_and_its_folder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'laneway.db'}"
    subprocess.run([sys.executable, "-m", "migrations", url], cwd=REPO, check=True)
    assert is_current(url)


@pytest.mark.parametrize("table", ["entries", "usage", "price_versions", "unit_prices"])
async def test_append_only(books: Books, table: str) -> None:
    ledger = Ledger(books.database, "gw_1")
    request = books.request()
    assert isinstance(await ledger.hold(request), Held)
    await ledger.settle(settlement(request, 5))
    column = metadata.tables[table].columns.keys()[1]
    statements = [f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"]
    if not books.database.is_sqlite:
        statements.append(f"TRUNCATE {table} CASCADE")
    for statement in statements:
        with pytest.raises(sa.exc.DBAPIError, match="append-only"):
            books.database.write_sync(lambda connection, text=statement: connection.exec_driver_sql(text))
    books.assert_sound()
