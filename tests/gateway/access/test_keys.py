"""API keys: their form, and their life in the database, on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import random
import time
import zlib

import pytest
import sqlalchemy as sa

from billing import revision
from billing.accounts import tenants
from billing.database import Database
from billing.errors import InvalidValue
from gateway.access import keys
from gateway.tables import keys as table


@pytest.fixture
def tenant(database: Database) -> str:
    return database.write_sync(lambda c: tenants.create_tenant(c, slug="acme", name="Acme", tier="premium")).id


@pytest.mark.parametrize("kind", keys.KINDS)
def test_a_secret_has_the_published_form(kind: keys.Kind) -> None:
    secret = keys.make_secret(kind)
    lw, found, tail = secret.split("_")
    assert (lw, found, len(tail)) == ("lw", kind, 38)
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    number = 0
    for char in tail[32:]:
        number = number * 62 + digits.index(char)
    assert number == zlib.crc32(secret[:-6].encode())
    assert keys.is_well_formed(secret)


def test_any_single_mistake_is_seen() -> None:
    secret = keys.make_secret("live")
    choose = random.Random(1)
    for _ in range(2000):
        at = choose.randrange(len("lw_live_"), len(secret))
        other = choose.choice(keys.ALPHABET)
        if other != secret[at]:
            assert not keys.is_well_formed(secret[:at] + other + secret[at + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        *("", "lw_live_", "sk-abc", "lw_live_" + "é" * 38, "lw_root_" + "a" * 38),
        pytest.param(keys.make_secret("live") + "\n", id="a line's end"),
    ],
)
def test_what_is_no_key(text: str) -> None:
    assert not keys.is_well_formed(text)


def test_the_secret_is_not_in_the_database(database: Database, tenant: str) -> None:
    made = database.write_sync(lambda c: keys.create_key(c, tenant_id=tenant, name="one"))
    row = database.read_sync(lambda c: c.execute(sa.select(table)).one())
    assert row.hash == hashlib.sha256(made.secret.encode()).hexdigest()
    assert made.secret not in str(row)
    assert made.secret.startswith(row.prefix)
    assert len(row.prefix) == len("lw_live_") + 4
    assert made.secret.endswith(row.last4)
    assert abs(made.key.created_at - time.time()) < 60


def test_every_change_moves_the_revision(database: Database, tenant: str) -> None:
    seen = [database.read_sync(revision.read_revision)]
    first = database.write_sync(lambda c: keys.create_key(c, tenant_id=tenant, name="one"))
    seen.append(database.read_sync(revision.read_revision))
    second = database.write_sync(lambda c: keys.rotate(c, first.key.id, overlap_s=60))
    seen.append(database.read_sync(revision.read_revision))
    database.write_sync(lambda c: keys.revoke(c, second.key.id))
    seen.append(database.read_sync(revision.read_revision))
    assert seen == sorted(set(seen))
    database.write_sync(lambda c: keys.mark_used(c, {first.key.id: 5}))
    assert database.read_sync(revision.read_revision) == seen[-1]
    assert [key.last_used_at for key in database.read_sync(lambda c: keys.list_keys(c, tenant))] == [5, None]


def test_rotation_overlaps_and_happens_once(database: Database, tenant: str) -> None:
    old = database.write_sync(
        lambda c: keys.create_key(c, tenant_id=tenant, name="one", tier="batch", default_max_tokens=7)
    ).key
    new = database.write_sync(lambda c: keys.rotate(c, old.id, overlap_s=3600)).key
    assert (new.name, new.tier, new.default_max_tokens, new.expires_at) == ("one", "batch", 7, None)
    changed = database.read_sync(lambda c: keys.get_key(c, old.id))
    assert changed is not None
    assert changed.rotated_to == new.id
    assert changed.expires_at == pytest.approx(time.time() + 3600, abs=60)
    with pytest.raises(keys.KeyRefused, match="already"):
        database.write_sync(lambda c: keys.rotate(c, old.id, overlap_s=0))
    database.write_sync(lambda c: keys.revoke(c, new.id))
    with pytest.raises(keys.KeyRefused, match="revoked"):
        database.write_sync(lambda c: keys.rotate(c, new.id, overlap_s=0))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"name": ""}, "name"),
        ({"name": "x", "kind": "root"}, "kind"),
        ({"name": "x", "scopes": ["all"]}, "scope"),
        ({"name": "x", "scopes": ["admin"]}, "kind admin"),
        ({"name": "x", "tenant_id": None}, "tenant"),
    ],
)
def test_what_is_refused(fields: dict[str, object], why: str) -> None:
    with sa.create_engine("sqlite://").connect() as empty, pytest.raises((keys.KeyRefused, InvalidValue), match=why):
        keys.create_key(empty, **{"tenant_id": "ten_1", **fields})  # type: ignore[arg-type]


def test_an_operators_key_needs_no_tenant(database: Database, tenant: str) -> None:
    made = database.write_sync(lambda c: keys.create_key(c, tenant_id=None, name="root", kind="admin"))
    assert made.secret.startswith("lw_admin_")
    assert made.key.scopes == ["admin"]
    assert database.read_sync(lambda c: keys.get_key(c, "key_none")) is None
