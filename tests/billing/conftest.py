"""A migrated database of each kind, with one tenant and one priced model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billing_books import Books, make_books


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    made = make_books(database_url)
    yield made
    made.database.close()


@pytest.fixture
def postgres_books(postgres_url: str) -> Iterator[Books]:
    made = make_books(postgres_url)
    yield made
    made.database.close()


@pytest.fixture
def sqlite_books(sqlite_url: str) -> Iterator[Books]:
    made = make_books(sqlite_url)
    yield made
    made.database.close()
