"""Setting and removing the rate limits of single tenants and keys, and the quotas of tenants."""

from __future__ import annotations

import sqlalchemy as sa

from billing.errors import RowNotFound
from gateway.admin.writes import Writes, key_of
from gateway.limits import overrides
from gateway.limits.overrides import LimitsChange, OwnLimits
from gateway.limits.rates import Scope


class LimitWrites:
    """The limits of a tenant itself are changed by operators only; the limits of its keys by its administrators too."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def set(self, connection: sa.Connection, *, tenant_id: str, key_id: str | None, change: LimitsChange) -> OwnLimits:
        """Change the limits of a key of the tenant; without `key_id`, of the tenant."""
        self._writes.lock(connection)
        tenant_id = self._writes.tenant(connection, tenant_id).id
        if key_id is None:
            self._check_operator()
        elif key_of(connection, key_id, self._writes.actor).tenant_id != tenant_id:
            raise RowNotFound(f"the tenant has no key {key_id!r}", "key_id")
        scope: Scope = "tenant" if key_id is None else "key"
        subject_id = key_id or tenant_id
        before = overrides.of_subject(connection, subject_id)
        after = overrides.change_own_limits(
            connection, scope=scope, subject_id=subject_id, tenant_id=tenant_id, change=change
        )
        return self._writes.record(connection, "limits.set", before, after)

    def remove(self, connection: sa.Connection, limits_id: str) -> OwnLimits:
        """Apply the limits of the configuration again."""
        self._writes.lock(connection)
        before = overrides.get_own_limits(connection, limits_id)
        if before is None or not self._writes.actor.sees(before.tenant_id):
            raise RowNotFound(f"there are no limits {limits_id!r}")
        if before.scope == "tenant":
            self._check_operator()
        return self._writes.record(
            connection, "limits.remove", before, overrides.remove_own_limits(connection, limits_id)
        )

    def _check_operator(self) -> None:
        self._writes.check_operator("a tenant's own limits")
