"""Which models a tenant may call: the base models of the configuration and the adapters of the registry.

`Registry` answers from memory, reloaded when the revision moved; the functions below it change the table. What a
tenant may not see does not exist for it. Nothing here knows the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from adapters.spec import BaseShape
from billing import clock, revision
from billing.database import Database
from billing.ids import new_id
from gateway.errors import ModelNotFound
from gateway.tables import adapters
from gateway.wire import ModelCard

NAME_CHARS_MAX = 200
OWNER = "laneway"  # `owned_by` of what belongs to no tenant


class AdapterNameTaken(ValueError):
    """The name already means something to those who would see this adapter."""


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the registry. `tenant_id` None: shared with all tenants. `created_at` in Unix seconds."""

    id: str
    tenant_id: str | None
    name: str
    base_model: str
    digest: str
    active: bool
    created_at: int


class Target(msgspec.Struct, frozen=True):
    """What a `model` in a request means for one tenant."""

    name: str  # as it was asked for
    model: str
    adapter: Adapter | None


class Registry:
    """The visible names, in memory."""

    def __init__(self, database: Database, models: dict[str, int]) -> None:
        """`models`: the base models' names and when each was made (Unix seconds)."""
        self._database = database
        self._models = models
        self._own: dict[tuple[str, str], Adapter] = {}  # by (tenant, name)
        self._shared: dict[str, Adapter] = {}

    async def reload(self) -> None:
        """Raises DatabaseUnavailable."""
        self.replace(await self._database.read(lambda connection: list_adapters(connection, active=True)))

    def replace(self, rows: Sequence[Adapter]) -> None:
        usable = [row for row in rows if row.active and row.base_model in self._models]
        self._own = {(row.tenant_id, row.name): row for row in usable if row.tenant_id is not None}
        self._shared = {row.name: row for row in usable if row.tenant_id is None}

    def resolve(self, tenant_id: str | None, name: str) -> Target:
        """Raises ModelNotFound, the same for a name that is another tenant's and for one that is nobody's."""
        if name in self._models:
            return Target(name, name, None)
        own = self._own.get((tenant_id, name)) if tenant_id is not None else None
        adapter = own or self._shared.get(name)
        if adapter is None:
            raise ModelNotFound(name)
        return Target(name, adapter.base_model, adapter)

    def visible(self, tenant_id: str | None) -> list[ModelCard]:
        """Base models, then the tenant's own adapters, then the shared ones it does not overrule, by name."""
        own = {name: row for (owner, name), row in self._own.items() if owner == tenant_id}
        names = [*self._models, *sorted(own), *sorted(self._shared.keys() - own.keys())]
        return [self.card(tenant_id, name) for name in names]

    def card(self, tenant_id: str | None, name: str) -> ModelCard:
        """Raises ModelNotFound."""
        adapter = self.resolve(tenant_id, name).adapter
        if adapter is None:
            return ModelCard(id=name, created=self._models[name], owned_by=OWNER)
        owner = adapter.tenant_id or OWNER
        return ModelCard(id=name, created=adapter.created_at, owned_by=owner, parent=adapter.base_model)

    def active(self) -> dict[str, str]:
        """Digest → base model of all that somebody may call."""
        rows = [*self._own.values(), *self._shared.values()]
        return {row.digest: row.base_model for row in rows}


def base_shape(model_dir: Path) -> BaseShape:
    """The shape that adapters of this base model must fit. Raises OSError or ValueError."""
    return BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))


def register(
    connection: sa.Connection,
    *,
    name: str,
    tenant_id: str | None,
    base_model: str,
    digest: str,
    taken: Sequence[str] = (),
) -> Adapter:
    """Give the stored adapter `digest` (adapters.store) a name. `taken`: the base models' names, which adapters may
    not have. Registering the same again returns what is there; another content under the name, or a name that was
    deactivated, replaces it. Raises AdapterNameTaken, ValueError."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"an adapter's name has 1 to {NAME_CHARS_MAX} characters")
    if name in taken:
        raise AdapterNameTaken(f"{name!r} is the name of a base model")
    owned = adapters.c.tenant_id.is_(None) if tenant_id is None else adapters.c.tenant_id == tenant_id
    found = connection.execute(sa.select(adapters).where(owned, adapters.c.name == name)).one_or_none()
    values = {"base_model": base_model, "digest": digest, "active": True}
    if found is None:
        adapter_id = new_id("ada")
        row = {"id": adapter_id, "tenant_id": tenant_id, "name": name, "created_at": clock.database_now(connection)}
        connection.execute(sa.insert(adapters).values(row | values))
    else:
        adapter_id = found.id
        if {key: getattr(found, key) for key in values} == values:
            return _adapter(found)
        connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(values))
    revision.bump(connection)
    return _adapter(connection.execute(sa.select(adapters).where(adapters.c.id == adapter_id)).one())


def deactivate(connection: sa.Connection, adapter_id: str) -> Adapter | None:
    """Nobody may call it from now on. None when there is no such adapter."""
    changed = connection.execute(sa.update(adapters).where(adapters.c.id == adapter_id).values(active=False))
    if changed.rowcount == 0:
        return None
    revision.bump(connection)
    return _adapter(connection.execute(sa.select(adapters).where(adapters.c.id == adapter_id)).one())


def list_adapters(connection: sa.Connection, *, active: bool | None = None) -> list[Adapter]:
    """All adapters by name and owner, or those that are active, or those that are not."""
    query = sa.select(adapters).order_by(adapters.c.name, adapters.c.id)
    if active is not None:
        query = query.where(adapters.c.active.is_(active))
    return [_adapter(row) for row in connection.execute(query)]


def _adapter(row: sa.Row[Any]) -> Adapter:
    values = dict(row._mapping)
    return Adapter(**values | {"created_at": values["created_at"] // clock.SECOND})
