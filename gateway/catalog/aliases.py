"""Rows of aliases. A row overrides the alias of laneway.toml with the same name.

A writer must bump the revision first, in the same transaction: the revision's row lock serialises writes. Permissions,
and whether the models exist, are checked by `gateway/admin`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from billing import clock
from billing.errors import InvalidValue, RowNotFound
from gateway.config.file import Config
from gateway.config.settings import NAME, AliasSection, TargetSection
from gateway.tables import model_aliases

ALIASES_MAX = 1000


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A name that stands for models.

    `models`: in order, each with its weight among the requests. `cheapest`: a tenant that opted in gets the cheapest
    model that can serve the request. `fallbacks`: models tried in order when the chosen model is saturated or
    unavailable; empty: the chosen model's own fallbacks. `tenants`: ids or slugs of the tenants that may call the
    alias; None: all. `created_at`: Unix seconds; None for an alias of laneway.toml."""

    name: str
    models: tuple[TargetSection, ...]
    cheapest: bool = False
    fallbacks: tuple[str, ...] = ()
    tenants: tuple[str, ...] | None = None
    active: bool = True
    source: Literal["configuration", "row"] = "row"
    created_at: int | None = None

    def is_for(self, tenant_id: str | None, slug: str | None) -> bool:
        return self.active and (self.tenants is None or tenant_id in self.tenants or slug in self.tenants)

    def stands_for(self, models: Collection[str]) -> bool:
        """Whether one of `models` has a weight above 0 in this alias."""
        return any(part.weight and part.model in models for part in self.models)


def configured_aliases(config: Config) -> dict[str, Alias]:
    """The aliases of laneway.toml by name: its `[[aliases]]` tables, and the `aliases` of its models."""
    found = [_of_section(section) for section in config.aliases]
    for model in config.models:
        found += [
            # Without `tenants`: the model's own restriction applies.
            Alias(name=name, models=(TargetSection(model=model.name),), source="configuration")
            for name in model.aliases
        ]
    return {alias.name: alias for alias in found}


def _of_section(section: AliasSection) -> Alias:
    return Alias(
        name=section.name,
        models=section.models,
        cheapest=section.cheapest,
        fallbacks=section.fallbacks,
        tenants=section.tenants,
        source="configuration",
    )


def list_aliases(connection: sa.Connection) -> list[Alias]:
    """All rows, by name."""
    return [_of_row(row) for row in connection.execute(sa.select(model_aliases).order_by(model_aliases.c.name))]


def in_force(connection: sa.Connection, config: Config) -> dict[str, Alias]:
    """Name → alias: all rows, and the aliases of laneway.toml without a row."""
    found = configured_aliases(config) | {alias.name: alias for alias in list_aliases(connection)}
    return dict(sorted(found.items()))


def get_alias(connection: sa.Connection, name: str) -> Alias | None:
    row = connection.execute(sa.select(model_aliases).where(model_aliases.c.name == name)).one_or_none()
    return None if row is None else _of_row(row)


def put_alias(connection: sa.Connection, alias: Alias) -> Alias:
    """Insert the row or replace it. `tenants` must be ids. Raises InvalidValue."""
    check_alias(alias)
    before = get_alias(connection, alias.name)
    values = {
        "models": msgspec.to_builtins(alias.models),
        "cheapest": alias.cheapest,
        "fallbacks": list(alias.fallbacks),
        "tenants": None if alias.tenants is None else list(alias.tenants),
        "active": alias.active,
    }
    if before is None:
        count = connection.execute(sa.select(sa.func.count()).select_from(model_aliases)).scalar_one()
        if count >= ALIASES_MAX:
            raise InvalidValue(f"there are {ALIASES_MAX} aliases already", "name")
        values |= {"name": alias.name, "created_at": clock.database_now(connection)}
        connection.execute(sa.insert(model_aliases).values(values))
    else:
        connection.execute(sa.update(model_aliases).where(model_aliases.c.name == alias.name).values(values))
    after = get_alias(connection, alias.name)
    assert after is not None
    return after


def delete_alias(connection: sa.Connection, name: str) -> Alias:
    """Delete the row: an alias of laneway.toml with the same name is in force again. Raises RowNotFound."""
    before = get_alias(connection, name)
    if before is None:
        raise RowNotFound(f"no alias {name!r} was set; one of laneway.toml can only be switched off", "alias")
    connection.execute(sa.delete(model_aliases).where(model_aliases.c.name == name))
    return before


def check_alias(alias: Alias) -> None:
    """Check an alias, except whether its models exist. Raises InvalidValue."""
    if not re.fullmatch(NAME, alias.name):
        raise InvalidValue(f"an alias's name has 1 to 128 of a-z, A-Z, 0-9, '.', '_', '/', '-': {NAME}", "name")
    for field, names in (("models", [target.model for target in alias.models]), ("fallbacks", list(alias.fallbacks))):
        for name in names:
            if names.count(name) > 1:
                raise InvalidValue(f"{name!r} is listed {names.count(name)} times", field)
    if not any(target.weight for target in alias.models):
        raise InvalidValue("every weight is 0, so no model would serve the alias", "models")


def _of_row(row: sa.Row[Any]) -> Alias:
    fields = dict(row._mapping)
    return Alias(
        name=fields["name"],
        models=msgspec.convert(fields["models"], tuple[TargetSection, ...]),
        cheapest=fields["cheapest"],
        fallbacks=tuple(fields["fallbacks"]),
        tenants=None if fields["tenants"] is None else tuple(fields["tenants"]),
        active=fields["active"],
        created_at=fields["created_at"] // clock.SECOND,
    )
