"""The proofs of budget windows: their counters are the sums of the holds charged to them, and within their limits."""

from __future__ import annotations

import sqlalchemy as sa

from billing import tables
from billing.clock import rfc3339
from billing.proofs.imbalances import Imbalance
from billing.proofs.queries import Statement, first_rows, select, sum_of

_usage = tables.usage
_holds = tables.holds
_charges = tables.hold_charges
_budgets = tables.budgets
_windows = tables.budget_windows

_ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.BigInteger)


def counted(connection: sa.Connection) -> list[Imbalance]:
    """Each budget window's `held` = its open holds, its `posted` = the usage of its holds: tokens or picos, by the
    budget's unit. A window with charges has its row. `where` is the budget's id @ the start of the window in
    microseconds. A window may have two imbalances."""
    stored = select(
        _windows.c.budget_id,
        _windows.c.window_start,
        _ZERO.label("held_due"),
        _ZERO.label("posted_due"),
        _windows.c.held.label("held"),
        _windows.c.posted.label("posted"),
        sa.literal_column("1").label("row_count"),
    )
    both = sa.union_all(stored, _charged()).subquery()  # columns have the names of `stored`
    names = ("held_due", "posted_due", "held", "posted", "row_count")
    held_due, posted_due, held, posted, row_count = (sum_of(both.c[name]) for name in names)
    query = (
        select(both.c.budget_id, both.c.window_start, held_due, posted_due, held, posted, row_count)
        .group_by(both.c.budget_id, both.c.window_start)
        .having(sa.or_(held != held_due, posted != posted_due, row_count == 0))
    )
    found = []
    for budget_id, start, *amounts in first_rows(connection, query):
        held_sum, posted_sum, held_there, posted_there, rows_there = map(int, amounts)
        pairs = (
            ("rows of a budget window", 1, rows_there),
            ("held of a budget window", held_sum, held_there),
            ("posted of a budget window", posted_sum, posted_there),
        )
        found += [Imbalance(what, f"{budget_id}@{start}", due, there) for what, due, there in pairs if due != there]
    return found


def _charged() -> Statement:
    """For each budget window with charges: the amounts of its open holds, and of its holds' usage."""
    is_open = _holds.c.state == "held"
    in_tokens = _budgets.c.unit == "tokens"
    held = sa.case(
        (sa.and_(is_open, in_tokens), _holds.c.prompt_tokens + _holds.c.max_tokens),
        (is_open, _holds.c.hold_picos),
        else_=0,
    )
    posted = sa.case(
        (_usage.c.request_id.is_(None), 0),
        (in_tokens, _usage.c.prompt_tokens + _usage.c.completion_tokens),
        else_=_usage.c.cost_picos,
    )
    return (
        select(_charges.c.budget_id, _charges.c.window_start, sum_of(held), sum_of(posted), _ZERO, _ZERO, _ZERO)
        .join(_budgets, _budgets.c.id == _charges.c.budget_id)
        .join(_holds, _holds.c.request_id == _charges.c.request_id)
        .outerjoin(_usage, _usage.c.request_id == _charges.c.request_id)
        .group_by(_charges.c.budget_id, _charges.c.window_start)
    )


def overshot(connection: sa.Connection) -> list[str]:
    """The windows of hard budgets whose held and posted amount is over the limit. A window that was over the limit when
    the limit was lowered may have the amount that it had then (`excused`)."""
    taken = _windows.c.held + _windows.c.posted
    query = (
        select(_windows.c.budget_id, _windows.c.window_start)
        .join(_budgets, _budgets.c.id == _windows.c.budget_id)
        .where(_budgets.c.kind == "hard", taken > _budgets.c.limit_amount, taken > _windows.c.excused)
    )
    return [f"{budget_id}@{rfc3339(start)}" for budget_id, start in first_rows(connection, query)]
