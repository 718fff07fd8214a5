"""What an operator may change, each as one function of a connection: the change and its audit line, together.

The command line and the admin API are two doors to it. It holds what both must check against the configuration;
every other rule is where the thing itself is: in billing, in keys, in adapter_rows. It knows no HTTP and no terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.accounts import budgets, prices, tenants, webhooks
from billing.accounts.budget_windows import Kind as BudgetKind
from billing.accounts.budget_windows import Scope, Unit
from billing.accounts.budgets import Budget, BudgetState
from billing.accounts.prices import REQUEST_TOKENS_MAX, PriceVersion, SubjectKind
from billing.accounts.tenants import Project, Tenant
from billing.accounts.webhooks import MadeWebhook, Webhook
from billing.clock import Period
from billing.errors import InvalidValue, RowNotFound
from billing.exports import jobs
from billing.exports.export import ExportSpec
from billing.exports.jobs import ExportJob
from gateway.access import keys
from gateway.access.keys import Key, Kind, MadeKey
from gateway.access.roles import TENANT_ADMIN, Role
from gateway.admin.adapters import AdapterWrites
from gateway.admin.models import ModelWrites
from gateway.admin.writes import Actor, key_of, project_of, tenant_of, visible_tenant
from gateway.catalog import adapters, base_models
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange, OwnLimits
from gateway.limits.rates import Scope as LimitScope

__all__ = [
    "Actor",
    "Administration",
    "budget_state",
    "export_of",
    "key_of",
    "project_of",
    "tenant_of",
    "visible_tenant",
]


class Administration(AdapterWrites, ModelWrites):
    """All of them. A `tenant_id` may be a slug too; without one, it is the actor's."""

    def create_tenant(
        self,
        connection: sa.Connection,
        *,
        slug: str,
        tier: str,
        name: str | None = None,
        currency: str = "USD",
        default_max_tokens: int | None = None,
        share_weight: float = 1.0,
        time_zone: str = "UTC",
    ) -> Tenant:
        revision.lock(connection)
        self._check_unbound("tenants are")
        self._check_tier(tier)
        tenant = tenants.create(
            connection,
            slug=slug,
            name=slug if name is None else name,
            tier=tier,
            currency=currency,
            default_max_tokens=default_max_tokens,
            share_weight=share_weight,
            time_zone=time_zone,
        )
        self._record(connection, "tenant.create", tenant.id, tenant.id, after=tenant)
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
        share_weight: float | None = None,
        time_zone: str | None = None,
        cheapest: bool | None = None,
    ) -> Tenant:
        """Change what is given. A suspended tenant's keys are refused from then on."""
        revision.lock(connection)
        before = tenant_of(connection, tenant_id, self._actor)
        tenant_id = before.id
        self._check_unbound("tenants are")
        if tier is not None:
            self._check_tier(tier)
        after = tenants.update(
            connection,
            tenant_id,
            name=name,
            tier=tier,
            default_max_tokens=default_max_tokens,
            share_weight=share_weight,
            time_zone=time_zone,
            cheapest=cheapest,
        )
        if status is not None:
            change = tenants.suspend if status == "suspended" else tenants.resume
            after = change(connection, tenant_id)
        self._record(connection, "tenant.update", tenant_id, tenant_id, before=before, after=after)
        return after

    def create_project(
        self, connection: sa.Connection, *, tenant_id: str, name: str, default_max_tokens: int | None = None
    ) -> Project:
        revision.lock(connection)
        tenant_id = tenant_of(connection, tenant_id, self._actor).id
        project = tenants.create_project(
            connection, tenant_id=tenant_id, name=name, default_max_tokens=default_max_tokens
        )
        self._record(connection, "project.create", project.id, tenant_id, after=project)
        return project

    def update_project(
        self,
        connection: sa.Connection,
        project_id: str,
        *,
        name: str | None = None,
        default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Project:
        """Change what is given."""
        revision.lock(connection)
        before = tenants.get_project(connection, project_id)
        if before is None or not self._actor.sees(before.tenant_id):
            raise RowNotFound(f"there is no project {project_id!r}")
        after = tenants.update_project(connection, project_id, name=name, default_max_tokens=default_max_tokens)
        self._record(connection, "project.update", project_id, after.tenant_id, before=before, after=after)
        return after

    def create_key(
        self,
        connection: sa.Connection,
        *,
        name: str,
        tenant_id: str | None,
        project: str | None = None,
        kind: Kind = "live",
        tier: str | None = None,
        scopes: list[str] | None = None,
        expires_at: int | None = None,
        default_max_tokens: int | None = None,
        secret: str | None = None,
        role: Role | None = None,
    ) -> MadeKey:
        """`expires_at` in Unix seconds. An admin key of the role tenant_admin and every key that is no admin key belong
        to a tenant, in a project (by id or name) or its default one; the other admin keys to the operator. Without
        `role` an admin key has its maker's."""
        revision.lock(connection)
        tenant_id = visible_tenant(connection, self._actor, tenant_id)
        role = self._checked_role(kind, role, tenant_id)
        if tier is not None:
            self._check_tier(tier)
        _check_default(default_max_tokens)
        if kind == "admin":
            self._check_expiry(connection, expires_at)
        project_id = None
        if tenant_id is not None:
            self._check_key_fits(connection, tenant_id)
            project_id = project_of(connection, tenant_id, project or tenants.DEFAULT_PROJECT).id
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
            role=role,
        )
        self._record(connection, "key.create", made.key.id, tenant_id, after=made.key)
        return made

    def _checked_role(self, kind: Kind, role: Role | None, tenant_id: str | None) -> Role | None:
        if kind != "admin":
            return role  # which `keys` refuses when there is one
        role = role or self._actor.role
        self._check_grant(role)
        if role != TENANT_ADMIN and tenant_id is not None:
            raise InvalidValue(f"an admin key of the role {role} is the operator's: it belongs to no tenant", "tenant")
        if role == TENANT_ADMIN and tenant_id is None:
            raise InvalidValue(f"a key of the role {TENANT_ADMIN} needs a tenant", "tenant")
        return role

    def _check_key_fits(self, connection: sa.Connection, tenant_id: str) -> None:
        """Raises InvalidValue when the tenant has administration.tenant_keys_max usable keys already."""
        limit = self._config.administration.tenant_keys_max
        if keys.count_usable(connection, tenant_id) >= limit:
            raise InvalidValue(
                f"the tenant has {limit} keys that are neither revoked nor expired, which is the limit "
                "(administration.tenant_keys_max): revoke one first",
                "tenant",
            )

    def _own_key(self, connection: sa.Connection, key_id: str) -> Key:
        """One that the actor may change."""
        key = key_of(connection, key_id, self._actor)
        self._check_grant(key.role)
        return key

    def update_key(
        self,
        connection: sa.Connection,
        key_id: str,
        *,
        project: str | None = None,
        default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Key:
        """Change what is given: `project` (by id or name) is whose budgets its requests count in from then on."""
        revision.lock(connection)
        before = self._own_key(connection, key_id)
        if default_max_tokens is not msgspec.UNSET:
            _check_default(default_max_tokens)
        project_id = None
        if project is not None:
            if before.tenant_id is None:
                raise InvalidValue("an admin key is the operator's: it belongs to no project", "project")
            project_id = project_of(connection, before.tenant_id, project).id
        after = keys.update(connection, key_id, project_id=project_id, default_max_tokens=default_max_tokens)
        self._record(connection, "key.update", key_id, before.tenant_id, before=before, after=after)
        return after

    def rotate_key(self, connection: sa.Connection, key_id: str, *, overlap_s: int) -> MadeKey:
        """The new key has the budgets and rate limits of the old one; both count in them until the old one ends."""
        revision.lock(connection)
        before = self._own_key(connection, key_id)
        if overlap_s and before.tenant_id is not None:
            self._check_key_fits(connection, before.tenant_id)
        if before.kind == "admin":
            self._check_expiry(connection, before.expires_at)  # the new key gets the same expiry
        made = keys.rotate(connection, key_id, overlap_s=overlap_s)
        after = key_of(connection, key_id)
        self._record(connection, "key.rotate", key_id, before.tenant_id, before=before, after=after)
        self._record(connection, "key.create", made.key.id, before.tenant_id, after=made.key)
        for old, new in budgets.hand_over(connection, key_id, made.key.id):
            self._record(connection, "budget.move", old.id, old.tenant_id, before=old, after=new)
        return made

    def revoke_key(self, connection: sa.Connection, key_id: str) -> Key:
        revision.lock(connection)
        before = self._own_key(connection, key_id)
        after = keys.revoke(connection, key_id)
        self._record(connection, "key.revoke", key_id, before.tenant_id, before=before, after=after)
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
        ahead: bool = False,
    ) -> PriceVersion:
        """Picos per token, times each tier's multiplier; a tier that is not named has 1. `effective_from` in
        microseconds UTC. `ahead`: of a model that is to be added."""
        revision.lock(connection)
        for tier in multipliers:
            self._check_tier(tier, "multipliers")
        if ahead and subject_kind == "model":
            base_models.check_name(subject)
        else:
            self._check_subject(connection, subject_kind, subject)
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
        project: str | None = None,
        key_id: str | None = None,
        kind: BudgetKind | None = None,
        thresholds: Sequence[int] | None = None,
    ) -> Budget:
        """The one budget of this unit and period that a tenant, its project (by id or name) or its key has: made, or
        changed in what is given. Tokens or picos; thresholds in percent."""
        revision.lock(connection)
        tenant_id = tenant_of(connection, tenant_id, self._actor).id
        scope, scope_id, first_key_id = self._scope(connection, tenant_id, project, key_id)
        if scope == "tenant":
            self._check_unbound("a tenant's own budgets are")
        same = [b for b in budgets.listing(connection, scope_id=scope_id) if (b.unit, b.period) == (unit, period)]
        if same:
            budget = budgets.change(connection, same[0].id, limit_amount=limit_amount, kind=kind, thresholds=thresholds)
        else:
            budget = budgets.create(
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
            )
        self._record(connection, "budget.set", budget.id, tenant_id, before=same[0] if same else None, after=budget)
        return budget

    def _scope(
        self, connection: sa.Connection, tenant_id: str, project: str | None, key_id: str | None
    ) -> tuple[Scope, str, str | None]:
        """Whose budget it is, and the first key of a rotated key's rotations. A budget of any of these keys is the
        newest one's."""
        if project is not None and key_id is not None:
            raise InvalidValue("a budget is a project's or a key's, not both's", "key_id")
        if project is not None:
            return "project", project_of(connection, tenant_id, project).id, None
        if key_id is None:
            return "tenant", tenant_id, None
        key = key_of(connection, key_id, self._actor)
        if key.tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        newest = keys.newest(connection, key)
        return "key", newest, None if key.shares_as == newest else key.shares_as

    def remove_budget(self, connection: sa.Connection, budget_id: str) -> Budget:
        revision.lock(connection)
        before = budgets.get(connection, budget_id)
        if before is None or not before.active or not self._actor.sees(before.tenant_id):
            raise RowNotFound(f"there is no budget {budget_id!r}")
        if before.scope == "tenant":
            self._check_unbound("a tenant's own budgets are")
        after = budgets.remove(connection, budget_id)
        self._record(connection, "budget.remove", budget_id, before.tenant_id, before=before, after=after)
        return after

    def create_webhook(self, connection: sa.Connection, *, url: str, tenant_id: str | None = None) -> MadeWebhook:
        """For the alerts of one tenant, or of all that the actor sees."""
        revision.lock(connection)
        tenant_id = visible_tenant(connection, self._actor, tenant_id)
        made = webhooks.create(connection, url=url, tenant_id=tenant_id)
        self._record(connection, "webhook.create", made.webhook.id, tenant_id, after=made.webhook.redacted())
        return made

    def remove_webhook(self, connection: sa.Connection, webhook_id: str) -> Webhook:
        revision.lock(connection)
        before = webhooks.get(connection, webhook_id)
        if before is None or not before.active or not self._actor.sees(before.tenant_id):
            raise RowNotFound(f"there is no webhook {webhook_id!r}")
        after = webhooks.remove(connection, webhook_id)
        shown = before.redacted(), after.redacted()
        self._record(connection, "webhook.remove", webhook_id, before.tenant_id, before=shown[0], after=shown[1])
        return after

    def create_export(self, connection: sa.Connection, spec: ExportSpec) -> ExportJob:
        """A gateway works it off."""
        revision.lock(connection)
        spec = msgspec.structs.replace(spec, tenant_id=visible_tenant(connection, self._actor, spec.tenant_id))
        job = jobs.create(connection, spec, actor=self._actor.id)
        self._record(connection, "export.create", job.id, spec.tenant_id, after=job)
        return job

    def end_export(self, connection: sa.Connection, export_id: str) -> ExportJob:
        """Cancelled, or its file given up."""
        revision.lock(connection)
        before = export_of(connection, export_id, self._actor)
        after = jobs.cancel(connection, export_id)
        self._record(connection, "export.end", export_id, before.tenant_id, before=before, after=after)
        return after

    def set_limits(
        self, connection: sa.Connection, *, tenant_id: str, key_id: str | None, change: LimitsChange
    ) -> OwnLimits:
        """Rate limits of the tenant's own, or of a key's of it."""
        revision.lock(connection)
        tenant_id = tenant_of(connection, tenant_id, self._actor).id
        if key_id is None:
            self._check_unbound("a tenant's own limits are")
        elif key_of(connection, key_id, self._actor).tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        scope: LimitScope = "tenant" if key_id is None else "key"
        subject_id = key_id or tenant_id
        before = overrides.of_subject(connection, subject_id)
        after = overrides.change(connection, scope=scope, subject_id=subject_id, tenant_id=tenant_id, change=change)
        self._record(connection, "limits.set", after.id, tenant_id, before=before, after=after)
        return after

    def remove_limits(self, connection: sa.Connection, limits_id: str) -> OwnLimits:
        """The configuration's hold again."""
        revision.lock(connection)
        before = overrides.get(connection, limits_id)
        if before is None or not self._actor.sees(before.tenant_id):
            raise RowNotFound(f"there are no limits {limits_id!r}")
        if before.scope == "tenant":
            self._check_unbound("a tenant's own limits are")
        after = overrides.remove(connection, limits_id)
        self._record(connection, "limits.remove", limits_id, after.tenant_id, before=before, after=after)
        return after

    def _check_subject(
        self, connection: sa.Connection, kind: SubjectKind, subject: str, param: str = "subject"
    ) -> None:
        """A base model by its name, an adapter by its id."""
        if kind == "model" and subject not in {one.name for one in base_models.list_models(connection, self._config)}:
            raise RowNotFound(f"there is no base model {subject!r}", param)
        if kind == "adapter" and subject not in {row.id for row in adapters.list_adapters(connection)}:
            raise RowNotFound(f"there is no adapter {subject!r}", param)


def _check_default(default_max_tokens: int | None) -> None:
    if default_max_tokens is not None and not 1 <= default_max_tokens <= REQUEST_TOKENS_MAX:
        raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "default_max_tokens")


def export_of(connection: sa.Connection, export_id: str, actor: Actor) -> ExportJob:
    """Of those that `actor` sees. Raises RowNotFound."""
    job = jobs.get(connection, export_id)
    if not actor.sees(job.tenant_id):
        raise RowNotFound(f"there is no export {export_id!r}")
    return job


def budget_state(connection: sa.Connection, budget: Budget) -> BudgetState:
    """An active budget in its present window."""
    states = budgets.states(connection, scope_id=budget.scope_id)
    return next(state for state in states if state.budget.id == budget.id)
