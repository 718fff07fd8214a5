"""Billing over a month of usage on PostgreSQL: a usage page, reconciling, closing, and what settling feels of them.

`python -m benchmarks.billing_reports [--rows 1000000]` creates a database on the server that --admin names, and drops
it at the end. The month is made by SQL, with entries and holds as the ledger writes them.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from benchmarks.rows import append_rows
from billing.accounts import prices, tenants
from billing.books import invoices, reports, rollups, usage
from billing.books.margins import month_before
from billing.books.reports import ReportFilter
from billing.clock import DAY, SECOND, database_now, window_end, window_start, zone_of
from billing.database import Database
from billing.ledger.ledger import Ledger
from billing.ledger.messages import HoldRequest, Settlement
from billing.proofs import reconcile
from migrations.upgrade import upgrade

ADMIN = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
TENANTS, KEYS = 20, 9  # keys of each tenant
LAST_MINUTE = 5000  # rows
REPEATS = 15
SETTLE_S = 8.0
CHUNK = 250_000

FILL = """
WITH made AS (
    SELECT i, 'req_' || i AS request_id, 'ten_' || i % {tenants} AS tenant_id,
        'key_' || i % {tenants} || '_' || i / {tenants} % {keys} AS key_id, 'prj_' || i % {tenants} AS project_id,
        'model-' || i / {tenants} % 3 AS model,
        CASE WHEN i / {tenants} % {keys} = 0 THEN 'adp_' || i % {tenants} END AS adapter,
        (ARRAY['premium', 'standard', 'batch'])[1 + i % 3] AS tier, (ARRAY[6, 2, 1])[1 + i % 3] AS factor,
        10 + i % 100 AS prompt, i % 10 AS cached, 1 + i % 50 AS completion,
        {start} + ({span}::numeric * i / {rows})::bigint AS at
    FROM generate_series({first}, {last}) AS i
), priced AS (
    SELECT *, (prompt - cached) * 2 * factor AS input, cached * factor AS cached_input,
        completion * 4 * factor AS output, 'prv_' || model AS price FROM made
), holding AS (
    INSERT INTO holds SELECT request_id, 'gw', tenant_id, project_id, key_id, model, adapter, tier, price, prompt,
        completion, input + cached_input * 2 + output, at, 'settled', at, 'stop', input + cached_input + output, 0
    FROM priced
), entering AS (
    INSERT INTO entries (transaction_id, tenant_id, account, meter, amount_picos, currency, recorded_at)
    SELECT request_id, tenant_id, account, meter, amount, 'USD', at FROM priced, LATERAL (VALUES
        ('receivable', NULL, input + cached_input + output), ('revenue', 'input', -input),
        ('revenue', 'cached_input', -cached_input), ('revenue', 'output', -output)) AS e (account, meter, amount)
    WHERE amount <> 0
)
INSERT INTO usage (request_id, tenant_id, project_id, key_id, model, adapter, tier, price_version_id, currency,
    prompt_tokens, cached_tokens, completion_tokens, made_tokens, discarded_tokens, cost_picos, ending, queue_s, ttft_s,
    device_s, preemptions, recomputed_tokens, started_at, finished_at, ttft_target_s, itl_target_s, itl_s, pause_s)
SELECT request_id, tenant_id, project_id, key_id, model, adapter, tier, price, 'USD', prompt, cached, completion,
    completion, 0, input + cached_input + output, 'stop', 0.01, 0.1 + i % 7 * 0.01, 0.05, 0, 0, at, at, 0.15, 0.05,
    0.01 + i % 5 * 0.01, 0.06 FROM priced ORDER BY i
"""

INDEXES = """
SELECT indexname, indexdef FROM pg_indexes
WHERE tablename IN ('usage', 'entries', 'holds') AND indexname NOT IN (SELECT conname FROM pg_constraint)
"""


@contextmanager
def own_database(admin: str) -> Iterator[str]:
    engine = sa.create_engine(admin, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    name = f"laneway_bench_{uuid.uuid4().hex[:12]}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    try:
        yield sa.make_url(admin).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE "{name}" WITH (FORCE)')


def seed(connection: sa.Connection) -> None:
    for number in range(TENANTS):
        made = tenants.create_tenant(connection, slug=f"t{number}", name="T", tier="premium")
        connection.exec_driver_sql("DELETE FROM projects")
        connection.exec_driver_sql("UPDATE tenants SET id = %s WHERE id = %s", (f"ten_{number}", made.id))
    for number in range(3):
        version = prices.publish(
            connection,
            subject=f"model-{number}",
            input=4,
            cached_input=2,
            output=8,
            multipliers={"premium": 3, "standard": 1, "batch": "0.5"},
        )
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for table, column in (("price_versions", "id"), ("unit_prices", "price_version_id")):
            statement = f"UPDATE {table} SET {column} = %s WHERE {column} = %s"
            connection.exec_driver_sql(statement, (f"prv_model-{number}", version.id))


def fill(
    connection: sa.Connection, first: int, last: int, *, rows: int, start: int, span: int, keys: int = KEYS
) -> None:
    """Insert the rows `first` to `last` of `rows`, whose times are evenly spaced over the span. `keys`: of a tenant."""
    connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # foreign keys are valid
    values = {"first": first, "last": last, "rows": rows, "start": start, "span": span}
    statement = FILL.format(tenants=TENANTS, keys=keys, **values)
    connection.exec_driver_sql(statement.replace("%", "%%"))


@contextmanager
def without_indexes(url: str) -> Iterator[None]:
    """Indexes that no constraint needs are created after the rows are inserted, so that ten million rows take
    minutes."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(INDEXES).all()
        for name, _ in found:
            connection.exec_driver_sql(f'DROP INDEX "{name}"')
    yield
    with engine.connect() as connection:
        connection.exec_driver_sql("SET maintenance_work_mem = '512MB'")
        for _, definition in found:
            connection.exec_driver_sql(definition)
        connection.exec_driver_sql("ANALYZE")


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median milliseconds."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def pages(database: Database, start: int, end: int) -> dict[str, float]:
    def page(width: Any, group_by: Any, limit: int, begin: int, **names: Any) -> Callable[[], Any]:
        which = ReportFilter(start=begin, end=end, **names)
        return lambda: database.read_sync(
            lambda c: reports.buckets(c, which, width=width, group_by=group_by, limit=limit)
        )

    last_day = end - DAY
    last_hours = usage.UsageFilter(start=last_day, end=end, tenant_id="ten_3")
    everyones = usage.UsageFilter(start=last_day)
    return {
        "requests_of_a_tenant_last_day_ms": timed(
            lambda: database.read_sync(lambda c: usage.list_usage_rows(c, last_hours))
        ),
        "requests_since_a_day_ms": timed(lambda: database.read_sync(lambda c: usage.list_usage_rows(c, everyones))),
        "page_7_days_by_tenant_model_ms": timed(page("1d", ("tenant_id", "model"), 7, start)),
        "page_31_days_of_a_tenant_by_key_ms": timed(page("1d", ("key_id",), 31, start, tenant_ids=("ten_3",))),
        "page_24_hours_by_all_six_ms": timed(page("1h", reports.GROUPS, 24, last_day)),
        "page_31_days_odd_edges_ms": timed(page("1d", ("tier",), 31, start + 17 * 60 * SECOND)),
        "page_60_minutes_ms": timed(page("1m", ("tier",), 60, end - 3600 * SECOND)),
    }


def settling(database: Database, meanwhile: Callable[[threading.Event], None] | None) -> dict[str, float]:
    """Milliseconds of a settlement in the ledger, with 16 requests at once, while `meanwhile` runs; None: alone."""
    done = threading.Event()
    other = threading.Thread(target=meanwhile, args=(done,)) if meanwhile else None
    if other:
        other.start()
    took: list[float] = []

    async def one(ledger: Ledger, name: str) -> None:
        number = 0
        while not done.is_set():
            request = HoldRequest(f"req_{name}_{number}", "ten_1", "key_1_1", "model-1", None, "standard", 10, 5)
            await ledger.hold(request)
            began = time.perf_counter()
            await ledger.settle(
                Settlement(
                    request_id=request.request_id,
                    prompt_tokens=10,
                    cached_tokens=0,
                    completion_tokens=5,
                    made_tokens=5,
                    ending="stop",
                )
            )
            took.append((time.perf_counter() - began) * 1000)
            number += 1
            await asyncio.sleep(0.01)

    async def run() -> None:
        ledger = Ledger(database, "gw_bench")
        tasks = [asyncio.create_task(one(ledger, f"{meanwhile is None}_{index}")) for index in range(16)]
        await asyncio.sleep(SETTLE_S)
        done.set()
        await asyncio.gather(*tasks)
        await ledger.close()

    asyncio.run(run())
    if other:
        other.join()
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}


def measure(url: str, rows: int) -> dict[str, float]:
    found: dict[str, float] = {}
    database = Database(url)
    database.write_sync(seed)
    now = database.read_sync(database_now)
    utc = zone_of("UTC")
    end = window_start("month", now, utc)
    start = window_start("month", end - DAY, utc)
    assert window_end("month", start, utc) == end
    began = time.perf_counter()
    with without_indexes(url):
        for first in range(0, rows, CHUNK):
            last = min(first + CHUNK, rows) - 1
            database.write_sync(lambda c, f=first, t=last: fill(c, f, t, rows=rows, start=start, span=end - start))  # type: ignore[misc]
    print(f"{rows} rows are there after {time.perf_counter() - began:.0f} s", flush=True)
    began = time.perf_counter()
    while database.write_sync(rollups.fold_usage).more:
        pass
    found["fold_rows_per_s"] = rows / (time.perf_counter() - began)
    analyze = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    with analyze.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")
        found["rollup_rows"] = connection.exec_driver_sql("SELECT count(*) FROM usage_hours").scalar_one()
    found |= pages(database, start, end)
    # Record all rows so far as reconciled, so that the reconciliation of a minute reads the rows inserted next.
    skip = reconcile.Reconciliation(kind="minute", at=now, sequence_from=0, sequence_to=rows, took_s=0)
    database.write_sync(lambda c: reconcile.store_reconciliation(c, skip))
    span = (rows + LAST_MINUTE) * 60 * SECOND // LAST_MINUTE
    minute = {"rows": rows + LAST_MINUTE, "start": now - span, "span": span}
    database.write_sync(lambda c: fill(c, rows, rows + LAST_MINUTE - 1, **minute))
    began = time.perf_counter()
    database.write_sync(rollups.fold_usage)
    found["fold_last_minute_ms"] = (time.perf_counter() - began) * 1000
    found["reconcile_minute_ms"] = timed(lambda: expect_sound(database.read_sync(reconcile.reconcile_minute)))
    found["reconcile_month_s"] = timed(lambda: expect_sound(month(database, now)), 1) / 1000
    began = time.perf_counter()
    database.write_sync(lambda c: invoices.close(c, "ten_3", month_before(now), actor="bench"))
    found["close_a_tenants_month_ms"] = (time.perf_counter() - began) * 1000
    for name, work in (("alone", None), ("beside_reports", lambda done: report_on(database, done, start, end))):
        found |= {f"settle_{name}_{key}_ms": value for key, value in settling(database, work).items()}
    database.close()
    return found


def month(database: Database, now: int) -> reconcile.Reconciliation:
    return database.read_sync(lambda c: reconcile.reconcile_month(c, month_before(now)))


def expect_sound(result: reconcile.Reconciliation) -> None:
    assert result.sound, result


def report_on(database: Database, done: threading.Event, start: int, end: int) -> None:
    """Each second a usage page, and the folding and the reconciliation that gateways do less often."""
    which = ReportFilter(start=start, end=end)
    while not done.wait(1.0):
        database.read_sync(lambda c: reports.buckets(c, which, width="1d", group_by=("tenant_id",), limit=7))
        database.write_sync(rollups.fold_usage)
        result = database.read_sync(reconcile.reconcile_minute)
        expect_sound(result)
        database.write_sync(lambda c, r=result: reconcile.store_reconciliation(c, r))  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.billing_reports", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--admin", default=ADMIN, help="a PostgreSQL whose user may create databases")
    parser.add_argument("--machine", default="x86_64 2 cores, PostgreSQL 15, its defaults")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    with own_database(arguments.admin) as url:
        upgrade(url)
        found = measure(url, arguments.rows)
    workload = f"{arguments.rows} usage rows of a month, {TENANTS} tenants of {KEYS} keys, 3 models, 3 tiers"
    append_rows("billing_reports", found, arguments.machine, workload, arguments.note)


if __name__ == "__main__":
    main()
