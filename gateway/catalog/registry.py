"""The names that each tenant may call: served base models and registered adapters.

The registry is in memory and reloaded when the revision has changed; `catalog/adapters.py` writes the tables. A name
that a tenant may not see is refused like an unknown name.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import sqlalchemy as sa

from adapters.files.spec import BaseShape
from billing.database import Database
from gateway.catalog.adapters import EVERYONE, Adapter, list_adapters, live_digests, live_versions
from gateway.catalog.base_models import BaseModel
from gateway.catalog.capabilities import EmbeddingProperties, ModelCapabilities
from gateway.config.settings import split_version
from gateway.errors import ModelNotFound, ModelUnavailable

OWNER = "laneway"  # `owned_by` of models and adapters without an owning tenant


class ModelTarget(msgspec.Struct, frozen=True):
    """The base model and adapter that serve a `model` of a request. They serve it to its end, also if another version
    is promoted meanwhile."""

    name: str  # as in the request
    model: str
    adapter: Adapter | None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    parent: str | None = None  # an adapter's base model
    # Capabilities that a request may use; of an alias, with any of its models. Null while the base model's files are
    # unread.
    capabilities: ModelCapabilities | None = None
    max_model_len: int | None = None  # tokens of the longest context; null while the engine is unavailable
    embedding: EmbeddingProperties | None = None  # null for a model that makes no embeddings, and without an engine


class ServedName(msgspec.Struct, frozen=True):
    """A base model under its name. `created` in Unix seconds. `refused`: why the model cannot be served; None: it
    can."""

    model: BaseModel
    created: int
    refused: str | None = None


class Registry:
    """The names of base models and adapters, by the tenants that may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._models: dict[str, ServedName] = {}
        self._rows: Sequence[Adapter] = ()
        self._own: dict[tuple[str, str], Adapter] = {}  # by (tenant, name)
        self._shared: dict[tuple[str, str], Adapter] = {}  # by (tenant it is shared with, name)
        self._everyones: dict[str, Adapter] = {}
        self._kept: frozenset[str] = frozenset()
        self._versions: Mapping[tuple[str, int], str] = {}

    async def reload(self) -> None:
        """Raises DatabaseUnavailable."""

        def query(connection: sa.Connection) -> tuple[list[Adapter], frozenset[str], dict[tuple[str, int], str]]:
            rows = list_adapters(connection, active=True)
            return rows, frozenset(live_digests(connection)), live_versions(connection)

        self.replace(*await self._database.read(query))

    def replace(
        self,
        rows: Sequence[Adapter],
        kept: frozenset[str] = frozenset(),
        versions: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        """`kept`: digests of every version that may still be promoted. `versions`: digests by adapter's id and
        version."""
        self._rows = rows
        self._kept = kept
        self._versions = versions or {}
        self._index()

    def serve(self, models: Iterable[ServedName]) -> None:
        """Replace the base models. Adapters of other base models cannot be called."""
        self._models = {served.model.name: served for served in models}
        self._index()

    def _index(self) -> None:
        usable = [row for row in self._rows if row.active and row.base_model in self._models]
        self._own = {(row.tenant_id, row.name): row for row in usable if row.tenant_id is not None}
        self._shared = {(tenant, row.name): row for row in usable for tenant in row.shared if tenant != EVERYONE}
        self._everyones = {row.name: row for row in usable if EVERYONE in row.shared}

    def resolve(self, tenant_id: str | None, name: str) -> ModelTarget:
        """The target of a name. Search order: the tenant's own adapter, a base model, an adapter shared with the
        tenant, an adapter shared with everyone; a target whose base model the tenant may not call is skipped. Raises
        ModelNotFound, with the same message for another tenant's name and for an unknown name; ModelUnavailable for a
        model that cannot be loaded."""
        target = self.find(tenant_id, name)
        if self.is_refused(target.model):
            raise ModelUnavailable(name)
        return target

    def is_refused(self, model: str) -> bool:
        """Whether a base model cannot serve requests: it cannot be loaded, or was removed since its name was found."""
        served = self._models.get(model)
        return served is None or served.refused is not None

    def find(self, tenant_id: str | None, name: str) -> ModelTarget:
        """As `resolve`, including models that cannot be loaded. Raises ModelNotFound."""
        for model, adapter in self._meanings(tenant_id, name):
            base = self._models.get(model)
            if base is not None and base.model.allows(tenant_id):
                return ModelTarget(name, model, adapter)
        version = self._version(tenant_id, name)
        if version is None:
            raise ModelNotFound(name)
        return version

    def _version(self, tenant_id: str | None, name: str) -> ModelTarget | None:
        """The target of NAME@NUMBER: this version of an adapter that the tenant may call, served or not."""
        plain, number = split_version(name)
        if number is None:
            return None
        with contextlib.suppress(ModelNotFound):
            target = self.find(tenant_id, plain)
            digest = None if target.adapter is None else self._versions.get((target.adapter.id, number))
            if target.adapter is not None and digest is not None:
                adapter = msgspec.structs.replace(target.adapter, digest=digest, version=number)
                return ModelTarget(name, target.model, adapter)
        return None

    def _meanings(self, tenant_id: str | None, name: str) -> Iterator[tuple[str, Adapter | None]]:
        """Base model (which may be unknown) and adapter of each meaning of the name, in the order of `resolve`."""
        key = (tenant_id or "", name)
        if (own := self._own.get(key)) is not None:
            yield own.base_model, own
        yield name, None
        for adapter in (self._shared.get(key), self._everyones.get(name)):
            if adapter is not None:
                yield adapter.base_model, adapter

    def visible(self, tenant_id: str | None) -> list[ModelCard]:
        """The cards of all names that the tenant can call now: base models, own adapters (which hide base models of the
        same name), adapters shared with the tenant."""
        own = {name for owner, name in self._own if owner == tenant_id}
        shared = {name for tenant, name in self._shared if tenant == tenant_id} | self._everyones.keys()
        models = [name for name, served in self._models.items() if name not in own and served.model.allows(tenant_id)]
        cards = []
        for name in dict.fromkeys([*models, *sorted(own), *sorted(shared)]):
            with contextlib.suppress(ModelNotFound, ModelUnavailable):
                cards.append(self.card(tenant_id, name))
        return cards

    def card(self, tenant_id: str | None, name: str) -> ModelCard:
        """Raises ModelNotFound, ModelUnavailable."""
        target = self.resolve(tenant_id, name)
        adapter = target.adapter
        if adapter is None:
            return ModelCard(id=name, created=self._models[name].created, owned_by=OWNER)
        owner = adapter.tenant_id or OWNER
        return ModelCard(id=name, created=adapter.created_at, owned_by=owner, parent=adapter.base_model)

    def base(self, name: str) -> BaseModel | None:
        """The base model of that name, whichever tenants may call it; None: no active model has the name."""
        served = self._models.get(name)
        return None if served is None else served.model

    def created(self, model: str) -> int:
        """When a base model was created, in Unix seconds. Raises KeyError for an unknown name."""
        return self._models[model].created

    def active(self) -> dict[str, str]:
        """Digest → base model of all callable adapters."""
        return {row.digest: row.base_model for row in self._callable()}

    def names(self) -> dict[str, str]:
        """Digest → name of all callable adapters; a content with several names has an arbitrary one of them."""
        return {row.digest: row.name for row in self._callable()}

    def open_names(self) -> dict[str, str]:
        """Digest → name of the adapters that every tenant may call: shared with all, and of a base model for all."""
        bases = {name for name, served in self._models.items() if served.model.tenants is None}
        return {row.digest: row.name for row in self._everyones.values() if row.base_model in bases}

    def pinned(self) -> set[str]:
        """Digests of callable adapters that an operator pinned."""
        return {row.digest for row in self._callable() if row.pinned}

    def _callable(self) -> list[Adapter]:
        return [*self._own.values(), *self._shared.values(), *self._everyones.values()]

    def kept(self) -> frozenset[str]:
        """Digests of all versions that are served or can still be promoted."""
        return self._kept


def base_shape(model_dir: Path) -> BaseShape:
    """The shape that adapters of this base model must fit. Raises OSError or ValueError."""
    return BaseShape.from_config(json.loads((model_dir / "config.json").read_bytes()))
