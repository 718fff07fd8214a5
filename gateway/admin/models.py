"""What an operator may change of base models: each the change and its audit line, together.

Files and engine were asked before (`model_changes`); here a model gets its name. It knows no HTTP and no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from billing import revision
from billing.accounts import prices
from billing.accounts.prices import REQUEST_TOKENS_MAX
from billing.clock import database_now
from billing.errors import AlreadyExists, InvalidValue, NotPossibleYet
from billing.revision import Change
from gateway.admin.writes import Writes, tenant_of
from gateway.catalog import adapters, base_models
from gateway.catalog.base_models import FALLBACKS_MAX, MODELS_MAX, TENANTS_MAX, BaseModel, Dtype, ModelChange

CONTEXT_TOKENS_MAX = 16_777_216
# Of a row: nothing is changed, and its files are laneway.toml's.
AS_IT_IS: dict[str, Any] = {
    "active": True, "pinned": None, "tenants": None, "fallbacks": None, "max_tokens_default": None,
}  # fmt: skip
NO_FILES: dict[str, Any] = {"path": None, "dtype": None, "context_tokens": None}


class NewModel(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of the models' folder as a base model. `dtype` None: that of the other models."""

    name: str
    path: str
    dtype: Dtype | None = None
    context_tokens: int | None = None
    change: ModelChange = ModelChange()


class ModelWrites(Writes):
    """Which base models there are, and who may call them. Every gateway and its engine follow within a second."""

    def check_model(self, connection: sa.Connection, wanted: NewModel) -> BaseModel:
        """Everything that `add_model` asks of the database, before the engine is asked; the model as it would be.
        Raises BillingRefused."""
        self._check_unbound("base models are")
        base_models.check_name(wanted.name)
        if wanted.context_tokens is not None and not 2 <= wanted.context_tokens <= CONTEXT_TOKENS_MAX:
            raise InvalidValue(f"must be 2 to {CONTEXT_TOKENS_MAX}", "context_tokens")
        there = base_models.list_models(connection, self._config)
        new = BaseModel(
            id=None,
            name=wanted.name,
            origin="added",
            path=str(base_models.directory_in(self._config.models_dir, wanted.path)),
            directory=wanted.path,
            dtype=wanted.dtype or (there[0].dtype if there else "float32"),
            context_tokens=wanted.context_tokens,
            pinned=wanted.change.pinned is True,
            tenants=None,
            fallbacks=(),
            max_tokens_default=None,
            active=True,
            created_at=None,
            changed_at=None,
        )
        before = next((model for model in there if model.name == wanted.name), None)
        if before is not None and before.origin == "config":
            how = "" if before.active else f"; it is removed, and comes back with: laneway models restore {wanted.name}"
            raise AlreadyExists(f"laneway.toml has a model {wanted.name!r}{how}", "name")
        if before is not None and before.active and before.files() != new.files():
            raise AlreadyExists(f"there is another model {wanted.name!r}; remove it first", "name")
        self._check_free(connection, wanted.name)
        if (before is None or not before.active) and sum(model.active for model in there) >= MODELS_MAX:
            raise InvalidValue(f"there are {MODELS_MAX} base models already, which is the limit", "name")
        self._check_price(connection, wanted.name)
        self._checked(connection, wanted.name, wanted.change)
        return new

    def add_model(self, connection: sa.Connection, wanted: NewModel) -> BaseModel:
        """Serve it from now on. The same again changes nothing but what it says of the change."""
        revision.bump(connection, Change("models"))
        new = self.check_model(connection, wanted)
        before = self._before(connection, wanted.name)
        values = self._checked(connection, wanted.name, wanted.change).values()
        files = {"path": wanted.path, "dtype": new.dtype, "context_tokens": new.context_tokens}
        if before is None or not before.active:
            base_models.change(connection, wanted.name, **(AS_IT_IS | files | values))
        elif values:
            base_models.change(connection, wanted.name, **values)
        return self._recorded(connection, "model.add", wanted.name, before)

    def set_model(self, connection: sa.Connection, name: str, change: ModelChange) -> BaseModel:
        """Change what is given. Tenants by id or slug."""
        revision.bump(connection, Change("models"))
        self._check_unbound("base models are")
        before = base_models.model_named(connection, self._config, name)
        values = self._checked(connection, name, change).values()
        if values:
            self._change(connection, before, values)
        return self._recorded(connection, "model.set", name, before)

    def remove_model(self, connection: sa.Connection, name: str) -> BaseModel:
        """Nobody may call it from now on, nor its adapters; requests in flight end as they would have. The last one
        stays: an engine serves one model at least."""
        revision.bump(connection, Change("models"))
        self._check_unbound("base models are")
        before = base_models.model_named(connection, self._config, name)
        if before.active:
            if len(base_models.active_models(connection, self._config)) == 1:
                raise NotPossibleYet(f"{name!r} is the last base model that is served; add another one first", "model")
            self._change(connection, before, {"active": False})
        return self._recorded(connection, "model.remove", name, before)

    def check_restorable(self, connection: sa.Connection, name: str) -> BaseModel:
        """One that was removed, or never was. Raises BillingRefused."""
        self._check_unbound("base models are")
        model = base_models.model_named(connection, self._config, name)
        if not model.active:
            self._check_free(connection, name)
            self._check_price(connection, name)
        return model

    def restore_model(self, connection: sa.Connection, name: str) -> BaseModel:
        """Serve it again, as it was when it was removed; its adapters with it."""
        revision.bump(connection, Change("models"))
        before = self.check_restorable(connection, name)
        if not before.active:
            self._change(connection, before, {"active": True})
        return self._recorded(connection, "model.restore", name, before)

    def is_served(self, connection: sa.Connection, name: str) -> bool:
        return any(model.name == name for model in base_models.active_models(connection, self._config))

    def _change(self, connection: sa.Connection, before: BaseModel, values: dict[str, Any]) -> None:
        """What a row says of a model that was added once, and is in laneway.toml now, says nothing any more."""
        if before.origin == "config":
            values = (AS_IT_IS if before.id is None else {}) | NO_FILES | values
        base_models.change(connection, before.name, **values)

    def _before(self, connection: sa.Connection, name: str) -> BaseModel | None:
        found = base_models.list_models(connection, self._config)
        return next((model for model in found if model.name == name), None)

    def _recorded(self, connection: sa.Connection, action: str, name: str, before: BaseModel | None) -> BaseModel:
        """The model as it is now, and the line of it where something changed."""
        after = base_models.model_named(connection, self._config, name)
        if before is None or _said(after) != _said(before):
            self._record(connection, action, after.id or name, before=before, after=after)
        return after

    def _check_free(self, connection: sa.Connection, name: str) -> None:
        """That no operator gave the name another meaning. A tenant's own adapter of that name goes on for that tenant,
        and a tenant cannot keep a model from coming. Raises AlreadyExists."""
        meaning = base_models.taken_names(connection, self._config).get(name)
        if meaning == "an alias":
            raise AlreadyExists(f"{name!r} is the name of an alias", "name")
        if name in adapters.operators_names(connection):
            raise AlreadyExists(f"{name!r} is the name of an adapter", "name")

    def _check_price(self, connection: sa.Connection, name: str) -> None:
        """That it can be billed: without a price each request would be refused. Raises InvalidValue."""
        now = database_now(connection)
        found = prices.listing(connection, subject_kind="model", subject=name)
        if not any(version.effective_from <= now for version in found):
            raise InvalidValue(
                f"{name!r} has no price in force, so nobody could call it; make one first with: "
                f"laneway prices publish {name} --ahead --input AMOUNT --output AMOUNT",
                "name",
            )

    def _checked(self, connection: sa.Connection, name: str, change: ModelChange) -> ModelChange:
        """With tenants' ids. Raises BillingRefused."""
        values = {field: value for field, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
        if (asked := values.get("tenants")) is not None:
            values["tenants"] = self._tenant_ids(connection, asked)
        if "fallbacks" in values:
            values["fallbacks"] = self._fallbacks(connection, name, values["fallbacks"])
        default = values.get("max_tokens_default")
        if default is not None and not 1 <= default <= REQUEST_TOKENS_MAX:
            raise InvalidValue(f"must be 1 to {REQUEST_TOKENS_MAX}", "max_tokens_default")
        return ModelChange(**values)

    def _tenant_ids(self, connection: sa.Connection, asked: Sequence[str]) -> list[str]:
        if not 1 <= len(asked) <= TENANTS_MAX:
            raise InvalidValue(f"must be 1 to {TENANTS_MAX} tenants; null for all", "tenants")
        return sorted({tenant_of(connection, tenant, self._actor).id for tenant in asked})

    def _fallbacks(self, connection: sa.Connection, name: str, asked: Sequence[str]) -> list[str]:
        there = {model.name for model in base_models.list_models(connection, self._config)}
        if len(asked) > FALLBACKS_MAX or len(set(asked)) < len(asked):
            raise InvalidValue(f"must be at most {FALLBACKS_MAX} models, each once", "fallbacks")
        for one in asked:
            if one == name:
                raise InvalidValue(f"{one!r} cannot serve in place of itself", "fallbacks")
            if one not in there:
                raise InvalidValue(f"there is no base model {one!r}", "fallbacks")
        return list(asked)


def _said(model: BaseModel) -> BaseModel:
    """Without what every write changes."""
    return msgspec.structs.replace(model, id=None, created_at=None, changed_at=None)
