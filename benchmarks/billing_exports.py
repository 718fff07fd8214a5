"""Exports of a tenant's month on PostgreSQL: rows a second and peak memory by format and size, and the checker's pace.

    python -m benchmarks.billing_exports [--rows 100000,1000000] [--keys 120] [--keep DIRECTORY] [--note TEXT]

Creates a separate database (LANEWAY_BENCH_POSTGRES, by default on 127.0.0.1), fills it with usage rows like those of
settlements, folds and closes the month, and exports it, each time in a fresh process. The sums are compared with the
entries, a second export with the first. Appends rows to benchmarks/results/billing_exports.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import sqlalchemy as sa

from benchmarks.rows import append_rows
from billing import tables
from billing.accounts import prices, tenants
from billing.books import invoices, rollups
from billing.database import Database
from billing.exports import export, labels
from billing.exports.export import ExportSpec
from billing.focus import checker
from migrations.upgrade import upgrade

POSTGRES = os.environ.get("LANEWAY_BENCH_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres")
FORMATS = (("focus", "csv"), ("focus", "jsonl"), ("focus", "parquet"), ("events", "jsonl"))
MONTH, START, END = "2026-01", 1_767_225_600_000_000, 1_769_904_000_000_000
BYTES_MAX = 1 << 40
ADAPTERS = 3  # and the base model
# As settlements write them; holds are left out, and with them the foreign keys.
FILL = """
INSERT INTO usage (sequence, request_id, tenant_id, project_id, key_id, model, adapter, tier, price_version_id,
    currency, prompt_tokens, cached_tokens, completion_tokens, made_tokens, discarded_tokens, cost_picos, ending,
    queue_s, ttft_s, device_s, preemptions, recomputed_tokens, swapped_tokens, started_at, finished_at)
SELECT n, 'req_' || lpad(to_hex(n), 32, '0'), :tenant, NULL, 'key_' || lpad(to_hex(n % :keys), 32, '0'), 'model-a',
    CASE n / :keys % :models WHEN 0 THEN NULL ELSE 'adp_' || n / :keys % :models END, 'standard', :version, 'USD',
    200 + n % 800, n % 200, 1 + n % 300, 1 + n % 300, 0,
    (200 + n % 800 - n % 200) * 100::bigint + n % 200 * 10 + (1 + n % 300) * 400, 'stop', 0.01, 0.2, 0.5, 0, 0, 0,
    at, at + 1000000
FROM (SELECT n, :start + (n::numeric * :span / :rows)::bigint + hashint8(n)::bigint % 1000000 AS at
      FROM generate_series(1, :rows) AS n) AS usage_rows
"""
ENTRIES = """
INSERT INTO entries (transaction_id, tenant_id, account, meter, amount_picos, currency, recorded_at)
SELECT request_id, tenant_id, 'receivable', NULL, cost_picos, currency, finished_at FROM usage
"""


@contextlib.contextmanager
def filled(rows: int, keys: int) -> Iterator[tuple[str, str]]:
    """A database with a closed month of `rows` requests. Its URL and the tenant's id."""
    admin = sa.create_engine(POSTGRES, isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool)
    name = f"laneway_bench_{uuid.uuid4().hex[:12]}"
    with admin.connect() as connection:
        connection.execute(sa.text(f'CREATE DATABASE "{name}"'))
    url = sa.make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    try:
        upgrade(url)
        yield url, fill(url, rows, keys)
    finally:
        with admin.connect() as connection:
            connection.execute(sa.text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def fill(url: str, rows: int, keys: int) -> str:
    database = Database(url)
    try:
        tenant = database.write_sync(lambda c: tenants.create_tenant(c, slug="acme", name="Acme", tier="standard"))
        version = database.write_sync(
            lambda c: prices.publish(
                c, subject="model-a", input=100, cached_input=10, output=400, multipliers={"standard": 1}
            )
        )
        values = {"tenant": tenant.id, "version": version.id, "rows": rows, "keys": keys, "models": ADAPTERS + 1}
        values |= {"start": START + 1_000_000, "span": END - START - 4_000_000}

        def insert(connection: sa.Connection) -> None:
            connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
            connection.execute(sa.text(FILL), values)
            connection.execute(sa.text(ENTRIES))
            connection.execute(sa.text("SELECT setval(pg_get_serial_sequence('usage', 'sequence'), :rows)"), values)

        database.write_sync(insert)
        while database.write_sync(rollups.fold_usage).more:
            pass
        database.write_sync(lambda c: c.execute(sa.text("ANALYZE")))
        invoice = database.write_sync(lambda c: invoices.close(c, tenant.id, MONTH, actor="bench"))
        names = {tenant.id: "Acme", "provider": "Laneway"} | {
            f"adp_{n}": f"adapter {n}" for n in range(1, ADAPTERS + 1)
        }
        database.write_sync(lambda c: labels.store_names(c, invoice.period, names))
        return tenant.id
    finally:
        database.close()


def export_here(url: str, spec: ExportSpec, directory: Path) -> dict[str, float]:
    """One export by this process: seconds, rows, peak memory in MiB."""
    database = Database(url)
    began, worked = time.perf_counter(), time.process_time()
    made = database.read_sync(lambda c: export.run(c, spec, directory, bytes_max=BYTES_MAX))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - worked
    database.close()
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "rows": made.rows,
        "usage_rows": made.ledger.usage_rows,
        "peak_mib": own_peak_mib(),
    }


def own_peak_mib() -> float:
    """Peak memory of this program; getrusage would include its parent's memory at the start."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def in_a_process(url: str, spec: ExportSpec, directory: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.billing_exports", "--one", url, spec.kind, spec.format]
    done = subprocess.run(
        [*command, str(spec.tenant_id), str(directory)], capture_output=True, text=True, check=True, timeout=600
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def ledger_total(url: str) -> Decimal:
    """The owed amount according to the entries."""
    database = Database(url)
    entries = tables.entries
    query = sa.select(sa.func.sum(entries.c.amount_picos)).where(entries.c.account == "receivable")
    total = database.read_sync(lambda c: c.execute(query).scalar_one())
    database.close()
    return Decimal(int(total)).scaleb(-12)


def measure(url: str, tenant_id: str, directory: Path, kind: str, format_: str) -> dict[str, float]:
    spec = ExportSpec(kind=kind, format=format_, month=MONTH, tenant_id=tenant_id)  # type: ignore[arg-type]
    runs = []
    for name in ("once", "again"):
        (directory / name).mkdir(exist_ok=True)
        runs.append(in_a_process(url, spec, directory / name))
    best = min(runs, key=lambda run: run["seconds"])
    path = directory / "once" / f"{kind}-{MONTH}-acme.{format_}"
    again = directory / "again" / path.name
    assert digest(path) == digest(again), "the same month gave other bytes"
    again.unlink()
    figures = {
        "rows": best["rows"],
        "seconds": best["seconds"],
        "cpu_s": best["cpu_s"],
        "rows_per_s": best["rows"] / best["seconds"],
        "usage_rows_per_s": best["usage_rows"] / best["seconds"],
        "peak_mib": max(run["peak_mib"] for run in runs),
        "file_mib": path.stat().st_size / 2**20,
    }
    if kind == "focus":
        began, worked = time.perf_counter(), time.process_time()
        report = checker.check_focus_file(path)
        took, cpu_s = time.perf_counter() - began, time.process_time() - worked
        assert report.sound, report.findings[:5]
        assert Decimal(report.billed["USD"]) == ledger_total(url), "the rows are not the entries' sum"
        figures["check_rows_per_s"] = report.rows / took
        figures["check_rows_per_cpu_s"] = report.rows / cpu_s
    return figures


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--keys", type=int, default=120)
    parser.add_argument("--keep", type=Path, help="Leave the files of the largest size here.")
    parser.add_argument("--note", default="")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        url, kind, format_, tenant_id, directory = options.one
        print(
            json.dumps(
                export_here(
                    url, ExportSpec(kind=kind, format=format_, month=MONTH, tenant_id=tenant_id), Path(directory)
                )
            )
        )
        return
    machine = f"{platform.machine()} {os.cpu_count()} cores, Python {platform.python_version()}, PostgreSQL beside it"
    for rows in map(int, options.rows.split(",")):
        with filled(rows, options.keys) as (url, tenant_id), tempfile.TemporaryDirectory() as scratch:
            directory = options.keep or Path(scratch)
            directory.mkdir(parents=True, exist_ok=True)
            for kind, format_ in FORMATS:
                found = measure(url, tenant_id, directory, kind, format_)
                workload = f"{rows} usage rows of {options.keys} keys, a closed month, {kind} {format_}"
                print(f"-- {workload}")
                append_rows("billing_exports", found, machine, workload, options.note)


if __name__ == "__main__":
    main()
