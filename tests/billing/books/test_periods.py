"""Months of a tenant: where they begin and end, what is in them, and that a closed one takes nothing more."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import prices, tenants
from billing.books import corrections, invoices, periods, rollups
from billing.clock import SECOND, database_now
from billing.errors import InvalidValue, NotPossibleYet, RowNotFound
from billing.ledger.ledger import Ledger
from support.billing.books import INPUT, OUTPUT, Books, settlement
from support.billing.finance import at, close, fold, run_group, use

HOUR = 3600 * SECOND


def rows_of(books: Books, month: str) -> list[str]:
    """Request ids, by the rule that exports and proofs use."""
    query = (
        sa.select(tables.usage.c.request_id)
        .join(tables.billing_periods, periods.usage_in_period())
        .where(tables.billing_periods.c.month == month)
        .order_by(tables.usage.c.sequence)
    )
    return list(books.database.read_sync(lambda c: c.execute(query).scalars().all()))


def rolled_up(books: Books, month: str) -> tuple[int, int]:
    hours = tables.usage_hours
    query = sa.select(sa.func.sum(hours.c.requests), sa.func.sum(hours.c.cost_picos)).join(
        tables.billing_periods, tables.billing_periods.c.id == hours.c.period_id
    )
    found = books.database.read_sync(lambda c: c.execute(query.where(tables.billing_periods.c.month == month)).one())
    return int(found[0] or 0), int(found[1] or 0)


def set_zone(books: Books, zone: str) -> None:
    books.database.write_sync(lambda c: tenants.update_tenant(c, books.tenant.id, time_zone=zone))


def test_a_month_is_closed_once_and_its_invoice_is_its_usage(books: Books) -> None:
    now = at("2031-01-31T23:59")
    first = use(books, now, made=7)
    second = use(books, now + SECOND, made=3, tier="premium", adapter="adp_1")
    with pytest.raises(RowNotFound, match="no period 2031-02"):
        close(books, "2031-02", now)
    fold(books, now)
    with pytest.raises(NotPossibleYet, match="it ends at 2031-02-01T00:00:00Z"):
        close(books, "2031-01", now)
    after = at("2031-02-01T00:00")
    in_february = use(books, after)
    invoice = close(books, "2031-01", after)
    assert (rows_of(books, "2031-01"), rows_of(books, "2031-02")) == (
        [first.request_id, second.request_id],
        [in_february.request_id],
    )
    cost = 10 * INPUT + 7 * OUTPUT + 3 * (10 * INPUT + 3 * OUTPUT)
    assert (invoice.usage_picos, invoice.correction_picos, invoice.total_picos) == (cost, 0, cost)
    assert (invoice.period.sequence_min, invoice.period.sequence_max) == (1, 2) or not books.database.is_sqlite
    lines = books.database.read_sync(lambda c: invoices.lines(c, invoice.id))
    assert [(line.adapter, line.tier, line.meter, line.tokens, line.unit_price_picos) for line in lines] == [
        (None, "standard", "input", 10, INPUT),
        (None, "standard", "output", 7, OUTPUT),
        ("adp_1", "premium", "input", 10, 3 * INPUT),
        ("adp_1", "premium", "output", 3, 3 * OUTPUT),
    ]
    assert sum(line.picos for line in lines) == cost
    with pytest.raises(InvalidValue, match="closed already"):
        close(books, "2031-01", after)
    assert books.database.read_sync(lambda c: invoices.get_invoice(c, invoice.id)) == invoice
    assert books.database.read_sync(lambda c: invoices.list_invoices(c, month="2031-01")) == [invoice]
    books.assert_sound()


def test_what_comes_late_is_in_the_next_period(books: Books) -> None:
    """A settlement with a finished_at of its own, as from a journal, and one after another month went by."""
    january, february = at("2031-01-15T12:00"), at("2031-02-15T12:00")
    use(books, january)
    fold(books, january)
    late = books.request(most=5)
    run_group(books, january, [late])
    with pytest.raises(NotPossibleYet, match="1 holds of 2031-01 are still open"):
        close(books, "2031-01", february)
    early = books.request(most=5)  # its hold is February's, its end is not
    run_group(books, february, [early])
    run_group(books, february, endings=[settlement(late, 1)])
    close(books, "2031-01", february)
    ending = settlement(early, 5)
    ending = type(ending)(
        **{name: getattr(ending, name) for name in ending.__struct_fields__} | {"finished_at": january}
    )
    run_group(books, february, endings=[ending])
    fold(books, february)
    assert rows_of(books, "2031-02") == [late.request_id, early.request_id]
    assert rolled_up(books, "2031-02")[0] == 2
    close(books, "2031-02", at("2031-03-01T00:00"))
    third = use(books, at("2031-03-01T00:00"))
    with pytest.raises(NotPossibleYet, match="2031-03 has not ended"):
        close(books, "2031-03", at("2031-03-31T23:59"))
    with pytest.raises(RowNotFound):
        close(books, "2031-04", at("2031-05-02T00:00"))
    assert rows_of(books, "2031-03") == [third.request_id]
    assert len(rows_of(books, "2031-01")) == 1


def test_months_are_closed_in_their_order(books: Books) -> None:
    use(books, at("2031-01-15T12:00"))
    use(books, at("2031-03-15T12:00"))
    fold(books, at("2031-03-15T12:00"))
    months = books.database.read_sync(lambda c: periods.list_periods(c, tenant_id=books.tenant.id))
    assert [period.month for period in months] == ["2031-01", "2031-02", "2031-03"]
    assert [one.end_at for one in months[:-1]] == [one.start_at for one in months[1:]]
    with pytest.raises(NotPossibleYet, match="2031-01 is still open and must be closed first"):
        close(books, "2031-02", at("2031-03-15T12:00"))
    close(books, "2031-01", at("2031-03-15T12:00"))
    empty = close(books, "2031-02", at("2031-03-15T12:00"))
    assert (empty.total_picos, empty.period.sequence_min) == (0, None)
    assert books.database.read_sync(lambda c: invoices.lines(c, empty.id)) == []


@pytest.mark.parametrize(
    ("zone", "starts", "ends"),
    [
        ("Europe/Berlin", "2031-02-28T23:00", "2031-03-31T22:00"),  # daylight saving begins in it
        ("Europe/Berlin", "2031-09-30T22:00", "2031-10-31T23:00"),
        ("America/New_York", "2031-03-01T05:00", "2031-04-01T04:00"),
        ("Australia/Lord_Howe", "2031-09-30T13:30", "2031-10-31T13:00"),  # half an hour, inside a UTC hour
        ("Asia/Kathmandu", "2031-01-31T18:15", "2031-02-28T18:15"),
    ],
)
def test_a_month_is_the_tenants_own(sqlite_books: Books, zone: str, starts: str, ends: str) -> None:
    books = sqlite_books
    set_zone(books, zone)
    start, end = at(starts), at(ends)
    outside = [use(books, start - 1).request_id, use(books, end).request_id]
    inside = [use(books, start).request_id, use(books, start + HOUR // 2).request_id, use(books, end - 1).request_id]
    fold(books, end)
    [_, month, _] = books.database.read_sync(lambda c: periods.list_periods(c, tenant_id=books.tenant.id))
    assert (month.start_at, month.end_at, month.time_zone) == (start, end, zone)
    assert rows_of(books, month.month) == inside
    assert not set(outside) & set(inside)
    close(books, periods_before(books), end)
    assert close(books, month.month, end).usage_picos == 3 * (10 * INPUT + 5 * OUTPUT)


def periods_before(books: Books) -> str:
    first = books.database.read_sync(lambda c: periods.first_open(c, books.tenant.id))
    assert first is not None
    return first.month


def test_a_change_of_the_time_zone_leaves_no_gap(books: Books) -> None:
    set_zone(books, "Europe/Berlin")
    use(books, at("2031-01-15T12:00"))
    fold(books, at("2031-01-15T12:00"))
    set_zone(books, "America/New_York")
    use(books, at("2031-02-15T12:00"))
    fold(books, at("2031-02-15T12:00"))
    set_zone(books, "Pacific/Kiritimati")
    use(books, at("2031-03-15T12:00"))
    fold(books, at("2031-03-15T12:00"))
    found = books.database.read_sync(lambda c: periods.list_periods(c, tenant_id=books.tenant.id))
    assert [(one.month, one.start_at, one.end_at) for one in found] == [
        ("2031-01", at("2030-12-31T23:00"), at("2031-01-31T23:00")),
        ("2031-02", at("2031-01-31T23:00"), at("2031-03-01T05:00")),
        ("2031-03", at("2031-03-01T05:00"), at("2031-03-31T10:00")),
    ]
    for month in ("2031-01", "2031-02", "2031-03"):
        assert len(rows_of(books, month)) == 1


def test_corrections_are_in_the_period_that_is_open_and_take_no_more_than_there_was(books: Books) -> None:
    january, february = at("2031-01-15T12:00"), at("2031-02-15T12:00")
    request = use(books, january, prompt=10, cached=4, made=5)
    close_at = lambda _connection: february  # noqa: E731

    def correct(meter: str, tokens: int) -> corrections.Correction:
        return books.database.write_sync(
            lambda c: corrections.correct_request(
                c, request.request_id, meter=meter, tokens=tokens, reason="counted twice", actor="me", clock=close_at
            )
        )

    fold(books, january)
    close(books, "2031-01", february)
    assert correct("input", -4).picos == -4 * INPUT
    assert correct("output", 2).picos == 2 * OUTPUT
    with pytest.raises(InvalidValue, match="has 2 input tokens left"):
        correct("input", -3)
    with pytest.raises(RowNotFound):
        books.database.write_sync(
            lambda c: corrections.correct_request(c, "req_none", meter="input", tokens=1, reason="r", actor="me")
        )
    books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c, books.tenant.id, picos=-7, reason="goodwill", actor="me", clock=close_at
        )
    )
    books.assert_sound()
    invoice = close(books, "2031-02", at("2031-03-01T00:00"))
    assert (invoice.usage_picos, invoice.correction_picos) == (0, 2 * OUTPUT - 4 * INPUT - 7)
    lines = books.database.read_sync(lambda c: invoices.lines(c, invoice.id))
    assert [(line.kind, line.meter, line.tokens, line.unit_price_picos, line.picos) for line in lines] == [
        ("correction", "input", -4, INPUT, -4 * INPUT),
        ("correction", "output", 2, OUTPUT, 2 * OUTPUT),
        ("correction", None, 0, None, -7),
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"picos": 0}, "picos"), ({"picos": 2**63}, "picos"), ({"reason": ""}, "reason"), ({"meter": "air"}, "meter")],
)
def test_corrections_that_are_refused(sqlite_books: Books, fields: dict[str, object], param: str) -> None:
    given: dict[str, object] = {"picos": 1, "reason": "r"} | fields
    with pytest.raises(InvalidValue) as refused:
        sqlite_books.database.write_sync(
            lambda c: corrections.correct_tenant(c, sqlite_books.tenant.id, actor="me", **given)  # type: ignore[arg-type]
        )
    assert refused.value.param == param


async def test_a_row_that_commits_late_is_not_skipped(postgres_books: Books) -> None:
    """A settlement has its sequence and has not committed; another one with a higher sequence has."""
    books = postgres_books
    ledger = Ledger(books.database, "gw_1")
    slow, fast = books.request(), books.request()
    await ledger.hold(slow)
    await ledger.hold(fast)
    other = type(books.database)(books.url)
    begun, go_on = threading.Event(), threading.Event()

    def settle_slowly(connection: sa.Connection) -> None:
        from billing.accounts.prices import PriceBook
        from billing.ledger.transaction import LedgerTransaction

        LedgerTransaction("gw_1", 60.0, database_now, PriceBook()).run(connection, [], [settlement(slow, 5)])
        begun.set()
        assert go_on.wait(30)

    thread = threading.Thread(target=other.write_sync, args=(settle_slowly,))
    thread.start()
    assert begun.wait(30)
    await ledger.settle(settlement(fast, 3))
    assert books.database.write_sync(lambda c: rollups.complete_up_to(c, patience_s=0.05)) is None
    assert books.database.write_sync(rollups.read_cursor).sequence == 0
    folding = threading.Thread(target=books.database.write_sync, args=(rollups.fold_usage,))
    folding.start()
    go_on.set()
    thread.join(30)
    folding.join(30)
    other.close()
    cursor = books.database.read_sync(rollups.read_cursor)
    assert (cursor.requests, cursor.made_tokens) == (2, 8)


def test_folding_goes_in_bounded_steps(books: Books) -> None:
    for number in range(7):
        use(books, at("2031-01-15T12:00") + number, made=number)
    steps = []
    while True:
        step = books.database.write_sync(lambda c: rollups.fold_usage(c, limit=3))
        steps.append(step.sequence_to - step.sequence_from)
        if not step.more:
            break
    assert (steps, rolled_up(books, "2031-01")[0]) == ([3, 3, 1], 7) or not books.database.is_sqlite
    again = books.database.write_sync(rollups.fold_usage)
    assert again.sequence_from == again.sequence_to
    hours = books.database.read_sync(lambda c: c.execute(sa.select(tables.usage_hours)).all())
    assert [(row.requests, row.output_tokens, row.input_tokens) for row in hours] == [(7, 21, 70)]


def test_a_new_price_is_a_line_of_its_own(books: Books) -> None:
    now = database_now_of(books)
    use(books, now)
    books.database.write_sync(
        lambda c: prices.publish(c, subject="model-a", input=1, cached_input=1, output=1, multipliers={"standard": 1})
    )
    later = database_now_of(books)
    use(books, later)
    fold(books, later)
    [period] = books.database.read_sync(lambda c: periods.list_periods(c, tenant_id=books.tenant.id))
    invoice = close(books, period.month, period.end_at)
    lines = books.database.read_sync(lambda c: invoices.lines(c, invoice.id))
    assert sorted((line.unit_price_picos, line.tokens) for line in lines) == [(1, 5), (1, 10), (INPUT, 10), (OUTPUT, 5)]


def database_now_of(books: Books) -> int:
    return books.database.read_sync(database_now)
