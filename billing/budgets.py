"""Budgets: hard limits of a tenant or a key, in tokens or money, by day, month (UTC) or in total.

What is held and posted against them is `counters`' alone. A changed limit counts for the very next hold.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.clock import Clock, Period, database_now, window_end, window_start
from billing.counters import Scope, Unit
from billing.errors import InvalidValue, NotFound
from billing.ids import new_id
from billing.prices import PICOS_MAX

BUDGETS_MAX = 32  # active ones of one tenant or key: each is a locked row in every hold

_budgets = tables.budgets
_windows = tables.budget_windows


class Budget(msgspec.Struct, frozen=True):
    """`limit_amount` is in tokens or picos, by `unit`. `scope_id` is the tenant's id or the key's."""

    id: str
    tenant_id: str
    scope: Scope
    scope_id: str
    unit: Unit
    period: Period
    limit_amount: int
    active: bool
    created_at: int


class BudgetState(msgspec.Struct, frozen=True):
    """A budget in its present window. `left` may be negative after a limit was lowered."""

    budget: Budget
    window_start: int
    resets_at: int | None
    used: int
    held: int
    left: int


def create(
    connection: sa.Connection,
    *,
    tenant_id: str,
    scope: Scope,
    scope_id: str,
    unit: Unit,
    period: Period,
    limit_amount: int,
) -> Budget:
    """Raises InvalidValue, NotFound. It counts what is held from now on; what ran before is not in it."""
    _check_choice(scope, ("tenant", "key"), "scope")
    _check_choice(unit, ("tokens", "money"), "unit")
    _check_choice(period, ("day", "month", "total"), "period")
    _check_limit(limit_amount)
    if scope == "tenant" and scope_id != tenant_id:
        raise InvalidValue("a tenant's budget has the tenant's own id", "scope_id")
    tenant = sa.select(tables.tenants.c.id).where(tables.tenants.c.id == tenant_id)
    if connection.execute(tenant).one_or_none() is None:
        raise NotFound(f"there is no tenant {tenant_id!r}", "tenant_id")
    if len(listing(connection, scope_id=scope_id)) >= BUDGETS_MAX:
        raise InvalidValue(f"there are {BUDGETS_MAX} budgets already", "scope_id")
    now = database_now(connection)
    budget = Budget(new_id("bud"), tenant_id, scope, scope_id, unit, period, limit_amount, True, now)
    connection.execute(sa.insert(_budgets).values(msgspec.structs.asdict(budget)))
    revision.bump(connection)
    return budget


def get(connection: sa.Connection, budget_id: str) -> Budget | None:
    row = connection.execute(sa.select(_budgets).where(_budgets.c.id == budget_id)).one_or_none()
    return None if row is None else Budget(*row)


def listing(
    connection: sa.Connection, *, tenant_id: str | None = None, scope_id: str | None = None, inactive: bool = False
) -> list[Budget]:
    query = sa.select(_budgets).order_by(_budgets.c.created_at, _budgets.c.id)
    if tenant_id is not None:
        query = query.where(_budgets.c.tenant_id == tenant_id)
    if scope_id is not None:
        query = query.where(_budgets.c.scope_id == scope_id)
    if not inactive:
        query = query.where(_budgets.c.active)
    return [Budget(*row) for row in connection.execute(query)]


def change_limit(connection: sa.Connection, budget_id: str, limit_amount: int) -> Budget:
    """Raises InvalidValue, NotFound. A limit below what is used already refuses everything until the window ends."""
    _check_limit(limit_amount)
    return _change(connection, budget_id, {"limit_amount": limit_amount})


def remove(connection: sa.Connection, budget_id: str) -> Budget:
    """Stop enforcing it. The row stays: open holds are counted in it."""
    return _change(connection, budget_id, {"active": False})


def states(
    connection: sa.Connection,
    *,
    tenant_id: str | None = None,
    scope_id: str | None = None,
    clock: Clock = database_now,
) -> list[BudgetState]:
    """Active budgets with used, held and left in their present windows."""
    now = clock(connection)
    found = listing(connection, tenant_id=tenant_id, scope_id=scope_id)
    query = sa.select(_windows).where(_windows.c.budget_id.in_([budget.id for budget in found]))
    counters = {(row.budget_id, row.window_start): (row.posted, row.held) for row in connection.execute(query)}
    result = []
    for budget in found:
        start = window_start(budget.period, now)
        used, held = counters.get((budget.id, start), (0, 0))
        left = budget.limit_amount - used - held
        result.append(BudgetState(budget, start, window_end(budget.period, start), used, held, left))
    return result


def _check_choice(value: str, choices: tuple[str, ...], param: str) -> None:
    if value not in choices:
        raise InvalidValue(f"must be one of {', '.join(choices)}", param)


def _check_limit(limit_amount: int) -> None:
    if not 0 <= limit_amount <= PICOS_MAX:
        raise InvalidValue(f"a limit is 0 to {PICOS_MAX}", "limit_amount")


def _change(connection: sa.Connection, budget_id: str, values: dict[str, object]) -> Budget:
    connection.execute(sa.update(_budgets).where(_budgets.c.id == budget_id).values(values))
    budget = get(connection, budget_id)
    if budget is None:
        raise NotFound(f"there is no budget {budget_id!r}")
    revision.bump(connection)
    return budget
