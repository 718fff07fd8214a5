"""Documents: a correction's month, numbers without gaps, taxes, rounding, credit notes, payments, and their proofs."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from billing import finance_tables, tables
from billing.accounts import tenants
from billing.books import corrections, documents, invoices, reports
from billing.books.corrections import Correction
from billing.books.documents import BillingProfile, Issuer, Party, Tax, decimals_of, rounded
from billing.books.invoices import Invoice
from billing.books.reports import ReportFilter
from billing.clock import DAY
from billing.errors import InvalidValue, RowNotFound
from billing.proofs import reconcile
from billing.proofs.document_proofs import documented
from support.billing.books import INPUT, OUTPUT, Books
from support.billing.finance import at, close, fold, use

JANUARY, FEBRUARY, MARCH = at("2031-01-15T12:00"), at("2031-02-15T12:00"), at("2031-03-15T12:00")
CENT = 10**10  # picos
ISSUER = Issuer(party=Party(name="Laneway GmbH", address=("Main St. 1",), tax_id="DE1"), invoice_series="LW")


def credit(books: Books, picos: int, now: int, month: str | None = None, tenant_id: str | None = None) -> Correction:
    return books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c,
            tenant_id or books.tenant.id,
            picos=-picos,
            reason="goodwill",
            actor="me",
            month=month,
            issuer=ISSUER,
            clock=lambda _: now,
        )
    )


def issue(books: Books, month: str, now: int, tenant_id: str | None = None) -> Invoice:
    def change(connection: sa.Connection) -> Invoice:
        tenant = tenant_id or books.tenant.id
        return invoices.close(connection, tenant, month, actor="me", issuer=ISSUER, clock=lambda _: now)

    return books.database.write_sync(change)


def costs(books: Books, start: int, end: int) -> int:
    which = ReportFilter(start=start, end=end, tenant_ids=(books.tenant.id,))
    report = books.database.read_sync(lambda c: reports.buckets(c, which, width="all", limit=1))
    return sum(row.cost_picos for row in report.rows)


def sound(books: Books) -> bool:
    result = books.database.read_sync(reconcile.reconcile_all)
    return result.sound and books.database.read_sync(lambda c: documented(c, None)) == []


def test_a_correction_is_in_the_month_that_it_corrects_while_that_is_open(books: Books) -> None:
    request = use(books, JANUARY, prompt=10, made=5)  # not folded: its period does not exist yet

    def correct(tokens: int, now: int) -> Correction:
        return books.database.write_sync(
            lambda c: corrections.correct_request(
                c, request.request_id, meter="output", tokens=tokens, reason="r", actor="me", clock=lambda _: now
            )
        )

    early = correct(-2, FEBRUARY)
    credited = credit(books, 7, FEBRUARY, "2031-01")
    current = credit(books, 9, FEBRUARY)
    assert early.counts_at == JANUARY
    assert credited.counts_at == at("2031-02-01T00:00") - 1
    assert current.counts_at == FEBRUARY
    whole = 10 * INPUT + 3 * OUTPUT - 7
    assert costs(books, at("2031-01-01T00:00"), at("2031-02-01T00:00")) == whole
    invoice = issue(books, "2031-01", FEBRUARY)
    assert (invoice.total_picos, invoice.correction_picos) == (whole, -2 * OUTPUT - 7)
    late = correct(-1, FEBRUARY)
    assert (late.period_id, late.counts_at) == (current.period_id, FEBRUARY)
    with pytest.raises(InvalidValue, match="2031-01 is closed") as refused:
        credit(books, 1, FEBRUARY, "2031-01")
    assert refused.value.param == "month"
    with pytest.raises(RowNotFound):
        credit(books, 1, FEBRUARY, "2030-01")
    assert issue(books, "2031-02", MARCH).total_picos == -OUTPUT - 9
    assert sound(books)
    for month in ("2031-01", "2031-02"):
        assert books.database.read_sync(lambda c, month=month: reconcile.reconcile_month(c, month)).sound


def test_documents_have_numbers_taxes_and_rounded_totals(books: Books) -> None:
    other = books.database.write_sync(
        lambda c: tenants.create_tenant(c, slug="jp", name="日本", tier="batch", currency="JPY")
    )
    profile = BillingProfile(
        tenant_id=books.tenant.id,
        legal_name="Société Générale",
        address=("1, rue X", "Paris"),
        tax_id="FR2",
        taxes=(Tax("VAT", "19"), Tax("Levy", "0.5")),
        payment_days=14,
    )
    books.database.write_sync(lambda c: documents.set_profile(c, profile))
    use(books, JANUARY, prompt=0, made=1)
    fold(books, JANUARY)
    books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c, books.tenant.id, picos=1234 * CENT + CENT // 2, reason="r", actor="me", clock=lambda _: JANUARY
        )
    )
    credit(books, 3 * 10**12, JANUARY, tenant_id=other.id)
    january = issue(books, "2031-01", FEBRUARY)
    japan = issue(books, "2031-01", FEBRUARY, other.id)
    paper = january.document
    assert paper is not None
    assert (paper.number, paper.decimals, paper.exact_picos) == ("LW-2031-000001", 2, january.total_picos)
    assert (paper.net_minor, [tax.minor for tax in paper.taxes]) == (1235, [235, 6])
    assert (paper.tax_minor, paper.total_minor, paper.due_at) == (241, 1476, FEBRUARY + 14 * DAY)
    assert (paper.customer, paper.issuer) == (
        Party(name="Société Générale", address=("1, rue X", "Paris"), tax_id="FR2"),
        ISSUER.party,
    )
    assert japan.document is not None
    assert (japan.document.number, japan.document.total_minor, japan.document.due_at) == ("LW-2031-000002", -3, None)
    [note] = books.database.read_sync(lambda c: list(documents.documents_of(c, correction_ids=_credits(c)).values()))
    assert (note.number, note.net_minor, note.taxes, note.customer.name) == ("CN-2031-000001", 3, (), "日本")

    # A transaction that is rolled back takes no number, and a new profile changes no document.
    with pytest.raises(ZeroDivisionError):
        books.database.write_sync(lambda c: (credit_in(c, books, 5), 1 // 0))
    books.database.write_sync(lambda c: documents.set_profile(c, BillingProfile(tenant_id=books.tenant.id)))
    assert credit(books, CENT // 2, FEBRUARY).id
    february = issue(books, "2031-02", MARCH)
    assert february.document is not None
    assert (february.document.number, february.document.taxes) == ("LW-2031-000003", ())
    assert (february.document.net_minor, february.document.customer.name) == (-1, "Acme")
    assert books.database.read_sync(lambda c: invoices.get_invoice(c, "LW-2031-000001")) == january
    assert sound(books)

    pay = lambda minor: books.database.write_sync(  # noqa: E731
        lambda c: documents.pay(c, january.id, minor=minor, reference="a transfer", actor="me")
    )
    assert documents.payment_state(paper, 0, FEBRUARY) == "unpaid"
    assert documents.payment_state(paper, 0, paper.due_at + 1) == "overdue"  # type: ignore[operator]
    pay(1000)
    with pytest.raises(InvalidValue, match="1000 of 1476"):
        pay(477)
    pay(476)
    pay(-1)
    found = books.database.read_sync(lambda c: invoices.get_invoice(c, january.id))
    assert found.paid_minor == 1475
    assert documents.payment_state(paper, 1475, FEBRUARY) == "partly_paid"
    assert documents.payment_state(paper, 1476, paper.due_at + 1) == "paid"  # type: ignore[operator]
    assert sound(books)

    # A number that is missing, and an amount that does not add up, are found.
    counters = finance_tables.document_counters
    books.database.write_sync(lambda c: c.execute(sa.update(counters).where(counters.c.series == "LW").values(last=4)))
    [gap] = books.database.read_sync(lambda c: documented(c, None))
    assert (gap.what, gap.expected, gap.found) == ("numbers of a series", 4, 3)


def credit_in(connection: sa.Connection, books: Books, picos: int) -> Correction:
    return corrections.correct_tenant(
        connection, books.tenant.id, picos=-picos, reason="r", actor="me", issuer=ISSUER, clock=lambda _: FEBRUARY
    )


def _credits(connection: sa.Connection) -> list[str]:
    made = tables.corrections.c
    return list(connection.execute(sa.select(made.id).where(made.picos < 0)).scalars())


def test_a_month_of_all_tenants_is_shown_before_it_is_closed(sqlite_books: Books) -> None:
    books = sqlite_books
    other = books.database.write_sync(lambda c: tenants.create_tenant(c, slug="b", name="B", tier="batch"))
    use(books, at("2025-01-15T12:00"))
    use(books, at("2025-02-15T12:00"), tenant_id=other.id)
    use(books, at("2025-01-15T12:00"), tenant_id=other.id)
    fold(books, at("2025-02-15T12:00"))
    found = books.database.read_sync(lambda c: invoices.closable(c, "2025-02"))
    assert [one.period.tenant_id for one in found] == [other.id]
    assert found[0].reason == "2025-01 is still open and must be closed first"
    first = books.database.read_sync(lambda c: invoices.closable(c, "2025-01"))
    assert {(one.reason, one.usage_picos) for one in first} == {(None, 10 * INPUT + 5 * OUTPUT)}
    after = books.database.read_sync(lambda c: invoices.closable(c, "2025-01", after=first[0].period.place))
    assert [one.period.id for one in after] == [first[1].period.id]
    close(books, "2025-01", at("2025-03-01T00:00"))
    assert len(books.database.read_sync(lambda c: invoices.closable(c, "2025-01"))) == 1


@pytest.mark.parametrize(
    ("amount", "unit", "expected"),
    [(5, 10, 1), (4, 10, 0), (-5, 10, -1), (-4, 10, 0), (15, 10, 2), (10**30 + 5, 10, 10**29 + 1), (7, 1, 7)],
)
def test_half_is_rounded_away_from_0(amount: int, unit: int, expected: int) -> None:
    assert rounded(amount, unit) == expected


@pytest.mark.parametrize("rate", ["", "x", "-1", "100.1", "1.23456", "1e-9", "NaN", "1" * 40])
def test_a_rate_is_a_percentage(sqlite_books: Books, rate: str) -> None:
    profile = BillingProfile(tenant_id=sqlite_books.tenant.id, taxes=(Tax("VAT", rate),))
    with pytest.raises(InvalidValue) as refused:
        sqlite_books.database.write_sync(lambda c: documents.set_profile(c, profile))
    assert refused.value.param == "taxes"


def test_currencies_have_their_smallest_units() -> None:
    assert [decimals_of(one) for one in ("USD", "JPY", "KWD", "CLF")] == [2, 0, 3, 4]
