"""Closes a period and makes its invoice from its roll-ups and corrections, with its document. None of them changes
after that.

Usage that is recorded after the closing counts in the next period. No price is recomputed: a line is tokens × the unit
price at which they were billed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing import finance_tables, tables
from billing.accounts.prices import METERS, PICOS_MAX, all_unit_prices
from billing.books import documents, periods, rollups
from billing.books.corrections import Correction
from billing.books.documents import DEFAULT_ISSUER, Document, Issuer
from billing.books.periods import Period
from billing.clock import Clock, database_now, rfc3339
from billing.errors import InvalidValue, NotPossibleYet, RowNotFound
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page

LIST_MAX = 1000

_periods = tables.billing_periods
_hours = tables.usage_hours
_invoices = tables.invoices
_lines = tables.invoice_lines
_holds = tables.holds
_documents = finance_tables.documents
# Fields of Invoice that are columns of invoices.
_OWN = ("id", "tenant_id", "currency", "usage_picos", "correction_picos", "total_picos", "issued_at")


_SORTED = ListColumns(
    sorts={
        "period": _periods.c.start_at,
        "issued_at": _invoices.c.issued_at,
        "total_picos": _invoices.c.total_picos,
        "tenant_id": _invoices.c.tenant_id,
    },
    unique=_invoices.c.id,
    searched=(_invoices.c.id, _documents.c.number, _invoices.c.tenant_id, _periods.c.month),
)


class InvoiceLine(msgspec.Struct, frozen=True, kw_only=True):
    """A row of invoice_lines. In lines of usage picos = tokens × unit_price_picos."""

    invoice_id: str
    line: int
    kind: str
    model: str | None = None
    adapter: str | None = None
    tier: str | None = None
    meter: str | None = None
    price_version_id: str | None = None
    unit_price_picos: int | None = None
    tokens: int
    picos: int
    correction_id: str | None = None


class Invoice(msgspec.Struct, frozen=True, kw_only=True):
    """The amount that one tenant owes for one closed period, before taxes; below 0, a credit. `document` None: issued
    by a version without documents. `paid_minor`: received for it, in the document's smallest units."""

    id: str
    period: Period
    tenant_id: str
    currency: str
    usage_picos: int
    correction_picos: int
    total_picos: int
    issued_at: int
    document: Document | None = None
    paid_minor: int = 0


def close(
    connection: sa.Connection,
    tenant_id: str,
    month: str,
    *,
    actor: str,
    issuer: Issuer = DEFAULT_ISSUER,
    clock: Clock = database_now,
) -> Invoice:
    """Close the tenant's first open period, which must be `month`. Raises RowNotFound, InvalidValue if it is closed,
    NotPossibleYet before its end, while a hold of the period is open, and while an earlier period is open."""
    rollups.lock_cursor(connection)
    now = clock(connection)
    rollups.fold_all(connection, clock)  # creates missing periods for the usage
    period = _closable(connection, tenant_id, month, now)
    # No hold of the period is open now, so this fold includes the usage of all its requests.
    sequence = rollups.fold_all(connection, clock)
    if sequence is None:
        raise NotPossibleYet("settlements in progress take too long; try again in a moment")
    lines = _usage_lines(connection, period)
    usage_picos = sum(line["picos"] for line in lines)
    spent = sa.select(sa.func.coalesce(sa.func.sum(_hours.c.cost_picos), 0)).where(_hours.c.period_id == period.id)
    assert usage_picos == int(connection.execute(spent).scalar_one()), f"{period.id}: lines and roll-ups differ"
    corrected = _correction_lines(connection, period)
    correction_picos = sum(line["picos"] for line in corrected)
    if max(abs(usage_picos), abs(correction_picos), abs(usage_picos + correction_picos)) > PICOS_MAX:
        raise InvalidValue(f"an invoice holds at most {PICOS_MAX} picos", "month")
    currency = connection.execute(
        sa.select(tables.tenants.c.currency).where(tables.tenants.c.id == tenant_id)
    ).scalar_one()
    closed = _close(connection, period, sequence, actor, now)
    total = usage_picos + correction_picos
    invoice = Invoice(
        id=new_id("inv"),
        period=closed,
        tenant_id=tenant_id,
        currency=currency,
        usage_picos=usage_picos,
        correction_picos=correction_picos,
        total_picos=total,
        issued_at=now,
    )
    row = {name: getattr(invoice, name) for name in _OWN} | {"period_id": period.id}
    connection.execute(sa.insert(_invoices).values(row))
    numbered = [{"invoice_id": invoice.id, "line": at} | line for at, line in enumerate([*lines, *corrected], 1)]
    if numbered:
        connection.execute(sa.insert(_lines), numbered)
    document = documents.issue(
        connection,
        issuer,
        kind="invoice",
        tenant_id=tenant_id,
        currency=currency,
        exact_picos=total,
        now=now,
        invoice_id=invoice.id,
    )
    return msgspec.structs.replace(invoice, document=document)


def get_invoice(connection: sa.Connection, invoice_id: str) -> Invoice:
    """An invoice by its id or its number. Raises RowNotFound."""
    wanted = sa.or_(_invoices.c.id == invoice_id, _documents.c.number == invoice_id)
    row = connection.execute(_joined().where(wanted)).one_or_none()
    if row is None:
        raise RowNotFound(f"there is no invoice {invoice_id!r}")
    return _with_papers(connection, [_invoice(row)])[0]


def lines(connection: sa.Connection, invoice_id: str) -> list[InvoiceLine]:
    query = sa.select(_lines).where(_lines.c.invoice_id == invoice_id).order_by(_lines.c.line)
    return [InvoiceLine(**row._mapping) for row in connection.execute(query)]


def list_invoices(
    connection: sa.Connection,
    *,
    tenant_id: str | None = None,
    month: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int = LIST_MAX,
) -> list[Invoice]:
    """Invoices in the order of their period's (start_at, id); a page begins after the pair `after`."""
    query = _joined().order_by(_periods.c.start_at, _periods.c.id).limit(min(limit, LIST_MAX))
    if tenant_id is not None:
        query = query.where(_invoices.c.tenant_id == tenant_id)
    if month is not None:
        query = query.where(_periods.c.month == periods.check_month(month))
    if after is not None:
        query = query.where(sa.tuple_(_periods.c.start_at, _periods.c.id) > after)
    return _with_papers(connection, [_invoice(row) for row in connection.execute(query)])


def query_invoices(
    connection: sa.Connection, list_query: ListQuery, *, tenant_id: str | None = None, month: str | None = None
) -> ListPage[Invoice]:
    """A page of invoices. Raises InvalidValue."""
    query = _joined()
    if tenant_id is not None:
        query = query.where(_invoices.c.tenant_id == tenant_id)
    if month is not None:
        query = query.where(_periods.c.month == periods.check_month(month))
    made = select_page(connection, query, _SORTED, list_query, _invoice, lambda invoice: invoice.id)
    return msgspec.structs.replace(made, items=_with_papers(connection, made.items))


class Closable(msgspec.Struct, frozen=True, kw_only=True):
    """An open period of a month with its amounts so far; `reason`: why it cannot be closed now, None: it can."""

    period: Period
    currency: str
    usage_picos: int
    correction_picos: int
    reason: str | None


def closable(
    connection: sa.Connection,
    month: str,
    *,
    tenant_id: str | None = None,
    after: tuple[int, str] | None = None,
    limit: int = LIST_MAX,
) -> list[Closable]:
    """The open periods of a month, in the order of their (start_at, id); a page begins after the pair `after`. Reads
    only: usage that is not folded is missing in the amounts. Raises InvalidValue."""
    now = database_now(connection)
    open_periods = periods.list_periods(
        connection, tenant_id=tenant_id, month=periods.check_month(month), state="open", after=after, limit=limit
    )
    ids = [period.id for period in open_periods]
    sums: dict[str, dict[str, int]] = {}
    for table, name in ((_hours, "cost_picos"), (tables.corrections, "picos")):
        query = sa.select(table.c.period_id, sa.func.sum(table.c[name])).where(table.c.period_id.in_(ids))
        rows = connection.execute(query.group_by(table.c.period_id))
        sums[name] = {period_id: int(picos) for period_id, picos in rows}
    own = sa.select(tables.tenants.c.id, tables.tenants.c.currency)
    currencies = connection.execute(own.where(tables.tenants.c.id.in_([one.tenant_id for one in open_periods])))
    currency_of = {row.id: row.currency for row in currencies}
    return [
        Closable(
            period=period,
            currency=currency_of[period.tenant_id],
            usage_picos=sums["cost_picos"].get(period.id, 0),
            correction_picos=sums["picos"].get(period.id, 0),
            reason=_why_open(connection, period, now),
        )
        for period in open_periods
    ]


def _why_open(connection: sa.Connection, period: Period, now: int) -> str | None:
    try:
        _closable(connection, period.tenant_id, period.month, now)
    except (InvalidValue, NotPossibleYet) as refused:
        return refused.message
    return None


def _closable(connection: sa.Connection, tenant_id: str, month: str, now: int) -> Period:
    period = periods.get_period(connection, tenant_id, month)
    if period.state == "closed":
        raise InvalidValue(f"{month} is closed already", "month")
    first = periods.first_open(connection, tenant_id)
    assert first is not None
    if first.id != period.id:
        raise NotPossibleYet(f"{first.month} is still open and must be closed first", "month")
    if now < period.end_at:
        raise NotPossibleYet(f"{month} has not ended: it ends at {rfc3339(period.end_at)}", "month")
    of_period = sa.and_(_holds.c.state == "held", _holds.c.tenant_id == tenant_id, _holds.c.held_at < period.end_at)
    open_holds = int(connection.execute(sa.select(sa.func.count()).select_from(_holds).where(of_period)).scalar_one())
    if open_holds:
        raise NotPossibleYet(f"{open_holds} holds of {month} are still open", "month")
    return period


def _usage_lines(connection: sa.Connection, period: Period) -> list[dict[str, Any]]:
    key = ("model", "adapter", "tier", "price_version_id")
    grouped = [_hours.c[name] for name in key]
    sums = [sa.func.sum(_hours.c[f"{meter}_tokens"]).label(meter) for meter in METERS]
    versions = tables.price_versions
    joined = _hours.join(versions, versions.c.id == _hours.c.price_version_id)
    query = sa.select(*grouped, *sums).select_from(joined).where(_hours.c.period_id == period.id)
    query = query.group_by(*grouped, versions.c.effective_from)
    rows = connection.execute(query.order_by(*grouped[:3], versions.c.effective_from, grouped[3])).all()
    prices = all_unit_prices()
    wanted = prices.c.price_version_id.in_({row.price_version_id for row in rows})
    unit = {
        (row.price_version_id, row.tier, row.meter): row.picos
        for row in connection.execute(sa.select(prices).where(wanted))
    }
    found = []
    for row in rows:
        for meter in METERS:
            tokens = int(getattr(row, meter))
            if not tokens:
                continue
            price = unit[row.price_version_id, row.tier, meter]
            named = {name: getattr(row, name) for name in key} | {"adapter": row.adapter or None}
            counted = {"unit_price_picos": price, "tokens": tokens, "picos": tokens * price}
            found.append({"kind": "usage", "meter": meter, "correction_id": None, **named, **counted})
    return found


def _correction_lines(connection: sa.Connection, period: Period) -> list[dict[str, Any]]:
    corrections = tables.corrections
    query = sa.select(corrections).where(corrections.c.period_id == period.id).order_by(corrections.c.sequence)
    names = ("model", "adapter", "tier", "meter", "price_version_id", "tokens", "picos")
    found = []
    for row in connection.execute(query):
        made = Correction(**row._mapping)
        line = {name: getattr(made, name) for name in names} | {"kind": "correction", "correction_id": made.id}
        priced = made.price_version_id is not None and made.tokens != 0
        found.append(line | {"unit_price_picos": made.picos // made.tokens if priced else None})
    return found


def _close(connection: sa.Connection, period: Period, sequence: int, actor: str, now: int) -> Period:
    ends = sa.select(sa.func.min(_hours.c.sequence_min), sa.func.max(_hours.c.sequence_max))
    lowest, highest = connection.execute(ends.where(_hours.c.period_id == period.id)).one()
    closed = msgspec.structs.replace(
        period,
        state="closed",
        closed_sequence=sequence,
        sequence_min=lowest,
        sequence_max=highest,
        closed_at=now,
        closed_by=actor,
    )
    # The next period must exist, since late usage counts in it.
    periods.ensure(connection, {period.tenant_id: (period.end_at, period.end_at)}, now)
    connection.execute(sa.update(_periods).where(_periods.c.id == period.id).values(msgspec.structs.asdict(closed)))
    following = sa.and_(_periods.c.tenant_id == period.tenant_id, _periods.c.start_at == period.end_at)
    result = connection.execute(sa.update(_periods).where(following).values(late_after=sequence))
    assert result.rowcount == 1
    return closed


def _joined() -> sa.Select[Any]:
    columns = (column.label(f"p_{column.name}") for column in _periods.c)
    joined = _invoices.join(_periods, _periods.c.id == _invoices.c.period_id)
    joined = joined.outerjoin(_documents, _documents.c.invoice_id == _invoices.c.id)
    return sa.select(_invoices, *columns).select_from(joined)


def _invoice(row: sa.Row[Any]) -> Invoice:
    period = Period(**{name: row._mapping[f"p_{name}"] for name in Period.__struct_fields__})
    fields = {name: row._mapping[name] for name in _OWN}
    return Invoice(period=period, **fields)


def _with_papers(connection: sa.Connection, made: list[Invoice]) -> list[Invoice]:
    """The invoices with their documents and payments."""
    ids = [invoice.id for invoice in made]
    papers = documents.documents_of(connection, invoice_ids=ids)
    paid = documents.paid_minor(connection, ids)
    return [msgspec.structs.replace(one, document=papers.get(one.id), paid_minor=paid.get(one.id, 0)) for one in made]
