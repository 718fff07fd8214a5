"""Services that a test needs of its machine: skipped or failed where one is missing; fresh PostgreSQL databases."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

POSTGRES_ADMIN = os.environ.get("LANEWAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
# Each process of a parallel run has its own Redis database, because tests flush it.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
REDIS_URL = os.environ.get("LANEWAY_TEST_REDIS", f"redis://127.0.0.1:6379/{15 - WORKER % 8}")


def missing_service(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where CI promised that all is there."""
    if os.environ.get("LANEWAY_REQUIRE_SERVICES") == "1":
        pytest.fail(f"LANEWAY_REQUIRE_SERVICES=1, and {name} is not usable: {reason}", pytrace=False)
    pytest.skip(f"!!! {name} NOT AVAILABLE, THIS TEST DID NOT RUN: {reason}")


@contextmanager
def fresh_postgres(template: str = "template1") -> Iterator[str]:
    """A new PostgreSQL database, empty or a copy of another; dropped afterwards. No test pulls the plug on its host."""
    import sqlalchemy as sa

    admin = sa.create_engine(POSTGRES_ADMIN, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    name = f"laneway_test_{uuid.uuid4().hex[:12]}"
    try:
        with admin.connect() as connection:
            connection.execute(sa.text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
            connection.execute(sa.text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    except sa.exc.OperationalError as error:
        missing_service("PostgreSQL", str(error.orig))
    yield str(sa.make_url(POSTGRES_ADMIN).set(database=name).render_as_string(hide_password=False))
    with admin.connect() as connection:
        connection.execute(sa.text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
