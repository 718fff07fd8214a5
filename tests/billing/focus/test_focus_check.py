"""The FOCUS checker: a file without a fault has none, and each planted fault is found, by its name, column and row."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from billing.focus import checker, readers
from billing.focus.checker import FocusReport, check_focus_file
from billing.focus.columns import COLUMNS, MANDATORY
from billing.focus.findings import FINDINGS_MAX, PER_RULE_MAX
from billing.focus.manifest import ManifestInvoice
from billing.focus.readers import UnreadableFile
from gateway.cli import main
from support.billing.focus import (
    CREDIT,
    DISCOUNTED,
    TAX,
    USAGE,
    WRITERS,
    Row,
    clean,
    write_csv,
    write_jsonl,
    write_manifest,
)


def found(report: FocusReport) -> set[tuple[str, str | None, int | None]]:
    return {(finding.rule, finding.column, finding.row) for finding in report.findings}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file_without_a_fault_has_none(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"file.{suffix}", clean())
    write_manifest(path, clean())
    report = check_focus_file(path)
    assert (report.findings, report.unchecked) == ([], [])
    assert (report.rows, report.columns, report.manifest) == (5, len(USAGE), f"file.{suffix}.manifest.json")
    assert Decimal(report.billed["USD"]) == Decimal("0.0392")


def test_the_columns_are_the_specifications() -> None:
    assert len(COLUMNS) == 57
    assert len(MANDATORY) == 21
    assert list(COLUMNS) == sorted(COLUMNS)


# ---- faults of cells and rows. Rows: 1 usage, 2 correction, 3 tax, 4 credit, 5 usage under a commitment.


def cell(
    row: int, column: str, value: str | None, rule: str, at: str | None = None
) -> tuple[int, dict[str, Any], str, str]:
    return row, {column: value}, rule, at or column


FAULTS: dict[str, tuple[int, dict[str, Any], str, str]] = {
    "a mandatory cell is null": cell(1, "BilledCost", None, "null-forbidden"),
    "a category is null": cell(1, "ServiceCategory", None, "null-forbidden"),
    "null is written as a word": cell(1, "RegionId", "N/A", "null-stand-in"),
    "spaces stand for null": cell(1, "RegionId", "  ", "null-stand-in"),
    "a charge category of its own": cell(1, "ChargeCategory", "Consumption", "allowed-value"),
    "a charge class of its own": cell(2, "ChargeClass", "Refund", "allowed-value"),
    "a pricing category of its own": cell(1, "PricingCategory", "On-Demand", "allowed-value"),
    "a service category of its own": cell(1, "ServiceCategory", "AI", "allowed-value"),
    "a service subcategory of its own": cell(1, "ServiceSubcategory", "LLM", "allowed-value"),
    "a subcategory of another category": cell(1, "ServiceSubcategory", "Containers", "subcategory-parent"),
    "a frequency of its own": cell(1, "ChargeFrequency", "Hourly", "allowed-value"),
    "a date without a time": cell(1, "ChargePeriodStart", "2026-01-05", "moment-format"),
    "a moment in another zone": cell(1, "ChargePeriodStart", "2026-01-05T10:00:00+01:00", "moment-format"),
    "a moment with milliseconds": cell(1, "BillingPeriodEnd", "2026-02-01T00:00:00.000Z", "moment-format"),
    "a day that never was": cell(1, "BillingPeriodEnd", "2026-02-30T00:00:00Z", "moment-format"),
    "a charge that ends as it begins": cell(1, "ChargePeriodStart", "2026-01-05T11:00:00Z", "charge-order"),
    "a period that ends before it begins": cell(1, "BillingPeriodStart", "2026-03-01T00:00:00Z", "period-order"),
    "a charge outside its period": cell(1, "ChargePeriodStart", "2025-12-31T23:00:00Z", "charge-within-period"),
    "a currency that is none": cell(1, "BillingCurrency", "ABC", "currency-code"),
    "a currency in small letters": cell(1, "BillingCurrency", "usd", "currency-code"),
    "a unit in its own letters": cell(1, "PricingUnit", "tokens", "unit-format"),
    "tags that are no JSON": cell(1, "Tags", "team=web", "pairs-format"),
    "tags inside tags": cell(1, "Tags", '{"team":{"name":"web"}}', "pairs-format"),
    "a tag twice": cell(1, "Tags", '{"team":"web","team":"ops"}', "pairs-format"),
    "a price property without x_": cell(1, "SkuPriceDetails", '{"Tier":"standard"}', "price-property"),
    "a price property of the wrong type": cell(1, "SkuPriceDetails", '{"GpuCount":"two"}', "price-property"),
    "a negative unit price": cell(1, "ListUnitPrice", "-0.0001", "number-negative"),
    "a cost that is not quantity times price": cell(1, "ListCost", "0.0124", "quantity-times-price"),
    "a cost one pico off": cell(1, "ContractedCost", "0.012300000001", "quantity-times-price"),
    "usage without a quantity": cell(1, "PricingQuantity", None, "null-for-usage"),
    "usage without a price id": cell(1, "SkuPriceId", None, "null-for-usage"),
    "usage without a list price": cell(5, "ListUnitPrice", None, "null-for-usage"),
    "usage without what was consumed": cell(1, "ConsumedQuantity", None, "consumed-quantity"),
    "a tax with a zero for null": cell(3, "PricingQuantity", "0", "null-for-tax"),
    "a tax with a price id": cell(3, "SkuPriceId", "prv_1", "null-for-tax"),
    "a credit that consumed something": cell(4, "ConsumedQuantity", "1", "consumed-quantity"),
    "a credit that costs what it does not bill": cell(4, "EffectiveCost", "0.01", "credit-cost"),
    "a quantity without its unit": cell(1, "ConsumedUnit", None, "needed-with"),
    "a unit without its quantity": cell(3, "PricingUnit", "Tokens", "null-without"),
    "a sub account without a name": cell(1, "SubAccountName", None, "needed-with"),
    "a name without a sub account": cell(1, "SubAccountId", None, "null-without", "SubAccountName"),
    "a resource without a type": cell(1, "ResourceType", None, "needed-with"),
    "a meter without a SKU": cell(4, "SkuMeter", "Input Tokens", "null-without"),
    "a resource's name that is its id": cell(1, "ResourceName", "model-a", "resource-name"),
    "a commitment without a category": cell(5, "CommitmentDiscountCategory", None, "needed-with"),
    "a commitment neither used nor unused": cell(5, "CommitmentDiscountStatus", None, "used-or-unused"),
    "a commitment without its quantity": cell(5, "CommitmentDiscountQuantity", None, "commitment-quantity"),
    "a committed price without a commitment": cell(1, "PricingCategory", "Committed", "committed-discount"),
    "a price of two SKUs": cell(5, "SkuId", "model-b/input", "sku-price-parent", "SkuPriceId"),
    "an invoice of two accounts": cell(4, "BillingAccountId", "ten_2", "invoice-account", "InvoiceId"),
    "an invoice in two currencies": cell(4, "BillingCurrency", "EUR", "invoice-account", "InvoiceId"),
    "a service of two categories": (
        4, {"ServiceCategory": "Web", "ServiceSubcategory": "Other (Web)"}, "service-parent", "ServiceName",
    ),
    "a purchase by usage": (
        4, {"ChargeCategory": "Purchase", "ChargeFrequency": "Usage-Based"}, "purchase-frequency", "ChargeFrequency",
    ),
}  # fmt: skip
# Cells that no number column of Parquet, and no number of JSON, can hold.
NUMBERS_AS_TEXT = {
    "a cost with a currency sign": "$0.0123",
    "a cost with thousands separators": "1,000.00",
    "a cost with a plus sign": "+0.0123",
    "a cost with a sign in its exponent": "1E+2",
    "a cost as a fraction": "1/2",
    "a cost with a comma": "0,0123",
    "a cost that is not a number": "abc",
    "a cost without end": "1E999999999",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_planted_fault_is_found(tmp_path: Path, suffix: str, fault: str) -> None:
    row, change, rule, column = FAULTS[fault]
    rows = clean()
    rows[row - 1] |= change
    report = check_focus_file(WRITERS[suffix](tmp_path / f"file.{suffix}", rows))
    assert (rule, column, row) in found(report), report.findings


def test_planted_faults_are_found_in_parquet(tmp_path: Path) -> None:
    """All of them at once, each in five rows of its own, but those of what rows have in common."""
    rows: list[Row] = []
    expected = set()
    for row, change, rule, column in FAULTS.values():
        if rule in {one[0] for one in checker.ONE_EACH}:
            continue
        expected.add((rule, column, len(rows) + row))
        rows += clean()
        rows[len(rows) - 6 + row] |= change
    report = check_focus_file(WRITERS["parquet"](tmp_path / "file.parquet", rows))
    assert expected <= found(report), expected - found(report)


@pytest.mark.parametrize("fault", NUMBERS_AS_TEXT)
def test_a_number_that_is_none_is_found(tmp_path: Path, fault: str) -> None:
    rows = clean()
    rows[3]["BilledCost"] = NUMBERS_AS_TEXT[fault]
    report = check_focus_file(write_csv(tmp_path / "file.csv", rows))
    assert ("decimal-format", "BilledCost", 4) in found(report)


def test_types_are_found_where_the_format_has_them(tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "file.jsonl", clean()).read_text()
    text = text.replace('"BilledCost":0.0123', '"BilledCost":"0.0123"', 1).replace(
        '"x_Tier":"standard"', '"x_Tier":1', 1
    )
    (tmp_path / "file.jsonl").write_text(text.replace('"InvoiceId":"inv_1"', '"InvoiceId":7', 1))
    report = check_focus_file(tmp_path / "file.jsonl")
    assert {("type", "BilledCost", 1), ("type", "InvoiceId", 1)} <= found(report)
    assert len(report.findings) == 2  # a column of the provider's own may be anything


# ---- faults of the file


def _edit(change: Callable[[list[Row]], object]) -> list[Row]:
    rows = clean()
    change(rows)
    return rows


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("column", ["ChargeCategory", "BillingCurrency"])
def test_a_missing_column_is_found(tmp_path: Path, suffix: str, column: str) -> None:
    rows = _edit(lambda rows: [row.pop(column) for row in rows])
    report = check_focus_file(WRITERS[suffix](tmp_path / f"file.{suffix}", rows))
    assert ("column-missing", column, None) in found(report)
    assert not report.sound


def test_columns_that_should_not_be_are_found(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "file.csv", clean())
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join([f"tier,{lines[0]},BilledCost,SkuPriceid", *(f"standard,{line},1,x" for line in lines[1:])]) + "\n"
    )
    report = check_focus_file(path)
    assert ("column-unknown", "tier", None) in found(report)
    assert ("column-unknown", "SkuPriceid", None) in found(report)
    assert ("column-twice", "BilledCost", None) in found(report)
    assert ("column-order", "BilledCost", None) in found(report)
    assert any("SkuPriceId is meant" in finding.message for finding in report.findings)


def test_rows_that_do_not_fit_are_found(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "file.csv", clean())
    path.write_text(path.read_text() + "1,2,3\n")
    assert ("row-width", None, 6) in found(check_focus_file(path))
    path = write_jsonl(tmp_path / "file.jsonl", clean())
    path.write_text(path.read_text() + '{"BilledCost":1}\n')
    assert ("row-columns", None, 6) in found(check_focus_file(path))


def test_a_quoted_empty_cell_is_an_empty_string_and_no_null(tmp_path: Path) -> None:
    rows = _edit(lambda rows: rows[0].update(ChargeDescription='say ""hi"", then,\n"",', RegionId="@@"))
    path = write_csv(tmp_path / "file.csv", rows)
    path.write_text(path.read_text().replace(",@@,", ',"",', 1))
    assert found(check_focus_file(path)) == {("null-stand-in", "RegionId", 1), ("needed-with", "RegionName", 1)}


TRICKY = 'a,b,c\r\n1,,""\n"x, ""y"",\n"",",\u2028,\x0b\n"","",\n\n1,2,3\r\n"",é,"a,"",b"'
TRICKY_ROWS = [
    (1, ("1", None, "")),
    (2, ('x, "y",\n",', "\u2028", "\x0b")),
    (3, ("", "", None)),
    (5, ("1", "2", "3")),
    (6, ("", "é", 'a,",b')),
]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 5, 8, 13, 1000])
@pytest.mark.parametrize("batch_rows", [1, 2, 1000])
def test_a_csv_file_is_the_same_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int, batch_rows: int
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(readers, "BATCH_ROWS", batch_rows)
    reader = readers.open_file(Path("file.csv"), io.BytesIO(TRICKY.encode()))
    batches = list(reader.batches)
    assert reader.names == ["a", "b", "c"]
    rows = [row for batch in batches for row in zip(batch.rows, zip(*batch.columns, strict=True), strict=True)]
    assert rows == TRICKY_ROWS
    assert [misfit.row for batch in batches for misfit in batch.misfits] == [4]


@pytest.mark.parametrize("block_bytes", [1, 7, 19])
def test_a_line_that_is_too_long_is_refused_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(readers, "LINE_CHARS_MAX", 20)

    def rows(length: int) -> int:
        file = io.BytesIO(b"a,b\n1,2\n1," + b"x" * (length - 3) + b"\n1,2\n")
        return sum(len(batch.rows) for batch in readers.open_file(Path("file.csv"), file).batches)

    assert rows(19) == 3
    with pytest.raises(UnreadableFile, match="longer than 20 bytes"):
        rows(20)


def test_a_formula_is_found(tmp_path: Path) -> None:
    rows = _edit(lambda rows: rows[0].update(SubAccountName="=HYPERLINK(1)", x_Tier="@standard"))
    report = check_focus_file(write_csv(tmp_path / "file.csv", rows))
    assert {("spreadsheet-formula", "SubAccountName", 1), ("spreadsheet-formula", "x_Tier", 1)} == found(report)
    assert report.sound  # a warning of ours, no rule of FOCUS


MANIFESTS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "the hash of another file": ({"sha256": "0" * 64}, "manifest-sha256", None),
    "another number of rows": ({"rows": 6}, "manifest-rows", None),
    "a control total one pico off": (
        {"billed": {"USD": Decimal("0.039200000001")}},
        "control-total",
        "BillingCurrency",
    ),
    "an invoice that is another sum": (
        {"invoices": {"inv_1": ManifestInvoice(Decimal(1), "USD")}},
        "invoice-total",
        "InvoiceId",
    ),
    "an invoice that is not there": (
        {"invoices": {"inv_1": ManifestInvoice(Decimal("0.0392"), "USD"), "inv_2": ManifestInvoice(Decimal(1), "USD")}},
        "invoice-total",
        "InvoiceId",
    ),
    "the manifest of another file": ({"file": "other.csv"}, "manifest", None),
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_what_differs_from_the_manifest_is_found(tmp_path: Path, fault: str) -> None:
    change, rule, column = MANIFESTS[fault]
    path = write_csv(tmp_path / "file.csv", clean())
    write_manifest(path, clean(), **change)
    assert found(check_focus_file(path)) == {(rule, column, None)}


def test_a_broken_manifest_is_found(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "file.csv", clean())
    write_manifest(path, clean()).write_text("{}")
    assert found(check_focus_file(path)) == {("manifest", None, None)}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("file.csv", b"", "empty"),
        ("file.csv", b"a,b\n\xff,1\n", "not UTF-8"),
        ("file.csv", b'a,b\n"1,2\n', "no CSV"),
        ("file.jsonl", b"{}\n[1]\n", "row 2 is no JSON object"),
        ("file.jsonl", b'{"a":NaN}\n', "no JSON"),
        ("file.parquet", b"PAR1", "no Parquet"),
        ("file.xlsx", b"", "ends in none of"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFile, match=reason):
        check_focus_file(tmp_path / name)


def test_many_faults_are_counted_and_the_first_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BATCH_ROWS", 64)
    rows = [dict(USAGE, BillingCurrency="nil", BilledCost="1,0", SubAccountName=f"={n}") for n in range(500)]
    report = check_focus_file(write_csv(tmp_path / "file.csv", rows))
    assert (report.counts["decimal-format"], report.counts["null-stand-in"]) == (500, 500)
    assert len(report.findings) == 3 * PER_RULE_MAX <= FINDINGS_MAX
    assert (report.rows, report.musts, report.shoulds) == (500, 1000, 500)


def test_what_is_remembered_is_bounded_and_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "REMEMBERED_MAX", 3)
    rows = [dict(USAGE, InvoiceId=f"inv_{n}", SkuPriceId=f"prv_{n}") for n in range(10)]
    report = check_focus_file(write_csv(tmp_path / "file.csv", rows))
    assert report.unchecked == ["invoice-account", "invoice-total", "sku-price-parent"]


def test_rows_by_themselves_are_without_a_fault() -> None:
    assert {row["ChargeCategory"] for row in (USAGE, TAX, CREDIT, DISCOUNTED)} == {"Usage", "Tax", "Credit"}


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["billing", "check", *arguments], catch_exceptions=False)


def test_the_command_tells_what_it_found_by_its_status(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "file.csv", clean())
    write_manifest(path, clean())
    done = run(str(path))
    assert (done.exit_code, "FOCUS 1.2 holds" in done.stdout) == (0, True), done.output
    assert "5 rows" in done.stdout
    rows = _edit(lambda rows: rows[0].update(BilledCost="1,000.00"))
    done = run(str(write_csv(path, rows)), "--json")
    assert done.exit_code == 1
    rules = {finding["rule"] for finding in json.loads(done.stdout)["findings"]}
    assert rules == {"decimal-format", "manifest-sha256", "control-total", "invoice-total"}
    done = run(str(path))
    assert (done.exit_code, "row 1 BilledCost: [decimal-format, must] '1,000.00' is no" in done.stdout) == (1, True)
    rows = _edit(lambda rows: rows[0].update(SubAccountName="=1"))
    path = write_csv(tmp_path / "formula.csv", rows)
    assert (run(str(path)).exit_code, run(str(path), "--strict").exit_code) == (0, 1)
    done = run(str(tmp_path / "file.csv.manifest.json"))
    assert (done.exit_code, "ends in none of" in done.stderr) == (2, True)
