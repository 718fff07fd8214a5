"""What every administrative write has in common: who makes it, and the line that it leaves in the audit log.

It must never know what any one of them changes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from billing import tenants
from billing.errors import InvalidValue, NotFound
from billing.tenants import Tenant
from gateway import audit, keys
from gateway.config import Config
from gateway.errors import InvalidApiKey


class Actor(msgspec.Struct, frozen=True):
    """Who makes a change: a key's id and the request that it came with, or somebody on the host."""

    id: str
    request_id: str | None = None

    @property
    def is_key(self) -> bool:
        return self.id.startswith("key_")


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
        audit.record(
            connection,
            actor=self._actor.id,
            action=action,
            object_id=object_id,
            tenant_id=tenant_id,
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
