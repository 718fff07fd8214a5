"""A migrated database of each kind, with one tenant and one priced model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing.tables import metadata
from migrations.upgrade import upgrade
from support.billing.books import Books, make_books


@pytest.fixture(scope="session")
def migrated_postgres_url(shared_postgres_url: str) -> str:
    upgrade(shared_postgres_url)
    return shared_postgres_url


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "laneway.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def postgres_books(migrated_postgres_url: str) -> Iterator[Books]:
    _empty(migrated_postgres_url)
    books = make_books(migrated_postgres_url)
    yield books
    books.database.close()


@pytest.fixture
def sqlite_books(migrated_sqlite_file: Path, tmp_path: Path) -> Iterator[Books]:
    books = make_books(f"sqlite:///{shutil.copy(migrated_sqlite_file, tmp_path)}")
    yield books
    books.database.close()


@pytest.fixture(params=["sqlite", "postgres"])
def books(request: pytest.FixtureRequest) -> Books:
    found: Books = request.getfixturevalue(f"{request.param}_books")
    return found


def _empty(url: str) -> None:
    """Delete every row, past the triggers that forbid it."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        for table in metadata.tables.values():
            if table.name == "audits":
                connection.execute(sa.update(table).values(seen_at=0, unbroken_from=0))
            elif table.name == "rollup_cursor":
                connection.execute(sa.update(table).values(sequence=0, requests=0, made_tokens=0, folded_at=0))
            elif table.name == "day_cursor":
                connection.execute(sa.update(table).values(sequence=0, folded_at=0))
            elif table.name == "audit_head":
                connection.execute(sa.update(table).values(position=0, hash="0" * 64, chained_to=0))
            elif table.name != "revision":
                connection.execute(sa.delete(table))
