"""Budgets of a tenant, a project or a key, in tokens or money, by day, month (of the tenant's time zone) or in total.

A hard budget refuses requests over its limit; a soft budget only alerts. Each threshold, in percent of the limit,
raises one alert in a window. A template (`per_end_user`) limits each end user that requests name; the budgets of end
users are in `end_users`, and no list here has them.

Only `budget_windows` changes held and posted amounts. A changed limit applies from the next hold on.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import sqlalchemy as sa

from billing import revision, tables
from billing.accounts import end_users
from billing.accounts.budget_windows import Kind, Scope, Unit
from billing.accounts.prices import PICOS_MAX
from billing.clock import SECOND, Clock, Period, database_now, window_end, window_start, zone_of
from billing.errors import ArgumentChecks, InvalidValue, RowNotFound
from billing.ids import new_id
from billing.lists import ListColumns, ListPage, ListQuery, select_page
from billing.revision import Change

BUDGETS_MAX = 32  # active budgets of one tenant, project or key: each is a locked row in every hold

THRESHOLDS_MAX = 10
THRESHOLD_MAX = 1000  # percent; above 100, since usage may exceed a soft budget
SOFT_THRESHOLDS = (80, 100)  # default of soft budgets, in percent

_WINDOW_MAX = 32 * 24 * 3600 * SECOND  # longer than the window of any budget by day or month
_WINDOWS_A_BUDGET = 33
_SALT_BYTES = 16

_budgets = tables.budgets
_windows = tables.budget_windows


_SORTED = ListColumns(
    sorts={name: _budgets.c[name] for name in ("created_at", "limit_amount", "scope", "unit", "period", "kind")},
    unique=_budgets.c.id,
    searched=(
        _budgets.c.id,
        _budgets.c.scope_id,
        _budgets.c.tenant_id,
        tables.tenants.c.slug,
        sa.func.coalesce(tables.projects.c.name, ""),
    ),
)


class Budget(msgspec.Struct, frozen=True):
    """`limit_amount` is in tokens or picos, by `unit`. `scope_id` is the id of a tenant, a project or a key;
    `thresholds` are percentages, ascending. `first_key_id`: the first key of a rotated key's chain of rotations; all
    keys of the chain count in this budget; None if the key replaced no other key. `per_end_user`: the budget is a
    template, and its limit applies to each end user."""

    id: str
    tenant_id: str
    scope: Scope
    scope_id: str
    unit: Unit
    period: Period
    limit_amount: int
    active: bool
    created_at: int
    kind: Kind = "hard"
    thresholds: tuple[int, ...] = ()
    first_key_id: str | None = None
    per_end_user: bool = False

    @property
    def counts_for(self) -> str:
        """This budget counts the holds that have this id in `HoldRequest.scope_ids`. The id never changes."""
        return self.first_key_id or self.scope_id


_COLUMNS = [_budgets.c[name] for name in Budget.__struct_fields__]
_SELECT = sa.select(*_COLUMNS).where(_budgets.c.template_id.is_(None))


class BudgetState(msgspec.Struct, frozen=True):
    """A budget in its present window. `left` is negative if a soft limit is exceeded, or a limit was lowered.
    `resets_at`: the end of the window; None for a total budget. A template has `end_users`, the number of its end
    users, and `end_users_near`, the number of end users above end_users.NEAR_PERCENT of their limit; its `used` and
    `held` are 0."""

    budget: Budget
    window_start: int
    resets_at: int | None
    used: int
    held: int
    left: int
    end_users: int | None = None  # None, like end_users_near, unless the budget is a template
    end_users_near: int | None = None


def create_budget(
    connection: sa.Connection,
    *,
    tenant_id: str,
    scope: Scope,
    scope_id: str,
    unit: Unit,
    period: Period,
    limit_amount: int,
    kind: Kind = "hard",
    thresholds: Sequence[int] | None = None,
    first_key_id: str | None = None,
    per_end_user: bool = False,
) -> Budget:
    """Create a budget. It counts new holds only, not the holds that exist already. Raises InvalidValue, RowNotFound."""
    _check_choice(scope, ("tenant", "project", "key"), "scope")
    _check_choice(unit, ("tokens", "money"), "unit")
    _check_choice(period, ("day", "month", "total"), "period")
    _check_amounts(limit_amount, kind, thresholds)
    if scope == "tenant" and scope_id != tenant_id:
        raise InvalidValue("a tenant's budget has the tenant's own id", "scope_id")
    tenant = sa.select(tables.tenants.c.id).where(tables.tenants.c.id == tenant_id)
    if connection.execute(tenant).one_or_none() is None:
        raise RowNotFound(f"there is no tenant {tenant_id!r}", "tenant_id")
    if scope == "project":
        _check_project(connection, tenant_id, scope_id)
    if len(list_budgets(connection, scope_id=scope_id)) >= BUDGETS_MAX:
        raise InvalidValue(f"there are {BUDGETS_MAX} budgets already", "scope_id")
    if per_end_user:
        _check_template(kind, thresholds)
    checked = _checked(kind, thresholds)
    now = database_now(connection)
    who = (tenant_id, scope, scope_id)
    budget = Budget(
        new_id("bud"), *who, unit, period, limit_amount, True, now, kind, checked, first_key_id, per_end_user
    )
    values = msgspec.structs.asdict(budget) | {"thresholds": _thresholds_text(checked)}
    if per_end_user:
        values["end_user"] = secrets.token_hex(_SALT_BYTES)
    connection.execute(sa.insert(_budgets).values(values))
    revision.bump(connection, Change("budgets", tenant_id))
    return budget


def get_budget(connection: sa.Connection, budget_id: str) -> Budget | None:
    row = connection.execute(_SELECT.where(_budgets.c.id == budget_id)).one_or_none()
    return None if row is None else _budget(row)


def list_budgets(
    connection: sa.Connection, *, tenant_id: str | None = None, scope_id: str | None = None, inactive: bool = False
) -> list[Budget]:
    """Active (with `inactive`, all) budgets of a tenant with its projects and keys, or of the tenant, project or key
    `scope_id`. A key's budgets are also found by the first key of its rotations."""
    query = _SELECT.order_by(_budgets.c.created_at, _budgets.c.id)
    if tenant_id is not None:
        query = query.where(_budgets.c.tenant_id == tenant_id)
    if scope_id is not None:
        query = query.where(sa.or_(_budgets.c.scope_id == scope_id, _budgets.c.first_key_id == scope_id))
    if not inactive:
        query = query.where(_budgets.c.active)
    return [_budget(row) for row in connection.execute(query)]


def change_budget(
    connection: sa.Connection,
    budget_id: str,
    *,
    limit_amount: int | None = None,
    kind: Kind | None = None,
    thresholds: Sequence[int] | None = None,
) -> Budget:
    """Change the given fields. Raises InvalidValue, RowNotFound. A hard limit below the window's use refuses all
    requests until the window ends. A threshold alerts once in a window, even if the limit changes. The limit of a
    template applies to each of its end users at once."""
    before = get_budget(connection, budget_id)
    if before is None:
        raise RowNotFound(f"there is no budget {budget_id!r}")
    limit_amount = before.limit_amount if limit_amount is None else limit_amount
    kind = kind or before.kind
    if before.per_end_user:
        _check_template(kind, thresholds)
    if thresholds is None and (before.thresholds or kind == "hard"):
        thresholds = before.thresholds
    _check_amounts(limit_amount, kind, thresholds)
    checked = _checked(kind, thresholds)
    values: dict[str, object] = {"limit_amount": limit_amount, "kind": kind, "thresholds": _thresholds_text(checked)}
    after = _change(connection, budget_id, values)
    # The budget's row is locked, as for a hold, so an amount over the new limit was within the old limit.
    taken = _windows.c.held + _windows.c.posted
    concerned: sa.ColumnElement[bool] = _windows.c.budget_id == budget_id
    if before.per_end_user:  # a hold of an older version may count in the template itself
        own = sa.select(_budgets.c.id).where(_budgets.c.template_id == budget_id)
        concerned = sa.or_(concerned, _windows.c.budget_id.in_(own))
    over = sa.and_(concerned, taken > limit_amount, taken > _windows.c.excused)
    connection.execute(sa.update(_windows).where(over).values(excused=taken))
    return after


def deactivate_budget(connection: sa.Connection, budget_id: str) -> Budget:
    """Deactivate the budget, of a template with the budgets of its end users. No row is deleted, since open holds count
    in it."""
    return _change(connection, budget_id, {"active": False})


def hand_over(connection: sa.Connection, key_id: str, to: str) -> list[tuple[Budget, Budget]]:
    """Move the active budgets of a key to the key that replaces it, with their used and held amounts. While the old key
    is valid, its holds count in these budgets too. Returns each budget before and after."""
    # The order in which holds lock them.
    found = sorted(list_budgets(connection, scope_id=key_id), key=lambda budget: (not budget.per_end_user, budget.id))
    return [
        (budget, _change(connection, budget.id, {"scope_id": to, "first_key_id": budget.counts_for}))
        for budget in found
    ]


def list_budget_states(
    connection: sa.Connection,
    *,
    tenant_id: str | None = None,
    scope_id: str | None = None,
    clock: Clock = database_now,
) -> list[BudgetState]:
    """Active budgets with used, held and left in their present windows."""
    return states_of(connection, list_budgets(connection, tenant_id=tenant_id, scope_id=scope_id), clock)


def query_budget_states(
    connection: sa.Connection, list_query: ListQuery, *, tenant_id: str | None = None
) -> ListPage[BudgetState]:
    """A page of active budgets in their present windows. Raises InvalidValue."""
    query = _SELECT.join(tables.tenants, tables.tenants.c.id == _budgets.c.tenant_id)
    query = query.outerjoin(tables.projects, tables.projects.c.id == _budgets.c.scope_id).where(_budgets.c.active)
    if tenant_id is not None:
        query = query.where(_budgets.c.tenant_id == tenant_id)
    listed = select_page(connection, query, _SORTED, list_query, _budget, lambda budget: budget.id)
    return ListPage(states_of(connection, listed.items), listed.next)


def fullest_budgets(
    connection: sa.Connection, *, tenant_id: str | None = None, limit: int, clock: Clock = database_now
) -> list[BudgetState]:
    """Active budgets of money, ordered by the part of the limit that is used or held in their present windows, largest
    first. Budgets with the limit 0 precede all others; other unused budgets are last. Templates are not
    among them."""
    now = clock(connection)
    began = sa.case((_budgets.c.period == "total", 0), else_=now - _WINDOW_MAX)
    taken = _windows.c.held + _windows.c.posted
    query = (
        _SELECT.join(_windows, sa.and_(_windows.c.budget_id == _budgets.c.id, _windows.c.window_start >= began))
        .where(taken > 0)
        # Several windows of a budget by day are after `began`; `states_of` reads the present one.
        .order_by((taken * 1.0 / sa.func.nullif(_budgets.c.limit_amount, 0)).desc().nulls_first(), _budgets.c.id)
        .limit(limit * _WINDOWS_A_BUDGET)
    )
    query = _of_money(query, tenant_id)
    found = {row.id: _budget(row) for row in connection.execute(query)}
    if len(found) < limit:
        unused = (
            _of_money(_SELECT, tenant_id)
            .where(_budgets.c.id.not_in(list(found)))
            .order_by(sa.case((_budgets.c.limit_amount == 0, 0), else_=1), _budgets.c.id)
            .limit(limit)
        )
        found |= {row.id: _budget(row) for row in connection.execute(unused)}
    states = states_of(connection, list(found.values()), clock)
    return sorted(states, key=lambda state: (state.left / max(1, state.budget.limit_amount), state.budget.id))[:limit]


def count_of_money(connection: sa.Connection, tenant_id: str | None = None) -> int:
    """Active budgets of money without templates, of one tenant or of all."""
    query = _of_money(sa.select(sa.func.count()).select_from(_budgets), tenant_id)
    return int(connection.execute(query).scalar_one())


def _of_money(query: sa.Select[Any], tenant_id: str | None) -> sa.Select[Any]:
    counted = sa.and_(_budgets.c.template_id.is_(None), sa.not_(_budgets.c.per_end_user))
    query = query.where(_budgets.c.active, _budgets.c.unit == "money", counted)
    return query if tenant_id is None else query.where(_budgets.c.tenant_id == tenant_id)


def states_of(connection: sa.Connection, found: Sequence[Budget], clock: Clock = database_now) -> list[BudgetState]:
    """These budgets in their present windows."""
    now = clock(connection)
    zones = _zones(connection, {budget.tenant_id for budget in found})
    query = sa.select(_windows).where(_windows.c.budget_id.in_([budget.id for budget in found]))
    counters = {(row.budget_id, row.window_start): (row.posted, row.held) for row in connection.execute(query)}
    starts = {budget.id: window_start(budget.period, now, zones[budget.tenant_id]) for budget in found}
    templates = {budget.id: starts[budget.id] for budget in found if budget.per_end_user}
    numbers = end_users.count_end_users(connection, templates)
    result = []
    for budget in found:
        zone, start = zones[budget.tenant_id], starts[budget.id]
        used, held = (0, 0) if budget.per_end_user else counters.get((budget.id, start), (0, 0))
        left = budget.limit_amount - used - held
        resets_at = window_end(budget.period, start, zone)
        near = numbers.get(budget.id, (None, None))
        result.append(BudgetState(budget, start, resets_at, used, held, left, *near))
    return result


def _zones(connection: sa.Connection, tenant_ids: set[str]) -> dict[str, ZoneInfo]:
    tenants = tables.tenants
    query = sa.select(tenants.c.id, tenants.c.time_zone).where(tenants.c.id.in_(tenant_ids))
    return {row.id: zone_of(row.time_zone) for row in connection.execute(query)}


def _budget(row: sa.Row[Any]) -> Budget:
    fields = dict(row._mapping)
    text = fields["thresholds"]
    return Budget(**fields | {"thresholds": tuple(map(int, text.split(","))) if text else ()})


def _thresholds_text(thresholds: tuple[int, ...]) -> str | None:
    return ",".join(map(str, thresholds)) or None


def _checked(kind: Kind, thresholds: Sequence[int] | None) -> tuple[int, ...]:
    _check_choice(kind, ("hard", "soft"), "kind")
    if thresholds is None:
        return SOFT_THRESHOLDS if kind == "soft" else ()
    if kind == "soft" and not thresholds:
        raise InvalidValue("a soft budget without a threshold would have no effect", "thresholds")
    if len(thresholds) > THRESHOLDS_MAX or len(set(thresholds)) < len(thresholds):
        raise InvalidValue(f"at most {THRESHOLDS_MAX} thresholds, all different", "thresholds")
    if not all(1 <= threshold <= THRESHOLD_MAX for threshold in thresholds):
        raise InvalidValue(f"a threshold is 1 to {THRESHOLD_MAX} percent", "thresholds")
    return tuple(sorted(thresholds))


def _check_template(kind: Kind, thresholds: Sequence[int] | None) -> None:
    if kind == "soft":
        raise InvalidValue("a budget for each end user is hard; 'soft' is not served with 'per_end_user'", "kind")
    if thresholds:
        raise InvalidValue("a budget for each end user has no thresholds: it raises no alerts", "thresholds")


def _check_project(connection: sa.Connection, tenant_id: str, project_id: str) -> None:
    projects = tables.projects
    query = sa.select(projects.c.id).where(projects.c.id == project_id, projects.c.tenant_id == tenant_id)
    if connection.execute(query).one_or_none() is None:
        raise RowNotFound(f"the tenant has no project {project_id!r}", "project")


def _check_choice(value: str, choices: tuple[str, ...], param: str) -> None:
    if value not in choices:
        raise InvalidValue(f"must be one of {', '.join(choices)}", param)


def _check_amounts(limit_amount: int, kind: Kind, thresholds: Sequence[int] | None) -> None:
    """Raises InvalidValue, with all arguments at fault."""
    faults = ArgumentChecks()
    faults.note(_check_limit, limit_amount)
    faults.note(_checked, kind, thresholds)
    faults.raise_all()


def _check_limit(limit_amount: int) -> None:
    if not 0 <= limit_amount <= PICOS_MAX:
        raise InvalidValue(f"a limit is 0 to {PICOS_MAX}", "limit_amount")


def _change(connection: sa.Connection, budget_id: str, values: dict[str, object]) -> Budget:
    connection.execute(sa.update(_budgets).where(_budgets.c.id == budget_id).values(values))
    budget = get_budget(connection, budget_id)
    if budget is None:
        raise RowNotFound(f"there is no budget {budget_id!r}")
    inherited: dict[str, object] = {name: values[name] for name in ("limit_amount", "active") if name in values}
    if budget.per_end_user and inherited:
        end_users.change_budgets(connection, budget_id, inherited)
    revision.bump(connection, Change("budgets", budget.tenant_id))
    return budget
