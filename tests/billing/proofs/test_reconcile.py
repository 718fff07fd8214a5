"""Reconciling finds each planted fault, at the grain it works at, and nothing in sound books."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from billing import tables
from billing.accounts import budgets
from billing.books import corrections, rollups
from billing.clock import SECOND
from billing.errors import InvalidValue
from billing.proofs import reconcile
from billing.proofs.imbalances import Imbalance
from billing.proofs.ledger_audit import audit_ledger, ledger_imbalances
from billing.proofs.reconcile import Reconciliation
from support.billing.books import Books, settlement
from support.billing.finance import at, close, fold, run_group, use

JANUARY, FEBRUARY = at("2031-01-15T12:00"), at("2031-02-15T12:00")
# What is done past the triggers; which of the three find it. {r}: a request of January's, {c}: a correction's id.
FAULTS = {
    "a usage row costs more": (
        "UPDATE usage SET cost_picos = cost_picos + 1 WHERE request_id = '{r}'",
        "minute month whole",
    ),
    "a usage row has more tokens": (
        "UPDATE usage SET completion_tokens = completion_tokens + 1 WHERE request_id = '{r}'",
        "minute month whole",
    ),
    "a usage row is gone": ("DELETE FROM usage WHERE request_id = '{r}'", "month whole"),
    "an entry is changed": (
        "UPDATE entries SET amount_picos = amount_picos + 1 WHERE transaction_id = '{r}' AND account = 'receivable'",
        "minute month whole",
    ),
    "an entry is gone": ("DELETE FROM entries WHERE transaction_id = '{r}' AND meter = 'output'", "minute month whole"),
    "an entry is of another meter": (
        "UPDATE entries SET meter = 'output' WHERE transaction_id = '{r}' AND meter = 'input'",
        "minute month whole",
    ),
    "an entry is another tenant's": (
        "UPDATE entries SET tenant_id = 'ten_x' WHERE transaction_id = '{r}' AND account = 'receivable'",
        "month whole",
    ),
    "an entry is in another currency": (
        "UPDATE entries SET currency = 'EUR' WHERE transaction_id = '{r}' AND account = 'receivable'",
        "minute month whole",
    ),
    "all its entries are in another currency": (
        "UPDATE entries SET currency = 'EUR' WHERE transaction_id = '{r}'",
        "minute month whole",
    ),
    "entries and hold agree with a cost that is not tokens × prices": (
        "UPDATE usage SET cost_picos = cost_picos + 5 WHERE request_id = '{r}'; "
        "UPDATE usage_hours SET cost_picos = cost_picos + 5; "
        "UPDATE holds SET settled_picos = settled_picos + 5 WHERE request_id = '{r}'; "
        "UPDATE entries SET amount_picos = amount_picos + 5 WHERE transaction_id = '{r}' AND account = 'receivable'; "
        "INSERT INTO entries (transaction_id, tenant_id, account, amount_picos, currency, recorded_at) "
        "SELECT transaction_id, tenant_id, 'revenue', -5, currency, recorded_at FROM entries "
        "WHERE transaction_id = '{r}' AND account = 'receivable'",
        "minute month whole",
    ),
    "an entry of no request": (
        "INSERT INTO entries (transaction_id, tenant_id, account, amount_picos, currency, recorded_at) "
        "SELECT 'req_x', tenant_id, account, 5, currency, recorded_at FROM entries WHERE account = 'revenue' LIMIT 1",
        "month whole",
    ),
    "a hold says something else": ("UPDATE holds SET settled_picos = 0 WHERE request_id = '{r}'", "minute whole"),
    "a hold is gone": ("DELETE FROM hold_charges; DELETE FROM holds WHERE request_id = '{r}'", "minute"),
    "a hold is open again": ("UPDATE holds SET state = 'voided' WHERE request_id = '{r}'", "minute whole"),
    "a roll-up is changed": ("UPDATE usage_hours SET cost_picos = cost_picos + 1", "minute month whole"),
    "a roll-up is gone": ("DELETE FROM usage_hours", "minute month whole"),
    "a roll-up is another tier's": ("UPDATE usage_hours SET tier = 'batch'", "month whole"),
    "a roll-up of a day is changed": ("UPDATE usage_days SET cost_picos = cost_picos + 1", "month whole"),
    "a roll-up of a day is missing": ("DELETE FROM usage_days", "month whole"),
    "a correction is changed": ("UPDATE corrections SET picos = picos - 1 WHERE id = '{c}'", "minute month whole"),
    "a line of an invoice": ("UPDATE invoice_lines SET picos = picos + 1 WHERE line = 1", "month whole"),
    "tokens on an invoice": ("UPDATE invoice_lines SET tokens = tokens + 1 WHERE line = 1", "month whole"),
    "the head of an invoice": (
        "UPDATE invoices SET usage_picos = usage_picos + 1, total_picos = total_picos + 1",
        "month whole",
    ),
    "an invoice is gone": ("DELETE FROM invoice_lines; DELETE FROM invoices", "month whole"),
    "a budget is overshot": ("UPDATE budget_windows SET held = 1000, excused = 999", "minute month whole"),
}  # fmt: skip


def past_the_triggers(connection: sa.Connection, statements: str) -> None:
    if connection.dialect.name == "sqlite":
        for row in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
            connection.exec_driver_sql(f"DROP TRIGGER {row.name}")
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
    else:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    for statement in statements.split(";"):
        assert connection.exec_driver_sql(statement).rowcount > 0


def results(connection: sa.Connection) -> dict[str, Reconciliation]:
    return {
        "minute": reconcile.reconcile_minute(connection),
        "month": reconcile.reconcile_month(connection, "2031-01"),
        "whole": reconcile.reconcile_all(connection),
    }


def closed_january(books: Books) -> dict[str, str]:
    """Two requests and a correction on January's invoice, and one request in February."""
    books.budget(1000)
    request = use(books, JANUARY, cached=3)
    made = books.database.write_sync(
        lambda c: corrections.correct_tenant(
            c, books.tenant.id, picos=-3, reason="r", actor="me", tier="standard", clock=lambda _c: JANUARY
        )
    )
    fold(books, JANUARY)
    close(books, "2031-01", FEBRUARY)
    return {"r": request.request_id, "c": made.id}


def test_each_fault_is_found(books: Books) -> None:
    ids = closed_january(books)
    assert all(result.sound for result in books.database.read_sync(results).values())

    class TakenBack(Exception):
        """What a fault did, after it was looked at."""

    for name, (statement, finders) in FAULTS.items():

        def plant(connection: sa.Connection, statement: str = statement) -> None:
            past_the_triggers(connection, statement.format(**ids))
            raise TakenBack({kind for kind, result in results(connection).items() if not result.sound})

        with pytest.raises(TakenBack) as raised:
            books.database.write_sync(plant)
        [found] = raised.value.args
        assert found >= set(finders.split()), name
    assert all(result.sound for result in books.database.read_sync(results).values())


def test_a_minute_looks_at_what_came_since_the_last(books: Books) -> None:
    closed_january(books)
    first = books.database.read_sync(reconcile.reconcile_minute)
    assert (first.sound, first.sequence_from) == (True, 0)
    first = books.database.write_sync(lambda c: reconcile.store_reconciliation(c, first))
    use(books, FEBRUARY)
    unfolded = books.database.read_sync(reconcile.reconcile_minute)
    assert unfolded.sequence_from == unfolded.sequence_to == first.sequence_to
    fold(books, FEBRUARY)
    second = books.database.read_sync(reconcile.reconcile_minute)
    assert (second.sequence_from, second.sound) == (first.sequence_to, True)
    assert second.sequence_to == books.database.read_sync(rollups.read_cursor).sequence > first.sequence_to


def test_what_a_minute_found_stands_until_the_whole_is_sound(books: Books) -> None:
    ids = closed_january(books)
    assert books.database.read_sync(reconcile.open_findings) == reconcile.OpenFindings(0, 0, None)
    change = f"UPDATE usage SET cost_picos = cost_picos {{}} 1 WHERE request_id = '{ids['r']}'"
    books.database.write_sync(lambda c: past_the_triggers(c, change.format("+")))
    found = books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_minute(c)))
    for _ in range(2):
        assert books.database.read_sync(reconcile.open_findings).imbalances == len(found.imbalances) > 0
        books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_minute(c)))
    [newest, *_] = books.database.read_sync(reconcile.list_reconciliations)
    assert (newest.kind, newest.imbalances) == ("minute", [])
    books.database.write_sync(lambda c: past_the_triggers(c, change.format("-")))
    whole = books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_all(c)))
    assert books.database.read_sync(reconcile.newest_result) == whole
    assert books.database.read_sync(reconcile.open_findings).imbalances == 0


def test_both_sums_are_told_by_currency_and_differ_by_what_is_missing(books: Books) -> None:
    ids = closed_january(books)
    use(books, FEBRUARY)
    fold(books, FEBRUARY)
    owed = books.database.read_sync(
        lambda c: int(c.execute(sa.select(sa.func.sum(tables.usage.c.cost_picos))).scalar_one())
    )
    moved = books.database.read_sync(
        lambda c: int(c.execute(sa.select(sa.func.sum(tables.corrections.c.picos))).scalar_one())
    )
    sound = books.database.read_sync(results)
    [whole], [minute], [month] = sound["whole"].sums, sound["minute"].sums, sound["month"].sums
    assert (whole.owed_picos, whole.entered_picos, whole.transactions) == (owed + moved, owed + moved, 3)
    assert (minute.owed_picos, minute.entered_picos, minute.transactions) == (owed, owed, 2)
    assert 0 < month.owed_picos == month.entered_picos < whole.owed_picos
    change = f"UPDATE usage SET cost_picos = cost_picos + 7 WHERE request_id = '{ids['r']}'"
    books.database.write_sync(lambda c: past_the_triggers(c, change))
    for result in books.database.read_sync(results).values():
        [one] = result.sums
        assert one.owed_picos - one.entered_picos == 7
    kept = books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_all(c)))
    assert books.database.read_sync(reconcile.newest_result) == kept


def test_a_month_must_be_one(sqlite_books: Books) -> None:
    with pytest.raises(InvalidValue, match="2031-13"):
        sqlite_books.database.read_sync(lambda c: reconcile.reconcile_month(c, "2031-13"))


def test_a_lowered_limit_is_no_overshoot(books: Books) -> None:
    budget = books.budget(1000)
    use(books, JANUARY)
    books.database.write_sync(lambda c: budgets.change_budget(c, budget.id, limit_amount=3))
    assert books.database.read_sync(reconcile.reconcile_minute).overshot == []
    books.database.write_sync(lambda c: past_the_triggers(c, "UPDATE budget_windows SET posted = posted + 1"))
    assert len(books.database.read_sync(reconcile.reconcile_minute).overshot) == 1


def minute(books: Books) -> Reconciliation:
    return books.database.write_sync(lambda c: reconcile.store_reconciliation(c, reconcile.reconcile_minute(c)))


def test_a_request_that_was_recorded_in_the_month_after_it_ended(books: Books) -> None:
    """A journal kept it across the month's end: in both months usage is the entries', and a fault is found still."""
    use(books, JANUARY)
    fold(books, JANUARY)
    request = books.request()
    run_group(books, JANUARY, [request])
    kept = msgspec.structs.replace(settlement(request, 7), finished_at=JANUARY + 1)
    run_group(books, FEBRUARY, endings=[kept])
    use(books, FEBRUARY)
    fold(books, FEBRUARY)

    def of(month: str) -> Reconciliation:
        return books.database.read_sync(lambda c: reconcile.reconcile_month(c, month))

    assert (of("2031-01").imbalances, of("2031-02").imbalances) == ([], [])
    swap = f"UPDATE entries SET meter = 'output' WHERE transaction_id = '{request.request_id}' AND meter = 'input'"
    books.database.write_sync(lambda c: past_the_triggers(c, swap))
    assert {one.where.split()[-1] for one in of("2031-01").imbalances} == {"input", "output"}
    assert of("2031-02").sound


def test_a_minute_whose_usage_lies_in_more_hours_than_one_statement_can_name(books: Books) -> None:
    """The first look at a ledger that was there before: years of a few requests."""
    requests = [books.request() for _ in range(1100)]
    for first in range(0, len(requests), 100):
        part = requests[first : first + 100]
        run_group(books, JANUARY, part)
        hours = (JANUARY - (first + at) * 3600 * SECOND for at in range(100))
        run_group(
            books,
            JANUARY,
            endings=[
                msgspec.structs.replace(settlement(request, 3), finished_at=hour)
                for request, hour in zip(part, hours, strict=True)
            ],
        )
    fold(books, JANUARY)
    assert minute(books).sound
    books.database.write_sync(
        lambda c: past_the_triggers(
            c, "UPDATE usage_hours SET requests = 2 WHERE hour = (SELECT min(hour) FROM usage_hours)"
        )
    )
    books.database.write_sync(lambda c: c.execute(sa.delete(tables.reconciliations)).rowcount)
    [found] = minute(books).imbalances
    assert (found.what, found.found) == ("usage less roll-ups: requests", -1)


# Statements that make the whole ledger's imbalances; the equality, its `where`, both amounts. {b}: the budget's id.
AMOUNTS: dict[str, tuple[str, str, int, int]] = {
    "UPDATE entries SET amount_picos = amount_picos + 5 WHERE transaction_id = '{r}' AND account = 'receivable'": (
        "entries of one transaction",
        "{r}",
        0,
        5,
    ),
    "UPDATE holds SET settled_picos = 600 WHERE request_id = '{r}'": ("settled amount of a hold", "{r}", 2_730, 600),
    "UPDATE holds SET state = 'voided' WHERE request_id = '{r}'": ("settled holds of a usage row", "{r}", 1, 0),
    "DELETE FROM usage WHERE request_id = '{r}'": ("usage rows of a settled hold", "{r}", 1, 0),
    "UPDATE budget_windows SET held = 7": ("held of a budget window", "{b}@0", 0, 7),
    "UPDATE budget_windows SET posted = posted + 3": ("posted of a budget window", "{b}@0", 30, 33),
    "DELETE FROM budget_windows": ("rows of a budget window", "{b}@0", 1, 0),
}


def test_imbalances_of_the_ledger_show_both_amounts(books: Books) -> None:
    budget = books.budget(1000)
    request = use(books, JANUARY, cached=3)
    use(books, JANUARY)
    ids = {"r": request.request_id, "b": budget.id}

    class RolledBack(Exception):
        """The imbalances of a planted violation."""

    for statement, (what, where, expected, found) in AMOUNTS.items():

        def plant(connection: sa.Connection, statement: str = statement) -> None:
            past_the_triggers(connection, statement.format(**ids))
            audit = audit_ledger(connection)
            raise RolledBack(ledger_imbalances(connection), audit)

        with pytest.raises(RolledBack) as raised:
            books.database.write_sync(plant)
        imbalances, audit = raised.value.args
        assert Imbalance(what, where.format(**ids), expected, found) in imbalances, statement
        assert all(imbalance.expected != imbalance.found for imbalance in imbalances), statement
        assert not audit.sound
        rows = [*audit.unbalanced, *audit.wrong_counters, *audit.oversettled, *audit.unrecorded]
        assert set(rows) == {imbalance.where for imbalance in imbalances}
    assert books.database.read_sync(ledger_imbalances) == []
