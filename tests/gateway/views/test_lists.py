"""Lists by any column: whoever pages through one sees each row once, in order, with ties and while rows are added."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.accounts import budgets, tenants
from billing.books import invoices
from billing.database import Database
from billing.errors import InvalidValue
from billing.exports import jobs
from billing.lists import ListCursor, ListPage, ListQuery
from gateway import tables
from gateway.access import audit_log, keys
from gateway.catalog import adapters
from gateway.views import batches as batch_lists
from support.gateway.session_client import Browser
from support.stack import Stack
from support.waiting import promptly

KEYS = 10_000
PAGE_S_MAX = 0.25


def some(connection: sa.Connection, tenant_id: str, count: int, chance: random.Random) -> None:
    """Keys as rows, with few different values, and many nulls."""
    rows: list[dict[str, Any]] = [
        {
            "id": f"key_{uuid.uuid4().hex}",
            "tenant_id": tenant_id,
            "name": chance.choice(["a", "B", "b", "é", "_%", "zz"]),
            "kind": chance.choice(["live", "test"]),
            "hash": uuid.uuid4().hex,
            "prefix": "lw_live_",
            "last4": chance.choice(["aaaa", "bbbb"]),
            "tier": chance.choice([None, "batch"]),
            "scopes": [],
            "created_at": chance.choice([1_000_000, 2_000_000, 3_000_000]),
            "last_used_at": chance.choice([None, 5_000_000, 6_000_000]),
        }
        for _ in range(count)
    ]
    connection.execute(sa.insert(tables.keys), rows)


def pages(database: Database, tenant_id: str, between: Callable[[], None], **asked: Any) -> list[keys.Key]:
    found: list[keys.Key] = []
    after: ListCursor | None = None
    while True:
        wanted = ListQuery(after=after, **asked)
        listed: ListPage[keys.Key] = database.read_sync(lambda c, w=wanted: keys.query_keys(c, w, tenant_id=tenant_id))
        assert len(listed.items) <= wanted.limit
        found += listed.items
        after = listed.next
        if after is None:
            return found
        assert len(listed.items) == wanted.limit
        between()


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sort=st.sampled_from([sign + name for name in keys._SORTED.sorts for sign in ("", "-")]),
    limit=st.integers(1, 7),
    count=st.integers(0, 20),
    added=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_each_row_once_and_in_order(
    database: Database, sort: str, limit: int, count: int, added: int, seed: int
) -> None:
    chance = random.Random(seed)

    def make(connection: sa.Connection) -> str:
        slug = f"t{chance.getrandbits(60):x}{time.monotonic_ns():x}"
        tenant = tenants.create_tenant(connection, slug=slug, name="t", tier="batch")
        if count:
            some(connection, tenant.id, count, chance)
        return tenant.id

    tenant_id = database.write_sync(make)
    there = {key.id for key in database.read_sync(lambda c: keys.list_keys(c, tenant_id))}
    assert len(there) == count
    left = [added]

    def between() -> None:
        if left[0]:
            left[0] -= 1
            database.write_sync(lambda c: some(c, tenant_id, 2, chance))

    found = pages(database, tenant_id, between, sort=sort, limit=limit)
    ids = [key.id for key in found]
    assert len(ids) == len(set(ids))
    assert there <= set(ids)
    whole = pages(database, tenant_id, lambda: None, sort=sort, limit=1000)
    assert ids == [key.id for key in whole if key.id in set(ids)], "in the order of the whole"
    column, descending = sort.removeprefix("-"), sort.startswith("-")
    if column.endswith("_at"):
        values = [(getattr(key, column) or 0, key.id) for key in found]
        assert values == sorted(values, reverse=descending)


def test_a_search_finds_parts_of_names_and_ids(database: Database) -> None:
    def make(connection: sa.Connection) -> str:
        tenant = tenants.create_tenant(connection, slug=f"s{time.monotonic_ns():x}", name="t", tier="batch")
        for name in ("Checkout", "check 100%", "check_in", "other"):
            keys.create_key(connection, tenant_id=tenant.id, name=name)
        return tenant.id

    tenant_id = database.write_sync(make)

    def names(search: str) -> list[str]:
        asked = ListQuery(sort="name", search=search)
        return sorted(
            key.name for key in database.read_sync(lambda c: keys.query_keys(c, asked, tenant_id=tenant_id)).items
        )

    assert names("CHECK") == ["Checkout", "check 100%", "check_in"]
    assert names("0%") == ["check 100%"]
    assert names("k_i") == ["check_in"]
    one = database.read_sync(lambda c: keys.list_keys(c, tenant_id))[0]
    assert names(one.id[4:20].upper()) == [one.name]
    assert names(tenant_id) == sorted(["Checkout", "check 100%", "check_in", "other"])
    assert names("\\") == []


@pytest.mark.parametrize(
    "place",
    [
        ListCursor("-name", "a", "key_1"),
        ListCursor("name", 5, "key_1"),
        ListCursor("name", "a", 7),
        ListCursor("name", "a\0", "key_1"),
    ],
)
def test_a_place_of_another_list_is_refused(database: Database, place: ListCursor) -> None:
    with pytest.raises(InvalidValue) as refused:
        database.read_sync(lambda c: keys.query_keys(c, ListQuery(sort="name", after=place)))
    assert refused.value.param == "page"
    far = ListQuery(sort="created_at", after=ListCursor("created_at", 2**70, "key_1"))
    with pytest.raises(InvalidValue):
        database.read_sync(lambda c: keys.query_keys(c, far))
    with pytest.raises(InvalidValue) as refused:
        database.read_sync(lambda c: keys.query_keys(c, ListQuery(sort="hash")))
    assert refused.value.param == "sort"


def test_ten_thousand_keys_are_quick(database: Database) -> None:
    chance = random.Random(1)

    def make(connection: sa.Connection) -> str:
        tenant = tenants.create_tenant(connection, slug=f"q{time.monotonic_ns():x}", name="t", tier="batch")
        for _ in range(KEYS // 500):
            some(connection, tenant.id, 500, chance)
        return tenant.id

    tenant_id = database.write_sync(make)
    for sort in ("-created_at", "name", "-last_used_at"):
        for search in (None, "ZZ"):
            asked = ListQuery(sort=sort, search=search)

            def two_pages(asked: ListQuery = asked) -> float:
                began = time.perf_counter()
                listed = database.read_sync(lambda c: keys.query_keys(c, asked, tenant_id=tenant_id))
                following = msgspec.structs.replace(asked, after=listed.next)
                database.read_sync(lambda c: keys.query_keys(c, following, tenant_id=tenant_id))
                return time.perf_counter() - began

            promptly(two_pages, 2 * PAGE_S_MAX)


# ---- over HTTP

# By path: what it is sorted by when nothing is said, and what it can be.
PATHS = {
    "tenants": ("slug", tenants._SORTED_TENANTS),
    "projects": ("name", tenants._SORTED_PROJECTS),
    "keys": ("created_at", keys._SORTED),
    "budgets": ("created_at", budgets._SORTED),
    "adapters": ("name", adapters._SORTED),
    "exports": ("-created_at", jobs._SORTED),
    "batches": ("-created_at", batch_lists._BATCH_LIST),
    "files": ("-created_at", batch_lists._FILE_LIST),
    "invoices": ("period", invoices._SORTED),
    "audit_log": ("-at", audit_log._SORTED),
}


def steady(row: dict[str, Any]) -> dict[str, Any]:
    """Without what is another from one second to the next: where a budget leads."""
    return {name: value for name, value in row.items() if name not in ("projected", "run_out_at")}


def test_every_list_is_searched_and_sorted(stack: Stack) -> None:
    owner = stack.write(lambda c: keys.create_key(c, tenant_id=None, name="lister", kind="admin"))
    stack.write(lambda c: audit_log.add_audit_line(c, actor="lists", action="list.try", object_id="Findable_1"))
    browser = Browser(stack.url)
    browser.headers["Authorization"] = f"Bearer {owner.secret}"
    spec = browser.get("/schema/openapi.json").json()["paths"]
    for path, (default, columns) in PATHS.items():
        named = {one["name"]: one["schema"] for one in spec[f"/v1/admin/{path}"]["get"]["parameters"]}
        sorts = named["sort"]["enum"]
        assert named["sort"]["default"] == default
        assert set(sorts) == {sign + name for name in columns.sorts for sign in ("", "-")}
        for sort in sorts:
            whole = browser.get(f"/v1/admin/{path}", params={"sort": sort})
            assert whole.status_code == 200, whole.text
            first = browser.get(f"/v1/admin/{path}", params={"sort": sort, "limit": 1}).json()
            if first["has_more"]:
                asked = {"sort": sort, "limit": 1, "page": first["next_page"]}
                second = browser.get(f"/v1/admin/{path}", params=asked).json()
                both = [steady(row) for row in (*first["data"], *second["data"])]
                assert both == [steady(row) for row in whole.json()["data"][:2]], (path, sort)
        assert browser.get(f"/v1/admin/{path}", params={"sort": "colour"}).json()["error"]["param"] == "sort"
        assert browser.get(f"/v1/admin/{path}", params={"search": "no such thing"}).json()["data"] == []
        assert browser.get(f"/v1/admin/{path}", params={"search": "\0"}).json()["error"]["param"] == "search"
    found = browser.get("/v1/admin/tenants", params={"search": "GLOB"}).json()["data"]
    assert [one["slug"] for one in found] == ["globex"]
    found = browser.get("/v1/admin/audit_log", params={"search": "findable"}).json()["data"]
    assert [one["object_id"] for one in found] == ["Findable_1"]
