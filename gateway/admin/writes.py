"""What every administrative write has in common: who makes it, and the line that it leaves in the audit log.

It must never know what any one of them changes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing.accounts import tenants
from billing.accounts.tenants import Project, Tenant
from billing.clock import SECOND, database_now
from billing.errors import InvalidValue, RowNotFound
from gateway.access import audit_log, keys, roles
from gateway.access.keys import Key
from gateway.access.roles import Role
from gateway.config.file import Config
from gateway.errors import InsufficientRole, InvalidApiKey


class Actor(msgspec.Struct, frozen=True):
    """Who asks or makes a change: a key's id and the request that it came with, or somebody on the host. With a
    `tenant_id`, nothing but this tenant's is there for it."""

    id: str
    request_id: str | None = None
    role: Role = "owner"
    tenant_id: str | None = None

    @property
    def is_key(self) -> bool:
        return self.id.startswith("key_")

    def sees(self, tenant_id: str | None) -> bool:
        """Whether what is this tenant's (None: the operator's) is there for it."""
        return self.tenant_id is None or tenant_id == self.tenant_id


class Writes:
    """Writes of one actor. Each is called with the connection of a write transaction, and raises BillingRefused or
    KeyRefused with nothing changed.

    Every write begins with the revision row, so administrative writes are one after another on every database: what
    one of them checks, no other changes meanwhile."""

    def __init__(self, config: Config, actor: Actor) -> None:
        self._config = config
        self._actor = actor

    def _check_tier(self, tier: str, param: str = "tier") -> None:
        if self._config.tier(tier) is None:
            there = ", ".join(one.name for one in self._config.tiers)
            raise InvalidValue(f"there is no tier {tier!r}; there are {there}", param)

    def _record(
        self,
        connection: sa.Connection,
        action: str,
        object_id: str,
        tenant_id: str | None = None,
        *,
        before: Any = None,
        after: Any = None,
    ) -> None:
        # A slow request may outlive its key. The revision row is locked by now: who was revoked before is seen to be.
        if self._actor.is_key and not keys.is_usable(connection, self._actor.id):
            raise InvalidApiKey()
        # Each write has looked already, to say it as of what is not there. None that forgets gets through.
        if not self._actor.sees(tenant_id):
            raise RowNotFound(f"there is no {object_id!r}")
        audit_log.record(
            connection,
            actor=self._actor.id,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
            before=before,
            after=after,
            request_id=self._actor.request_id,
        )

    def _check_grant(self, key: Role | None) -> None:
        """Nobody makes, changes, rotates or ends a key above his own. Raises InsufficientRole."""
        if key is not None and not roles.may_grant(self._actor.role, key):
            raise InsufficientRole(f"The role {self._actor.role} may not make, change or end a key of the role {key}.")

    def _check_expiry(self, connection: sa.Connection, expires_at: int | None) -> None:
        """An admin key that the actor's key or its session makes must not outlive that key. Raises InvalidValue."""
        own = keys.get(connection, self._actor.id) if self._actor.is_key else None
        if own is None or own.expires_at is None:
            return
        if own.expires_at * SECOND <= database_now(connection):
            return  # it expired while the request arrived: `_record` refuses the key itself
        if expires_at is None or expires_at > own.expires_at:
            raise InvalidValue(
                f"your key expires at {own.expires_at} (Unix seconds): an admin key that it makes or rotates must "
                "expire then or earlier",
                "expires_at",
            )

    def _check_unbound(self, what: str) -> None:
        """That whoever it is belongs to no tenant. Raises InsufficientRole."""
        if self._actor.tenant_id is not None:
            raise InsufficientRole(f"The role {self._actor.role} lacks this: {what} the operator's to decide.")


def tenant_of(connection: sa.Connection, tenant: str, actor: Actor | None = None) -> Tenant:
    """By id, or by slug; of those that `actor` sees. Raises RowNotFound."""
    found = None
    if tenant.isascii() and tenant.isprintable():  # PostgreSQL cannot even be asked for a NUL
        found = tenants.get(connection, tenant) or tenants.by_slug(connection, tenant)
    if found is None or (actor is not None and not actor.sees(found.id)):
        raise RowNotFound(f"there is no tenant {tenant!r}", "tenant")
    return found


def visible_tenant(connection: sa.Connection, actor: Actor, tenant: str | None) -> str | None:
    """The id of the tenant that is asked for by id or slug; without one, `actor`'s own, and None of all. Raises
    RowNotFound."""
    return actor.tenant_id if tenant is None else tenant_of(connection, tenant, actor).id


def project_of(connection: sa.Connection, tenant_id: str, project: str) -> Project:
    """A tenant's, by id or by name. Raises RowNotFound."""
    found = tenants.project_of(connection, tenant_id, project)
    if found is None:
        raise RowNotFound(f"the tenant has no project {project!r}", "project")
    return found


def key_of(connection: sa.Connection, key_id: str, actor: Actor | None = None) -> Key:
    """Of those that `actor` sees. Raises RowNotFound."""
    found = keys.get(connection, key_id)
    if found is None or (actor is not None and not actor.sees(found.tenant_id)):
        raise RowNotFound(f"there is no key {key_id!r}", "key_id")
    return found
