"""Archives: refused by name when they are truncated or altered, without passwords and secrets, into an empty database
only; and what a restore does with the journals of its host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from billing import tables
from billing.database import Database
from billing.ledger.journal import REJECTED, Journal
from billing.ledger.leases import Leases
from billing.ledger.ledger import Ledger
from billing.ledger.messages import HoldRequest
from gateway.access import audit_log, keys
from gateway.admin import erasure_file
from gateway.admin.erasure_file import Erasure, ErasuresUnreadable
from gateway.config.file import Config, parse_gateway_config
from gateway.config.server_secrets import read_server_secrets
from gateway.host.schema_check import RestoreUnfinished, check_schema
from gateway.recovery import dumps
from gateway.recovery.archive import Archive, ArchiveRefused
from gateway.recovery.backup import without_passwords, write_backup
from gateway.recovery.dumps import ToolFailed, tool
from gateway.tables import restores, sessions
from migrations.upgrade import upgrade
from support.billing.books import Books, make_books, settlement
from support.gateway.command_line import Laneway

TOML = '[gateway]\nport = 8080\n[redis]\nurl = "redis://me:pass-of-redis@127.0.0.1:1"\n'


@pytest.fixture
def laneway(tmp_path: Path, sqlite_url: str) -> Laneway:
    upgrade(sqlite_url)
    made = Laneway(tmp_path, TOML.replace("port", f'database_url = "{sqlite_url}"\nport'))
    made.text("tenants", "create", "acme", "--tier", "standard")
    return made


def archive_of(laneway: Laneway) -> Path:
    made = Path(laneway.json("backup")["file"])
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert sorted(os.listdir(made.parent)) == ["erasures.jsonl", made.name], "nothing unfinished is left"
    return made


def test_an_archive_has_no_secret_and_no_password(laneway: Laneway) -> None:
    archive = archive_of(laneway)
    secret = (laneway.file.parent / ".laneway" / "server.secret").read_text()
    whole = archive.read_bytes()
    assert secret.encode() not in whole
    assert bytes.fromhex(secret) not in whole
    assert b"pass-of-redis" not in whole
    assert b"redis://me:***@127.0.0.1:1" in whole
    assert "is whole" in laneway("restore", str(archive), "--check").stderr


@pytest.mark.parametrize(
    "line",
    [
        """url = "postgresql://me:se/cret@host/db" """,
        """url = "postgresql://me:it's:secret@host/db" """,
        """url = 'postgresql://me:"secret@host/db' """,
        """url = "postgresql://host/db?user=me&password=it'ssecret&sslmode=require" """,
        "# it's url = postgresql://me:secret@host/db",
    ],
)
def test_passwords_of_urls_are_masked(line: str) -> None:
    """SQLAlchemy takes passwords with slashes and quotes, and drivers take them in the query."""
    shown = without_passwords(f"[gateway]\n{line}\nport = 8080\n")
    assert "***" in shown
    assert "secret" not in shown
    assert "cret" not in shown
    assert "host/db" in shown
    assert shown.endswith("port = 8080\n")


def cut(data: bytearray, member: bytes) -> bytes:
    return bytes(data[: data.index(member) + 700])


def flip(data: bytearray, member: bytes) -> bytes:
    data[data.index(member) + 600] ^= 1  # behind the header of 512 bytes
    return bytes(data)


def without_end(data: bytearray, _member: bytes) -> bytes:
    return bytes(data[: data.index(b"seal.json")])


@pytest.mark.parametrize(
    ("fault", "member", "words"),
    [
        (cut, b"database.sqlite", ["truncated", "database.sqlite"]),
        (flip, b"database.sqlite", ["altered", "database.sqlite"]),
        (flip, b"manifest.json", ["altered", "manifest.json"]),
        (without_end, b"", ["truncated"]),
    ],
)
def test_a_damaged_archive_is_refused_by_name(
    laneway: Laneway, fault: Callable[[bytearray, bytes], bytes], member: bytes, words: list[str]
) -> None:
    archive = archive_of(laneway)
    archive.write_bytes(fault(bytearray(archive.read_bytes()), member))
    for options in (("--check",), ("--replace",)):
        refusal = laneway.refusal("restore", str(archive), *options)
        assert str(archive) in refusal
        assert all(word in refusal for word in words), refusal
    assert [tenant["slug"] for tenant in laneway.json("tenants", "list")] == ["acme"], "nothing was restored"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_only_plain_files_are_members(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "archive"
    with tarfile.open(path, "w:", format=tarfile.GNU_FORMAT) as tar:
        entry = tarfile.TarInfo("adapters/x")
        entry.type, entry.linkname = kind, "nowhere"
        tar.addfile(entry)
    with pytest.raises(ArchiveRefused, match="adapters/x is no plain file"):
        Archive.check(path, [])


def test_a_restore_ends_the_sessions_of_the_backup(laneway: Laneway, sqlite_url: str) -> None:
    """A session that was ended after the backup, for example by a sign-out, must not come back."""

    def begin(connection: sa.Connection) -> None:
        key = keys.create_key(connection, tenant_id=None, name="console", kind="admin").key
        moments = dict.fromkeys(("created_at", "seen_at", "expires_at"), 2**52)
        connection.execute(sa.insert(sessions).values(id="ses_1", hash="h", key_id=key.id, **moments))

    database = Database(sqlite_url)
    database.write_sync(begin)
    database.close()
    laneway.json("restore", str(archive_of(laneway)), "--replace")
    database = Database(sqlite_url)
    assert database.read_sync(lambda c: c.execute(sa.select(sessions.c.id)).all()) == []
    database.close()


def test_an_archive_of_another_deployment_is_refused(laneway: Laneway) -> None:
    archive = archive_of(laneway)
    secret = laneway.file.parent / ".laneway" / "server.secret"
    secret.write_text("ab" * 32)
    assert "not signed with the secret" in laneway.refusal("restore", str(archive), "--check")
    secret.unlink()
    assert "not compared" in laneway("restore", str(archive), "--check").stderr
    assert not secret.exists(), "a restore makes no secret"


def test_a_target_that_is_not_empty_is_refused(laneway: Laneway, sqlite_url: str) -> None:
    archive = archive_of(laneway)
    laneway.text("tenants", "create", "later", "--tier", "standard")
    assert "is not empty" in laneway.refusal("restore", str(archive))
    database = Database(sqlite_url)
    lease = Leases(database, "gw_1")
    asyncio.run(lease.acquire())
    assert "stop it first" in laneway.refusal("restore", str(archive), "--replace")
    asyncio.run(lease.release_lease())
    database.close()
    laneway.text("restore", str(archive), "--replace")
    assert [tenant["slug"] for tenant in laneway.json("tenants", "list")] == ["acme"]
    assert (laneway.file.parent / ".laneway" / "restored-laneway.toml").exists()
    replaced = Database(f"{sqlite_url}.replaced")
    slugs = replaced.read_sync(lambda c: c.execute(sa.select(tables.tenants.c.slug)).scalars().all())
    replaced.close()
    assert sorted(slugs) == ["acme", "later"], "the database that was there is beside the new one"


def test_other_tables_of_postgres_are_not_dropped(tmp_path: Path, postgres_url: str) -> None:
    laneway = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{postgres_url}"\n')
    archive = archive_of(laneway)
    assert "is not empty" in laneway.refusal("restore", str(archive))
    database = Database(postgres_url)
    assert "stop all gateways first" in connected(laneway, database, archive)
    database.close()
    other = sa.create_engine(postgres_url, poolclass=sa.pool.NullPool)
    with other.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id integer)")
    assert "'orders'" in laneway.refusal("restore", str(archive), "--replace")
    with other.begin() as connection:
        connection.exec_driver_sql("DROP TABLE orders")
    laneway.text("restore", str(archive), "--replace")
    assert "sound" in laneway.text("restore", "--verify")


def connected(laneway: Laneway, database: Database, archive: Path) -> str:
    """The refusal while a gateway's connection is open."""
    return database.read_sync(lambda _connection: laneway.refusal("restore", str(archive), "--replace"))


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolFailed, match="pg_dump is not installed: install the PostgreSQL"):
        tool("pg_dump")


def test_an_unfinished_restore_stops_gateways(sqlite_url: str) -> None:
    upgrade(sqlite_url)
    database = Database(sqlite_url)
    row = {"id": "rst_1", "archive": "nightly", "taken_at": 1, "began_at": 2}
    database.write_sync(lambda c: c.execute(sa.insert(restores).values(row)))
    with pytest.raises(RestoreUnfinished, match="nightly"):
        database.read_sync(check_schema)
    database.close()


def test_journals_newer_than_the_backup(tmp_path: Path, sqlite_url: str) -> None:
    """Two endings wait in the journal of a dead gateway: of a request that was open in the backup, and of one that the
    backup does not know."""
    upgrade(sqlite_url)
    laneway = Laneway(tmp_path, f'[gateway]\ndatabase_url = "{sqlite_url}"\n')
    books = make_books(sqlite_url)
    known, unknown = books.request(), books.request()
    asyncio.run(held(books, known))
    archive = archive_of(laneway)
    journal = Journal.create(tmp_path / ".laneway" / "journal" / "gw_dead.journal", 64 * 1024)
    journal.append([settlement(known, 5), settlement(unknown, 7)])
    os.close(journal._descriptor)
    books.database.close()
    report = laneway.json("restore", str(archive), "--replace")
    assert (report["settled"], report["rejected"], report["rejected_tokens"]) == (1, 1, 7)
    assert unknown.request_id in (tmp_path / ".laneway" / "journal" / REJECTED).read_text()
    books.database = Database(sqlite_url)
    books.assert_sound()
    books.database.close()


async def held(books: Books, request: HoldRequest) -> None:
    ledger = Ledger(books.database, "gw_dead")
    await ledger.hold(request)
    await ledger.close()


def test_the_file_of_erasures_is_only_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "erasures.jsonl"
    first, second = Erasure("era_1", "ten_1", 1), Erasure("era_2", "ten_2", 2)
    erasure_file.append_erasures(path, [first])
    erasure_file.append_erasures(path, [first, second])
    assert erasure_file.read_erasures(path) == [first, second]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ErasuresUnreadable, match="line 2"):
        erasure_file.read_erasures(path)


def test_an_old_backup_does_not_bring_an_erased_tenant_back(laneway: Laneway, sqlite_url: str) -> None:
    """Twice: by the file of this host, and by the file beside the archives, which the next backup writes."""
    archive = archive_of(laneway)
    assert "must be the slug" in laneway.refusal("tenants", "erase", "acme", "--confirm", "acm")
    assert "is erased" in laneway.text("tenants", "erase", "acme", "--confirm", "acme")
    assert laneway.json("restore", str(archive), "--replace")["erased"] == 1
    assert [tenant["name"] for tenant in laneway.json("tenants", "list")] == ["erased"]
    laneway.json("backup", str(archive.parent / "second"))
    (laneway.file.parent / ".laneway" / "erasures.jsonl").unlink()
    assert laneway.json("restore", str(archive), "--replace")["erased"] == 1
    assert "sound" in laneway.text("restore", "--verify")
    lines = laneway.json("audit")
    assert [line["action"] for line in lines] == ["database.restore", "tenant.erase", "tenant.create"]
    assert lines[-1]["after"] is None


def test_a_backup_beside_writers_is_one_moment(laneway: Laneway, sqlite_url: str, tmp_path: Path) -> None:
    """A line that is written while the database is copied is not in the copy, and the copy does not begin again."""
    config: Config = parse_gateway_config(laneway.file.read_bytes(), tmp_path, "test", {})
    database = Database(sqlite_url)
    with dumps.one_view(config.database_url) as connection:
        database.write_sync(lambda c: audit_log.add_audit_line(c, actor="me", action="a.b", object_id="x"))
        dumps.copy_sqlite(connection, tmp_path / "copy.db")
    database.close()
    copy = Database(f"sqlite:///{tmp_path}/copy.db")
    assert [
        line.action for line in copy.read_sync(lambda c: audit_log.list_audit_lines(c, audit_log.AuditFilter()))
    ] == ["tenant.create"]
    copy.close()
    path, _manifest = write_backup(
        config, read_server_secrets(config), laneway.file, tmp_path, lambda _name: contextlib.nullcontext(), print
    )
    with pytest.raises(ArchiveRefused, match="no such-member"), Archive.check(path, []).open_member("such-member"):
        raise AssertionError
