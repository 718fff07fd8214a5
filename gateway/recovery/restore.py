"""Restores a database from an archive, and applies what happened after the backup: erasures are replayed, and the
journals of this host are settled before a gateway can serve from it.

SQLite's database gets its name when everything is done. In PostgreSQL the row of an unfinished restore stops gateways
(`gateway.host.schema_check`), from before the first row of data until the end.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from adapters.files.store import FILES, AdapterStore
from billing import tables
from billing.clock import database_now
from billing.database import Database
from billing.ids import new_id
from billing.ledger import journal as journals
from billing.ledger.ledger import Ledger
from billing.ledger.settler import Settler
from billing.proofs import reconcile
from billing.tables import metadata
from gateway.access import audit_log
from gateway.admin import erasure_file
from gateway.admin.erasure_file import Erasure
from gateway.config.file import Config
from gateway.config.private_files import SQLITE_SUFFIXES, close_to_others, write_private
from gateway.host.migrate import upgrade_url
from gateway.recovery import dumps
from gateway.recovery.archive import Archive, OnBytes, sync_folder
from gateway.recovery.backup import (
    ADAPTERS,
    CONFIGURATION,
    ERASURES,
    Step,
    all_erasures,
    database_member,
    sqlite_file,
    stored_erasures,
)
from gateway.recovery.erasures import replay
from gateway.tables import erasures, person_sessions, restores, sessions

RESTORED_CONFIGURATION = "restored-laneway.toml"
JOURNAL_BYTES = 64 * 1024
_GATEWAYS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'laneway'"
_FUNCTIONS = (
    "SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
    "WHERE n.nspname = current_schema() AND left(p.proname, 8) = 'laneway_'"
)


class RestoreRefused(Exception):
    """The target is not empty or in use, or the archive is of another kind of database; the message says which."""


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore. `lost_since`: entries committed later are lost (microseconds UTC). `rejected`: endings
    of journals without a hold in the backup, written to endings.rejected, and `rejected_tokens` the tokens that they
    name. `journals_in_use`: of gateways that run; they settle them themselves. `missing_tokens`: by engine process,
    made since the backup and in no entry; `verification.py` counts them."""

    id: str
    archive: str
    lost_since: int
    newest_entry_at: int | None
    engines: tuple[str, ...]
    erased: int = 0
    settled: int = 0
    rejected: int = 0
    rejected_tokens: int = 0
    journals_in_use: int = 0
    adapters: int = 0
    missing_adapters: tuple[str, ...] = ()
    missing_tokens: dict[str, int] = {}


def restore(
    config: Config, archive: Archive, *, replace: bool, step: Step, on_bytes: OnBytes = lambda _count: None
) -> RestoreReport:
    """Restore a checked archive into the configuration's database and data directory. `replace`: overwrite existing
    data. Raises RestoreRefused, ArchiveRefused, ToolFailed, CannotStart, ErasuresUnreadable, OSError."""
    kind = "sqlite" if sqlite_file(config.database_url) is not None else "postgresql"
    if kind != archive.manifest.summary.database:
        raise RestoreRefused(
            f"{archive.path} is a backup of {archive.manifest.summary.database}, and gateway.database_url is {kind}"
        )
    close_to_others(config.data_dir, config.database_url)
    summary = archive.manifest.summary
    report = RestoreReport(
        id=new_id("rst"),
        archive=archive.path.name,
        lost_since=summary.taken_at,
        newest_entry_at=summary.newest_entry_at,
        engines=summary.engines,
        missing_adapters=summary.missing_adapters,
    )
    if replace:
        erasure_file.append_erasures(config.erasures_file, _erasures_of_replaced(config.database_url))
    target = _restored_sqlite if kind == "sqlite" else _restored_postgres
    with target(config, archive, report, replace, step, on_bytes) as url:
        with step("the schema"):
            upgrade_url(url)
        database = Database(url)
        try:
            with step("erasures since the backup"):
                beside = archive.path.parent / erasure_file.FILE
                known = database.read_sync(lambda c: all_erasures(c, config, beside)) + _erasures_in(archive)
                erasure_file.append_erasures(config.erasures_file, known)  # an older archive may be restored here later
                erased = database.write_sync(lambda c: replay(c, config, known))
                report = msgspec.structs.replace(report, erased=erased)
            with step("journals of this host"):
                report = asyncio.run(_settle_journals(config, database, report))
            with step("adapters"):
                report = msgspec.structs.replace(report, adapters=_restore_adapters(config, archive))
            database.write_sync(lambda connection: _finish(connection, report))
        finally:
            database.close()
    _restore_configuration(config, archive)
    return report


# ---- the two kinds of database


@contextmanager
def _restored_sqlite(
    config: Config, archive: Archive, report: RestoreReport, replace: bool, step: Step, on_bytes: OnBytes
) -> Iterator[str]:
    """The URL of a file beside the target, which gets the target's name when the block has ended."""
    target = sqlite_file(config.database_url)
    assert target is not None
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (target.with_name(target.name + ".gateway-lock")).open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RestoreRefused(f"a gateway serves from {target}; stop it first") from error
        if target.exists() and target.stat().st_size and not replace:
            raise RestoreRefused(f"{target} is not empty; --replace moves it aside and restores in its place")
        partial = target.with_name(f".{target.name}.restoring")
        for suffix in SQLITE_SUFFIXES:
            Path(f"{partial}{suffix}").unlink(missing_ok=True)
        with step("the database"):
            archive.copy_member(database_member(archive), partial, on_bytes)
        url = f"sqlite:///{partial}"
        database = Database(url)
        database.write_sync(lambda connection: _begin(connection, report))
        database.close()
        yield url
        if target.exists() and target.stat().st_size:
            for suffix in SQLITE_SUFFIXES:
                with suppress(FileNotFoundError):
                    Path(f"{target}{suffix}").rename(f"{target}.replaced{suffix}")
        partial.rename(target)
        sync_folder(target.parent)


@contextmanager
def _restored_postgres(
    config: Config, archive: Archive, report: RestoreReport, replace: bool, step: Step, on_bytes: OnBytes
) -> Iterator[str]:
    dump = config.data_dir / f".{report.id}.dump"
    engine = sa.create_engine(config.database_url, poolclass=sa.pool.NullPool)
    try:
        dumps.tool("pg_restore")
        with engine.begin() as connection:
            _empty_postgres(connection, replace)
        with step("the database"):
            archive.copy_member(database_member(archive), dump, on_bytes)
            dumps.restore_postgres(config.database_url, dump, ["pre-data"])
            with engine.begin() as connection:
                _begin(connection, report)
            dumps.restore_postgres(config.database_url, dump, ["data"], parallel=True)
        with step("indices and constraints"):
            dumps.restore_postgres(config.database_url, dump, ["post-data"], parallel=True)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("ANALYZE")
    finally:
        engine.dispose()
        dump.unlink(missing_ok=True)
    yield config.database_url


def _empty_postgres(connection: sa.Connection, replace: bool) -> None:
    """Check that no gateway uses the database and that it is empty; with `replace`, drop Laneway's tables. Raises
    RestoreRefused."""
    if connection.exec_driver_sql(_GATEWAYS).scalar_one():
        raise RestoreRefused("a gateway is connected to the database; stop all gateways first")
    found = set(sa.inspect(connection).get_table_names())
    if not found:
        return
    if not replace:
        raise RestoreRefused(
            f"the database is not empty (it has {len(found)} tables); --replace drops Laneway's tables"
        )
    if foreign := sorted(found - metadata.tables.keys() - {"alembic_version"}):
        raise RestoreRefused(f"the database has tables that are not Laneway's, for example {foreign[0]!r}")
    quote = connection.dialect.identifier_preparer.quote
    for name in sorted(found):
        connection.exec_driver_sql(f"DROP TABLE {quote(name)} CASCADE")
    for function in connection.exec_driver_sql(_FUNCTIONS).scalars().all():
        connection.exec_driver_sql(f"DROP FUNCTION {function} CASCADE")


def _begin(connection: sa.Connection, report: RestoreReport) -> None:
    values = {"id": report.id, "archive": report.archive[-255:], "taken_at": report.lost_since}
    connection.execute(sa.insert(restores).values(**values, began_at=database_now(connection)))


def _finish(connection: sa.Connection, report: RestoreReport) -> None:
    """Begin the comparison of each engine with the ledger again, since the ledger has less than before; end the
    console's sessions; then let gateways start."""
    for table in (tables.engine_readings, tables.engine_counts):
        connection.execute(sa.delete(table))
    for table in (sessions, person_sessions):  # some of them were ended since the backup
        connection.execute(sa.delete(table))
    reconcile.store_reconciliation(connection, reconcile.reconcile_minute(connection))
    finished = {"finished_at": database_now(connection), "report": msgspec.to_builtins(report)}
    # Rows of restores that the backup itself was in the middle of have no meaning here.
    connection.execute(sa.delete(restores).where(restores.c.finished_at.is_(None), restores.c.id != report.id))
    connection.execute(sa.update(restores).where(restores.c.id == report.id).values(finished))
    after = {"archive": report.archive, "lost_since": report.lost_since}
    actor = audit_log.host_actor()
    audit_log.add_audit_line(connection, actor=actor, action="database.restore", object_id=report.id, after=after)


# ---- what happened since the backup


async def _settle_journals(config: Config, database: Database, report: RestoreReport) -> RestoreReport:
    """Settle the endings of this host's journals, before the holds of the backup expire. Holds made since the backup
    are not in it: their endings are rejected."""
    ledger = Ledger(database, new_id("gw"))
    settler = Settler(ledger, config.journal_dir, new_id("gw"), bytes_max=JOURNAL_BYTES, disk_free_min_bytes=0)
    try:
        await settler.start()
        own = 1
        in_use = len(await asyncio.to_thread(journals.paths, config.journal_dir)) - own
    finally:
        await ledger.close()
        await settler.close()
    return msgspec.structs.replace(
        report,
        settled=settler.replayed - settler.rejected,
        rejected=settler.rejected,
        rejected_tokens=settler.rejected_tokens,
        journals_in_use=in_use,
    )


# ---- erasures


def _erasures_of_replaced(url: str) -> list[Erasure]:
    """The erasures of the replaced database, as far as it can be read: it may be damaged, or older than the table of
    erasures."""
    path = sqlite_file(url)
    if path is not None and not path.exists():
        return []
    with suppress(sa.exc.SQLAlchemyError), dumps.one_view(url) as connection:
        if sa.inspect(connection).has_table(erasures.name):
            return stored_erasures(connection)
    return []


def _erasures_in(archive: Archive) -> list[Erasure]:
    """Raises ErasuresUnreadable."""
    if not any(member.name == ERASURES for member in archive.manifest.members):
        return []
    with archive.open_member(ERASURES) as source:
        return erasure_file.parse_erasures(source.read(), f"{archive.path}, {ERASURES}")


# ---- files


def _restore_adapters(config: Config, archive: Archive) -> int:
    """Store the adapters that this host lacks. Returns their number."""
    store = AdapterStore(config.adapters_dir)
    stored = 0
    members = archive.members(ADAPTERS)  # an adapter's files are neighbours
    for digest, files in itertools.groupby(members, lambda member: member[0].split("/")[1]):
        if store.has(digest):
            continue
        with store.begin_incoming() as incoming:
            for name, source in files:
                file = name.rpartition("/")[2]
                if file in FILES:
                    with (incoming.path / file).open("xb") as copy:
                        shutil.copyfileobj(source, copy)
            incoming.sync()
            store.keep_content(incoming, digest)
        stored += 1
    return stored


def _restore_configuration(config: Config, archive: Archive) -> None:
    """Write the archive's configuration beside the data; the one in use is not changed."""
    if any(member.name == CONFIGURATION for member in archive.manifest.members):
        with archive.open_member(CONFIGURATION) as source:
            write_private(config.data_dir / RESTORED_CONFIGURATION, source.read().decode(), replace=True)


def newest_report(connection: sa.Connection) -> RestoreReport | None:
    """The report of the newest finished restore."""
    query = sa.select(restores.c.report).where(restores.c.finished_at.is_not(None)).order_by(restores.c.began_at.desc())
    found: Any = connection.execute(query.limit(1)).scalar_one_or_none()
    return None if found is None else msgspec.convert(found, RestoreReport)


def store_report(connection: sa.Connection, report: RestoreReport) -> None:
    connection.execute(sa.update(restores).where(restores.c.id == report.id).values(report=msgspec.to_builtins(report)))
