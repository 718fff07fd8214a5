"""Exports: to the last unit what the ledger has, the same bytes twice, nobody else's rows, and a whole file or none."""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import tenants
from billing.books import invoices, periods
from billing.clock import to_datetime
from billing.errors import InvalidValue, RowNotFound
from billing.exports import amounts, events, export, labels, writers
from billing.exports.amounts import FORMULA, decimal_text, precise_moment_text
from billing.exports.export import BooksDiffer, ExportCancelled, ExportSpec, ExportTooLarge, MissingLibrary
from billing.focus.checker import UnreadableFile, check_focus_file
from billing.focus.manifest import Manifest
from support.billing.books import Books, settlement
from support.billing.exports import (
    BYTES_MAX,
    FEBRUARY,
    HOUR,
    JANUARY,
    february,
    january,
    name_all,
    open_month,
    run,
    second_tenant,
)
from support.billing.finance import at, close, fold, run_group, use

FORMATS = [("focus", "csv"), ("focus", "parquet"), ("focus", "jsonl"), ("events", "jsonl")]


def spec(books: Books, format_: str = "csv", month: str = "2031-01", kind: str = "focus") -> ExportSpec:
    return ExportSpec(kind=kind, format=format_, month=month, tenant_id=books.tenant.id)  # type: ignore[arg-type]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Cells as text; null is None."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [{name: cell or None for name, cell in row.items()} for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line, parse_int=str, parse_float=str) for line in path.read_text().splitlines()]
    from pyarrow import parquet

    return [{name: _text(cell) for name, cell in row.items()} for row in parquet.read_table(path).to_pylist()]


def _text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, Decimal):
        return f"{cell:f}".rstrip("0").rstrip(".") if "." in f"{cell:f}" else f"{cell:f}"
    return str(cell.strftime("%Y-%m-%dT%H:%M:%SZ"))


def picos(text: str | None) -> int:
    amount = Decimal(text or 0) * 10**12
    assert amount == int(amount)
    return int(amount)


def ledger_picos(books: Books, tenant_id: str) -> int:
    """What the entries say the tenant owes."""
    entries = tables.entries
    query = sa.select(sa.func.coalesce(sa.func.sum(entries.c.amount_picos), 0)).where(
        entries.c.tenant_id == tenant_id, entries.c.account == "receivable"
    )
    return int(books.database.read_sync(lambda c: c.execute(query).scalar_one()))


@pytest.mark.parametrize(("kind", "format_"), FORMATS)
def test_a_closed_month_is_the_ledgers_to_the_last_unit_and_twice_the_same(
    books: Books, tmp_path: Path, kind: str, format_: str
) -> None:
    other = second_tenant(books)
    february(books, january(books, other)[0])
    billed = 0
    for month in ("2031-01", "2031-02"):
        asked = spec(books, format_, month, kind)
        made = run(books, tmp_path / "once", asked)
        path = tmp_path / "once" / made.file
        again = run(books, tmp_path / "again", asked)
        assert again == made
        for name in (made.file, f"{made.file}.manifest.json"):
            assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
        rows = rows_of(path)
        assert (made.rows, made.provisional, made.size_bytes) == (len(rows), False, path.stat().st_size)
        costs = [row["BilledCost"] if kind == "focus" else row["data"]["cost"] for row in rows]
        total = sum(picos(cost) for cost in costs)
        invoice = books.database.read_sync(
            lambda c, month=month: invoices.list_invoices(c, tenant_id=books.tenant.id, month=month)[0]
        )
        assert (
            total
            == invoice.total_picos
            == picos(str(made.billed["USD"]))
            == picos(str(made.invoices[invoice.id].total))
        )
        billed += total
        if kind == "focus":
            report = check_focus_file(path)
            assert (report.findings, report.manifest) == ([], f"{made.file}.manifest.json")
        assert sorted(entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")) == []
    assert billed == ledger_picos(books, books.tenant.id)


def test_the_rows_of_a_month(books: Books, tmp_path: Path) -> None:
    other = second_tenant(books)
    requests = january(books, other)
    february(books, requests[0])
    made = run(books, tmp_path, spec(books))
    rows = rows_of(tmp_path / made.file)
    first = rows[0]
    assert (first["ChargePeriodStart"], first["ChargePeriodEnd"]) == ("2031-01-10T09:00:00Z", "2031-01-10T10:00:00Z")
    assert (first["SkuMeter"], first["PricingQuantity"], first["ListUnitPrice"]) == (
        "Input Tokens",
        "63.0",
        "0.0000000001",
    )
    assert (first["BilledCost"], first["x_KeyId"], first["x_Tier"]) == ("0.0000000063", "key_a", "standard")
    assert (first["BillingAccountName"], first["InvoiceIssuerName"], first["ResourceType"]) == (
        "Acme",
        "Laneway",
        "Model",
    )
    hours = [
        (row["ChargePeriodStart"][11:13], row["x_KeyId"], row["x_Tier"], row["SkuMeter"].split()[0]) for row in rows
    ]
    assert hours == [
        ("09", "key_a", "standard", "Input"),
        ("09", "key_a", "standard", "Cached"),
        ("09", "key_a", "standard", "Output"),
        ("10", "key_a", "batch", "Input"),
        ("10", "key_a", "batch", "Output"),
        ("10", "key_b", "premium", "Input"),
        ("10", "key_b", "premium", "Output"),
        ("09", "key_a", "standard", "Output"),
    ]
    corrected = rows[-1]  # within its own month, so no Correction in FOCUS's sense
    assert (corrected["x_CorrectionReason"], corrected["ChargeClass"], corrected["PricingQuantity"]) == (
        "a recount",
        None,
        "-2.0",
    )
    adapted = rows[3]
    assert (adapted["ResourceId"], adapted["ResourceType"], adapted["x_Model"]) == ("adp_1", "Adapter", "model-a")
    assert adapted["SkuId"] == "adp_1/input"
    assert {row["SubAccountName"] for row in rows} == {None}

    made = run(books, tmp_path, spec(books, month="2031-02"))
    rows = rows_of(tmp_path / made.file)
    classes = [(row["ChargePeriodStart"][:13], row["ChargeCategory"], row["ChargeClass"]) for row in rows]
    assert classes == [
        *[("2031-01-10T10", "Usage", "Correction")] * 2,  # it came when January was closed
        *[("2031-02-10T10", "Usage", None)] * 2,
        ("2031-01-10T09", "Usage", "Correction"),
        ("2031-02-10T10", "Credit", "Correction"),
        ("2031-02-10T10", "Adjustment", "Correction"),
    ]
    assert (rows[5]["x_CorrectionReason"], rows[5]["BilledCost"]) == ("'=for the outage", "-0.000000012345")
    ledger = made.ledger
    assert (ledger.usage_rows, ledger.corrections) == (2, 3)
    assert made.tokens == {"input": 35, "cached_input": 0, "output": 7, "embedding": 0}


def test_events_are_the_requests(books: Books, tmp_path: Path) -> None:
    requests = january(books, second_tenant(books))
    february(books, requests[0])
    made = run(books, tmp_path, spec(books, "jsonl", kind="events"))
    lines = [json.loads(line) for line in (tmp_path / made.file).read_text().splitlines()]
    assert [line["id"] for line in lines[:-1]] == requests
    first = lines[0]
    assert (first["specversion"], first["type"], first["subject"]) == ("1.0", "laneway.usage.settled", "key_a")
    assert (first["time"], first["source"]) == ("2031-01-10T09:30:00.000000Z", f"/tenants/{books.tenant.id}")
    assert (first["data"]["prompt_tokens"], first["data"]["cost"]) == (100, "0.0000000092")
    assert (lines[-1]["type"], lines[-1]["data"]["tokens"]) == ("laneway.usage.corrected", -2)
    sequences = [line["data"]["sequence"] for line in lines[:-1]]
    assert (made.ledger.usage_sequence_min, made.ledger.usage_sequence_max) == (sequences[0], sequences[-1])
    # What came late is in February's, with its own moment.
    made = run(books, tmp_path, spec(books, "jsonl", "2031-02", "events"))
    lines = [json.loads(line) for line in (tmp_path / made.file).read_text().splitlines()]
    assert [line["time"][:13] for line in lines[:2]] == ["2031-01-10T10", "2031-02-10T10"]


@pytest.mark.parametrize(("kind", "format_"), FORMATS)
def test_a_tenants_export_holds_nothing_of_another(books: Books, tmp_path: Path, kind: str, format_: str) -> None:
    other = second_tenant(books)
    january(books, other)
    made = run(books, tmp_path, spec(books, format_, kind=kind))
    rows = rows_of(tmp_path / made.file)
    assert {row["BillingAccountId"] if kind == "focus" else row["data"]["tenant_id"] for row in rows} == {
        books.tenant.id
    }
    assert "Globex" not in json.dumps(rows)
    assert "key_other" not in json.dumps(rows)
    assert [period.tenant_id for period in made.periods] == [books.tenant.id]
    everyone = ExportSpec(kind=kind, format=format_, month="2031-01")  # type: ignore[arg-type]
    made = run(books, tmp_path / "all", everyone)
    assert {period.tenant_id for period in made.periods} == {books.tenant.id, other.id}
    total = ledger_picos(books, books.tenant.id) + ledger_picos(books, other.id)
    assert picos(str(made.billed["USD"])) == total
    assert len(made.invoices) == 2
    if kind == "focus":
        assert check_focus_file(tmp_path / "all" / made.file).findings == []


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "Europe/Berlin"])
def test_an_hour_in_two_months_is_in_both_with_its_part(books: Books, tmp_path: Path, zone: str) -> None:
    """In Kolkata a month begins in the middle of an hour of UTC."""
    books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, time_zone=zone))
    begin = {
        "America/New_York": "2031-03-01T05:00",
        "Asia/Kolkata": "2031-02-28T18:30",
        "Europe/Berlin": "2031-02-28T23:00",
    }
    moment = at(begin[zone])
    use(books, moment - 1, made=3)
    use(books, moment, made=4)
    fold(books, moment)
    for month, now in (("2031-02", moment), ("2031-03", at("2031-05-01T00:00"))):
        close(books, month, now)
    spans = []
    for month in ("2031-02", "2031-03"):
        made = run(books, tmp_path, spec(books, month=month))
        assert check_focus_file(tmp_path / made.file).findings == []
        spans += [
            (row["ChargePeriodStart"][8:16], row["ChargePeriodEnd"][8:16]) for row in rows_of(tmp_path / made.file)[:1]
        ]
    assert (
        spans
        == {
            "America/New_York": [("01T04:00", "01T05:00"), ("01T05:00", "01T06:00")],
            "Asia/Kolkata": [("28T18:00", "28T18:30"), ("28T18:30", "28T19:00")],
            "Europe/Berlin": [("28T22:00", "28T23:00"), ("28T23:00", "01T00:00")],
        }[zone]
    )


FORMULAS = ["=1+1", "+1", "-1", "@sum", "\uff1d1+1", "\uff0b1", "\uff0d1", "\uff20sum"]


@pytest.mark.parametrize("bad", [*FORMULAS, "a,b", 'say "hi"', "50 % off", "%s", "ä€😀", "a;b", "x;=1+1"])
def test_a_name_is_never_a_formula_and_always_whole(sqlite_books: Books, tmp_path: Path, bad: str) -> None:
    books = sqlite_books
    use(books, JANUARY, key="key_a", model="model-a")
    fold(books, JANUARY)
    close(books, "2031-01", FEBRUARY)
    asked = spec(books)
    name_all(books, asked, **{books.tenant.id: bad, "key_a": bad, "provider": bad})
    made = books.database.read_sync(lambda c: export.run(c, asked, tmp_path, bytes_max=1 << 20))
    formula = bad in FORMULAS
    for row in rows_of(tmp_path / made.file):
        assert row["x_BillingAccountName"] == row["x_KeyName"] == (f"'{bad}" if formula else bad)
        # FOCUS's own columns are ASCII, whose escapes no spreadsheet computes.
        own = bad if bad.isascii() else json.dumps(bad)[1:-1]
        assert row["BillingAccountName"] == row["ProviderName"] == (f"'{own}" if own.startswith(FORMULA) else own)
    report = check_focus_file(tmp_path / made.file)
    assert (report.findings, report.sound) == ([], True)
    for format_ in ("jsonl", "parquet"):  # nothing computes these: the name as it is
        asked = spec(books, format_)
        made = books.database.read_sync(lambda c, asked=asked: export.run(c, asked, tmp_path, bytes_max=1 << 20))
        assert rows_of(tmp_path / made.file)[0]["x_KeyName"] == bad


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("\n=1+1", "'=1+1"),
        ("\t=1+1", "'=1+1"),
        ("\r\n@x", "'@x"),
        ("\u202e=1+1", "'=1+1"),
        ("a\x1b]0;owned\x07b", '"a]0;ownedb"'),
        ("\u2028", '""'),
        ("x;=1+1", '"x;=1+1"'),
        ("Société\u00a0X", "Société\u00a0X"),
    ],
)
def test_a_cell_has_no_control_characters(name: str, cell: str) -> None:
    assert amounts.csv_cell(name) == cell


def test_a_closed_month_keeps_the_names_of_its_first_export(books: Books, tmp_path: Path) -> None:
    january(books, second_tenant(books))
    first = run(books, tmp_path, spec(books))
    books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, name="Acme Holding"))
    assert run(books, tmp_path, spec(books)) == first
    use(books, FEBRUARY)
    open_month(books, "2031-02")
    made = run(books, tmp_path, spec(books, month="2031-02"))
    assert made.provisional
    assert rows_of(tmp_path / made.file)[0]["BillingAccountName"] == "Acme Holding"
    assert rows_of(tmp_path / made.file)[0]["InvoiceId"] is None
    assert check_focus_file(tmp_path / made.file).sound


def test_an_export_under_way_sees_one_moment_of_the_ledger(
    books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settlements and roll-ups go on meanwhile, from another thread and connection."""
    monkeypatch.setattr(export, "FETCH", 2)
    for hour in range(6):
        use(books, FEBRUARY + hour * HOUR, made=hour + 1)
    fold(books, FEBRUARY)
    before = ledger_picos(books, books.tenant.id)
    went_on = 0

    def more() -> None:
        use(books, FEBRUARY + 7 * HOUR, made=50)
        use(books, FEBRUARY, made=50)
        fold(books, FEBRUARY)

    def progress(done: int, total: int, rows: int) -> None:
        nonlocal went_on
        thread = threading.Thread(target=more)
        thread.start()
        thread.join()
        went_on += 1

    for kind, format_ in (("focus", "csv"), ("events", "jsonl")):
        before = ledger_picos(books, books.tenant.id)
        upto = books.database.read_sync(lambda c: c.execute(sa.select(tables.rollup_cursor.c.sequence)).scalar_one())
        made = run(books, tmp_path, spec(books, format_, "2031-02", kind), progress=progress)
        assert picos(str(made.billed["USD"])) == before
        assert made.ledger.usage_sequence_max == upto
    assert went_on > 4
    assert ledger_picos(books, books.tenant.id) > before


def test_books_that_differ_are_not_exported(sqlite_books: Books, tmp_path: Path) -> None:
    books = sqlite_books
    january(books, second_tenant(books))
    hours = tables.usage_hours
    one = hours.c.key_id == "key_b"
    for kind, column, wrong in (("focus", hours.c.cost_picos, 1), ("events", hours.c.requests, 0)):
        query = sa.select(column).where(one)
        right = books.database.read_sync(lambda c, query=query: c.execute(query).scalar_one())
        for value in (wrong, right):
            change = sa.update(hours).where(one).values({column: value})
            books.database.write_sync(lambda c, change=change: c.execute(change))
            if value == wrong:
                with pytest.raises(BooksDiffer):
                    run(books, tmp_path / "out", spec(books, "jsonl", kind=kind))
    assert list((tmp_path / "out").iterdir()) == []
    run(books, tmp_path / "out", spec(books))


def test_nothing_stays_of_an_export_that_was_stopped_or_too_large(sqlite_books: Books, tmp_path: Path) -> None:
    books = sqlite_books
    january(books, second_tenant(books))

    def stop(done: int, total: int, rows: int) -> None:
        raise ExportCancelled

    with pytest.raises(ExportCancelled):
        run(books, tmp_path / "out", spec(books), progress=stop)
    with pytest.raises(ExportTooLarge, match="larger than 1000 bytes"):
        run(books, tmp_path / "out", spec(books), bytes_max=1000)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_cannot_be_exported_is_refused(sqlite_books: Books, tmp_path: Path) -> None:
    books = sqlite_books
    with pytest.raises(RowNotFound, match="no period 2031-01"):
        run(books, tmp_path, spec(books))
    with pytest.raises(RowNotFound, match="no tenant has a period"):
        run(books, tmp_path, ExportSpec(kind="focus", format="csv", month="2031-01"))
    with pytest.raises(InvalidValue, match="events are exported as jsonl"):
        spec(books, "csv", kind="events").check()
    with pytest.raises(InvalidValue, match="no month"):
        spec(books, month="January").check()


def test_parquet_without_its_library_is_refused(
    sqlite_books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = sqlite_books
    january(books, second_tenant(books))
    made = run(books, tmp_path / "out", spec(books, "parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    with pytest.raises(MissingLibrary, match=r"install laneway\[exports\]"):
        run(books, tmp_path / "again", spec(books, "parquet"))
    assert list((tmp_path / "again").iterdir()) == []
    with pytest.raises(UnreadableFile, match=r"install laneway\[exports\]"):
        check_focus_file(tmp_path / "out" / made.file)
    assert check_focus_file(tmp_path / "again" / run(books, tmp_path / "again", spec(books)).file).sound


def test_parquet_holds_numbers_of_64_bits(tmp_path: Path) -> None:
    """The largest and the smallest, and those around 0, in several row groups."""
    from billing.exports.rows import COLUMNS, SharedCells

    numbers = [2**63 - 1, -(2**63), -1, 0, 1, 10**18]
    group = SharedCells(dict.fromkeys(COLUMNS) | dict.fromkeys(("BillingPeriodEnd", "BillingPeriodStart"), 0))
    file = io.BytesIO()
    writer = writers.make("parquet", file)
    for number in numbers:
        writer.write([(group, JANUARY, JANUARY + HOUR, None if number == 0 else number, number)])
    writer.close()
    from pyarrow import parquet

    table = parquet.read_table(file)
    assert [cell.scaleb(12) for cell in table["BilledCost"].to_pylist()] == numbers
    assert table["PricingQuantity"].to_pylist() == [None if number == 0 else number for number in numbers]


def test_a_closed_month_has_the_names_of_its_first_export_after_it_was_closed(books: Books, tmp_path: Path) -> None:
    """A provisional export does not settle them, and one that saw the month open does not change them later."""
    use(books, JANUARY)
    open_month(books, "2031-01")
    seen_open = books.database.read_sync(lambda c: periods.get_period(c, books.tenant.id, "2031-01"))

    def named(name: str, moment: int) -> str:
        books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, name=name))
        names = books.database.read_sync(lambda c: labels.current_names(c, books.tenant.id)) | {"provider": "Laneway"}
        books.database.write_sync(lambda c: labels.store_names(c, seen_open, names, lambda _: moment))
        made = books.database.read_sync(lambda c: export.run(c, spec(books), tmp_path, bytes_max=BYTES_MAX))
        return str(rows_of(tmp_path / made.file)[0]["BillingAccountName"])

    assert named("While open", FEBRUARY - 2) == "While open"
    assert named("Open still", FEBRUARY - 1) == "Open still"
    close(books, "2031-01", FEBRUARY)
    assert named("When closed", FEBRUARY + 1) == "When closed"
    assert named("Later", FEBRUARY + 2) == "When closed"


def test_an_export_may_take_its_time_between_two_reads(postgres_books: Books, tmp_path: Path) -> None:
    """A database ends transactions that idle: not this one, while a large file goes to its disk."""
    use(postgres_books, JANUARY)
    open_month(postgres_books, "2031-01")
    name_all(postgres_books, spec(postgres_books))
    fine = "SET SESSION idle_in_transaction_session_timeout = '100ms'"
    postgres_books.database.read_sync(lambda c: None)
    sa.event.listen(postgres_books.database._read_engine, "begin", lambda c: c.exec_driver_sql(fine))

    def slow(connection: sa.Connection) -> Manifest:
        return export.run(
            connection,
            spec(postgres_books),
            tmp_path,
            bytes_max=BYTES_MAX,
            progress=lambda done, total, rows: time.sleep(0.3),
        )

    assert postgres_books.database.read_sync(slow).rows == 2


def test_a_line_is_the_event_that_it_stands_for() -> None:
    """Put together from pieces, it is what an encoder makes of the whole."""
    used = ("ten_1", None, "key_1", "model-a", None, "batch", "prv_1", "USD")
    named = ("ten_1", "prj_ä", "key\n", "m/%s{}", "adp_1", "premium", "prv_2", "EUR")
    rows: list[Any] = [
        (7, "req_1", *used, 9, 2, 3, 12_000_001, "stop", 5, 86_399_999_999, None, "text", "batch_1"),
        (8, 'r"\\\x01é', *named, 0, 0, 0, 0, "length", 0, 1, "tag_1", "text", None),
        (9, "req_3", *used, 9, 2, 3, 10**18 + 1, "stop", 10**15, 2 * 10**15, None, "embedding", None),
        (10, "req_4", *named, 0, 0, 0, 0, "length", 0, 1, "tag_2", "embedding", "batch_2"),
    ]
    tags = {"tag_1": {"cost-centre": 'é"'}, "tag_2": {"team": "b", "x": ""}}
    lines = events.EventWriter().of_usage(rows, tags).splitlines(keepends=True)
    for row, line in zip(rows, lines, strict=True):
        sequence, request_id, tenant, project, key, model, adapter, tier, version, currency, *counts = row
        prompt, cached, completion, cost, ending, started_at, finished_at, tag_set_id, operation, batch_id = counts
        started, finished = (precise_moment_text(moment) for moment in (started_at, finished_at))
        data = events.UsageData(
            sequence, tenant, project, key, model, adapter, tier, version, prompt, cached, completion,
            decimal_text(cost), currency, ending, started, tags.get(tag_set_id, msgspec.UNSET),
            msgspec.UNSET if operation == "text" else operation, batch_id or msgspec.UNSET,
        )  # fmt: skip
        event = events.UsageEvent(request_id, f"/tenants/{tenant}", events.SETTLED, finished, data, subject=key)
        assert msgspec.json.encode(event) + b"\n" == line
        assert (Decimal(data.cost).scaleb(12), datetime.fromisoformat(finished)) == (cost, to_datetime(finished_at))


@pytest.mark.parametrize("format_", ["csv", "jsonl", "parquet"])
def test_tags_name_the_key_and_the_project(sqlite_books: Books, tmp_path: Path, format_: str) -> None:
    books = sqlite_books
    project = books.database.write_sync(
        lambda c: tenants.create_project(c, tenant_id=books.tenant.id, name='=search "1"')
    )
    request = msgspec.structs.replace(books.request(), project_id=project.id)
    run_group(books, JANUARY, [request])
    run_group(books, JANUARY, endings=[settlement(request, 3)])
    use(books, JANUARY, key="key_unnamed")
    open_month(books, "2031-01")
    name_all(books, spec(books), key_a="crawler")
    made = run(books, tmp_path, spec(books, format_))
    tags = {row["x_KeyId"]: row["Tags"] for row in rows_of(tmp_path / made.file)}
    assert json.loads(tags["key_a"]) == {"laneway/key": "crawler", "laneway/project": '=search "1"'}
    assert tags["key_unnamed"] is None
    assert check_focus_file(tmp_path / made.file).findings == []
