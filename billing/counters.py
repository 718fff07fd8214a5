"""Budget rows under lock, and the counters of their windows: the one place where held and posted amounts change.

One rule makes it safe: whoever changes a window has locked its budget's row, and rows are locked in the order of their
ids. It knows amounts and limits, not requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from billing import tables
from billing.bulk import BulkInsert, Query, among
from billing.clock import Period, window_end, window_start

Unit = Literal["tokens", "money"]
Scope = Literal["tenant", "key"]

_budgets = tables.budgets
_windows = tables.budget_windows
_BUDGET_COLUMNS = (
    _budgets.c.id,
    _budgets.c.scope,
    _budgets.c.scope_id,
    _budgets.c.unit,
    _budgets.c.period,
    _budgets.c.limit_amount,
    _budgets.c.active,
)
_LOCK = Query(
    sa.select(*_BUDGET_COLUMNS)
    .where(
        sa.or_(
            sa.and_(_budgets.c.active, among(_budgets.c.scope_id, "scope_ids")),
            among(_budgets.c.id, "budget_ids"),
        )
    )
    .order_by(_budgets.c.id)
    .with_for_update()
)
_READ_WINDOWS = Query(
    sa.select(_windows.c.budget_id, _windows.c.window_start, _windows.c.held, _windows.c.posted).where(
        among(_windows.c.budget_id, "budget_ids"), among(_windows.c.window_start, "window_starts")
    )
)


_WRITE_WINDOWS = BulkInsert(
    _windows, ("budget_id", "window_start", "held", "posted"), on_conflict=("budget_id", "window_start")
)


@dataclass(slots=True)
class Window:
    """The counters of one budget in one window, in the budget's unit."""

    budget_id: str
    start: int
    held: int = 0
    posted: int = 0
    changed: bool = False


@dataclass(slots=True, frozen=True)
class Budget:
    """A locked row."""

    id: str
    scope: Scope
    scope_id: str
    unit: Unit
    period: Period
    limit_amount: int
    active: bool

    def amount(self, tokens: int, picos: int) -> int:
        return tokens if self.unit == "tokens" else picos


class Counters:
    """All budgets that one transaction may touch, locked until it ends."""

    def __init__(self, budgets: Iterable[Budget], windows: Iterable[Window], now: int) -> None:
        self._now = now
        self._budgets = {budget.id: budget for budget in budgets}
        self._windows = {(window.budget_id, window.start): window for window in windows}
        self._by_scope_id: dict[str, list[Budget]] = {}
        for budget in self._budgets.values():
            if budget.active:
                self._by_scope_id.setdefault(budget.scope_id, []).append(budget)

    @classmethod
    def lock(
        cls, connection: sa.Connection, scope_ids: Collection[str], charges: Collection[tuple[str, int]], now: int
    ) -> Counters:
        """Lock the active budgets of `scope_ids`, and those named in `charges` (budget id, window start)."""
        if not scope_ids and not charges:
            return cls((), (), now)
        charged = {budget_id for budget_id, _start in charges}
        rows = _LOCK.rows(connection, {"scope_ids": list(scope_ids), "budget_ids": list(charged)})
        budgets = [Budget(*(*values, bool(active))) for *values, active in rows]
        starts = {start for _budget_id, start in charges}
        starts.update(window_start(budget.period, now) for budget in budgets if budget.active)
        windows = []
        if budgets:
            # Read after the locks are held: what another gateway committed before is seen.
            found = _READ_WINDOWS.rows(
                connection, {"budget_ids": [budget.id for budget in budgets], "window_starts": list(starts)}
            )
            windows = [Window(*row) for row in found]
        return cls(budgets, windows, now)

    def applying_to(self, scope_ids: Iterable[str]) -> list[tuple[Budget, Window]]:
        """Active budgets of these tenants and keys, each with its present window."""
        return [
            (budget, self.window(budget.id, window_start(budget.period, self._now)))
            for scope_id in scope_ids
            for budget in self._by_scope_id.get(scope_id, ())
        ]

    def window(self, budget_id: str, start: int) -> Window:
        key = (budget_id, start)
        if key not in self._windows:
            self._windows[key] = Window(budget_id, start)
        return self._windows[key]

    def resets_at(self, budget: Budget) -> int | None:
        return window_end(budget.period, window_start(budget.period, self._now))

    def hold(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.held += self._budgets[budget_id].amount(tokens, picos)
            window.changed = True

    def release(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        """Undo `hold`."""
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.held -= self._budgets[budget_id].amount(tokens, picos)
            assert window.held >= 0, f"{budget_id} released more than it held"
            window.changed = True

    def post(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.posted += self._budgets[budget_id].amount(tokens, picos)
            window.changed = True

    def write(self, connection: sa.Connection) -> None:
        """Write the windows that changed."""
        changed = [(w.budget_id, w.start, w.held, w.posted) for w in self._windows.values() if w.changed]
        _WRITE_WINDOWS.run(connection, changed)
