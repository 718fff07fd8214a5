"""Writes a backup: the database, the adapters' files and the configuration, in one archive.

The archive has no server secret and no key file. Its only secrets are in the database: hashes of keys, webhooks'
signing secrets, and texts encrypted with the server secret.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from adapters.files.store import FILES, AdapterStore
from billing import tables
from billing.clock import database_now, to_datetime
from gateway.admin import erasure_file
from gateway.admin.erasure_file import Erasure
from gateway.catalog.adapters import live_digests
from gateway.config.file import Config
from gateway.config.server_secrets import ServerSecrets
from gateway.recovery import dumps
from gateway.recovery.archive import Archive, ArchiveWriter, BackupManifest, BackupSummary, OnBytes, signing_purpose
from gateway.tables import erasures, server_secret

SUFFIX = ".laneway-backup"
DATABASE_MEMBERS = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
CONFIGURATION, ADAPTERS, ERASURES = "laneway.toml", "adapters/", "erasures.jsonl"
# Passwords of URLs in the configuration file: in TOML's texts as drivers read them, with slashes and quotes, …
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"' r"|'[^'\n]*'")
_PASSWORD = re.compile(r"(://[^:/@]*:)[^@]*@")
_PASSWORD_OF_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&#]*")
_ANYWHERE = re.compile(r"(://[^\s\"'/@:]*:)[^\s\"'/@]+@")  # … and in comments

Step = Callable[[str], AbstractContextManager[None]]


class BackupRefused(Exception):
    """The backup cannot be written; the message says why."""


def default_name(moment: datetime) -> str:
    return f"laneway-{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"


def write_backup(
    config: Config, secrets: ServerSecrets, file: Path | None, target: Path, step: Step, on_bytes: OnBytes
) -> tuple[Path, BackupManifest]:
    """Write the archive `target`, or into the folder `target` under a name with the moment. `file`: laneway.toml.
    Raises BackupRefused, ToolFailed, ErasuresUnreadable, OSError."""
    path = sqlite_file(config.database_url)
    if path is not None and not path.exists():
        raise BackupRefused(f"there is no database at {path}")
    with dumps.one_view(config.database_url) as connection:
        store = AdapterStore(config.adapters_dir)
        summary, digests = _summary(connection, store)
        path = target / default_name(to_datetime(summary.taken_at)) if target.is_dir() else target
        if path.exists():
            raise BackupRefused(f"{path} exists already")
        with ArchiveWriter(path, on_bytes) as archive:
            with step("the database"):
                _add_database(archive, connection, config.database_url)
            with step(f"{len(digests)} adapters"):
                for digest in digests:
                    for name in FILES:
                        with (store.path(digest) / name).open("rb") as source:
                            archive.add_stream(f"{ADAPTERS}{digest}/{name}", source)
            with step("the configuration, the erasures and the manifest"):
                if file is not None:
                    archive.add_bytes(CONFIGURATION, without_passwords(file.read_text()).encode())
                beside = path.parent / erasure_file.FILE
                known = all_erasures(connection, config, beside)
                erasure_file.append_erasures(beside, known)
                archive.add_bytes(ERASURES, beside.read_bytes())
                manifest = archive.finish(summary, secrets.derive_keys(signing_purpose()))
    return path, manifest


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite database; None: PostgreSQL."""
    target = sa.make_url(url)
    return Path(str(target.database)) if target.get_backend_name() == "sqlite" else None


def all_erasures(connection: sa.Connection, config: Config, *files: Path) -> list[Erasure]:
    """The erasures of the database, of this host's file and of `files`, each once. Raises ErasuresUnreadable,
    OSError."""
    found = {erasure.id: erasure for erasure in stored_erasures(connection)}
    for path in (config.erasures_file, *files):
        found |= {erasure.id: erasure for erasure in erasure_file.read_erasures(path)}
    return list(found.values())


def stored_erasures(connection: sa.Connection) -> list[Erasure]:
    """The erasures of the database, the oldest first."""
    rows = connection.execute(sa.select(erasures.c.id, erasures.c.tenant_id, erasures.c.at).order_by(erasures.c.at))
    return [Erasure(*row) for row in rows]


def without_passwords(text: str) -> str:
    """A configuration file with *** in place of the passwords of its URLs."""

    def masked(found: re.Match[str]) -> str:
        quote, inner = found[0][0], _PASSWORD.sub(r"\1***@", found[0][1:-1])
        return quote + _PASSWORD_OF_QUERY.sub(r"\1***", inner) + quote

    return _ANYWHERE.sub(r"\1***@", _TEXT.sub(masked, text))


def database_member(archive: Archive) -> str:
    return DATABASE_MEMBERS[archive.manifest.summary.database]


def _add_database(archive: ArchiveWriter, connection: sa.Connection, url: str) -> None:
    if connection.dialect.name != "sqlite":
        with dumps.dump_postgres(connection, url) as dump:
            archive.add_stream(DATABASE_MEMBERS["postgresql"], dump)
        return
    copy = archive.path.with_name(f".{archive.path.name}.sqlite")
    try:
        dumps.copy_sqlite(connection, copy)
        with copy.open("rb") as source:
            archive.add_stream(DATABASE_MEMBERS["sqlite"], source)
    finally:
        copy.unlink(missing_ok=True)


def _summary(connection: sa.Connection, store: AdapterStore) -> tuple[BackupSummary, list[str]]:
    """The counts of the snapshot, and the digests of the adapters in the store."""
    taken_at = database_now(connection)  # first: PostgreSQL's view begins with the first query
    entries = tables.entries
    newest = sa.select(entries.c.sequence, entries.c.recorded_at).order_by(entries.c.sequence.desc()).limit(1)
    entry = connection.execute(newest).one_or_none()
    usage = connection.execute(sa.select(sa.func.coalesce(sa.func.max(tables.usage.c.sequence), 0))).scalar_one()
    digests = sorted(live_digests(connection))
    there = store.digests()
    summary = BackupSummary(
        taken_at=taken_at,
        database="sqlite" if connection.dialect.name == "sqlite" else "postgresql",
        schema=str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()),
        version=importlib.metadata.version("laneway"),
        secret=str(connection.execute(sa.select(server_secret.c.fingerprint)).scalar_one()),
        newest_entry_at=None if entry is None else int(entry.recorded_at),
        entries=0 if entry is None else int(entry.sequence),
        usage=int(usage),
        engines=tuple(connection.execute(sa.select(tables.engine_readings.c.epoch)).scalars()),
        missing_adapters=tuple(digest for digest in digests if digest not in there),
    )
    return summary, [digest for digest in digests if digest in there]
