"""/v1/admin/search: objects of every kind by a part of their name or by their id."""

from __future__ import annotations

from typing import Annotated

import msgspec
import sqlalchemy as sa
from litestar import get
from litestar.params import Parameter

from gateway.admin.writes import Actor, visible_tenant
from gateway.errors import InvalidRequest
from gateway.routes.admin.paging import TenantFilter
from gateway.services import Services
from gateway.views.search import Searcher, SearchHit

Text = Annotated[str, Parameter(min_length=1, max_length=200, description="part of a name, or an id")]


class SearchView(msgspec.Struct, frozen=True):
    """At most five hits of each kind."""

    data: list[SearchHit]


# Every role reads people; the other kinds are left out for a role that may not read them.
@get("/search", opt={"route": "/v1/admin/search", "area": "people"})
async def search(services: Services, by: Actor, q: Text, tenant: TenantFilter = None) -> SearchView:
    """Tenants, projects, keys, requests, invoices, adapters, models, aliases, batches and files that `q` finds, for an
    actor with a tenant only of this tenant. A request, a batch and a file are found by their whole id."""
    text = q.strip()
    if not text:
        raise InvalidRequest("'q' is blank; it has 1 to 200 characters.", param="q")

    def find(connection: sa.Connection) -> list[SearchHit]:
        tenant_id = visible_tenant(connection, by, tenant)
        return Searcher(services.config, by.role, tenant_id).hits(connection, text)

    return SearchView(await services.database.read(find))
