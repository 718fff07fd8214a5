"""Tenants: made, listed, changed, suspended; names that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from billing import revision
from billing.accounts import tenants
from billing.errors import AlreadyExists, InvalidValue, RowNotFound
from support.billing.books import Books, default_project


def create(books: Books, **arguments: Any) -> tenants.Tenant:
    good: dict[str, Any] = {"slug": "globex", "name": "Globex", "tier": "standard"}
    return books.database.write_sync(lambda connection: tenants.create_tenant(connection, **(good | arguments)))


def test_created_with_its_default_project(books: Books) -> None:
    tenant = create(books, default_max_tokens=512, currency="EUR")
    database = books.database
    assert database.read_sync(lambda connection: tenants.get_tenant(connection, tenant.id)) == tenant
    assert database.read_sync(lambda connection: tenants.by_slug(connection, "globex")) == tenant
    project = database.read_sync(lambda connection: default_project(connection, tenant.id))
    assert (project.tenant_id, project.name) == (tenant.id, "default")
    assert database.read_sync(lambda connection: tenants.get_tenant(connection, "ten_none")) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"slug": "Globex"},
        {"slug": "-globex"},
        {"slug": "globex\n"},
        {"slug": ""},
        {"slug": "a" * 64},
        {"name": ""},
        {"name": "x\0y"},
        {"tier": ""},
        {"currency": "usd"},
        {"currency": "EURO"},
        {"default_max_tokens": 0},
        {"default_max_tokens": 2**24 + 1},
        {"share_weight": 0.0},
        {"share_weight": -1.0},
        {"share_weight": 1000.5},
        {"share_weight": float("nan")},
    ],
)
def test_refused(books: Books, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as refused:
        create(books, **arguments)
    assert refused.value.param in arguments


def test_a_slug_is_taken_once(books: Books) -> None:
    with pytest.raises(AlreadyExists):
        create(books, slug="acme")


def test_listed_in_pages_by_slug(books: Books) -> None:
    for number in range(5):
        create(books, slug=f"t{number}")

    def page(after: str) -> list[str]:
        return [
            tenant.slug
            for tenant in books.database.read_sync(
                lambda connection: tenants.list_tenants(connection, after=after, limit=2)
            )
        ]

    found: list[str] = []
    while slugs := page(found[-1] if found else ""):
        found += slugs
    assert found == ["acme", "t0", "t1", "t2", "t3", "t4"]


def test_changes(books: Books) -> None:
    tenant_id = books.tenant.id
    before = books.database.read_sync(revision.read_revision)

    def write(**arguments: Any) -> tenants.Tenant:
        return books.database.write_sync(lambda connection: tenants.update_tenant(connection, tenant_id, **arguments))

    changed = write(name="Acme & Co", tier="batch", default_max_tokens=100)
    assert (changed.name, changed.tier, changed.default_max_tokens) == ("Acme & Co", "batch", 100)
    assert write(name="Acme").default_max_tokens == 100, "what is not given stays"
    assert write(default_max_tokens=None).default_max_tokens is None
    assert books.tenant.share_weight == 1.0
    assert write(share_weight=2.5).share_weight == 2.5
    assert write(name="Acme").share_weight == 2.5
    assert books.database.write_sync(lambda c: tenants.suspend(c, tenant_id)).status == "suspended"
    assert books.database.write_sync(lambda c: tenants.resume(c, tenant_id)).status == "active"
    assert books.database.read_sync(revision.read_revision) == before + 7
    with pytest.raises(InvalidValue):
        write(name="")
    with pytest.raises(InvalidValue, match="is 0; it must be over 0 and at most 1000"):
        write(share_weight=0.0)
    with pytest.raises(RowNotFound):
        books.database.write_sync(lambda c: tenants.suspend(c, "ten_none"))
    assert books.database.read_sync(revision.read_revision) == before + 7
