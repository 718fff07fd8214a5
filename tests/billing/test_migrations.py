"""The schema that the migrations make is the schema that the tables say, and it protects what must not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import gateway.access.audit_log
import gateway.tables  # its tables are in the metadata too
from billing import revision, tables
from billing.accounts import budgets, tenants
from billing.accounts.budgets import Budget
from billing.books import documents, rollups, usage
from billing.books.documents import DEFAULT_ISSUER
from billing.bulk import BulkInsert
from billing.database import Database
from billing.ledger import checkpoints
from billing.ledger.ledger import Held, Ledger
from billing.ledger.messages import Recompute, Settlement
from billing.proofs import engine_books, reconcile
from billing.proofs.engine_books import EngineCount
from billing.proofs.imbalances import Imbalance
from billing.tables import metadata
from gateway.catalog import adapters, base_models
from gateway.config.file import parse_gateway_config
from migrations.upgrade import _migrating, configuration, is_current, upgrade
from support.billing.books import Books, make_books, settlement
from support.paths import REPO


def differs(
    context: MigrationContext,
    found: object,
    column: sa.Column[object],
    found_default: str | None,
    default: object,
    rendered: str | None,
) -> bool | None:
    """Whether the server default of a column differs; None: as Alembic compares it. PostgreSQL cannot compare JSON."""
    if not isinstance(column.type, sa.JSON) or found_default is None or rendered is None:
        return None
    return found_default.removesuffix("::json") != rendered


def test_tables_and_migrations_agree(empty_database_url: str) -> None:
    assert not is_current(empty_database_url)
    upgrade(empty_database_url)
    assert is_current(empty_database_url)
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": differs})
        assert compare_metadata(context, metadata) == []


def test_upgrading_again_changes_nothing(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    database = Database(empty_database_url)
    database.write_sync(revision.bump)
    upgrade(empty_database_url)
    assert database.read_sync(revision.read_revision) == 1
    database.close()


def test_two_hosts_upgrade_at_once(empty_database_url: str) -> None:
    # Processes, as hosts are: alembic's context belongs to a whole process.
    hosts = [subprocess.Popen([sys.executable, "-m", "migrations", empty_database_url], cwd=REPO) for _ in range(2)]
    assert [host.wait(60) for host in hosts] == [0, 0]
    assert is_current(empty_database_url)


def test_command_makes_the_file_and_its_folder(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'laneway.db'}"
    subprocess.run([sys.executable, "-m", "migrations", url], cwd=REPO, check=True)
    assert is_current(url)


@pytest.mark.parametrize("table", tables.APPEND_ONLY)
async def test_append_only(books: Books, table: str) -> None:
    ledger = Ledger(books.database, "gw_1")
    request = books.request()
    assert isinstance(await ledger.hold(request), Held)
    settled = settlement(request, 5, engines={"epo_1": 2, "epo_2": 3})
    await ledger.settle(msgspec.structs.replace(settled, recomputed={"premium": Recompute(1, 0.1)}))
    books.database.write_sync(
        lambda c: gateway.access.audit_log.add_audit_line(c, actor="me", action="a.b", object_id="x")
    )
    books.database.write_sync(proved)
    books.database.write_sync(lambda c: invoiced(c, books.tenant.id))
    column = metadata.tables[table].columns.keys()[1]
    statements = [f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"]
    if not books.database.is_sqlite:
        statements.append(f"TRUNCATE {table} CASCADE")
    for statement in statements:
        with pytest.raises(sa.exc.DBAPIError, match="append-only"):
            books.database.write_sync(lambda connection, text=statement: connection.exec_driver_sql(text))
    books.assert_sound()


def proved(connection: sa.Connection) -> None:
    """A checkpoint of the audit log, and an erasure."""
    checkpoint = {"position": 1, "pruned": False, "pruned_to": 0, "hash": "h", "at": 1, "signer": "s", "signature": "s"}
    connection.execute(sa.insert(gateway.tables.audit_checkpoints).values(checkpoint))
    connection.execute(sa.insert(gateway.tables.erasures).values(id="era_1", tenant_id="ten_1", at=1))


def invoiced(connection: sa.Connection, tenant_id: str) -> None:
    """A closed period with one free correction, and nothing else on its invoice."""
    period = {"id": "per_1", "tenant_id": tenant_id, "month": "2026-01", "time_zone": "UTC", "opened_at": 1}
    period |= {"start_at": 1, "end_at": 2, "state": "closed", "closed_sequence": 0}
    correction = {
        "id": "cor_1",
        "period_id": "per_1",
        "tenant_id": tenant_id,
        "currency": "USD",
        "tokens": 0,
        "picos": 0,
    }
    invoice = {"id": "inv_1", "period_id": "per_1", "tenant_id": tenant_id, "currency": "USD", "issued_at": 1}
    invoice |= {"usage_picos": 0, "correction_picos": 0, "total_picos": 0}
    line = {"invoice_id": "inv_1", "line": 1, "kind": "correction", "tokens": 0, "picos": 0, "correction_id": "cor_1"}
    connection.execute(sa.insert(tables.billing_periods).values(period))
    connection.execute(
        sa.insert(tables.corrections).values(correction | {"reason": "none", "actor": "me", "created_at": 1})
    )
    connection.execute(sa.insert(tables.invoices).values(invoice))
    connection.execute(sa.insert(tables.invoice_lines).values(line))
    documents.issue(
        connection, DEFAULT_ISSUER, kind="invoice", tenant_id=tenant_id, currency="USD", exact_picos=10**12, now=1,
        invoice_id="inv_1",
    )  # fmt: skip
    documents.pay(connection, "inv_1", minor=100, reference="a transfer", actor="me")


def test_a_closed_period_never_changes(books: Books) -> None:
    books.database.write_sync(lambda c: invoiced(c, books.tenant.id))
    for statement in ("UPDATE billing_periods SET state = 'open'", "DELETE FROM billing_periods"):
        with pytest.raises(sa.exc.DBAPIError, match="a closed period is immutable"):
            books.database.write_sync(lambda connection, text=statement: connection.exec_driver_sql(text))


def just_before(url: str, number: str) -> None:
    """Bring the schema to the revision that `number` follows."""
    revision_before = ScriptDirectory.from_config(configuration(None)).get_revision(number).down_revision
    with _migrating(url) as connection:
        command.upgrade(configuration(connection), str(revision_before))


def test_calls_in_flight_have_an_end_too(empty_database_url: str) -> None:
    """Revision 0010: a row that no answer was written into is found by its end, as those that it makes itself."""
    just_before(empty_database_url, "0010")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    rows = "('k', 'running', 'f', 'req_1', 'gw', 7, NULL), ('k', 'answered', 'f', 'req_2', 'gw', 7, 9)"
    names = "key_id, name, fingerprint, request_id, gateway_id, begun_at, expires_at"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO replays ({names}) VALUES {rows}")
    upgrade(empty_database_url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT request_id, expires_at FROM replays ORDER BY request_id").all()
    assert [tuple(row) for row in found] == [("req_1", 600_000_007), ("req_2", 9)]


def test_answers_in_plain_text_are_deleted_and_their_calls_stay(empty_database_url: str) -> None:
    """Revision 0019: a call that was answered must not run again, so its row waits for its end without the answer."""
    just_before(empty_database_url, "0019")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    names = "key_id, name, fingerprint, request_id, gateway_id, answer, begun_at, expires_at"
    row = sa.text(f"INSERT INTO replays ({names}) VALUES ('k', 'n', 'f', 'req_1', 'gw', :answer, 7, 9)")
    with engine.begin() as connection:
        connection.execute(row, {"answer": b'{"plain": "text"}'})
    upgrade(empty_database_url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT request_id, answer FROM replays").all()
    assert [tuple(row) for row in found] == [("req_1", None)]


def test_models_added_before_there_were_formats_have_the_defaults(empty_database_url: str) -> None:
    """Revision 0024: their rows have no format, so they are served as before."""
    just_before(empty_database_url, "0024")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    names = "id, name, path, dtype, active, created_at, changed_at"
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO base_models ({names}) VALUES ('mod_1', 'm', 'm', 'bfloat16', true, 1, 1)"
        )
    upgrade(empty_database_url)
    with engine.connect() as connection:
        found = base_models.model_named(connection, parse_gateway_config(b"", Path("/"), "test", {}), "m")
    assert (found.dtype, found.quantize, found.kv_dtype) == ("bfloat16", "none", "auto")


# The columns that revision 0024 had, of the tables that revision 0025 changed.
OLD_COLUMNS = {
    "usage": "request_id, tenant_id, project_id, key_id, model, adapter, tier, price_version_id, currency, "
    "prompt_tokens, cached_tokens, completion_tokens, made_tokens, discarded_tokens, discard_reason, cost_picos, "
    "ending, queue_s, ttft_s, device_s, preemptions, recomputed_tokens, swapped_tokens, started_at, finished_at",
    "checkpoints": "request_id, prompt_tokens, cached_tokens, completion_tokens",
    "reconciliations": "kind, at, sequence_from, sequence_to, took_s, imbalances, overshot, findings, engine_gap, "
    "engines, engine_bounds",
    "engine_counts": "epoch, made_tokens, overrun_tokens, lost_tokens, ledger_tokens, ledger_before, ledger_bound, "
    "read_at",
}


async def test_the_version_before_settles_and_reconciles_beside_this_one(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revision 0025: a gateway of the version before runs while the database is upgraded and after it. Its statements
    name the columns that it knows. What it settles is folded and shown, and nothing is found in the engines' books."""
    just_before(empty_database_url, "0025")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    for table, names in OLD_COLUMNS.items():
        known = {column["name"] for column in sa.inspect(engine).get_columns(table)} - {"sequence", "number"}
        assert known == set(names.split(", ")), table
    upgrade(empty_database_url)
    books = make_books(empty_database_url)
    database, ledger = books.database, Ledger(books.database, "gw_1")

    async def settle(made: int, engines: dict[str, int] | None) -> str:
        request = books.request()
        await ledger.hold(request)
        await ledger.settle(settlement(request, made, engines=engines))
        return request.request_id

    def read_engine(made: int) -> list[Imbalance]:
        """The engine has made all tokens, and the ledger is folded and reconciled."""
        before = database.read_sync(engine_books.ledger_count)
        count = EngineCount("epo_1", made, 0, 0, idle=True)
        database.write_sync(lambda c: engine_books.record_count(c, before, count, before))
        database.write_sync(rollups.fold_usage)
        return database.write_sync(
            lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_minute(c))
        ).imbalances

    for made in (7, 12):
        with monkeypatch.context() as patch:
            old = BulkInsert(tables.usage, OLD_COLUMNS["usage"].split(", "))
            patch.setattr("billing.ledger.transaction._INSERT_USAGE", old)
            request_id = await settle(made - 5, None)
        shown = database.read_sync(lambda c, id_=request_id: usage.get_usage_row(c, id_))
        assert shown is not None
        assert shown.made_tokens == made - 5
        assert read_engine(made * 2) == []
        await settle(5, {"epo_1": 5})
        assert read_engine(made * 2 + 5) == []
    assert read_engine(made * 2 + 6) != [], "the version before has ended"

    def insert(connection: sa.Connection, table: str, values: str) -> None:
        connection.exec_driver_sql(f"INSERT INTO {table} ({OLD_COLUMNS[table]}) VALUES ({values})")

    found = '{"imbalances": [], "overshot": []}'
    bounds = '{"engines": ["epo_1"], "floor": 0, "ceiling": 0}'
    row = f"'minute', 1, 0, 0, 0.1, 0, 0, '{found}', 0, '{{}}', '{bounds}'"
    database.write_sync(lambda c: insert(c, "reconciliations", row))
    database.write_sync(lambda c: insert(c, "engine_counts", "'epo_0', 7, 0, 0, 7, 7, 7, 1"))
    assert read_engine(made * 2 + 6) == []
    running = books.request()
    await ledger.hold(running)
    database.write_sync(lambda c: insert(c, "checkpoints", f"'{running.request_id}', 10, 0, 3"))
    [ending] = database.read_sync(lambda c: checkpoints.endings_of_dead(c, [running.request_id]))
    assert isinstance(ending, Settlement)
    assert (ending.made_tokens, ending.engines) == (3, {})
    await ledger.close(patience_s=1.0)
    database.close()
    engine.dispose()


def test_budgets_that_were_there_stay_as_they_are(empty_database_url: str) -> None:
    """Revision 0004 makes SQLite's table of budgets anew, beneath the windows that point to it."""
    just_before(empty_database_url, "0004")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    budget = "'bud_1', 'ten_1', 'tenant', 'ten_1', 'tokens', 'month', 500"
    names = "id, tenant_id, scope, scope_id, unit, period, limit_amount, active, created_at"
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO tenants (id, slug, name, tier, currency, status, created_at) "
            "VALUES ('ten_1', 'acme', 'Acme', 'premium', 'USD', 'active', 7)",
            f"INSERT INTO budgets ({names}) VALUES ({budget}, true, 7)",
            "INSERT INTO budget_windows (budget_id, window_start, held, posted) VALUES ('bud_1', 11, 5, 6)",
        ):
            connection.exec_driver_sql(statement)
    upgrade(empty_database_url)
    database = Database(empty_database_url)
    [found] = database.read_sync(budgets.list_budgets)
    assert found == Budget("bud_1", "ten_1", "tenant", "ten_1", "tokens", "month", 500, True, 7, "hard", ())
    assert database.read_sync(lambda c: tenants.get_tenant(c, "ten_1")).time_zone == "UTC"  # type: ignore[union-attr]
    with engine.connect() as connection:
        windows = connection.execute(sa.select(tables.budget_windows)).all()
        assert [tuple(window) for window in windows] == [("bud_1", 11, 5, 6, 0, 0)]
        if database.is_sqlite:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    for column, value in (("scope", "galaxy"), ("kind", "firm"), ("limit_amount", -1), ("period", "week")):
        with pytest.raises(sa.exc.IntegrityError):
            database.write_sync(lambda c, v={column: value}: c.execute(sa.update(tables.budgets).values(v)))
    with pytest.raises(sa.exc.IntegrityError):
        database.write_sync(lambda c: c.execute(sa.delete(tables.budgets)))
    database.close()
    engine.dispose()


def test_adapters_that_were_there_are_their_own_first_versions(empty_database_url: str) -> None:
    just_before(empty_database_url, "0008")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    names = "id, tenant_id, name, base_model, digest, active, created_at"
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO tenants (id, slug, name, tier, currency, status, created_at) "
            "VALUES ('ten_1', 'acme', 'Acme', 'premium', 'USD', 'active', 7)"
        )
        for row in (
            f"'ada_1', 'ten_1', 'own', 'm', '{'a' * 64}', true, 5000000",
            f"'ada_2', NULL, 'everyones', 'm', '{'b' * 64}', true, 6000000",
            f"'ada_3', NULL, 'gone', 'm', '{'c' * 64}', false, 7000000",
        ):
            connection.exec_driver_sql(f"INSERT INTO adapters ({names}) VALUES ({row})")
    engine.dispose()
    upgrade(empty_database_url)
    database = Database(empty_database_url)
    found = {row.name: row for row in database.read_sync(adapters.list_adapters)}
    assert {name: (row.shared, row.version, row.active) for name, row in found.items()} == {
        "own": ((), 1, True),
        "everyones": (("*",), 1, True),
        "gone": (("*",), 1, False),
    }
    assert database.read_sync(adapters.live_digests) == {"a" * 64, "b" * 64}
    [version] = database.read_sync(lambda c: adapters.versions(c, "ada_1"))
    assert (version.number, version.digest, version.created_at, version.bytes) == (1, "a" * 64, 5, None)
    assert database.read_sync(lambda c: adapters.versions(c, "ada_3")) == []
    database.close()


def test_the_revision_goes_on_after_0017(empty_database_url: str) -> None:
    """Revision 0017 keeps the number, so a watch that read it before interprets the first write by its log row."""
    just_before(empty_database_url, "0017")
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE revision SET number = 41")
    upgrade(empty_database_url)
    database = Database(empty_database_url)
    assert database.read_sync(revision.read_revision) == 41
    assert database.read_sync(lambda c: c.execute(sa.select(revision.price_token)).scalar_one()) == 41
    database.write_sync(lambda c: revision.bump(c, revision.Change("keys", "ten_1")))
    assert database.read_sync(lambda c: revision.changes_since(c, 41, 42)) == [revision.Change("keys", "ten_1")]
    assert database.read_sync(lambda c: c.execute(sa.select(revision.price_token)).scalar_one()) == 41
    database.close()


def test_errors_of_webhooks_lose_their_addresses(empty_database_url: str) -> None:
    """Revision 0017: earlier versions stored addresses in errors that tenants can read."""
    just_before(empty_database_url, "0017")
    errors = [
        "'vm' is at 10.0.0.5, which is private: webhooks.private_addresses",
        "the name 'vm' is not found: Name or service not known",
        "[Errno 111] Connect call failed ('10.0.0.5', 80)",
        "the server answered 500",
    ]
    engine = sa.create_engine(empty_database_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # skips the foreign keys
        for number, error in enumerate(errors):
            connection.execute(
                sa.insert(tables.alert_deliveries).values(
                    alert_id=f"alr_{number}", webhook_id="whk_1", state="failed", attempts=1, last_error=error
                )
            )
    upgrade(empty_database_url)
    with engine.connect() as connection:
        found = connection.execute(
            sa.select(tables.alert_deliveries.c.last_error).order_by(tables.alert_deliveries.c.alert_id)
        ).scalars()
        assert list(found) == ["the connection failed"] * 3 + ["the server answered 500"]
