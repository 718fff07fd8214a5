"""Shared by all administrative writes: their actor, the checks of its rights, and the audit line of each change.

It must never know what one write changes.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.accounts import tenants
from billing.accounts.prices import SubjectKind
from billing.accounts.tenants import Project, Tenant
from billing.clock import SECOND, database_now
from billing.errors import InvalidValue, RowNotFound
from billing.revision import Change
from gateway.access import audit_log, keys, people, roles
from gateway.access.keys import Key
from gateway.access.roles import Role
from gateway.access.write_replays import IdempotentWrite
from gateway.admin.refusals import ActorKeyEnded, NotPermitted
from gateway.catalog import adapters, base_models
from gateway.config.file import Config


class Actor(msgspec.Struct, frozen=True):
    """The actor of reads and writes: a key or a person in a session, with the request that it made, or a user of the
    host. An actor with a `tenant_id` sees the rows of this tenant only."""

    id: str
    request_id: str | None = None
    role: Role = "owner"
    tenant_id: str | None = None

    @property
    def is_key(self) -> bool:
        return self.id.startswith("key_")

    @property
    def is_person(self) -> bool:
        return people.is_person(self.id)

    def sees(self, tenant_id: str | None) -> bool:
        """Whether the actor sees rows of this tenant (None: the operator's rows)."""
        return self.tenant_id is None or tenant_id == self.tenant_id


class TenantRow(Protocol):
    """A row of a tenant (None: of the operator), as audit lines name it."""

    @property
    def id(self) -> str: ...
    @property
    def tenant_id(self) -> str | None: ...


Row = TypeVar("Row", bound=TenantRow)


class Writes:
    """The configuration and the actor of some writes, and what each write needs of them.

    Every write gets the connection of a write transaction, and raises one of `refusals.REFUSALS` with nothing changed.
    A write first locks the revision's row, so that administrative writes are serialised on every database: no other
    write can change the rows that a write has checked before it commits."""

    def __init__(self, config: Config, actor: Actor, idempotent: IdempotentWrite | None = None) -> None:
        """`idempotent`: of the request that writes, if it has an Idempotency-Key."""
        self.config = config
        self.actor = actor
        self._idempotent = idempotent

    def lock(self, connection: sa.Connection) -> None:
        """Begin a write that raises the revision later, once it knows which tenant it concerns."""
        revision.lock(connection)
        self._check_first(connection)

    def bump(self, connection: sa.Connection, kind: str) -> None:
        """Begin a write of this kind of row of `revision_log`: gateways reload what such rows concern."""
        revision.bump(connection, Change(kind))
        self._check_first(connection)

    def _check_first(self, connection: sa.Connection) -> None:
        """Raises as `IdempotentWrite.check_first`."""
        if self._idempotent is not None:
            self._idempotent.check_first(connection)

    def record(self, connection: sa.Connection, action: str, before: Row | None, after: Row) -> Row:
        """Write the audit line of a changed row, and return the row."""
        self.record_line(connection, action, after.id, after.tenant_id, before=before, after=after)
        return after

    def record_line(
        self,
        connection: sa.Connection,
        action: str,
        object_id: str,
        tenant_id: str | None = None,
        *,
        before: Any = None,
        after: Any = None,
    ) -> None:
        """Write an audit line. Raises ActorKeyEnded; RowNotFound for a row that the actor does not see; as
        `IdempotentWrite.begin_write`."""
        # A slow request may outlive its key. The revision's row is locked, so every earlier revocation is visible here.
        if self.actor.is_key and not keys.is_usable(connection, self.actor.id):
            raise ActorKeyEnded("the key was revoked or has expired")
        if self.actor.is_person and not people.usable(connection, [self.actor.id]):
            raise ActorKeyEnded("the person has no session or no role any more")
        # Each write should check this itself, with a message about its own rows; this check refuses a write that does
        # not.
        if not self.actor.sees(tenant_id):
            raise RowNotFound(f"there is no {object_id!r}")
        if self._idempotent is not None:
            self._idempotent.begin_write(connection, tenant_id)
        audit_log.add_audit_line(
            connection,
            actor=self.actor.id,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
            before=before,
            after=after,
            request_id=self.actor.request_id,
        )

    def check_operator(self, what: str) -> None:
        """Check that the actor belongs to no tenant. Raises NotPermitted."""
        if self.actor.tenant_id is not None:
            raise NotPermitted(f"The role {self.actor.role} may not do this: only an operator changes {what}.")

    def check_role(self, role: Role | None) -> None:
        """Check that the actor may make, change, rotate or end a key of this role: a role of its own rank or lower.
        Raises NotPermitted."""
        if role is not None and not roles.may_grant(self.actor.role, role):
            raise NotPermitted(f"The role {self.actor.role} may not make, change or end a key of the role {role}.")

    def check_expiry(self, connection: sa.Connection, expires_at: int | None) -> None:
        """Check that an admin key does not outlive the key that makes it, in a request or in a session. `expires_at` in
        Unix seconds. Raises InvalidValue."""
        own = keys.get_key(connection, self.actor.id) if self.actor.is_key else None
        if own is None or own.expires_at is None:
            return
        if own.expires_at * SECOND <= database_now(connection):
            return  # the key expired while the request arrived: `record_line` refuses the write
        if expires_at is None or expires_at > own.expires_at:
            raise InvalidValue(
                f"your key expires at {own.expires_at} (Unix seconds): an admin key that it makes or rotates must "
                "expire then or earlier",
                "expires_at",
            )

    def check_tier(self, tier: str, param: str = "tier") -> None:
        """Raises InvalidValue for a tier that the configuration lacks."""
        if self.config.tier(tier) is None:
            names = ", ".join(known.name for known in self.config.tiers)
            raise InvalidValue(f"there is no tier {tier!r}; there are {names}", param)

    def check_subject(self, connection: sa.Connection, kind: SubjectKind, subject: str, param: str = "subject") -> None:
        """Check that a base model of this name, or an adapter of this id, exists. Raises RowNotFound."""
        if kind == "model" and subject not in {m.name for m in base_models.list_models(connection, self.config)}:
            raise RowNotFound(f"there is no base model {subject!r}", param)
        if kind == "adapter" and subject not in {row.id for row in adapters.list_adapters(connection)}:
            raise RowNotFound(f"there is no adapter {subject!r}", param)

    def tenant(self, connection: sa.Connection, tenant: str) -> Tenant:
        """A tenant by id or slug. Raises RowNotFound, also for a tenant that the actor does not see."""
        return tenant_of(connection, tenant, self.actor)

    def visible_tenant(self, connection: sa.Connection, tenant: str | None) -> str | None:
        """As the function `visible_tenant`, for this actor."""
        return visible_tenant(connection, self.actor, tenant)


def tenant_of(connection: sa.Connection, tenant: str, actor: Actor | None = None) -> Tenant:
    """A tenant by id or slug. Raises RowNotFound, also for a tenant that `actor` does not see."""
    found = None
    if tenant.isascii() and tenant.isprintable():  # PostgreSQL refuses a query with a NUL
        found = tenants.get_tenant(connection, tenant) or tenants.by_slug(connection, tenant)
    if found is None or (actor is not None and not actor.sees(found.id)):
        raise RowNotFound(f"there is no tenant {tenant!r}", "tenant")
    return found


def visible_tenant(connection: sa.Connection, actor: Actor, tenant: str | None) -> str | None:
    """The id of the tenant that has this id or slug; without one, the actor's own tenant, or None (all tenants) for an
    operator. Raises RowNotFound."""
    return actor.tenant_id if tenant is None else tenant_of(connection, tenant, actor).id


def project_of(connection: sa.Connection, tenant_id: str, project: str) -> Project:
    """A project of the tenant, by id or name. Raises RowNotFound."""
    found = tenants.project_of(connection, tenant_id, project)
    if found is None:
        raise RowNotFound(f"the tenant has no project {project!r}", "project")
    return found


def key_of(connection: sa.Connection, key_id: str, actor: Actor | None = None) -> Key:
    """A key by its id. Raises RowNotFound, also for a key that `actor` does not see."""
    found = keys.get_key(connection, key_id)
    if found is None or (actor is not None and not actor.sees(found.tenant_id)):
        raise RowNotFound(f"there is no key {key_id!r}", "key_id")
    return found
