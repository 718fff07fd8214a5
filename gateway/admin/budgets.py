"""Setting and removing budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from billing.accounts import budgets, end_users
from billing.accounts.budget_windows import Kind, Scope, Unit
from billing.accounts.budgets import Budget, BudgetState
from billing.accounts.end_users import EndUserState
from billing.clock import Period, database_now
from billing.errors import InvalidValue, RowNotFound
from billing.lists import ListPage, ListQuery
from gateway.access import keys
from gateway.admin.writes import Actor, Writes, key_of, project_of


class BudgetWrites:
    """The budgets of a tenant itself are changed by operators only; the budgets of its projects and keys by its
    administrators too."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def set(
        self,
        connection: sa.Connection,
        *,
        tenant_id: str,
        unit: Unit,
        period: Period,
        limit_amount: int,
        project: str | None = None,
        key_id: str | None = None,
        kind: Kind | None = None,
        thresholds: Sequence[int] | None = None,
        per_end_user: bool = False,
    ) -> Budget:
        """Make the budget of this unit and period, or change the given fields of it: a tenant, a project (id or name)
        or a key has one, and one for each of its end users (`per_end_user`). `limit_amount` in tokens or picos,
        `thresholds` in percent of it."""
        self._writes.lock(connection)
        tenant_id = self._writes.tenant(connection, tenant_id).id
        scope, scope_id, first_key_id = self._scope(connection, tenant_id, project, key_id)
        if scope == "tenant":
            self._check_operator()
        wanted = (unit, period, per_end_user)
        listed = budgets.list_budgets(connection, scope_id=scope_id)
        before = next((b for b in listed if (b.unit, b.period, b.per_end_user) == wanted), None)
        if before is not None:
            budget = budgets.change_budget(
                connection, before.id, limit_amount=limit_amount, kind=kind, thresholds=thresholds
            )
        else:
            budget = budgets.create_budget(
                connection,
                tenant_id=tenant_id,
                scope=scope,
                scope_id=scope_id,
                unit=unit,
                period=period,
                limit_amount=limit_amount,
                kind=kind or "hard",
                thresholds=thresholds,
                first_key_id=first_key_id,
                per_end_user=per_end_user,
            )
        return self._writes.record(connection, "budget.set", before, budget)

    def remove(self, connection: sa.Connection, budget_id: str) -> Budget:
        self._writes.lock(connection)
        before = budgets.get_budget(connection, budget_id)
        if before is None or not before.active or not self._writes.actor.sees(before.tenant_id):
            raise RowNotFound(f"there is no budget {budget_id!r}")
        if before.scope == "tenant":
            self._check_operator()
        return self._writes.record(
            connection, "budget.remove", before, budgets.deactivate_budget(connection, budget_id)
        )

    def _check_operator(self) -> None:
        self._writes.check_operator("a tenant's own budgets")

    def _scope(
        self, connection: sa.Connection, tenant_id: str, project: str | None, key_id: str | None
    ) -> tuple[Scope, str, str | None]:
        """The budget's scope and the id of its subject; of a key that was rotated, the newest key's id, and the id of
        the first."""
        if project is not None and key_id is not None:
            raise InvalidValue("a budget belongs to a project or to a key, not to both", "key_id")
        if project is not None:
            return "project", project_of(connection, tenant_id, project).id, None
        if key_id is None:
            return "tenant", tenant_id, None
        key = key_of(connection, key_id, self._writes.actor)
        if key.tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        newest = keys.newest(connection, key)
        return "key", newest, None if key.shares_as == newest else key.shares_as


def end_user_states(
    connection: sa.Connection,
    actor: Actor,
    budget_id: str,
    list_query: ListQuery,
    digest_in: Callable[[str], str] | None = None,
) -> ListPage[EndUserState]:
    """A page of the budgets of a template's end users. `digest_in` lists one end user only: it returns the end
    user's digest for a tenant's id. Raises RowNotFound, InvalidValue."""
    budget = budgets.get_budget(connection, budget_id) if budget_id.isascii() and budget_id.isprintable() else None
    if budget is None or not budget.active or not budget.per_end_user or not actor.sees(budget.tenant_id):
        raise RowNotFound(f"there is no budget for each end user with the id {budget_id!r}")
    digest = None if digest_in is None else digest_in(budget.tenant_id)
    return end_users.query_end_user_states(
        connection, budget.id, budget.tenant_id, budget.period, list_query, database_now(connection), digest
    )


def budget_state(connection: sa.Connection, budget: Budget) -> BudgetState:
    """An active budget in its present window."""
    states = budgets.list_budget_states(connection, scope_id=budget.scope_id)
    return next(state for state in states if state.budget.id == budget.id)
