"""The list of keys, narrowed: what each filter finds is what the keys themselves say."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from billing import clock
from billing.accounts import tenants
from billing.database import Database
from billing.lists import ListQuery
from gateway import tables
from gateway.access import keys
from migrations.upgrade import upgrade


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('filters')}/laneway.db"
    else:
        url = request.getfixturevalue("shared_postgres_url")
    upgrade(url)
    made = Database(url)
    yield made
    made.close()


def test_keys_by_status_project_kind_and_role(database: Database) -> None:
    mark = f"f{time.monotonic_ns():x}"  # the database is other tests' too

    def make(connection: sa.Connection) -> tuple[dict[str, str], str, str]:
        tenant = tenants.create_tenant(connection, slug=mark, name="f", tier="batch")
        other = tenants.create_project(connection, tenant_id=tenant.id, name="other").id
        now = clock.database_now(connection) // clock.SECOND

        def key(name: str, **more: object) -> str:
            return keys.create_key(connection, tenant_id=tenant.id, name=f"{name} {mark}", **more).key.id  # type: ignore[arg-type]

        made = {
            "for ever": key("for ever"),
            "soon": key("soon", expires_at=now + 3600, project_id=other),
            "in time": key("in time", expires_at=now + keys.EXPIRING_S + 3600, kind="test"),
            "ended": key("ended", expires_at=now + 60),
            "revoked": key("revoked", expires_at=now + 3600),
            "ruler": keys.create_key(connection, tenant_id=None, name=mark, kind="admin", role="finance").key.id,
        }
        past = sa.update(tables.keys).where(tables.keys.c.id == made["ended"])
        connection.execute(past.values(expires_at=(now - 1) * clock.SECOND))
        keys.revoke(connection, made["revoked"])
        return made, tenant.id, other

    made, tenant_id, other = database.write_sync(make)
    names = {key_id: name for name, key_id in made.items()}

    def found(**filters: object) -> set[str]:
        asked = ListQuery(sort="name", search=mark, limit=50)
        return {
            names[key.id]
            for key in database.read_sync(lambda c: keys.query_keys(c, asked, **filters)).items  # type: ignore[arg-type]
        }

    assert found() == set(made)
    assert found(status="active") == {"for ever", "soon", "in time", "ruler"}
    assert found(status="expiring") == {"soon"}
    assert found(status="expired") == {"ended"}
    assert found(status="revoked") == {"revoked"}
    assert found(project_id=other) == {"soon"}
    assert found(kind="test") == {"in time"}
    assert found(role="finance") == {"ruler"}
    assert found(role="owner") == set()
    assert found(tenant_id=tenant_id, status="active") == {"for ever", "soon", "in time"}
