"""`laneway tenants export` writes all of one tenant and nothing of another; `laneway tenants erase` leaves the books'
amounts, and in no table a name."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables as billing
from billing.accounts import budgets, tenants, webhooks
from billing.books import corrections, documents, invoices, periods, rollups, sla
from billing.books.documents import BillingProfile
from billing.database import Database
from billing.exports import labels
from billing.ledger.ledger import Ledger
from billing.tables import metadata
from gateway import tables
from gateway.access import audit_log, keys
from gateway.config.file import parse_gateway_config
from gateway.config.server_secrets import read_server_secrets
from gateway.files.backends import ContentDirectory
from gateway.files.contents import FileContents
from gateway.files.rows import NewFile, insert_file
from gateway.recovery.tenant_files import CHILDREN, LEFT_OUT, rows_of
from gateway.stored.conversations import ConversationStore
from gateway.stored.quotas import ResponseQuotas
from gateway.stored.responses import ResponseStore
from gateway.stored.texts import TextKeys
from migrations.upgrade import upgrade
from support.billing.books import Books, make_books, settlement
from support.gateway.command_line import Laneway
from support.stack import register

MARK = "Wintermute"  # in every name and text of the tenant
DIGEST = "d1" * 32  # of the name of an end user
FILE_ID = "file-" + "0" * 32
ITEM = {"id": "msg_1", "type": "message", "content": MARK}


@pytest.fixture
def books(database_url: str) -> Iterator[Books]:
    upgrade(database_url)
    made = make_books(database_url)
    yield made
    made.database.close()


@pytest.fixture
def laneway(tmp_path: Path, books: Books) -> Laneway:
    made = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{books.url}"\n')
    config = parse_gateway_config(made.file.read_bytes(), tmp_path, "test", {})
    contents = FileContents(ContentDirectory(config.files_dir))
    asyncio.run(fill(books, TextKeys(read_server_secrets(config)), contents))
    return made


async def fill(books: Books, text_keys: TextKeys, contents: FileContents) -> None:
    """One of everything, of the tenant and of another."""
    database, tenant_id = books.database, books.tenant.id

    def insert(connection: sa.Connection) -> str:
        tenants.update_tenant(connection, tenant_id, name=MARK, store_responses_s=3600)
        tenants.create_tenant(connection, slug="other", name="Neuromancer", tier="batch")
        tenants.create_project(connection, tenant_id=tenant_id, name=f"{MARK} project")
        made = keys.create_key(connection, tenant_id=tenant_id, name=f"{MARK} key")
        keys.create_key(connection, tenant_id=tenant_id, name=f"{MARK} again")
        webhooks.create_webhook(connection, url=f"https://{MARK}.example.org/", tenant_id=tenant_id)
        register(connection, name=f"{MARK}-style", tenant_id=tenant_id, digest="ab" * 32, model="model-a")
        after = {"name": MARK}
        audit_log.add_audit_line(connection, actor="me", action="a.b", object_id="x", tenant_id=tenant_id, after=after)
        return made.key.id

    key_id = database.write_sync(insert)
    budget = books.budget(10_000)
    ledger = Ledger(database, "gw_1")
    database.write_sync(
        lambda c: budgets.create_budget(
            c,
            tenant_id=tenant_id,
            scope="key",
            scope_id=key_id,
            unit="tokens",
            period="day",
            limit_amount=1000,
            per_end_user=True,
        )
    )
    request = msgspec.structs.replace(books.request(key=key_id), end_user=DIGEST)
    await ledger.hold(request)
    await ledger.settle(settlement(request, 5))
    await ledger.close()
    assert books.state(budget) == (15, 0)
    quotas = ResponseQuotas(100, 10**6)
    await ConversationStore(database, text_keys, quotas).create_conversation(
        tenant_id, json.dumps({"topic": MARK}).encode(), [dict(ITEM)]
    )
    await ResponseStore(database, "gw_1", text_keys, quotas).begin_turn(
        tenant_id, "resp_1", None, json.dumps([ITEM]).encode()
    )
    await add_file(database, text_keys, contents, tenant_id)

    def bill(connection: sa.Connection) -> None:
        profile = BillingProfile(
            tenant_id=tenant_id, legal_name=f"{MARK} AG", address=(MARK,), accounts={"stripe": MARK}
        )
        documents.set_profile(connection, profile)
        corrections.correct_tenant(connection, tenant_id, picos=-5, reason="credit", actor="me")
        rollups.fold_all(connection)
        sla.fold_sla(connection)
        first = periods.first_open(connection, tenant_id)
        assert first is not None
        labels.store_names(connection, first, {tenant_id: MARK, labels.PROVIDER: "Laneway"})
        invoices.close(connection, tenant_id, first.month, actor="me", clock=lambda _connection: first.end_at)

    database.write_sync(bill)


async def add_file(database: Database, text_keys: TextKeys, contents: FileContents, tenant_id: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield MARK.encode()

    key = database.write_sync(lambda c: text_keys.ensure_key(c, tenant_id))
    written = await contents.write(key, FILE_ID, parts())
    new = NewFile(
        id=FILE_ID, tenant_id=tenant_id, key_id="k", purpose="batch", filename=f"{MARK}.jsonl", expires_s=3600
    )
    database.write_sync(lambda c: insert_file(c, new, key, written))


def everything(database: Database, but: str = "") -> str:
    """Every row of every table except `but`, as text."""

    def read(connection: sa.Connection) -> str:
        return "\n".join(
            f"{name}: {dict(row._mapping)}"
            for name, table in metadata.tables.items()
            if name != but
            for row in connection.execute(sa.select(table))
        )

    return database.read_sync(read)


def test_every_table_is_of_a_tenant_or_left_out() -> None:
    """A new table without a column tenant_id must be in CHILDREN or in LEFT_OUT."""
    assert set(CHILDREN) | LEFT_OUT <= set(metadata.tables)
    assert not set(CHILDREN) & LEFT_OUT
    for name in metadata.tables:
        assert (rows_of(name, "ten_1") is None) == (name in LEFT_OUT)


def test_an_export_has_all_of_one_tenant(laneway: Laneway, books: Books, tmp_path: Path) -> None:
    folder = tmp_path / "acme"
    shown = laneway.json("tenants", "export", "acme", str(folder))
    assert (shown["unreadable"], shown["tenant_id"]) == (0, books.tenant.id)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"manifest.json"}
    assert {file["name"] for file in manifest["files"]} == written
    for file in manifest["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["bytes"], file["sha256"])

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]

    assert [row["name"] for row in rows("tenants")] == [MARK]
    assert [row["completion_tokens"] for row in rows("usage")] == [5]
    assert [row["requests"] for row in rows("sla_quarters")] == [1]
    assert json.loads(json.dumps(rows("conversations")[0]["metadata"])) == {"topic": MARK}
    assert MARK in json.dumps(rows("conversation_items")[0]["item"]["content"])
    assert rows("responses")[0]["input"] == [ITEM]
    assert rows("files")[0]["filename"] == f"{MARK}.jsonl"
    assert (folder / "files" / FILE_ID).read_text() == MARK
    assert {"invoices", "invoice_lines", "entries", "budget_windows", "adapter_versions", "audit_log"} <= {
        name.removesuffix(".jsonl") for name in written
    }
    whole = "".join((folder / name).read_text() for name in written)
    assert "Neuromancer" not in whole
    assert len(rows("budgets")) == len(rows("budget_windows")) + 1 == 3, "the template itself counts nothing"
    assert DIGEST not in whole
    secrets = books.database.read_sync(
        lambda c: [
            *c.execute(sa.select(tables.keys.c.hash)).scalars(),
            *c.execute(sa.select(billing.webhooks.c.secret)).scalars(),
        ]
    )
    assert not [secret for secret in secrets if secret in whole]
    assert "exists already" in laneway.refusal("tenants", "export", "acme", str(folder))


def test_an_erasure_leaves_amounts_and_no_name(laneway: Laneway, books: Books) -> None:
    database, tenant_id = books.database, books.tenant.id
    totals = database.read_sync(lambda c: c.execute(sa.select(billing.invoices.c.total_picos)).scalars().all())
    assert MARK in everything(database)
    assert DIGEST in everything(database)
    laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    left = everything(database, but="documents")  # tax law keeps the names on invoices
    assert MARK not in left
    assert DIGEST not in left
    assert database.read_sync(lambda c: list(c.execute(sa.select(billing.budgets.c.end_user)).scalars())) == [None] * 3
    assert "acme" not in left
    assert MARK in everything(database)
    books.assert_sound()
    assert database.read_sync(lambda c: c.execute(sa.select(billing.invoices.c.total_picos)).scalars().all()) == totals
    assert "Neuromancer" in left
    key = database.read_sync(
        lambda c: c.execute(sa.select(tables.keys).where(tables.keys.c.tenant_id == tenant_id))
    ).first()
    assert key is not None
    assert (key.revoked_at is not None, key.prefix, key.hash) == (True, "", key.id)
    assert database.read_sync(lambda c: c.execute(sa.select(tables.text_keys.c.wrapped)).scalars().all()) == [None]
    [line] = laneway.json("audit", "--action", "tenant.erase")
    [erasure] = [
        msgspec.json.decode(text)
        for text in (laneway.file.parent / ".laneway" / "erasures.jsonl").read_bytes().splitlines()
    ]
    assert (line["tenant_id"], line["after"]) == (tenant_id, {"erasure": erasure["id"]})
    assert erasure["tenant_id"] == tenant_id
    assert "sound" in laneway.text("audit", "verify")
    slug = f"erased-{tenant_id.removeprefix('ten_')[:20]}"
    assert "erased already" in laneway.refusal("tenants", "erase", slug, "--confirm", slug)
    assert "not activated again" in laneway.refusal("tenants", "resume", slug)
