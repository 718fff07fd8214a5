"""Making and changing tenants and their projects."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from billing.accounts import tenants
from billing.accounts.tenants import Project, Tenant
from billing.clock import database_now
from billing.errors import ArgumentChecks, InvalidValue, NotPossibleYet, RowNotFound
from billing.ids import new_id
from gateway.access import keys
from gateway.admin import erasure_file
from gateway.admin.erasure import erase as erase_rows
from gateway.admin.erasure_file import Erasure
from gateway.admin.writes import Actor, Writes
from gateway.config.networks import checked_networks
from gateway.files.rows import files_of_key
from gateway.stored.texts import delete_text_key
from gateway.tables import erasures


class TenantWrites:
    """Writes of operators without a tenant only."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(
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
        self._writes.lock(connection)
        self._writes.check_operator("tenants")
        name = slug if name is None else name
        faults = ArgumentChecks()
        faults.note(
            tenants.check_new,
            connection,
            slug,
            name,
            tier,
            currency,
            default_max_tokens,
            share_weight,
            time_zone,
        )
        faults.note(self._writes.check_tier, tier)
        faults.raise_all()
        tenant = tenants.create_tenant(
            connection,
            slug=slug,
            name=name,
            tier=tier,
            currency=currency,
            default_max_tokens=default_max_tokens,
            share_weight=share_weight,
            time_zone=time_zone,
        )
        self._writes.record_line(connection, "tenant.create", tenant.id, tenant.id, after=tenant)
        return tenant

    def update(
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
        store_responses_s: int | msgspec.UnsetType | None = msgspec.UNSET,
        allowed_ips: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
        on_budget: tenants.OnBudget | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Tenant:
        """Change the fields that are given. Keys of a suspended tenant are refused. `store_responses_s` None also makes
        the responses unreadable that are stored already."""
        self._writes.lock(connection)
        before = self._writes.tenant(connection, tenant_id)
        self._writes.check_operator("tenants")
        if tier is not None:
            self._writes.check_tier(tier)
        if status == "active" and _is_erased(connection, before.id):
            raise InvalidValue("an erased tenant is not activated again: create a new one", "status")
        if status == "active" and before.archived_at is not None:
            raise InvalidValue("an archived tenant is not activated: restore it first", "status")
        after = tenants.update_tenant(
            connection,
            before.id,
            name=name,
            tier=tier,
            default_max_tokens=default_max_tokens,
            share_weight=share_weight,
            time_zone=time_zone,
            cheapest=cheapest,
            store_responses_s=store_responses_s,
            allowed_ips=_checked_ips(allowed_ips),
            on_budget=on_budget,
        )
        if after.store_responses_s is None and before.store_responses_s is not None:
            if count := files_of_key(connection, after.id):
                raise NotPossibleYet(
                    f"the tenant has {count} files, encrypted with the key that 'off' deletes; delete the files with a "
                    "key of the tenant, or wait until they expire"
                )
            delete_text_key(connection, after.id)
        if status is not None:
            change = tenants.suspend if status == "suspended" else tenants.resume
            after = change(connection, before.id)
        self._writes.record_line(connection, "tenant.update", after.id, after.id, before=before, after=after)
        return after

    def archive(self, connection: sa.Connection, tenant_id: str) -> Tenant:
        """Refuse the tenant's keys from now on, and leave it out of lists. The tenant's slug and books remain, and its
        open periods are closed as before. Without effect on an archived tenant."""
        self._writes.lock(connection)
        before = self._writes.tenant(connection, tenant_id)
        self._writes.check_operator("tenants")
        if before.archived_at is not None:
            return before
        after = tenants.archive(connection, before.id)
        self._writes.record_line(connection, "tenant.archive", after.id, after.id, before=before, after=after)
        return after

    def restore(self, connection: sa.Connection, tenant_id: str) -> Tenant:
        """End the archiving: the tenant is active again. Raises InvalidValue for an erased tenant."""
        self._writes.lock(connection)
        before = self._writes.tenant(connection, tenant_id)
        self._writes.check_operator("tenants")
        if _is_erased(connection, before.id):
            raise InvalidValue("an erased tenant is not activated again: create a new one", "tenant")
        if before.archived_at is None:
            return before
        after = tenants.restore(connection, before.id)
        self._writes.record_line(connection, "tenant.restore", after.id, after.id, before=before, after=after)
        return after

    def erase(self, connection: sa.Connection, tenant_id: str, *, confirm: str) -> Erasure:
        """Erase names and personal data of a tenant permanently; `confirm` must be its slug. The erasure is in the
        configuration's `erasures_file` before it is in the database. Raises InvalidValue, ErasuresUnreadable,
        OSError."""
        self._writes.lock(connection)
        self._writes.check_operator("tenants")
        before = self._writes.tenant(connection, tenant_id)
        if confirm != before.slug:
            raise InvalidValue(f"is {confirm!r}; it must be the slug of the tenant, {before.slug!r}", "confirm")
        if _is_erased(connection, before.id):
            raise InvalidValue("the tenant is erased already", "tenant")
        erasure = Erasure(new_id("era"), before.id, database_now(connection))
        erasure_file.append_erasures(self._writes.config.erasures_file, [erasure])
        self.replay_erasure(connection, erasure.id, erasure.tenant_id, erasure.at)
        return erasure

    def replay_erasure(self, connection: sa.Connection, erasure_id: str, tenant_id: str, at: int) -> None:
        """Erase again, in a database restored from a backup of before the erasure; it may lack the tenant."""
        self._writes.lock(connection)
        self._writes.check_operator("tenants")
        erase_rows(connection, erasure_id, tenant_id, at)
        self._writes.record_line(connection, "tenant.erase", tenant_id, tenant_id, after={"erasure": erasure_id})


class ProjectWrites:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(
        self, connection: sa.Connection, *, tenant_id: str, name: str, default_max_tokens: int | None = None
    ) -> Project:
        self._writes.lock(connection)
        owner = self._writes.tenant(connection, tenant_id).id
        project = tenants.create_project(connection, tenant_id=owner, name=name, default_max_tokens=default_max_tokens)
        return self._writes.record(connection, "project.create", None, project)

    def update(
        self,
        connection: sa.Connection,
        project_id: str,
        *,
        name: str | None = None,
        default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Project:
        """Change the fields that are given."""
        self._writes.lock(connection)
        before = seen_project(connection, project_id, self._writes.actor)
        after = tenants.update_project(connection, project_id, name=name, default_max_tokens=default_max_tokens)
        return self._writes.record(connection, "project.update", before, after)

    def archive(self, connection: sa.Connection, project_id: str) -> Project:
        """Leave the project out of lists; no key can be created in it. Without effect on an archived project. Raises
        NotPossibleYet while it has a usable key, InvalidValue for the default project."""
        self._writes.lock(connection)
        before = seen_project(connection, project_id, self._writes.actor)
        if before.archived_at is not None:
            return before
        if usable := keys.count_usable(connection, before.tenant_id, before.id):
            raise NotPossibleYet(f"the project has {usable} usable keys: revoke them, or move them to another project")
        after = tenants.set_archived(connection, before, True)
        return self._writes.record(connection, "project.archive", before, after)

    def restore(self, connection: sa.Connection, project_id: str) -> Project:
        """End the archiving. Without effect on a project that is not archived."""
        self._writes.lock(connection)
        before = seen_project(connection, project_id, self._writes.actor)
        if before.archived_at is None:
            return before
        after = tenants.set_archived(connection, before, False)
        return self._writes.record(connection, "project.restore", before, after)


def seen_project(connection: sa.Connection, project_id: str, actor: Actor) -> Project:
    """A project by its id. Raises RowNotFound, also for a project that `actor` does not see."""
    found = tenants.get_project(connection, project_id)
    if found is None or not actor.sees(found.tenant_id):
        raise RowNotFound(f"there is no project {project_id!r}", "project_id")
    return found


def _is_erased(connection: sa.Connection, tenant_id: str) -> bool:
    return connection.execute(sa.select(erasures.c.id).where(erasures.c.tenant_id == tenant_id)).first() is not None


def _checked_ips(texts: Sequence[str] | msgspec.UnsetType | None) -> list[str] | msgspec.UnsetType | None:
    if texts is None or texts is msgspec.UNSET:
        return texts
    try:
        return checked_networks(texts)
    except ValueError as error:
        raise InvalidValue(str(error), "allowed_ips") from None
