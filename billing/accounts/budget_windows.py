"""Locked budget rows and the counters of their windows. No other module changes held and posted amounts.

A window must never change without a lock on its budget's row, and rows are locked in the order of their ids. This
module knows amounts and limits, not requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from billing import tables
from billing.accounts.prices import PICOS_MAX
from billing.bulk import BulkInsert, Query, among
from billing.clock import Period, window_end, window_start

Unit = Literal["tokens", "money"]
Scope = Literal["tenant", "project", "key"]
Kind = Literal["hard", "soft"]

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
    _budgets.c.kind,
    _budgets.c.thresholds,
    _budgets.c.tenant_id,
    _budgets.c.first_key_id,
    _budgets.c.template_id,
    _budgets.c.end_user,
    _budgets.c.per_end_user,
)
_LOCK = Query(
    sa.select(*_BUDGET_COLUMNS)
    .where(
        sa.or_(
            sa.and_(
                _budgets.c.active,
                sa.not_(_budgets.c.per_end_user),
                # A rotation may change scope_id while a hold waits for the row; first_key_id finds the row all the
                # same.
                sa.or_(among(_budgets.c.scope_id, "scope_ids"), among(_budgets.c.first_key_id, "scope_ids")),
            ),
            among(_budgets.c.id, "budget_ids"),
        )
    )
    # A template is among them only if a hold of an older version counts in it. Holds of end users lock templates first.
    .order_by(_budgets.c.per_end_user.desc(), _budgets.c.id)
    .with_for_update()
)
_READ_WINDOWS = Query(
    sa.select(
        _windows.c.budget_id, _windows.c.window_start, _windows.c.held, _windows.c.posted, _windows.c.alerted
    ).where(among(_windows.c.budget_id, "budget_ids"), among(_windows.c.window_start, "window_starts"))
)
_WRITE_WINDOWS = BulkInsert(
    _windows, ("budget_id", "window_start", "held", "posted", "alerted"), on_conflict=("budget_id", "window_start")
)


@dataclass(slots=True)
class BudgetWindow:
    """The counters of one budget in one window, in the budget's unit."""

    budget_id: str
    start: int
    held: int = 0
    posted: int = 0
    alerted: int = 0  # the highest threshold that has an alert, in percent
    changed: bool = False


@dataclass(slots=True, frozen=True)
class LockedBudget:
    """A row of `budgets` that this transaction has locked."""

    id: str
    scope: Scope
    scope_id: str
    unit: Unit
    period: Period
    limit_amount: int
    active: bool
    kind: Kind
    thresholds: str | None
    tenant_id: str
    first_key_id: str | None
    template_id: str | None  # of the budget of an end user
    end_user: str | None
    per_end_user: bool  # a template: a hold of an older version may count in it

    @property
    def bound(self) -> int:
        """The maximum of held + posted in a window: the limit of a hard budget, or PICOS_MAX of a soft budget."""
        return self.limit_amount if self.kind == "hard" else PICOS_MAX

    def amount(self, tokens: int, picos: int) -> int:
        return tokens if self.unit == "tokens" else picos


@dataclass(slots=True, frozen=True)
class Crossing:
    """A threshold, in percent of the limit, that a window's posted amount reached for the first time."""

    budget: LockedBudget
    window_start: int
    threshold: int
    used: int


class Counters:
    """The budgets that one transaction may change. Their rows are locked until it ends."""

    def __init__(
        self, budgets: Iterable[LockedBudget] = (), now: int = 0, zones: Mapping[str, ZoneInfo] | None = None
    ) -> None:
        """`zones`: for each scope id of the holds (tenant, project, key), the time zone of its tenant. The budget of an
        end user is its own scope id."""
        self._budgets = {budget.id: budget for budget in budgets}
        self._windows: dict[tuple[str, int], BudgetWindow] = {}
        self._by_scope_id: dict[str, list[LockedBudget]] = {}  # a rotated key: by its first key
        self._present: dict[str, tuple[int, ZoneInfo]] = {}  # by budget id: the start of its present window
        starts: dict[tuple[Period, str], int] = {}
        for budget in self._budgets.values():
            if not zones or not budget.active or budget.per_end_user:
                continue
            scope_id = next((one for one in (budget.first_key_id, budget.scope_id) if one in zones), None)
            if scope_id is None:
                continue
            zone = zones[scope_id]
            self._by_scope_id.setdefault(scope_id, []).append(budget)
            key = (budget.period, zone.key)
            if key not in starts:
                starts[key] = window_start(budget.period, now, zone)
            self._present[budget.id] = (starts[key], zone)

    @classmethod
    def lock(
        cls,
        connection: sa.Connection,
        zones: Mapping[str, ZoneInfo],
        charges: Collection[tuple[str, int]],
        now: int,
    ) -> Counters:
        """Lock the active budgets of the scope ids in `zones`, and the budgets of `charges` (budget id, window
        start)."""
        if not zones and not charges:
            return cls()
        charged = {budget_id for budget_id, _start in charges}
        rows = _LOCK.rows(connection, {"scope_ids": list(zones), "budget_ids": list(charged)})
        counters = cls([LockedBudget(*row) for row in rows], now, zones)
        counters._read_windows(connection, {start for _budget_id, start in charges})
        return counters

    def _read_windows(self, connection: sa.Connection, charged: set[int]) -> None:
        """Read the windows after the locks were acquired, so that all earlier commits of other gateways are visible."""
        if not self._budgets:
            return
        starts = charged | {start for start, _zone in self._present.values()}
        for row in _READ_WINDOWS.rows(connection, {"budget_ids": list(self._budgets), "window_starts": list(starts)}):
            window = BudgetWindow(*row)
            self._windows[window.budget_id, window.start] = window

    def applying_to(self, scope_ids: Iterable[str]) -> list[tuple[LockedBudget, BudgetWindow]]:
        """Active budgets of these tenants, projects, keys and end users, each with its present window."""
        return [
            (budget, self.window(budget.id, self._present[budget.id][0]))
            for scope_id in scope_ids
            for budget in self._by_scope_id.get(scope_id, ())
        ]

    def window(self, budget_id: str, start: int) -> BudgetWindow:
        key = (budget_id, start)
        if key not in self._windows:
            self._windows[key] = BudgetWindow(budget_id, start)
        return self._windows[key]

    def resets_at(self, budget: LockedBudget) -> int | None:
        start, zone = self._present[budget.id]
        return window_end(budget.period, start, zone)

    def add_hold(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.held += self._budgets[budget_id].amount(tokens, picos)
            window.changed = True

    def release_hold(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        """Undo `add_hold`."""
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.held -= self._budgets[budget_id].amount(tokens, picos)
            assert window.held >= 0, f"{budget_id}: more was released than held"
            window.changed = True

    def post(self, charges: Iterable[tuple[str, int]], tokens: int, picos: int) -> None:
        for budget_id, start in charges:
            window = self.window(budget_id, start)
            window.posted += self._budgets[budget_id].amount(tokens, picos)
            window.changed = True

    def cross(self) -> list[Crossing]:
        """The thresholds that windows reached in this transaction, each for the first time."""
        crossed: list[Crossing] = []
        for window in self._windows.values():
            budget = self._budgets[window.budget_id]
            if not (window.changed and budget.thresholds and window.posted and budget.active):
                continue
            before = window.alerted
            for threshold in map(int, budget.thresholds.split(",")):
                if before < threshold and window.posted * 100 >= threshold * budget.limit_amount:
                    crossed.append(Crossing(budget, window.start, threshold, window.posted))
                    window.alerted = max(window.alerted, threshold)
        return crossed

    def write(self, connection: sa.Connection) -> None:
        """Write the changed windows."""
        changed = [(w.budget_id, w.start, w.held, w.posted, w.alerted) for w in self._windows.values() if w.changed]
        _WRITE_WINDOWS.run(connection, changed)
