"""Rows of base models: the models of laneway.toml with operators' changes, and the models that operators added.

A writer must bump the revision first, in the same transaction: the revision's row lock serialises writes. Permissions
and the engine are checked by `gateway/admin`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import clock
from billing.accounts.tenants import Tenant
from billing.errors import InvalidValue, RowNotFound
from billing.ids import new_id
from billing.tables import tenants as tenants_table
from gateway.catalog import aliases as alias_rows
from gateway.catalog.adapters import EVERYONE
from gateway.config.file import Config
from gateway.config.settings import NAME, ModelSection
from gateway.tables import base_models

PATH_CHARS_MAX = 256
TENANTS_MAX = 1024
FALLBACKS_MAX = 16
MODELS_MAX = 64  # active models of one engine
PATH = r"^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,255}$"

Origin = Literal["config", "added"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["none", "fp8", "int8", "int4"]
KvDtype = Literal["auto", "fp8"]


class BaseModel(msgspec.Struct, frozen=True, kw_only=True):
    """A base model, removed models included (`active` False).

    `id` None: a model of laneway.toml that was never changed. `path`: the absolute directory; `directory`: as an
    operator or laneway.toml gave it. `quantize`: the format that the engine makes of unquantised weights on loading.
    `kv_dtype` "auto": `dtype`. `tenants`: ids of the tenants that may call the model; None: all. `context_tokens`
    None: from config.json. `max_tokens_default` None: gateway.max_tokens_default. Moments in Unix seconds."""

    id: str | None
    name: str
    origin: Origin
    path: str
    directory: str
    dtype: Dtype
    quantize: Quantize
    kv_dtype: KvDtype
    context_tokens: int | None
    pinned: bool
    tenants: tuple[str, ...] | None
    fallbacks: tuple[str, ...]
    max_tokens_default: int | None
    active: bool
    created_at: int | None
    changed_at: int | None

    def files(self) -> tuple[str, str, str, str, int | None]:
        """Path, dtypes and context length: a model must be loaded again only when one of these changes."""
        return self.path, self.dtype, self.quantize, self.kv_dtype, self.context_tokens

    def allows(self, tenant_id: str | None) -> bool:
        return self.tenants is None or tenant_id in self.tenants


class ModelChange(msgspec.Struct, frozen=True, kw_only=True):
    """New values of a model's fields. UNSET: the field does not change. `tenants`: ids or slugs; None: all.
    `max_tokens_default` None: as laneway.toml has it."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    tenants: Sequence[str] | msgspec.UnsetType | None = msgspec.UNSET
    fallbacks: Sequence[str] | msgspec.UnsetType = msgspec.UNSET
    max_tokens_default: int | msgspec.UnsetType | None = msgspec.UNSET

    def values(self) -> dict[str, Any]:
        """Column → value of the fields that are given."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not msgspec.UNSET}
        if "tenants" in given:
            given["tenants"] = [EVERYONE] if given["tenants"] is None else list(given["tenants"])
        if "fallbacks" in given:
            given["fallbacks"] = list(given["fallbacks"])
        return given


# ---- reading


def configured_models(config: Config) -> list[BaseModel]:
    """The models of laneway.toml, without a database. Their `tenants` are then unknown ids, so a restricted model is
    returned with an empty list: no tenant may call it."""
    return [_of_section(section, None, None if section.tenants is None else ()) for section in config.models]


def list_models(connection: sa.Connection, config: Config) -> list[BaseModel]:
    """All models, removed models included: first the models of laneway.toml in its order, then added models, oldest
    first."""
    rows = {row.name: row for row in connection.execute(sa.select(base_models).order_by(*_BY_AGE))}
    ids = _tenant_ids(connection, config.models)
    found = []
    for section in config.models:
        allowed = None if section.tenants is None else tuple(ids[slug] for slug in section.tenants if slug in ids)
        row = rows.get(section.name)
        found.append(_of_section(section, row if row is not None and row.path is None else None, allowed))
    configured_names = {section.name for section in config.models}
    added = [row for name, row in rows.items() if row.path is not None and name not in configured_names]
    return [*found, *(_of_row(row, config.models_dir) for row in added)]


def active_models(connection: sa.Connection, config: Config) -> list[BaseModel]:
    return [model for model in list_models(connection, config) if model.active]


def model_named(connection: sa.Connection, config: Config, name: str) -> BaseModel:
    """Raises RowNotFound."""
    for model in list_models(connection, config):
        if model.name == name:
            return model
    raise RowNotFound(f"there is no base model {name!r}", "model")


def taken_names(connection: sa.Connection, config: Config, tenant: Tenant | None = None) -> dict[str, str]:
    """Name → "a base model" or "an alias", for all active ones. With `tenant`: only names that the tenant sees."""
    models = [model for model in active_models(connection, config) if tenant is None or model.allows(tenant.id)]
    names = {model.name for model in models}
    aliases = [alias for alias in alias_rows.in_force(connection, config).values() if alias.active]
    if tenant is not None:
        aliases = [alias for alias in aliases if alias.is_for(tenant.id, tenant.slug) and alias.stands_for(names)]
    return {alias.name: "an alias" for alias in aliases} | dict.fromkeys(names, "a base model")


_BY_AGE = (base_models.c.created_at, base_models.c.name)


def _tenant_ids(connection: sa.Connection, sections: Iterable[ModelSection]) -> dict[str, str]:
    slugs = {slug for section in sections for slug in section.tenants or ()}
    if not slugs:
        return {}
    query = sa.select(tenants_table.c.slug, tenants_table.c.id).where(tenants_table.c.slug.in_(slugs))
    return {row.slug: row.id for row in connection.execute(query)}


def _of_section(section: ModelSection, row: sa.Row[Any] | None, allowed: tuple[str, ...] | None) -> BaseModel:
    model = BaseModel(
        id=None,
        name=section.name,
        origin="config",
        path=section.path,
        directory=section.path,
        dtype=section.dtype,
        quantize=section.quantize,
        kv_dtype=section.kv_dtype,
        context_tokens=section.context_tokens,
        pinned=section.pinned,
        tenants=allowed,
        fallbacks=section.fallbacks,
        max_tokens_default=section.max_tokens_default,
        active=True,
        created_at=None,
        changed_at=None,
    )
    return model if row is None else _changed(model, row)


def _of_row(row: sa.Row[Any], models_dir: Path) -> BaseModel:
    model = BaseModel(
        id=row.id,
        name=row.name,
        origin="added",
        path=str(models_dir / row.path),
        directory=row.path,
        dtype=row.dtype,
        quantize=row.quantize or "none",
        kv_dtype=row.kv_dtype or "auto",
        context_tokens=row.context_tokens,
        pinned=False,
        tenants=None,
        fallbacks=(),
        max_tokens_default=None,
        active=row.active,
        created_at=None,
        changed_at=None,
    )
    return _changed(model, row)


def _changed(model: BaseModel, row: sa.Row[Any]) -> BaseModel:
    """The model with the row's values; a NULL column leaves the model's own value."""
    values: dict[str, Any] = {
        "id": row.id,
        "active": row.active,
        "created_at": row.created_at // clock.SECOND,
        "changed_at": row.changed_at // clock.SECOND,
    }
    if row.pinned is not None:
        values["pinned"] = row.pinned
    if row.tenants is not None:
        values["tenants"] = None if EVERYONE in row.tenants else tuple(row.tenants)
    if row.fallbacks is not None:
        values["fallbacks"] = tuple(row.fallbacks)
    if row.max_tokens_default is not None:
        values["max_tokens_default"] = row.max_tokens_default
    return msgspec.structs.replace(model, **values)


# ---- files


def check_name(name: str) -> None:
    """Raises InvalidValue."""
    if re.match(NAME, name) is None or name.endswith("\n"):
        raise InvalidValue(f"a model's name has 1 to 128 of a-z, A-Z, 0-9, '.', '_', '/', '-': {NAME}", "name")


class NoSuchDirectory(InvalidValue):
    """The message does not contain the path of gateway.models_dir, since an answer over HTTP must not show it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the models' folder has no directory {path!r}, or a dead link in it", "path")


def directory_in(models_dir: Path, path: str) -> Path:
    """The directory `path` below `models_dir`. Symbolic links may point only to places inside `models_dir`, so that a
    caller of the admin API cannot read other files of the host. Raises InvalidValue."""
    parts = path.split("/")
    if re.match(PATH, path) is None or path.endswith("\n") or ".." in parts:
        raise InvalidValue(
            f"{path!r} is no directory inside the models' folder: 1 to {PATH_CHARS_MAX} of a-z, A-Z, 0-9, '.', '_', "
            "'/', '-', relative, and without '..'",
            "path",
        )
    directory = models_dir / path
    try:
        root = models_dir.resolve(strict=True)
        paths = [directory, *directory.iterdir()]
        outside = [path_.name for path_ in paths if not path_.resolve(strict=True).is_relative_to(root)]
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchDirectory(path) from None
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a link leads to itself"
        raise InvalidValue(f"the directory {path!r} cannot be read: {reason}", "path") from None
    if outside:
        raise InvalidValue(f"{outside[0]!r} of {path!r} leads out of the models' folder", "path")
    return directory


# ---- writing


def insert_model_row(connection: sa.Connection, name: str, **values: Any) -> None:
    now = clock.database_now(connection)
    row = {"id": new_id("mod"), "name": name, "active": True, "created_at": now, "changed_at": now}
    connection.execute(sa.insert(base_models).values(row | values))


def change_model_row(connection: sa.Connection, name: str, **values: Any) -> None:
    """Change the given columns; insert a row for a model without a row."""
    row = connection.execute(sa.select(base_models.c.id).where(base_models.c.name == name)).one_or_none()
    if row is None:
        insert_model_row(connection, name, **values)
        return
    values["changed_at"] = clock.database_now(connection)
    connection.execute(sa.update(base_models).where(base_models.c.id == row.id).values(values))
