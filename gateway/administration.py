"""What an operator may change, each as one function of a connection: the change and its audit line, together.

The command line and the admin API are two doors to it. It holds what both must check against the configuration;
every other rule is where the thing itself is: in billing, in keys, in the registry. It knows no HTTP and no terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from adapters.store import AdapterStore, StoredAdapter
from billing import budgets, prices, revision, tenants
from billing.budgets import Budget, BudgetState
from billing.clock import Period
from billing.counters import Scope, Unit
from billing.errors import InvalidValue, NotFound
from billing.prices import PriceVersion, SubjectKind
from billing.tenants import Tenant
from gateway import audit, keys, registry
from gateway.config import Config
from gateway.keys import Key, Kind, MadeKey
from gateway.registry import Adapter


class Actor(msgspec.Struct, frozen=True):
    """Who makes a change: a key's id, or audit.CLI; and by which request."""

    id: str
    request_id: str | None = None


class Administration:
    """Writes of one actor. Each is called with the connection of a write transaction, and raises BillingRefused,
    KeyRefused or AdapterNameTaken with nothing changed.

    Every write begins with the revision row, so administrative writes are one after another on every database: what
    one of them checks, no other changes meanwhile."""

    def __init__(self, config: Config, actor: Actor) -> None:
        self._config = config
        self._actor = actor

    def create_tenant(
        self,
        connection: sa.Connection,
        *,
        slug: str,
        tier: str,
        name: str | None = None,
        currency: str = "USD",
        default_max_tokens: int | None = None,
    ) -> Tenant:
        revision.bump(connection)
        self._check_tier(tier)
        tenant = tenants.create(
            connection,
            slug=slug,
            name=slug if name is None else name,
            tier=tier,
            currency=currency,
            default_max_tokens=default_max_tokens,
        )
        self._record(connection, "tenant.create", tenant.id, after=tenant)
        return tenant

    def update_tenant(
        self,
        connection: sa.Connection,
        tenant_id: str,
        *,
        name: str | None = None,
        tier: str | None = None,
        status: tenants.Status | None = None,
        default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Tenant:
        """Change what is given. A suspended tenant's keys are refused from then on."""
        revision.bump(connection)
        if tier is not None:
            self._check_tier(tier)
        before = tenant_of(connection, tenant_id)
        after = tenants.update(connection, tenant_id, name=name, tier=tier, default_max_tokens=default_max_tokens)
        if status is not None:
            change = tenants.suspend if status == "suspended" else tenants.resume
            after = change(connection, tenant_id)
        self._record(connection, "tenant.update", tenant_id, before=before, after=after)
        return after

    def create_key(
        self,
        connection: sa.Connection,
        *,
        name: str,
        tenant_id: str | None,
        kind: Kind = "live",
        tier: str | None = None,
        scopes: list[str] | None = None,
        expires_at: int | None = None,
        default_max_tokens: int | None = None,
        secret: str | None = None,
    ) -> MadeKey:
        """`expires_at` in Unix seconds. An admin key belongs to the operator, every other key to a tenant."""
        revision.bump(connection)
        if kind == "admin" and tenant_id is not None:
            raise InvalidValue("an admin key is the operator's: it belongs to no tenant", "tenant")
        if tier is not None:
            self._check_tier(tier)
        if default_max_tokens is not None and default_max_tokens < 1:
            raise InvalidValue("must be at least 1", "default_max_tokens")
        project_id = None
        if tenant_id is not None:
            tenant_of(connection, tenant_id)
            project_id = tenants.default_project(connection, tenant_id).id
        made = keys.create(
            connection,
            tenant_id=tenant_id,
            name=name,
            kind=kind,
            project_id=project_id,
            tier=tier,
            scopes=scopes,
            expires_at=expires_at,
            default_max_tokens=default_max_tokens,
            secret=secret,
        )
        self._record(connection, "key.create", made.key.id, after=made.key)
        return made

    def rotate_key(self, connection: sa.Connection, key_id: str, *, overlap_s: int) -> MadeKey:
        revision.bump(connection)
        before = key_of(connection, key_id)
        made = keys.rotate(connection, key_id, overlap_s=overlap_s)
        self._record(connection, "key.rotate", key_id, before=before, after=made.key)
        return made

    def revoke_key(self, connection: sa.Connection, key_id: str) -> Key:
        revision.bump(connection)
        before = key_of(connection, key_id)
        after = keys.revoke(connection, key_id)
        self._record(connection, "key.revoke", key_id, before=before, after=after)
        return after

    def publish_price(
        self,
        connection: sa.Connection,
        *,
        subject: str,
        input: int,
        cached_input: int,
        output: int,
        multipliers: Mapping[str, str],
        subject_kind: SubjectKind = "model",
        currency: str = "USD",
        effective_from: int | None = None,
    ) -> PriceVersion:
        """Picos per token, times each tier's multiplier; a tier that is not named has 1. `effective_from` in
        microseconds UTC."""
        revision.bump(connection)
        for tier in multipliers:
            self._check_tier(tier, "multipliers")
        if subject_kind == "model" and self._config.model(subject) is None:
            raise NotFound(f"there is no base model {subject!r}", "subject")
        if subject_kind == "adapter" and subject not in {row.id for row in registry.list_adapters(connection)}:
            raise NotFound(f"there is no adapter {subject!r}", "subject")
        version = prices.publish(
            connection,
            subject=subject,
            input=input,
            cached_input=cached_input,
            output=output,
            multipliers={tier.name: multipliers.get(tier.name, "1") for tier in self._config.tiers},
            subject_kind=subject_kind,
            currency=currency,
            effective_from=effective_from,
        )
        self._record(connection, "price.publish", version.id, after=version)
        return version

    def set_budget(
        self,
        connection: sa.Connection,
        *,
        tenant_id: str,
        unit: Unit,
        period: Period,
        limit_amount: int,
        key_id: str | None = None,
    ) -> Budget:
        """The tenant's one budget of this unit and period, or a key's: made, or its limit changed. Tokens or picos."""
        revision.bump(connection)
        tenant_of(connection, tenant_id)
        scope: Scope = "tenant"
        if key_id is not None:
            scope = "key"
            if key_of(connection, key_id).tenant_id != tenant_id:
                raise NotFound(f"the tenant has no key {key_id!r}", "key_id")
        scope_id = key_id or tenant_id
        same = [b for b in budgets.listing(connection, scope_id=scope_id) if (b.unit, b.period) == (unit, period)]
        if same:
            budget = budgets.change_limit(connection, same[0].id, limit_amount)
        else:
            budget = budgets.create(
                connection,
                tenant_id=tenant_id,
                scope=scope,
                scope_id=scope_id,
                unit=unit,
                period=period,
                limit_amount=limit_amount,
            )
        self._record(connection, "budget.set", budget.id, before=same[0] if same else None, after=budget)
        return budget

    def remove_budget(self, connection: sa.Connection, budget_id: str) -> Budget:
        revision.bump(connection)
        before = budgets.get(connection, budget_id)
        if before is None or not before.active:
            raise NotFound(f"there is no budget {budget_id!r}")
        after = budgets.remove(connection, budget_id)
        self._record(connection, "budget.remove", budget_id, before=before, after=after)
        return after

    def store_adapter(self, source: Path, base_model: str) -> StoredAdapter:
        """Check the adapter in the directory `source` and copy it into the store; no database is involved. Raises
        AdapterRefused, NotFound, and OSError or ValueError when the base model's own directory cannot be read."""
        model = self._config.model(base_model)
        if model is None:
            raise NotFound(f"there is no base model {base_model!r}", "base_model")
        return AdapterStore(self._config.adapters_dir).add_directory(source, registry.base_shape(Path(model.path)))

    def register_adapter(
        self, connection: sa.Connection, *, name: str, tenant_id: str | None, base_model: str, digest: str
    ) -> Adapter:
        """Give a stored adapter its name, for one tenant or for all."""
        revision.bump(connection)
        if tenant_id is not None:
            tenant_of(connection, tenant_id)
        adapter = registry.register(
            connection,
            name=name,
            tenant_id=tenant_id,
            base_model=base_model,
            digest=digest,
            taken=[model.name for model in self._config.models],
        )
        self._record(connection, "adapter.register", adapter.id, after=adapter)
        return adapter

    def _check_tier(self, tier: str, param: str = "tier") -> None:
        if self._config.tier(tier) is None:
            there = ", ".join(one.name for one in self._config.tiers)
            raise InvalidValue(f"there is no tier {tier!r}; there are {there}", param)

    def _record(
        self, connection: sa.Connection, action: str, object_id: str, *, before: Any = None, after: Any = None
    ) -> None:
        audit.record(
            connection,
            actor=self._actor.id,
            action=action,
            object_id=object_id,
            before=before,
            after=after,
            request_id=self._actor.request_id,
        )


def tenant_of(connection: sa.Connection, tenant: str) -> Tenant:
    """By id, or by slug. Raises NotFound."""
    found = tenants.get(connection, tenant) or tenants.by_slug(connection, tenant)
    if found is None:
        raise NotFound(f"there is no tenant {tenant!r}", "tenant")
    return found


def key_of(connection: sa.Connection, key_id: str) -> Key:
    """Raises NotFound."""
    found = keys.get(connection, key_id)
    if found is None:
        raise NotFound(f"there is no key {key_id!r}", "key_id")
    return found


def budget_state(connection: sa.Connection, budget: Budget) -> BudgetState:
    """An active budget in its present window."""
    states = budgets.states(connection, scope_id=budget.scope_id)
    return next(state for state in states if state.budget.id == budget.id)
