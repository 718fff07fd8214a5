"""/v1/admin/adapters/ID/use and /v1/admin/alias_use/NAME: an adapter's versions and an alias's arms, compared."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa
from litestar import get
from litestar.params import Parameter

from billing.books import arms
from billing.books.arms import ArmUse
from billing.clock import SECOND, database_now
from gateway.admin.writes import Actor
from gateway.catalog import adapters
from gateway.services import Services

DAY_S = 24 * 3600
Days = Annotated[int, Parameter(ge=1, le=90, description="of settled requests, until now")]


class ArmsView(msgspec.Struct, frozen=True):
    """`start_time` in Unix seconds. Arms with the most requests first."""

    start_time: int
    data: list[ArmUse]


@get("/adapters/{adapter:str}/use", opt={"route": "/v1/admin/adapters/{adapter}/use", "area": "adapters"})
async def adapter_use(services: Services, by: Actor, adapter: str, days: Days = 7) -> ArmsView:
    """The use of each version of an adapter, for an actor with a tenant by this tenant only."""

    def query(connection: sa.Connection) -> ArmsView:
        found = adapters.adapter_of(connection, adapter, seen_by=by.tenant_id)
        start = database_now(connection) - days * DAY_S * SECOND
        used = arms.of_adapter(connection, found.id, start=start, tenant_id=by.tenant_id)
        return ArmsView(start // SECOND, used)

    return await services.database.report(query)


@get("/alias_use/{alias:path}", opt={"route": "/v1/admin/alias_use/{alias}", "area": "models", "everyones": True})
async def alias_use(services: Services, alias: str, days: Days = 7) -> ArmsView:
    """The use of each model or version that served requests for an alias, whether or not the alias exists still."""

    def query(connection: sa.Connection) -> ArmsView:
        start = database_now(connection) - days * DAY_S * SECOND
        return ArmsView(start // SECOND, arms.of_alias(connection, alias.removeprefix("/"), start=start))

    return await services.database.report(query)
