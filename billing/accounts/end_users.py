"""The budgets of end users. A budget with `per_end_user` is a template: each end user that a request names has a
separate budget with the template's unit, period and limit. The first hold that names the end user creates it.

This module knows end users by digest, never by name. The id of an end user's budget follows from the template, its salt
and the digest. The budget is its own scope id, so a hold finds it by that id alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tables
from billing.bulk import BulkInsert, Query, among
from billing.clock import Period, window_end, window_start, zone_of
from billing.lists import ListColumns, ListPage, ListQuery, select_page

END_USERS_MAX = 100_000  # budgets of one template; further end users share the budget OTHERS
OTHERS = "others"  # in place of a digest
NEAR_PERCENT = 80  # of the limit: an end user above it is counted as near it

_budgets = tables.budgets
_windows = tables.budget_windows

# Whether any template exists: a deployment without templates runs no other statement of this module.
any_template = sa.select(
    sa.cast(sa.exists().where(_budgets.c.per_end_user, _budgets.c.active), sa.Integer)
).scalar_subquery()

_TEMPLATES = Query(
    sa.select(_budgets.c.id, _budgets.c.scope_id, _budgets.c.first_key_id, _budgets.c.end_user).where(
        _budgets.c.per_end_user,
        _budgets.c.active,
        sa.or_(among(_budgets.c.scope_id, "scope_ids"), among(_budgets.c.first_key_id, "scope_ids")),
    )
)
_EXISTING = Query(sa.select(_budgets.c.id).where(among(_budgets.c.id, "budget_ids")))
_COPIED = ("tenant_id", "scope", "unit", "period", "limit_amount")
_LOCK_TEMPLATES = Query(
    sa.select(_budgets.c.id, *(_budgets.c[name] for name in _COPIED))
    .where(among(_budgets.c.id, "budget_ids"), _budgets.c.active)
    .order_by(_budgets.c.id)
    .with_for_update()
)
_OWN = ("id", "scope_id", "end_user", "template_id", "active", "created_at")
_INSERT = BulkInsert(_budgets, (*_OWN, *_COPIED), keep=True)

NamedScopes = tuple[tuple[str, ...], str]  # the scope ids of a request, and the digest of its end user


class _Template(msgspec.Struct, frozen=True):
    id: str
    scope_id: str
    first_key_id: str | None
    salt: str | None  # None: the tenant was erased


class _WantedBudget(msgspec.Struct, frozen=True):
    """The budget of one end user, and the budget that it shares if the template has END_USERS_MAX others."""

    template_id: str
    digest: str
    id: str
    shared_id: str


def budget_id(template_id: str, salt: str, digest: str) -> str:
    """The id of the budget of an end user. Without the salt it cannot be computed."""
    return f"bud_{hashlib.sha256(f'{template_id} {salt} {digest}'.encode()).hexdigest()[:32]}"


def ensure_budgets(connection: sa.Connection, named: Collection[NamedScopes], now: int) -> dict[NamedScopes, list[str]]:
    """The ids of the budgets of these end users by all templates of their scopes. Missing budgets are made, under the
    locks of their templates. It must run before the transaction locks budgets."""
    scope_ids = sorted({scope_id for scope_ids, _digest in named for scope_id in scope_ids})
    templates = [_Template(*row) for row in _TEMPLATES.rows(connection, {"scope_ids": scope_ids})]
    found: dict[NamedScopes, list[_WantedBudget]] = {
        (scopes, digest): [
            _wanted_budget(template.id, template.salt, digest)
            for template in templates
            if template.salt is not None and {template.scope_id, template.first_key_id} & set(scopes)
        ]
        for scopes, digest in named
    }
    wanted = {one.id: one for every in found.values() for one in every}
    if not wanted:
        return {}
    existing = _existing(connection, wanted.values())
    missing = [one for one in wanted.values() if _found(one, existing) is None]
    if missing:
        existing |= _make(connection, missing, now)
    ids = {pair: [_found(one, existing) for one in every] for pair, every in found.items()}
    return {pair: list(dict.fromkeys(one for one in every if one is not None)) for pair, every in ids.items()}


def _wanted_budget(template_id: str, salt: str, digest: str) -> _WantedBudget:
    return _WantedBudget(
        template_id, digest, budget_id(template_id, salt, digest), budget_id(template_id, salt, OTHERS)
    )


def _existing(connection: sa.Connection, wanted: Iterable[_WantedBudget]) -> set[str]:
    ids = {one_id for one in wanted for one_id in (one.id, one.shared_id)}
    return {row[0] for row in _EXISTING.rows(connection, {"budget_ids": sorted(ids)})}


def _found(wanted: _WantedBudget, existing: Collection[str]) -> str | None:
    """The shared budget exists once the template is full; then no further end user gets a separate budget."""
    return next((one for one in (wanted.id, wanted.shared_id) if one in existing), None)


def _make(connection: sa.Connection, missing: Sequence[_WantedBudget], now: int) -> set[str]:
    """Make the missing budgets with the present limits of their templates. Returns the ids that exist afterwards. A
    template that another transaction has removed gets no new budgets."""
    template_ids = sorted({one.template_id for one in missing})
    locked = {row[0]: row[1:] for row in _LOCK_TEMPLATES.rows(connection, {"budget_ids": template_ids})}
    existing = _existing(connection, missing)  # read under the locks: includes the budgets that other gateways made
    rows: dict[str, tuple[Any, ...]] = {}
    for template_id, copied in locked.items():
        left = END_USERS_MAX - _count(connection, template_id)
        for one in sorted(missing, key=lambda one: one.id):
            if one.template_id != template_id or _found(one, existing) is not None:
                continue
            new_id, digest = (one.id, one.digest) if left > 0 else (one.shared_id, OTHERS)
            rows[new_id] = (new_id, new_id, digest, template_id, True, now, *copied)
            existing.add(new_id)
            left -= 1
    _INSERT.run(connection, [rows[new_id] for new_id in sorted(rows)])
    return existing


def _count(connection: sa.Connection, template_id: str) -> int:
    """The budgets of a template, counted up to END_USERS_MAX."""
    some = sa.select(_budgets.c.id).where(_budgets.c.template_id == template_id).limit(END_USERS_MAX).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one())


# ---- writes and reads of administrators ------------------------------------------------------------------------


def change_budgets(connection: sa.Connection, template_id: str, values: Mapping[str, object]) -> None:
    """Change the budgets of a template, whose row this transaction has locked. They are locked in the order of their
    ids, as holds lock them."""
    of_template = _budgets.c.template_id == template_id
    connection.execute(sa.select(_budgets.c.id).where(of_template).order_by(_budgets.c.id).with_for_update()).all()
    connection.execute(sa.update(_budgets).where(of_template).values(dict(values)))


def count_end_users(connection: sa.Connection, starts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """For each template id, with the start of its present window: the number of its end users, and the number that
    have used or held more than NEAR_PERCENT of their limit."""
    limit = _budgets.c.limit_amount
    # NEAR_PERCENT of the limit, rounded down, without a product over 64 bits.
    bound = limit // 100 * NEAR_PERCENT + limit % 100 * NEAR_PERCENT // 100
    near = _windows.c.held + _windows.c.posted > bound
    found = {}
    for template_id, start in starts.items():
        query = (
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(sa.case((near, 1), else_=0)), 0))
            .select_from(_budgets.outerjoin(_windows, _of_window(start)))
            .where(_budgets.c.template_id == template_id)
        )
        number, over = connection.execute(query).one()
        found[template_id] = int(number), int(over)
    return found


class EndUserState(msgspec.Struct, frozen=True):
    """The budget of one end user in its present window: amounts in its unit, `resets_at` in microseconds UTC. `shared`:
    by all end users beyond END_USERS_MAX."""

    id: str
    limit_amount: int
    created_at: int
    used: int
    held: int
    resets_at: int | None
    shared: bool

    @property
    def left(self) -> int:
        return self.limit_amount - self.used - self.held


def query_end_user_states(
    connection: sa.Connection,
    template_id: str,
    tenant_id: str,
    period: Period,
    list_query: ListQuery,
    now: int,
    digest: str | None = None,
) -> ListPage[EndUserState]:
    """A page of the budgets of a template's end users in their present windows. `digest`: only the budget of this end
    user, which is the shared budget if the template is full. Raises InvalidValue."""
    time_zone = sa.select(tables.tenants.c.time_zone).where(tables.tenants.c.id == tenant_id)
    zone = zone_of(connection.execute(time_zone).scalar_one())
    start = window_start(period, now, zone)
    resets_at = window_end(period, start, zone)
    used, held = (sa.func.coalesce(column, 0) for column in (_windows.c.posted, _windows.c.held))
    query = (
        sa.select(_budgets.c.id, _budgets.c.limit_amount, _budgets.c.created_at, used, held, _budgets.c.end_user)
        .select_from(_budgets.outerjoin(_windows, _of_window(start)))
        .where(_budgets.c.template_id == template_id)
    )
    columns = ListColumns(
        sorts={"used": used, "held": held, "created_at": _budgets.c.created_at}, unique=_budgets.c.id, searched=()
    )

    def listed(query: sa.Select[Any]) -> ListPage[EndUserState]:
        return select_page(connection, query, columns, list_query, state, lambda one: one.id)

    def state(row: Any) -> EndUserState:
        return EndUserState(row[0], row[1], row[2], int(row[3]), int(row[4]), resets_at, row[5] == OTHERS)

    if digest is None:
        return listed(query)
    own = listed(query.where(_budgets.c.end_user == digest))
    return own if own.items else listed(query.where(_budgets.c.end_user == OTHERS))


def _of_window(start: int) -> sa.ColumnElement[bool]:
    return sa.and_(_windows.c.budget_id == _budgets.c.id, _windows.c.window_start == start)
