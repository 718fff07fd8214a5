"""Proofs of documents: the amounts equal the invoice or credit and add up, and no number is missing."""

from __future__ import annotations

import sqlalchemy as sa

from billing import tables
from billing.books.documents import Tax, document_of, rounded, tax_lines
from billing.finance_tables import document_counters, documents, payments
from billing.proofs.imbalances import FINDINGS_MAX, Imbalance
from billing.proofs.queries import of_month, select, sum_of

AT_ONCE = 1000

_periods = tables.billing_periods
_invoices = tables.invoices
_corrections = tables.corrections


def documented(connection: sa.Connection, month: str | None) -> list[Imbalance]:
    """The documents of the month's invoices and credits (None: of all): exact amount = invoice or credit; net = the
    exact amount rounded; taxes = their rates on the net amount; total = their sum; payments ≤ total. In every series
    the numbers are 1, 2, 3 … up to the counter."""
    owed = sa.func.coalesce(_invoices.c.total_picos, -_corrections.c.picos).label("owed")
    period_id = sa.func.coalesce(_invoices.c.period_id, _corrections.c.period_id)
    paid = select(payments.c.invoice_id, sum_of(payments.c.minor).label("paid")).group_by(payments.c.invoice_id)
    paid = paid.subquery()
    query = (
        select(documents, owed, sa.func.coalesce(paid.c.paid, 0).label("paid"))
        .outerjoin(_invoices, _invoices.c.id == documents.c.invoice_id)
        .outerjoin(_corrections, _corrections.c.id == documents.c.correction_id)
        .outerjoin(paid, paid.c.invoice_id == documents.c.invoice_id)
    )
    if month is not None:
        query = of_month(query.join(_periods, _periods.c.id == period_id), month)
    found: list[Imbalance] = []
    for part in connection.execute(query.execution_options(yield_per=AT_ONCE)).partitions(AT_ONCE):
        for row in part:
            found += _of_document(row)
    return [*found, *_gaps(connection)][:FINDINGS_MAX]


def _of_document(row: sa.Row[tuple[object, ...]]) -> list[Imbalance]:
    fields = row._mapping
    document = document_of(fields)
    net = rounded(document.exact_picos, 10 ** (12 - document.decimals))
    lines = tax_lines([Tax(line.name, line.rate) for line in document.taxes], document.net_minor)
    tax = sum(line.minor for line in lines)
    sums = (
        ("exact amount of a document", int(fields["owed"] or 0), document.exact_picos),
        ("net amount of a document", net, document.net_minor),
        ("taxes of a document", tax, document.tax_minor),
        ("tax lines of a document", tax, sum(line.minor for line in document.taxes)),
        ("total of a document", document.net_minor + document.tax_minor, document.total_minor),
    )
    found = [Imbalance(what, document.number, expected, there) for what, expected, there in sums if expected != there]
    paid = int(fields["paid"])
    if not 0 <= paid <= max(document.total_minor, 0):
        found.append(Imbalance("payments of an invoice", document.number, document.total_minor, paid))
    return found


def _gaps(connection: sa.Connection) -> list[Imbalance]:
    key = (documents.c.series, documents.c.year)
    used = select(
        *key,
        sa.func.count().label("numbers"),
        sa.func.min(documents.c.ordinal).label("first"),
        sa.func.max(documents.c.ordinal).label("last"),
    ).group_by(*key)
    issued = {(row.series, row.year): row for row in connection.execute(used)}
    counters = {(row.series, row.year): int(row.last) for row in connection.execute(select(document_counters))}
    found = []
    for at in sorted(issued.keys() | counters.keys()):
        row, last = issued.get(at), counters.get(at, 0)
        numbers = 0 if row is None else int(row.numbers)
        if numbers != last or (row is not None and (row.first, row.last) != (1, last)):
            found.append(Imbalance("numbers of a series", f"{at[0]} {at[1]}", last, numbers))
    return found
