"""A migrated database without rows, for tests that need no gateway process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from billing.database import Database
from migrations.upgrade import upgrade


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Of each kind: SQLite and PostgreSQL."""
    upgrade(database_url)
    made = Database(database_url)
    yield made
    made.close()


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Iterator[Database]:
    """For a test that does not depend on the kind of database."""
    upgrade(sqlite_url)
    made = Database(sqlite_url)
    yield made
    made.close()
