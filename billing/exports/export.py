"""Writes one export: a file and its manifest, from one unchanging view of the books, in constant memory.

The file gets its final name only when it is complete; then the manifest is written. The rows' sums are compared with
the invoices, and the export fails if they differ.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import METERS, all_unit_prices
from billing.accounts.tags import tags_of
from billing.books import corrections, periods, rollups
from billing.books.corrections import Correction
from billing.books.periods import Period
from billing.clock import rfc3339
from billing.errors import InvalidValue, RowNotFound
from billing.exports import events, labels, writers
from billing.exports.amounts import decimal_text
from billing.exports.hours import hours_of
from billing.exports.rows import COST_AT, COUNTED_FROM, BooksDiffer, PeriodRows, Price, Row, UsageHour
from billing.exports.writers import MissingLibrary
from billing.focus import manifest as manifests
from billing.focus.columns import VERSION
from billing.focus.manifest import Manifest, ManifestLedger

FETCH = 8192  # rows of the database in memory at once
PRICES_MAX = 10_000
TAG_SETS_MAX = 10_000
BUFFER_BYTES = 1 << 20
THREAD_BYTES_MIN = 1 << 16  # passing fewer bytes to a thread takes longer than writing them

Kind = Literal["focus", "events"]
Format = Literal["csv", "parquet", "jsonl"]
FORMATS: dict[str, tuple[str, ...]] = {"focus": ("csv", "parquet", "jsonl"), "events": ("jsonl",)}

# Called with: rows of the ledger read, all rows to read, rows written.
Progress = Callable[[int, int, int], None]

__all__ = ["BooksDiffer", "ExportCancelled", "ExportSpec", "ExportTooLarge", "MissingLibrary", "run"]

# The transaction is idle while rows are formatted, and at the end during the fsync of a large file.
_PATIENT = sa.text("SET LOCAL idle_in_transaction_session_timeout = '15min'")
_hours = tables.usage_hours
_usage = tables.usage


class ExportSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An export of one tenant's month, or (tenant_id None) of all tenants'. The kind "events" has the format jsonl
    only."""

    kind: Kind
    format: Format
    month: str
    tenant_id: str | None = None

    def check(self) -> ExportSpec:
        """Raises InvalidValue."""
        periods.check_month(self.month)
        if self.format not in FORMATS[self.kind]:
            raise InvalidValue(f"{self.kind} are exported as {', '.join(FORMATS[self.kind])}", "format")
        return self


class ExportCancelled(Exception):
    """Raised by `progress` to stop the export."""


class ExportTooLarge(Exception):
    """The file would exceed `bytes_max`."""


class _Sink(io.RawIOBase):
    """Writes to a file and computes its hash and size in a thread, while the next rows are formatted. After
    `finish_file` all content is in the file."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self._file = file
        self._bytes_max = bytes_max
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="export-file")
        self._writing: Future[None] | None = None  # at most one write, which bounds the memory
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        """Raises ExportTooLarge, and OSError of this write or the previous one."""
        content = bytes(data)  # the caller may reuse its buffer
        self.size += len(content)
        if self.size > self._bytes_max:
            raise ExportTooLarge(f"the file would be larger than {self._bytes_max} bytes")
        self._wait()
        if len(content) < THREAD_BYTES_MIN:
            self._take_content(content)
        else:
            self._writing = self._thread.submit(self._take_content, content)
        return len(content)

    def finish_file(self) -> str:
        """Flush the file; return the SHA-256 of its content. Raises OSError."""
        self._wait()
        self._file.flush()
        return self._digest.hexdigest()

    def stop_thread(self) -> None:
        """End the thread, also after an error."""
        self._thread.shutdown()

    def flush(self) -> None:
        pass

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _take_content(self, content: bytes) -> None:
        self._digest.update(content)
        self._file.write(content)


class _RowBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of rows read together; `tokens` in the order of METERS, `first` and `last` are sequences."""

    currencies: list[str]
    picos: list[int]
    tokens: tuple[list[int], ...]
    requests: int
    first: list[int]
    last: list[int]


class _ManifestSums:
    """Sums for the manifest, added up while rows are read. Amounts in picos."""

    def __init__(self) -> None:
        self.rows = 0
        self.billed: dict[str, int] = {}
        self.tokens: dict[str, int] = dict.fromkeys(METERS, 0)
        self.usage_rows = 0
        self.usage_ends: list[int] = []
        self.corrections: list[int] = []  # first and last sequence; empty: none
        self.corrected = 0
        self.done = 0

    def used(self, part: _RowBatch) -> None:
        for currency in set(part.currencies):
            paid = [picos for picos, of in zip(part.picos, part.currencies, strict=True) if of == currency]
            self.billed[currency] = self.billed.get(currency, 0) + sum(paid)
        for meter, counts in zip(METERS, part.tokens, strict=True):
            self.tokens[meter] += sum(counts)
        self.usage_rows += part.requests
        first, last = min(part.first), max(part.last)
        ends = self.usage_ends
        self.usage_ends = [min(ends[0], first), max(ends[1], last)] if ends else [first, last]

    def correct(self, made: Correction) -> None:
        self.billed[made.currency] = self.billed.get(made.currency, 0) + made.picos
        if made.meter in self.tokens:
            self.tokens[made.meter] += made.tokens
        ends = self.corrections
        self.corrections = (
            [min(ends[0], made.sequence), max(ends[1], made.sequence)] if ends else [made.sequence, made.sequence]
        )
        self.corrected += 1

    def ledger(self) -> ManifestLedger:
        first, last = self.usage_ends or (None, None)
        made_first, made_last = self.corrections or (None, None)
        return ManifestLedger(self.usage_rows, first, last, self.corrected, made_first, made_last)


def file_name(connection: sa.Connection, spec: ExportSpec) -> str:
    """For example focus-2026-01-acme.csv. Raises RowNotFound."""
    tenant_part = ""
    if spec.tenant_id is not None:
        query = sa.select(tables.tenants.c.slug).where(tables.tenants.c.id == spec.tenant_id)
        slug = connection.execute(query).scalar_one_or_none()
        if slug is None:
            raise RowNotFound(f"there is no tenant {spec.tenant_id!r}", "tenant")
        tenant_part = f"-{slug}"
    return f"{spec.kind}-{spec.month}{tenant_part}.{spec.format}"


def of_spec(connection: sa.Connection, spec: ExportSpec) -> Iterator[Period]:
    """The periods of an export, in the order of the file. Raises RowNotFound if there is none."""
    if spec.tenant_id is not None:
        yield periods.get_period(connection, spec.tenant_id, spec.month)
        return
    after: tuple[int, str] | None = None
    while found := periods.list_periods(connection, month=spec.month, after=after):
        yield from found
        after = (found[-1].start_at, found[-1].id)
    if after is None:
        raise RowNotFound(f"no tenant has a period {spec.month}", "month")


def run(
    connection: sa.Connection, spec: ExportSpec, directory: Path, *, bytes_max: int, progress: Progress | None = None
) -> Manifest:
    """Write the file and its manifest into `directory`, which must exist. `connection`: of one reading transaction
    (Database.read_sync). The periods' names must be stored before (labels.store_names). An exception from `progress`
    ends the export. After an error no file is left. Raises RowNotFound, InvalidValue, MissingLibrary, BooksDiffer,
    ExportTooLarge, OSError."""
    spec.check()
    if connection.dialect.name != "sqlite":
        connection.execute(_PATIENT)
    name = file_name(connection, spec)
    part = directory / f".{name}.part"
    try:
        with part.open("wb", buffering=BUFFER_BYTES) as file:
            sink = _Sink(file, bytes_max)
            try:
                manifest = _Export(connection, spec, sink, progress or (lambda done, total, rows: None)).write(name)
            finally:
                sink.stop_thread()
            os.fsync(file.fileno())
        target = directory / name
        part.replace(target)
        _replace(target.with_name(name + manifests.SUFFIX), manifest.text())
        return manifest
    finally:
        part.unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Export:
    """One export, which writes its periods one after another with one writer."""

    def __init__(self, connection: sa.Connection, spec: ExportSpec, sink: _Sink, progress: Progress) -> None:
        self._connection = connection
        self._spec = spec
        self._sink = sink
        self._progress = progress
        self._sums = _ManifestSums()
        self._prices: dict[tuple[str, str], Price] = {}
        self._tags: dict[str, dict[str, str]] = {}  # by tag set
        # Read before the first row: of an open period, usage up to here is exported, and the roll-ups include the same
        # usage.
        self._upto = rollups.read_cursor(connection).sequence
        self._writer = None if spec.kind == "events" else writers.make(spec.format, sink)  # type: ignore[arg-type]

    def write(self, name: str) -> Manifest:
        periods_, invoices, total = [], {}, 0
        for period in of_spec(self._connection, self._spec):
            periods_.append(period)
            total += self._count_rows(period)
        for period in periods_:
            invoice = self._period(period, total)
            if invoice is not None:
                owed = Decimal(decimal_text(invoice.total_picos))
                invoices[invoice.id] = manifests.ManifestInvoice(owed, invoice.currency)
        if self._writer is not None:
            self._writer.close()
        sha256, sums = self._sink.finish_file(), self._sums
        self._progress(total, total, sums.rows)
        focus = self._writer is not None
        return Manifest(
            file=name,
            kind=self._spec.kind,
            size_bytes=self._sink.size,
            sha256=sha256,
            rows=sums.rows,
            billed={currency: Decimal(decimal_text(picos)) for currency, picos in sums.billed.items()},
            tokens=dict(sums.tokens),
            ledger=sums.ledger(),
            periods=[_shown(period) for period in periods_],
            provisional=any(period.state == "open" for period in periods_),
            writer=events.NAME if self._writer is None else self._writer.name,
            invoices=invoices,
            focus_version=VERSION if focus else None,
        )

    def _count_rows(self, period: Period) -> int:
        """The number of rows to read: rows of the roll-ups (FOCUS) or usage rows (events), and corrections."""
        read = sa.select(sa.func.coalesce(sa.func.sum(_hours.c.requests), 0)).where(_hours.c.period_id == period.id)
        if self._writer:
            read = sa.select(sa.func.count()).select_from(hours_of(self._connection, period).subquery())
        made = sa.select(sa.func.count()).where(tables.corrections.c.period_id == period.id)
        return int(self._connection.execute(read).scalar_one()) + int(self._connection.execute(made).scalar_one())

    def _period(self, period: Period, total: int) -> Any:
        """Export one period; return its invoice if it is closed."""
        invoices = tables.invoices
        query = sa.select(invoices).where(invoices.c.period_id == period.id)
        invoice = self._connection.execute(query).one_or_none()
        before, counted = sum(self._sums.billed.values()), self._sums.usage_rows
        if self._writer is None:
            self._events(period, total)
        else:
            self._focus(period, None if invoice is None else invoice.id, total)
        billed = sum(self._sums.billed.values()) - before
        if invoice is not None and billed != invoice.total_picos:
            raise BooksDiffer(f"the rows of {invoice.id} sum to {billed} picos, but its total is {invoice.total_picos}")
        requests = sa.select(sa.func.coalesce(sa.func.sum(_hours.c.requests), 0)).where(_hours.c.period_id == period.id)
        there = int(self._connection.execute(requests).scalar_one())
        if self._sums.usage_rows - counted != there:
            raise BooksDiffer(
                f"{period.id} has {there} requests, of which {self._sums.usage_rows - counted} were found"
            )
        return invoice

    # ---- FOCUS

    def _focus(self, period: Period, invoice_id: str | None, total: int) -> None:
        rows = PeriodRows(period, invoice_id, labels.stored_names(self._connection, period))
        found = hours_of(self._connection, period).subquery()
        order = ("key_id", "model", "adapter", "tier", "price_version_id", "project_id", "tag_set_id")
        query = sa.select(*(found.c[name] for name in UsageHour.__struct_fields__))
        query = query.order_by(found.c.hour, *(self._bytewise(found.c[name]) for name in order))
        sums = self._sums
        for read in self._stream(query):
            self._load_prices({(row[5], row[4]) for row in read})
            self._load_tags({row[-1] for row in read} - {tables.NONE})
            sums.used(
                _RowBatch(
                    currencies=[row[7] for row in read],
                    picos=[row[COST_AT] for row in read],
                    tokens=tuple([row[at] for row in read] for at in range(COUNTED_FROM, COST_AT)),
                    requests=sum([row[COST_AT + 1] for row in read]),
                    first=[row[COST_AT + 2] for row in read],
                    last=[row[COST_AT + 3] for row in read],
                )
            )
            self._write_rows(rows.of_hours(read, self._prices, self._tags), len(read), total)
        for made, used_at, tag_set_id in self._corrections(period):
            price = None
            if made.price_version_id is not None and made.tier is not None:
                self._load_prices({(made.price_version_id, made.tier)})
                price = self._prices[made.price_version_id, made.tier]
            self._load_tags(set() if tag_set_id is None else {tag_set_id})
            tags = self._tags.get(tag_set_id or tables.NONE, {})
            self._write_rows([rows.correction(made, used_at, price, tags)], 1, total)

    def _load_tags(self, wanted: set[str]) -> None:
        """Load the missing tags of these tag sets. Events name the batch of a line, so they need no SOURCE_TAG."""
        missing = wanted - self._tags.keys()
        if len(self._tags) + len(missing) > TAG_SETS_MAX:
            self._tags.clear()
            missing = wanted
        self._tags |= tags_of(self._connection, missing, with_source=self._writer is not None)

    def _write_rows(self, rows: list[Row], read: int, total: int) -> None:
        assert self._writer is not None
        self._writer.write(rows)
        self._sums.rows += len(rows)
        self._sums.done += read
        self._progress(self._sums.done, total, self._sums.rows)

    def _bytewise(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The column with a collation that does not depend on the database's locale."""
        return column if self._connection.dialect.name == "sqlite" else sa.collate(column, "C")

    def _load_prices(self, wanted: set[tuple[str, str]]) -> None:
        """Load missing prices of these (version, tier) pairs."""
        missing = wanted - self._prices.keys()
        if not missing:
            return
        if len(self._prices) + len(missing) > PRICES_MAX:
            self._prices.clear()
            missing = wanted
        versions, unit = tables.price_versions, all_unit_prices()
        query = sa.select(versions.c.id, versions.c.subject, unit.c.tier, unit.c.meter, unit.c.picos)
        query = query.join(unit, unit.c.price_version_id == versions.c.id)
        found: dict[tuple[str, str], dict[str, int]] = {}
        subjects = {}
        for version, subject, tier, meter, picos in self._connection.execute(
            query.where(versions.c.id.in_({version for version, _ in missing}))
        ):
            found.setdefault((version, tier), {})[meter] = picos
            subjects[version] = subject
        for (version, tier), picos in found.items():
            self._prices[version, tier] = Price(subjects[version], tuple(picos[meter] for meter in METERS))

    # ---- events

    def _events(self, period: Period, total: int) -> None:
        sums, writer = self._sums, events.EventWriter()
        columns = [_usage.c[name] for name in events.USAGE_COLUMNS]
        for read in self._stream(sa.select(*columns).where(*self._in(period)).order_by(_usage.c.sequence)):
            sequences = [row[0] for row in read]
            sums.used(
                _RowBatch(
                    currencies=[row[9] for row in read],
                    picos=[row[13] for row in read],
                    tokens=events.tokens_by_meter(read),
                    requests=len(read),
                    first=sequences,
                    last=sequences,
                )
            )
            self._load_tags({row[events.TAG_SET_AT] for row in read if row[events.TAG_SET_AT] is not None})
            self._write_events(writer.of_usage(read, self._tags), len(read), total)
        for made, *_ in self._corrections(period):
            self._write_events(events.of_correction(made), 1, total)

    def _write_events(self, content: bytes, count: int, total: int) -> None:
        self._sink.write(content)
        self._sums.rows += count
        self._sums.done += count
        self._progress(self._sums.done, total, self._sums.rows)

    def _in(self, period: Period) -> list[sa.ColumnElement[bool]]:
        """Conditions for the usage rows of the period, as periods.usage_in_period, up to the roll-ups' cursor."""
        upto = self._upto if period.closed_sequence is None else period.closed_sequence
        own = _usage.c.finished_at >= period.start_at
        late = sa.false() if period.late_after is None else _usage.c.sequence > period.late_after
        found = [_usage.c.tenant_id == period.tenant_id, _usage.c.finished_at < period.end_at, sa.or_(own, late)]
        if period.sequence_min is not None:
            found.append(_usage.c.sequence >= period.sequence_min)
            upto = min(upto, period.sequence_max or upto)
        return [*found, _usage.c.sequence <= upto]

    # ---- both

    def _corrections(self, period: Period) -> Iterator[tuple[Correction, int | None, str | None]]:
        """The period's corrections, each with the moment and the tag set of its request."""
        after = 0
        while found := corrections.list_corrections(self._connection, period_id=period.id, after=after):
            request_ids = {made.request_id for made in found if made.request_id is not None}
            columns = (_usage.c.request_id, _usage.c.finished_at, _usage.c.tag_set_id)
            query = sa.select(*columns).where(_usage.c.request_id.in_(request_ids))
            requests = {row.request_id: (row.finished_at, row.tag_set_id) for row in self._connection.execute(query)}
            for made in found:
                self._sums.correct(made)
                yield made, *((None, None) if made.request_id is None else requests[made.request_id])
            after = found[-1].sequence

    def _stream(self, query: sa.Select[Any]) -> Iterator[list[Any]]:
        result = self._connection.execute(query, execution_options={"yield_per": FETCH})
        for part in result.partitions(FETCH):
            yield list(part)


def _shown(period: Period) -> manifests.ManifestPeriod:
    return manifests.ManifestPeriod(
        id=period.id,
        tenant_id=period.tenant_id,
        month=period.month,
        time_zone=period.time_zone,
        start=rfc3339(period.start_at),
        end=rfc3339(period.end_at),
        state=period.state,
    )
