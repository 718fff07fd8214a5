"""`[retention]` on both databases: what is old goes in bounded transactions, what was charged never does, and the audit
log gets its checkpoints inside and outside the database."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import finance_tables, sla_tables, tables
from billing.accounts import webhooks
from billing.clock import DAY, database_now
from billing.database import Database
from billing.exports import jobs
from billing.ledger.ledger import Ledger
from billing.output_tables import output_leases
from gateway.access import audit_chain, audit_log
from gateway.access.audit_chain import CheckpointSigner
from gateway.batch_tables import batch_deliveries, batches
from gateway.batches.events import insert_deliveries
from gateway.config.file import Config, ConfigError, parse_gateway_config
from gateway.config.server_secrets import ServerSecrets
from gateway.error_tables import request_error_counts, request_errors
from gateway.tables import audit_log as log_table
from gateway.upkeep import retention
from gateway.upkeep.retention import Retention, read_checkpoints
from migrations.upgrade import upgrade
from support.billing.books import make_books, settlement
from support.gateway.batch_stage import Stage

SECRETS = ServerSecrets(b"s" * 32)


def configured(directory: Path, settings: str) -> Config:
    config = parse_gateway_config(f"[retention]\n{settings}\n".encode(), directory, "test", {})
    config.data_dir.mkdir(exist_ok=True)
    return config


def count(database: Database, table: sa.Table) -> int:
    return database.read_sync(lambda c: int(c.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()))


async def test_requests_that_were_never_charged(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    monkeypatch.setattr(retention, "DELETED_AT_ONCE_SQLITE", 2)
    upgrade(database_url)
    books = make_books(database_url)
    budget = books.budget(10_000)
    now = books.database.read_sync(database_now)
    old, new = (
        Ledger(books.database, name, clock=lambda _connection, at=at: at)
        for name, at in (("gw_old", now - 8 * DAY), ("gw_new", now))
    )
    for ledger in (old, new):
        for number in range(5):
            request = books.request()
            await ledger.hold(request)
            if number == 0:
                await ledger.settle(settlement(request, 5))
            else:
                await ledger.void(request.request_id, "engine_failed")
        await ledger.close()
    runner = Retention(books.database, configured(tmp_path, "requests_days = 7"), SECRETS)
    await runner.run_once()
    assert (count(books.database, tables.holds), count(books.database, tables.hold_charges)) == (6, 6)
    assert count(books.database, tables.usage) == 2, "usage is never deleted"
    books.assert_sound()
    assert books.state(budget) == (30, 0)
    books.database.close()


async def test_requests_that_were_refused_or_failed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    monkeypatch.setattr(retention, "DELETED_AT_ONCE_SQLITE", 2)
    now = database.read_sync(database_now)
    shared = {"tenant_id": "ten_a", "key_id": "key_a", "outcome": "refused", "code": "model_not_found"}
    for number, age in enumerate((31, 31, 31, 31, 31, 29, 0)):
        error = {"request_id": f"req_{number}", "at": now - age * DAY, "duration_s": 0.1, "tier": "standard"}
        error |= {"route": "/v1/chat/completions", "status": 404}
        count_ = {"quarter": now - age * DAY + number, "gateway_id": "gw_1", "requests": 1, "settled": 0}
        database.write_sync(lambda c, row=error: c.execute(sa.insert(request_errors).values(**shared, **row)))
        database.write_sync(lambda c, row=count_: c.execute(sa.insert(request_error_counts).values(**shared, **row)))
    await Retention(database, configured(tmp_path, "request_errors_days = 30"), SECRETS).run_once()
    assert (count(database, request_errors), count(database, request_error_counts)) == (2, 2)
    await Retention(database, configured(tmp_path, "request_errors_days = 0"), SECRETS).run_once()
    assert (count(database, request_errors), count(database, request_error_counts)) == (2, 2)


async def test_the_audit_log(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_chain, "CHECKPOINT_LINES", 5)
    now = database.read_sync(database_now)
    ages = (9, 9, 8, 1, 0)
    for age in ages:
        # As an older version writes them: not in the chain yet.
        row = {"at": now - age * DAY, "actor": "me", "action": "a.b", "object_id": "x", "before": None, "after": None}
        database.write_sync(lambda c, row=row: c.execute(sa.insert(log_table).values(row)))
    config = configured(tmp_path, "audit_days = 5")
    with caplog.at_level(logging.INFO, retention.__name__):
        await Retention(database, config, SECRETS).run_once()
    assert count(database, log_table) == 2
    [kept] = read_checkpoints(config.audit_checkpoints_file)
    assert [record.__dict__["fields"] for record in caplog.records if record.message == "audit.checkpoint"] == [
        msgspec.to_builtins(kept)
    ]
    known = CheckpointSigner(SECRETS).known
    found = database.read_sync(lambda c: audit_chain.verify_chain(c, known, [kept]))
    assert (found.finding, found.lines, found.pruned_to, found.unhashed) == (None, 2, 3, 0)
    database.write_sync(lambda c: audit_log.add_audit_line(c, actor="me", action="a.b", object_id="x"))
    await Retention(database, config, SECRETS).run_once()
    assert len(read_checkpoints(config.audit_checkpoints_file)) == 1, "no checkpoint is due"


async def test_files_of_exports(sqlite_url: str, tmp_path: Path) -> None:
    upgrade(sqlite_url)
    database = Database(sqlite_url)
    now = database.read_sync(database_now)
    row = {"month": "2026-01", "kind": "focus", "format": "csv", "actor": "me", "created_at": 1, "attempts": 1}
    row |= {"read_rows": 0, "rows": 0, "file": "a.csv"}
    rows = [
        row | {"id": "exp_old", "state": "done", "finished_at": now - 2 * DAY},
        row | {"id": "exp_new", "state": "done", "finished_at": now},
        row | {"id": "exp_failed", "state": "failed", "finished_at": now - 2 * DAY},
    ]
    database.write_sync(lambda c: c.execute(sa.insert(tables.exports), rows))
    await Retention(database, configured(tmp_path, "exports_days = 1"), SECRETS).run_once()
    states = {job.id: job.state for job in database.read_sync(jobs.list_exports)}
    assert states == {"exp_old": "removed", "exp_new": "done", "exp_failed": "failed"}
    database.close()


async def test_quarter_hours_of_sla_reports(database: Database, tmp_path: Path) -> None:
    now = database.read_sync(database_now)
    ages = (500, 401, 399, 0)
    rows = [
        {"tenant_id": "", "quarter": now - age * DAY, "tier": "batch", "model": f"m{number}"}
        for age in ages
        for number in range(3)
    ]
    database.write_sync(lambda c: c.execute(sa.insert(sla_tables.sla_quarters), rows))
    await Retention(database, configured(tmp_path, ""), SECRETS).run_once()
    assert count(database, sla_tables.sla_quarters) == 6
    await Retention(database, configured(tmp_path, "sla_days = 0"), SECRETS).run_once()
    assert count(database, sla_tables.sla_quarters) == 6
    await Retention(database, configured(tmp_path, "sla_days = 1"), SECRETS).run_once()
    assert count(database, sla_tables.sla_quarters) == 3


async def test_ended_batches_without_files(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    monkeypatch.setattr(retention, "DELETED_AT_ONCE_SQLITE", 2)
    stage = Stage(database)
    now = database.read_sync(database_now)
    values: dict[str, Any] = {
        "tenant_id": stage.tenant_id,
        "key_id": stage.key_id,
        "dialect": "openai",
        "endpoint": "/v1/completions",
    }
    values |= {"completion_window": "24h", "created_at": 1, "deadline_at": 2, "lines": 0, "enqueued_tokens": 0}
    database.write_sync(lambda c: webhooks.create_webhook(c, url="https://example.org/", events=["batches"]))
    for number in range(9):
        fields: dict[str, Any] = {"id": f"batch_{number}", "input_file_id": "file-removed", "status": "completed"}
        fields |= {"ended_at": now - (61 if number < 8 else 59) * DAY}
        if number == 5:
            fields |= {"ended_at": None, "status": "in_progress"}
        if number in (6, 7):
            fields |= {"output_file_id" if number == 6 else "input_file_id": stage.file_id}
        stage.write(lambda c, row=values | fields: c.execute(sa.insert(batches).values(row)))
        stage.write(lambda c, id_=fields["id"]: insert_deliveries(c, id_, stage.tenant_id, now))
    stage.write(lambda c: c.execute(sa.insert(output_leases).values(batch_id="batch_4", gateway_id="", epoch=1)))
    assert count(database, batch_deliveries) == 9
    await Retention(database, configured(tmp_path, "batch_days = 0"), SECRETS).run_once()
    assert count(database, batches) == 9
    await Retention(database, configured(tmp_path, ""), SECRETS).run_once()
    kept = database.read_sync(lambda c: set(c.execute(sa.select(batches.c.id)).scalars()))
    assert kept == {f"batch_{number}" for number in (4, 5, 6, 7, 8)}
    assert count(database, batch_deliveries) == len(kept)


def insert_hours(database: Database, hours: list[dict[str, Any]]) -> None:
    fields = {"connector": "books", "tenant_id": "ten_1", "meter": "output", "part": 1, "attempts": 0}

    def insert(connection: sa.Connection) -> None:
        known = connection.execute(sa.select(finance_tables.connectors.c.name)).first()
        if known is None:
            connector = {"name": "books", "start_sequence": 0, "sequence": 0, "sent_tokens": 0}
            connection.execute(sa.insert(finance_tables.connectors).values(connector))
        for hour in hours:
            row = fields | {"next_attempt_at": 0, "sending": None} | hour
            connection.execute(sa.insert(finance_tables.connector_hours).values(row))

    database.write_sync(insert)


def hours_of(database: Database) -> list[tuple[Any, ...]]:
    columns = finance_tables.connector_hours.c
    query = sa.select(columns.tenant_id, columns.hour, columns.recorded, columns.sent)
    ordered = query.order_by(columns.tenant_id, columns.hour)
    return database.read_sync(lambda c: [tuple(row) for row in c.execute(ordered)])


async def test_sent_hours_of_connectors(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 2)
    monkeypatch.setattr(retention, "DELETED_AT_ONCE_SQLITE", 2)
    now = database.read_sync(database_now)
    old, new = now - 401 * DAY, now - 399 * DAY
    sent = [{"hour": old - number * 3_600_000_000, "recorded": 10 + number, "sent": 10 + number} for number in range(5)]
    kept = [
        {"hour": old + 1, "recorded": 9, "sent": 4},  # not sent: only an operator's release sends it
        {"hour": old + 2, "recorded": 9, "sent": 9, "sending": 5},
        {"hour": new, "recorded": 7, "sent": 7},
    ]
    insert_hours(database, [*sent, *kept, sent[0] | {"tenant_id": "ten_2"}])
    await Retention(database, configured(tmp_path, "connector_days = 0"), SECRETS).run_once()
    assert len(hours_of(database)) == 9
    await Retention(database, configured(tmp_path, ""), SECRETS).run_once()
    left = [("ten_1", row["hour"], row["recorded"], row["sent"]) for row in kept]
    assert hours_of(database) == [("ten_1", 0, 60, 60), *left, ("ten_2", 0, 10, 10)]
    insert_hours(database, [{"hour": old, "recorded": 5, "sent": 5}])
    await Retention(database, configured(tmp_path, ""), SECRETS).run_once()
    assert hours_of(database) == [("ten_1", 0, 65, 65), *left, ("ten_2", 0, 10, 10)], "the sums grow"


INDEXED = {
    "ix_batches_ended": "SELECT id FROM batches WHERE ended_at < 1 ORDER BY ended_at LIMIT 9",
    "ix_connector_hours_sent": "SELECT 1 FROM connector_hours WHERE sent = recorded AND hour > 0 AND hour < 9 "
    "ORDER BY hour LIMIT 9",
}


@pytest.mark.parametrize("index", INDEXED)
def test_old_rows_are_found_by_an_index(database: Database, index: str) -> None:
    def plan(connection: sa.Connection) -> str:
        if connection.dialect.name == "sqlite":
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {INDEXED[index]}").all())
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return str(connection.exec_driver_sql(f"EXPLAIN {INDEXED[index]}").all())

    assert index in database.write_sync(plan)


def test_a_limit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="connector_days is 61; it must be 0"):
        configured(tmp_path, "connector_days = 61")
    with pytest.raises(ConfigError, match="requests_days is 3; it must be 0"):
        configured(tmp_path, "requests_days = 3")
