"""All data of one tenant as files: a JSON object for each row, one file for each table, the files of its adapters, the
contents of /v1/files, and a manifest with digests. Stored texts are decrypted; secrets and their hashes are left out.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from adapters.files.store import FILES, AdapterStore
from billing import tables as billing
from billing.clock import database_now, rfc3339
from billing.tables import metadata
from gateway import tables
from gateway.file_tables import files as file_rows
from gateway.files.backends import ContentStoreFailed
from gateway.files.contents import FileContents
from gateway.recovery import dumps
from gateway.recovery.archive import sync_folder
from gateway.stored.conversations import item_place, metadata_place
from gateway.stored.responses import answer_place, input_place
from gateway.stored.texts import TextKey, TextKeys, TextUnreadable

MANIFEST = "manifest.json"
ROWS_AT_ONCE = 1000
# Table → its column, and the tenant's table and column that it refers to.
CHILDREN: dict[str, tuple[str, str, str]] = {
    "sessions": ("key_id", "keys", "id"),
    "person_sessions": ("person_id", "people", "id"),
    "key_totp": ("key_id", "keys", "id"),
    "budget_windows": ("budget_id", "budgets", "id"),
    "alert_deliveries": ("alert_id", "alerts", "id"),
    "hold_charges": ("request_id", "holds", "request_id"),
    "lost_attempts": ("request_id", "holds", "request_id"),
    "usage_recompute": ("request_id", "usage", "request_id"),
    "usage_attempts": ("request_id", "usage", "request_id"),
    "invoice_lines": ("invoice_id", "invoices", "id"),
    "export_names": ("period_id", "billing_periods", "id"),
    "export_invoices": ("invoice_id", "invoices", "id"),
    "adapter_versions": ("adapter_id", "adapters", "id"),
}
# Tables without rows for the tenant: the operator's and the deployment's tables, keys of texts, and tables that are
# derived from other tables or whose rows expire within a day.
LEFT_OUT = frozenset(
    (
        *("revision", "revision_log", "price_versions", "unit_prices", "audits", "leases", "rollup_cursor"),
        *(
            "sla_cursor",
            "day_cursor",
            "engine_ledger",
            "engine_readings",
            "engine_counts",
            "reconciliations",
            "server_secret",
            "text_keys",
        ),
        *("base_models", "model_aliases", "first_token_minutes", "audit_chain", "audit_head", "audit_checkpoints"),
        *("erasures", "restores", "checkpoints", "replays", "write_replays", "response_events", "spent_tokens"),
        *("problem_reports", "problems", "problem_events", "problem_deliveries", "batch_deliveries"),
        *("document_counters", "connectors"),
        *("batch_lines", "output_leases", "line_outputs"),  # while a batch runs: its files have them afterwards
    )
)
SECRET_COLUMNS = {
    "keys": ("hash",),
    "key_totp": ("secret", "recovery_hashes"),
    "sessions": ("hash",),
    "person_sessions": ("hash", "tokens"),
    "budgets": ("end_user",),
    "webhooks": ("secret", "routing_key"),
}


class TenantFile(msgspec.Struct, frozen=True):
    name: str
    rows: int | None  # None: not a table
    bytes: int
    sha256: str


class TenantManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`unreadable`: stored texts and contents that do not decrypt with the server secret or are missing, and are not in
    the files."""

    tenant_id: str
    slug: str
    at: str  # RFC 3339
    files: list[TenantFile]
    unreadable: int


class FolderTaken(Exception):
    """The folder for the files exists already."""


def write_files(
    url: str,
    tenant_id: str,
    folder: Path,
    store: AdapterStore,
    contents: FileContents,
    keys: TextKeys,
    say: Callable[[str], None],
) -> TenantManifest:
    """Write the tenant's files to the new `folder`, which gets its name when it is complete. All rows are of one
    moment; moments are integer microseconds UTC. Raises FolderTaken, OSError."""
    if folder.exists():
        raise FolderTaken(f"{folder} exists already")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    try:
        with dumps.one_view(url) as connection:
            manifest = _write_all(connection, tenant_id, partial, store, contents, keys, say)
        (partial / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        sync_folder(partial)
        partial.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def rows_of(name: str, tenant_id: str) -> sa.Select[Any] | None:
    """The tenant's rows of a table, in the order of its primary key; None: the table is left out."""
    if name in LEFT_OUT:
        return None
    table = metadata.tables[name]
    secret = SECRET_COLUMNS.get(name, ())
    query = sa.select(*[column for column in table.c if column.name not in secret]).order_by(*table.primary_key)
    if name == "tenants":
        return query.where(table.c.id == tenant_id)
    if name in CHILDREN:
        own, parent_name, key = CHILDREN[name]
        parent = metadata.tables[parent_name]
        return query.where(table.c[own].in_(sa.select(parent.c[key]).where(parent.c.tenant_id == tenant_id)))
    return query.where(table.c.tenant_id == tenant_id)


def _write_all(
    connection: sa.Connection,
    tenant_id: str,
    folder: Path,
    store: AdapterStore,
    contents: FileContents,
    keys: TextKeys,
    say: Callable[[str], None],
) -> TenantManifest:
    slug = sa.select(billing.tenants.c.slug).where(billing.tenants.c.id == tenant_id)
    key = _key_of(connection, keys, tenant_id)
    texts = _Texts(key)
    files = []
    for name in sorted(metadata.tables):
        if (query := rows_of(name, tenant_id)) is None:
            continue
        path = folder / f"{name}.jsonl"
        rows = 0
        with path.open("xb") as file:
            for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query):
                file.write(_line(texts.opened(name, dict(row._mapping))))
                rows += 1
        if rows:
            files.append(_file(folder, path, rows))
            say(f"{name}: {rows} rows")
        else:
            path.unlink()
    files += _copy_adapters(connection, tenant_id, folder, store, say)
    copied, unreadable = _copy_contents(connection, tenant_id, folder, contents, key, say)
    files += copied
    return TenantManifest(
        tenant_id=tenant_id,
        slug=str(connection.execute(slug).scalar_one()),
        at=rfc3339(database_now(connection)),
        files=files,
        unreadable=texts.unreadable + unreadable,
    )


def _line(row: dict[str, Any]) -> bytes:
    """The row as a line of JSON, with bytes in base64."""
    return json.dumps(row, ensure_ascii=False, default=lambda value: base64.b64encode(value).decode()).encode() + b"\n"


def _copy_adapters(
    connection: sa.Connection, tenant_id: str, folder: Path, store: AdapterStore, say: Callable[[str], None]
) -> list[TenantFile]:
    versions, adapters = tables.adapter_versions, tables.adapters
    joined = versions.join(adapters, adapters.c.id == versions.c.adapter_id)
    query = sa.select(versions.c.digest).select_from(joined).distinct()
    own = query.where(adapters.c.tenant_id == tenant_id, versions.c.removed_at.is_(None))
    files = []
    for digest in sorted(connection.execute(own).scalars()):
        if not store.has(digest):
            say(f"warning: the adapter store of this host lacks {digest}")
            continue
        target = folder / "adapters" / digest
        target.mkdir(mode=0o700, parents=True)
        for name in FILES:
            shutil.copyfile(store.path(digest) / name, target / name)
            files.append(_file(folder, target / name, None))
    return files


def _copy_contents(
    connection: sa.Connection,
    tenant_id: str,
    folder: Path,
    contents: FileContents,
    key: TextKey | None,
    say: Callable[[str], None],
) -> tuple[list[TenantFile], int]:
    """Decrypted contents of the tenant's files, and the number of unreadable contents."""
    query = sa.select(file_rows.c.id).where(file_rows.c.tenant_id == tenant_id, file_rows.c.deleted_at.is_(None))
    files, unreadable = [], 0
    for file_id in sorted(connection.execute(query).scalars()):
        target = folder / "files" / file_id
        target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            if key is None:
                raise TextUnreadable("there is no key")
            asyncio.run(_copy_content(contents, key, file_id, target))
        except (TextUnreadable, ContentStoreFailed) as error:
            say(f"warning: the content of {file_id} cannot be read: {error}")
            target.unlink(missing_ok=True)
            unreadable += 1
            continue
        files.append(_file(folder, target, None))
    return files, unreadable


async def _copy_content(contents: FileContents, key: TextKey, file_id: str, target: Path) -> None:
    with target.open("xb") as file:
        async for part in contents.stream(key, file_id):
            await asyncio.to_thread(file.write, part)


def _file(folder: Path, path: Path, rows: int | None) -> TenantFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return TenantFile(str(path.relative_to(folder)), rows, path.stat().st_size, digest)


def _key_of(connection: sa.Connection, keys: TextKeys, tenant_id: str) -> TextKey | None:
    try:
        return keys.key_of(connection, tenant_id)
    except TextUnreadable:
        return None


class _Texts:
    """Makes rows JSON, with stored texts in plain text."""

    def __init__(self, key: TextKey | None) -> None:
        self._key = key
        self.unreadable = 0

    def opened(self, table: str, row: dict[str, Any]) -> dict[str, Any]:
        places: dict[str, str] = {}
        if table == "responses":
            places = {"input": input_place(row["id"]), "answer": answer_place(row["id"])}
        elif table == "conversations":
            places = {"metadata": metadata_place(row["id"])}
        elif table == "conversation_items":
            places = {"item": item_place(row["conversation_id"], row["id"])}
        return {name: self._text(value, places[name]) if name in places else value for name, value in row.items()}

    def _text(self, sealed: bytes | None, place: str) -> Any:
        if sealed is None:
            return None
        try:
            if self._key is None:
                raise TextUnreadable("there is no key")
            return json.loads(self._key.open(sealed, place))
        except TextUnreadable:
            self.unreadable += 1
            return None
