"""Adding, changing, removing and restoring base models.

The files and the engine are checked before the write (`model_rollout`); the write makes the model known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing.accounts import prices
from billing.accounts.prices import REQUEST_TOKENS_MAX
from billing.clock import database_now
from billing.errors import AlreadyExists, InvalidValue, NotPossibleYet
from gateway.admin.writes import Writes
from gateway.catalog import adapters, base_models
from gateway.catalog.base_models import (
    FALLBACKS_MAX,
    MODELS_MAX,
    TENANTS_MAX,
    BaseModel,
    Dtype,
    KvDtype,
    ModelChange,
    Quantize,
)

CONTEXT_TOKENS_MAX = 16_777_216
# The values of a row that changes nothing of its model, and the columns that are null if laneway.toml names the model's
# files.
UNCHANGED: dict[str, Any] = {
    "active": True, "pinned": None, "tenants": None, "fallbacks": None, "max_tokens_default": None,
}  # fmt: skip
CONFIGURED_FILES: dict[str, Any] = dict.fromkeys(("path", "dtype", "quantize", "kv_dtype", "context_tokens"))


class NewModel(msgspec.Struct, frozen=True, kw_only=True):
    """A directory below gateway.models_dir, to be served as a base model. `dtype` None: that of the other models;
    `quantize` None: "none"; `kv_dtype` None: "auto"."""

    name: str
    path: str
    dtype: Dtype | None = None
    quantize: Quantize | None = None
    kv_dtype: KvDtype | None = None
    context_tokens: int | None = None
    change: ModelChange = ModelChange()


class ModelWrites:
    """Writes of operators without a tenant only. Every gateway and its engine apply a change within a second."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def check_addable(self, connection: sa.Connection, wanted: NewModel) -> BaseModel:
        """Check everything that `add_model` needs of the database, before the engine loads the model; return the model
        as it would be. Raises BillingRefused."""
        self._check_operator()
        base_models.check_name(wanted.name)
        if wanted.context_tokens is not None and not 2 <= wanted.context_tokens <= CONTEXT_TOKENS_MAX:
            raise InvalidValue(f"must be 2 to {CONTEXT_TOKENS_MAX}", "context_tokens")
        known = base_models.list_models(connection, self._writes.config)
        new = BaseModel(
            id=None,
            name=wanted.name,
            origin="added",
            path=str(base_models.directory_in(self._writes.config.models_dir, wanted.path)),
            directory=wanted.path,
            dtype=wanted.dtype or (known[0].dtype if known else "float32"),
            quantize=wanted.quantize or "none",
            kv_dtype=wanted.kv_dtype or "auto",
            context_tokens=wanted.context_tokens,
            pinned=wanted.change.pinned is True,
            tenants=None,
            fallbacks=(),
            max_tokens_default=None,
            active=True,
            created_at=None,
            changed_at=None,
        )
        before = next((model for model in known if model.name == wanted.name), None)
        _check_same(before, new)
        self._check_free(connection, wanted.name)
        if (before is None or not before.active) and sum(model.active for model in known) >= MODELS_MAX:
            raise InvalidValue(f"there are {MODELS_MAX} base models already, which is the limit", "name")
        self._check_price(connection, wanted.name)
        self._checked(connection, wanted.name, wanted.change)
        return new

    def add_model(self, connection: sa.Connection, wanted: NewModel) -> BaseModel:
        """Serve the model from now on. Of a model that was added already, only the given fields of `change` change."""
        self._writes.bump(connection, "models")
        new = self.check_addable(connection, wanted)
        before = self._find(connection, wanted.name)
        values = self._checked(connection, wanted.name, wanted.change).values()
        files: dict[str, Any] = {
            "path": wanted.path, "dtype": new.dtype, "quantize": new.quantize, "kv_dtype": new.kv_dtype,
            "context_tokens": new.context_tokens,
        }  # fmt: skip
        if before is None or not before.active:
            base_models.change_model_row(connection, wanted.name, **(UNCHANGED | files | values))
        elif values:
            base_models.change_model_row(connection, wanted.name, **values)
        return self._record(connection, "model.add", wanted.name, before)

    def update(self, connection: sa.Connection, name: str, change: ModelChange) -> BaseModel:
        """Change the fields that are given. Tenants by id or slug."""
        self._writes.bump(connection, "models")
        self._check_operator()
        before = base_models.model_named(connection, self._writes.config, name)
        values = self._checked(connection, name, change).values()
        if values:
            self._change(connection, before, values)
        return self._record(connection, "model.set", name, before)

    def remove(self, connection: sa.Connection, name: str) -> BaseModel:
        """Stop serving the model and its adapters to new requests; requests in flight finish. The last model cannot be
        removed: an engine serves at least one. Raises NotPossibleYet."""
        self._writes.bump(connection, "models")
        self._check_operator()
        before = base_models.model_named(connection, self._writes.config, name)
        if before.active:
            if len(base_models.active_models(connection, self._writes.config)) == 1:
                raise NotPossibleYet(f"{name!r} is the last base model that is served; add another one first", "model")
            self._change(connection, before, {"active": False})
        return self._record(connection, "model.remove", name, before)

    def check_restorable(self, connection: sa.Connection, name: str) -> BaseModel:
        """A model that was removed and can be served again, or that is served. Raises BillingRefused."""
        self._check_operator()
        model = base_models.model_named(connection, self._writes.config, name)
        if not model.active:
            self._check_free(connection, name)
            self._check_price(connection, name)
        return model

    def restore(self, connection: sa.Connection, name: str) -> BaseModel:
        """Serve a removed model and its adapters again, with the settings that it had."""
        self._writes.bump(connection, "models")
        before = self.check_restorable(connection, name)
        if not before.active:
            self._change(connection, before, {"active": True})
        return self._record(connection, "model.restore", name, before)

    def is_served(self, connection: sa.Connection, name: str) -> bool:
        return any(model.name == name for model in base_models.active_models(connection, self._writes.config))

    def _check_operator(self) -> None:
        self._writes.check_operator("base models")

    def _change(self, connection: sa.Connection, before: BaseModel, values: dict[str, Any]) -> None:
        """Change a row. If the model is in laneway.toml and was an added model before, the row's old files are
        cleared."""
        if before.origin == "config":
            values = (UNCHANGED if before.id is None else {}) | CONFIGURED_FILES | values
        base_models.change_model_row(connection, before.name, **values)

    def _find(self, connection: sa.Connection, name: str) -> BaseModel | None:
        found = base_models.list_models(connection, self._writes.config)
        return next((model for model in found if model.name == name), None)

    def _record(self, connection: sa.Connection, action: str, name: str, before: BaseModel | None) -> BaseModel:
        """The model after the write, with an audit line if anything changed."""
        after = base_models.model_named(connection, self._writes.config, name)
        if before is None or _comparable(after) != _comparable(before):
            self._writes.record_line(connection, action, after.id or name, before=before, after=after)
        return after

    def _check_free(self, connection: sa.Connection, name: str) -> None:
        """Check that the name is no alias and no adapter of the operator's. A tenant's own adapter of this name does
        not prevent the model, and the tenant keeps calling its adapter by it. Raises AlreadyExists."""
        meaning = base_models.taken_names(connection, self._writes.config).get(name)
        if meaning == "an alias":
            raise AlreadyExists(f"{name!r} is the name of an alias", "name")
        if name in adapters.operators_names(connection):
            raise AlreadyExists(f"{name!r} is the name of an adapter", "name")

    def _check_price(self, connection: sa.Connection, name: str) -> None:
        """Check that a price is in force: without one, every request of the model would be refused. Raises
        InvalidValue."""
        now = database_now(connection)
        found = prices.list_price_versions(connection, subject_kind="model", subject=name)
        if not any(version.effective_from <= now for version in found):
            raise InvalidValue(
                f"{name!r} has no price in force, so nobody could call it; make one first with: "
                f"laneway prices publish {name} --ahead --input AMOUNT --output AMOUNT",
                "name",
            )

    def _checked(self, connection: sa.Connection, name: str, change: ModelChange) -> ModelChange:
        """The change with the tenants' ids. Raises BillingRefused."""
        values = {field: value for field, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
        if (tenants := values.get("tenants")) is not None:
            values["tenants"] = self._tenant_ids(connection, tenants)
        if "fallbacks" in values:
            values["fallbacks"] = self._checked_fallbacks(connection, name, values["fallbacks"])
        default = values.get("max_tokens_default")
        if default is not None and not 1 <= default <= REQUEST_TOKENS_MAX:
            raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "max_tokens_default")
        return ModelChange(**values)

    def _tenant_ids(self, connection: sa.Connection, tenants: Sequence[str]) -> list[str]:
        if not 1 <= len(tenants) <= TENANTS_MAX:
            raise InvalidValue(f"must be 1 to {TENANTS_MAX} tenants; null for all", "tenants")
        return sorted({self._writes.tenant(connection, tenant).id for tenant in tenants})

    def _checked_fallbacks(self, connection: sa.Connection, name: str, fallbacks: Sequence[str]) -> list[str]:
        known = {model.name for model in base_models.list_models(connection, self._writes.config)}
        if len(fallbacks) > FALLBACKS_MAX or len(set(fallbacks)) < len(fallbacks):
            raise InvalidValue(f"must be at most {FALLBACKS_MAX} models, each once", "fallbacks")
        for fallback in fallbacks:
            if fallback == name:
                raise InvalidValue(f"{fallback!r} cannot be a fallback of itself", "fallbacks")
            if fallback not in known:
                raise InvalidValue(f"there is no base model {fallback!r}", "fallbacks")
        return list(fallbacks)


def _check_same(before: BaseModel | None, new: BaseModel) -> None:
    """A name that is in use may be added again only with the same files. Raises AlreadyExists."""
    if before is None:
        return
    if before.origin == "config":
        how = "" if before.active else f"; the model was removed, restore it with: laneway models restore {new.name}"
        raise AlreadyExists(f"laneway.toml has a model {new.name!r}{how}", "name")
    if before.active and before.files() != new.files():
        raise AlreadyExists(f"there is another model {new.name!r}; remove it first", "name")


def _comparable(model: BaseModel) -> BaseModel:
    """The model without the fields that every write changes."""
    return msgspec.structs.replace(model, id=None, created_at=None, changed_at=None)
