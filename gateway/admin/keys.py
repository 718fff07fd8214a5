"""Making, changing, rotating and revoking keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from billing.accounts import budgets, tenants
from billing.accounts.prices import REQUEST_TOKENS_MAX
from billing.errors import ArgumentChecks, InvalidValue
from billing.texts import check_text
from gateway.access import keys
from gateway.access.keys import Key, Kind, MadeKey
from gateway.access.roles import TENANT_ADMIN, Role
from gateway.admin.writes import Writes, key_of, project_of


class KeyWrites:
    """An actor makes, changes and ends keys of its own role or a lower one."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def create(
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
        break_glass: bool = False,
        models: Sequence[str] | None = None,
        allowed_ips: Sequence[str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> MadeKey:
        """Make a key. `expires_at` in Unix seconds. Admin keys belong to the operator, except for those of the role
        tenant_admin. These and all other keys belong to a tenant, in `project` (id or name) or its default project.
        Without `role`, an admin key has the role of the actor."""
        self._writes.lock(connection)
        tenant_id = self._writes.visible_tenant(connection, tenant_id)
        role = self._checked_role(kind, role, tenant_id)
        faults = ArgumentChecks()
        faults.note(check_text, name, "name", "a key's name has", keys.NAME_CHARS_MAX)
        if tier is not None:
            faults.note(self._writes.check_tier, tier)
        faults.note(_check_default_tokens, default_max_tokens)
        faults.note(keys.check_limits, tenant_id, models, allowed_ips, tags)
        if kind == "admin":
            faults.note(self._writes.check_expiry, connection, expires_at)
        if tenant_id is not None:
            faults.note(self._check_quota, connection, tenant_id)
            faults.note(_open_project, connection, tenant_id, project or tenants.DEFAULT_PROJECT)
        faults.raise_all()
        project_id = None
        if tenant_id is not None:
            project_id = _open_project(connection, tenant_id, project or tenants.DEFAULT_PROJECT)
        made = keys.create_key(
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
            break_glass=break_glass,
            models=models,
            allowed_ips=allowed_ips,
            tags=tags,
        )
        self._writes.record(connection, "key.create", None, made.key)
        return made

    def update(
        self,
        connection: sa.Connection,
        key_id: str,
        *,
        project: str | None = None,
        default_max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET,
        break_glass: bool | None = None,
        models: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
        allowed_ips: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET,
        tags: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET,
    ) -> Key:
        """Change the fields that are given. From then on the key's requests count in the budgets of `project` (id or
        name), and have `tags`."""
        self._writes.lock(connection)
        before = self._changeable(connection, key_id)
        if default_max_tokens is not msgspec.UNSET:
            _check_default_tokens(default_max_tokens)
        project_id = None
        if project is not None:
            if before.tenant_id is None:
                raise InvalidValue("an admin key belongs to the operator, and to no project", "project")
            project_id = _open_project(connection, before.tenant_id, project)
        after = keys.update_key(
            connection,
            key_id,
            project_id=project_id,
            default_max_tokens=default_max_tokens,
            break_glass=break_glass,
            models=models,
            allowed_ips=allowed_ips,
            tags=tags,
        )
        return self._writes.record(connection, "key.update", before, after)

    def rotate(self, connection: sa.Connection, key_id: str, *, overlap_s: int) -> MadeKey:
        """Make a key that replaces this one. The new key has the budgets and rate limits of the old one; requests of
        both count in them until the old key ends, after `overlap_s`."""
        self._writes.lock(connection)
        before = self._changeable(connection, key_id)
        if overlap_s and before.tenant_id is not None:
            self._check_quota(connection, before.tenant_id)
        if before.kind == "admin":
            self._writes.check_expiry(connection, before.expires_at)  # the new key gets the same expiry
        made = keys.rotate(connection, key_id, overlap_s=overlap_s)
        self._writes.record(connection, "key.rotate", before, key_of(connection, key_id))
        self._writes.record(connection, "key.create", None, made.key)
        for old, new in budgets.hand_over(connection, key_id, made.key.id):
            self._writes.record(connection, "budget.move", old, new)
        return made

    def revoke(self, connection: sa.Connection, key_id: str) -> Key:
        self._writes.lock(connection)
        before = self._changeable(connection, key_id)
        return self._writes.record(connection, "key.revoke", before, keys.revoke(connection, key_id))

    def _changeable(self, connection: sa.Connection, key_id: str) -> Key:
        """A key that the actor may change. Raises RowNotFound, NotPermitted."""
        key = key_of(connection, key_id, self._writes.actor)
        self._writes.check_role(key.role)
        return key

    def _checked_role(self, kind: Kind, role: Role | None, tenant_id: str | None) -> Role | None:
        if kind != "admin":
            return role  # `keys.create_key` refuses a role of such a key
        role = role or self._writes.actor.role
        self._writes.check_role(role)
        if role != TENANT_ADMIN and tenant_id is not None:
            raise InvalidValue(f"an admin key of the role {role} is the operator's: it belongs to no tenant", "tenant")
        if role == TENANT_ADMIN and tenant_id is None:
            raise InvalidValue(f"a key of the role {TENANT_ADMIN} needs a tenant", "tenant")
        return role

    def _check_quota(self, connection: sa.Connection, tenant_id: str) -> None:
        """Raises InvalidValue when the tenant has administration.tenant_keys_max usable keys already."""
        limit = self._writes.config.administration.tenant_keys_max
        if keys.count_usable(connection, tenant_id) >= limit:
            raise InvalidValue(
                f"the tenant has {limit} keys that are neither revoked nor expired, which is the limit "
                "(administration.tenant_keys_max): revoke one first",
                "tenant",
            )


def _open_project(connection: sa.Connection, tenant_id: str, project: str) -> str:
    """The id of a project that takes keys. Raises RowNotFound, InvalidValue."""
    found = project_of(connection, tenant_id, project)
    if found.archived_at is not None:
        raise InvalidValue("the project is archived: it takes no key", "project")
    return found.id


def _check_default_tokens(default_max_tokens: int | None) -> None:
    if default_max_tokens is not None and not 1 <= default_max_tokens <= REQUEST_TOKENS_MAX:
        raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "default_max_tokens")
