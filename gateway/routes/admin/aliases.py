"""/v1/admin/aliases: names that stand for models."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, delete, get, put
from msgspec import Meta

from gateway.admin.administration import Administration
from gateway.catalog import aliases
from gateway.catalog.aliases import Alias
from gateway.config.settings import Name, TargetSection
from gateway.errors import InvalidRequest, NotFound
from gateway.routes.admin.paging import PAGE_DEFAULT, After, Limit
from gateway.services import Services
from gateway.views.accounts import Page, make_page


class AliasSetting(msgspec.Struct, forbid_unknown_fields=True):
    """The whole alias. `models` in order, each with its weight; weight 0 gets no requests. `cheapest`: requests of
    tenants that opted in go to the cheapest of `models` that can serve them. `fallbacks`: models that are tried in
    order when the chosen one is saturated or unavailable; empty: that model's own fallbacks. `tenants` (ids or slugs)
    may call the alias; null: all. An alias that is not `active` cannot be called, even if laneway.toml defines it."""

    models: Annotated[list[TargetSection], Meta(min_length=1, max_length=16)]
    cheapest: bool = False
    fallbacks: Annotated[list[Name], Meta(max_length=16)] = []
    tenants: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    active: bool = True


class AliasController(Controller):
    path = "/aliases"
    opt = {"area": "models", "everyones": True}  # noqa: RUF012

    @get("/", opt={"route": "/v1/admin/aliases"})
    async def list_aliases(self, services: Services, limit: Limit = PAGE_DEFAULT, after: After = None) -> Page[Alias]:
        """The aliases in force, by name: those set by operators, and those of laneway.toml under other names."""
        found = list((await _in_force(services)).values())
        if after is not None:
            names = [alias.name for alias in found]
            if after not in names:
                raise InvalidRequest(f"'page' is {after!r}, which is not on this list.", param="page")
            found = found[names.index(after) + 1 :]
        return make_page(found, limit, lambda alias: alias, lambda alias: alias.name)

    @get("/{alias:path}", opt={"route": "/v1/admin/aliases/{alias}"})
    async def get_alias(self, services: Services, alias: str) -> Alias:
        """One alias in force."""
        found = (await _in_force(services)).get(alias.removeprefix("/"))
        if found is None:
            raise NotFound(f"there is no alias {alias.removeprefix('/')!r}")
        return found

    @put("/{alias:path}", opt={"route": "/v1/admin/aliases/{alias}"})
    async def set_alias(
        self, services: Services, administration: Administration, alias: str, data: AliasSetting
    ) -> Alias:
        """Make or replace an alias; it takes precedence over laneway.toml. Every gateway applies it within a second."""
        fields = msgspec.structs.asdict(data)
        return await services.database.administer(
            lambda c: administration.aliases.set(c, alias.removeprefix("/"), **fields)
        )

    @delete("/{alias:path}", opt={"route": "/v1/admin/aliases/{alias}"})
    async def remove_alias(self, services: Services, administration: Administration, alias: str) -> None:
        """Remove an alias. An alias of this name in laneway.toml applies again."""
        await services.database.administer(lambda c: administration.aliases.remove(c, alias.removeprefix("/")))


async def _in_force(services: Services) -> dict[str, Alias]:
    return await services.database.read(lambda c: aliases.in_force(c, services.config))
