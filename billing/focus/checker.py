"""Checks a FOCUS file in one pass, in memory that does not grow with the file.

In each batch each distinct cell of a column is checked once, and each rule once for each distinct combination of its
cells.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import msgspec

from billing.focus import readers, values
from billing.focus.columns import COLUMNS, MANDATORY, Column
from billing.focus.findings import Finding, FindingList, Severity
from billing.focus.manifest import Manifest, ManifestBroken, manifest_path
from billing.focus.readers import Batch, UnreadableFile
from billing.focus.rules import RULES, Rule

# Values that a rule remembers while it reads the file. Beyond them the rule checks no new values, and the report names
# the rule in `unchecked`.
REMEMBERED_MAX = 200_000
SOUND_MAX = 10_000  # cells of one column that are remembered as sound, and not checked again
# (rule, severity, column, other column): rows with the same value in `column` have the same value in `other column`.
ONE_EACH: tuple[tuple[str, Severity, str, str], ...] = (
    ("sku-price-parent", "must", "SkuPriceId", "SkuId"),
    ("service-parent", "must", "ServiceName", "ServiceCategory"),
    ("service-parent", "should", "ServiceName", "ServiceSubcategory"),
    ("commitment-unit", "must", "CommitmentDiscountId", "CommitmentDiscountUnit"),
    ("invoice-account", "must", "InvoiceId", "BillingAccountId"),
    ("invoice-account", "must", "InvoiceId", "BillingCurrency"),
    ("invoice-account", "must", "InvoiceId", "InvoiceIssuerName"),
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")
EXACT = Context(prec=100)


class FocusReport(msgspec.Struct, frozen=True):
    """`counts`: all findings by rule; `findings`: the first of each rule. `billed`: by currency, exact decimals.
    `manifest`: the path of the compared manifest. `unchecked`: rules that checked only a part of the file."""

    file: str
    format: str
    rows: int
    columns: int
    sha256: str
    billed: dict[str, str]
    manifest: str | None
    musts: int
    shoulds: int
    counts: dict[str, int]
    findings: list[Finding]
    unchecked: list[str]

    @property
    def sound(self) -> bool:
        return self.musts == 0


def check_focus_file(path: Path, manifest: Path | None = None) -> FocusReport:
    """Check the file at `path`. `manifest`: by default the manifest beside the file, if there is one. Raises
    UnreadableFile, OSError."""
    found = FindingList()
    promised: Manifest | None = None
    promise = manifest or manifest_path(path)
    try:
        promised = None if promise is None else Manifest.read(promise)
    except ManifestBroken as error:
        found.add_finding("manifest", f"cannot be read: {error}", value=str(promise))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        reader = readers.open_file(path, file)
        check_ = _Check(reader.names, reader.typed, found)
        for batch in reader.batches:
            check_.batch(batch)
    check_.check_totals()
    if promised is not None:
        _compare(promised, check_, digest, path, found)
    return FocusReport(
        file=path.name,
        format=path.suffix.removeprefix("."),
        rows=check_.rows,
        columns=len(reader.names),
        sha256=digest,
        billed={currency: f"{total:f}" for currency, total in sorted(check_.billed.items())},
        manifest=None if promise is None else promise.name,
        musts=found.number("must"),
        shoulds=found.number("should"),
        counts={rule: count for (rule, _), count in sorted(found.counts.items())},
        findings=found.listed,
        unchecked=sorted(check_.unchecked),
    )


class _Check:
    """One pass over a file."""

    def __init__(self, names: list[str], typed: bool, found: FindingList) -> None:
        self._found = found
        self._typed = typed
        self._index = {name: at for at, name in enumerate(names)}
        self._header(names)
        here = self._index
        self._columns = [(column, here[name]) for name, column in COLUMNS.items() if name in here]
        self._rules = [rule for rule in RULES if all(name in here or name in rule.maybe for name in rule.columns)]
        self._ones = [one for one in ONE_EACH if one[2] in here and one[3] in here]
        self._seen: list[dict[Any, Any]] = [{} for _ in self._ones]
        self._sound: dict[str, set[Any]] = {}
        self._custom = [(name, at) for name, at in here.items() if name not in COLUMNS]
        self.rows = 0
        self.billed: dict[str, Decimal] = {}
        self.invoices: dict[str, Decimal] = {}
        self.unchecked: set[str] = set()

    def _header(self, names: list[str]) -> None:
        find = self._found.add_finding
        for name in MANDATORY:
            if name not in self._index:
                find("column-missing", "is mandatory, and missing", column=name)
        by_letters = {name.lower(): name for name in COLUMNS}
        custom = False
        for at, name in enumerate(names):
            if names.index(name) != at:
                find("column-twice", "is there twice", column=name)
            if name in COLUMNS:
                if custom:
                    find("column-order", "comes after a column of the provider's own", column=name, severity="should")
                continue
            custom = True
            if not name.startswith("x_"):
                meant = by_letters.get(name.strip().lower())
                hint = f"; {meant} is meant" if meant else ""
                find("column-unknown", f"is no column of FOCUS and does not begin with x_{hint}", column=name)

    def batch(self, batch: Batch) -> None:
        self.rows += len(batch.rows) + len(batch.misfits)
        for misfit in batch.misfits:
            self._found.add_finding(misfit.rule, misfit.message, row=misfit.row)
        if not batch.rows:
            return
        for column, at in self._columns:
            self._cells(column, batch, at)
        results: dict[tuple[Any, ...], dict[tuple[Any, ...], str]] = {}
        for rule in self._rules:
            self._ask(rule, batch, results)
        for name, at in self._custom:
            self._stand_ins(name, batch, at)
        if not self._typed:
            for name, at in self._index.items():
                self._formulas(name, batch, at)
        for one, seen in zip(self._ones, self._seen, strict=True):
            self._one_each(one, seen, batch)
        self._sum(batch)

    def _cells(self, column: Column, batch: Batch, at: int) -> None:
        known = self._sound.setdefault(column.name, set())
        faults = {}
        for cell in batch.distinct[at] - known:
            if fault := values.check_cell(column, cell, self._typed):
                faults[cell] = fault
            elif len(known) < SOUND_MAX:
                known.add(cell)
        if not faults:
            return
        for cell, row in zip(batch.columns[at], batch.rows, strict=True):
            if cell in faults:
                rule, message = faults[cell]
                severity: Severity = "should" if rule in values.SHOULD else "must"
                self._found.add_finding(rule, message, column=column.name, row=row, value=cell, severity=severity)

    def _ask(self, rule: Rule, batch: Batch, results: dict[tuple[Any, ...], dict[tuple[Any, ...], str]]) -> None:
        """Check a rule. `results`: the faults found in this batch, by (question, identities of the columns' lists).
        Equal columns are the same list, so a question about equal columns is answered once."""
        nulls = [None] * len(batch.rows)
        places = [self._index.get(name) for name in rule.columns]
        found = [nulls if at is None else batch.columns[at] for at in places]
        result_key = (rule.question, *(None if at is None else id(batch.columns[at]) for at in places))
        faults = results.get(result_key)
        if faults is None:
            distinct = [{None} if at is None else batch.distinct[at] for at in places]
            faults = results[result_key] = {
                cells: message for cells in _combinations(found, distinct, False) if (message := rule.question(*cells))
            }
        if faults:
            for cells, row in zip(zip(*found, strict=True), batch.rows, strict=True):
                if cells in faults:
                    self._found.add_finding(
                        rule.id,
                        faults[cells],
                        column=rule.columns[0],
                        row=row,
                        value=cells[0],
                        severity=rule.severity,
                    )

    def _stand_ins(self, name: str, batch: Batch, at: int) -> None:
        """Find empty strings in place of null in the provider's own columns."""
        wrong = {cell for cell in batch.distinct[at] if isinstance(cell, str) and not cell.strip()}
        for cell, row in zip(batch.columns[at], batch.rows, strict=True) if wrong else ():
            if cell in wrong:
                self._found.add_finding(
                    "null-stand-in", "is an empty string, no null", column=name, row=row, value=cell, severity="should"
                )

    def _formulas(self, name: str, batch: Batch, at: int) -> None:
        """Find cells that a spreadsheet would compute, except negative numbers."""
        wrong = {
            cell
            for cell in batch.distinct[at]
            if isinstance(cell, str) and cell.startswith(FORMULA) and values.number(cell) is None
        }
        for cell, row in zip(batch.columns[at], batch.rows, strict=True) if wrong else ():
            if cell in wrong:
                self._found.add_finding(
                    "spreadsheet-formula",
                    "begins like a formula: a spreadsheet would compute it",
                    column=name,
                    row=row,
                    value=cell,
                    severity="should",
                )

    def _one_each(self, one: tuple[str, Severity, str, str], seen: dict[Any, Any], batch: Batch) -> None:
        rule, severity, of, has = one
        places = (self._index[of], self._index[has])
        columns = [batch.columns[at] for at in places]
        wrong = set()
        # In the file's order: later values are compared with the first.
        for subject, value in _combinations(columns, [batch.distinct[at] for at in places], True):
            if subject is None or value is None or (subject in seen and seen[subject] == value):
                continue
            if subject not in seen:
                if len(seen) >= REMEMBERED_MAX:
                    self.unchecked.add(rule)
                else:
                    seen[subject] = value
                continue
            wrong.add((subject, value))
        for pair, row in zip(zip(*columns, strict=True), batch.rows, strict=True) if wrong else ():
            if pair in wrong:
                message = f"has the {has} {pair[1]!r} here, and {seen[pair[0]]!r} elsewhere"
                self._found.add_finding(rule, message, column=of, row=row, value=pair[0], severity=severity)

    def _sum(self, batch: Batch) -> None:
        if "BilledCost" not in self._index:
            return
        nulls = [None] * len(batch.rows)
        names = ("BillingCurrency", "InvoiceId", "BilledCost")
        places = [self._index.get(name) for name in names]
        cells = [nulls if at is None else batch.columns[at] for at in places]
        for (currency, invoice, cost), times in Counter(zip(*cells, strict=True)).items():
            number = values.number(cost)
            if number is None:
                continue
            paid = EXACT.multiply(number, Decimal(times))
            self._add("control-total", self.billed, currency, paid)
            self._add("invoice-total", self.invoices, invoice, paid)

    def _add(self, rule: str, sums: dict[str, Decimal], subject: Any, paid: Decimal) -> None:
        if not isinstance(subject, str):
            return
        if subject in sums:
            sums[subject] = EXACT.add(sums[subject], paid)
        elif len(sums) < REMEMBERED_MAX:
            sums[subject] = paid
        else:
            self.unchecked.add(rule)

    def check_totals(self) -> None:
        if not self.rows:
            self._found.add_finding("rows", "the file has no rows", severity="should")


def _combinations(columns: list[list[Any]], distinct: list[set[Any]], in_order: bool) -> Iterable[tuple[Any, ...]]:
    """The distinct combinations of these columns' cells; `in_order`: in the file's order. Most columns have one value
    in a batch, so rows are made of the other columns only."""
    varying = [at for at, cells in enumerate(distinct) if len(cells) != 1]
    if not varying:
        return [tuple([column[0] for column in columns])]
    if len(varying) == 1:
        [only] = varying
        before = tuple([column[0] for column in columns[:only]])
        after = tuple([column[0] for column in columns[only + 1 :]])
        cells = dict.fromkeys(columns[only]) if in_order else distinct[only]
        return [(*before, cell, *after) for cell in cells]
    return dict.fromkeys(zip(*columns, strict=True))


def _compare(promised: Manifest, seen: _Check, digest: str, path: Path, found: FindingList) -> None:
    """Compare the file with its manifest."""
    if promised.file != path.name:
        found.add_finding("manifest", f"is of the file {promised.file!r}", value=path.name)
    if promised.sha256 != digest:
        found.add_finding("manifest-sha256", f"the manifest has {promised.sha256}", value=digest)
    if promised.rows != seen.rows:
        found.add_finding("manifest-rows", f"the manifest has {promised.rows}", value=str(seen.rows))
    _totals("control-total", "BillingCurrency", promised.billed, seen.billed, found)
    invoices = {name: invoice.total for name, invoice in promised.invoices.items()}
    if invoices or seen.invoices:
        _totals("invoice-total", "InvoiceId", invoices, seen.invoices, found)


def _totals(rule: str, column: str, promised: dict[str, Decimal], sums: dict[str, Decimal], found: FindingList) -> None:
    for name in _either(promised, sums):
        there, here = promised.get(name, Decimal(0)), sums.get(name, Decimal(0))
        if there != here:
            found.add_finding(rule, f"the rows sum to {here:f}, the manifest says {there:f}", column=column, value=name)


def _either(*named: Iterable[str]) -> list[str]:
    return sorted({name for names in named for name in names})


__all__ = ["FocusReport", "UnreadableFile", "check_focus_file"]
