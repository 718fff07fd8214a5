"""Applies a state file in one transaction: all of it, or nothing.

Each object is written in a savepoint and compared with the object before; a write that changed nothing is rolled back
with its audit line. So the writes themselves decide which values are equal, and a second run changes nothing. A plan is
the same run, rolled back by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from msgspec import UNSET

from billing.accounts import budgets, prices, tenants
from billing.accounts.budget_windows import Unit
from billing.accounts.budgets import Budget
from billing.accounts.prices import METERS, PriceVersion, SubjectKind, UnitPrices, format_picos, parse_picos
from billing.accounts.tenants import Project, Tenant
from billing.clock import SECOND, database_now
from billing.errors import InvalidValue
from gateway.access import keys
from gateway.access.keys import Key
from gateway.admin.administration import Administration
from gateway.admin.refusals import REFUSALS
from gateway.admin.state.changes import Fields, NewSecret, StateChange, difference
from gateway.admin.state.document import (
    WantedAlias,
    WantedBudget,
    WantedKey,
    WantedLimits,
    WantedPrice,
    WantedProject,
    WantedState,
    WantedTenant,
)
from gateway.catalog import aliases
from gateway.catalog.aliases import Alias
from gateway.limits import overrides
from gateway.limits.overrides import NAMES, LimitsChange, OwnLimits

MILLION = 10**6
TENANT_FIELDS = (
    *("name", "tier", "status", "default_max_tokens", "share_weight", "time_zone", "cheapest"),
    *("store_responses_s", "allowed_ips", "on_budget"),
)
KEY_FIELDS = ("default_max_tokens", "models", "allowed_ips", "tags")
Row = TypeVar("Row")


class StateApplier:
    """One run. `changes` and `secrets` are complete after `apply`, in the order of the writes."""

    def __init__(self, connection: sa.Connection, administration: Administration, *, prune: bool) -> None:
        self._connection = connection
        self._writes = administration
        self._prune = prune
        self.changes: list[StateChange] = []
        self.secrets: list[NewSecret] = []

    def apply(self, state: WantedState) -> None:
        """Raises InvalidValue, which names the refused object of the file."""
        for tenant in state.tenants or ():
            self._tenant(tenant)
        for price in state.prices or ():
            self._price(price)
        for alias in state.aliases or ():
            self._alias(alias)
        if self._prune:
            self._prune_whole(state)

    # ---- tenants and their objects

    def _tenant(self, wanted: WantedTenant) -> None:
        name = wanted.slug
        tenant = tenants.by_slug(self._connection, name)
        with _named("tenant", name):
            if tenant is None:
                tenant = self._written("tenant", name, None, lambda: self._new_tenant(wanted), _tenant_fields)
            else:
                tenant = self._changed_tenant(wanted, tenant)
        self._limits(wanted.limits, tenant, None, name)
        self._budgets(wanted.budgets, tenant, tenant.id, name)
        for project in wanted.projects or ():
            self._project(project, tenant)
        for key in wanted.keys or ():
            self._key(key, tenant)
        if self._prune:
            self._prune_tenant(wanted, tenant)

    def _new_tenant(self, wanted: WantedTenant) -> Tenant:
        if wanted.tier is None:
            raise InvalidValue("a new tenant needs a tier", "tier")
        made = self._writes.tenants.create(
            self._connection, slug=wanted.slug, tier=wanted.tier, currency=wanted.currency or "USD"
        )
        return self._writes.tenants.update(self._connection, made.id, **_given(wanted, TENANT_FIELDS))

    def _changed_tenant(self, wanted: WantedTenant, before: Tenant) -> Tenant:
        if wanted.currency not in (None, before.currency):
            raise InvalidValue(f"is {before.currency}, and a tenant's currency never changes", "currency")

        def write() -> Tenant:
            if before.archived_at is not None:
                self._writes.tenants.restore(self._connection, before.id)
            return self._writes.tenants.update(self._connection, before.id, **_given(wanted, TENANT_FIELDS))

        return self._written("tenant", wanted.slug, before, write, _tenant_fields)

    def _project(self, wanted: WantedProject, tenant: Tenant) -> None:
        name = f"{tenant.slug}/{wanted.name}"
        before = tenants.project_of(self._connection, tenant.id, wanted.name)
        given = _given(wanted, ("default_max_tokens",))

        def write() -> Project:
            if before is None:
                return self._writes.projects.create(self._connection, tenant_id=tenant.id, name=wanted.name, **given)
            if before.archived_at is not None:
                self._writes.projects.restore(self._connection, before.id)
            return self._writes.projects.update(self._connection, before.id, **given)

        with _named("project", name):
            project = self._written("project", name, before, write, _project_fields)
        self._budgets(wanted.budgets, tenant, project.id, name, project=project.id)

    def _key(self, wanted: WantedKey, tenant: Tenant) -> None:
        name = f"{tenant.slug}/{wanted.name}"
        same = [key for key in self._usable_keys(tenant) if key.name == wanted.name]
        with _named("key", name):
            if len(same) > 1:
                raise InvalidValue(f"the tenant has {len(same)} usable keys of this name: revoke or rename all but one")
            if same:
                key = self._changed_key(wanted, same[0], name)
            else:
                key = self._written("key", name, None, lambda: self._new_key(wanted, tenant), self._key_fields)
        self._limits(wanted.limits, tenant, key.id, name)
        self._budgets(wanted.budgets, tenant, key.id, name, key_id=key.id)

    def _new_key(self, wanted: WantedKey, tenant: Tenant) -> Key:
        given = _given(wanted, ("project", "kind", "tier", "scopes", *KEY_FIELDS))
        made = self._writes.keys.create(self._connection, tenant_id=tenant.id, name=wanted.name, **given)
        self.secrets.append(NewSecret(tenant.slug, wanted.name, made.key.id, made.secret))
        return made.key

    def _changed_key(self, wanted: WantedKey, before: Key, name: str) -> Key:
        for field in ("kind", "tier", "scopes"):
            value = getattr(wanted, field)
            if value not in (None, getattr(before, field)):
                raise InvalidValue(
                    f"is {getattr(before, field)!r}, and never changes: make a key of another name", field
                )
        given = _given(wanted, ("project", *KEY_FIELDS))
        return self._written(
            "key",
            name,
            before,
            lambda: self._writes.keys.update(self._connection, before.id, **given),
            self._key_fields,
        )

    def _usable_keys(self, tenant: Tenant) -> list[Key]:
        """The tenant's inference keys that are neither ended nor replaced."""
        now = database_now(self._connection)
        return [
            key
            for key in keys.list_keys(self._connection, tenant.id)
            if key.kind != "admin" and key.revoked_at is None and key.rotated_to is None
            and (key.expires_at is None or key.expires_at * SECOND > now)
        ]  # fmt: skip

    def _limits(self, wanted: WantedLimits | None, tenant: Tenant, key_id: str | None, name: str) -> None:
        if wanted is None:
            return
        before = overrides.of_subject(self._connection, key_id or tenant.id)
        change = LimitsChange(**_given(wanted, NAMES, nulls=True))

        def write() -> OwnLimits:
            return self._writes.limits.set(self._connection, tenant_id=tenant.id, key_id=key_id, change=change)

        with _named("limits of", name):
            self._written("limits of", name, before, write, _limit_fields)

    def _budgets(
        self,
        wanted: list[WantedBudget] | None,
        tenant: Tenant,
        scope_id: str,
        name: str,
        *,
        project: str | None = None,
        key_id: str | None = None,
    ) -> None:
        if wanted is None:
            return
        listed = budgets.list_budgets(self._connection, scope_id=scope_id)
        before = {(had.unit, had.period, had.per_end_user): had for had in listed}

        def fields(budget: Budget) -> Fields:
            return _budget_fields(budget, tenant.currency)

        for budget in wanted:
            unit, limit = _limit_of(budget, name)
            had = before.pop((unit, budget.period, budget.per_end_user), None)

            def write(budget: WantedBudget = budget, unit: Unit = unit, limit: int = limit) -> Budget:
                return self._writes.budgets.set(
                    self._connection, tenant_id=tenant.id, unit=unit, period=budget.period, limit_amount=limit,
                    kind=budget.kind, thresholds=budget.thresholds, per_end_user=budget.per_end_user,
                    project=project, key_id=key_id,
                )  # fmt: skip

            whole = _budget_name(name, budget.period, unit, budget.per_end_user)
            with _named("budget of", whole):
                self._written("budget of", whole, had, write, fields)
        for had in before.values() if self._prune else ():
            whole = _budget_name(name, had.period, had.unit, had.per_end_user)
            self._ended("budget of", whole, self._writes.budgets.remove, had.id)

    # ---- prices and aliases

    def _price(self, wanted: WantedPrice) -> None:
        if (wanted.model is None) == (wanted.adapter is None):
            raise InvalidValue("a price is of a model or of an adapter", "prices")
        kind: SubjectKind = "model" if wanted.adapter is None else "adapter"
        subject = wanted.model or wanted.adapter or ""
        found = prices.list_price_versions(self._connection, subject_kind=kind, subject=subject)
        before = prices.in_force(found, wanted.currency, database_now(self._connection))
        name = f"{subject} in {wanted.currency}, for a million tokens"
        with _named("price of", name):
            _check_left_out(wanted, before)

        def write() -> PriceVersion:
            cached = wanted.input if wanted.cached_input is None else wanted.cached_input
            return self._writes.prices.publish(
                self._connection, subject=subject, subject_kind=kind, currency=wanted.currency,
                multipliers={tier: str(factor) for tier, factor in wanted.multipliers.items()},
                input=_picos(str(wanted.input), "input", MILLION),
                cached_input=_picos(str(cached), "cached_input", MILLION),
                output=_picos(str(wanted.output), "output", MILLION),
                embedding=(
                    None if wanted.embedding is None else _picos(str(wanted.embedding), "embedding", MILLION)
                ),
            )  # fmt: skip

        with _named("price of", name):
            self._written("price of", name, before, write, _price_fields)

    def _alias(self, wanted: WantedAlias) -> None:
        before = aliases.get_alias(self._connection, wanted.name)

        def write() -> Alias:
            return self._writes.aliases.set(
                self._connection, wanted.name, models=wanted.models, cheapest=wanted.cheapest,
                fallbacks=wanted.fallbacks, tenants=wanted.tenants, active=wanted.active,
            )  # fmt: skip

        with _named("alias", wanted.name):
            self._written("alias", wanted.name, before, write, self._alias_fields)

    # ---- objects that the file does not name

    def _prune_tenant(self, wanted: WantedTenant, tenant: Tenant) -> None:
        if wanted.keys is not None:
            named = {key.name for key in wanted.keys}
            for key in self._usable_keys(tenant):
                if key.name not in named:
                    self._ended("key", f"{tenant.slug}/{key.name}", self._writes.keys.revoke, key.id)
        if wanted.projects is not None:
            named = {project.name for project in wanted.projects} | {tenants.DEFAULT_PROJECT}
            for project in tenants.projects(self._connection, tenant.id):
                if project.name not in named and project.archived_at is None:
                    self._ended("project", f"{tenant.slug}/{project.name}", self._writes.projects.archive, project.id)

    def _prune_whole(self, state: WantedState) -> None:
        if state.aliases is not None:
            named = {alias.name for alias in state.aliases}
            for alias in aliases.list_aliases(self._connection):
                if alias.name not in named:
                    self._ended("alias", alias.name, self._writes.aliases.remove, alias.name)
        if state.tenants is not None:
            named = {tenant.slug for tenant in state.tenants}
            for tenant in _all_tenants(self._connection):
                if tenant.slug not in named and tenant.archived_at is None:
                    self._ended("tenant", tenant.slug, self._writes.tenants.archive, tenant.id)

    # ---- one write

    def _written(
        self, kind: str, name: str, before: Row | None, write: Callable[[], Row], fields: Callable[[Row], Fields]
    ) -> Row:
        """The object after `write`. A write that changes no field is rolled back; any other is in `changes`."""
        savepoint = self._connection.begin_nested()
        after = write()
        changed = difference({} if before is None else fields(before), fields(after))
        if not changed:
            savepoint.rollback()
            return after if before is None else before
        savepoint.commit()
        self.changes.append(StateChange("add" if before is None else "change", kind, name, changed))
        return after

    def _ended(self, kind: str, name: str, end: Callable[[sa.Connection, str], object], object_id: str) -> None:
        with _named(kind, name):
            end(self._connection, object_id)
        self.changes.append(StateChange("remove", kind, name, {}))

    def _key_fields(self, key: Key) -> Fields:
        project = None if key.project_id is None else tenants.get_project(self._connection, key.project_id)
        shown = {name: getattr(key, name) for name in ("kind", "tier", "scopes", *KEY_FIELDS)}
        return {"project": None if project is None else project.name} | shown

    def _alias_fields(self, alias: Alias) -> Fields:
        shown: Fields = msgspec.to_builtins(alias)
        shown["models"] = ", ".join(f"{target.model}={target.weight:g}" for target in alias.models)
        if alias.tenants is not None:
            found = [tenants.get_tenant(self._connection, tenant_id) for tenant_id in alias.tenants]
            shown["tenants"] = [tenant.slug for tenant in found if tenant is not None]
        return {name: shown[name] for name in ("models", "cheapest", "fallbacks", "tenants", "active")}


@contextmanager
def _named(kind: str, name: str) -> Iterator[None]:
    """Refusals name the object of the file. Raises InvalidValue."""
    try:
        yield
    except REFUSALS as error:
        param = getattr(error, "param", None)
        raise InvalidValue(f"{kind} {name}: {f'{param}: ' if param else ''}{error}") from error


def _given(part: msgspec.Struct, names: Sequence[str], *, nulls: bool = False) -> dict[str, Any]:
    """The fields that the file has, by name. Null is a value in fields that may be UNSET, and with `nulls` in all
    fields; in any other field it means that the file leaves the field out."""
    clearable = {field.name for field in msgspec.structs.fields(part) if field.default is UNSET}
    found = {name: getattr(part, name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if value is not UNSET and (value is not None or nulls or name in clearable)
    }


def _all_tenants(connection: sa.Connection) -> Iterator[Tenant]:
    after = ""
    while page := tenants.list_tenants(connection, after=after, limit=tenants.LIST_MAX):
        yield from page
        after = page[-1].slug


def _budget_name(name: str, period: str, unit: str, per_end_user: bool) -> str:
    return f"{name} ({period}, {unit}{', each end user' if per_end_user else ''})"


def _limit_of(budget: WantedBudget, name: str) -> tuple[Unit, int]:
    """The unit and the limit, in tokens or picos."""
    if (budget.tokens is None) == (budget.money is None):
        raise InvalidValue(f"budget of {name}: it has either tokens or money", "budgets")
    if budget.tokens is not None:
        return "tokens", budget.tokens
    with _named("budget of", name):
        return "money", _picos(str(budget.money), "money")


def _picos(text: str, field: str, per: int = 1) -> int:
    try:
        return parse_picos(text, per)
    except InvalidValue as error:
        raise InvalidValue(str(error), field) from None


def _tenant_fields(tenant: Tenant) -> Fields:
    shown = {name: getattr(tenant, name) for name in ("currency", *TENANT_FIELDS)}
    return shown | {"archived": tenant.archived_at is not None}


def _project_fields(project: Project) -> Fields:
    return {"default_max_tokens": project.default_max_tokens, "archived": project.archived_at is not None}


def _limit_fields(own: OwnLimits) -> Fields:
    return {name: getattr(own, name) for name in NAMES}


def _budget_fields(budget: Budget, currency: str) -> Fields:
    money = budget.unit == "money"
    limit = format_picos(budget.limit_amount, currency) if money else f"{budget.limit_amount} tokens"
    return {"limit": limit, "kind": budget.kind, "thresholds": list(budget.thresholds)}


def _check_left_out(wanted: WantedPrice, before: PriceVersion | None) -> None:
    """A price version is published whole, with defaults for the fields that a file leaves out. Raises InvalidValue if a
    default would replace a price that is in force and differs from it."""
    tiers = [] if before is None else list(before.tiers.values())
    if wanted.cached_input is None and any(unit.cached_input != unit.input for unit in tiers):
        raise InvalidValue("the price in force has its own cached_input: write cached_input", "prices")
    if wanted.embedding is None and any(unit.embedding != unit.input for unit in tiers):
        raise InvalidValue("the price in force has its own price of embeddings: write embedding", "prices")
    if not wanted.multipliers and any(unit != tiers[0] for unit in tiers):
        raise InvalidValue("the prices in force differ between tiers: write multipliers", "prices")


def _price_fields(version: PriceVersion) -> Fields:
    return {tier: _prices_of(unit, version.currency) for tier, unit in _sorted(version.tiers).items()}


def _sorted(tiers: Mapping[str, UnitPrices]) -> dict[str, UnitPrices]:
    return dict(sorted(tiers.items()))


def _prices_of(unit: UnitPrices, currency: str) -> str:
    return ", ".join(f"{meter} {format_picos(getattr(unit, meter) * MILLION, currency)}" for meter in METERS)
