"""The hash chain of the audit log on both databases: planted faults are found and named, retention and erasures are not
faults, and concurrent writers make one chain."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import sqlalchemy as sa

from billing.database import Database
from gateway.access import audit_chain, audit_log
from gateway.access.audit_chain import CheckpointSigner, VerifiedChain
from gateway.config.server_secrets import ServerSecrets
from gateway.tables import audit_chain as chain_table
from gateway.tables import audit_checkpoints, audit_head, erasures
from gateway.tables import audit_log as log_table

SIGNER = CheckpointSigner(ServerSecrets(b"s" * 32))


def write_lines(database: Database, count: int, **fields: object) -> None:
    for number in range(count):
        values = {"actor": "cli:me", "action": "key.create", "object_id": f"key_{number}", "after": {"name": "n"}}
        database.write_sync(lambda c, values=values: audit_log.add_audit_line(c, **(values | fields)))


def verified(database: Database, *more: audit_chain.AuditCheckpoint) -> VerifiedChain:
    return database.read_sync(lambda c: audit_chain.verify_chain(c, SIGNER.known, more))


def checkpoint(database: Database) -> audit_chain.AuditCheckpoint:
    made = database.write_sync(lambda c: audit_chain.make_checkpoint(c, SIGNER, at_once=True))
    assert made is not None
    return made


def unprotected(database: Database, change: Callable[[sa.Connection], object]) -> None:
    """Change the tables as somebody who owns the database can: without the triggers."""

    def run(connection: sa.Connection) -> None:
        if database.is_sqlite:
            names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
            for name in names:
                if name.startswith("audit"):
                    connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            for table in ("audit_log", "audit_checkpoints"):
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        change(connection)

    database.write_sync(run)


def test_a_chain_without_faults(database: Database) -> None:
    write_lines(database, 5)
    made = checkpoint(database)
    assert database.write_sync(lambda c: audit_chain.make_checkpoint(c, SIGNER, at_once=True)) is None
    write_lines(database, 2, before={"ü": [1.5, None]}, tenant_id="ten_1")
    found = verified(database, made)
    assert found.finding is None
    assert (found.lines, found.position, found.checkpoints, found.unhashed) == (7, 7, 1, 0)


def altered(connection: sa.Connection) -> None:
    connection.execute(sa.update(log_table).where(log_table.c.id == 3).values(actor="cli:nobody"))


def altered_contents(connection: sa.Connection) -> None:
    connection.execute(sa.update(log_table).where(log_table.c.id == 3).values(after={"name": "m"}))


def erased_by_nobody(connection: sa.Connection) -> None:
    connection.execute(sa.update(log_table).where(log_table.c.id == 3).values(after=None))
    connection.execute(sa.update(chain_table).where(chain_table.c.entry_id == 3).values(salt=None))


def deleted(connection: sa.Connection) -> None:
    connection.execute(sa.delete(log_table).where(log_table.c.id == 3))


def deleted_with_its_hash(connection: sa.Connection) -> None:
    deleted(connection)
    connection.execute(sa.delete(chain_table).where(chain_table.c.entry_id == 3))


def reordered(connection: sa.Connection) -> None:
    for old, new in ((3, 100), (4, 3), (100, 4)):
        connection.execute(sa.update(chain_table).where(chain_table.c.position == old).values(position=new))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (altered, "altered or moved"),
        (altered_contents, "altered: before or after"),
        (erased_by_nobody, "never erased"),
        (deleted, "deleted"),
        (deleted_with_its_hash, "deleted"),
        (reordered, "altered or moved"),
    ],
)
def test_a_fault_is_named(database: Database, fault: Callable[[sa.Connection], None], reason: str) -> None:
    write_lines(database, 6)
    unprotected(database, fault)
    finding = verified(database).finding
    assert finding is not None
    assert finding.position == 3
    assert reason in finding.reason


def cut(connection: sa.Connection, *, rewind: bool) -> None:
    connection.execute(sa.delete(log_table).where(log_table.c.id > 4))
    connection.execute(sa.delete(chain_table).where(chain_table.c.position > 4))
    if rewind:
        end = connection.execute(sa.select(chain_table.c.hash).where(chain_table.c.position == 4)).scalar_one()
        connection.execute(sa.update(audit_head).values(position=4, hash=end))


def test_a_cut_tail_is_found_by_a_checkpoint(database: Database) -> None:
    write_lines(database, 6)
    made = checkpoint(database)
    unprotected(database, lambda c: cut(c, rewind=True))
    finding = verified(database).finding
    assert finding is not None
    assert (finding.position, "the tail was cut" in finding.reason) == (5, True)
    unprotected(database, lambda c: c.execute(sa.delete(audit_checkpoints)))
    assert verified(database).finding is None, "nothing in the database proves the tail any more"
    finding = verified(database, made).finding
    assert finding is not None
    assert finding.position == 5, "the checkpoint in the log or the backup does"


def test_a_tail_cut_carelessly_is_found_by_the_end(database: Database) -> None:
    write_lines(database, 6)
    unprotected(database, lambda c: cut(c, rewind=False))
    finding = verified(database).finding
    assert finding is not None
    assert finding.position == 5


def test_a_forged_checkpoint_is_found(database: Database) -> None:
    write_lines(database, 2)
    made = checkpoint(database)
    assert verified(database, msgspec.structs.replace(made, hash="f" * 64)).finding is not None
    forger = CheckpointSigner(ServerSecrets(b"f" * 32))
    deletion = forger.sign(position=made.position, pruned=True, hash_=made.hash, at=made.at)
    finding = verified(database, deletion).finding
    assert finding is not None
    assert (finding.position, "has not signed it" in finding.reason) == (1, True)
    later = forger.sign(position=made.position + 1, hash_=made.hash, at=made.at, pruned_to=0)
    finding = verified(database, later).finding
    assert finding is not None
    assert "not signed with this server's secret" in finding.reason


def test_after_a_rotation_of_the_secret_old_checkpoints_still_count(database: Database) -> None:
    write_lines(database, 2)
    assert database.write_sync(lambda c: audit_chain.prune(c, SIGNER, 2**60)) == 1
    checkpoint(database)
    rotated = CheckpointSigner(ServerSecrets(b"t" * 32))
    write_lines(database, 1)
    database.write_sync(lambda c: audit_chain.make_checkpoint(c, rotated, at_once=True))
    found = database.read_sync(lambda c: audit_chain.verify_chain(c, rotated.known))
    assert (found.finding, found.checkpoints, found.foreign) == (None, 3, 2)


def test_retention_deletes_behind_a_checkpoint(database: Database) -> None:
    write_lines(database, 6)
    checkpoint(database)
    moments = database.read_sync(
        lambda c: list(c.execute(sa.select(log_table.c.at).order_by(log_table.c.id)).scalars())
    )
    assert database.write_sync(lambda c: audit_chain.prune(c, SIGNER, moments[4], limit=3)) == 3
    assert database.write_sync(lambda c: audit_chain.prune(c, SIGNER, moments[4], limit=3)) == 1
    assert database.write_sync(lambda c: audit_chain.prune(c, SIGNER, moments[4], limit=3)) == 0
    found = verified(database)
    assert (found.finding, found.lines, found.pruned_to, found.position) == (None, 2, 4, 6)
    assert database.write_sync(lambda c: audit_chain.prune(c, SIGNER, moments[5] + 10**9)) == 1, "the last line stays"
    write_lines(database, 1)
    assert verified(database).finding is None
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        database.write_sync(lambda c: c.execute(sa.delete(log_table)))


def test_an_erasure_deletes_contents_and_the_chain_holds(database: Database) -> None:
    write_lines(database, 2, tenant_id="ten_1")
    write_lines(database, 2, tenant_id="ten_2")
    with pytest.raises(sa.exc.DBAPIError, match="append-only"):
        database.write_sync(lambda c: audit_chain.erase_contents(c, "ten_1"))
    database.write_sync(lambda c: c.execute(sa.insert(erasures).values(id="era_1", tenant_id="ten_1", at=1)))
    database.write_sync(lambda c: audit_chain.erase_contents(c, "ten_1"))
    lines = database.read_sync(lambda c: c.execute(sa.select(log_table).order_by(log_table.c.id)).all())
    assert [line.after for line in lines] == [None, None, {"name": "n"}, {"name": "n"}]
    found = verified(database)
    assert (found.finding, found.erased, found.lines) == (None, 2, 4)


def test_lines_of_an_older_version_are_added_later(database: Database) -> None:
    write_lines(database, 1)
    older = {"at": 5, "actor": "cli:old", "action": "a.b", "object_id": "x", "before": None, "after": {"a": 1}}
    for _ in range(3):
        database.write_sync(lambda c: c.execute(sa.insert(log_table).values(older)))
    write_lines(database, 1)
    assert verified(database).unhashed == 3
    assert database.write_sync(lambda c: audit_chain.chain_unhashed(c, limit=2)) == 2
    assert database.write_sync(lambda c: audit_chain.chain_unhashed(c, limit=2)) == 1
    found = verified(database)
    assert (found.finding, found.lines, found.unhashed) == (None, 5, 0)


def test_concurrent_writers_make_one_chain(database_url: str, database: Database) -> None:
    """Each thread is a process of its own to the database: a pool of one connection, as commands have."""

    def write(_number: int) -> None:
        own = Database(database_url)
        try:
            write_lines(own, 10)
        finally:
            own.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    found = verified(database)
    assert (found.finding, found.lines, found.position) == (None, 40, 40)
